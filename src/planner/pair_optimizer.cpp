#include "pair_optimizer.hpp"

#include <algorithm>

namespace railweave {
namespace {

// Above this many pairs between nodes, those keep their draft and only the pairs inside nodes are improved: planning is to stay
// below a millisecond for 64 GPUs, and with more nodes rails bound the plan, which sharing out by rail rates gets right.
constexpr std::size_t kMaxRailPairs = 4096;

}  // namespace

void PairOptimizer::improve(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings,
                            const Draft& from, Draft& to) {
  set_up(routes, fabric, demand, settings, from);
  solver_.solve();
  for (std::uint32_t o = 0; o < options_.size(); ++o) options_[o].bytes = solver_.column_bytes(o);
  round(settings);
  write(routes, fabric, demand, from, to);
}

void PairOptimizer::add_column(std::uint16_t column, std::uint64_t bytes, std::span<const ResourceId> a, std::span<const ResourceId> b,
                               std::span<const ResourceId> c) {
  Option option{column, static_cast<std::uint32_t>(resources_.size()), 0, 0};
  solver_.add_column(bytes);
  for (const auto& part : {a, b, c}) {
    for (ResourceId r : part) {
      solver_.add_resource(r);
      resources_.push_back(r);
    }
  }
  option.end = static_cast<std::uint32_t>(resources_.size());
  options_.push_back(option);
}

void PairOptimizer::set_up(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings,
                           const Draft& from) {
  capacity_ = routes.capacities_Bps();
  solver_.begin(capacity_, demand.total());
  pairs_.clear();
  first_.clear();
  options_.clear();
  resources_.clear();
  load_.assign(capacity_.size(), 0);
  std::size_t rail_pairs = 0;
  const std::uint32_t ranks = demand.ranks();
  for (GpuId src = 0; src < ranks; ++src) {
    for (GpuId dst = 0; dst < ranks; ++dst) rail_pairs += demand.at(src, dst) != 0 && fabric.node_of(src) != fabric.node_of(dst) ? 1 : 0;
  }
  for (GpuId src = 0; src < ranks; ++src) {
    for (GpuId dst = 0; dst < ranks; ++dst) {
      const std::uint64_t bytes = demand.at(src, dst);
      if (src == dst || bytes == 0) continue;
      const std::size_t pair = std::size_t{src} * ranks + dst;
      const bool inside = fabric.node_of(src) == fabric.node_of(dst);
      const auto inner = inside ? routes.node_columns(src, dst) : std::span<const NodeColumn>{};
      const auto outer = inside ? std::span<const RailColumn>{} : routes.columns(fabric.node_of(src), fabric.node_of(dst));
      const bool fixed = bytes <= settings.multipath_min_bytes || bytes < 2 * settings.chunk_bytes || inner.size() + outer.size() < 2 ||
                         (!inside && rail_pairs > kMaxRailPairs);
      if (fixed) {
        for (std::uint32_t s = from.start[pair]; s < from.start[pair + 1]; ++s) {
          const auto put = [&](PoolRange range) {
            for (ResourceId r : routes.resources(range)) load_[r] += from.shares[s].bytes;
          };
          if (inside) {
            put(inner[from.column[s]].resources);
          } else {
            const RailColumn& column = outer[from.column[s]];
            put(routes.source(src, column.nic_src).resources);
            put(column.network);
            put(routes.destination(column.nic_dst, dst).resources);
          }
        }
        continue;
      }
      pairs_.push_back({src, dst, bytes});
      first_.push_back(static_cast<std::uint32_t>(options_.size()));
      solver_.add_demand(bytes);
      std::uint32_t share = from.start[pair];
      const auto start_bytes = [&](std::size_t column) {
        if (share == from.start[pair + 1] || from.column[share] != column) return std::uint64_t{0};
        return from.shares[share++].bytes;
      };
      for (std::size_t c = 0; c < inner.size(); ++c) {
        add_column(static_cast<std::uint16_t>(c), start_bytes(c), routes.resources(inner[c].binding), {}, {});
      }
      for (std::size_t c = 0; c < outer.size(); ++c) {
        if (!routes.column_usable(outer[c], src, dst)) continue;
        add_column(static_cast<std::uint16_t>(c), start_bytes(c), routes.resources(routes.source(src, outer[c].nic_src).binding),
                   routes.resources(outer[c].network), routes.resources(routes.destination(outer[c].nic_dst, dst).binding));
      }
    }
  }
  first_.push_back(static_cast<std::uint32_t>(options_.size()));
  for (ResourceId r = 0; r < load_.size(); ++r) {
    if (load_[r] != 0) solver_.add_base(r, load_[r]);
  }
}

// Whole chunks: each part is rounded down, then what is left goes chunk by chunk where it delays the plan least.
void PairOptimizer::round(const PlannerSettings& settings) {
  const std::uint64_t chunk = settings.chunk_bytes;
  const auto add = [&](Option& option, std::uint64_t bytes) {
    option.bytes += bytes;
    for (std::uint32_t e = option.begin; e < option.end; ++e) load_[resources_[e]] += bytes;
  };
  for (Option& option : options_) {
    const std::uint64_t whole = option.bytes - option.bytes % chunk;
    option.bytes = 0;
    add(option, whole);
  }
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    std::uint64_t rest = pairs_[p].bytes;
    for (std::uint32_t o = first_[p]; o < first_[p + 1]; ++o) rest -= options_[o].bytes;
    while (rest != 0) {
      const std::uint64_t amount = rest < 2 * chunk ? rest : chunk;
      Option* best = nullptr;
      double best_seconds = 0;
      for (std::uint32_t o = first_[p]; o < first_[p + 1]; ++o) {
        if (amount < chunk && options_[o].bytes == 0) continue;  // a tail is no part of its own
        double seconds = 0;
        for (std::uint32_t e = options_[o].begin; e < options_[o].end; ++e) {
          const ResourceId r = resources_[e];
          seconds = std::max(seconds, static_cast<double>(load_[r] + amount) / static_cast<double>(capacity_[r]));
        }
        if (best == nullptr || seconds < best_seconds) {
          best = &options_[o];
          best_seconds = seconds;
        }
      }
      add(*best, amount);
      rest -= amount;
    }
  }
}

