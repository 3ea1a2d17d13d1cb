#include "railweave/planner/planner.hpp"

#include <algorithm>
#include <array>

#include "bound.hpp"
#include "draft.hpp"
#include "live_routes.hpp"
#include "pair_optimizer.hpp"
#include "rail_split.hpp"
#include "railweave/error.hpp"
#include "route_table.hpp"
#include "static_routes.hpp"
#include "worst_edge.hpp"

namespace railweave {
namespace {

__extension__ using Wide = unsigned __int128;

// A plan this near its bound is left alone: closer would take longer to find than it saves.
constexpr double kGoodEnough = 1.004;

// Pairs between nodes for which the single path is tried: 4,096 take it about a millisecond, the search for a plan as long.
constexpr std::size_t kSinglePathPairs = 4096;

constexpr std::uint64_t kFirstId = 0x5261696C77656176ULL;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 32);
}

std::uint64_t mix(std::uint64_t hash, const Share& share) {
  const Route& r = share.route;
  const std::uint64_t ends = (std::uint64_t{r.src} << 32) | r.dst, relays = (std::uint64_t{r.relay_src} << 32) | r.relay_dst;
  const std::uint64_t nics = (std::uint64_t{r.nic_src} << 32) | r.nic_dst;
  return mix(hash, ends * 0xC2B2AE3D27D4EB4FULL + relays * 0x165667B19E3779F9ULL + nics * 0x27D4EB2F165667C5ULL + share.bytes);
}

}  // namespace

class Planner::Impl {
 public:
  Impl(const Fabric& fabric, const PlannerSettings& settings)
      : fabric_(&fabric), settings_(settings), table_(fabric), live_(table_), static_(table_, live_, settings) {
    if (settings.chunk_bytes == 0) throw DemandError("planner: chunk_bytes is 0; a chunk has at least one byte");
    look_at_links();
  }

  const Plan& plan(const Demand& demand, const LinkState& links) {
    check_fits(demand, *fabric_);
    const bool changed = live_.refresh(links);
    if (changed) look_at_links();
    stale_ = stale_ || changed;
    const bool same_demand = planned_ && demand_.bytes() == demand.bytes();
    if (same_demand && !stale_) {
      current().link_epoch = links.epoch();
      return current();
    }
    sums_.add_up(demand, *fabric_);
    Plan& next = plans_[1 - current_];
    Draft& draft = drafts_[1 - current_];
    make(demand, next, draft);
    next.policy = settings_.policy;
    next.link_epoch = links.epoch();
    if (!(same_demand && keeps_winning(next))) {
      current_ = 1 - current_;
      if (!same_demand) demand_ = demand;
    }
    planned_ = true;
    stale_ = false;
    return current();
  }

  std::span<const Share> shares(GpuId src, GpuId dst) const {
    const std::uint32_t ranks = fabric_->gpu_count();
    if (src >= ranks || dst >= ranks) {
      throw DemandError("shares of " + std::to_string(src) + " -> " + std::to_string(dst) + ": the fabric has " + std::to_string(ranks) +
                        " GPUs");
    }
    if (!planned_) return {};
    const Draft& draft = drafts_[current_];
    const std::size_t pair = std::size_t{src} * ranks + dst;
    return std::span(plans_[current_].shares).subspan(draft.start[pair], draft.start[pair + 1] - draft.start[pair]);
  }

  std::vector<Route> candidates(GpuId src, GpuId dst, const LinkState& links) const {
    LiveRoutes live = live_;
    live.refresh(links);
    std::vector<Route> routes;
    if (src == dst) return routes;
    const NodeId a = fabric_->node_of(src), b = fabric_->node_of(dst);
    if (a == b) {
      for (const NodeColumn& column : live.node_columns(src, dst)) routes.push_back(LiveRoutes::route(column, src, dst));
      return routes;
    }
    for (const RailColumn& column : live.columns(a, b)) {
      if (live.column_usable(column, src, dst)) routes.push_back(live.route(column, src, dst));
    }
    std::stable_sort(routes.begin(), routes.end(), [](const Route& x, const Route& y) { return x.relays() < y.relays(); });
    return routes;
  }

