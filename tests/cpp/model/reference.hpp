// A max-min fair simulation that is slow and plain: all rates again after every event, by filling all flows' rates together.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "railweave/model/flows.hpp"

namespace railweave::reference {

inline std::vector<double> max_min_rates(const Flows& flows, const std::vector<FlowId>& active) {
  const auto capacities = flows.capacities_Bps();
  std::vector<double> spare(capacities.begin(), capacities.end());
  std::vector<double> rate(flows.size(), 0.0);
  std::vector<FlowId> rising = active;
  while (!rising.empty()) {
    std::vector<double> users(spare.size(), 0.0);
    for (const FlowId id : rising) {
      for (const ResourceId r : flows.resources(id)) users[r] += 1;
    }
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t r = 0; r < spare.size(); ++r) {
      if (users[r] > 0) step = std::min(step, spare[r] / users[r]);
    }
    for (std::size_t r = 0; r < spare.size(); ++r) spare[r] -= step * users[r];
    for (const FlowId id : rising) rate[id] += step;
    std::erase_if(rising, [&](FlowId id) {
      const auto resources = flows.resources(id);
      return std::any_of(resources.begin(), resources.end(),
                         [&](ResourceId r) { return spare[r] <= 1e-9 * static_cast<double>(capacities[r]); });
    });
  }
  return rate;
}

// Completion times in seconds.
inline std::vector<double> simulate(const Flows& flows) {
  std::vector<double> left(flows.size()), finish(flows.size());
  std::vector<FlowId> waiting, active;
  double now = 0;
  for (FlowId id = 0; id < flows.size(); ++id) {
    left[id] = static_cast<double>(flows[id].bytes);
    finish[id] = static_cast<double>(flows[id].start_ns + flows[id].latency_ns) * 1e-9;
    if (flows[id].bytes != 0 && !flows.resources(id).empty()) waiting.push_back(id);
  }
  while (!waiting.empty() || !active.empty()) {
    std::erase_if(waiting, [&](FlowId id) {
      if (static_cast<double>(flows[id].start_ns) * 1e-9 > now) return false;
      active.push_back(id);
      return true;
    });
    const std::vector<double> rate = max_min_rates(flows, active);
    double next = std::numeric_limits<double>::infinity();
    for (const FlowId id : waiting) next = std::min(next, static_cast<double>(flows[id].start_ns) * 1e-9);
    for (const FlowId id : active) next = std::min(next, now + left[id] / rate[id]);
    for (const FlowId id : active) left[id] -= rate[id] * (next - now);
    now = next;
    std::erase_if(active, [&](FlowId id) {
      if (left[id] > 1e-9 * static_cast<double>(flows[id].bytes)) return false;
      finish[id] = now + static_cast<double>(flows[id].latency_ns) * 1e-9;
      return true;
    });
  }
  return finish;
}

// Flows over random resources, some of them twice, with sizes, starts and latencies that sometimes coincide.
template <typename Random>
Flows random_flows(Random& random, std::size_t flows, std::size_t resources, std::size_t most_loads) {
  std::vector<std::uint64_t> capacities(resources);
  for (auto& capacity : capacities) capacity = 1'000'000'000u * (1 + random() % 8) + (random() % 2 ? random() % 1'000'000'000u : 0);
  Flows result(capacities);
  for (std::size_t i = 0; i < flows; ++i) {
    std::vector<ResourceId> loads(1 + random() % most_loads);
    for (auto& load : loads) load = static_cast<ResourceId>(random() % resources);
    const std::uint64_t bytes = random() % 3 ? random() % 1'000'000'000u : 1'000'000u * (random() % 16);
    result.add({bytes, random() % 4 ? 0 : random() % 100'000'000u, random() % 3 * 1000}, loads);
  }
  return result;
}

}  // namespace railweave::reference
