#include "draft.hpp"

#include <limits>

namespace railweave {

void LoadCounter::total(const LiveRoutes& routes, std::vector<std::uint64_t>& load) const {
  const auto spread = [&](std::uint64_t bytes, PoolRange range) {
    if (bytes == 0) return;
    for (ResourceId r : routes.resources(range)) load[r] += bytes;
  };
  for (std::size_t i = 0; i < source_.size(); ++i) spread(source_[i], routes.sources()[i].resources);
  for (std::size_t i = 0; i < destination_.size(); ++i) spread(destination_[i], routes.destinations()[i].resources);
  for (std::size_t i = 0; i < column_.size(); ++i) spread(column_[i], routes.columns()[i].network);
  for (std::size_t i = 0; i < node_column_.size(); ++i) spread(node_column_[i], routes.node_columns()[i].resources);
}

Peak find_peak(std::span<const std::uint64_t> load, std::span<const std::uint64_t> capacity_Bps) {
  Peak peak;
  for (ResourceId r = 0; r < load.size(); ++r) {
    if (load[r] == 0) continue;
    const double seconds = capacity_Bps[r] == 0 ? std::numeric_limits<double>::infinity()
                                                : static_cast<double>(load[r]) / static_cast<double>(capacity_Bps[r]);
    if (seconds > peak.seconds) peak = {seconds, r};
  }
  return peak;
}

}  // namespace railweave
