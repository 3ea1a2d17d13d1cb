#include "railweave/model/plan_flows.hpp"

#include <gtest/gtest.h>

#include "railweave/model/simulation.hpp"

namespace railweave {
namespace {

constexpr std::uint64_t kGBps = 1'000'000'000u;

// Three GPUs in a row: 0 - 1 at 4 GB/s, 1 - 2 at 2 GB/s; nothing between 0 and 2.
struct Row {
  Fabric fabric = build();
  LinkState links{fabric};

  static Fabric build() {
    FabricBuilder builder("row");
    const NodeId node = builder.add_node("node0");
    std::vector<VertexId> gpus;
    for (std::uint32_t i = 0; i < 3; ++i) {
      Vertex vertex;
      vertex.kind = VertexKind::gpu;
      vertex.node = node;
      vertex.index = i;
      vertex.name = "node0/gpu" + std::to_string(i);
      gpus.push_back(builder.add_vertex(vertex));
    }
    builder.add_link(gpus[0], gpus[1], EdgeKind::nvlink, 4 * kGBps, 700, "test");
    builder.add_link(gpus[1], gpus[2], EdgeKind::nvlink, 2 * kGBps, 300, "test");
    return std::move(builder).build();
  }

  Path path(std::vector<EdgeId> edges) const {
    Path path;
    for (const EdgeId id : edges) path.latency_ns += fabric.edge(id).latency_ns;
    path.edges = std::move(edges);
    return path;
  }
  EdgeId edge(GpuId from, GpuId to) const { return fabric.find_edge(fabric.gpu(from), fabric.gpu(to)); }
};

TEST(StartUp, OneStageWaitsForItsLatencyOnly) {
  const Row row;
  EXPECT_EQ(startup_ns(row.path({row.edge(0, 1)}), 1 << 20, 1 << 18, row.fabric, row.links), 700u);
}

TEST(StartUp, ARelayAddsTheTimeOfAChunkOnTheFasterStage) {
  const Row row;
  const Path path = row.path({row.edge(0, 1), row.edge(1, 2)});
  EXPECT_EQ(startup_ns(path, 1 << 30, 400'000, row.fabric, row.links), 1000u + 100'000u);  // 400 kB at 4 GB/s
}

TEST(StartUp, AMessageSmallerThanAChunkIsOneChunk) {
  const Row row;
  const Path path = row.path({row.edge(0, 1), row.edge(1, 2)});
  EXPECT_EQ(startup_ns(path, 4000, 400'000, row.fabric, row.links), 1000u + 1000u);
}

TEST(StartUp, MeasuredRatesCount) {
  Row row;
  row.links.set_rate(row.edge(0, 1), kGBps);  // now the slower stage; the other takes 200 µs a chunk
  const Path path = row.path({row.edge(0, 1), row.edge(1, 2)});
  EXPECT_EQ(startup_ns(path, 1 << 30, 400'000, row.fabric, row.links), 1000u + 200'000u);
}

TEST(PlanFlows, EachShareIsAFlowOverTheFabricsResources) {
  const Row row;
  PlannerSettings settings;
  Planner planner(row.fabric, settings);
  Demand demand(3);
  demand.set(0, 2, 2 * kGBps);
  demand.set(1, 2, kGBps);
  const Plan& plan = planner.plan(demand, row.links);
  const Flows flows = plan_flows(plan, planner, settings.chunk_bytes, row.fabric, row.links);
  ASSERT_EQ(flows.size(), plan.shares.size());
  ASSERT_EQ(flows.capacities_Bps().size(), row.fabric.resources().size());
  const std::vector<double> load = flows.load();
  for (ResourceId r = 0; r < load.size(); ++r) EXPECT_DOUBLE_EQ(load[r], static_cast<double>(plan.load[r])) << row.fabric.describe(r);
  const Simulation result = simulate(flows);
  EXPECT_NEAR(result.seconds(), 1.5, 1e-3);  // 3 GB over the 2 GB/s link
  EXPECT_NEAR(result.load_bound_seconds(), plan.z_seconds, 1e-12);
}

}  // namespace
}  // namespace railweave
