// The model: event-driven fluid simulation of flows that share resources max-min fairly (design in docs/model.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "railweave/model/flows.hpp"

namespace railweave {

struct SimulationSettings {
  // How much of a resource's time may be lost, as a part of the whole, before rates that completions left behind are shared out
  // again. 0: rates follow each completion at once, exactly. No hard limit: shares follow one another at a least distance, so with
  // a million flows the worst resource loses more (docs/model.md has the measurements); what was lost in fact is
  // Simulation::batching_loss_seconds().
  double batching = 0;
};

// From `begin_seconds` on a flow was held back by `resource`, until the next wait of the same flow begins or it ends.
struct Wait {
  double begin_seconds = 0;
  ResourceId resource = kNone;
};

// What happened. Times are seconds from 0, rates bytes/s.
class Simulation {
 public:
  // Number of equal time slices that carried_bytes() is kept in, at most.
  static constexpr std::size_t kSlices = 128;

  // When the last flow ended; 0 without flows.
  double seconds() const noexcept { return seconds_; }
  // max over resources of load / capacity, plus nothing for latency: no schedule of these flows is faster.
  double load_bound_seconds() const noexcept { return load_bound_; }
  // When each flow's last byte arrived.
  std::span<const double> finish_seconds() const noexcept { return finish_; }
  // Bytes that each resource carried.
  std::span<const double> bytes() const noexcept { return bytes_; }
  // The resources that held a flow back, in order; empty for a flow that loads nothing.
  std::vector<Wait> waits(FlowId id) const;
  // For each resource the time it held flows back, summed over the flows: 3 flows that wait for it 2 s make 6.
  std::span<const double> waited_seconds() const noexcept { return waited_; }
  // For each resource, how many flows it held back when they ended: it set their completion time.
  std::span<const std::uint32_t> last_held() const noexcept { return last_held_; }

  // Bytes that a resource carried in each slice of slice_seconds(); slices() of them cover the whole time.
  std::span<const double> carried_bytes(ResourceId id) const noexcept;
  std::size_t slices() const noexcept { return slices_; }
  double slice_seconds() const noexcept { return slice_seconds_; }

  // Time that the worst hit resource lost by batching, and how often rates were shared out.
  double batching_loss_seconds() const noexcept { return batching_loss_; }
  std::uint64_t solves() const noexcept { return solves_; }

 private:
  friend class Simulator;
  struct History {
    double begin;
    ResourceId resource;
    std::uint32_t previous;  // kNone: the first
  };

  double seconds_ = 0, load_bound_ = 0, slice_seconds_ = 0, batching_loss_ = 0;
  std::size_t slices_ = 0;
  std::uint64_t solves_ = 0;
  std::vector<double> finish_, bytes_, waited_;
  std::vector<std::uint32_t> last_held_;
  std::vector<History> history_;
  std::vector<std::uint32_t> last_wait_;  // per flow: its last entry in history_
  std::vector<double> carried_;           // kSlices per resource that has a series of its own
  std::vector<std::uint32_t> series_;     // per resource: which series; kNone: carries nothing
};

// Deterministic: equal flows and settings give equal results to the bit.
Simulation simulate(const Flows& flows, const SimulationSettings& settings = {});

}  // namespace railweave
