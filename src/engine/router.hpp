// Which way bytes go: the fabric as this job uses it, the planner, and link state (docs/protocol.md §6, §10, §11).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cluster.hpp"
#include "operation.hpp"
#include "railweave/fabric/link_state.hpp"
#include "railweave/planner/planner.hpp"

namespace railweave::engine {

// A fabric for ranks that were given none: a GPU a rank, NVLink between mates, the rank's interfaces as its NICs, a leaf a position.
Fabric derive_fabric(const Cluster& cluster);

class Router {
 public:
  // Throws FabricError when the fabric does not have this cluster's nodes, ranks and NICs.
  Router(const Cluster& cluster, Fabric fabric, const ExchangeSettings& settings);

  const Fabric& fabric() const noexcept { return fabric_; }
  // Whether a NIC reaches another over leafs and spines.
  bool connected(std::uint32_t nic, std::uint32_t peer) const;
  // Bytes/s that a NIC can send, as the fabric says.
  std::uint64_t nominal_Bps(std::uint32_t nic) const { return fabric_.edge(to_leaf_[nic]).capacity_Bps; }

  // Whether rows of others can change how this rank routes.
  bool wants_rows() const noexcept { return policy_ == Policy::railweave || policy_ == Policy::nimble; }
  // Whether a plan says how much goes which way, and not which way alone.
  bool may_deviate() const noexcept { return policy_ == Policy::railweave; }
  struct Summary {
    std::uint64_t id = 0;
    double z_seconds = 0;
  };
  // Plans all rows (by rank: bytes to each rank) and gives the routes of this rank to each destination it sends to.
  Summary plan(const std::vector<std::vector<std::uint64_t>>& rows, std::unordered_map<std::uint32_t, Routes>& routes);
  // All ways to a rank of another node, best first; mates whose memory is used are for the caller to check.
  std::vector<RouteShare> links_to(std::uint32_t destination) const;

  // Grows with each change of what plans go by: rates, and NICs that are down.
  std::uint64_t epoch() const noexcept { return links_.epoch(); }

  // How long these bytes would take on the rail of the rank's own NIC, or its node's first.
  double seconds_on_one_rail(std::uint64_t bytes) const;

  // A measured rate of the link, or 0: forget it. True if it says more than the last one, from which it must differ by over a sixteenth,
  // and others should know.
  bool set_rate(std::uint32_t nic, std::uint32_t peer, std::uint64_t Bps);
  // Bytes/s that a NIC, or a link, can carry, as plans see it.
  std::uint64_t planned_Bps(std::uint32_t nic) const { return links_.rate_Bps(to_leaf_[nic]); }
  std::uint64_t planned_Bps(std::uint32_t nic, std::uint32_t peer) const {
    return std::min(planned_Bps(nic), links_.rate_Bps(from_leaf_[peer]));
  }
  // The last rate of set_rate(), or 0.
  std::uint64_t rate(std::uint32_t nic, std::uint32_t peer) const;
  // What to take for the rate of a link that nothing has confirmed for long. One that was slow carries so little that it might never be
  // measured again: twice as much, up to the fastest rail of its kind. One that was as fast as that says nothing against another link of
  // the same NIC that is slow now: 0.
  std::uint64_t rate_to_try(std::uint32_t nic, std::uint32_t peer) const;
  void set_nic_down(std::uint32_t nic, bool down);

 private:
  static std::uint64_t round_rate(std::uint64_t Bps);
  void apply_rates(std::uint64_t nominal);
  std::map<EdgeId, std::uint64_t> measured_edges() const;
  RouteShare share_of(const Route& route, std::uint64_t bytes) const;

  const Cluster& cluster_;
  Fabric fabric_;
  Policy policy_;
  LinkState links_;
  Planner planner_;
  Demand demand_;
  std::vector<GpuId> gpu_of_;                                                  // by rank
  std::vector<std::uint32_t> rank_of_;                                         // by GPU
  std::vector<VertexId> vertex_of_;                                            // by NIC
  std::vector<std::uint32_t> nic_of_;                                          // by vertex
  std::vector<EdgeId> to_leaf_, from_leaf_;                                    // by NIC
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> measured_;  // bytes/s of links, by their two NICs
  std::vector<std::vector<bool>> connected_;
};

}  // namespace railweave::engine