  std::uint64_t split_min_bytes(GpuId src, GpuId dst) const {
    const NodeId a = fabric_->node_of(src), b = fabric_->node_of(dst);
    const bool rails = a != b && settings_.policy == Policy::railweave;
    return railweave::split_min_bytes(settings_, rails ? live_.columns(a, b) : std::span<const RailColumn>{});
  }

  Path expand(const Route& route) const {
    Path path{route, 0, {}, {}};
    const std::uint32_t ranks = fabric_->gpu_count();
    const bool known = route.src < ranks && route.dst < ranks && (route.relay_src == kNone || route.relay_src < ranks) &&
                       (route.relay_dst == kNone || route.relay_dst < ranks);
    if (!known || !table_.append_edges(route, path.edges)) {
      throw UnreachableError("this fabric has no " + std::string(to_string(route.kind)) + " route from GPU " + std::to_string(route.src) +
                             " to GPU " + std::to_string(route.dst));
    }
    table_.append_resources(path.edges, path.resources);
    for (EdgeId e : path.edges) path.latency_ns += fabric_->edge(e).latency_ns;
    return path;
  }

 private:
  void look_at_links() {
    bounds_.refresh(*fabric_, live_);
    const auto edges = live_.capacities_Bps().first(fabric_->edges().size());
    whole_ = std::find(edges.begin(), edges.end(), 0u) == edges.end();
  }

  Plan& current() { return plans_[current_]; }

  [[noreturn]] void throw_unreachable(GpuId src, GpuId dst, std::uint64_t bytes) const {
    const auto name = [&](GpuId g) { return "GPU " + std::to_string(g) + " (" + fabric_->vertex(fabric_->gpu(g)).name + ")"; };
    throw UnreachableError("no usable path from " + name(src) + " to " + name(dst) + ", which has " + std::to_string(bytes) +
                           " bytes to receive from it; check the fabric's links and which of them are down");
  }

  void make(const Demand& demand, Plan& plan, Draft& draft) {
    plan.bound = bounds_.find(sums_);
    plan.id = mix(kFirstId, static_cast<std::uint64_t>(settings_.policy));
    switch (settings_.policy) {
      case Policy::railweave: make_balanced(demand, plan, draft); break;
      case Policy::nimble: make_nimble(demand, plan, draft); break;
      default: make_static(demand, plan, draft); break;
    }
  }

  void make_static(const Demand& demand, Plan& plan, Draft& draft) {
    const std::uint32_t ranks = demand.ranks();
    draft.clear(ranks);
    plan.shares.clear();
    plan.load.assign(fabric_->resources().size(), 0);
    for (GpuId src = 0; src < ranks; ++src) {
      for (GpuId dst = 0; dst < ranks; ++dst) {
        const std::size_t begin = plan.shares.size();
        draft.start[std::size_t{src} * ranks + dst] = static_cast<std::uint32_t>(begin);
        const std::uint64_t bytes = demand.at(src, dst);
        if (src == dst || bytes == 0) continue;
        if (!static_.append(src, dst, bytes, plan.shares)) throw_unreachable(src, dst, bytes);
        for (std::size_t s = begin; s < plan.shares.size(); ++s) {
          edges_.clear();
          loaded_.clear();
          table_.append_edges(plan.shares[s].route, edges_);
          table_.append_resources(edges_, loaded_);
          for (ResourceId r : loaded_) plan.load[r] += plan.shares[s].bytes;
        }
      }
    }
    draft.start.back() = static_cast<std::uint32_t>(plan.shares.size());
    for (const Share& share : plan.shares) plan.id = mix(plan.id, share);
    rate(plan);
  }

  void rate(Plan& plan) {
    const Peak peak = find_peak(plan.load, live_.capacities_Bps());
    plan.z_seconds = peak.seconds;
    plan.bottleneck = peak.at;
  }

  void make_nimble(const Demand& demand, Plan& plan, Draft& draft) {
    if (!worst_edge_.place(live_, *fabric_, demand, settings_, draft)) {
      const auto [src, dst] = worst_edge_.unreachable();
      throw_unreachable(src, dst, demand.at(src, dst));
    }
    count(draft, plan);
    write(draft, plan);
  }

