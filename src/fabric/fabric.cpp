#include "railweave/fabric/fabric.hpp"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "railweave/error.hpp"
#include "railweave/fabric/limits.hpp"

namespace railweave {
namespace {

constexpr std::size_t kCapacitiesPerVertex = 3;

std::size_t capacity_slot(Resource::Kind kind) noexcept { return static_cast<std::size_t>(kind) - 1; }

// Compressed adjacency: edge ids grouped by `end(edge)`, ascending inside a group.
template <class End>
void group_edges(const std::vector<Edge>& edges, std::size_t vertex_count, End end, std::vector<std::uint32_t>& start,
                 std::vector<EdgeId>& grouped) {
  start.assign(vertex_count + 1, 0);
  for (const Edge& edge : edges) ++start[end(edge) + 1];
  for (std::size_t v = 0; v < vertex_count; ++v) start[v + 1] += start[v];
  grouped.resize(edges.size());
  std::vector<std::uint32_t> next(start.begin(), start.end() - 1);
  for (EdgeId e = 0; e < edges.size(); ++e) grouped[next[end(edges[e])]++] = e;
}

// Length of the well-formed UTF-8 sequence at the start of `text` (Unicode 15, table 3-7), 0 when there is none.
std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) -> unsigned { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
    return tail(1) && tail(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool overlong = lead == 0xF0 && byte(1) < 0x90;
    const bool beyond = lead == 0xF4 && byte(1) >= 0x90;
    return tail(1) && tail(2) && tail(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

// Texts end up in JSON, in terminals and in pictures, which take neither broken UTF-8 nor control characters.
void check_text(std::string_view text, const std::string& what) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i));
    const auto c = static_cast<unsigned char>(text[i]);
    if (length == 0 || c < 0x20 || c == 0x7F) {
      throw FabricError(what + ": byte " + std::to_string(i) + " is " + (length == 0 ? "not UTF-8" : "a control character"));
    }
    i += length;
  }
}

void check_name(std::string_view name, const std::string& what) {
  if (name.empty()) throw FabricError(what + " has no name");
  if (name.size() > limits::kNameBytes) {
    throw FabricError(what + " has a name of " + std::to_string(name.size()) + " bytes; at most " + std::to_string(limits::kNameBytes));
  }
  check_text(name, "the name of " + what);
}

void check_attributes(const Attributes& attributes, const std::string& vertex) {
  const auto fail = [&](const std::string& found, std::size_t limit) {
    throw FabricError("'" + vertex + "' has " + found + "; at most " + std::to_string(limit));
  };
  if (attributes.size() > limits::kAttributes) fail(std::to_string(attributes.size()) + " attributes", limits::kAttributes);
  const std::string of_vertex = "' of '" + vertex + "'";
  for (const auto& [key, value] : attributes) {
    const std::size_t bytes = std::max(key.size(), value.size());
    if (bytes > limits::kAttributeBytes) fail("an attribute of " + std::to_string(bytes) + " bytes", limits::kAttributeBytes);
    check_text(key, "an attribute of '" + vertex + "'");
    check_text(value, std::string("attribute '").append(key).append(of_vertex));
  }
}

void check_size(std::size_t count, std::size_t limit, const char* what) {
  if (count > limit) throw FabricError(std::to_string(count) + " " + what + "; at most " + std::to_string(limit) + " are supported");
}

}  // namespace

std::string_view to_string(VertexKind kind) noexcept {
  switch (kind) {
    case VertexKind::gpu: return "gpu";
    case VertexKind::nic: return "nic";
    case VertexKind::pcie_switch: return "pcie_switch";
    case VertexKind::numa: return "numa";
    case VertexKind::nvswitch: return "nvswitch";
    case VertexKind::leaf: return "leaf";
    case VertexKind::spine: return "spine";
  }
  return "unknown";
}

std::string_view to_string(EdgeKind kind) noexcept {
  switch (kind) {
    case EdgeKind::nvlink: return "nvlink";
    case EdgeKind::c2c: return "c2c";
    case EdgeKind::pcie: return "pcie";
    case EdgeKind::socket: return "socket";
    case EdgeKind::rail: return "rail";
    case EdgeKind::uplink: return "uplink";
  }
  return "unknown";
}

