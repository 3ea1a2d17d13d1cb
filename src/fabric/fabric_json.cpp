#include "railweave/fabric/fabric_json.hpp"

#include <array>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "json_document.hpp"
#include "railweave/error.hpp"
#include "railweave/fabric/limits.hpp"

namespace railweave {
namespace {

using nlohmann::ordered_json;

constexpr std::array kVertexKinds = {VertexKind::gpu,      VertexKind::nic,  VertexKind::pcie_switch, VertexKind::numa,
                                     VertexKind::nvswitch, VertexKind::leaf, VertexKind::spine};
constexpr std::array kEdgeKinds = {EdgeKind::nvlink, EdgeKind::c2c, EdgeKind::pcie, EdgeKind::socket, EdgeKind::rail, EdgeKind::uplink};

template <class Kind, std::size_t N>
Kind read_kind(const JsonPlace& place, const std::array<Kind, N>& kinds) {
  const std::string_view text = place.string();
  std::string names;
  for (Kind kind : kinds) {
    if (to_string(kind) == text) return kind;
    names += (names.empty() ? "" : ", ") + std::string(to_string(kind));
  }
  place.fail("'" + std::string(text.substr(0, 60)) + "'", "one of " + names);
}

std::uint32_t read_u32(const JsonPlace& place, std::uint32_t max) { return static_cast<std::uint32_t>(place.unsigned_integer(0, max)); }

// Text of a key that may be absent.
std::string read_text(const JsonPlace& object, std::string_view key) {
  return object.has(key) ? std::string(object.at(key).string()) : std::string();
}

std::uint64_t read_own_capacity(const JsonPlace& object, std::string_view key) {
  return object.has(key) ? object.at(key).unsigned_integer(1, limits::kCapacityBps) : 0;
}

// Names to ids, each name once.
class Names {
 public:
  explicit Names(std::string what) : what_(std::move(what)) {}
  void add(const JsonPlace& place, std::uint32_t id) {
    const std::string_view name = place.string();
    if (name.empty() || name.size() > limits::kNameBytes) {
      place.fail("a name of " + std::to_string(name.size()) + " bytes", "1 to " + std::to_string(limits::kNameBytes));
    }
    const auto [entry, inserted] = ids_.emplace(name, id);
    if (!inserted) place.fail("'" + std::string(name) + "' is the name of " + what_ + " " + std::to_string(entry->second), "unique names");
  }
  std::uint32_t find(const JsonPlace& place) const {
    const std::string_view name = place.string();
    const auto entry = ids_.find(name);
    if (entry == ids_.end()) place.fail("'" + std::string(name.substr(0, 60)) + "'", "the name of a " + what_);
    return entry->second;
  }

