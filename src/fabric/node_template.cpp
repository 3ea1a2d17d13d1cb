#include "railweave/fabric/node_template.hpp"

#include <array>
#include <map>
#include <set>
#include <utility>

#include "link_reader.hpp"
#include "railweave/error.hpp"
#include "railweave/fabric/limits.hpp"
#include "yaml_document.hpp"

namespace railweave {
namespace {

// Collects the vertices of one node under their names.
class NodeReader {
 public:
  NodeReader(NodeTemplate& node, const LinkClasses& links) : node_(node), links_(links) {}

  void read_numa(const YamlPlace& place);
  void read_switches(const YamlPlace& place);
  void read_gpus(const YamlPlace& place);
  void read_nics(const YamlPlace& place);
  void read_nvlinks(const YamlPlace& place);

 private:
  VertexId add(const YamlPlace& place, VertexKind kind, const char* prefix);
  // The vertex whose name stands at `place`; of one of `kinds`.
  VertexId find(const YamlPlace& place, std::initializer_list<VertexKind> kinds) const;
  void connect(const YamlPlace& place, VertexId a, VertexId b, EdgeKind kind, const LinkClass& link);
  std::vector<VertexId> of_kind(VertexKind kind) const;
  void connect_nvswitch(const YamlPlace& place, const LinkClass& link);
  void read_nvlink_pairs(const YamlPlace& place, const LinkClass& link);

  NodeTemplate& node_;
  const LinkClasses& links_;
  std::map<std::string, VertexId> names_;
  std::map<VertexKind, std::uint32_t> counts_;
  std::set<std::pair<VertexId, VertexId>> ends_;
};

VertexId NodeReader::add(const YamlPlace& place, VertexKind kind, const char* prefix) {
  if (node_.vertices.size() >= limits::kVerticesPerNode) {
    place.fail("more than " + std::to_string(limits::kVerticesPerNode) + " parts in one node", "fewer");
  }
  Vertex vertex;
  vertex.kind = kind;
  vertex.node = 0;
  vertex.index = counts_[kind]++;
  vertex.name = prefix + std::to_string(vertex.index);
  const auto id = static_cast<VertexId>(node_.vertices.size());
  names_.emplace(vertex.name, id);
  node_.vertices.push_back(std::move(vertex));
  return id;
}

VertexId NodeReader::find(const YamlPlace& place, std::initializer_list<VertexKind> kinds) const {
  const std::string name = place.string();
  const auto entry = names_.find(name);
  if (entry != names_.end()) {
    for (VertexKind kind : kinds) {
      if (node_.vertices[entry->second].kind == kind) return entry->second;
    }
  }
  std::string expected;
  for (const auto& [known, id] : names_) {
    for (VertexKind kind : kinds) {
      if (node_.vertices[id].kind == kind) expected += (expected.empty() ? "" : ", ") + known;
    }
  }
  constexpr std::size_t kShown = 200;
  if (expected.size() > kShown) expected = expected.substr(0, kShown) + "...";
  place.fail("'" + name.substr(0, 60) + "'", expected.empty() ? "a part that this node has" : "one of " + expected);
}

void NodeReader::connect(const YamlPlace& place, VertexId a, VertexId b, EdgeKind kind, const LinkClass& link) {
  const std::string pair = node_.vertices[a].name + " and " + node_.vertices[b].name;
  if (a == b) place.fail("a link from " + node_.vertices[a].name + " to itself", "two different ends");
  if (!ends_.insert({a, b}).second || !ends_.insert({b, a}).second) {
    place.fail("a second link between " + pair, "one link with the summed capacity");
  }
  node_.edges.push_back({a, b, kind, link.capacity_Bps, link.latency_ns, link.source});
  node_.edges.push_back({b, a, kind, link.capacity_Bps, link.latency_ns, link.source});
}

std::vector<VertexId> NodeReader::of_kind(VertexKind kind) const {
  std::vector<VertexId> ids;
  for (VertexId v = 0; v < node_.vertices.size(); ++v) {
    if (node_.vertices[v].kind == kind) ids.push_back(v);
  }
  return ids;
}

void NodeReader::read_numa(const YamlPlace& place) {
  place.expect_keys({"count"}, {"memory", "socket"});
  const auto count = place.at("count").unsigned_integer(1, 64);
  if ((count > 1) != place.has("socket")) {
    place.fail(std::to_string(count) + " NUMA nodes and " + (count > 1 ? "no key 'socket'" : "a key 'socket'"),
               "'socket', the link between each two of them, where there are several");
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    Vertex& numa = node_.vertices[add(place, VertexKind::numa, "numa")];
    if (!place.has("memory")) continue;
    const LinkClass& memory = links_.find(place.at("memory"));
    numa.through_Bps = memory.capacity_Bps;
    numa.source = memory.source;
  }
  const std::vector<VertexId> all = of_kind(VertexKind::numa);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) connect(place, all[i], all[j], EdgeKind::socket, links_.find(place.at("socket")));
  }
}

