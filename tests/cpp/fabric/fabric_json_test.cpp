#include "railweave/fabric/fabric_json.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reading.hpp"

namespace railweave {
namespace {

const std::string kText = R"({
  "format": "railweave-fabric",
  "version": 1,
  "name": "two nodes \u00fc",
  "nodes": ["a", "b"],
  "vertices": [
    {"name": "a/gpu0", "kind": "gpu", "node": "a", "index": 0, "gdr": true, "model": "H100", "bus_id": "0000:1b:00.0",
     "egress_Bps": 450000000000, "ingress_Bps": 450000000001, "source": "data sheet"},
    {"name": "a/nic0", "kind": "nic", "node": "a", "index": 0, "rail": 3},
    {"name": "b/numa0", "kind": "numa", "node": "b", "index": 0, "through_Bps": 307200000000},
    {"name": "leaf0", "kind": "leaf", "index": 0, "rail": 3},
    {"name": "spine0", "kind": "spine", "index": 0}
  ],
  "edges": [
    {"from": "a/gpu0", "to": "a/nic0", "kind": "pcie", "capacity_Bps": 1152921504606846976, "latency_ns": 250, "source": "gen5"},
    {"from": "a/nic0", "to": "leaf0", "kind": "rail", "capacity_Bps": 1, "latency_ns": 0}
  ]
})";

