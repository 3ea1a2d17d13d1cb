#include "nic_symmetry.hpp"

#include <algorithm>

namespace railweave {

namespace {

// Links of PCIe lead up from devices over switches to NUMA nodes.
int height(const Vertex& vertex) {
  if (vertex.kind == VertexKind::numa) return 2;
  return vertex.kind == VertexKind::pcie_switch ? 1 : 0;
}

}  // namespace

NicSymmetry::NicSymmetry(const Fabric& fabric, NodeId node, std::span<const RankGpu> gpus, std::span<const RankNic> nics,
                         const std::vector<std::vector<std::optional<NicWay>>>& ways)
    : fabric_(fabric), gpus_(gpus.begin(), gpus.end()), nics_(nics.begin(), nics.end()) {
  for (const auto& of_rank : ways) {
    // PCIe roots, of which the fabric knows the NUMA node alone.
    std::vector<bool>& between = between_roots_.emplace_back();
    for (const auto& way : of_rank) between.push_back(way && way->distance == Distance::node);
  }
  std::vector<VertexId> members;
  for (VertexId v = 0; v < fabric.vertices().size(); ++v) {
    if (fabric.vertex(v).node == node && fabric.vertex(v).kind != VertexKind::nvswitch) members.push_back(v);
  }
  // Only plain trees with equal links between all sockets are known to be symmetric in the way that is used here. Nested switches have
  // no direction in `height`; they are left to the plain search.
  std::set<std::pair<std::uint64_t, std::uint64_t>> sockets;
  for (const VertexId v : members) {
    for (const EdgeId e : fabric.out_edges(v)) {
      const Edge& edge = fabric.edge(e);
      if (edge.kind == EdgeKind::socket) sockets.emplace(edge.capacity_Bps, edge.latency_ns);
      if ((edge.kind == EdgeKind::pcie || edge.kind == EdgeKind::c2c) && height(fabric.vertex(v)) < height(fabric.vertex(edge.to))) {
        is_tree_ = parents_.try_emplace(v, edge.to).second && is_tree_;
        children_[edge.to].push_back(v);
      }
    }
    if (!parents_.contains(v)) {
      roots_.push_back(v);
      is_tree_ = is_tree_ && fabric.vertex(v).kind != VertexKind::pcie_switch;
    }
  }
  is_tree_ = is_tree_ && sockets.size() <= 1;
  if (!is_tree_) return;
  for (const VertexId v : members) own_[v] = number(own(v));
}

// What parts of one shape have alike, but for those below.
NicSymmetry::Words NicSymmetry::own(VertexId vertex) const {
  const Vertex& part = fabric_.vertex(vertex);
  Words words{static_cast<std::uint64_t>(part.kind), part.egress_Bps, part.ingress_Bps, part.through_Bps};
  if (const auto parent = parents_.find(vertex); parent != parents_.end()) {
    const EdgeId up = fabric_.find_edge(vertex, parent->second), down = fabric_.find_edge(parent->second, vertex);
    words.insert(words.end(),
                 {fabric_.edge(up).capacity_Bps, fabric_.edge(up).latency_ns, down == kNone ? 0 : fabric_.edge(down).capacity_Bps});
  }
  if (std::any_of(gpus_.begin(), gpus_.end(), [&](const RankGpu& gpu) { return gpu.vertex == vertex; })) words.push_back(part.gdr ? 1 : 0);
  const auto nic = std::find_if(nics_.begin(), nics_.end(), [&](const RankNic& one) { return one.vertex == vertex; });
  if (nic != nics_.end()) words.push_back(nic->capacity_Bps);
  return words;
}

std::uint32_t NicSymmetry::number(Words words) {
  return numbers_.try_emplace(std::move(words), static_cast<std::uint32_t>(numbers_.size())).first->second;
}

std::uint32_t NicSymmetry::shape(VertexId vertex, const std::set<VertexId>& fixed, std::map<VertexId, std::uint32_t>& shapes) {
  Words words;
  if (const auto below = children_.find(vertex); below != children_.end()) {
    for (const VertexId child : below->second) words.push_back(shape(child, fixed, shapes));
  }
  std::sort(words.begin(), words.end());
  words.insert(words.end(), {fixed.contains(vertex) ? vertex : kNone, own_.at(vertex)});
  return shapes[vertex] = number(std::move(words));
}

std::vector<std::uint32_t> NicSymmetry::orbits(std::size_t rank, const std::set<VertexId>& in_use) {
  std::vector<std::uint32_t> found;
  if (!is_tree_) {
    for (const RankNic& nic : nics_) found.push_back(nic.vertex);
    return found;
  }
  std::set<VertexId> fixed = in_use;
  for (std::size_t placed = 0; placed <= rank; ++placed) fixed.insert(gpus_[placed].vertex);
  std::map<VertexId, std::uint32_t> shapes;
  for (const VertexId root : roots_) shape(root, fixed, shapes);
  for (std::size_t nic = 0; nic < nics_.size(); ++nic) {
    Words lineage;
    for (std::size_t waiting = rank; waiting < gpus_.size(); ++waiting) lineage.push_back(between_roots_[waiting][nic] ? 1 : 0);
    for (VertexId at = nics_[nic].vertex;; at = parents_.at(at)) {
      lineage.push_back(shapes.at(at));
      if (!parents_.contains(at)) break;
    }
    found.push_back(number(std::move(lineage)));
  }
  return found;
}

}  // namespace railweave
