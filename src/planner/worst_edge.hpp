// The policy nimble, after arXiv 2604.00317: a path costs its worst edge. Demands are placed in equal steps, in turn, each on the
// direct, two-hop or rail-matched path whose busiest resource stays least busy. Kept to compare with: where several paths share
// their worst edge it cannot see which is cheaper, and gets stuck above the optimum.
#pragma once

#include <cstdint>
#include <vector>

#include "draft.hpp"
#include "live_routes.hpp"
#include "railweave/demand/demand.hpp"
#include "railweave/planner/planner.hpp"

namespace railweave {

class WorstEdge {
 public:
  // False when a pair has no such path; then unreachable() says which.
  bool place(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings, Draft& draft);
  std::pair<GpuId, GpuId> unreachable() const noexcept { return unreachable_; }

 private:
  struct Option {
    std::uint16_t column = 0;
    std::uint32_t begin = 0, end = 0;
    std::uint64_t bytes = 0;
  };
  struct Pair {
    GpuId src = 0, dst = 0;
    std::uint64_t rest = 0, step = 0;
    std::uint32_t begin = 0, end = 0;
  };
  bool list_options(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings);
  void add_option(std::uint16_t column, std::initializer_list<std::span<const ResourceId>> parts);
  void place_step(const LiveRoutes& routes, Pair& pair, std::uint64_t chunk);

  std::vector<Pair> pairs_;
  std::vector<Option> options_;
  std::vector<ResourceId> resources_;
  std::vector<std::uint64_t> load_;
  std::pair<GpuId, GpuId> unreachable_{kNone, kNone};
};

}  // namespace railweave
