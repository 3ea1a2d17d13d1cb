// plan() allocates nothing once its buffers have grown: it runs between a program's communication calls.
#include <gtest/gtest.h>

#include "../allocations.hpp"
#include "support.hpp"

namespace railweave::testing {
namespace {

TEST(Allocation, NoneAfterWarmUp) {
  for (const auto& [name, nodes] : machines()) {
    for (Policy policy : {Policy::single_path, Policy::nccl, Policy::ucx_rails, Policy::nimble, Policy::railweave}) {
      const Fabric fabric = machine(name, nodes);
      PlannerSettings settings;
      settings.policy = policy;
      Planner planner(fabric, settings);
      LinkState links(fabric), slower(fabric);
      for (EdgeId e = 0; e < fabric.edges().size(); e += 3) slower.set_rate(e, fabric.edge(e).capacity_Bps / 2);
      std::vector<Demand> demands;
      for (std::uint64_t seed = 0; seed < 6; ++seed) demands.push_back(random_demand(fabric.gpu_count(), 256 * kMiB, 0.6, seed));
      const auto all = [&] {
        for (int round = 0; round < 2; ++round) {
          for (const Demand& demand : demands) {
            planner.plan(demand, links);
            planner.plan(demand, slower);
          }
        }
      };
      all();
      const std::size_t before = allocations::count();
      all();
      EXPECT_EQ(allocations::count() - before, 0u) << name << " " << to_string(policy);
      EXPECT_GT(before, 0u) << "the counter counts";
    }
  }
}

}  // namespace
}  // namespace railweave::testing
