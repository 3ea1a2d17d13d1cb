// Slow links, dead links, reuse of plans and hysteresis.
#include <gtest/gtest.h>

#include "railweave/error.hpp"
#include "support.hpp"

namespace railweave::testing {
namespace {

TEST(Links, ADeadRailCarriesNothingAndASlowOneLess) {
  const Fabric fabric = machine("h100-4gpu-ndr", 2);
  const Demand demand = one_pair(8, 0, 4, 1024 * kMiB);
  const auto on_rail = [&](const Plan& plan, std::uint32_t rail) {
    std::uint64_t bytes = 0;
    for (const Share& s : plan.shares) bytes += fabric.vertex(s.route.nic_src).rail == rail ? s.bytes : 0;
    return bytes;
  };
  {
    Planner planner(fabric, {});
    LinkState links(fabric);
    take_down(fabric, links, "leaf2");
    const Plan& plan = planner.plan(demand, links);
    EXPECT_EQ(on_rail(plan, 2), 0u);
    EXPECT_NEAR(plan.z_seconds * 150e9 / static_cast<double>(demand.total()), 1, 0.01);
  }
  Planner planner(fabric, {});
  LinkState links(fabric);
  slow_to_half(fabric, links, "leaf2");
  const Plan& plan = planner.plan(demand, links);
  EXPECT_NEAR(static_cast<double>(on_rail(plan, 2)) / static_cast<double>(on_rail(plan, 1)), 0.5, 0.01);
  EXPECT_NEAR(plan.z_seconds * 175e9 / static_cast<double>(demand.total()), 1, 0.01);
}

// A link that is all but dead is as one that is down: plans took seconds over it, and told the other ways apart no more.
TEST(Links, ALinkOfNextToNoRateIsNoWay) {
  const Fabric fabric = machine("hgx-h100", 4);
  const auto plan_with = [&](const Demand& demand, const auto& change) {
    Planner planner(fabric, {});
    LinkState links(fabric);
    change(links);
    const Plan& plan = planner.plan(demand, links);
    EXPECT_LE(plan.z_seconds, plan.bound.seconds * 1.03);
    return plan.z_seconds;
  };
  Demand incast(32);
  for (GpuId src = 1; src < 32; ++src) incast.set(src, 0, 1024 * 1024 * kMiB);
  const double down = plan_with(incast, [&](LinkState& links) { take_down(fabric, links, "node0/nic0"); });
  for (const std::uint64_t times : {10'000'000u, 100'000'000u, 1'000'000'000u}) {
    const double slow = plan_with(incast, [&](LinkState& links) { slow_down(fabric, links, "node0/nic0", times); });
    EXPECT_DOUBLE_EQ(slow, down) << times;
  }
}

TEST(Links, NvlinkOfNextToNoRateIsNoWay) {
  const Fabric fabric = machine("dgx-1v", 1);
  Planner planner(fabric, {});
  const auto seconds = [&](bool down) {
    LinkState links(fabric);
    for (EdgeId e = 0; e < fabric.edges().size(); ++e) {
      const Edge& edge = fabric.edge(e);
      const bool between =
          (edge.from == fabric.gpu(0) && edge.to == fabric.gpu(1)) || (edge.from == fabric.gpu(1) && edge.to == fabric.gpu(0));
      if (between && down) links.set_down(e, true);
      if (between && !down) links.set_rate(e, edge.capacity_Bps / 1'000'000'000);
    }
    const Plan& plan = planner.plan(one_pair(8, 0, 1, 1024 * kMiB), links);
    EXPECT_LE(plan.z_seconds, plan.bound.seconds * 1.03);
    return plan.z_seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(false), seconds(true));
}

// Where there is no other way it stays one.
TEST(Links, TheOnlyWayMayBeAsSlowAsItIs) {
  const Fabric fabric = machine("hgx-h100", 2);
  Planner planner(fabric, {});
  LinkState links(fabric);
  slow_down(fabric, links, "node0/gpu0", 1'000'000'000);
  EXPECT_GT(planner.plan(one_pair(16, 0, 8, 1024 * kMiB), links).z_seconds, 1);
}

TEST(Links, CrossingsServeNodesThatLackDifferentRails) {
  const Fabric fabric = machine("hgx-h100", 2);
  LinkState links(fabric);
  take_down(fabric, links, "node0/nic0");
  take_down(fabric, links, "node1/nic1");
  Planner planner(fabric, {});
  const Plan& plan = planner.plan(one_pair(16, 2, 10, 4096 * kMiB), links);
  bool spine = false;
  for (VertexId v = 0; v < fabric.vertices().size(); ++v) spine = spine || fabric.vertex(v).kind == VertexKind::spine;
  bool crossed = false;
  for (const Share& s : plan.shares) crossed = crossed || s.route.kind == PathKind::cross_rail;
  EXPECT_EQ(crossed, spine);
  EXPECT_NEAR(plan.z_seconds * (spine ? 350e9 : 300e9) / (4096.0 * kMiB), 1, 0.02);
}

// The node's only NIC hangs on the first CPU and belongs to all four GPUs. Those of the second CPU have NVLink to the others.
TEST(Links, ADeadWayToTheOwnNicLeadsOverNvlink) {
  const Fabric fabric = machine("kisti-v100-4gpu", 2);
  LinkState links(fabric);
  take_down(fabric, links, "node0/numa1");
  Demand demand(8);
  for (GpuId far : {2u, 3u}) {
    demand.set(far, 4, 64 * kMiB);
    demand.set(5, far, 64 * kMiB);
  }
  for (const Policy policy : {Policy::single_path, Policy::nccl, Policy::ucx_rails, Policy::nimble, Policy::railweave}) {
    PlannerSettings settings;
    settings.policy = policy;
    Planner planner(fabric, settings);
    const Plan& plan = planner.plan(demand, links);
    ASSERT_EQ(plan.shares.size(), 4u) << to_string(policy);
    std::vector<GpuId> sending;
    for (const Share& share : plan.shares) {
      for (EdgeId e : planner.expand(share.route).edges) EXPECT_FALSE(links.is_down(e)) << to_string(policy);
      const GpuId relay = share.route.src < 4 ? share.route.relay_src : share.route.relay_dst;
      EXPECT_LE(relay, 1u) << to_string(policy);
      if (share.route.src < 4) sending.push_back(relay);
    }
    if (policy == Policy::railweave) {
      EXPECT_NE(sending[0], sending[1]) << "each has a relay of its own";
    }
  }
  // With no way out of the first CPU either there is none.
  take_down(fabric, links, "node0/nic0");
  Planner planner(fabric, {});
  EXPECT_THROW(planner.plan(demand, links), UnreachableError);
}

// GPUs of different CPUs have no NICs of one rail in reach, as the receivers' socket link and one NIC of the senders are dead. No NIC has
// anything to spare for another rail, and GPUs without GPUDirect do not relay over NVLink.
TEST(Links, WhereRailsDoNotLeadCrossingsDo) {
  const Fabric fabric = machine("charisma-c", 2);
  LinkState links(fabric);
  const VertexId a = fabric.find_vertex("node1/numa0"), b = fabric.find_vertex("node1/numa1");
  links.set_down(fabric.find_edge(a, b), true);
  links.set_down(fabric.find_edge(b, a), true);
  take_down(fabric, links, "node0/nic1");
  for (const Policy policy : {Policy::single_path, Policy::nccl, Policy::ucx_rails, Policy::nimble, Policy::railweave}) {
    PlannerSettings settings;
    settings.policy = policy;
    Planner planner(fabric, settings);
    for (const auto& [src, dst] : {std::pair{0u, 6u}, {6u, 0u}}) {
      const Plan& plan = planner.plan(one_pair(8, src, dst, 64 * kMiB), links);
      ASSERT_EQ(plan.shares.size(), 1u) << to_string(policy);
      EXPECT_EQ(plan.shares[0].route.kind, PathKind::cross_rail) << to_string(policy);
      for (EdgeId e : planner.expand(plan.shares[0].route).edges) EXPECT_FALSE(links.is_down(e)) << to_string(policy);
    }
  }
}

// Without a spine, where single-path's routes are among the candidates: the search alone ended 0.8% after it.
TEST(Links, NoPlanEndsAfterSinglePathsWhereTheFabricHasNoSpine) {
  const Fabric fabric = machine("kisti-v100-8gpu", 3);
  LinkState links(fabric);
  slow_down(fabric, links, "node2/gpu0", 4);
  Demand demand(24);
  for (GpuId src = 0; src < 24; ++src) {
    for (GpuId dst = 0; dst < 24; ++dst) {
      if (src != dst) demand.set(src, dst, 16 * kMiB);
    }
  }
  PlannerSettings settings;
  Planner planner(fabric, settings);
  settings.policy = Policy::single_path;
  Planner single(fabric, settings);
  EXPECT_LE(planner.plan(demand, links).z_seconds, single.plan(demand, links).z_seconds * 1.004);
}

// More GPU pairs than are improved one by one, each too small to be split: the rails of one pair of nodes cannot all carry their parts,
// those of all pairs together can. (With each pair of nodes on its own the first rails would get 5.5% too much.)
TEST(Links, WholeDemandsEvenOutOverManyNodesBesideASlowNic) {
  const Fabric fabric = machine("hgx-h100", 32);
  LinkState links(fabric);
  const VertexId nic = fabric.nics_of(5)[0];
  for (const auto& edges : {fabric.out_edges(nic), fabric.in_edges(nic)}) {
    for (EdgeId e : edges) {
      if (fabric.edge(e).kind == EdgeKind::rail) links.set_rate(e, fabric.edge(e).capacity_Bps / 2);
    }
  }
  Demand demand(fabric.gpu_count());
  for (GpuId src = 0; src < demand.ranks(); ++src) {
    for (GpuId dst = 0; dst < demand.ranks(); ++dst) {
      if (src != dst) demand.set(src, dst, kMiB);
    }
  }
  Planner planner(fabric, {});
  const Plan& plan = planner.plan(demand, links);
  EXPECT_LE(plan.z_seconds, plan.bound.seconds * 1.01);
  EXPECT_EQ(planner.shares(40, 0).size(), 1u);
}

TEST(Reuse, ARepeatedDemandKeepsItsPlan) {
  const Fabric fabric = machine("hgx-h100", 2);
  Planner planner(fabric, {});
  LinkState links(fabric);
  const Demand demand = random_demand(16, 512 * kMiB, 0.5, 1);
  const Plan* const first = &planner.plan(demand, links);
  const std::uint64_t id = first->id;
  EXPECT_EQ(&planner.plan(demand, links), first) << "not even copied";
  EXPECT_EQ(planner.plan(demand, links).id, id);
  // A change that is taken back advances the epoch and nothing else.
  links.set_down(0, true);
  links.set_down(0, false);
  EXPECT_EQ(planner.plan(demand, links).id, id);
  EXPECT_EQ(planner.plan(demand, links).link_epoch, 2u);
}

TEST(Hysteresis, ASmallGainDoesNotReplaceThePlanALargeOneDoes) {
  const Fabric fabric = machine("h100-4gpu-ndr", 2);
  PlannerSettings settings;
  settings.hysteresis_permille = 50;
  Planner planner(fabric, settings);
  LinkState links(fabric);
  const Demand demand = one_pair(8, 0, 4, 1024 * kMiB);
  const std::uint64_t id = planner.plan(demand, links).id;
  const EdgeId up = fabric.find_edge(fabric.find_vertex("node0/nic1"), fabric.find_vertex("leaf1"));
  ASSERT_NE(up, kNone);
  const std::uint64_t rate = fabric.edge(up).capacity_Bps;
  links.set_rate(up, rate * 97 / 100);  // re-planning would win 2.3%
  const Plan kept = planner.plan(demand, links);
  EXPECT_EQ(kept.id, id);
  EXPECT_EQ(kept.link_epoch, links.epoch());
  EXPECT_EQ(kept.bottleneck, up);
  EXPECT_NEAR(kept.z_seconds * static_cast<double>(rate) * 0.97 / (256.0 * kMiB), 1, 0.001) << "rated at the new speed";
  links.set_rate(up, rate / 2);
  EXPECT_NE(planner.plan(demand, links).id, id);
  links.set_down(up, true);
  const Plan without = planner.plan(demand, links);
  EXPECT_NEAR(without.z_seconds * 150e9 / static_cast<double>(demand.total()), 1, 0.01);
}

// The plan in force is single-path's over the spine. One for the planner's own routes, which prices prove slower, does not replace it.
TEST(Hysteresis, APlanThatIsKeptHasABoundThatHoldsForIt) {
  const Fabric fabric = machine("charisma-c", 3);
  Planner planner(fabric, {});
  LinkState links(fabric);
  Demand demand(12);
  for (GpuId src = 0; src < 12; ++src) {
    demand.set(src, (src + 6) % 12, 256 * kMiB);
    demand.set(src, (src + 7) % 12, 32 * kMiB);
  }
  const Plan before = planner.plan(demand, links);
  links.set_down(fabric.find_edge(fabric.find_vertex("node0/gpu0"), fabric.find_vertex("node0/gpu2")), true);  // which nothing uses
  const Plan kept = planner.plan(demand, links);
  EXPECT_EQ(kept.id, before.id);
  EXPECT_EQ(kept.z_seconds, before.z_seconds);
  EXPECT_LE(kept.bound.seconds, kept.z_seconds);
  EXPECT_NE(kept.bound.kind, Bound::Kind::prices);
  Planner other(fabric, {});
  EXPECT_GT(other.plan(demand, links).bound.seconds, kept.z_seconds) << "what prices prove for other routes";
}

TEST(Hysteresis, ThatKeepsAllPlansKeepsNoneOverADeadLink) {
  const Fabric fabric = machine("h100-4gpu-ndr", 2);
  PlannerSettings settings;
  settings.hysteresis_permille = 1000;
  Planner planner(fabric, settings);
  LinkState links(fabric);
  const Demand demand = one_pair(8, 0, 4, 1024 * kMiB);
  const std::uint64_t id = planner.plan(demand, links).id;
  slow_to_half(fabric, links, "leaf1");
  EXPECT_EQ(planner.plan(demand, links).id, id);
  take_down(fabric, links, "leaf1");
  const Plan without = planner.plan(demand, links);
  EXPECT_NE(without.id, id);
  EXPECT_NEAR(without.z_seconds * 150e9 / static_cast<double>(demand.total()), 1, 0.01);
}

}  // namespace
}  // namespace railweave::testing