void PairOptimizer::write(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const Draft& from, Draft& to) const {
  const std::uint32_t ranks = demand.ranks();
  to.clear(ranks);
  std::size_t next = 0;
  for (GpuId src = 0; src < ranks; ++src) {
    for (GpuId dst = 0; dst < ranks; ++dst) {
      const std::size_t pair = std::size_t{src} * ranks + dst;
      to.start[pair] = static_cast<std::uint32_t>(to.shares.size());
      if (next == pairs_.size() || pairs_[next].src != src || pairs_[next].dst != dst) {
        to.shares.insert(to.shares.end(), from.shares.begin() + from.start[pair], from.shares.begin() + from.start[pair + 1]);
        to.column.insert(to.column.end(), from.column.begin() + from.start[pair], from.column.begin() + from.start[pair + 1]);
        continue;
      }
      const bool inside = fabric.node_of(src) == fabric.node_of(dst);
      for (std::uint32_t o = first_[next]; o < first_[next + 1]; ++o) {
        const Option& option = options_[o];
        if (option.bytes == 0) continue;
        const Route route = inside ? LiveRoutes::route(routes.node_columns(src, dst)[option.column], src, dst)
                                   : routes.route(routes.columns(fabric.node_of(src), fabric.node_of(dst))[option.column], src, dst);
        to.shares.push_back({route, option.bytes});
        to.column.push_back(option.column);
      }
      ++next;
    }
  }
  to.start.back() = static_cast<std::uint32_t>(to.shares.size());
}

}  // namespace railweave