void NodeReader::read_switches(const YamlPlace& place) {
  const std::size_t groups = place.list_size(limits::kVerticesPerNode);
  for (std::size_t g = 0; g < groups; ++g) {
    const YamlPlace group = place.at(g);
    group.expect_keys({"at", "link"}, {"model"});
    const LinkClass& link = links_.find(group.at("link"));
    const YamlPlace parents = group.at("at");
    const std::size_t count = parents.list_size(limits::kVerticesPerNode);
    for (std::size_t i = 0; i < count; ++i) {
      const YamlPlace parent = parents.at(i);
      const VertexId above = find(parent, {VertexKind::numa, VertexKind::pcie_switch});
      const VertexId id = add(parent, VertexKind::pcie_switch, "switch");
      if (group.has("model")) node_.vertices[id].model = group.at("model").string();
      connect(parent, id, above, EdgeKind::pcie, link);
    }
  }
}

void NodeReader::read_gpus(const YamlPlace& place) {
  const std::size_t groups = place.list_size(limits::kVerticesPerNode);
  for (std::size_t g = 0; g < groups; ++g) {
    const YamlPlace group = place.at(g);
    group.expect_keys({"model", "at", "link", "gdr"}, {"injection"});
    const LinkClass& link = links_.find(group.at("link"));
    const YamlPlace parents = group.at("at");
    const std::size_t count = parents.list_size(limits::kVerticesPerNode);
    for (std::size_t i = 0; i < count; ++i) {
      const YamlPlace parent = parents.at(i);
      const VertexId above = find(parent, {VertexKind::numa, VertexKind::pcie_switch});
      const VertexId id = add(parent, VertexKind::gpu, "gpu");
      Vertex& gpu = node_.vertices[id];
      gpu.model = group.at("model").string();
      gpu.gdr = group.at("gdr").boolean();
      if (group.has("injection")) {
        const LinkClass& injection = links_.find(group.at("injection"));
        gpu.egress_Bps = gpu.ingress_Bps = injection.capacity_Bps;
        gpu.source = injection.source;
      }
      connect(parent, id, above, EdgeKind::pcie, link);
    }
  }
}

void NodeReader::read_nics(const YamlPlace& place) {
  const std::size_t groups = place.list_size(limits::kVerticesPerNode);
  std::uint32_t next_rail = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    const YamlPlace group = place.at(g);
    group.expect_keys({"model", "at", "link", "port"}, {"rails"});
    const LinkClass& link = links_.find(group.at("link"));
    const LinkClass& port = links_.find(group.at("port"));
    const YamlPlace parents = group.at("at");
    const std::size_t count = parents.list_size(limits::kVerticesPerNode);
    const bool railless = group.has("rails") && group.at("rails").is_scalar();
    if (railless && group.at("rails").string() != "none") group.at("rails").fail("a word", "a list of rail numbers, or the word none");
    if (group.has("rails") && !railless && group.at("rails").list_size(limits::kVerticesPerNode) != count) {
      group.at("rails").fail(std::to_string(group.at("rails").list_size(limits::kVerticesPerNode)) + " rails",
                             "one for each of the " + std::to_string(count) + " NICs in 'at'");
    }
    for (std::size_t i = 0; i < count; ++i) {
      const YamlPlace parent = parents.at(i);
      const VertexId above = find(parent, {VertexKind::numa, VertexKind::pcie_switch});
      const VertexId id = add(parent, VertexKind::nic, "nic");
      node_.vertices[id].model = group.at("model").string();
      connect(parent, id, above, EdgeKind::pcie, link);
      if (railless) continue;
      node_.vertices[id].rail = group.has("rails")
                                    ? static_cast<std::uint32_t>(group.at("rails").at(i).unsigned_integer(0, limits::kVerticesPerNode))
                                    : next_rail++;
      node_.ports.push_back({id, port});
    }
  }
}