 private:
  std::string what_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;  // views into the document
};

std::shared_ptr<const Attributes> read_attributes(const JsonPlace& place) {
  if (!place.value().is_object()) place.fail(place.value().type_name(), "an object of strings");
  auto attributes = std::make_shared<Attributes>();
  for (const auto& [key, value] : place.value().items()) attributes->emplace(key, place.at(key).string());
  return attributes;
}

Vertex read_vertex(const JsonPlace& place, const Names& nodes) {
  place.expect_keys({"name", "kind", "index"},
                    {"node", "rail", "gdr", "model", "bus_id", "egress_Bps", "ingress_Bps", "through_Bps", "source", "attributes"});
  Vertex vertex;
  vertex.name = place.at("name").string();
  vertex.kind = read_kind(place.at("kind"), kVertexKinds);
  const bool shared = vertex.kind == VertexKind::leaf || vertex.kind == VertexKind::spine;
  if (shared == place.has("node")) {
    place.fail("a " + std::string(to_string(vertex.kind)) + (shared ? " with" : " without") + " the key 'node'",
               shared ? "none: it belongs to no host" : "the name of its host");
  }
  if (!shared) vertex.node = nodes.find(place.at("node"));
  vertex.index = read_u32(place.at("index"), limits::kVertices);
  if (place.has("rail")) vertex.rail = read_u32(place.at("rail"), limits::kVertices);
  if (place.has("gdr")) vertex.gdr = place.at("gdr").boolean();
  vertex.model = read_text(place, "model");
  vertex.bus_id = read_text(place, "bus_id");
  vertex.egress_Bps = read_own_capacity(place, "egress_Bps");
  vertex.ingress_Bps = read_own_capacity(place, "ingress_Bps");
  vertex.through_Bps = read_own_capacity(place, "through_Bps");
  vertex.source = read_text(place, "source");
  if (place.has("attributes")) vertex.attributes = read_attributes(place.at("attributes"));
  return vertex;
}

Edge read_edge(const JsonPlace& place, const Names& vertices, std::set<std::pair<VertexId, VertexId>>& seen) {
  place.expect_keys({"from", "to", "kind", "capacity_Bps", "latency_ns"}, {"source"});
  Edge edge;
  edge.from = vertices.find(place.at("from"));
  edge.to = vertices.find(place.at("to"));
  edge.kind = read_kind(place.at("kind"), kEdgeKinds);
  edge.capacity_Bps = place.at("capacity_Bps").unsigned_integer(1, limits::kCapacityBps);
  edge.latency_ns = place.at("latency_ns").unsigned_integer(0, limits::kLatencyNs);
  edge.source = read_text(place, "source");
  if (edge.from == edge.to) place.fail("an edge that leads to itself", "two different vertices");
  if (!seen.insert({edge.from, edge.to}).second) {
    place.fail("a second edge between the same two vertices", "one edge a direction, with the summed capacity");
  }
  return edge;
}

void put_text(ordered_json& object, const char* key, const std::string& text) {
  if (!text.empty()) object[key] = text;
}

ordered_json write_vertex(const Vertex& vertex, const Fabric& fabric) {
  ordered_json object;
  object["name"] = vertex.name;
  object["kind"] = to_string(vertex.kind);
  if (vertex.node != kNone) object["node"] = fabric.node_name(vertex.node);
  object["index"] = vertex.index;
  if (vertex.rail != kNone) object["rail"] = vertex.rail;
  if (vertex.gdr) object["gdr"] = true;
  put_text(object, "model", vertex.model);
  put_text(object, "bus_id", vertex.bus_id);
  if (vertex.egress_Bps != 0) object["egress_Bps"] = vertex.egress_Bps;
  if (vertex.ingress_Bps != 0) object["ingress_Bps"] = vertex.ingress_Bps;
  if (vertex.through_Bps != 0) object["through_Bps"] = vertex.through_Bps;
  put_text(object, "source", vertex.source);
  if (vertex.attributes != nullptr && !vertex.attributes->empty()) object["attributes"] = *vertex.attributes;
  return object;
}

ordered_json write_edge(const Edge& edge, const Fabric& fabric) {
  ordered_json object;
  object["from"] = fabric.vertex(edge.from).name;
  object["to"] = fabric.vertex(edge.to).name;
  object["kind"] = to_string(edge.kind);
  object["capacity_Bps"] = edge.capacity_Bps;
  object["latency_ns"] = edge.latency_ns;
  put_text(object, "source", edge.source);
  return object;
}

// One element a line: readable, and small differences stay small in a diff.
template <class Items, class Write>
void append_array(std::string& text, const char* key, const Items& items, Write write) {
  text += ",\n  \"" + std::string(key) + "\": [";
  const char* separator = "\n    ";
  for (const auto& item : items) {
    text += separator + write(item).dump();
    separator = ",\n    ";
  }
  text += items.empty() ? "]" : "\n  ]";
}

}  // namespace

Fabric parse_fabric_json(std::string_view text, const std::string& source) {
  const JsonDocument document(text, source);
  const JsonPlace root(document);
  // Before the keys: another version has others.
  if (root.has("format") && root.at("format").string() != kFabricJsonFormat) {
    root.at("format").fail("'" + std::string(root.at("format").string().substr(0, 60)) + "'", "'" + std::string(kFabricJsonFormat) + "'");
  }
  if (root.has("version") && root.at("version").value() != kFabricJsonVersion && root.at("version").value() != 1) {
    root.at("version").fail("version " + root.at("version").value().dump().substr(0, 60),
                            std::to_string(kFabricJsonVersion) + "; write the file again with this release's `railweave topo --json`");
  }
  root.expect_keys({"format", "version", "name", "nodes", "vertices", "edges"}, {});
  FabricBuilder builder{std::string(root.at("name").string())};

  Names nodes("node");
  const JsonPlace node_list = root.at("nodes");
  const std::size_t node_count = node_list.array_size(limits::kNodes);
  for (std::size_t i = 0; i < node_count; ++i) {
    const JsonPlace place = node_list.at(i);
    nodes.add(place, static_cast<std::uint32_t>(i));
    builder.add_node(std::string(place.string()));
  }

  Names vertices("vertex");
  const JsonPlace vertex_list = root.at("vertices");
  const std::size_t vertex_count = vertex_list.array_size(limits::kVertices);
  for (std::size_t i = 0; i < vertex_count; ++i) {
    const JsonPlace place = vertex_list.at(i);
    const VertexId id = builder.add_vertex(read_vertex(place, nodes));
    vertices.add(place.at("name"), id);
  }

  std::set<std::pair<VertexId, VertexId>> seen;
  const JsonPlace edge_list = root.at("edges");
  const std::size_t edge_count = edge_list.array_size(limits::kEdges);
  for (std::size_t i = 0; i < edge_count; ++i) builder.add_edge(read_edge(edge_list.at(i), vertices, seen));

  try {
    return std::move(builder).build();
  } catch (const FabricError& error) {
    throw ParseError({source, 0, 0, ""}, error.what(), "a fabric that can exist");
  }
}

std::string format_fabric_json(const Fabric& fabric) {
  std::string text = "{\n  \"format\": \"" + std::string(kFabricJsonFormat) + "\",\n  \"version\": " + std::to_string(kFabricJsonVersion) +
                     ",\n  \"name\": " + ordered_json(fabric.name()).dump();
  std::vector<std::string_view> nodes;
  for (NodeId n = 0; n < fabric.node_count(); ++n) nodes.push_back(fabric.node_name(n));
  append_array(text, "nodes", nodes, [](std::string_view name) { return ordered_json(name); });
  append_array(text, "vertices", fabric.vertices(), [&](const Vertex& vertex) { return write_vertex(vertex, fabric); });
  append_array(text, "edges", fabric.edges(), [&](const Edge& edge) { return write_edge(edge, fabric); });
  return text + "\n}\n";
}

}  // namespace railweave
