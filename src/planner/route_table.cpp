#include "route_table.hpp"

#include <algorithm>
#include <map>

namespace railweave {

RouteTable::RouteTable(const Fabric& fabric) : fabric_(&fabric), paths_(fabric) {
  const auto vertices = fabric.vertices();
  nic_index_.assign(vertices.size(), kNone);
  leaf_index_.assign(vertices.size(), kNone);
  std::uint32_t nic_count = 0;
  for (VertexId v = 0; v < vertices.size(); ++v) {
    if (vertices[v].kind == VertexKind::nic) nic_index_[v] = nic_count++;
    if (vertices[v].kind == VertexKind::leaf) leaf_index_[v] = leaf_count_++;
  }
  own_nics_.resize(fabric.gpu_count());
  owners_.resize(nic_count);
  for (NodeId n = 0; n < fabric.node_count(); ++n) assign_nics(n);

  crossings_.resize(std::size_t{leaf_count_} * leaf_count_);
  for (EdgeId up = 0; up < fabric.edges().size(); ++up) {
    const Edge& first = fabric.edge(up);
    if (first.kind != EdgeKind::uplink || vertices[first.from].kind != VertexKind::leaf) continue;
    for (EdgeId down : fabric.out_edges(first.to)) {
      const VertexId to = fabric.edge(down).to;
      if (vertices[to].kind != VertexKind::leaf || to == first.from) continue;
      crossings_[std::size_t{leaf_index_[first.from]} * leaf_count_ + leaf_index_[to]].push_back({up, down});
    }
  }
  for (std::uint32_t from = 0; from < leaf_count_; ++from) {
    for (std::uint32_t to = 0; to < leaf_count_; ++to) {
      leaves_joined_ = leaves_joined_ && (from == to || !crossings_[std::size_t{from} * leaf_count_ + to].empty());
    }
  }
}

// Each GPU owns its nearest NICs. Where a set of GPUs is equally near to a set of NICs the set is shared out in order, so that
// no NIC stays idle and none serves everybody; a NIC that is nobody's nearest goes to the nearest GPU with the fewest NICs.
void RouteTable::assign_nics(NodeId node) {
  const auto gpus = fabric_->gpus_of(node);
  const auto nics = fabric_->nics_of(node);
  if (nics.empty()) return;
  const GpuId first = fabric_->first_gpu(node);
  std::map<std::vector<VertexId>, std::vector<GpuId>> groups;  // nearest NICs -> GPUs that share them
  for (GpuId i = 0; i < gpus.size(); ++i) {
    std::uint32_t nearest = kNone;
    for (VertexId nic : nics) nearest = std::min(nearest, paths_.distance(Domain::pcie, gpus[i], nic));
    std::vector<VertexId> set;
    for (VertexId nic : nics) {
      if (nearest != kNone && paths_.distance(Domain::pcie, gpus[i], nic) == nearest) set.push_back(nic);
    }
    if (!set.empty()) groups[set].push_back(first + i);
  }
  const auto give = [&](GpuId gpu, VertexId nic) {
    own_nics_[gpu].push_back(nic);
    owners_[nic_index_[nic]].push_back(gpu);
  };
  for (const auto& [set, members] : groups) {
    const std::size_t larger = std::max(set.size(), members.size());
    for (std::size_t i = 0; i < larger; ++i) give(members[i * members.size() / larger], set[i * set.size() / larger]);
  }
  for (VertexId nic : nics) {
    if (!owners_[nic_index_[nic]].empty()) continue;
    GpuId best = kNone;
    const auto rank = [&](GpuId g) { return std::pair(paths_.distance(Domain::pcie, fabric_->gpu(g), nic), own_nics_[g].size()); };
    for (GpuId g = first; g < first + gpus.size(); ++g) {
      if (rank(g).first != kNone && (best == kNone || rank(g) < rank(best))) best = g;
    }
    if (best != kNone) give(best, nic);
  }
  for (VertexId nic : nics) std::sort(owners_[nic_index_[nic]].begin(), owners_[nic_index_[nic]].end());
}

bool RouteTable::owns(GpuId gpu, VertexId nic) const {
  const auto own = own_nics(gpu);
  return std::find(own.begin(), own.end(), nic) != own.end();
}

bool RouteTable::peers(GpuId a, GpuId b) const {
  const VertexId x = fabric_->gpu(a), y = fabric_->gpu(b);
  return paths_.distance(Domain::nvlink, x, y) != kNone && paths_.distance(Domain::nvlink, y, x) != kNone;
}

std::vector<GpuId> RouteTable::relay_choices(GpuId gpu, VertexId nic) const {
  if (owns(gpu, nic)) return {kNone};
  std::vector<GpuId> choices;
  const auto owning = owners(nic);
  const std::size_t turn = gpu - fabric_->first_gpu(fabric_->node_of(gpu));
  std::vector<std::pair<std::uint64_t, GpuId>> by_width;
  for (std::size_t i = 0; i < owning.size(); ++i) {
    const GpuId relay = owning[(turn + i) % owning.size()];  // GPUs take turns, so that owners of one NIC share the relaying
    if (!fabric_->vertex(fabric_->gpu(relay)).gdr || !peers(gpu, relay)) continue;
    std::uint64_t narrowest = std::numeric_limits<std::uint64_t>::max();
    std::vector<EdgeId> edges;
    paths_.append(Domain::nvlink, fabric_->gpu(gpu), fabric_->gpu(relay), edges);
    for (EdgeId e : edges) narrowest = std::min(narrowest, fabric_->edge(e).capacity_Bps);
    by_width.emplace_back(narrowest, relay);
  }
  std::stable_sort(by_width.begin(), by_width.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  choices.reserve(by_width.size() + 2);
  for (const auto& [narrowest, relay] : by_width) choices.push_back(relay);
  if (choices.empty() && !owning.empty()) choices.push_back(owning[turn % owning.size()]);  // through host memory
  choices.push_back(kNone);                                                                 // its own program drives a far NIC
  return choices;
}

std::vector<VertexId> RouteTable::nics_by_distance(GpuId gpu) const {
  const auto nics = fabric_->nics_of(fabric_->node_of(gpu));
  std::vector<VertexId> sorted;
  for (VertexId nic : nics) {
    if (paths_.distance(Domain::pcie, fabric_->gpu(gpu), nic) != kNone) sorted.push_back(nic);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](VertexId a, VertexId b) {
    const auto rank = [&](VertexId nic) { return std::pair(paths_.distance(Domain::pcie, fabric_->gpu(gpu), nic), !owns(gpu, nic)); };
    return rank(a) < rank(b);
  });
  return sorted;
}

EdgeId RouteTable::uplink(VertexId nic) const {
  for (EdgeId e : fabric_->out_edges(nic)) {
    if (fabric_->edge(e).kind == EdgeKind::rail) return e;
  }
  return kNone;
}

EdgeId RouteTable::downlink(VertexId nic) const {
  for (EdgeId e : fabric_->in_edges(nic)) {
    if (fabric_->edge(e).kind == EdgeKind::rail) return e;
  }
  return kNone;
}

VertexId RouteTable::rail_peer(VertexId nic, NodeId node) const {
  const EdgeId up = uplink(nic);
  if (up == kNone) return kNone;
  const VertexId leaf = fabric_->edge(up).to;
  const auto key = [&](VertexId v) { return fabric_->vertex(v).rail != kNone ? fabric_->vertex(v).rail : fabric_->vertex(v).index; };
  for (VertexId peer : fabric_->nics_of(node)) {
    const EdgeId down = downlink(peer);
    if (down != kNone && fabric_->edge(down).from == leaf && key(peer) == key(nic)) return peer;
  }
  return kNone;
}

bool RouteTable::append_staged(VertexId from, VertexId to, VertexId numa, std::vector<EdgeId>& edges) const {
  if (numa == kNone) return false;
  const std::size_t begin = edges.size();
  if (paths_.append(Domain::pcie, from, numa, edges) && paths_.append(Domain::pcie, numa, to, edges)) return true;
  edges.resize(begin);
  return false;
}

// GPU -> NIC. With a relay: over NVLink into its memory, then from there as if it were the relay's own; a GPU that cannot be
// reached so, or whose memory the NIC cannot read, lends host memory and its process instead.
bool RouteTable::append_source(GpuId src, GpuId relay, VertexId nic, std::vector<EdgeId>& edges) const {
  const VertexId gpu = fabric_->gpu(src);
  const std::size_t begin = edges.size();
  if (relay != kNone && fabric_->vertex(fabric_->gpu(relay)).gdr && peers(src, relay)) {
    const VertexId via = fabric_->gpu(relay);
    if (paths_.append(Domain::nvlink, gpu, via, edges) && paths_.append(Domain::pcie, via, nic, edges)) return true;
  } else if (relay == kNone && fabric_->vertex(gpu).gdr) {
    if (paths_.append(Domain::pcie, gpu, nic, edges)) return true;
  } else {
    return append_staged(gpu, nic, paths_.numa_of(nic), edges) || append_staged(gpu, nic, paths_.numa_of(gpu), edges);
  }
  edges.resize(begin);
  return false;
}

bool RouteTable::append_destination(VertexId nic, GpuId relay, GpuId dst, std::vector<EdgeId>& edges) const {
  const VertexId gpu = fabric_->gpu(dst);
  const std::size_t begin = edges.size();
  if (relay != kNone && fabric_->vertex(fabric_->gpu(relay)).gdr && peers(dst, relay)) {
    const VertexId via = fabric_->gpu(relay);
    if (paths_.append(Domain::pcie, nic, via, edges) && paths_.append(Domain::nvlink, via, gpu, edges)) return true;
  } else if (relay == kNone && fabric_->vertex(gpu).gdr) {
    if (paths_.append(Domain::pcie, nic, gpu, edges)) return true;
  } else {
    return append_staged(nic, gpu, paths_.numa_of(nic), edges) || append_staged(nic, gpu, paths_.numa_of(gpu), edges);
  }
  edges.resize(begin);
  return false;
}

bool RouteTable::append_network(VertexId nic_src, VertexId nic_dst, std::vector<EdgeId>& edges) const {
  const EdgeId up = uplink(nic_src), down = downlink(nic_dst);
  if (up == kNone || down == kNone) return false;
  const VertexId from = fabric_->edge(up).to, to = fabric_->edge(down).from;
  if (from == to) {
    edges.insert(edges.end(), {up, down});
    return true;
  }
  if (leaf_index_[from] == kNone || leaf_index_[to] == kNone) return false;
  const auto& choices = crossings_[std::size_t{leaf_index_[from]} * leaf_count_ + leaf_index_[to]];
  if (choices.empty()) return false;
  // Switches hash flows over equal spines; NIC pairs spread the same way, but reproducibly.
  const Crossing& crossing = choices[(nic_index_[nic_src] + nic_index_[nic_dst]) % choices.size()];
  edges.insert(edges.end(), {up, crossing.up, crossing.down, down});
  return true;
}

std::uint64_t RouteTable::width(const Route& route) const {
  std::vector<EdgeId> edges;
  if (!append_edges(route, edges)) return 0;
  std::uint64_t narrowest = std::numeric_limits<std::uint64_t>::max();
  for (EdgeId e : edges) narrowest = std::min(narrowest, fabric_->edge(e).capacity_Bps);
  return narrowest;
}

std::vector<Route> RouteTable::node_routes(GpuId src, GpuId dst) const {
  const NodeId node = fabric_->node_of(src);
  const GpuId first = fabric_->first_gpu(node);
  std::vector<Route> routes;
  std::vector<EdgeId> edges;
  const Route direct{PathKind::direct, src, dst, kNone, kNone, kNone, kNone};
  if (append_edges(direct, edges)) routes.push_back(direct);
  std::vector<Route> indirect;
  for (GpuId relay = first; relay < first + fabric_->gpus_of(node).size(); ++relay) {
    const Route route{PathKind::relay, src, dst, relay, kNone, kNone, kNone};
    if (relay != src && relay != dst && peers(src, relay) && peers(relay, dst)) indirect.push_back(route);
  }
  const Route host{PathKind::host, src, dst, kNone, kNone, kNone, kNone};
  edges.clear();
  if (append_edges(host, edges)) indirect.push_back(host);
  std::stable_sort(indirect.begin(), indirect.end(), [&](const Route& a, const Route& b) { return width(a) > width(b); });
  routes.insert(routes.end(), indirect.begin(), indirect.end());
  return routes;
}

bool RouteTable::append_edges(const Route& route, std::vector<EdgeId>& edges) const {
  const VertexId src = fabric_->gpu(route.src), dst = fabric_->gpu(route.dst);
  const std::size_t begin = edges.size();
  bool found = false;
  switch (route.kind) {
    case PathKind::direct:
      found = paths_.append(Domain::nvlink, src, dst, edges);
      // Peer-to-peer PCIe: below one switch. Through a CPU root it is the host's memory system that carries it: PathKind::host.
      if (!found && paths_.append(Domain::pcie, src, dst, edges)) {
        found = std::none_of(edges.begin() + static_cast<std::ptrdiff_t>(begin), edges.end(),
                             [&](EdgeId e) { return fabric_->vertex(fabric_->edge(e).to).kind == VertexKind::numa; });
      }
      break;
    case PathKind::relay: {
      if (route.relay_src >= fabric_->gpu_count()) break;
      const VertexId via = fabric_->gpu(route.relay_src);
      found = paths_.append(Domain::nvlink, src, via, edges) && paths_.append(Domain::nvlink, via, dst, edges);
      break;
    }
    case PathKind::host: found = append_staged(src, dst, paths_.numa_of(src), edges); break;
    case PathKind::rail:
    case PathKind::cross_rail:
      if (route.nic_src >= nic_index_.size() || route.nic_dst >= nic_index_.size()) break;
      found = append_source(route.src, route.relay_src, route.nic_src, edges) && append_network(route.nic_src, route.nic_dst, edges) &&
              append_destination(route.nic_dst, route.relay_dst, route.dst, edges);
      break;
  }
  if (!found) edges.resize(begin);
  return found;
}

void RouteTable::append_resources(std::span<const EdgeId> edges, std::vector<ResourceId>& resources) const {
  const auto add = [&](VertexId v, Resource::Kind kind) {
    if (const ResourceId r = fabric_->vertex_resource(v, kind); r != kNone) resources.push_back(r);
  };
  for (EdgeId e : edges) {
    const Edge& edge = fabric_->edge(e);
    resources.push_back(e);
    add(edge.from, Resource::Kind::vertex_egress);
    add(edge.from, Resource::Kind::vertex_through);
    add(edge.to, Resource::Kind::vertex_ingress);
    add(edge.to, Resource::Kind::vertex_through);
  }
}

}  // namespace railweave