void NodeReader::connect_nvswitch(const YamlPlace& place, const LinkClass& link) {
  if (counts_[VertexKind::nvswitch] != 0) place.fail("a second NVSwitch", "one, which stands for all planes of the node");
  const std::vector<VertexId> gpus = of_kind(VertexKind::gpu);
  const VertexId nvswitch = add(place, VertexKind::nvswitch, "nvswitch");
  for (VertexId gpu : gpus) connect(place, gpu, nvswitch, EdgeKind::nvlink, link);
}

void NodeReader::read_nvlink_pairs(const YamlPlace& place, const LinkClass& link) {
  const std::size_t count = place.list_size(std::size_t{limits::kVerticesPerNode} * 8);
  for (std::size_t i = 0; i < count; ++i) {
    const YamlPlace pair = place.at(i);
    if (pair.list_size(2) != 2) pair.fail("a list of " + std::to_string(pair.list_size(2)), "two GPUs, such as [gpu0, gpu1]");
    connect(pair, find(pair.at(0), {VertexKind::gpu}), find(pair.at(1), {VertexKind::gpu}), EdgeKind::nvlink, link);
  }
}

void NodeReader::read_nvlinks(const YamlPlace& place) {
  const std::size_t groups = place.list_size(limits::kVerticesPerNode);
  for (std::size_t g = 0; g < groups; ++g) {
    const YamlPlace group = place.at(g);
    group.expect_keys({"link", "between"}, {});
    const LinkClass& link = links_.find(group.at("link"));
    const YamlPlace between = group.at("between");
    if (between.is_list()) {
      read_nvlink_pairs(between, link);
    } else if (between.string() == "nvswitch") {
      connect_nvswitch(between, link);
    } else if (between.string() == "all-pairs") {
      const std::vector<VertexId> gpus = of_kind(VertexKind::gpu);
      // A full mesh of more GPUs than any board has would make edges by the square.
      constexpr std::size_t kMaxMesh = 64;
      if (gpus.size() > kMaxMesh) between.fail("all pairs of " + std::to_string(gpus.size()) + " GPUs", "at most 64 GPUs");
      for (std::size_t i = 0; i < gpus.size(); ++i) {
        for (std::size_t j = i + 1; j < gpus.size(); ++j) connect(between, gpus[i], gpus[j], EdgeKind::nvlink, link);
      }
    } else {
      between.fail("'" + between.string().substr(0, 60) + "'", "nvswitch, all-pairs, or a list of pairs of GPUs");
    }
  }
}

}  // namespace

Network assumed_network() {
  Network network;
  network.uplink_latency_ns = 500;
  network.uplink_source = "assumed: a spine without oversubscription";
  return network;
}

NodeTemplate read_node(const YamlPlace& place, std::string name) {
  NodeTemplate node;
  node.name = std::move(name);
  node.network = assumed_network();
  if (place.has("description")) node.description = place.at("description").string();
  const LinkClasses links(place.at("links"));
  NodeReader reader(node, links);
  reader.read_numa(place.at("numa"));
  if (place.has("switches")) reader.read_switches(place.at("switches"));
  reader.read_gpus(place.at("gpus"));
  if (place.has("nics")) reader.read_nics(place.at("nics"));
  if (place.has("nvlink")) reader.read_nvlinks(place.at("nvlink"));
  if (place.has("network")) node.network = read_network(place.at("network"), links);
  return node;
}

NodeTemplate parse_node_template(std::string_view text, const std::string& source) {
  const YamlDocument document(text, source);
  const YamlPlace root = document.root();
  root.expect_head("railweave-node");
  root.expect_keys({"format", "version", "name", "description", "links", "numa", "gpus"}, {"switches", "nics", "nvlink", "network"});
  return read_node(root, root.at("name").string());
}

}  // namespace railweave
