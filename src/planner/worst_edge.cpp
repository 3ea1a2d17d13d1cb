#include "worst_edge.hpp"

#include <algorithm>

namespace railweave {
namespace {

constexpr std::uint64_t kSteps = 1024;  // of a split demand, as in the comparison that design.md quotes

}  // namespace

void WorstEdge::add_option(std::uint16_t column, std::initializer_list<std::span<const ResourceId>> parts) {
  Option option{column, static_cast<std::uint32_t>(resources_.size()), 0, 0};
  for (const auto& part : parts) resources_.insert(resources_.end(), part.begin(), part.end());
  option.end = static_cast<std::uint32_t>(resources_.size());
  options_.push_back(option);
}

bool WorstEdge::list_options(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings) {
  pairs_.clear();
  options_.clear();
  resources_.clear();
  for (GpuId src = 0; src < demand.ranks(); ++src) {
    for (GpuId dst = 0; dst < demand.ranks(); ++dst) {
      const std::uint64_t bytes = demand.at(src, dst);
      if (src == dst || bytes == 0) continue;
      const std::uint64_t chunk = settings.chunk_bytes;
      const bool whole = bytes < split_min_bytes(settings, {});  // rails have no say in it, as in the paper
      const std::uint64_t step = whole ? bytes : std::max<std::uint64_t>(1, bytes / kSteps / chunk) * chunk;
      Pair pair{src, dst, bytes, step, static_cast<std::uint32_t>(options_.size()), 0};
      if (fabric.node_of(src) == fabric.node_of(dst)) {
        const auto columns = routes.node_columns(src, dst);
        const auto listed = [&](const NodeColumn& c) { return c.kind != PathKind::host || columns.size() == 1; };
        for (std::size_t c = 0; c < columns.size(); ++c) {
          if (listed(columns[c])) add_option(static_cast<std::uint16_t>(c), {routes.resources(columns[c].resources)});
        }
      } else {
        const auto columns = routes.columns(fabric.node_of(src), fabric.node_of(dst));
        for (const bool crossing : {false, true}) {  // crossings only where no rail is left
          for (std::size_t c = 0; c < columns.size(); ++c) {
            if (!routes.column_usable(columns[c], src, dst) || (columns[c].kind == PathKind::cross_rail) != crossing) continue;
            add_option(static_cast<std::uint16_t>(c),
                       {routes.resources(routes.source(src, columns[c].nic_src).resources), routes.resources(columns[c].network),
                        routes.resources(routes.destination(columns[c].nic_dst, dst).resources)});
          }
          if (options_.size() != pair.begin) break;
        }
      }
      pair.end = static_cast<std::uint32_t>(options_.size());
      if (pair.begin == pair.end) {
        unreachable_ = {src, dst};
        return false;
      }
      pairs_.push_back(pair);
    }
  }
  return true;
}

void WorstEdge::place_step(const LiveRoutes& routes, Pair& pair, std::uint64_t chunk) {
  const std::uint64_t amount = pair.rest < pair.step + chunk ? pair.rest : pair.step;
  const auto seconds_with = [&](const Option& option) {
    double seconds = 0;
    for (std::uint32_t e = option.begin; e < option.end; ++e) {
      const ResourceId r = resources_[e];
      seconds = std::max(seconds, static_cast<double>(load_[r] + amount) / static_cast<double>(routes.capacity_Bps(r)));
    }
    return seconds;
  };
  std::uint32_t best = pair.begin;
  double best_seconds = seconds_with(options_[best]);
  for (std::uint32_t o = pair.begin + 1; o < pair.end; ++o) {
    const double seconds = seconds_with(options_[o]);
    if (seconds >= best_seconds) continue;
    best = o;
    best_seconds = seconds;
  }
  options_[best].bytes += amount;
  for (std::uint32_t e = options_[best].begin; e < options_[best].end; ++e) load_[resources_[e]] += amount;
  pair.rest -= amount;
}

bool WorstEdge::place(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings, Draft& draft) {
  if (!list_options(routes, fabric, demand, settings)) return false;
  load_.assign(fabric.resources().size(), 0);
  for (bool placed = true; placed;) {
    placed = false;
    for (Pair& pair : pairs_) {
      if (pair.rest == 0) continue;
      place_step(routes, pair, settings.chunk_bytes);
      placed = true;
    }
  }
  draft.clear(demand.ranks());
  std::size_t next = 0;
  for (const Pair& pair : pairs_) {
    const std::size_t at = std::size_t{pair.src} * demand.ranks() + pair.dst;
    for (; next <= at; ++next) draft.start[next] = static_cast<std::uint32_t>(draft.bytes.size());
    for (std::uint32_t o = pair.begin; o < pair.end; ++o) {
      const Option& option = options_[o];
      if (option.bytes == 0) continue;
      draft.bytes.push_back(option.bytes);
      draft.column.push_back(option.column);
    }
  }
  for (; next < draft.start.size(); ++next) draft.start[next] = static_cast<std::uint32_t>(draft.bytes.size());
  return true;
}

}  // namespace railweave
