#include "live_routes.hpp"

#include <algorithm>

namespace railweave {
namespace {

constexpr std::uint16_t kNoPeer = 0xffff;
constexpr std::uint32_t kWeightShift = 6;  // rates below 2^46 bytes/s still fit after << 24

// Of the rails for which the NIMBLE paper (arXiv 2604.00317) has the threshold that multipath_min_bytes takes over: NDR InfiniBand. What
// the threshold weighs is a time, that of the bytes on one rail, against what more paths cost.
constexpr std::uint64_t kThresholdRate = 50'000'000'000;

__extension__ using Wide = unsigned __int128;

// Ways slower than the best of their kind by so many powers of two are no ways, as if they were down: they could take a millionth of the
// bytes, and the optimizer, which counts times in 28 bits by the slowest resource of its columns, could tell the others apart no more.
constexpr std::uint32_t kNegligibleShift = 20;

// How often each resource of `inner` occurs, is it no more often in `outer`? Then a route that loads `outer` can never be better.
bool contained(std::span<const ResourceId> inner, std::span<const ResourceId> outer) {
  return std::all_of(inner.begin(), inner.end(),
                     [&](ResourceId r) { return std::count(inner.begin(), inner.end(), r) <= std::count(outer.begin(), outer.end(), r); });
}

}  // namespace

std::uint64_t split_min_bytes(const PlannerSettings& settings, std::span<const RailColumn> columns) {
  std::uint64_t rate = columns.empty() ? kThresholdRate : 0;
  for (const RailColumn& column : columns) rate = std::max(rate, column.rate_Bps);
  const auto whole = static_cast<std::uint64_t>(Wide{settings.multipath_min_bytes} * std::min(rate, kThresholdRate) / kThresholdRate);
  return std::max(whole + 1, 2 * settings.chunk_bytes);
}

LiveRoutes::LiveRoutes(const RouteTable& table) : table_(&table) {
  const Fabric& fabric = table.fabric();
  nic_start_.push_back(0);
  std::uint32_t pairs = 0;
  for (NodeId n = 0; n < fabric.node_count(); ++n) {
    nic_start_.push_back(nic_start_.back() + static_cast<std::uint32_t>(fabric.nics_of(n).size()));
    node_pair_start_.push_back(pairs);
    const auto gpus = static_cast<std::uint32_t>(fabric.gpus_of(n).size());
    for (std::uint32_t g = 0; g < gpus; ++g) node_row_.push_back(pairs + g * gpus - fabric.first_gpu(n));
    pairs += gpus * gpus;
  }
  for (GpuId g = 0; g < fabric.gpu_count(); ++g) {
    segment_start_.push_back(static_cast<std::uint32_t>(out_choices_.size()));
    for (VertexId nic : fabric.nics_of(fabric.node_of(g))) {
      out_choices_.push_back(segment_choices(g, nic, true));
      in_choices_.push_back(segment_choices(g, nic, false));
    }
  }
  for (NodeId n = 0; n < fabric.node_count(); ++n) {
    for (VertexId nic : fabric.nics_of(n)) {
      for (const bool outward : {true, false}) find_passed(nic, outward);
    }
  }
  passed_start_.push_back(static_cast<std::uint32_t>(passed_.size()));
  peer_.reserve(std::size_t{nic_start_.back()} * fabric.node_count());
  for (NodeId n = 0; n < fabric.node_count(); ++n) {
    for (VertexId nic : fabric.nics_of(n)) {
      for (NodeId m = 0; m < fabric.node_count(); ++m) {
        const VertexId peer = m == n ? kNone : table.rail_peer(nic, m);
        const auto there = fabric.nics_of(m);
        rails_complete_ = rails_complete_ && (m == n || peer != kNone);
        peer_.push_back(peer == kNone ? kNoPeer : static_cast<std::uint16_t>(std::find(there.begin(), there.end(), peer) - there.begin()));
      }
    }
  }
  for (NodeId n = 0; n < fabric.node_count(); ++n) {
    const GpuId first = fabric.first_gpu(n), last = first + static_cast<GpuId>(fabric.gpus_of(n).size());
    for (GpuId src = first; src < last; ++src) {
      for (GpuId dst = first; dst < last; ++dst) {
        fixed_node_start_.push_back(static_cast<std::uint32_t>(fixed_node_columns_.size()));
        if (src == dst) continue;
        const std::size_t begin = fixed_node_columns_.size();
        for (const Route& route : table.node_routes(src, dst)) {
          if (fixed_node_columns_.size() - begin == kMaxColumns) break;
          FixedNodeColumn fixed{{route.kind, route.relay_src, {}, {}}, {static_cast<std::uint32_t>(edge_pool_.size()), 0}};
          table.append_edges(route, edge_pool_);
          fixed.edges.count = static_cast<std::uint32_t>(edge_pool_.size()) - fixed.edges.begin;
          fixed.column.resources.begin = static_cast<std::uint32_t>(pool_.size());
          table.append_resources(std::span(edge_pool_).subspan(fixed.edges.begin, fixed.edges.count), pool_);
          fixed.column.resources.count = static_cast<std::uint32_t>(pool_.size()) - fixed.column.resources.begin;
          fixed_node_columns_.push_back(fixed);
        }
      }
    }
  }
  fixed_node_start_.push_back(static_cast<std::uint32_t>(fixed_node_columns_.size()));
  fixed_pool_ = pool_.size();
  capacity_.resize(fabric.resources().size());
  refresh(LinkState(fabric));
}

std::vector<LiveRoutes::Choice> LiveRoutes::segment_choices(GpuId gpu, VertexId nic, bool outward) {
  std::vector<Choice> choices;
  for (GpuId relay : table_->relay_choices(gpu, nic)) {
    Choice choice{relay, {static_cast<std::uint32_t>(edge_pool_.size()), 0}, {static_cast<std::uint32_t>(pool_.size()), 0}};
    if (!append_way(gpu, relay, nic, outward, edge_pool_)) continue;
    choice.edges.count = static_cast<std::uint32_t>(edge_pool_.size()) - choice.edges.begin;
    table_->append_resources(std::span(edge_pool_).subspan(choice.edges.begin, choice.edges.count), pool_);
    choice.resources.count = static_cast<std::uint32_t>(pool_.size()) - choice.resources.begin;
    choices.push_back(choice);
  }
  return choices;
}

bool LiveRoutes::append_way(GpuId gpu, GpuId relay, VertexId nic, bool outward, std::vector<EdgeId>& edges) const {
  return outward ? table_->append_source(gpu, relay, nic, edges) : table_->append_destination(nic, relay, gpu, edges);
}

// What every byte between that NIC and its node loads, whoever routes it: the resources that all ways have in common. Ways over NVLink go
// on as the relay's own; so a GPU's own way and the one that it takes for a relay that has no NVLink or no GPUDirect are all there are.
void LiveRoutes::find_passed(VertexId nic, bool outward) {
  const Fabric& fabric = table_->fabric();
  const NodeId node = fabric.vertex(nic).node;
  const GpuId first = fabric.first_gpu(node), last = first + static_cast<GpuId>(fabric.gpus_of(node).size());
  const auto begin = static_cast<std::uint32_t>(passed_.size());
  passed_start_.push_back(begin);
  bool any = false;
  std::vector<EdgeId> edges;
  std::vector<ResourceId> loaded;
  const auto meet = [&](GpuId gpu, GpuId relay) {
    edges.clear();
    loaded.clear();
    if (!append_way(gpu, relay, nic, outward, edges)) return;
    table_->append_resources(edges, loaded);
    const auto times = [&](ResourceId r) { return static_cast<std::uint32_t>(std::count(loaded.begin(), loaded.end(), r)); };
    if (!any) {
      for (ResourceId r : loaded) {
        const auto same = [r](const Passed& passed) { return passed.resource == r; };
        if (std::none_of(passed_.begin() + begin, passed_.end(), same)) passed_.push_back({r, times(r)});
      }
    }
    any = true;
    for (auto passed = passed_.begin() + begin; passed != passed_.end(); ++passed)
      passed->times = std::min(passed->times, times(passed->resource));
  };
  for (GpuId gpu = first; gpu < last; ++gpu) {
    meet(gpu, kNone);
    for (GpuId relay = first; relay < last; ++relay) {
      if (relay == gpu || table_->relays_over_nvlink(gpu, relay)) continue;
      meet(gpu, relay);  // through host memory, for any such relay alike
      break;
    }
  }
  passed_.erase(std::remove_if(passed_.begin() + begin, passed_.end(), [](const Passed& passed) { return passed.times == 0; }),
                passed_.end());
}

bool LiveRoutes::refresh(const LinkState& links) {
  if (links_ && *links_ == links) return false;
  links_ = links;
  const auto resources = table_->fabric().resources();
  for (ResourceId r = 0; r < resources.size(); ++r) {
    capacity_[r] = resources[r].kind == Resource::Kind::edge ? links.rate_Bps(resources[r].id) : resources[r].capacity_Bps;
  }
  pool_.resize(fixed_pool_);
  choose_segments();
  rate_nics();
  list_columns();
  list_node_columns();
  for (NodeId n = 0; n < table_->fabric().node_count(); ++n) find_binding(n);
  return true;
}

bool LiveRoutes::alive(std::span<const EdgeId> edges) const {
  return std::all_of(edges.begin(), edges.end(), [&](EdgeId e) { return capacity_[e] != 0; });
}

bool LiveRoutes::alive(PoolRange edges) const { return alive(std::span(edge_pool_).subspan(edges.begin, edges.count)); }

void LiveRoutes::choose_segments() {
  const Fabric& fabric = table_->fabric();
  const auto choose = [&](const std::vector<std::vector<Choice>>& choices, std::vector<Segment>& segments, bool outward) {
    segments.assign(choices.size(), {});
    std::size_t s = 0;
    for (GpuId g = 0; g < fabric.gpu_count(); ++g) {
      for (VertexId nic : fabric.nics_of(fabric.node_of(g))) {
        Segment& segment = segments[s];
        for (const Choice& choice : choices[s]) {
          if (!alive(choice.edges)) continue;
          segment = {choice.relay, true, choice.resources, {}};
          break;
        }
        if (!segment.usable) relay_over_nvlink(g, nic, outward, segment);
        ++s;
      }
    }
  };
  choose(out_choices_, source_, true);
  choose(in_choices_, destination_, false);
  const auto pack = [](const std::vector<Segment>& segments, std::vector<GpuId>& relays) {
    relays.resize(segments.size());
    std::transform(segments.begin(), segments.end(), relays.begin(), [](const Segment& s) { return s.relay; });
  };
  pack(source_, source_relay_);
  pack(destination_, destination_relay_);
}

// Where no choice is left, a GPU that still reaches the NIC relays, one of the nearest to it: GPUs take turns, as with owners. Looked for
// only then: choices over all GPUs would be many, and nobody would need them.
void LiveRoutes::relay_over_nvlink(GpuId gpu, VertexId nic, bool outward, Segment& segment) {
  const Fabric& fabric = table_->fabric();
  const NodeId node = fabric.node_of(gpu);
  const GpuId first = fabric.first_gpu(node), last = first + static_cast<GpuId>(fabric.gpus_of(node).size());
  const auto usable = [&](GpuId relay) {  // leaves the way in scratch_
    scratch_.clear();
    return table_->relays_over_nvlink(gpu, relay) && append_way(gpu, relay, nic, outward, scratch_) && alive(scratch_);
  };
  std::uint32_t nearest = kNone, ties = 0;
  for (GpuId relay = first; relay < last; ++relay) {
    const std::uint32_t distance = table_->distance(relay, nic);
    if (distance > nearest || !usable(relay)) continue;
    if (distance < nearest) ties = 0;
    nearest = distance;
    ++ties;
  }
  if (ties == 0) return;
  std::uint32_t before = (gpu - first) % ties;
  for (GpuId relay = first; relay < last; ++relay) {
    if (table_->distance(relay, nic) != nearest || !usable(relay) || before-- != 0) continue;
    segment = {relay, true, {static_cast<std::uint32_t>(pool_.size()), 0}, {}};
    table_->append_resources(scratch_, pool_);
    segment.resources.count = static_cast<std::uint32_t>(pool_.size()) - segment.resources.begin;
    return;
  }
}

// The narrowest of the resources that every GPU's segment to this NIC loads.
std::uint64_t LiveRoutes::common_rate(NodeId node, std::uint32_t nic, bool outward) const {
  const Fabric& fabric = table_->fabric();
  const GpuId first = fabric.first_gpu(node), last = first + static_cast<GpuId>(fabric.gpus_of(node).size());
  const auto segment = [&](GpuId g) -> const Segment& { return outward ? source(g, nic) : destination(nic, g); };
  const Segment* reference = nullptr;
  for (GpuId g = first; g < last && reference == nullptr; ++g) reference = segment(g).usable ? &segment(g) : nullptr;
  if (reference == nullptr) return 0;
  std::uint64_t rate = std::numeric_limits<std::uint64_t>::max();
  for (ResourceId r : resources(reference->resources)) {
    std::uint64_t times = std::numeric_limits<std::uint64_t>::max();
    for (GpuId g = first; g < last; ++g) {
      if (!segment(g).usable) continue;
      const auto list = resources(segment(g).resources);
      times = std::min(times, static_cast<std::uint64_t>(std::count(list.begin(), list.end(), r)));
    }
    if (times != 0) rate = std::min(rate, capacity_[r] / times);
  }
  return rate;
}

void LiveRoutes::rate_nics() {
  const Fabric& fabric = table_->fabric();
  out_Bps_.assign(nic_start_.back(), 0);
  in_Bps_.assign(nic_start_.back(), 0);
  out_most_Bps_.assign(nic_start_.back(), 0);
  in_most_Bps_.assign(nic_start_.back(), 0);
  uniform_.assign(fabric.node_count(), 1);
  const auto rail_rate = [&](std::span<const EdgeId> edges) {
    for (EdgeId e : edges) {
      if (fabric.edge(e).kind == EdgeKind::rail) return capacity_[e];
    }
    return std::uint64_t{0};
  };
  const auto most = [&](std::uint64_t rail_Bps, std::uint32_t nic, bool outward) {
    const std::size_t at = 2 * std::size_t{nic} + (outward ? 0 : 1);
    for (std::uint32_t p = passed_start_[at]; p < passed_start_[at + 1]; ++p) {
      const auto [resource, times] = passed_[p];
      rail_Bps = std::min(rail_Bps, (capacity_[resource] + times - 1) / times);  // a bound must not be too high
    }
    return rail_Bps;
  };
  for (NodeId n = 0; n < fabric.node_count(); ++n) {
    const auto nics = fabric.nics_of(n);
    const GpuId first = fabric.first_gpu(n), last = first + static_cast<GpuId>(fabric.gpus_of(n).size());
    for (std::uint32_t i = 0; i < nics.size(); ++i) {
      const std::uint64_t out = rail_rate(fabric.out_edges(nics[i])), in = rail_rate(fabric.in_edges(nics[i]));
      out_Bps_[nic_start_[n] + i] = std::min(out, common_rate(n, i, true));
      in_Bps_[nic_start_[n] + i] = std::min(in, common_rate(n, i, false));
      out_most_Bps_[nic_start_[n] + i] = most(out, nic_start_[n] + i, true);
      in_most_Bps_[nic_start_[n] + i] = most(in, nic_start_[n] + i, false);
      for (GpuId g = first; g < last; ++g) {
        if ((out != 0 && !source(g, i).usable) || (in != 0 && !destination(i, g).usable)) uniform_[n] = 0;
      }
    }
  }
}

std::optional<RailColumn> LiveRoutes::make_column(NodeId src, NodeId dst, std::uint32_t a, std::uint32_t b) {
  const Fabric& fabric = table_->fabric();
  RailColumn column{static_cast<std::uint16_t>(a), static_cast<std::uint16_t>(b), PathKind::rail, {}, 0};
  column.rate_Bps = std::min(nic_out_Bps(src, a), nic_in_Bps(dst, b));
  if (column.rate_Bps == 0) return std::nullopt;
  scratch_.clear();
  if (!table_->append_network(fabric.nics_of(src)[a], fabric.nics_of(dst)[b], scratch_)) return std::nullopt;
  for (EdgeId e : scratch_) column.rate_Bps = std::min(column.rate_Bps, capacity_[e]);
  if (column.rate_Bps == 0) return std::nullopt;
  if (scratch_.size() > 2) column.kind = PathKind::cross_rail;
  column.network.begin = static_cast<std::uint32_t>(pool_.size());
  table_->append_resources(scratch_, pool_);
  column.network.count = static_cast<std::uint32_t>(pool_.size()) - column.network.begin;
  return column;
}

void LiveRoutes::list_columns() {
  const std::uint32_t nodes = table_->fabric().node_count();
  columns_.clear();
  column_start_.clear();
  for (NodeId src = 0; src < nodes; ++src) {
    for (NodeId dst = 0; dst < nodes; ++dst) {
      const std::size_t begin = columns_.size();
      column_start_.push_back(static_cast<std::uint32_t>(begin));
      if (src == dst) continue;
      for (std::uint32_t a = 0; a < nic_count(src) && a < kMaxColumns; ++a) {
        const std::uint16_t b = peer_[std::size_t{nic_start_[src] + a} * nodes + dst];
        if (b == kNoPeer) continue;
        if (const auto column = make_column(src, dst, a, b)) columns_.push_back(*column);
      }
      std::size_t matched = columns_.size();
      add_extra_columns(src, dst, begin);
      matched -= leave_out_negligible(src, dst, begin, matched);
      weigh_columns(begin, matched != begin ? matched : columns_.size());
    }
  }
  column_start_.push_back(static_cast<std::uint32_t>(columns_.size()));
}

// Rails carry what their slower end gives. Where a NIC could do more than its peer (slower, down, or absent), what is left of it can
// only go to NICs of other rails that have something left, too; between equals a crossing would only load the spine. Where ways inside a
// node are dead, two GPUs may reach no NICs of one rail: then all crossings are needed.
void LiveRoutes::add_extra_columns(NodeId src, NodeId dst, std::size_t begin) {
  const std::size_t matched = columns_.size();
  const auto spare = [&](bool outward, std::uint32_t nic) {
    std::uint64_t rate = outward ? nic_out_Bps(src, nic) : nic_in_Bps(dst, nic);
    for (std::size_t c = begin; c < matched; ++c) {
      if ((outward ? columns_[c].nic_src : columns_[c].nic_dst) == nic) rate -= std::min(rate, columns_[c].rate_Bps);
    }
    return rate;
  };
  const bool all = leave_out_a_pair(src, dst, begin);
  for (std::uint32_t a = 0; a < nic_count(src); ++a) {
    if (!all && spare(true, a) == 0) continue;
    for (std::uint32_t b = 0; b < nic_count(dst); ++b) {
      if ((!all && spare(false, b) == 0) || columns_.size() - begin == kMaxColumns) continue;
      const auto same = [&](const RailColumn& c) { return c.nic_src == a && c.nic_dst == b; };
      if (std::any_of(columns_.begin() + static_cast<std::ptrdiff_t>(begin), columns_.end(), same)) continue;
      if (const auto column = make_column(src, dst, a, b)) columns_.push_back(*column);
    }
  }
}

// Do two GPUs of these nodes have no use for any of the columns so far?
bool LiveRoutes::leave_out_a_pair(NodeId src, NodeId dst, std::size_t begin) const {
  if (uniform(src) && uniform(dst)) return false;
  const Fabric& fabric = table_->fabric();
  const auto columns = std::span(columns_).subspan(begin);
  const GpuId first_src = fabric.first_gpu(src), last_src = first_src + static_cast<GpuId>(fabric.gpus_of(src).size());
  const GpuId first_dst = fabric.first_gpu(dst), last_dst = first_dst + static_cast<GpuId>(fabric.gpus_of(dst).size());
  for (GpuId s = first_src; s < last_src; ++s) {
    for (GpuId d = first_dst; d < last_dst; ++d) {
      if (std::none_of(columns.begin(), columns.end(), [&](const RailColumn& c) { return column_usable(c, s, d); })) return true;
    }
  }
  return false;
}

// Drops columns that are far slower than the best where every GPU may use all of them. How many of those before `matched` it were.
std::size_t LiveRoutes::leave_out_negligible(NodeId src, NodeId dst, std::size_t begin, std::size_t matched) {
  if (!uniform(src) || !uniform(dst)) return 0;
  std::uint64_t best = 0;
  for (std::size_t c = begin; c < columns_.size(); ++c) best = std::max(best, columns_[c].rate_Bps);
  const auto negligible = [best](const RailColumn& c) { return c.rate_Bps < best >> kNegligibleShift; };
  const auto first = columns_.begin() + static_cast<std::ptrdiff_t>(begin), extra = columns_.begin() + static_cast<std::ptrdiff_t>(matched);
  const auto dropped = static_cast<std::size_t>(std::count_if(first, extra, negligible));
  columns_.erase(std::remove_if(first, columns_.end(), negligible), columns_.end());
  return dropped;
}

void LiveRoutes::weigh_columns(std::size_t begin, std::size_t end) {
  std::uint64_t total = 0, rest = (std::uint64_t{1} << 32) - 1;
  for (std::size_t c = begin; c < end; ++c) total += columns_[c].rate_Bps >> kWeightShift;
  if (total == 0) return;
  for (std::size_t c = begin; c < end; ++c) {
    columns_[c].weight = static_cast<std::uint32_t>(((columns_[c].rate_Bps >> kWeightShift) << 24) / total << 8);
    rest -= columns_[c].weight;
  }
  columns_[begin].weight += static_cast<std::uint32_t>(rest);
}

void LiveRoutes::list_node_columns() {
  node_columns_.clear();
  node_column_start_.clear();
  for (std::size_t pair = 0; pair + 1 < fixed_node_start_.size(); ++pair) {
    const std::size_t begin = node_columns_.size();
    node_column_start_.push_back(static_cast<std::uint32_t>(begin));
    for (std::uint32_t f = fixed_node_start_[pair]; f < fixed_node_start_[pair + 1]; ++f) {
      const FixedNodeColumn& fixed = fixed_node_columns_[f];
      if (!alive(fixed.edges)) continue;
      const auto better = [&](const NodeColumn& kept) { return contained(resources(kept.resources), resources(fixed.column.resources)); };
      if (std::none_of(node_columns_.begin() + static_cast<std::ptrdiff_t>(begin), node_columns_.end(), better)) {
        node_columns_.push_back(fixed.column);
      }
    }
    leave_out_negligible(begin);
  }
  node_column_start_.push_back(static_cast<std::uint32_t>(node_columns_.size()));
}

// The same of the columns between two GPUs of a node, which all may use.
void LiveRoutes::leave_out_negligible(std::size_t begin) {
  const auto rate = [&](const NodeColumn& column) {
    std::uint64_t narrowest = std::numeric_limits<std::uint64_t>::max();
    for (ResourceId r : resources(column.resources)) narrowest = std::min(narrowest, capacity_[r]);
    return narrowest;
  };
  const auto first = node_columns_.begin() + static_cast<std::ptrdiff_t>(begin), last = node_columns_.end();
  std::uint64_t best = 0;
  for (auto column = first; column != last; ++column) best = std::max(best, rate(*column));
  node_columns_.erase(std::remove_if(first, last, [&](const NodeColumn& c) { return rate(c) < best >> kNegligibleShift; }), last);
}

// Does whatever loads `wide` load `narrow` at least as much for its capacity?
bool LiveRoutes::hides(ResourceId narrow, ResourceId wide) const {
  const auto& units = unit_of_[wide];
  bool both_ways = unit_of_[narrow].size() == units.size();
  for (std::uint32_t u : units) {
    const auto list = resources(units_[u]);
    const auto times = [&](ResourceId r) { return static_cast<double>(std::count(list.begin(), list.end(), r)); };
    const double by_narrow = times(narrow) * static_cast<double>(capacity_[wide]);
    const double by_wide = times(wide) * static_cast<double>(capacity_[narrow]);
    if (by_narrow < by_wide) return false;
    if (by_narrow > by_wide) both_ways = false;
  }
  return !both_ways || narrow < wide;  // of two that are always equal the first stays
}

// Can the edges of a vertex together not exceed the vertex? Then one of them is as busy, whatever the routes.
bool LiveRoutes::outdone_by_edges(ResourceId resource) const {
  const Resource& vertex = table_->fabric().resources()[resource];
  if (vertex.kind == Resource::Kind::edge) return false;
  std::uint64_t together = 0;
  const auto add = [&](std::span<const EdgeId> edges) {
    for (EdgeId e : edges) together += capacity_[e];
  };
  if (vertex.kind != Resource::Kind::vertex_ingress) add(table_->fabric().out_edges(vertex.id));
  if (vertex.kind != Resource::Kind::vertex_egress) add(table_->fabric().in_edges(vertex.id));
  return together <= capacity_[resource];
}

void LiveRoutes::find_binding(NodeId node) {
  const Fabric& fabric = table_->fabric();
  const GpuId first = fabric.first_gpu(node), last = first + static_cast<GpuId>(fabric.gpus_of(node).size());
  // A node that is alone sends nothing through its NICs.
  const std::uint32_t first_segment = segment_start_[first], segments = fabric.node_count() == 1 ? 0 : (last - first) * nic_count(node);
  const std::uint32_t pair = node_pair_start_[node], pairs = (last - first) * (last - first);
  units_.clear();
  for (std::uint32_t s = first_segment; s < first_segment + segments; ++s) {
    units_.insert(units_.end(), {source_[s].resources, destination_[s].resources});
  }
  for (std::uint32_t c = node_column_start_[pair]; c < node_column_start_[pair + pairs]; ++c) units_.push_back(node_columns_[c].resources);
  unit_of_.resize(capacity_.size());
  for (std::uint32_t u = 0; u < units_.size(); ++u) {
    for (ResourceId r : resources(units_[u])) {
      if (unit_of_[r].empty() || unit_of_[r].back() != u) unit_of_[r].push_back(u);
    }
  }
  const auto reduce = [&](PoolRange full) {
    PoolRange kept{static_cast<std::uint32_t>(pool_.size()), 0};
    for (std::uint32_t i = full.begin; i < full.begin + full.count; ++i) {
      const ResourceId r = pool_[i];
      const auto list = resources(full);
      if (outdone_by_edges(r)) continue;
      if (std::any_of(list.begin(), list.end(), [&](ResourceId other) { return other != r && hides(other, r); })) continue;
      pool_.push_back(r);
    }
    kept.count = static_cast<std::uint32_t>(pool_.size()) - kept.begin;
    return kept;
  };
  for (std::uint32_t s = first_segment; s < first_segment + segments; ++s) {
    source_[s].binding = reduce(source_[s].resources);
    destination_[s].binding = reduce(destination_[s].resources);
  }
  for (std::uint32_t c = node_column_start_[pair]; c < node_column_start_[pair + pairs]; ++c) {
    node_columns_[c].binding = reduce(node_columns_[c].resources);
  }
  for (const PoolRange& unit : units_) {
    for (ResourceId r : resources(unit)) unit_of_[r].clear();
  }
}

Route LiveRoutes::route(const RailColumn& column, GpuId src, GpuId dst) const {
  const Fabric& fabric = table_->fabric();
  return {column.kind,
          src,
          dst,
          source(src, column.nic_src).relay,
          destination(column.nic_dst, dst).relay,
          fabric.nics_of(fabric.node_of(src))[column.nic_src],
          fabric.nics_of(fabric.node_of(dst))[column.nic_dst]};
}

Route LiveRoutes::route(const NodeColumn& column, GpuId src, GpuId dst) {
  return {column.kind, src, dst, column.relay, kNone, kNone, kNone};
}

}  // namespace railweave
