#include "node_paths.hpp"

#include <algorithm>

namespace railweave {
namespace {

// A distance packs what makes a way worse, worst first; a node has far fewer than 256 of each.
constexpr std::uint32_t kSocketCrossing = 1u << 16;
constexpr std::uint32_t kRootPassed = 1u << 8;
constexpr std::uint32_t kHop = 1;

bool belongs(EdgeKind kind, NodePaths::Domain domain) noexcept {
  if (domain == NodePaths::Domain::nvlink) return kind == EdgeKind::nvlink;
  return kind == EdgeKind::pcie || kind == EdgeKind::c2c || kind == EdgeKind::socket;
}

// Vertices that forward what is not for them; a GPU forwards only as a relay, which is the planner's choice and not a path's.
bool forwards(VertexKind kind, NodePaths::Domain domain) noexcept {
  if (domain == NodePaths::Domain::nvlink) return kind == VertexKind::nvswitch;
  return kind == VertexKind::pcie_switch || kind == VertexKind::numa;
}

}  // namespace

NodePaths::NodePaths(const Fabric& fabric) : fabric_(&fabric) {
  const auto vertices = fabric.vertices();
  local_.assign(vertices.size(), kNone);
  numa_.assign(vertices.size(), kNone);
  std::vector<std::vector<VertexId>> members(fabric.node_count());
  for (VertexId v = 0; v < vertices.size(); ++v) {
    if (vertices[v].node == kNone) continue;
    local_[v] = static_cast<std::uint32_t>(members[vertices[v].node].size());
    members[vertices[v].node].push_back(v);
  }
  nodes_.resize(fabric.node_count());
  for (NodeId n = 0; n < fabric.node_count(); ++n) {
    nodes_[n].size = static_cast<std::uint32_t>(members[n].size());
    search(fabric, members[n], Domain::pcie, nodes_[n].pcie);
    search(fabric, members[n], Domain::nvlink, nodes_[n].nvlink);
    for (VertexId v : members[n]) {
      std::uint32_t nearest = kNone;
      for (VertexId m : members[n]) {
        if (vertices[m].kind != VertexKind::numa) continue;
        const std::uint32_t d = m == v ? 0 : distance(Domain::pcie, v, m);
        if (d < nearest) {
          nearest = d;
          numa_[v] = m;
        }
      }
    }
  }
}

void NodePaths::search(const Fabric& fabric, const std::vector<VertexId>& members, Domain domain, std::vector<Step>& steps) const {
  const auto size = members.size();
  steps.assign(size * size, {});
  std::vector<char> settled(size);
  for (std::size_t from = 0; from < size; ++from) {
    Step* const row = steps.data() + from * size;
    std::fill(settled.begin(), settled.end(), char{0});
    row[from] = {kNone, 0, std::numeric_limits<std::uint64_t>::max()};
    for (;;) {
      std::size_t next = size;
      for (std::size_t v = 0; v < size; ++v) {
        if (settled[v] != 0 || row[v].distance == kNone) continue;
        if (next == size || row[v].distance < row[next].distance) next = v;
      }
      if (next == size) break;
      settled[next] = 1;
      const VertexKind kind = fabric.vertex(members[next]).kind;
      if (next != from && !forwards(kind, domain)) continue;
      const std::uint32_t passing = next != from && kind == VertexKind::numa ? kRootPassed : 0;
      for (EdgeId e : fabric.out_edges(members[next])) {
        const Edge& edge = fabric.edge(e);
        const VertexId to = edge.to;
        if (!belongs(edge.kind, domain) || fabric.vertex(to).node != fabric.vertex(members[next]).node) continue;
        Step& step = row[local_[to]];
        const std::uint32_t d = row[next].distance + passing + kHop + (edge.kind == EdgeKind::socket ? kSocketCrossing : 0);
        const std::uint64_t width = std::min(row[next].width_Bps, edge.capacity_Bps);
        if (settled[local_[to]] != 0) continue;
        if (d < step.distance || (d == step.distance && width > step.width_Bps)) step = {e, d, width};
      }
    }
  }
}

const NodePaths::Step* NodePaths::step(Domain domain, VertexId from, VertexId to) const {
  const NodeId node = fabric_->vertex(from).node;
  if (node == kNone || node != fabric_->vertex(to).node) return nullptr;
  const Node& n = nodes_[node];
  const std::vector<Step>& steps = domain == Domain::pcie ? n.pcie : n.nvlink;
  return &steps[std::size_t{local_[from]} * n.size + local_[to]];
}

std::uint32_t NodePaths::distance(Domain domain, VertexId from, VertexId to) const {
  const Step* const s = step(domain, from, to);
  return s == nullptr ? kNone : s->distance;
}

bool NodePaths::append(Domain domain, VertexId from, VertexId to, std::vector<EdgeId>& edges) const {
  if (distance(domain, from, to) == kNone) return false;
  const std::size_t begin = edges.size();
  for (VertexId v = to; v != from;) {
    const EdgeId e = step(domain, from, v)->last;
    edges.push_back(e);
    v = fabric_->edge(e).from;
  }
  std::reverse(edges.begin() + static_cast<std::ptrdiff_t>(begin), edges.end());
  return true;
}

}  // namespace railweave
