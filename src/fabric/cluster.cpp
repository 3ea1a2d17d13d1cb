#include "railweave/fabric/cluster.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "link_reader.hpp"
#include "railweave/error.hpp"
#include "railweave/fabric/limits.hpp"
#include "yaml_document.hpp"

namespace railweave {
namespace {

// Vertices and edges on their way to a fabric; overrides still change them.
struct Parts {
  std::vector<std::string> nodes;
  std::vector<Vertex> vertices;
  std::vector<Edge> edges;

  VertexId add(Vertex vertex) {
    vertices.push_back(std::move(vertex));
    return static_cast<VertexId>(vertices.size() - 1);
  }
  void link(VertexId a, VertexId b, EdgeKind kind, const LinkClass& link) {
    edges.push_back({a, b, kind, link.capacity_Bps, link.latency_ns, link.source});
    edges.push_back({b, a, kind, link.capacity_Bps, link.latency_ns, link.source});
  }
};

// A port of a node that stands in the cluster.
struct PlacedPort {
  NodeId node = 0;
  VertexId nic = kNone;
  std::uint32_t rail = 0;
  LinkClass link;
};

void check_size(const std::vector<NodeGroup>& groups) {
  std::uint64_t nodes = 0, vertices = 0, edges = 0;
  for (const NodeGroup& group : groups) {
    nodes += group.count;
    vertices += std::uint64_t{group.count} * group.node.vertices.size();
    edges += std::uint64_t{group.count} * (group.node.edges.size() + 2 * group.node.ports.size());
  }
  const auto check = [](std::uint64_t count, std::uint64_t limit, const char* what) {
    if (count <= limit) return;
    throw FabricError("a cluster of " + std::to_string(count) + " " + what + "; at most " + std::to_string(limit) + " are supported");
  };
  check(nodes, limits::kNodes, "nodes");
  check(vertices, limits::kVertices, "vertices");
  check(edges, limits::kEdges, "edges");
}

void place_node(Parts& parts, const NodeTemplate& node, const Network& network, std::vector<PlacedPort>& ports) {
  const auto id = static_cast<NodeId>(parts.nodes.size());
  const auto first = static_cast<VertexId>(parts.vertices.size());
  parts.nodes.push_back("node" + std::to_string(id));
  for (Vertex vertex : node.vertices) {
    vertex.node = id;
    vertex.name.insert(0, parts.nodes.back() + "/");
    if (network.wiring == Network::Wiring::tree) vertex.rail = kNone;
    parts.add(std::move(vertex));
  }
  for (Edge edge : node.edges) {
    edge.from += first;
    edge.to += first;
    parts.edges.push_back(std::move(edge));
  }
  for (const Port& port : node.ports) {
    ports.push_back({id, first + port.nic, node.vertices[port.nic].rail, network.port.value_or(port.link)});
  }
}

// Leafs in the order (block of nodes, rail), each with its ports; then the spine.
void join_nodes(Parts& parts, const Network& network, const std::vector<PlacedPort>& ports) {
  const bool rails = network.wiring == Network::Wiring::rail;
  std::map<std::pair<NodeId, std::uint32_t>, std::vector<const PlacedPort*>> leafs;
  for (const PlacedPort& port : ports) {
    const NodeId block = network.nodes_per_leaf == 0 ? 0 : port.node / network.nodes_per_leaf;
    leafs[{block, rails ? port.rail : 0}].push_back(&port);
  }
  std::vector<std::pair<VertexId, std::uint64_t>> leaf_ports;  // leaf and the sum of its ports
  for (const auto& [place, members] : leafs) {
    Vertex leaf;
    leaf.kind = VertexKind::leaf;
    leaf.index = static_cast<std::uint32_t>(leaf_ports.size());
    leaf.rail = rails ? place.second : kNone;
    leaf.name = "leaf" + std::to_string(leaf.index);
    const VertexId id = parts.add(std::move(leaf));
    std::uint64_t sum = 0;
    for (const PlacedPort* port : members) {
      parts.link(port->nic, id, EdgeKind::rail, port->link);
      sum = std::min(sum + port->link.capacity_Bps, limits::kCapacityBps);
    }
    leaf_ports.emplace_back(id, sum);
  }
  if (!network.spine || leaf_ports.size() < 2 || parts.nodes.size() < 2) return;
  Vertex spine;
  spine.kind = VertexKind::spine;
  spine.name = "spine0";
  const VertexId id = parts.add(std::move(spine));
  for (const auto& [leaf, sum] : leaf_ports) {
    const std::uint64_t permille = network.oversubscription_permille;
    std::uint64_t capacity = network.uplink_Bps;
    if (capacity == 0)
      capacity = std::max<std::uint64_t>(1, std::min(sum / permille * 1000 + sum % permille * 1000 / permille, limits::kCapacityBps));
    parts.link(leaf, id, EdgeKind::uplink, {capacity, network.uplink_latency_ns, network.uplink_source});
  }
}

Parts assemble(const std::vector<NodeGroup>& groups, const Network& network) {
  check_size(groups);
  Parts parts;
  std::vector<PlacedPort> ports;
  for (const NodeGroup& group : groups) {
    for (std::uint32_t i = 0; i < group.count; ++i) place_node(parts, group.node, network, ports);
  }
  join_nodes(parts, network, ports);
  return parts;
}

Fabric build(std::string name, Parts parts) {
  FabricBuilder builder(std::move(name));
  for (std::string& node : parts.nodes) builder.add_node(std::move(node));
  for (Vertex& vertex : parts.vertices) builder.add_vertex(std::move(vertex));
  for (Edge& edge : parts.edges) builder.add_edge(std::move(edge));
  return std::move(builder).build();
}

NodeGroup read_group(const YamlPlace& place, const TemplateLookup& lookup) {
  place.expect_keys({"count"}, {"template", "node"});
  if (place.has("template") == place.has("node"))
    place.fail(place.has("node") ? "both template and node" : "neither template nor node", "one of them");
  NodeGroup group;
  group.count = static_cast<std::uint32_t>(place.at("count").unsigned_integer(1, limits::kNodes));
  if (place.has("node")) {
    const YamlPlace node = place.at("node");
    node.expect_keys({"links", "numa", "gpus"}, {"switches", "nics", "nvlink"});
    group.node = read_node(node, "node");
    return group;
  }
  const YamlPlace name = place.at("template");
  std::optional<NodeTemplate> found = lookup(name.string());
  if (!found) {
    name.fail("'" + name.string().substr(0, 60) + "'",
              "the name of a template (`railweave topo --list`), or a .yaml or .xml file beside this one");
  }
  group.node = std::move(*found);
  return group;
}

// Changes single links and parts of the assembled cluster.
class Overrides {
 public:
  explicit Overrides(Parts& parts) : parts_(parts) {
    for (VertexId v = 0; v < parts.vertices.size(); ++v) names_.emplace(parts.vertices[v].name, v);
    for (EdgeId e = 0; e < parts.edges.size(); ++e) edges_.emplace(key(parts.edges[e].from, parts.edges[e].to), e);
  }