TEST(FabricJson, ReadsEveryField) {
  const Fabric fabric = parse_fabric_json(kText, "test.json");
  EXPECT_EQ(fabric.name(), "two nodes ü");
  EXPECT_EQ(fabric.node_count(), 2);
  const Vertex& gpu = fabric.vertex(0);
  EXPECT_EQ(gpu.kind, VertexKind::gpu);
  EXPECT_EQ(gpu.node, 0);
  EXPECT_TRUE(gpu.gdr);
  EXPECT_EQ(gpu.model, "H100");
  EXPECT_EQ(gpu.bus_id, "0000:1b:00.0");
  EXPECT_EQ(gpu.egress_Bps, 450'000'000'000);
  EXPECT_EQ(gpu.ingress_Bps, 450'000'000'001);
  EXPECT_EQ(gpu.source, "data sheet");
  EXPECT_EQ(fabric.vertex(1).rail, 3);
  EXPECT_EQ(fabric.vertex(2).through_Bps, 307'200'000'000);
  EXPECT_EQ(fabric.vertex(4).node, kNone);
  EXPECT_EQ(fabric.vertex(4).rail, kNone);
  EXPECT_EQ(fabric.edge(0).capacity_Bps, std::uint64_t{1} << 60U);
  EXPECT_EQ(fabric.edge(0).latency_ns, 250);
  EXPECT_EQ(fabric.edge(1).kind, EdgeKind::rail);
}

TEST(FabricJson, RoundTripIsExact) {
  const Fabric fabric = parse_fabric_json(kText, "test.json");
  const std::string written = format_fabric_json(fabric);
  const Fabric again = parse_fabric_json(written, "written.json");
  EXPECT_EQ(format_fabric_json(again), written);
  ASSERT_EQ(again.vertices().size(), fabric.vertices().size());
  for (VertexId v = 0; v < fabric.vertices().size(); ++v) {
    EXPECT_EQ(again.vertex(v).name, fabric.vertex(v).name);
    EXPECT_EQ(again.vertex(v).rail, fabric.vertex(v).rail);
    EXPECT_EQ(again.vertex(v).ingress_Bps, fabric.vertex(v).ingress_Bps);
  }
  EXPECT_EQ(again.edge(0).capacity_Bps, fabric.edge(0).capacity_Bps);
}

TEST(FabricJson, KeepsWhatATopologyFileSaysBeyondTheGraph) {
  const std::string text = replaced(kText, "\"rail\": 3}", R"("rail": 3, "attributes": {"net.guid": "0x1f", "net.name": "mlx5_0"}})");
  const Fabric fabric = parse_fabric_json(text, "test.json");
  ASSERT_NE(fabric.vertex(1).attributes, nullptr);
  EXPECT_EQ(*fabric.vertex(1).attributes, (Attributes{{"net.guid", "0x1f"}, {"net.name", "mlx5_0"}}));
  EXPECT_EQ(fabric.vertex(0).attributes, nullptr);
  const std::string written = format_fabric_json(fabric);
  EXPECT_NE(written.find(R"("version": 2)"), std::string::npos);
  EXPECT_EQ(*parse_fabric_json(written, "written.json").vertex(1).attributes, *fabric.vertex(1).attributes);
}

struct Fault {
  const char* from;
  const char* to;
  const char* error;  // the whole text after "test.json"
};

TEST(FabricJson, ErrorsNameLineColumnPathAndWhatWasExpected) {
  const std::vector<Fault> kFaults = {
      {"\"railweave-fabric\"", "\"other\"", ":2:13: format: 'other'; expected 'railweave-fabric'"},
      {"\"version\": 1", "\"version\": 3",
       ":3:14: version: version 3; expected 2; write the file again with this release's `railweave topo --json`"},
      {"\"version\": 1", "\"version\": 3, \"licence\": 0",
       ":3:14: version: version 3; expected 2; write the file again with this release's `railweave topo --json`"},
      {"\"version\": 1,", "", ":1:1: key 'version' is missing; expected all of format, version, name, nodes, vertices, edges"},
      {"\"gdr\": true", "\"gdr\": 1", ":7:71: vertices[0].gdr: 1; expected true or false"},
      {"\"kind\": \"nic\"", "\"kind\": \"hca\"",
       ":9:32: vertices[1].kind: 'hca'; expected one of gpu, nic, pcie_switch, numa, nvswitch, leaf, spine"},
      {"\"node\": \"b\"", "\"node\": \"c\"", ":10:49: vertices[2].node: 'c'; expected the name of a node"},
      {"\"node\": \"b\", ", "", ":10:5: vertices[2]: a numa without the key 'node'; expected the name of its host"},
      {"\"kind\": \"spine\"", "\"kind\": \"spine\", \"node\": \"a\"",
       ":12:5: vertices[4]: a spine with the key 'node'; expected none: it belongs to no host"},
      {"\"leaf0\", \"kind\"", "\"a/nic0\", \"kind\"", ":11:14: vertices[3].name: 'a/nic0' is the name of vertex 1; expected unique names"},
      {"\"through_Bps\": 307200000000", "\"through_Bps\": 0",
       ":10:81: vertices[2].through_Bps: 0; expected a whole number from 1 to 1152921504606846976"},
      {"1152921504606846976", "0", ":15:72: edges[0].capacity_Bps: 0; expected a whole number from 1 to 1152921504606846976"},
      {"1152921504606846976", "-1", ":15:72: edges[0].capacity_Bps: -1; expected a whole number from 1 to 1152921504606846976"},
      {"1152921504606846976", "1e9", ":15:72: edges[0].capacity_Bps: 1000000000.0; expected a whole number from 1 to 1152921504606846976"},
      {"1152921504606846976", "99999999999999999999",
       ":15:72: edges[0].capacity_Bps: 1e+20; expected a whole number from 1 to 1152921504606846976"},
      {"\"latency_ns\": 250", "\"latency\": 250",
       ":15:104: edges[0]: unknown key 'latency'; expected one of from, to, kind, capacity_Bps, latency_ns, source"},
      {"\"to\": \"a/nic0\"", "\"to\": \"a/gpu0\"", ":15:5: edges[0]: an edge that leads to itself; expected two different vertices"},
      {"\"to\": \"a/nic0\"", "\"to\": \"a/nic1\"", ":15:30: edges[0].to: 'a/nic1'; expected the name of a vertex"},
      {"\"from\": \"a/nic0\", \"to\": \"leaf0\"", "\"from\": \"a/gpu0\", \"to\": \"a/nic0\"",
       ":16:5: edges[1]: a second edge between the same two vertices; expected one edge a direction, with the summed capacity"},
      {"\"rail\": 3},\n    {\"name\": \"b", "\"attributes\": {\"net.port\": 1}},\n    {\"name\": \"b",
       ":9:91: vertices[1].attributes.net.port: 1; expected a string"},
      {"\"rail\": 3},\n    {\"name\": \"b", "\"attributes\": {\"net\\u002eport\": 1}},\n    {\"name\": \"b",
       ":9:96: vertices[1].attributes.net.port: 1; expected a string"},
      {"[\"a\", \"b\"]", "\"a\"", ":5:12: nodes: a JSON string; expected an array"},
      {"\"index\": 0, \"gdr\"", "\"index\": 0, \"index\": 1, \"gdr\"",
       ":7:70: the key 'index' stands twice in one object; expected each key once"},
      {"\"index\": 0, \"gdr\"", "\"index\": 1e999, \"gdr\"", ":7:66: a number too large to read; expected a smaller one"},
  };
  for (const Fault& fault : kFaults) {
    const std::string text = replaced(kText, fault.from, fault.to);
    EXPECT_EQ(parse_error([&] { parse_fabric_json(text, "test.json"); }), std::string("test.json") + fault.error) << fault.from;
  }
}

TEST(FabricJson, WhatIsNotJsonNamesTheLine) {
  EXPECT_EQ(parse_error([] { parse_fabric_json("{\n  \"format\": ,\n}", "test.json"); }).substr(0, 25), "test.json:2:13: not JSON:");
  parse_error([] { parse_fabric_json("", "test.json"); });
  parse_error([] { parse_fabric_json("[]", "test.json"); });
  parse_error([] { parse_fabric_json("{\"name\": \"\xC3\"}", "test.json"); });
}

TEST(FabricJson, DeepNestingIsRefusedNotFollowed) {
  const std::string text(1'000'000, '[');
  EXPECT_EQ(parse_error([&] { parse_fabric_json(text, "deep.json"); }),
            "deep.json:1:34: values nested more than 32 deep; expected a flatter document");
}

TEST(FabricJson, AFabricWithoutGpuIsAnError) {
  const std::string text = replaced(kText, "\"kind\": \"gpu\"", "\"kind\": \"nic\"");
  EXPECT_NE(parse_error([&] { parse_fabric_json(text, "test.json"); }).find("has no GPU"), std::string::npos);
}

}  // namespace
}  // namespace railweave
