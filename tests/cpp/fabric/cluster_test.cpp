#include "railweave/fabric/cluster.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reading.hpp"

namespace railweave {
namespace {

// Two GPUs and two NICs of 100 Gbit/s.
NodeTemplate small_node() {
  return parse_node_template(R"(format: railweave-node
version: 1
name: small
description: two GPUs, two NICs
links:
  pcie: {pcie: gen4 x16, source: test}
  port: {capacity: 100Gbit/s, latency: 1us, source: test}
numa: {count: 1}
gpus: [{model: G, link: pcie, gdr: true, at: [numa0, numa0]}]
nics: [{model: N, link: pcie, port: port, at: [numa0, numa0]}]
)",
                             "small.yaml");
}

std::optional<NodeTemplate> lookup(const std::string& name) {
  if (name != "small") return std::nullopt;
  return small_node();
}

Fabric cluster(const std::string& text, std::uint32_t nodes = 0) { return parse_cluster(text, "test.yaml", lookup, nodes); }

const Edge& edge(const Fabric& fabric, const std::string& from, const std::string& to) {
  const EdgeId id = fabric.find_edge(fabric.find_vertex(from), fabric.find_vertex(to));
  EXPECT_NE(id, kNone) << from << " -> " << to;
  return fabric.edge(id == kNone ? 0 : id);
}

bool linked(const Fabric& fabric, const std::string& from, const std::string& to) {
  return fabric.find_edge(fabric.find_vertex(from), fabric.find_vertex(to)) != kNone;
}

const std::string kText = R"(format: railweave-cluster
version: 1
name: test
links:
  slow: {capacity: 400Mbit/s, latency: 2us, source: lab}
nodes:
  - {template: small, count: 4}
network:
  wiring: rail
  spine: {oversubscription: 1.5, latency: 1us, source: plan}
)";

