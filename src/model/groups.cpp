#include "groups.hpp"

#include <algorithm>
#include <unordered_map>

namespace railweave {
namespace {

// splitmix64's finaliser (public domain, Sebastiano Vigna): spreads every bit of its input over the output.
std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Sum over the loads of a resource of a random 128-bit number for each flow: equal for equal flow sets, and for n different
// ones equal by chance with probability n^2 / 2^129.
struct Signature {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Signature&) const = default;
};
struct SignatureHash {
  std::size_t operator()(const Signature& s) const noexcept { return static_cast<std::size_t>(s.low ^ (s.high >> 1)); }
};

bool moves(const Flows& flows, FlowId id) { return flows[id].bytes != 0 && !flows.resources(id).empty(); }

class Grouper {
 public:
  Grouper(const Flows& flows, const MergedResources& merged) : flows_(flows), merged_(merged) { group_of_.assign(flows.size(), kNone); }

  Groups run() {
    for (FlowId id = 0; id < flows_.size(); ++id) {
      if (moves(flows_, id)) group_of_[id] = find(id);
    }
    collect();
    return std::move(result_);
  }

 private:
  // The merged resources that a flow loads, ascending, each with how often a byte loads its narrowest.
  void read_loads(FlowId id) {
    loads_.clear();
    for (const ResourceId resource : flows_.resources(id)) {
      const std::uint32_t merged = merged_.merged_of[resource];
      if (merged_.narrowest[merged] != resource) continue;
      if (!loads_.empty() && loads_.back().resource == merged) {
        ++loads_.back().times;
      } else {
        loads_.push_back({merged, 1});
      }
    }
    std::sort(loads_.begin(), loads_.end(), [](const auto& a, const auto& b) { return a.resource < b.resource; });
  }

  std::uint32_t find(FlowId id) {
    read_loads(id);
    const std::uint64_t start_ns = flows_[id].start_ns;
    std::uint64_t hash = mix(start_ns);
    for (const MaxMin::Load& load : loads_) hash = mix(hash ^ (std::uint64_t{load.resource} << 32 | load.times));
    for (std::uint64_t key = hash;; ++key) {
      const auto [slot, is_new] = known_.try_emplace(key, static_cast<std::uint32_t>(result_.groups.size()));
      if (is_new) {
        result_.groups.push_back({start_ns, 0, 1, result_.loads.size(), result_.loads.size() + loads_.size()});
        result_.loads.insert(result_.loads.end(), loads_.begin(), loads_.end());
        return slot->second;
      }
      Groups::Group& group = result_.groups[slot->second];
      if (group.start_ns == start_ns && same_loads(group)) {
        ++group.end_flow;
        return slot->second;
      }
    }
  }

  bool same_loads(const Groups::Group& group) const {
    return std::equal(loads_.begin(), loads_.end(), result_.loads.begin() + static_cast<std::ptrdiff_t>(group.first_load),
                      result_.loads.begin() + static_cast<std::ptrdiff_t>(group.end_load),
                      [](const auto& a, const auto& b) { return a.resource == b.resource && a.times == b.times; });
  }

  // So far end_flow counts a group's flows; now they get their places.
  void collect() {
    std::size_t next = 0;
    for (Groups::Group& group : result_.groups) {
      const std::size_t count = group.end_flow;
      group.first_flow = group.end_flow = next;
      next += count;
    }
    result_.flows.resize(next);
    for (FlowId id = 0; id < flows_.size(); ++id) {
      if (group_of_[id] != kNone) result_.flows[result_.groups[group_of_[id]].end_flow++] = id;
    }
    for (const Groups::Group& group : result_.groups) {
      std::stable_sort(result_.flows.begin() + static_cast<std::ptrdiff_t>(group.first_flow),
                       result_.flows.begin() + static_cast<std::ptrdiff_t>(group.end_flow),
                       [this](FlowId a, FlowId b) { return flows_[a].bytes < flows_[b].bytes; });
    }
  }

  const Flows& flows_;
  const MergedResources& merged_;
  Groups result_;
  std::vector<MaxMin::Load> loads_;
  std::vector<std::uint32_t> group_of_;
  std::unordered_map<std::uint64_t, std::uint32_t> known_;
};

}  // namespace

MergedResources merge_resources(const Flows& flows) {
  const auto capacities = flows.capacities_Bps();
  std::vector<Signature> signatures(capacities.size());
  for (FlowId id = 0; id < flows.size(); ++id) {
    if (!moves(flows, id)) continue;
    const std::uint64_t low = mix(id), high = mix(low);
    for (const ResourceId resource : flows.resources(id)) {
      signatures[resource].low += low;
      signatures[resource].high += high;
    }
  }
  MergedResources merged;
  merged.merged_of.assign(capacities.size(), MergedResources::kIdle);
  std::unordered_map<Signature, std::uint32_t, SignatureHash> known;
  for (ResourceId resource = 0; resource < capacities.size(); ++resource) {
    if (signatures[resource] == Signature{}) continue;
    const auto [slot, is_new] = known.try_emplace(signatures[resource], static_cast<std::uint32_t>(merged.narrowest.size()));
    merged.merged_of[resource] = slot->second;
    if (is_new) {
      merged.narrowest.push_back(resource);
    } else if (capacities[resource] < capacities[merged.narrowest[slot->second]]) {
      merged.narrowest[slot->second] = resource;
    }
  }
  return merged;
}

Groups group_flows(const Flows& flows, const MergedResources& merged) { return Grouper(flows, merged).run(); }

}  // namespace railweave
