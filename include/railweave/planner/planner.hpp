// The planner: routes a demand over a fabric so that the busiest resource is as idle as possible (design in docs/planner.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "railweave/demand/demand.hpp"
#include "railweave/fabric/fabric.hpp"
#include "railweave/fabric/link_state.hpp"
#include "railweave/planner/plan.hpp"

namespace railweave {

struct PlannerSettings {
  Policy policy = Policy::railweave;
  // Demands of at most this many bytes take one path: inside a node, and where the fastest rail between two nodes has 50 GB/s or more. Of a
  // slower one as many bytes as take as long.
  std::uint64_t multipath_min_bytes = 1u << 20;
  // No path of a split demand carries less than this, and every part but the last is a multiple of it.
  std::uint64_t chunk_bytes = 256u << 10;
  // nccl policy: send-side relay over NVLink to the rail of the destination. 0 off, 1 unless the sender has that NIC itself, 2 always
  // through the first GPU beside the NIC.
  std::uint32_t pxn_level = 2;
  // ucx_rails policy: a sender stripes over at most this many of its nearest NICs (UCX_MAX_RNDV_RAILS, whose default is 2).
  std::uint32_t ucx_rails = 2;
  // A new plan replaces the previous one for the same demand only if its time is lower by this part (in 1/1000).
  std::uint32_t hysteresis_permille = 30;
};

// One planner for one fabric. Construction finds the candidate routes; plan() allocates nothing once the buffers have grown
// to the largest demand seen. Not thread-safe; equal inputs (fabric, settings, demand, link state, previous plan) give equal plans.
class Planner {
 public:
  // The fabric must outlive the planner.
  Planner(const Fabric& fabric, const PlannerSettings& settings);
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  // Routes every byte between different GPUs (the diagonal stays in place). The result is valid until the next call.
  // Throws DemandError (does not fit the fabric) or UnreachableError (names the pair); the previous plan then still holds.
  const Plan& plan(const Demand& demand, const LinkState& links);
  // Shares of one pair in the last plan.
  std::span<const Share> shares(GpuId src, GpuId dst) const;
  // All candidate routes of a pair under this policy and link state, best first; what the exact optimum chooses from, too.
  std::vector<Route> candidates(GpuId src, GpuId dst, const LinkState& links) const;
  // Demands of a pair take one path if they have fewer bytes than this, under the last plan's link state.
  std::uint64_t split_min_bytes(GpuId src, GpuId dst) const;
  // The edges and resources of a route on this fabric.
  Path expand(const Route& route) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace railweave
