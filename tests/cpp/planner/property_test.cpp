// What holds for every plan, whatever the machine, demand and policy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support.hpp"

namespace railweave::testing {
namespace {

constexpr std::array kPolicies{Policy::single_path, Policy::nccl, Policy::ucx_rails, Policy::nimble, Policy::railweave};

class Plans : public ::testing::TestWithParam<std::pair<std::string, std::uint32_t>> {
 protected:
  Fabric fabric_ = machine(GetParam().first, GetParam().second);
  LinkState links_{fabric_};
};

TEST_P(Plans, CarryEveryByteOnRoutesThatExist) {
  for (Policy policy : kPolicies) {
    PlannerSettings settings;
    settings.policy = policy;
    Planner planner(fabric_, settings);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Demand demand =
          random_demand(fabric_.gpu_count(), (seed % 2 == 0 ? 512 : 3) * kMiB, 0.1 + 0.3 * static_cast<double>(seed % 4), seed);
      const Plan& plan = planner.plan(demand, links_);
      auto bytes = delivered(plan);
      std::vector<std::uint64_t> load(fabric_.resources().size(), 0);
      for (const Share& share : plan.shares) {
        EXPECT_GT(share.bytes, 0u);
        const Path path = planner.expand(share.route);
        ASSERT_FALSE(path.edges.empty());
        EXPECT_EQ(fabric_.edge(path.edges.front()).from, fabric_.gpu(share.route.src));
        EXPECT_EQ(fabric_.edge(path.edges.back()).to, fabric_.gpu(share.route.dst));
        for (std::size_t i = 1; i < path.edges.size(); ++i) EXPECT_EQ(fabric_.edge(path.edges[i - 1]).to, fabric_.edge(path.edges[i]).from);
        for (ResourceId r : path.resources) load[r] += share.bytes;
      }
      EXPECT_EQ(load, plan.load) << to_string(policy);
      for (GpuId src = 0; src < demand.ranks(); ++src) {
        for (GpuId dst = 0; dst < demand.ranks(); ++dst) {
          const std::uint64_t wanted = src == dst ? 0 : demand.at(src, dst);
          EXPECT_EQ((bytes[{src, dst}]), wanted) << to_string(policy) << " " << src << " -> " << dst;
          std::uint64_t shared = 0;
          for (const Share& share : planner.shares(src, dst)) shared += share.bytes;
          EXPECT_EQ(shared, wanted);
        }
      }
      double busiest = 0;
      for (ResourceId r = 0; r < load.size(); ++r) {
        busiest = std::max(busiest, static_cast<double>(load[r]) / static_cast<double>(fabric_.resources()[r].capacity_Bps));
      }
      EXPECT_DOUBLE_EQ(plan.z_seconds, busiest);
      EXPECT_GE(plan.z_seconds, plan.bound.seconds * (1 - 1e-9)) << "a bound above the plan bounds nothing";
    }
  }
}

TEST_P(Plans, SplitInWholeChunksAndKeepSmallMessagesWhole) {
  const PlannerSettings settings;
  Planner planner(fabric_, settings);
  for (std::uint64_t seed = 100; seed < 120; ++seed) {
    const Demand demand = random_demand(fabric_.gpu_count(), 40 * kMiB, 0.5, seed);
    planner.plan(demand, links_);
    for (GpuId src = 0; src < demand.ranks(); ++src) {
      for (GpuId dst = 0; dst < demand.ranks(); ++dst) {
        const auto shares = planner.shares(src, dst);
        if (shares.size() < 2) continue;
        EXPECT_GE(demand.at(src, dst), planner.split_min_bytes(src, dst));
        int tails = 0;
        for (const Share& share : shares) {
          EXPECT_GE(share.bytes, settings.chunk_bytes);
          tails += share.bytes % settings.chunk_bytes != 0 ? 1 : 0;
        }
        EXPECT_LE(tails, 1);
      }
    }
  }
}

TEST_P(Plans, AreNeverSlowerThanTheStaticOnes) {
  PlannerSettings settings;
  Planner planner(fabric_, settings);
  settings.policy = Policy::single_path;
  Planner single(fabric_, settings);
  for (std::uint64_t seed = 200; seed < 220; ++seed) {
    const Demand demand = random_demand(fabric_.gpu_count(), 512 * kMiB, 0.05 + 0.05 * static_cast<double>(seed % 19), seed);
    EXPECT_LE(planner.plan(demand, links_).z_seconds, single.plan(demand, links_).z_seconds * 1.001) << seed;
  }
}

TEST_P(Plans, AreEqualForEqualInputs) {
  Planner first(fabric_, {}), second(fabric_, {});
  for (std::uint64_t seed = 300; seed < 310; ++seed) {
    const Demand demand = random_demand(fabric_.gpu_count(), 256 * kMiB, 0.4, seed);
    // The second planner has another history.
    second.plan(random_demand(fabric_.gpu_count(), 64 * kMiB, 0.7, seed + 1000), links_);
    const Plan a = first.plan(demand, links_);
    const Plan& b = second.plan(demand, links_);
    EXPECT_EQ(a.id, b.id);
    ASSERT_EQ(a.shares.size(), b.shares.size());
    for (std::size_t i = 0; i < a.shares.size(); ++i) {
      EXPECT_EQ(a.shares[i].route, b.shares[i].route);
      EXPECT_EQ(a.shares[i].bytes, b.shares[i].bytes);
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<std::pair<std::string, std::uint32_t>>& info) {
  std::string name = info.param.first + "_x" + std::to_string(info.param.second);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Machines, Plans, ::testing::ValuesIn(machines()), name_of);

// Ranks of these machines are interchangeable (all GPUs of a node see the same, all nodes are alike), so renaming them renames the plan;
// ties may break differently, so times are compared.
TEST(Permutation, OfRanksPermutesThePlan) {
  for (const auto& [name, nodes] : {std::pair{"h100-4gpu-ndr", 2u}, {"hgx-h100", 2u}}) {
    const Fabric fabric = machine(name, nodes);
    const LinkState links(fabric);
    Planner planner(fabric, {});
    const std::uint32_t ranks = fabric.gpu_count(), half = ranks / 2;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Demand demand = random_demand(ranks, 512 * kMiB, 0.5, seed);
      Demand renamed(ranks);
      const auto other = [&](GpuId g) { return (g + half) % ranks; };  // the nodes change places
      for (GpuId src = 0; src < ranks; ++src) {
        for (GpuId dst = 0; dst < ranks; ++dst) renamed.set(other(src), other(dst), demand.at(src, dst));
      }
      const double before = planner.plan(demand, links).z_seconds;
      EXPECT_NEAR(planner.plan(renamed, links).z_seconds / before, 1, 0.01) << name << " " << seed;
    }
  }
}

}  // namespace
}  // namespace railweave::testing
