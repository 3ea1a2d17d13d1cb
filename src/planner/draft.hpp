// A plan in the making: shares in (source, destination) order with the column each came from, and what they load.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "live_routes.hpp"
#include "railweave/planner/plan.hpp"

namespace railweave {

struct Draft {
  std::vector<Share> shares;
  std::vector<std::uint16_t> column;  // of each share: which of its pair's columns
  std::vector<std::uint32_t> start;   // by pair: its first share; one more at the end

  void clear(std::uint32_t ranks) {
    shares.clear();
    column.clear();
    start.assign(std::size_t{ranks} * ranks + 1, 0);
  }
};

// Adds up what shares load. Shares are counted by segment and column first, so that a byte's dozen resources are touched once for
// each segment and not once for each share.
class LoadCounter {
 public:
  void clear(const LiveRoutes& routes) {
    source_.assign(routes.sources().size(), 0);
    destination_.assign(routes.destinations().size(), 0);
    column_.assign(routes.columns().size(), 0);
    node_column_.assign(routes.node_columns().size(), 0);
  }
  void add(const LiveRoutes& routes, const RailColumn& column, GpuId src, GpuId dst, std::uint64_t bytes) {
    source_[static_cast<std::size_t>(&routes.source(src, column.nic_src) - routes.sources().data())] += bytes;
    destination_[static_cast<std::size_t>(&routes.destination(column.nic_dst, dst) - routes.destinations().data())] += bytes;
    column_[static_cast<std::size_t>(&column - routes.columns().data())] += bytes;
  }
  void add(const LiveRoutes& routes, const NodeColumn& column, std::uint64_t bytes) {
    node_column_[static_cast<std::size_t>(&column - routes.node_columns().data())] += bytes;
  }
  // Adds to `load`, bytes by resource.
  void total(const LiveRoutes& routes, std::vector<std::uint64_t>& load) const;

 private:
  std::vector<std::uint64_t> source_, destination_, column_, node_column_;
};

// max over resources of load / capacity, and the first resource that has it.
struct Peak {
  double seconds = 0;
  ResourceId at = kNone;
};
Peak find_peak(std::span<const std::uint64_t> load, std::span<const std::uint64_t> capacity_Bps);

}  // namespace railweave
