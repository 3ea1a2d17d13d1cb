#include "max_min.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace railweave {
namespace {

using Load = MaxMin::Load;

TEST(MaxMin, SharesOneResourceEqually) {
  MaxMin shares(std::vector<double>{12.0});
  const auto a = shares.add(std::vector<Load>{{0, 1}});
  const auto b = shares.add(std::vector<Load>{{0, 1}});
  shares.seal();
  shares.join(a, 1);
  shares.join(b, 2);
  EXPECT_EQ(shares.solve().size(), 2u);
  EXPECT_DOUBLE_EQ(shares.rate(a), 4.0);
  EXPECT_DOUBLE_EQ(shares.rate(b), 4.0);
  EXPECT_EQ(shares.bottleneck(a), 0u);
  shares.leave(b);
  EXPECT_TRUE(shares.is_wanted(0));
  EXPECT_DOUBLE_EQ(shares.load(0), 8.0);
  shares.solve();
  EXPECT_DOUBLE_EQ(shares.rate(a), 6.0);
}

TEST(MaxMin, LoadingTwiceCostsTwice) {
  MaxMin shares(std::vector<double>{12.0});
  const auto a = shares.add(std::vector<Load>{{0, 2}});
  const auto b = shares.add(std::vector<Load>{{0, 1}});
  shares.seal();
  shares.join(a, 1);
  shares.join(b, 1);
  shares.solve();
  EXPECT_DOUBLE_EQ(shares.rate(a), 4.0);
  EXPECT_DOUBLE_EQ(shares.rate(b), 4.0);
}

TEST(MaxMin, LeavesAloneWhatIsNotLinked) {
  MaxMin shares(std::vector<double>{10.0, 10.0, 100.0});
  const auto a1 = shares.add(std::vector<Load>{{0, 1}, {2, 1}});
  const auto a2 = shares.add(std::vector<Load>{{0, 1}, {2, 1}});
  const auto b = shares.add(std::vector<Load>{{1, 1}, {2, 1}});
  shares.seal();
  for (const auto group : {a1, a2, b}) shares.join(group, 1);
  shares.solve();
  shares.leave(a1);
  const auto solved = shares.solve();  // resource 2 is not full, so it does not link b
  EXPECT_EQ(std::vector<MaxMin::Group>(solved.begin(), solved.end()), std::vector<MaxMin::Group>{a2});
  EXPECT_DOUBLE_EQ(shares.rate(a2), 10.0);
}

TEST(MaxMin, DrawsInFasterFlowsOfAResourceThatFillsUp) {
  // b has resource 1 almost to itself, until a, freed on resource 0, takes its half.
  MaxMin shares(std::vector<double>{4.0, 10.0});
  const auto other = shares.add(std::vector<Load>{{0, 1}});
  const auto a = shares.add(std::vector<Load>{{0, 1}, {1, 1}});
  const auto b = shares.add(std::vector<Load>{{1, 1}});
  shares.seal();
  for (const auto group : {other, a, b}) shares.join(group, 1);
  shares.solve();
  EXPECT_DOUBLE_EQ(shares.rate(b), 8.0);
  shares.leave(other);
  shares.solve();
  EXPECT_DOUBLE_EQ(shares.rate(a), 4.0);
  EXPECT_DOUBLE_EQ(shares.rate(b), 6.0);
}

TEST(MaxMin, AResourceThatWasNotFullHoldsBackWhoIsFreedElsewhere) {
  // a leaves half of resource 0 to another group; freed of it, a is held back by resource 1, which b alone does not fill.
  MaxMin shares(std::vector<double>{4.0, 5.0, 2.0});
  const auto other = shares.add(std::vector<Load>{{0, 1}});
  const auto a = shares.add(std::vector<Load>{{0, 1}, {1, 1}});
  const auto b = shares.add(std::vector<Load>{{1, 1}, {2, 1}});
  shares.seal();
  for (const auto group : {other, a, b}) shares.join(group, 1);
  shares.solve();
  EXPECT_DOUBLE_EQ(shares.load(1), 4.0);
  shares.leave(other);
  const auto solved = shares.solve();
  EXPECT_EQ(std::vector<MaxMin::Group>(solved.begin(), solved.end()), std::vector<MaxMin::Group>{a});
  EXPECT_DOUBLE_EQ(shares.rate(a), 3.0);
  EXPECT_EQ(shares.bottleneck(a), 1u);
  EXPECT_DOUBLE_EQ(shares.rate(b), 2.0);
  EXPECT_EQ(shares.bottleneck(b), 2u);
}

// Every group has a resource that is full and on which nobody is faster; nothing is over capacity.
void expect_max_min(const MaxMin& shares, std::size_t groups, std::size_t resources) {
  std::vector<double> load(resources, 0.0), fastest(resources, 0.0);
  for (MaxMin::Group group = 0; group < groups; ++group) {
    if (shares.flows(group) == 0) continue;
    for (const Load& entry : shares.loads(group)) {
      load[entry.resource] += shares.rate(group) * shares.flows(group) * entry.times;
      fastest[entry.resource] = std::max(fastest[entry.resource], shares.rate(group));
    }
  }
  for (MaxMin::Resource r = 0; r < resources; ++r) {
    EXPECT_LE(load[r], shares.capacity(r) * (1 + 1e-9));
    EXPECT_NEAR(load[r], shares.load(r), shares.capacity(r) * 1e-9);
  }
  for (MaxMin::Group group = 0; group < groups; ++group) {
    if (shares.flows(group) == 0) continue;
    const MaxMin::Resource held = shares.bottleneck(group);
    ASSERT_LT(held, resources);
    EXPECT_GE(load[held], shares.capacity(held) * (1 - 1e-9)) << "bottleneck of group " << group << " is not full";
    EXPECT_GE(shares.rate(group), fastest[held] * (1 - 1e-9)) << "somebody is faster on the bottleneck of group " << group;
  }
}

TEST(MaxMinProperty, CertificateHoldsAfterEverySolve) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    std::mt19937_64 random(seed);
    const std::size_t resources = 2 + random() % 30, groups = 1 + random() % 120;
    std::vector<double> capacities(resources);
    for (double& capacity : capacities) capacity = static_cast<double>(random() % 2 ? 10 : 1 + random() % 1000);
    MaxMin shares(capacities);
    for (std::size_t g = 0; g < groups; ++g) {
      std::map<MaxMin::Resource, std::uint32_t> times;
      for (std::size_t i = 0, n = 1 + random() % 5; i < n; ++i) ++times[static_cast<MaxMin::Resource>(random() % resources)];
      std::vector<Load> loads;
      loads.reserve(times.size());
      for (const auto& [resource, count] : times) loads.push_back({resource, count});
      shares.add(loads);
    }
    shares.seal();
    MaxMin::Group next = 0;
    std::vector<MaxMin::Group> present;
    while (next < groups || !present.empty()) {
      for (std::size_t joins = random() % 20; joins > 0 && next < groups; --joins) {
        present.push_back(next);
        shares.join(next++, static_cast<std::uint32_t>(1 + random() % 4));
      }
      shares.solve();
      expect_max_min(shares, groups, resources);
      for (std::size_t leaves = 1 + random() % 3; leaves > 0 && !present.empty(); --leaves) {
        const std::size_t at = random() % present.size();
        shares.leave(present[at]);
        if (shares.flows(present[at]) == 0) present.erase(present.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace railweave