TEST(Cluster, RailsJoinTheNicsOfOneIndex) {
  const Fabric fabric = cluster(kText);
  EXPECT_EQ(fabric.node_count(), 4);
  EXPECT_EQ(fabric.gpu_count(), 8);
  for (int n = 0; n < 4; ++n) {
    for (int rail = 0; rail < 2; ++rail) {
      const std::string nic = "node" + std::to_string(n) + "/nic" + std::to_string(rail), leaf = "leaf" + std::to_string(rail);
      EXPECT_EQ(edge(fabric, nic, leaf).capacity_Bps, 12'500'000'000);
      EXPECT_FALSE(linked(fabric, nic, "leaf" + std::to_string(1 - rail)));
      EXPECT_EQ(fabric.vertex(fabric.find_vertex(nic)).rail, fabric.vertex(fabric.find_vertex(leaf)).rail);
    }
  }
  // Four ports of 12.5 GB/s over 1.5.
  EXPECT_EQ(edge(fabric, "leaf0", "spine0").capacity_Bps, 33'333'333'333);
  EXPECT_EQ(edge(fabric, "spine0", "leaf1").latency_ns, 1'000);
  EXPECT_EQ(edge(fabric, "leaf0", "spine0").source, "plan");
}

TEST(Cluster, BlocksOfNodesHaveLeafsOfTheirOwn) {
  const Fabric fabric = cluster(replaced(kText, "wiring: rail", "wiring: rail\n  nodes_per_leaf: 3"));
  for (const auto& [nic, leaf, rail] :
       {std::tuple{"node0/nic1", "leaf1", 1U}, {"node2/nic0", "leaf0", 0U}, {"node3/nic0", "leaf2", 0U}, {"node3/nic1", "leaf3", 1U}}) {
    EXPECT_TRUE(linked(fabric, nic, leaf)) << nic;
    EXPECT_EQ(fabric.vertex(fabric.find_vertex(leaf)).rail, rail);
    EXPECT_TRUE(linked(fabric, leaf, "spine0"));
  }
  EXPECT_EQ(edge(fabric, "leaf2", "spine0").capacity_Bps, 8'333'333'333) << "one port of 12.5 GB/s over 1.5";
}

TEST(Cluster, ATreePutsAllNicsOfANodeOnOneLeaf) {
  const Fabric fabric = cluster(replaced(kText, "wiring: rail", "wiring: tree\n  nodes_per_leaf: 2"));
  for (const auto& [nic, leaf] :
       {std::pair{"node0/nic0", "leaf0"}, {"node1/nic1", "leaf0"}, {"node2/nic0", "leaf1"}, {"node3/nic1", "leaf1"}}) {
    EXPECT_TRUE(linked(fabric, nic, leaf)) << nic;
    EXPECT_EQ(fabric.vertex(fabric.find_vertex(nic)).rail, kNone);
  }
  EXPECT_EQ(fabric.find_vertex("leaf2"), kNone);
}

TEST(Cluster, PortsAndUplinksCanBeGiven) {
  const Fabric fabric = cluster(replaced(kText, "spine: {oversubscription: 1.5,", "port: slow\n  spine: {uplink: 10MB/s,"));
  EXPECT_EQ(edge(fabric, "node1/nic1", "leaf1").capacity_Bps, 50'000'000);
  EXPECT_EQ(edge(fabric, "node1/nic1", "leaf1").latency_ns, 2'000);
  EXPECT_EQ(edge(fabric, "node1/nic1", "leaf1").source, "lab");
  EXPECT_EQ(edge(fabric, "leaf0", "spine0").capacity_Bps, 10'000'000);
  const Fabric without = cluster(replaced(kText, "{oversubscription: 1.5, latency: 1us, source: plan}", "none"));
  EXPECT_EQ(without.find_vertex("spine0"), kNone);
}

TEST(Cluster, OneNodeNeedsNoSpine) {
  const Fabric fabric = cluster(kText, 1);
  EXPECT_EQ(fabric.node_count(), 1);
  EXPECT_EQ(fabric.find_vertex("spine0"), kNone);
  EXPECT_NE(fabric.find_vertex("leaf1"), kNone);
}

TEST(Cluster, OverridesChangeLinksAndParts) {
  const Fabric fabric = cluster(kText + R"(overrides:
  - {from: node0/nic1, to: leaf1, capacity: 50Gbit/s, source: ethtool}
  - {from: leaf0, to: spine0, latency: 9us, one_way: true, source: probe}
  - {vertex: node1/gpu1, gdr: false, injection: 1GB/s, source: driver}
  - {vertex: node2/numa0, memory: 2GB/s, source: stream}
)");
  EXPECT_EQ(edge(fabric, "node0/nic1", "leaf1").capacity_Bps, 6'250'000'000);
  EXPECT_EQ(edge(fabric, "leaf1", "node0/nic1").capacity_Bps, 6'250'000'000);
  EXPECT_EQ(edge(fabric, "leaf1", "node0/nic1").source, "ethtool");
  EXPECT_EQ(edge(fabric, "leaf0", "spine0").latency_ns, 9'000);
  EXPECT_EQ(edge(fabric, "spine0", "leaf0").latency_ns, 1'000);
  const Vertex& gpu = fabric.vertex(fabric.find_vertex("node1/gpu1"));
  EXPECT_FALSE(gpu.gdr);
  EXPECT_EQ(gpu.egress_Bps, 1'000'000'000);
  EXPECT_EQ(fabric.vertex(fabric.find_vertex("node2/numa0")).through_Bps, 2'000'000'000);
  EXPECT_TRUE(fabric.vertex(fabric.find_vertex("node1/gpu0")).gdr);
}

TEST(Cluster, GroupsAreNumberedThrough) {
  const Fabric fabric = cluster(replaced(kText, "  - {template: small, count: 4}", R"(  - {template: small, count: 1}
  - count: 2
    node:
      links: {p: {pcie: gen3 x8, source: s}, n: {capacity: 25GB/s, source: s}}
      numa: {count: 1}
      gpus: [{model: X, link: p, gdr: false, at: [numa0]}]
      nics: [{model: Y, link: p, port: n, at: [numa0]}])"));
  EXPECT_EQ(fabric.node_count(), 3);
  EXPECT_EQ(fabric.gpu_count(), 4);
  EXPECT_EQ(edge(fabric, "node2/nic0", "leaf0").capacity_Bps, 25'000'000'000);
  EXPECT_EQ(edge(fabric, "leaf1", "spine0").capacity_Bps, 8'333'333'333) << "only the first node has a second rail";
}

struct Fault {
  const char* from;
  const char* to;
  const char* error;
};

TEST(Cluster, ErrorsNameLineColumnPathAndWhatWasExpected) {
  const std::vector<Fault> kFaults = {
      {"template: small", "template: big",
       ":7:16: nodes[0].template: 'big'; expected the name of a template (`railweave topo --list`), or a .yaml or .xml file beside this "
       "one"},
      {"count: 4", "count: 1000000000", ":7:30: nodes[0].count: '1000000000'; expected a whole number from 1 to 16384"},
      {"count: 4", "count: 0", ":7:30: nodes[0].count: '0'; expected a whole number from 1 to 16384"},
      {"count: 4", "count: -1", ":7:30: nodes[0].count: '-1'; expected a whole number from 1 to 16384"},
      {"template: small, ", "", ":7:5: nodes[0]: neither template nor node; expected one of them"},
      {"wiring: rail", "wiring: torus", ":9:11: network.wiring: 'torus'; expected rail or tree"},
      {"oversubscription: 1.5", "oversubscription: 0",
       ":10:29: network.spine.oversubscription: '0'; expected leaf ports / uplink: above 0 and at most 1000, such as 2 or 1.5"},
      {"oversubscription: 1.5", "oversubscription: 1.5, uplink: 1GB/s",
       ":10:10: network.spine: both oversubscription and uplink; expected one of them"},
      {"wiring: rail", "wiring: rail\n  port: fast", ":10:9: network.port: 'fast'; expected one of the links slow"},
      {"name: test", "name: test\noverrides: [{from: node9/nic0, to: leaf0, source: s}]",
       ":4:20: overrides[0].from: 'node9/nic0'; expected a part of this cluster, such as node0/nic1 or leaf2"},
      {"name: test", "name: test\noverrides: [{from: node0/nic0, to: leaf1, source: s}]",
       ":4:13: overrides[0]: node0/nic0 and leaf1, which no link joins; expected the two ends of a link"},
      {"name: test", "name: test\noverrides: [{from: node0/nic0, to: leaf0, capacity: 0GB/s, source: s}]",
       ":4:53: overrides[0].capacity: a capacity of 0; expected a rate above 0; leave out a link that carries nothing"},
      {"name: test", "name: test\noverrides: [{vertex: leaf0, gdr: true, source: s}]",
       ":4:34: overrides[0].gdr: 'gdr' of a leaf; expected it only of a gpu"},
      {"nodes:\n  - {template: small, count: 4}", "nodes: []", ":6:8: nodes: an empty list; expected at least one group of nodes"},
  };
  for (const Fault& fault : kFaults) {
    const std::string text = replaced(kText, fault.from, fault.to);
    EXPECT_EQ(parse_error([&] { cluster(text); }), std::string("test.yaml") + fault.error) << fault.from;
  }
}

TEST(Cluster, HugeClustersAreRefusedBeforeTheyAreBuilt) {
  std::string groups;
  for (int i = 0; i < 3; ++i) groups += "  - {template: small, count: 16384}\n";
  const std::string text = replaced(kText, "  - {template: small, count: 4}\n", groups);
  EXPECT_EQ(parse_error([&] { cluster(text); }),
            "test.yaml: a cluster of 49152 nodes; at most 16384 are supported; expected a fabric that can exist");
  EXPECT_THROW(make_cluster("x", {{small_node(), 1'000'000'000}}, assumed_network()), FabricError);
}

TEST(Cluster, ANumberOfNodesNeedsOneGroup) {
  EXPECT_EQ(cluster(kText, 7).node_count(), 7);
  const std::string text =
      replaced(kText, "  - {template: small, count: 4}\n", "  - {template: small, count: 4}\n  - {template: small, count: 1}\n");
  EXPECT_THROW(cluster(text, 7), FabricError);
}

}  // namespace
}  // namespace railweave
