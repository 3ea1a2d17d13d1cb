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
