#include "pair_optimizer.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>

namespace railweave {
namespace {

// Above this many pairs between nodes, those keep their draft and only the pairs inside nodes are improved: planning is to stay
// below a millisecond for 64 GPUs, and with more nodes rails bound the plan, which sharing out by rail rates gets right.
constexpr std::size_t kMaxRailPairs = 4096;

}  // namespace

bool PairOptimizer::improve(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings,
                            std::size_t rail_pairs, const Draft& from, const std::vector<std::uint64_t>& load, double bound_seconds,
                            Draft& to) {
  capacity_ = routes.capacities_Bps();
  solver_.begin(capacity_, demand.total(), bound_seconds);
  load_.assign(load.begin(), load.end());
  set_up(routes, fabric, demand, settings, rail_pairs <= kMaxRailPairs, from);
  if (pairs_.empty()) return false;
  for (ResourceId r = 0; r < load_.size(); ++r) {
    if (load_[r] != 0) solver_.add_base(r, load_[r]);
  }
  solver_.solve();
  bound_seconds_ = keeps_rails_    ? 0
                   : kept_.empty() ? solver_.bound_seconds()
                                   : solver_.bound_seconds_less(saved_elsewhere(routes, fabric, from));
  round(settings);
  write(demand.ranks(), from, to);
  return true;
}

void PairOptimizer::set_up(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings,
                           bool rails, const Draft& from) {
  pairs_.clear();
  first_.clear();
  options_.clear();
  kept_.clear();
  keeps_rails_ = !rails;
  const std::uint32_t ranks = demand.ranks();
  for (GpuId src = 0; src < ranks; ++src) {
    const NodeId a = fabric.node_of(src);
    const NodeId begin = rails ? 0 : a, end = rails ? fabric.node_count() : a + 1;
    for (NodeId b = begin; b < end; ++b) {
      const auto outer = a == b ? std::span<const RailColumn>{} : routes.columns(a, b);
      if (a != b && outer.size() < 2) continue;
      const std::uint64_t least = split_min_bytes(settings, outer);
      const GpuId first = fabric.first_gpu(b), last = first + static_cast<GpuId>(fabric.gpus_of(b).size());
      for (GpuId dst = first; dst < last; ++dst) {
        const std::uint64_t bytes = demand.at(src, dst);
        if (src == dst || bytes == 0) continue;
        const auto inner = a == b ? routes.node_columns(src, dst) : std::span<const NodeColumn>{};
        if (inner.size() + outer.size() < 2) continue;
        if (bytes < least)
          kept_.push_back({src, dst});
        else
          add_pair(routes, src, dst, bytes, inner, outer, from, std::size_t{src} * ranks + dst);
      }
    }
  }
  first_.push_back(static_cast<std::uint32_t>(options_.size()));
}

void PairOptimizer::add_pair(const LiveRoutes& routes, GpuId src, GpuId dst, std::uint64_t bytes, std::span<const NodeColumn> inner,
                             std::span<const RailColumn> outer, const Draft& from, std::size_t pair) {
  pairs_.push_back({pair, bytes});
  first_.push_back(static_cast<std::uint32_t>(options_.size()));
  solver_.add_demand(bytes);
  std::uint32_t part = from.start[pair];
  // What the draft has on a column; it then no longer counts as given load.
  const auto take = [&](std::size_t column, std::initializer_list<PoolRange> loaded) {
    if (part == from.start[pair + 1] || from.column[part] != column) return std::uint64_t{0};
    const std::uint64_t there = from.bytes[part++];
    for (PoolRange range : loaded) {
      for (ResourceId r : routes.resources(range)) load_[r] -= there;
    }
    return there;
  };
  for (std::size_t c = 0; c < inner.size(); ++c) {
    options_.push_back({static_cast<std::uint16_t>(c), 0});
    solver_.add_column(take(c, {inner[c].resources}), {routes.resources(inner[c].binding)});
  }
  for (std::size_t c = 0; c < outer.size(); ++c) {
    if (!routes.column_usable(outer[c], src, dst)) continue;
    const Segment &source = routes.source(src, outer[c].nic_src), &destination = routes.destination(outer[c].nic_dst, dst);
    options_.push_back({static_cast<std::uint16_t>(c), 0});
    solver_.add_column(take(c, {source.resources, outer[c].network, destination.resources}),
                       {routes.resources(source.binding), routes.resources(outer[c].network), routes.resources(destination.binding)});
  }
}

// Bytes times price that the kept demands would save on their cheapest columns. The solver has them for bytes that cannot go elsewhere,
// which says how far it can come, and not what other plans can do.
double PairOptimizer::saved_elsewhere(const LiveRoutes& routes, const Fabric& fabric, const Draft& from) {
  const auto price = [&](PoolRange range) {
    double sum = 0;
    for (ResourceId r : routes.resources(range)) sum += static_cast<double>(solver_.price(r));
    return sum;
  };
  const bool rails = std::any_of(kept_.begin(), kept_.end(), [&](const Kept& k) { return fabric.node_of(k.src) != fabric.node_of(k.dst); });
  source_price_.clear();
  destination_price_.clear();
  network_price_.clear();
  if (rails) {
    for (const Segment& segment : routes.sources()) source_price_.push_back(price(segment.resources));
    for (const Segment& segment : routes.destinations()) destination_price_.push_back(price(segment.resources));
    for (const RailColumn& column : routes.columns()) network_price_.push_back(price(column.network));
  }
  double saved = 0;
  for (const auto& [src, dst] : kept_) {
    const NodeId a = fabric.node_of(src), b = fabric.node_of(dst);
    const auto inner = a == b ? routes.node_columns(src, dst) : std::span<const NodeColumn>{};
    const auto outer = a == b ? std::span<const RailColumn>{} : routes.columns(a, b);
    const auto price_of = [&](std::size_t column) {
      if (a == b) return price(inner[column].resources);
      const RailColumn& c = outer[column];
      return source_price_[routes.first_segment(src) + c.nic_src] + network_price_[static_cast<std::size_t>(&c - routes.columns().data())] +
             destination_price_[routes.first_segment(dst) + c.nic_dst];
    };
    double cheapest = std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < inner.size() + outer.size(); ++c) {
      if (a == b || routes.column_usable(outer[c], src, dst)) cheapest = std::min(cheapest, price_of(c));
    }
    const std::size_t pair = std::size_t{src} * fabric.gpu_count() + dst;
    for (std::uint32_t part = from.start[pair]; part < from.start[pair + 1]; ++part)
      saved += static_cast<double>(static_cast<std::int64_t>(from.bytes[part])) * (price_of(from.column[part]) - cheapest);
  }
  return saved;
}

