// Fabric + demand -> plan, as a table.
#include <gtest/gtest.h>

#include <algorithm>

#include "railweave/error.hpp"
#include "support.hpp"

namespace railweave::testing {
namespace {

struct Case {
  const char* machine;
  std::uint32_t nodes;
  GpuId src, dst;
  std::uint64_t bytes;
  Policy policy;
  // What is expected: kinds of the shares in order, how many use 0, 1, 2 relays, and the pair's speed in GB/s.
  std::vector<PathKind> kinds;
  std::array<int, 3> relays;
  double GBps;
};

using enum PathKind;
constexpr auto kRailweave = Policy::railweave;

const std::vector<Case> kCases{
    // A mesh pair uses its own links and both relays; the host path crosses sockets (22 GB/s) or stays on one (55 of 63 GB/s).
    {"h100-4gpu-ndr", 1, 0, 2, 1024 * kMiB, kRailweave, {direct, relay, relay, host}, {1, 3, 0}, 470},
    {"h100-4gpu-ndr", 1, 0, 2, 1024 * kMiB, Policy::single_path, {direct}, {1, 0, 0}, 150},
    {"h100-4gpu-ndr", 1, 0, 2, 1024 * kMiB, Policy::nimble, {direct, relay, relay}, {1, 2, 0}, 450},
    // Small messages take one path.
    {"h100-4gpu-ndr", 1, 0, 2, 1 * kMiB, kRailweave, {direct}, {1, 0, 0}, 150},
    // Behind NVSwitch one pair has a GPU's full rate already: no relay, a little over the host.
    {"hgx-h100", 1, 0, 1, 1024 * kMiB, kRailweave, {direct, host}, {2, 0, 0}, 505},
    {"hgx-h100", 1, 0, 1, 1024 * kMiB, Policy::nimble, {direct}, {1, 0, 0}, 450},
    // Between nodes all rails, through the GPUs beside the other NICs.
    {"h100-4gpu-ndr", 2, 0, 4, 1024 * kMiB, kRailweave, {rail, rail, rail, rail}, {1, 0, 3}, 200},
    {"h100-4gpu-ndr", 2, 0, 5, 1024 * kMiB, kRailweave, {rail, rail, rail, rail}, {0, 2, 2}, 200},
    {"hgx-h100", 2, 0, 8, 1024 * kMiB, kRailweave, {rail, rail, rail, rail, rail, rail, rail, rail}, {1, 0, 7}, 400},
    // NCCL: the destination's rail, relayed at the source unless the sender has that NIC; without PXN the sender's.
    {"h100-4gpu-ndr", 2, 0, 5, 1024 * kMiB, Policy::nccl, {rail}, {0, 1, 0}, 50},
    {"h100-4gpu-ndr", 2, 0, 4, 1024 * kMiB, Policy::nccl, {rail}, {1, 0, 0}, 50},
    {"h100-4gpu-ndr", 2, 0, 4, 1024 * kMiB, Policy::single_path, {rail}, {1, 0, 0}, 50},
};

TEST(Decisions, Table) {
  for (const Case& c : kCases) {
    const Fabric fabric = machine(c.machine, c.nodes);
    PlannerSettings settings;
    settings.policy = c.policy;
    Planner planner(fabric, settings);
    const Plan& plan = planner.plan(one_pair(fabric.gpu_count(), c.src, c.dst, c.bytes), LinkState(fabric));
    const std::string what = std::string(c.machine) + " x" + std::to_string(c.nodes) + ", " + std::string(to_string(c.policy)) + ", " +
                             std::to_string(c.src) + " -> " + std::to_string(c.dst);
    std::vector<PathKind> kinds;
    std::array<int, 3> relays{};
    for (const Share& share : plan.shares) {
      kinds.push_back(share.route.kind);
      ++relays[share.route.relays()];
    }
    auto expected = c.kinds;
    std::sort(kinds.begin(), kinds.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(kinds, expected) << what;
    if (c.kinds.front() == rail) {
      EXPECT_EQ(relays, c.relays) << what;
    }
    EXPECT_NEAR(static_cast<double>(c.bytes) / plan.z_seconds / 1e9 / c.GBps, 1, 0.03) << what;
  }
}

// The emulated lab without GPUs: a node's ranks share host memory and each has one NIC.
Fabric lab(std::uint32_t nodes, std::uint32_t gpus) {
  FabricBuilder builder("lab");
  std::vector<VertexId> leaves;
  for (std::uint32_t r = 0; r < gpus; ++r) {
    leaves.push_back(builder.add_vertex({VertexKind::leaf, kNone, r, r, "leaf" + std::to_string(r), 0, 0, 0, false, "", "", ""}));
  }
  for (std::uint32_t n = 0; n < nodes; ++n) {
    const std::string name = "n" + std::to_string(n);
    const NodeId node = builder.add_node(name);
    const VertexId memory = builder.add_vertex({VertexKind::numa, node, 0, kNone, name + "/numa0", 0, 0, 0, false, "", "", ""});
    for (std::uint32_t g = 0; g < gpus; ++g) {
      const std::string i = std::to_string(g);
      const VertexId gpu = builder.add_vertex({VertexKind::gpu, node, g, kNone, name + "/gpu" + i, 0, 0, 0, false, "", "", ""});
      const VertexId nic = builder.add_vertex({VertexKind::nic, node, g, g, name + "/nic" + i, 0, 0, 0, false, "", "", ""});
      builder.add_link(gpu, memory, EdgeKind::pcie, 10'000'000'000, 100, "test");
      builder.add_link(memory, nic, EdgeKind::pcie, 10'000'000'000, 100, "test");
      builder.add_link(nic, leaves[g], EdgeKind::rail, 50'000'000, 1000, "test");
    }
  }
  return std::move(builder).build();
}

TEST(Decisions, InTheLabEachNicBelongsToOneRankAndTheOthersRelayThroughIt) {
  const Fabric fabric = lab(2, 4);
  Planner planner(fabric, {});
  const Plan& plan = planner.plan(one_pair(8, 1, 6, 64 * kMiB), LinkState(fabric));
  ASSERT_EQ(plan.shares.size(), 4u);
  for (const Share& share : plan.shares) {
    const Route& r = share.route;
    const std::uint32_t rail_number = fabric.vertex(r.nic_src).rail;
    EXPECT_EQ(r.kind, rail);
    EXPECT_EQ(r.relay_src, rail_number == 1 ? kNone : rail_number);
    EXPECT_EQ(r.relay_dst, rail_number == 2 ? kNone : 4 + rail_number);
    EXPECT_EQ(share.bytes, 16 * kMiB);
  }
}

// Rails of 50 MB/s take as long for 1 KiB as those of the paper for 1 MiB, so two chunks are worth two rails.
TEST(Decisions, WhichMessagesStayWholeIsATimeOnTheFastestRail) {
  const Fabric slow = lab(2, 4), fast = machine("h100-4gpu-ndr", 2);
  PlannerSettings settings;
  settings.chunk_bytes = kMiB / 8;
  Planner planner(slow, settings);
  EXPECT_EQ(planner.plan(one_pair(8, 1, 6, kMiB), LinkState(slow)).shares.size(), 4u);
  EXPECT_EQ(planner.plan(one_pair(8, 1, 6, kMiB / 4), LinkState(slow)).shares.size(), 2u);
  EXPECT_EQ(planner.plan(one_pair(8, 1, 6, kMiB / 4 - 1), LinkState(slow)).shares.size(), 1u);
  EXPECT_EQ(planner.split_min_bytes(1, 6), kMiB / 4);
  EXPECT_EQ(planner.split_min_bytes(1, 2), kMiB + 1) << "inside a node";

  settings.chunk_bytes = 64;
  Planner fine(slow, settings);
  fine.plan(one_pair(8, 1, 6, kMiB), LinkState(slow));
  EXPECT_EQ(fine.split_min_bytes(1, 6), kMiB / 1000 + 1);

  Planner of_fast(fast, settings);
  EXPECT_EQ(of_fast.plan(one_pair(8, 1, 6, kMiB), LinkState(fast)).shares.size(), 1u);
  EXPECT_GT(of_fast.plan(one_pair(8, 1, 6, kMiB + 1), LinkState(fast)).shares.size(), 1u);
  LinkState half(fast);
  for (EdgeId e = 0; e < fast.edges().size(); ++e) {
    if (fast.edges()[e].kind == EdgeKind::rail) half.set_rate(e, fast.edges()[e].capacity_Bps / 2);
  }
  of_fast.plan(one_pair(8, 1, 6, kMiB), half);
  EXPECT_EQ(of_fast.split_min_bytes(1, 6), kMiB / 2 + 1);
}

TEST(Decisions, WithoutASpineSinglePathUsesTheReceiversRail) {
  const Fabric fabric = lab(2, 4);
  PlannerSettings settings;
  settings.policy = Policy::single_path;
  Planner planner(fabric, settings);
  const Plan& plan = planner.plan(one_pair(8, 1, 6, 64 * kMiB), LinkState(fabric));
  ASSERT_EQ(plan.shares.size(), 1u);
  EXPECT_EQ(fabric.vertex(plan.shares[0].route.nic_dst).name, "n1/nic2");
  EXPECT_EQ(plan.shares[0].route.relay_src, 2u);
  EXPECT_EQ(plan.shares[0].route.relay_dst, kNone);
}

TEST(Decisions, UcxStripesHaveBytes) {
  const Fabric fabric = machine("hgx-h100", 2);
  PlannerSettings settings;
  settings.policy = Policy::ucx_rails;
  settings.multipath_min_bytes = 0;
  settings.ucx_rails = 4;
  Planner planner(fabric, settings);
  for (const std::uint64_t bytes : {1, 3, 4, 5}) {
    const Plan& plan = planner.plan(one_pair(16, 0, 9, bytes), LinkState(fabric));
    EXPECT_EQ(plan.shares.size(), std::min<std::uint64_t>(bytes, 4));
    EXPECT_TRUE(std::all_of(plan.shares.begin(), plan.shares.end(), [](const Share& share) { return share.bytes != 0; })) << bytes;
    EXPECT_EQ((delivered(plan)[{0, 9}]), bytes);
  }
}

TEST(BadInput, IsNamed) {
  const Fabric fabric = machine("h100-4gpu-ndr", 2);
  Planner planner(fabric, {});
  const LinkState links(fabric);
  const std::uint64_t id = planner.plan(one_pair(8, 0, 1, 64 * kMiB), links).id;
  EXPECT_THROW(planner.plan(Demand(4), links), DemandError);
  EXPECT_THROW(planner.shares(0, 8), DemandError);
  EXPECT_THROW(planner.expand({rail, 0, 1, kNone, kNone, 999999, 0}), UnreachableError);
  EXPECT_THROW(planner.expand({direct, 0, 99, kNone, kNone, kNone, kNone}), UnreachableError);

  LinkState dead(fabric);
  for (EdgeId e = 0; e < fabric.edges().size(); ++e) dead.set_down(e, true);
  try {
    planner.plan(one_pair(8, 3, 5, kMiB), dead);
    FAIL() << "a plan over dead links";
  } catch (const UnreachableError& error) {
    EXPECT_NE(std::string(error.what()).find("GPU 3 (node0/gpu3) to GPU 5 (node1/gpu1)"), std::string::npos) << error.what();
  }
  EXPECT_EQ(planner.shares(0, 1).empty(), false) << "the previous plan still holds";
  EXPECT_EQ(planner.plan(one_pair(8, 0, 1, 64 * kMiB), links).id, id);
}

TEST(BadInput, BytesNearTwoToTheSixtyThreeAreCounted) {
  for (const auto& [name, nodes] : machines()) {
    const Fabric fabric = machine(name, nodes);
    const std::uint32_t ranks = fabric.gpu_count();
    Planner planner(fabric, {});
    const std::uint64_t huge = (std::uint64_t{1} << 63) - 1;
    const GpuId last = ranks - 1;
    const Plan& plan = planner.plan(one_pair(ranks, 0, last, huge), LinkState(fabric));
    EXPECT_EQ((delivered(plan)[{0, last}]), huge);
    EXPECT_GT(plan.z_seconds, 1e6);
    Demand two(ranks);
    two.set(0, last, huge / 2);
    two.set(last, 0, huge / 2);
    EXPECT_EQ((delivered(planner.plan(two, LinkState(fabric)))[{last, 0}]), huge / 2);
  }
}

TEST(BadInput, NothingToMoveIsAPlan) {
  const Fabric fabric = machine("hgx-h100", 2);
  Planner planner(fabric, {});
  Demand demand(16);
  demand.set(3, 3, kMiB);  // stays in place
  const Plan& plan = planner.plan(demand, LinkState(fabric));
  EXPECT_TRUE(plan.shares.empty());
  EXPECT_EQ(plan.z_seconds, 0);
  EXPECT_EQ(plan.bottleneck, kNone);
}

}  // namespace
}  // namespace railweave::testing
