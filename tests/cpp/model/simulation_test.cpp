#include "railweave/model/simulation.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "railweave/error.hpp"
#include "reference.hpp"

namespace railweave {
namespace {

constexpr SimulationSettings kExact{.batching = 0};
constexpr std::uint64_t kGB = 1'000'000'000u;

Flows flows_over(std::vector<std::uint64_t> capacities) { return Flows(std::move(capacities)); }

TEST(Simulation, NoFlows) {
  const Simulation result = simulate(flows_over({kGB}));
  EXPECT_EQ(result.seconds(), 0.0);
  EXPECT_EQ(result.slices(), 0u);
}

TEST(Simulation, OneFlowTakesBytesOverCapacityPlusLatency) {
  Flows flows = flows_over({2 * kGB, kGB});
  flows.add({kGB, 0, 5000}, std::vector<ResourceId>{0, 1});
  const Simulation result = simulate(flows);
  EXPECT_DOUBLE_EQ(result.seconds(), 1.000005);
  EXPECT_DOUBLE_EQ(result.load_bound_seconds(), 1.0);
  ASSERT_EQ(result.waits(0).size(), 1u);
  EXPECT_EQ(result.waits(0)[0].resource, 1u);
  EXPECT_EQ(result.last_held()[1], 1u);
  EXPECT_DOUBLE_EQ(result.waited_seconds()[1], 1.0);
}

TEST(Simulation, TheFasterHalfIsPassedOnWhenAFlowEnds) {
  Flows flows = flows_over({kGB});
  flows.add({kGB, 0, 0}, std::vector<ResourceId>{0});
  flows.add({3 * kGB, 0, 0}, std::vector<ResourceId>{0});
  const Simulation result = simulate(flows, kExact);
  EXPECT_DOUBLE_EQ(result.finish_seconds()[0], 2.0);
  EXPECT_DOUBLE_EQ(result.finish_seconds()[1], 4.0);
}

TEST(Simulation, StartsAndRepeatedLoads) {
  // By hand, and the same from SimGrid 4.1: see run_simgrid.py.
  Flows flows = flows_over({kGB, kGB / 2});
  flows.add({kGB, 0, 0}, std::vector<ResourceId>{0});
  flows.add({kGB, 0, 0}, std::vector<ResourceId>{0, 1});
  flows.add({kGB / 4, 500'000'000, 1000}, std::vector<ResourceId>{1, 1});
  const Simulation result = simulate(flows, kExact);
  EXPECT_NEAR(result.finish_seconds()[0], 1.4, 1e-9);
  EXPECT_NEAR(result.finish_seconds()[1], 3.0, 1e-9);
  EXPECT_NEAR(result.finish_seconds()[2], 2.000001, 1e-9);
}

TEST(Simulation, SaysWhoWaitsForWhat) {
  // Flow 1 is held back by resource 1 until flow 2 leaves it, then by resource 0, which it shares with flow 0.
  Flows flows = flows_over({8 * kGB, 2 * kGB});
  flows.add({14 * kGB, 0, 0}, std::vector<ResourceId>{0});
  flows.add({4 * kGB, 0, 0}, std::vector<ResourceId>{0, 1});
  flows.add({kGB, 0, 0}, std::vector<ResourceId>{1});
  const Simulation result = simulate(flows, kExact);
  const auto waits = result.waits(1);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].resource, 1u);
  EXPECT_DOUBLE_EQ(result.finish_seconds()[0], 1.0 + 7.0 / 6.0);
  EXPECT_EQ(result.waits(0)[0].resource, 0u);
}

TEST(Simulation, FlowsWithoutBytesOrResourcesEndAfterTheirLatency) {
  Flows flows = flows_over({kGB, 0});
  flows.add({0, 1000, 500}, std::vector<ResourceId>{0, 1});
  flows.add({kGB, 0, 700}, std::vector<ResourceId>{});
  const Simulation result = simulate(flows);
  EXPECT_DOUBLE_EQ(result.finish_seconds()[0], 1.5e-6);
  EXPECT_DOUBLE_EQ(result.finish_seconds()[1], 0.7e-6);
  EXPECT_TRUE(result.waits(0).empty());
}

TEST(Simulation, BytesNearTheLimit) {
  Flows flows = flows_over({100 * kGB});
  const std::uint64_t most = (std::uint64_t{1} << 63) - 1;
  flows.add({most, 0, 0}, std::vector<ResourceId>{0});
  EXPECT_NEAR(simulate(flows).seconds(), static_cast<double>(most) / 100e9, 1.0);
}

TEST(Simulation, RejectsWhatCannotMove) {
  Flows flows = flows_over({kGB, 0});
  EXPECT_THROW(flows.add({1, 0, 0}, std::vector<ResourceId>{2}), DemandError);
  EXPECT_THROW(flows.add({1, 0, 0}, std::vector<ResourceId>{1}), UnreachableError);
  EXPECT_EQ(flows.size(), 0u);
  EXPECT_THROW(simulate(flows, {.batching = -0.1}), Error);
  EXPECT_THROW(simulate(flows, {.batching = 1.0}), Error);
}