// Whole chunks: each part is rounded down, then what is left goes chunk by chunk where it delays the plan least.
void PairOptimizer::round(const PlannerSettings& settings) {
  const std::uint64_t chunk = settings.chunk_bytes;
  used_.clear();
  for (const ResourceId r : solver_.resources()) used_.push_back({load_[r], 1.0 / static_cast<double>(capacity_[r])});
  const auto add = [&](std::uint32_t option, std::uint64_t bytes) {
    options_[option].bytes += bytes;
    for (const std::uint32_t r : solver_.column_resources(option)) used_[r].load += bytes;
  };
  for (std::uint32_t o = 0; o < options_.size(); ++o) {
    const std::uint64_t bytes = solver_.column_bytes(o);
    if (bytes >= chunk) add(o, bytes - bytes % chunk);
  }
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    std::uint64_t rest = pairs_[p].bytes;
    for (std::uint32_t o = first_[p]; o < first_[p + 1]; ++o) rest -= options_[o].bytes;
    while (rest != 0) {
      const std::uint64_t amount = std::min(rest, chunk);
      std::uint32_t best = first_[p + 1];
      double best_seconds = 0;
      for (std::uint32_t o = first_[p]; o < first_[p + 1]; ++o) {
        if (amount < chunk && options_[o].bytes == 0) continue;  // a tail is no part of its own
        double seconds = 0;
        for (const std::uint32_t r : solver_.column_resources(o)) {
          seconds = std::max(seconds, static_cast<double>(static_cast<std::int64_t>(used_[r].load + amount)) * used_[r].seconds_per_byte);
        }
        if (best == first_[p + 1] || seconds < best_seconds) {
          best = o;
          best_seconds = seconds;
        }
      }
      add(best, amount);
      rest -= amount;
    }
  }
}

void PairOptimizer::write(std::uint32_t ranks, const Draft& from, Draft& to) const {
  to.clear(ranks);
  const std::size_t all = std::size_t{ranks} * ranks;
  std::size_t next = 0;
  for (std::size_t pair = 0; pair < all; ++pair) {
    to.start[pair] = static_cast<std::uint32_t>(to.bytes.size());
    if (next == pairs_.size() || pairs_[next].pair != pair) {
      for (std::uint32_t part = from.start[pair]; part < from.start[pair + 1]; ++part) {
        to.bytes.push_back(from.bytes[part]);
        to.column.push_back(from.column[part]);
      }
      continue;
    }
    for (std::uint32_t o = first_[next]; o < first_[next + 1]; ++o) {
      if (options_[o].bytes == 0) continue;
      to.bytes.push_back(options_[o].bytes);
      to.column.push_back(options_[o].column);
    }
    ++next;
  }
  to.start.back() = static_cast<std::uint32_t>(to.bytes.size());
}

}  // namespace railweave
