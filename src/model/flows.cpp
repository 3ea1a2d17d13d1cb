#include "railweave/model/flows.hpp"

#include <algorithm>
#include <string>

#include "railweave/error.hpp"

namespace railweave {

Flows::Flows(std::vector<std::uint64_t> capacities_Bps) : capacities_(std::move(capacities_Bps)) {}

void Flows::reserve(std::size_t flows, std::size_t resources_per_flow) {
  flows_.reserve(flows);
  start_.reserve(flows + 1);
  resources_.reserve(flows * resources_per_flow);
}

FlowId Flows::add(const Flow& flow, std::span<const ResourceId> resources) {
  const auto name = [this] { return "flow " + std::to_string(flows_.size()); };
  if (flows_.size() >= kNone) throw DemandError(name() + ": a simulation holds at most 2^32 - 1 flows");
  for (const ResourceId resource : resources) {
    if (resource >= capacities_.size()) {
      throw DemandError(name() + " loads resource " + std::to_string(resource) + "; there are " + std::to_string(capacities_.size()));
    }
    if (capacities_[resource] == 0 && flow.bytes != 0) {
      throw UnreachableError(name() + " loads resource " + std::to_string(resource) +
                             ", which carries nothing (capacity 0); route it elsewhere");
    }
  }
  flows_.push_back(flow);
  const auto begin = resources_.insert(resources_.end(), resources.begin(), resources.end());
  std::sort(begin, resources_.end());
  start_.push_back(resources_.size());
  return static_cast<FlowId>(flows_.size() - 1);
}

std::vector<double> Flows::load() const {
  std::vector<double> load(capacities_.size(), 0.0);
  for (FlowId id = 0; id < size(); ++id) {
    for (const ResourceId resource : resources(id)) load[resource] += static_cast<double>(flows_[id].bytes);
  }
  return load;
}

}  // namespace railweave
