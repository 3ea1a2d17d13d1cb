// Which NICs ranks use. tests/python/advise/test_mapping.py compares with plain enumeration.
#include "railweave/planner/nic_mapping.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "support.hpp"

namespace railweave::testing {
namespace {

struct Node {
  explicit Node(const std::string& name) : fabric(machine(name, 1)) {
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

TEST(NicMapping, RefusesGpusWithoutAWay) {
  Node node("xe9680-4hca");
  std::fill(node.ways[3].begin(), node.ways[3].end(), std::nullopt);
  EXPECT_THROW(node.map(), std::invalid_argument);
  node.ways.pop_back();
  EXPECT_THROW(node.map(), std::invalid_argument);
}

}  // namespace
}  // namespace railweave::testing
