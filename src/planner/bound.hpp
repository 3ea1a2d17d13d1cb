// Lower bounds that need no routing: what leaves or enters a GPU, what leaves or enters a node, and what one pair can exchange.
#pragma once

#include <cstdint>
#include <vector>

#include "live_routes.hpp"
#include "railweave/demand/demand.hpp"
#include "railweave/planner/plan.hpp"

namespace railweave {

// Sums of a demand that bound and planner share; buffers are kept.
struct DemandSums {
  std::vector<std::uint64_t> gpu_out, gpu_in;    // bytes to and from other GPUs
  std::vector<std::uint64_t> between;            // [src node][dst node], 0 on the diagonal
  std::vector<std::uint64_t> node_out, node_in;  // bytes to and from other nodes
  std::size_t rail_pairs = 0;                    // pairs of GPUs of different nodes that have bytes to exchange

  void add_up(const Demand& demand, const Fabric& fabric);
};

class EndpointBounds {
 public:
  // What GPUs and nodes can send and receive under this link state.
  void refresh(const Fabric& fabric, const LiveRoutes& routes);
  // Holds for any routing.
  Bound find(const DemandSums& sums) const;
  // Holds for the planner's own routes: seconds that nodes take at least over the ways to their NICs that it has chosen.
  double over_chosen_ways(const DemandSums& sums) const;

 private:
  std::vector<std::uint64_t> gpu_out_Bps_, gpu_in_Bps_, node_out_Bps_, node_in_Bps_, chosen_out_Bps_, chosen_in_Bps_;
};

}  // namespace railweave