  void apply(const YamlPlace& place) {
    if (place.has("vertex")) {
      apply_to_vertex(place);
    } else {
      apply_to_link(place);
    }
  }

 private:
  static std::uint64_t key(VertexId from, VertexId to) { return (std::uint64_t{from} << 32U) | to; }

  VertexId find(const YamlPlace& place) const {
    const auto entry = names_.find(place.string());
    if (entry == names_.end()) place.fail("'" + place.string().substr(0, 60) + "'", "a part of this cluster, such as node0/nic1 or leaf2");
    return entry->second;
  }

  Edge& edge(const YamlPlace& place, VertexId from, VertexId to) {
    const auto entry = edges_.find(key(from, to));
    if (entry == edges_.end()) {
      place.fail(parts_.vertices[from].name + " and " + parts_.vertices[to].name + ", which no link joins", "the two ends of a link");
    }
    return parts_.edges[entry->second];
  }

  void apply_to_link(const YamlPlace& place) {
    place.expect_keys({"from", "to", "source"}, {"capacity", "latency", "one_way"});
    const VertexId from = find(place.at("from")), to = find(place.at("to"));
    const bool one_way = place.has("one_way") && place.at("one_way").boolean();
    change(edge(place, from, to), place);
    if (!one_way) change(edge(place, to, from), place);
  }