  void make_balanced(const Demand& demand, Plan& plan, Draft& draft) {
    if (const double seconds = bounds_.over_chosen_ways(sums_); seconds > plan.bound.seconds)
      plan.bound = {Bound::Kind::prices, seconds, kNone};
    share_out(demand, draft);
    counter_.finish(live_, *fabric_, plan.load);
    rate(plan);
    if (plan.z_seconds > plan.bound.seconds * kGoodEnough &&
        optimizer_.improve(live_, *fabric_, demand, settings_, sums_.rail_pairs, draft, plan.load, plan.bound.seconds, improved_)) {
      if (optimizer_.bound_seconds() > plan.bound.seconds) plan.bound = {Bound::Kind::prices, optimizer_.bound_seconds(), kNone};
      const double before = plan.z_seconds;
      count(improved_, plan);
      if (plan.z_seconds < before) {
        std::swap(draft, improved_);
      } else {
        count(draft, plan);
      }
    }
    if (takes_single_path(demand, plan, draft)) return;
    write(draft, plan);
  }

  // The own NICs' crossings of the spine are not among the candidates (docs/planner.md, "What a bound holds for"): where rails meet
  // narrow links inside the nodes they may be faster, and where they are candidates, the search ends somewhat above the best. So the plan
  // of today's single path is made, too, unless this one is near its endpoints' bound, there are so many pairs that it would take long, or
  // a link is down, round which the candidates know more ways.
  bool takes_single_path(const Demand& demand, Plan& plan, Draft& draft) {
    if (!whole_ || sums_.rail_pairs == 0 || sums_.rail_pairs > kSinglePathPairs) return false;
    const std::uint32_t ranks = demand.ranks();
    single_.shares.reserve(std::size_t{ranks} * ranks);  // also where it is not made this time: plan() allocates nothing later
    single_.load.reserve(fabric_->resources().size());
    single_draft_.clear(ranks);
    const Bound of_endpoints = bounds_.find(sums_);
    if (plan.z_seconds <= of_endpoints.seconds * kGoodEnough || own_nics_seconds(demand) >= plan.z_seconds) return false;
    single_.id = plan.id;
    make_static(demand, single_, single_draft_);
    if (single_.z_seconds >= plan.z_seconds) return false;
    plan.id = single_.id;
    plan.shares = single_.shares;
    plan.load = single_.load;
    plan.z_seconds = single_.z_seconds;
    plan.bottleneck = single_.bottleneck;
    if (plan.bound.seconds > plan.z_seconds) plan.bound = of_endpoints;
    draft.start = single_draft_.start;
    return true;
  }

  // What single-path takes at the least: own NICs at both ends where any two have a way, else only where bytes are received, and where a
  // NIC's rail does not lead to all nodes it may be any.
  double own_nics_seconds(const Demand& demand) {
    const std::uint32_t ranks = demand.ranks();
    double longest = 0;
    const bool both_ends = table_.leaves_joined();
    if (!both_ends && !live_.rails_complete()) return longest;
    far_bytes_.assign(2 * std::size_t{ranks}, 0);
    for (GpuId src = 0; src < ranks; ++src) {
      for (GpuId dst = 0; dst < ranks; ++dst) {
        if (fabric_->node_of(src) == fabric_->node_of(dst)) continue;
        far_bytes_[2 * src] += demand.at(src, dst);
        far_bytes_[2 * dst + 1] += demand.at(src, dst);
      }
    }
    for (GpuId gpu = 0; gpu < ranks; ++gpu) {
      const NodeId node = fabric_->node_of(gpu);
      const auto nics = fabric_->nics_of(node);
      std::uint64_t out_Bps = 0, in_Bps = 0;
      for (const VertexId nic : table_.own_nics(gpu)) {
        const auto at = static_cast<std::uint32_t>(std::find(nics.begin(), nics.end(), nic) - nics.begin());
        out_Bps += live_.nic_out_most_Bps(node, at);
        in_Bps += live_.nic_in_most_Bps(node, at);
      }
      if (out_Bps != 0 && both_ends) longest = std::max(longest, static_cast<double>(far_bytes_[2 * gpu]) / static_cast<double>(out_Bps));
      if (in_Bps != 0) longest = std::max(longest, static_cast<double>(far_bytes_[2 * gpu + 1]) / static_cast<double>(in_Bps));
    }
    return longest;
  }

  void count(const Draft& draft, Plan& plan) {
    counter_.count(live_, *fabric_, draft, plan.load);
    rate(plan);
  }

