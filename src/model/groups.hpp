// Makes a simulation small before it starts: resources that the same flows load become one, flows that load the same become a group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "max_min.hpp"
#include "railweave/model/flows.hpp"

namespace railweave {

// Of resources that exactly the same flows load equally often, only the one with the least capacity can hold anybody back
// (a PCIe chain to a NIC and the NIC's rail, say). The others follow it.
struct MergedResources {
  static constexpr std::uint32_t kIdle = MaxMin::kNobody;  // no flow with bytes loads it
  std::vector<std::uint32_t> merged_of;                    // per resource
  std::vector<ResourceId> narrowest;                       // per merged resource: the one that stands for it
};
MergedResources merge_resources(const Flows& flows);

// Flows with bytes and resources, by what they load (after merging) and when they start.
struct Groups {
  struct Group {
    std::uint64_t start_ns = 0;
    std::size_t first_flow = 0, end_flow = 0;  // in `flows`
    std::size_t first_load = 0, end_load = 0;  // in `loads`
  };
  std::vector<Group> groups;  // in the order of their first flow
  std::vector<FlowId> flows;  // within a group by bytes, then by id: the order in which they end
  std::vector<MaxMin::Load> loads;
};
Groups group_flows(const Flows& flows, const MergedResources& merged);

}  // namespace railweave