  static void change(Edge& edge, const YamlPlace& place) {
    if (place.has("capacity")) edge.capacity_Bps = read_rate_Bps(place.at("capacity"));
    if (place.has("latency")) edge.latency_ns = read_latency_ns(place.at("latency"));
    edge.source = place.at("source").string();
  }

  void apply_to_vertex(const YamlPlace& place) {
    place.expect_keys({"vertex", "source"}, {"gdr", "injection", "memory"});
    Vertex& vertex = parts_.vertices[find(place.at("vertex"))];
    const auto only = [&](std::string_view name, VertexKind kind) {
      if (!place.has(name) || vertex.kind == kind) return;
      place.at(name).fail("'" + std::string(name) + "' of a " + std::string(to_string(vertex.kind)),
                          "it only of a " + std::string(to_string(kind)));
    };
    only("gdr", VertexKind::gpu);
    only("injection", VertexKind::gpu);
    only("memory", VertexKind::numa);
    if (place.has("gdr")) vertex.gdr = place.at("gdr").boolean();
    if (place.has("injection")) vertex.egress_Bps = vertex.ingress_Bps = read_rate_Bps(place.at("injection"));
    if (place.has("memory")) vertex.through_Bps = read_rate_Bps(place.at("memory"));
    vertex.source = place.at("source").string();
  }

  Parts& parts_;
  std::unordered_map<std::string, VertexId> names_;
  std::unordered_map<std::uint64_t, EdgeId> edges_;
};

}  // namespace

Fabric make_cluster(const std::string& name, const std::vector<NodeGroup>& groups, const Network& network) {
  return build(name, assemble(groups, network));
}

Fabric parse_cluster(std::string_view text, const std::string& source, const TemplateLookup& lookup, std::uint32_t nodes) {
  const YamlDocument document(text, source);
  const YamlPlace root = document.root();
  root.expect_head("railweave-cluster");
  root.expect_keys({"format", "version", "name", "nodes"}, {"links", "network", "overrides"});

  const YamlPlace group_list = root.at("nodes");
  constexpr std::size_t kMaxGroups = 1024;
  const std::size_t group_count = group_list.list_size(kMaxGroups);
  if (group_count == 0) group_list.fail("an empty list", "at least one group of nodes");
  std::vector<NodeGroup> groups;
  for (std::size_t g = 0; g < group_count; ++g) groups.push_back(read_group(group_list.at(g), lookup));
  if (nodes != 0) {
    if (groups.size() != 1)
      throw FabricError(source + ": " + std::to_string(groups.size()) + " groups of nodes; a number of nodes fits only one");
    groups.front().count = nodes;
  }

  const LinkClasses links = root.has("links") ? LinkClasses(root.at("links")) : LinkClasses();
  const Network network = root.has("network") ? read_network(root.at("network"), links) : groups.front().node.network;
  try {
    Parts parts = assemble(groups, network);
    if (root.has("overrides")) {
      Overrides overrides(parts);
      const YamlPlace list = root.at("overrides");
      const std::size_t count = list.list_size(limits::kYamlBytes);
      for (std::size_t i = 0; i < count; ++i) overrides.apply(list.at(i));
    }
    return build(root.at("name").string(), std::move(parts));
  } catch (const FabricError& error) {
    throw ParseError({source, 0, 0, ""}, error.what(), "a fabric that can exist");
  }
}

}  // namespace railweave