  // The draft's parts as shares, written once: a plan of a thousand GPUs has a million of them.
  void write(const Draft& draft, Plan& plan) const {
    plan.shares.resize(draft.bytes.size());
    Share* share = plan.shares.data();
    std::uint64_t id = plan.id;
    std::uint32_t part = 0;
    std::size_t pair = 0;
    for (GpuId src = 0; src < fabric_->gpu_count(); ++src) {
      const NodeId a = fabric_->node_of(src);
      const auto nics_src = fabric_->nics_of(a);
      const GpuId* const relays_src = live_.source_relays(src);
      for (NodeId b = 0; b < fabric_->node_count(); ++b) {
        const GpuId first = fabric_->first_gpu(b), last = first + static_cast<GpuId>(fabric_->gpus_of(b).size());
        const auto columns = a == b ? std::span<const RailColumn>{} : live_.columns(a, b);
        const auto nics_dst = fabric_->nics_of(b);
        for (GpuId dst = first; dst < last; ++dst, ++pair) {
          const std::uint32_t end = draft.start[pair + 1];
          if (part == end) continue;
          const auto inner = a == b ? live_.node_columns(src, dst) : std::span<const NodeColumn>{};
          for (; part < end; ++part, ++share) {
            const std::uint32_t c = draft.column[part];
            if (a == b) {
              share->route = LiveRoutes::route(inner[c], src, dst);
            } else {
              const RailColumn& column = columns[c];
              share->route = {column.kind,
                              src,
                              dst,
                              relays_src[column.nic_src],
                              live_.destination_relays(dst)[column.nic_dst],
                              nics_src[column.nic_src],
                              nics_dst[column.nic_dst]};
            }
            share->bytes = draft.bytes[part];
            id = mix(id, *share);
          }
        }
      }
    }
    plan.id = id;
  }

  // Inside a node every demand takes its first route; between nodes each node pair fills its rails in proportion to their rates.
  // Adds up in counter_ what that loads.
  void share_out(const Demand& demand, Draft& draft) {
    const std::uint32_t ranks = demand.ranks(), nodes = fabric_->node_count();
    draft.clear(ranks);
    counter_.begin(live_);
    owed_out_.assign(live_.first_nic(nodes), 0);
    owed_in_.assign(live_.first_nic(nodes), 0);
    for (NodeId a = 0; a < nodes; ++a) {
      const GpuId first = fabric_->first_gpu(a);
      const auto count = static_cast<std::uint32_t>(fabric_->gpus_of(a).size());
      if (rows_.size() < count) rows_.resize(count);
      for (std::uint32_t g = 0; g < count; ++g) rows_[g].size = 0;
      for (NodeId b = 0; b < nodes; ++b) {
        if (a == b) {
          share_out_inside(demand, a, draft);
        } else {
          share_out_between(demand, a, b, draft);
        }
      }
      for (std::uint32_t g = 0; g < count; ++g) {
        const Row& row = rows_[g];
        const auto base = static_cast<std::uint32_t>(draft.bytes.size());
        std::uint32_t* const start = draft.start.data() + std::size_t{first + g} * ranks;
        for (GpuId dst = 0; dst < ranks; ++dst) start[dst] += base;
        draft.bytes.insert(draft.bytes.end(), row.bytes.data(), row.bytes.data() + row.size);
        draft.column.insert(draft.column.end(), row.column.data(), row.column.data() + row.size);
      }
    }
    draft.start.back() = static_cast<std::uint32_t>(draft.bytes.size());
  }

  void share_out_inside(const Demand& demand, NodeId node, Draft& draft) {
    const GpuId first = fabric_->first_gpu(node), last = first + static_cast<GpuId>(fabric_->gpus_of(node).size());
    for (GpuId src = first; src < last; ++src) {
      Row& row = rows_[src - first];
      row.make_room(last - first);
      for (GpuId dst = first; dst < last; ++dst) {
        draft.start[std::size_t{src} * demand.ranks() + dst] = row.size;
        const std::uint64_t bytes = demand.at(src, dst);
        if (src == dst || bytes == 0) continue;
        const auto columns = live_.node_columns(src, dst);
        if (columns.empty()) throw_unreachable(src, dst, bytes);
        row.add(bytes, 0);
        *counter_.on(live_, columns) += bytes;
      }
    }
  }

