#include "draft.hpp"

#include <limits>

namespace railweave {

void LoadCounter::begin(const LiveRoutes& routes) {
  source_.assign(routes.sources().size(), 0);
  destination_.assign(routes.destinations().size(), 0);
  column_.assign(routes.columns().size(), 0);
  node_column_.assign(routes.node_columns().size(), 0);
}

void LoadCounter::finish(const LiveRoutes& routes, const Fabric& fabric, std::vector<std::uint64_t>& load) const {
  load.assign(fabric.resources().size(), 0);
  const auto spread = [&](std::uint64_t bytes, PoolRange range) {
    if (bytes == 0) return;
    for (ResourceId r : routes.resources(range)) load[r] += bytes;
  };
  for (std::size_t i = 0; i < source_.size(); ++i) spread(source_[i], routes.sources()[i].resources);
  for (std::size_t i = 0; i < destination_.size(); ++i) spread(destination_[i], routes.destinations()[i].resources);
  for (std::size_t i = 0; i < column_.size(); ++i) spread(column_[i], routes.columns()[i].network);
  for (std::size_t i = 0; i < node_column_.size(); ++i) spread(node_column_[i], routes.node_columns()[i].resources);
}

void LoadCounter::count(const LiveRoutes& routes, const Fabric& fabric, const Draft& draft, std::vector<std::uint64_t>& load) {
  begin(routes);
  std::size_t pair = 0;
  std::uint32_t part = 0;
  for (GpuId src = 0; src < fabric.gpu_count(); ++src) {
    const NodeId a = fabric.node_of(src);
    std::uint64_t* const source = from(routes, src);
    for (NodeId b = 0; b < fabric.node_count(); ++b) {
      const GpuId first = fabric.first_gpu(b), last = first + static_cast<GpuId>(fabric.gpus_of(b).size());
      if (draft.start[pair] == draft.start[pair + (last - first)]) {
        pair += last - first;
        continue;
      }
      const auto columns = a == b ? std::span<const RailColumn>{} : routes.columns(a, b);
      std::uint64_t* const column = a == b ? nullptr : on(routes, columns);
      for (GpuId dst = first; dst < last; ++dst, ++pair) {
        const std::uint32_t end = draft.start[pair + 1];
        if (part == end) continue;
        if (a == b) {
          std::uint64_t* const inner = on(routes, routes.node_columns(src, dst));
          for (; part < end; ++part) inner[draft.column[part]] += draft.bytes[part];
          continue;
        }
        std::uint64_t* const destination = to(routes, dst);
        for (; part < end; ++part) {
          const std::uint32_t c = draft.column[part];
          source[columns[c].nic_src] += draft.bytes[part];
          destination[columns[c].nic_dst] += draft.bytes[part];
          column[c] += draft.bytes[part];
        }
      }
    }
  }
  finish(routes, fabric, load);
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