class RandomFlows : public testing::TestWithParam<std::uint64_t> {
 protected:
  Flows make() {
    std::mt19937_64 random(GetParam());
    const std::size_t resources = 1 + random() % 24;
    return reference::random_flows(random, 1 + random() % 80, resources, 5);
  }
};

TEST_P(RandomFlows, ExactEqualsThePlainReference) {
  const Flows flows = make();
  const Simulation result = simulate(flows, kExact);
  const std::vector<double> expected = reference::simulate(flows);
  for (FlowId id = 0; id < flows.size(); ++id) EXPECT_NEAR(result.finish_seconds()[id], expected[id], 1e-6 * result.seconds()) << id;
}

TEST_P(RandomFlows, BytesAreConservedAndCapacityHolds) {
  const Flows flows = make();
  for (const double batching : {0.0, 1e-3, 0.05}) {
    const Simulation result = simulate(flows, {.batching = batching});
    const std::vector<double> load = flows.load();
    for (ResourceId r = 0; r < load.size(); ++r) {
      const auto carried = result.carried_bytes(r);
      EXPECT_NEAR(std::accumulate(carried.begin(), carried.end(), 0.0), load[r], 1e-6 * load[r] + 1e-3);
      const double most = static_cast<double>(flows.capacities_Bps()[r]) * result.slice_seconds();
      for (const double bytes : carried) EXPECT_LE(bytes, most * (1 + 1e-6));
    }
    EXPECT_GE(result.seconds(), result.load_bound_seconds() * (1 - 1e-9));
  }
}

TEST_P(RandomFlows, BatchingLosesLittle) {
  const Flows flows = make();
  const Simulation exact = simulate(flows, kExact);
  EXPECT_EQ(exact.batching_loss_seconds(), 0.0);
  for (const double batching : {1e-3, 1e-2}) {
    const Simulation result = simulate(flows, {.batching = batching});
    // The allowance, and the least windows that go over it.
    EXPECT_LE(result.batching_loss_seconds(), 3 * batching * result.seconds());
    EXPECT_LE(result.solves(), exact.solves());
    EXPECT_NEAR(result.seconds(), exact.seconds(), 3 * batching * exact.seconds());
  }
}

TEST_P(RandomFlows, EqualInputsGiveEqualResults) {
  const Simulation a = simulate(make()), b = simulate(make());
  EXPECT_TRUE(std::equal(a.finish_seconds().begin(), a.finish_seconds().end(), b.finish_seconds().begin()));
  EXPECT_TRUE(std::equal(a.waited_seconds().begin(), a.waited_seconds().end(), b.waited_seconds().begin()));
}

TEST_P(RandomFlows, WaitedTimeIsTimeInFlight) {
  const Flows flows = make();
  const Simulation result = simulate(flows, kExact);
  double in_flight = 0;
  std::uint64_t ended = 0;
  for (FlowId id = 0; id < flows.size(); ++id) {
    const auto waits = result.waits(id);
    if (waits.empty()) continue;
    ++ended;
    const double begin = static_cast<double>(flows[id].start_ns) * 1e-9;
    EXPECT_NEAR(waits.front().begin_seconds, begin, 1e-12);
    in_flight += result.finish_seconds()[id] - static_cast<double>(flows[id].latency_ns) * 1e-9 - begin;
  }
  const auto waited = result.waited_seconds();
  EXPECT_NEAR(std::accumulate(waited.begin(), waited.end(), 0.0), in_flight, 1e-6 * in_flight + 1e-12);
  EXPECT_EQ(std::accumulate(result.last_held().begin(), result.last_held().end(), std::uint64_t{0}), ended);
}

TEST_P(RandomFlows, TwiceTheBytesTakeTwiceTheTime) {
  const Flows flows = make();
  Flows twice({flows.capacities_Bps().begin(), flows.capacities_Bps().end()});
  for (FlowId id = 0; id < flows.size(); ++id) {
    twice.add({2 * flows[id].bytes, 2 * flows[id].start_ns, 2 * flows[id].latency_ns}, flows.resources(id));
  }
  const Simulation a = simulate(flows, kExact), b = simulate(twice, kExact);
  for (FlowId id = 0; id < flows.size(); ++id) EXPECT_NEAR(b.finish_seconds()[id], 2 * a.finish_seconds()[id], 1e-6 * b.seconds());
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomFlows, testing::Range<std::uint64_t>(0, 60));

TEST(Simulation, SlicesCoverTheTimeHoweverLongItGetsOverTheBound) {
  // The second flow starts long after the bound, so that the slices have to widen several times.
  Flows flows = flows_over({kGB});
  flows.add({kGB, 0, 0}, std::vector<ResourceId>{0});
  flows.add({kGB, 60 * kGB, 0}, std::vector<ResourceId>{0});
  const Simulation result = simulate(flows);
  EXPECT_GE(static_cast<double>(result.slices()) * result.slice_seconds(), 61.0);
  EXPECT_LE(result.slices(), Simulation::kSlices);
  const auto carried = result.carried_bytes(0);
  EXPECT_NEAR(std::accumulate(carried.begin(), carried.end(), 0.0), 2e9, 1.0);
}

}  // namespace
}  // namespace railweave
