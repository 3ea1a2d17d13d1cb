// Which NICs ranks use. tests/python/advise/test_mapping.py compares with plain enumeration.
#include "railweave/planner/nic_mapping.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "support.hpp"

namespace railweave::testing {
namespace {

struct Node {
  explicit Node(const std::string& name) : Node(machine(name, 1)) {}

  explicit Node(Fabric given) : fabric(std::move(given)) {
    for (const VertexId gpu : fabric.gpus_of(0)) gpus.push_back({gpu, fabric.vertex(gpu).gdr});
    for (const VertexId nic : fabric.nics_of(0)) {
      std::uint64_t capacity = 0;
      for (const EdgeId e : fabric.out_edges(nic)) capacity += fabric.edge(e).kind == EdgeKind::rail ? fabric.edge(e).capacity_Bps : 0;
      if (capacity == 0) continue;
      nics.push_back({nic, capacity});
      vertices.push_back(nic);
    }
    ways = nic_ways(fabric, gpus, vertices);
  }

  NicMapping map(bool shortest_first = false, std::uint64_t most_steps = 100'000) const {
    return map_nics(fabric, 0, gpus, nics, ways, {shortest_first, most_steps});
  }

  Fabric fabric;
  std::vector<RankGpu> gpus;
  std::vector<RankNic> nics;
  std::vector<VertexId> vertices;
  std::vector<std::vector<std::optional<NicWay>>> ways;
};

TEST(NicMapping, GivesEachGpuTheNicOfItsSwitch) {
  const Node node("xe9680-4hca");
  const NicMapping found = node.map();
  ASSERT_EQ(found.nics.size(), 8u);
  for (std::size_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(found.nics[rank], std::vector<std::uint32_t>{static_cast<std::uint32_t>(rank / 2)});
    EXPECT_EQ(node.ways[rank][rank / 2]->distance, Distance::pix);
  }
  EXPECT_LE(found.seconds_per_byte, found.nearest_seconds_per_byte);
}

TEST(NicMapping, PrefersShortWaysForLatency) {
  const Node node("charisma-ab");
  const std::vector<std::uint32_t> first{0};
  for (const auto& nics : node.map(true).nics) EXPECT_EQ(nics, first);
  const NicMapping found = node.map();
  EXPECT_EQ(std::count(found.nics.begin(), found.nics.end(), first), 2);
}

TEST(NicMapping, StopsWithTheBestThatItFound) {
  const Node node("hgx-h100");
  const NicMapping all = node.map(), cut = node.map(false, 8);
  EXPECT_GT(all.steps, 8u);
  EXPECT_EQ(cut.steps, 8u);
  EXPECT_LE(all.seconds_per_byte, cut.seconds_per_byte);
}

TEST(NicMapping, StagesThroughTheMemoryOfTheGpusOwnSocket) {
  const Node node("xe9680-4hca");
  const RankGpu staged{node.gpus[0].vertex, false}, direct{node.gpus[0].vertex, true};
  const auto loads_memory = [&](const RankGpu& gpu) {
    const ResourceId memory = node.fabric.vertex_resource(numa_above(node.fabric, gpu.vertex), Resource::Kind::vertex_through);
    const auto ways = nic_ways(node.fabric, std::vector{gpu}, node.vertices);
    const std::vector<ResourceId>& resources = ways[0][0]->resources;
    return memory != kNone && std::find(resources.begin(), resources.end(), memory) != resources.end();
  };
  EXPECT_TRUE(loads_memory(staged));
  EXPECT_FALSE(loads_memory(direct));
}

// `gpus` and `nics` of each of four switches, two a socket.
std::string switches_with(std::size_t gpus, std::size_t nics) {
  const auto each = [](std::size_t count) {
    std::string places;
    for (std::size_t part = 0; part < 4; ++part) {
      for (std::size_t i = 0; i < count; ++i) places += (places.empty() ? "switch" : ", switch") + std::to_string(part);
    }
    return places;
  };
  return "format: railweave-node\nversion: 1\nname: crafted\ndescription: crafted\nlinks:\n"
         "  wide: {pcie: gen5 x16, latency: 100ns, source: test}\n"
         "  port: {capacity: 100Gbit/s, latency: 1us, source: test}\n"
         "  upi: {capacity: 100GB/s, latency: 150ns, source: test}\n"
         "  ram: {capacity: 400GB/s, source: test}\n"
         "numa: {count: 2, memory: ram, socket: upi}\n"
         "switches: [{link: wide, at: [numa0, numa0, numa1, numa1]}]\n"
         "gpus: [{model: H100, link: wide, gdr: true, at: [" +
         each(gpus) +
         "]}]\n"
         "nics: [{model: EFA, link: wide, port: port, at: [" +
         each(nics) + "]}]\n";
}

TEST(NicMapping, ManyNicsOfEachGpusOwnNeedNoSearch) {
  for (const std::size_t gpus : {1u, 2u}) {  // C(32, 8) and C(32, 4) choices a rank
    const Node node(parse_fabric(switches_with(gpus, 8), "crafted.yaml", {1, {RAILWEAVE_TEMPLATES}}));
    for (const bool shortest_first : {false, true}) {
      if (gpus == 2 && shortest_first) continue;
      const NicMapping found = node.map(shortest_first);
      EXPECT_LT(found.steps, 100u);
      std::vector<std::uint32_t> used;
      for (std::size_t rank = 0; rank < found.nics.size(); ++rank) {
        for (const std::uint32_t nic : found.nics[rank]) {
          EXPECT_EQ(node.ways[rank][nic]->distance, Distance::pix);
          used.push_back(nic);
        }
      }
      std::sort(used.begin(), used.end());
      EXPECT_EQ(used.size(), 32u);
      EXPECT_EQ(std::unique(used.begin(), used.end()), used.end());
    }
  }
}

TEST(NicMapping, SharesOutWhereChoicesAreTooMany) {
  Node node(parse_fabric(switches_with(1, 8), "crafted.yaml", {1, {RAILWEAVE_TEMPLATES}}));
  node.ways[0][0].reset();  // so that what is shared out is not known to be the best
  const NicMapping found = node.map();
  EXPECT_EQ(found.steps, 100'000u);
  for (const auto& nics : found.nics) EXPECT_EQ(nics.size(), 8u);
}

TEST(NicMapping, RefusesResourcesThatTheFabricLacks) {
  Node node("xe9680-4hca");
  node.ways[0][0]->resources.push_back(static_cast<ResourceId>(node.fabric.resources().size()));
  EXPECT_THROW(node.map(), std::invalid_argument);
}

TEST(NicMapping, RefusesGpusWithoutAWay) {
  Node node("xe9680-4hca");
  std::fill(node.ways[3].begin(), node.ways[3].end(), std::nullopt);
  EXPECT_THROW(node.map(), std::invalid_argument);
  node.ways.pop_back();
  EXPECT_THROW(node.map(), std::invalid_argument);
}

}  // namespace
}  // namespace railweave::testing
