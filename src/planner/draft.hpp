// A plan in the making: parts of demands in (source, destination) order with the column each takes, and what they load.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "live_routes.hpp"
#include "railweave/planner/plan.hpp"

namespace railweave {

struct Draft {
  std::vector<std::uint64_t> bytes;   // of each part
  std::vector<std::uint16_t> column;  // of each part: which of its pair's columns
  std::vector<std::uint32_t> start;   // by pair: its first part; one more at the end

  void clear(std::uint32_t ranks) {
    bytes.clear();
    column.clear();
    start.assign(std::size_t{ranks} * ranks + 1, 0);
  }
};

// Adds up what a draft loads. Parts are counted by segment and column first, so that a byte's dozen resources are touched once for
// each segment and not once for each part.
class LoadCounter {
 public:
  // `load`: bytes by resource.
  void count(const LiveRoutes& routes, const Fabric& fabric, const Draft& draft, std::vector<std::uint64_t>& load);

  // The same while the draft is made: begin, bytes added where the following point to, finish.
  void begin(const LiveRoutes& routes);
  // Bytes from and to each NIC of a GPU's node.
  std::uint64_t* from(const LiveRoutes& routes, GpuId src) { return source_.data() + routes.first_segment(src); }
  std::uint64_t* to(const LiveRoutes& routes, GpuId dst) { return destination_.data() + routes.first_segment(dst); }
  // Bytes on each of these columns, which are a part of those of `routes`.
  std::uint64_t* on(const LiveRoutes& routes, std::span<const RailColumn> columns) {
    return column_.data() + (columns.data() - routes.columns().data());
  }
  std::uint64_t* on(const LiveRoutes& routes, std::span<const NodeColumn> columns) {
    return node_column_.data() + (columns.data() - routes.node_columns().data());
  }
  void finish(const LiveRoutes& routes, const Fabric& fabric, std::vector<std::uint64_t>& load) const;

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
