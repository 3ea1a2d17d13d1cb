// Improves a draft pair by pair over all columns, where sharing out node pairs by rail rates was not provably enough.
#pragma once

#include <cstdint>
#include <vector>

#include "draft.hpp"
#include "live_routes.hpp"
#include "price_solver.hpp"
#include "railweave/demand/demand.hpp"
#include "railweave/planner/planner.hpp"

namespace railweave {

class PairOptimizer {
 public:
  // Reads `from` (`load`: what it loads, `rail_pairs`: demands between nodes, `bound_seconds`: which no plan can beat), writes `to`,
  // another draft of the same demand. False when no pair has a choice; `to` is then as it was.
  bool improve(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings,
               std::size_t rail_pairs, const Draft& from, const std::vector<std::uint64_t>& load, double bound_seconds, Draft& to);
  // What no plan over these routes can beat, or 0: demands that keep their draft might take others.
  double bound_seconds() const noexcept { return bound_seconds_; }

 private:
  struct Pair {
    std::size_t pair = 0;  // src * ranks + dst
    std::uint64_t bytes = 0;
  };
  void set_up(const LiveRoutes& routes, const Fabric& fabric, const Demand& demand, const PlannerSettings& settings, bool rails,
              const Draft& from);
  void add_pair(const LiveRoutes& routes, GpuId src, GpuId dst, std::uint64_t bytes, std::span<const NodeColumn> inner,
                std::span<const RailColumn> outer, const Draft& from, std::size_t pair);
  double saved_elsewhere(const LiveRoutes& routes, const Fabric& fabric, const Draft& from);
  void round(const PlannerSettings& settings);
  void write(std::uint32_t ranks, const Draft& from, Draft& to) const;

  PriceSolver solver_;
  double bound_seconds_ = 0;
  std::vector<Pair> pairs_;  // those that the solver splits, in (src, dst) order
  struct Kept {              // that keeps its draft and has other columns
    GpuId src = 0, dst = 0;
  };
  std::vector<Kept> kept_;
  bool keeps_rails_ = false;                                              // so does every demand between nodes
  std::vector<double> source_price_, network_price_, destination_price_;  // by segment and column, for kept_
  std::vector<std::uint32_t> first_;                                      // by pair: first of its options; one more at the end
  struct Option {                                                         // numbered as the solver's columns
    std::uint16_t column = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Option> options_;
  struct Used {
    std::uint64_t load = 0;
    double seconds_per_byte = 0;
  };
  std::vector<Used> used_;           // while rounding: the solver's resources
  std::vector<std::uint64_t> load_;  // of what is not in pairs_
  std::span<const std::uint64_t> capacity_;
};

}  // namespace railweave
