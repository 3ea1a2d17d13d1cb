// Plans are equal to the bit on every compiler, optimisation level and CPU: ids of plans, made by g++ -O2, must come out everywhere.
// RAILWEAVE_UPDATE_GOLDENS=1 writes them anew (after a change that is meant to change plans).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support.hpp"

namespace railweave::testing {
namespace {

std::string plan_ids() {
  std::ostringstream text;
  for (const auto& [name, nodes] : machines()) {
    const Fabric fabric = machine(name, nodes);
    LinkState links(fabric);
    for (Policy policy : {Policy::single_path, Policy::nccl, Policy::ucx_rails, Policy::nimble, Policy::railweave}) {
      PlannerSettings settings;
      settings.policy = policy;
      Planner planner(fabric, settings);
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const Demand demand = random_demand(fabric.gpu_count(), 512 * kMiB, 0.1 + 0.1 * static_cast<double>(seed), seed);
        const Plan& plan = planner.plan(demand, links);
        text << name << " x" << nodes << ' ' << to_string(policy) << " seed " << seed << ": " << std::hex << plan.id << std::dec << ", "
             << plan.shares.size() << " shares\n";
      }
    }
  }
  return text.str();
}

TEST(Goldens, PlansAreEqualToTheBitEverywhere) {
  const std::string path = std::string(RAILWEAVE_GOLDENS) + "/plan_ids.txt";
  const std::string ids = plan_ids();
  if (std::getenv("RAILWEAVE_UPDATE_GOLDENS") != nullptr) {
    std::ofstream(path) << ids;
    GTEST_SKIP() << "wrote " << path;
  }
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  ASSERT_FALSE(expected.str().empty()) << path << " is missing";
  EXPECT_EQ(ids, expected.str());
}

}  // namespace
}  // namespace railweave::testing