  void share_out_between(const Demand& demand, NodeId a, NodeId b, Draft& draft) {
    const std::uint32_t ranks = demand.ranks();
    const GpuId first_src = fabric_->first_gpu(a), first_dst = fabric_->first_gpu(b);
    const auto src_count = static_cast<std::uint32_t>(fabric_->gpus_of(a).size());
    const auto dst_count = static_cast<std::uint32_t>(fabric_->gpus_of(b).size());
    const auto columns = live_.columns(a, b);
    const std::uint64_t bytes = sums_.between[std::size_t{a} * fabric_->node_count() + b];
    block_.resize(std::size_t{src_count} * dst_count);
    for (std::uint32_t g = 0; g < src_count; ++g) {
      std::copy_n(demand.bytes().data() + std::size_t{first_src + g} * ranks + first_dst, dst_count, block_.data() + g * dst_count);
    }
    const bool together = live_.uniform(a) && live_.uniform(b) && !columns.empty();
    if (together && bytes != 0) split_together(a, b, bytes, columns);
    for (std::uint32_t g = 0; g < src_count; ++g) {
      const GpuId src = first_src + g;
      Row& row = rows_[g];
      row.make_room(dst_count * columns.size());
      std::uint64_t* part_bytes = row.bytes.data() + row.size;
      std::uint16_t* part_column = row.column.data() + row.size;
      std::uint32_t* const start = draft.start.data() + std::size_t{src} * ranks + first_dst;
      std::uint64_t *const from = counter_.from(live_, src), *const on = counter_.on(live_, columns);
      for (std::uint32_t h = 0; h < dst_count; ++h) {
        start[h] = static_cast<std::uint32_t>(part_bytes - row.bytes.data());
        const std::uint32_t p = g * dst_count + h;
        if (block_[p] == 0) continue;
        if (!together) split_alone(src, first_dst + h, block_[p], columns);
        std::uint64_t* const to = counter_.to(live_, first_dst + h);
        for (std::uint64_t mask = split_.mask(together ? p : 0); mask != 0; mask &= mask - 1) {
          const auto c = static_cast<std::uint32_t>(std::countr_zero(mask));
          const std::uint64_t part = split_.bytes_on(together ? p : 0, c);
          *part_bytes++ = part;
          *part_column++ = static_cast<std::uint16_t>(c);
          from[columns[c].nic_src] += part;
          to[columns[c].nic_dst] += part;
          on[c] += part;
        }
      }
      row.size = static_cast<std::uint32_t>(part_bytes - row.bytes.data());
    }
  }