std::span<const EdgeId> Fabric::out_edges(VertexId id) const {
  return std::span(out_).subspan(out_start_.at(id), out_start_.at(id + 1) - out_start_.at(id));
}

std::span<const EdgeId> Fabric::in_edges(VertexId id) const {
  return std::span(in_).subspan(in_start_.at(id), in_start_.at(id + 1) - in_start_.at(id));
}

EdgeId Fabric::find_edge(VertexId from, VertexId to) const noexcept {
  if (from >= vertices_.size()) return kNone;
  for (EdgeId e : out_edges(from)) {
    if (edges_[e].to == to) return e;
  }
  return kNone;
}

VertexId Fabric::find_vertex(std::string_view name) const noexcept {
  for (VertexId v = 0; v < vertices_.size(); ++v) {
    if (vertices_[v].name == name) return v;
  }
  return kNone;
}

ResourceId Fabric::vertex_resource(VertexId id, Resource::Kind kind) const noexcept {
  if (kind == Resource::Kind::edge || id >= vertices_.size()) return kNone;
  return vertex_resource_[id * kCapacitiesPerVertex + capacity_slot(kind)];
}

std::string Fabric::describe(ResourceId id) const {
  const Resource& resource = resources_.at(id);
  switch (resource.kind) {
    case Resource::Kind::edge: {
      const Edge& e = edges_[resource.id];
      return vertices_[e.from].name + " -> " + vertices_[e.to].name + " (" + std::string(to_string(e.kind)) + ")";
    }
    case Resource::Kind::vertex_egress: return vertices_[resource.id].name + " (egress)";
    case Resource::Kind::vertex_ingress: return vertices_[resource.id].name + " (ingress)";
    case Resource::Kind::vertex_through: return vertices_[resource.id].name + " (through)";
  }
  return {};
}

std::span<const VertexId> Fabric::gpus_of(NodeId id) const {
  return std::span(gpus_).subspan(first_gpu_.at(id), first_gpu_.at(id + 1) - first_gpu_.at(id));
}

std::span<const VertexId> Fabric::nics_of(NodeId id) const {
  return std::span(nics_).subspan(first_nic_.at(id), first_nic_.at(id + 1) - first_nic_.at(id));
}

FabricBuilder::FabricBuilder(std::string name) : name_(std::move(name)) {}

NodeId FabricBuilder::add_node(std::string name) {
  nodes_.push_back(std::move(name));
  return static_cast<NodeId>(nodes_.size() - 1);
}

VertexId FabricBuilder::add_vertex(Vertex vertex) {
  vertices_.push_back(std::move(vertex));
  return static_cast<VertexId>(vertices_.size() - 1);
}

EdgeId FabricBuilder::add_edge(Edge edge) {
  edges_.push_back(std::move(edge));
  return static_cast<EdgeId>(edges_.size() - 1);
}

EdgeId FabricBuilder::add_link(VertexId a, VertexId b, EdgeKind kind, std::uint64_t capacity_Bps, std::uint64_t latency_ns,
                               std::string source) {
  const EdgeId first = add_edge({a, b, kind, capacity_Bps, latency_ns, source});
  add_edge({b, a, kind, capacity_Bps, latency_ns, std::move(source)});
  return first;
}

