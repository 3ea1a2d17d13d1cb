// What the model simulates: flows over resources with capacities. A flow is a number of bytes that loads each of its resources
// at its own rate; where they come from (a plan, a collective, a test) does not matter here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "railweave/fabric/fabric.hpp"

namespace railweave {

using FlowId = std::uint32_t;  // position in Flows, in the order of add()

struct Flow {
  std::uint64_t bytes = 0;
  std::uint64_t start_ns = 0;    // when its bytes may begin to move
  std::uint64_t latency_ns = 0;  // between a byte's passing the bottleneck and its arrival; added to the completion time
};

// Flows and the resources they load, flat because a large cluster has millions.
class Flows {
 public:
  // Capacities in bytes/s, one for each resource; 0 means that the resource carries nothing (a link that is down).
  explicit Flows(std::vector<std::uint64_t> capacities_Bps);

  void reserve(std::size_t flows, std::size_t resources_per_flow);
  // A resource that appears twice is loaded with twice the flow's rate. Throws DemandError for a resource that does not exist
  // and UnreachableError when a flow with bytes loads a resource of capacity 0; then nothing was added.
  FlowId add(const Flow& flow, std::span<const ResourceId> resources);

  std::size_t size() const noexcept { return flows_.size(); }
  const Flow& operator[](FlowId id) const noexcept { return flows_[id]; }
  std::span<const ResourceId> resources(FlowId id) const noexcept {
    return {resources_.data() + start_[id], resources_.data() + start_[id + 1]};
  }
  std::span<const std::uint64_t> capacities_Bps() const noexcept { return capacities_; }
  // Bytes on each resource.
  std::vector<double> load() const;

 private:
  std::vector<std::uint64_t> capacities_;
  std::vector<Flow> flows_;
  std::vector<std::size_t> start_{0};
  std::vector<ResourceId> resources_;  // ascending within a flow
};

}  // namespace railweave