  // Whole demands and chunks seldom fit a rail's part of a node pair's bytes. What a NIC got too much or too little of is made up for in
  // the next pairs of its node, half at each end: else the same rails would get too much in each pair.
  void split_together(NodeId a, NodeId b, std::uint64_t bytes, std::span<const RailColumn> columns) {
    std::int64_t* const owed_out = owed_out_.data() + live_.first_nic(a);
    std::int64_t* const owed_in = owed_in_.data() + live_.first_nic(b);
    std::uint64_t rest = bytes;
    std::int64_t owed_rest = 0;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const auto part = static_cast<std::uint64_t>((Wide{bytes} * columns[c].weight) >> 32);
      const std::int64_t owed = columns[c].weight == 0 ? 0 : (owed_out[columns[c].nic_src] + owed_in[columns[c].nic_dst]) / 2;
      quota_[c] = static_cast<std::int64_t>(part) + owed;
      owed_[c] = owed;
      owed_rest -= owed;
      rest -= part;
    }
    quota_[0] += static_cast<std::int64_t>(rest) + owed_rest;
    owed_[0] += owed_rest;
    const auto src_count = static_cast<std::uint32_t>(fabric_->gpus_of(a).size());
    const auto dst_count = static_cast<std::uint32_t>(fabric_->gpus_of(b).size());
    split_.split(live_, fabric_->first_gpu(a), src_count, fabric_->first_gpu(b), dst_count, columns, block_,
                 std::span(quota_).first(columns.size()), {railweave::split_min_bytes(settings_, columns), settings_.chunk_bytes});
    for (std::size_t c = 0; c < columns.size(); ++c) {
      owed_out[columns[c].nic_src] += quota_[c] - owed_[c];
      owed_in[columns[c].nic_dst] += quota_[c] - owed_[c];
    }
  }

  // A pair of which some GPU cannot reach some NIC: only what it can use.
  void split_alone(GpuId src, GpuId dst, std::uint64_t bytes, std::span<const RailColumn> columns) {
    constexpr std::int64_t unusable = std::numeric_limits<std::int64_t>::min() / 2;
    std::uint64_t rates = 0, rest = bytes;
    for (const RailColumn& c : columns) rates += live_.column_usable(c, src, dst) ? c.rate_Bps : 0;
    if (rates == 0) throw_unreachable(src, dst, bytes);
    std::size_t first = columns.size();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const bool usable = live_.column_usable(columns[c], src, dst);
      const auto part = usable ? static_cast<std::uint64_t>(Wide{bytes} * columns[c].rate_Bps / rates) : 0;
      quota_[c] = usable ? static_cast<std::int64_t>(part) : unusable;
      rest -= part;
      if (usable && first == columns.size()) first = c;
    }
    quota_[first] += static_cast<std::int64_t>(rest);
    split_.split(live_, src, 1, dst, 1, columns, std::span(&bytes, 1), std::span(quota_).first(columns.size()),
                 {railweave::split_min_bytes(settings_, columns), settings_.chunk_bytes});
  }

  // Hysteresis: with the same demand under a new link state, does the plan in force stay? Then it is brought up to date.
  bool keeps_winning(const Plan& next) {
    Plan& plan = current();
    const Peak peak = find_peak(plan.load, live_.capacities_Bps());
    // Asked so that a dead link's infinite time loses also where the settings keep all plans: infinity times 0 is no number.
    if (!(peak.seconds * (1.0 - settings_.hysteresis_permille / 1000.0) <= next.z_seconds)) return false;
    plan.z_seconds = peak.seconds;
    plan.bottleneck = peak.at;
    // Prices prove a bound for the new plan's routes; the one in force may have others, and end before it.
    plan.bound = next.bound.seconds > plan.z_seconds ? bounds_.find(sums_) : next.bound;
    plan.link_epoch = next.link_epoch;
    return true;
  }

  const Fabric* fabric_;
  PlannerSettings settings_;
  RouteTable table_;
  LiveRoutes live_;
  StaticRoutes static_;
  EndpointBounds bounds_;
  DemandSums sums_;
  RailSplit split_;
  PairOptimizer optimizer_;
  WorstEdge worst_edge_;
  LoadCounter counter_;
  struct Row {  // parts of one sender, until its turn comes in the draft
    std::vector<std::uint64_t> bytes;
    std::vector<std::uint16_t> column;
    std::uint32_t size = 0;

    void make_room(std::size_t parts) {
      if (size + parts <= bytes.size()) return;
      bytes.resize(std::max(size + parts, 2 * bytes.size()));
      column.resize(bytes.size());
    }
    void add(std::uint64_t part, std::uint16_t on) {
      bytes[size] = part;
      column[size++] = on;
    }
  };
  std::vector<Row> rows_;
  std::vector<std::uint64_t> block_;
  std::array<std::int64_t, LiveRoutes::kMaxColumns> quota_{}, owed_{};
  std::vector<std::int64_t> owed_out_, owed_in_;  // by NIC: bytes that it is short of its part so far
  std::vector<EdgeId> edges_;
  std::vector<ResourceId> loaded_;
  std::vector<std::uint64_t> far_bytes_;  // by GPU: to and from other nodes

  Demand demand_;
  std::array<Plan, 2> plans_;
  std::array<Draft, 2> drafts_;
  Draft improved_, single_draft_;
  Plan single_;
  int current_ = 0;
  bool whole_ = false;  // no link is down
  bool planned_ = false;
  bool stale_ = true;
};

Planner::Planner(const Fabric& fabric, const PlannerSettings& settings) : impl_(std::make_unique<Impl>(fabric, settings)) {}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

const Plan& Planner::plan(const Demand& demand, const LinkState& links) { return impl_->plan(demand, links); }
std::span<const Share> Planner::shares(GpuId src, GpuId dst) const { return impl_->shares(src, dst); }
std::vector<Route> Planner::candidates(GpuId src, GpuId dst, const LinkState& links) const { return impl_->candidates(src, dst, links); }
std::uint64_t Planner::split_min_bytes(GpuId src, GpuId dst) const { return impl_->split_min_bytes(src, dst); }
Path Planner::expand(const Route& route) const { return impl_->expand(route); }

}  // namespace railweave