Fabric FabricBuilder::build() && {
  check_size(nodes_.size(), limits::kNodes, "nodes");
  check_size(vertices_.size(), limits::kVertices, "vertices");
  check_size(edges_.size(), limits::kEdges, "edges");
  check_text(name_, "the fabric's name");
  std::set<std::string_view> names;
  std::set<const Attributes*> checked;
  for (const std::string& node : nodes_) {
    check_name(node, "a node");
    if (!names.insert(node).second) throw FabricError("two nodes are named '" + node + "'");
  }
  for (const Vertex& v : vertices_) {
    check_name(v.name, "a " + std::string(to_string(v.kind)));
    for (const std::string* text : {&v.model, &v.bus_id, &v.source}) check_text(*text, "'" + v.name + "'");
    if (v.attributes != nullptr && checked.insert(v.attributes.get()).second) check_attributes(*v.attributes, v.name);
    if (!names.insert(v.name).second) throw FabricError("two vertices are named '" + v.name + "'");
    const bool shared = v.kind == VertexKind::leaf || v.kind == VertexKind::spine;
    if (shared != (v.node == kNone)) {
      throw FabricError("'" + v.name + "': a " + std::string(to_string(v.kind)) + (shared ? " belongs to no node" : " needs a node"));
    }
    if (!shared && v.node >= nodes_.size()) throw FabricError("'" + v.name + "' names a node that does not exist");
  }
  std::set<std::pair<VertexId, VertexId>> ends;
  for (const Edge& e : edges_) {
    if (e.from >= vertices_.size() || e.to >= vertices_.size()) throw FabricError("an edge names a vertex that does not exist");
    const std::string text = "edge '" + vertices_[e.from].name + "' -> '" + vertices_[e.to].name + "'";
    check_text(e.source, text);
    if (e.from == e.to) throw FabricError(text + " leads to itself");
    if (e.capacity_Bps == 0) throw FabricError(text + " has no capacity; leave the edge out, or mark it down in the link state");
    if (!ends.insert({e.from, e.to}).second) throw FabricError(text + " stands twice; give one edge with the summed capacity");
  }

  Fabric fabric;
  fabric.name_ = std::move(name_);
  fabric.node_names_ = std::move(nodes_);
  fabric.vertices_ = std::move(vertices_);
  fabric.edges_ = std::move(edges_);
  const std::size_t vertex_count = fabric.vertices_.size();
  const std::size_t node_count = fabric.node_names_.size();

  for (VertexId v = 0; v < vertex_count; ++v) {
    if (fabric.vertices_[v].kind == VertexKind::gpu) fabric.gpus_.push_back(v);
    if (fabric.vertices_[v].kind == VertexKind::nic) fabric.nics_.push_back(v);
  }
  check_size(fabric.gpus_.size(), limits::kGpus, "GPUs");
  if (fabric.gpus_.empty()) throw FabricError("fabric '" + fabric.name_ + "' has no GPU");
  const auto by_node = [&](VertexId a, VertexId b) {
    const Vertex &x = fabric.vertices_[a], &y = fabric.vertices_[b];
    return std::tie(x.node, x.index, a) < std::tie(y.node, y.index, b);
  };
  std::sort(fabric.gpus_.begin(), fabric.gpus_.end(), by_node);
  std::sort(fabric.nics_.begin(), fabric.nics_.end(), by_node);
  const auto starts = [&](const std::vector<VertexId>& ids) {
    std::vector<std::uint32_t> start(node_count + 1, 0);
    for (VertexId v : ids) ++start[fabric.vertices_[v].node + 1];
    for (std::size_t n = 0; n < node_count; ++n) start[n + 1] += start[n];
    return start;
  };
  fabric.first_gpu_ = starts(fabric.gpus_);
  fabric.first_nic_ = starts(fabric.nics_);

  group_edges(
      fabric.edges_, vertex_count, [](const Edge& e) { return e.from; }, fabric.out_start_, fabric.out_);
  group_edges(
      fabric.edges_, vertex_count, [](const Edge& e) { return e.to; }, fabric.in_start_, fabric.in_);

  for (EdgeId e = 0; e < fabric.edges_.size(); ++e) {
    fabric.resources_.push_back({Resource::Kind::edge, e, fabric.edges_[e].capacity_Bps});
  }
  fabric.vertex_resource_.assign(vertex_count * kCapacitiesPerVertex, kNone);
  for (VertexId v = 0; v < vertex_count; ++v) {
    const auto add = [&](Resource::Kind kind, std::uint64_t capacity_Bps) {
      if (capacity_Bps == 0) return;
      fabric.vertex_resource_[v * kCapacitiesPerVertex + capacity_slot(kind)] = static_cast<ResourceId>(fabric.resources_.size());
      fabric.resources_.push_back({kind, v, capacity_Bps});
    };
    add(Resource::Kind::vertex_egress, fabric.vertices_[v].egress_Bps);
    add(Resource::Kind::vertex_ingress, fabric.vertices_[v].ingress_Bps);
    add(Resource::Kind::vertex_through, fabric.vertices_[v].through_Bps);
  }
  return fabric;
}

}  // namespace railweave
