#include "railweave/fabric/node_template.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reading.hpp"

namespace railweave {
namespace {

const std::string kText = R"(format: railweave-node
version: 1
name: test
description: two sockets
links:
  pcie: {pcie: gen5 x16, latency: 250ns, source: data sheet}
  nv: {nvlink: gen4 x6, source: data sheet}
  port: {capacity: 400Gbit/s, latency: 1us, source: data sheet}
  dram: {capacity: 307.2GB/s, source: data sheet}
numa: {count: 2, memory: dram, socket: port}
switches:
  - {link: pcie, at: [numa0, numa1]}
gpus:
  - {model: H100, link: pcie, gdr: true, at: [switch0, switch1]}
  - {model: H100, link: pcie, gdr: false, injection: nv, at: [numa1]}
nics:
  - {model: CX7, link: pcie, port: port, at: [switch0, switch1], rails: [1, 0]}
  - {model: CX7, link: pcie, port: port, at: [numa0], rails: none}
nvlink:
  - {link: nv, between: all-pairs}
)";

const Vertex& part(const NodeTemplate& node, const std::string& name) {
  const auto found = std::find_if(node.vertices.begin(), node.vertices.end(), [&](const Vertex& v) { return v.name == name; });
  EXPECT_NE(found, node.vertices.end()) << name;
  return *found;
}

const Edge* edge(const NodeTemplate& node, const std::string& from, const std::string& to) {
  for (const Edge& e : node.edges) {
    if (node.vertices[e.from].name == from && node.vertices[e.to].name == to) return &e;
  }
  return nullptr;
}

TEST(NodeTemplate, PartsHangWhereTheFileSays) {
  const NodeTemplate node = parse_node_template(kText, "test.yaml");
  EXPECT_EQ(node.name, "test");
  EXPECT_EQ(part(node, "numa1").through_Bps, 307'200'000'000);
  EXPECT_TRUE(part(node, "gpu0").gdr);
  EXPECT_FALSE(part(node, "gpu2").gdr);
  EXPECT_EQ(part(node, "gpu2").egress_Bps, 150'000'000'000);
  EXPECT_EQ(part(node, "nic0").rail, 1);
  EXPECT_EQ(part(node, "nic2").rail, kNone);
  EXPECT_EQ(node.ports.size(), 2) << "a NIC off the rails has no port";
  for (const auto& [from, to] :
       {std::pair{"gpu0", "switch0"}, {"switch1", "numa1"}, {"gpu2", "numa1"}, {"nic2", "numa0"}, {"numa0", "numa1"}, {"gpu0", "gpu2"}}) {
    const Edge *there = edge(node, from, to), *back = edge(node, to, from);
    ASSERT_TRUE(there != nullptr && back != nullptr) << from << " - " << to;
    EXPECT_EQ(there->capacity_Bps, back->capacity_Bps);
    EXPECT_EQ(there->source, "data sheet");
  }
  EXPECT_EQ(edge(node, "gpu0", "switch0")->capacity_Bps, 63'015'384'615);
  EXPECT_EQ(edge(node, "gpu0", "switch0")->latency_ns, 250);
  EXPECT_EQ(edge(node, "gpu0", "gpu1")->kind, EdgeKind::nvlink);
}

struct Fault {
  const char* from;
  const char* to;
  const char* error;  // the whole text after "test.yaml"
};

TEST(NodeTemplate, ErrorsNameLineColumnPathAndWhatWasExpected) {
  const std::vector<Fault> kFaults = {
      {"railweave-node", "railweave", ":1:9: format: 'railweave'; expected railweave-node"},
      {"version: 1", "version: 3", ":2:10: version: '3'; expected 1"},
      {"version: 1", "version: 2\nlicence: x", ":2:10: version: '2'; expected 1"},
      {"gen5 x16", "gen9 x16", ":6:16: links.pcie.pcie: 'gen9 x16'; expected a PCIe link such as gen5 x16 (gen1 to gen6, x1 to x32)"},
      {"gen4 x6", "gen4", ":7:16: links.nv.nvlink: 'gen4'; expected NVLinks such as gen4 x18 (gen1 to gen5)"},
      {"400Gbit/s", "0Gbit/s",
       ":8:20: links.port.capacity: a capacity of 0; expected a rate above 0; leave out a link that carries nothing"},
      {"400Gbit/s", "400", ":8:20: links.port.capacity: '400'; expected a rate such as 400Gbit/s or 50GB/s"},
      {"400Gbit/s", "2000000TB/s", ":8:20: links.port.capacity: '2000000TB/s'; expected at most 1152921504606846976 B/s"},
      {"latency: 1us", "latency: 1", ":8:40: links.port.latency: '1'; expected a time such as 500ns or 1.5us"},
      {"{capacity: 400Gbit/s,", "{capacity: 400Gbit/s, pcie: gen5 x16,",
       ":8:9: links.port: 2 of the keys pcie, nvlink, capacity; expected exactly one of them"},
      {"latency: 1us, source: data sheet", "latency: 1us", ":8:9: links.port: key 'source' is missing; expected all of source"},
      {"count: 2", "count: 1000000000", ":10:15: numa.count: '1000000000'; expected a whole number from 1 to 64"},
      {", socket: port", "",
       ":10:7: numa: 2 NUMA nodes and no key 'socket'; expected 'socket', the link between each two of them, where there are several"},
      {"memory: dram", "memory: hbm", ":10:26: numa.memory: 'hbm'; expected one of the links dram, nv, pcie, port"},
      {"[numa0, numa1]", "[numa0, numa2]", ":12:30: switches[0].at[1]: 'numa2'; expected one of numa0, numa1, switch0"},
      {"gdr: true", "gdr: yes", ":14:36: gpus[0].gdr: 'yes'; expected true or false"},
      {"at: [switch0, switch1], rails", "at: [switch0, gpu0], rails",
       ":17:56: nics[0].at[1]: 'gpu0'; expected one of numa0, numa1, switch0, switch1"},
      {"rails: [1, 0]", "rails: [1]", ":17:73: nics[0].rails: 1 rails; expected one for each of the 2 NICs in 'at'"},
      {"rails: none", "rails: off", ":18:62: nics[1].rails: a word; expected a list of rail numbers, or the word none"},
      {"all-pairs", "everywhere", ":20:25: nvlink[0].between: 'everywhere'; expected nvswitch, all-pairs, or a list of pairs of GPUs"},
      {"all-pairs", "[[gpu0, gpu0]]", ":20:26: nvlink[0].between[0]: a link from gpu0 to itself; expected two different ends"},
      {"all-pairs", "[[gpu0, gpu1], [gpu1, gpu0]]",
       ":20:40: nvlink[0].between[1]: a second link between gpu1 and gpu0; expected one link with the summed capacity"},
      {"all-pairs", "[[gpu0]]", ":20:26: nvlink[0].between[0]: a list of 1; expected two GPUs, such as [gpu0, gpu1]"},
      {"\nnvlink:", "\nnvlinks:",
       ":19:1: unknown key 'nvlinks'; expected one of format, version, name, description, links, numa, gpus, switches, nics, nvlink, "
       "network"},
      {"name: test", "name: test\nname: again", ":4:1: the key 'name' stands twice; expected each key once"},
      {"name: test", "name: [", ":5:6: not YAML: end of sequence flow not found"},
  };
  for (const Fault& fault : kFaults) {
    const std::string text = replaced(kText, fault.from, fault.to);
    EXPECT_EQ(parse_error([&] { parse_node_template(text, "test.yaml"); }), std::string("test.yaml") + fault.error) << fault.from;
  }
}

TEST(NodeTemplate, HostileTextsAreRefusedByNamedLimits) {
  const auto error_of = [](const std::string& text) { return parse_error([&] { parse_node_template(text, "x"); }); };
  EXPECT_NE(error_of(std::string(100'000, '[')).find("values nested more than 32 deep"), std::string::npos);
  std::string indented;
  for (int i = 0; i < 2'000; ++i) indented += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  EXPECT_NE(error_of(indented).find("x"), std::string::npos);
  EXPECT_NE(error_of(std::string(2U << 20U, '#')).find("at most 1048576"), std::string::npos);
  EXPECT_NE(error_of("").find("an empty document"), std::string::npos);
  EXPECT_NE(error_of(",a: b").find("x"), std::string::npos);  // yaml-cpp's LoadAll never returns from this
  EXPECT_NE(error_of("a: 1\n---\nb: 1\n").find("more than one YAML document"), std::string::npos);
  // Nine levels of ten aliases each would be 10^9 values.
  std::string bomb = "l0: &l0 [x, x]\n";
  for (int i = 1; i < 10; ++i) {
    bomb += "l" + std::to_string(i) + ": &l" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += std::string(j == 0 ? "" : ", ") + "*l" + std::to_string(i - 1);
    bomb += "]\n";
  }
  EXPECT_NE(error_of(bomb).find("unknown key"), std::string::npos);
  // Parts of one node that a small file multiplies through aliases.
  std::string many = kText;
  std::string list = "&many [numa0";
  for (int i = 0; i < 200; ++i) list += ", numa0";
  list += "]";
  many = replaced(many, "at: [numa0, numa1]}", "at: " + list + "}");
  for (int i = 0; i < 40; ++i) many = replaced(many, "gpus:\n", "  - {link: pcie, at: *many}\ngpus:\n");
  EXPECT_NE(error_of(many).find("more than 4096 parts in one node"), std::string::npos);
}

}  // namespace
}  // namespace railweave
