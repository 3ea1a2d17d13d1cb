#include "max_min.hpp"

#include <algorithm>
#include <functional>

namespace railweave {
namespace {

// Two rates that differ by less than this part came from the same arithmetic in another order.
constexpr double kRounding = 1e-12;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace

MaxMin::MaxMin(std::span<const double> capacities) : capacity_(capacities.begin(), capacities.end()), resources_(capacities.size()) {
  for (std::size_t r = 0; r < capacity_.size(); ++r) resources_[r].spare = capacity_[r];
}

MaxMin::Group MaxMin::add(std::span<const Load> loads) {
  loads_.insert(loads_.end(), loads.begin(), loads.end());
  load_start_.push_back(loads_.size());
  return static_cast<Group>(load_start_.size() - 2);
}

void MaxMin::seal() {
  groups_.resize(load_start_.size() - 1);
  member_start_.assign(capacity_.size() + 1, 0);
  for (const Load& load : loads_) ++member_start_[load.resource + 1];
  for (std::size_t r = 0; r < capacity_.size(); ++r) member_start_[r + 1] += member_start_[r];
  members_.resize(loads_.size());
  member_count_.assign(capacity_.size(), 0);
  for (Group group = 0; group < groups_.size(); ++group) {
    for (const Load& load : loads(group)) members_[member_start_[load.resource] + member_count_[load.resource]++] = group;
  }
}

void MaxMin::join(Group group, std::uint32_t flows) {
  groups_[group].flows = flows;
  groups_[group].phase = Phase::fixed;  // at rate 0, until the next solve
  joined_.push_back(group);
  for (const Load& load : loads(group)) resources_[load.resource].users += std::uint64_t{flows} * load.times;
}

void MaxMin::leave(Group group) {
  GroupState& state = groups_[group];
  if (--state.flows == 0) state.phase = Phase::ended;
  for (const Load& load : loads(group)) {
    ResourceState& resource = resources_[load.resource];
    resource.spare += state.rate * load.times;
    resource.users -= load.times;
    if (resource.full) changed_.push_back(load.resource);
  }
}

void MaxMin::search(Resource resource) {
  if (resources_[resource].searched) return;
  resources_[resource].searched = true;
  search_.push_back(resource);
}

// The group gives its rate back and waits for a new one; whoever was held back by a full resource that it loads may change too.
void MaxMin::loosen(Group group) {
  GroupState& state = groups_[group];
  state.phase = Phase::loose;
  ++unsettled_;
  const double flows = state.flows;
  for (const Load& load : loads(group)) {
    ResourceState& resource = resources_[load.resource];
    const double users = flows * load.times;
    resource.spare += state.rate * users;
    resource.waiting += users;
    lowered_.push_back(load.resource);
    if (!resource.touched) {
      resource.touched = true;
      touched_.push_back(load.resource);
    }
    if (resource.full) search(load.resource);
  }
}

// Loosens the groups that the resources in search_ hold back, and so on.
void MaxMin::loosen_held() {
  while (!search_.empty()) {
    const Resource r = search_.back();
    search_.pop_back();
    Group* const members = members_.data() + member_start_[r];
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < member_count_[r]; ++i) {
      const Group group = members[i];
      const GroupState& state = groups_[group];
      if (state.phase == Phase::ended) continue;
      members[kept++] = group;
      if (state.bottleneck == r && state.phase == Phase::fixed) loosen(group);
    }
    member_count_[r] = kept;
  }
}

// Finds who gets the level of a resource (loose_) and who has a fixed rate above it and must share after all (faster_).
// Returns whether there is anybody of the second kind.
bool MaxMin::sort_members(Resource resource, double level) {
  loose_.clear();
  faster_.clear();
  const double above = level * (1 + kRounding);
  const Group* const members = members_.data() + member_start_[resource];
  for (std::uint32_t i = 0; i < member_count_[resource]; ++i) {
    const GroupState& state = groups_[members[i]];
    if (state.phase == Phase::loose) {
      loose_.push_back(members[i]);
    } else if (state.phase == Phase::fixed && state.rate > above) {
      faster_.push_back(members[i]);
    }
  }
  return !faster_.empty();
}

// Gives the groups in loose_ their rate.
void MaxMin::settle(Resource resource, double level) {
  for (const Group group : loose_) {
    GroupState& state = groups_[group];
    state.phase = Phase::settled;
    state.rate = level;
    state.bottleneck = resource;
    const double flows = state.flows;
    for (const Load& load : loads(group)) {
      const double users = flows * load.times;
      resources_[load.resource].spare -= level * users;
      resources_[load.resource].waiting -= users;
    }
  }
  solved_.insert(solved_.end(), loose_.begin(), loose_.end());
  unsettled_ -= loose_.size();
  resources_[resource].spare = std::max(resources_[resource].spare, 0.0);
}

// The rate that each loose flow would get if the resource were the next to fill up.
double MaxMin::level(Resource resource) const noexcept {
  const ResourceState& state = resources_[resource];
  return state.waiting == 0 ? kUnlimited : std::max(state.spare, 0.0) / state.waiting;
}

// Gives the first entry of the heap a higher level and moves it down to its place.
void MaxMin::replace_top(double level) {
  const Entry entry{level, heap_.front().resource};
  std::size_t at = 0;
  for (std::size_t child = 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && heap_[child] > heap_[child + 1]) ++child;
    if (!(entry > heap_[child])) break;
    heap_[at] = heap_[child];
    at = child;
  }
  heap_[at] = entry;
}

// Resources whose level may have fallen, because groups were loosened while others were settled, get a second entry.
void MaxMin::push_lowered() {
  for (const Resource r : lowered_) {
    heap_.push_back({level(r), r});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
  }
  lowered_.clear();
}

std::span<const MaxMin::Group> MaxMin::solve() {
  touched_.clear();
  solved_.clear();
  heap_.clear();
  for (const Group group : joined_) loosen(group);
  for (const Resource r : changed_) search(r);
  loosen_held();
  for (const Resource r : touched_) heap_.push_back({level(r), r});
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>{});
  lowered_.clear();
  while (unsettled_ != 0) {
    const Resource r = heap_.front().resource;
    const double least = level(r);
    if (least > heap_.front().level) {
      replace_top(least);
    } else if (sort_members(r, least)) {
      for (const Group group : faster_) {
        if (groups_[group].phase == Phase::fixed) loosen(group);
      }
      loosen_held();
      push_lowered();
    } else {
      settle(r, least);
    }
  }
  finish_solve();
  return solved_;
}

void MaxMin::finish_solve() {
  for (const Resource r : touched_) resources_[r].full = resources_[r].touched = resources_[r].searched = false;
  for (const Resource r : changed_) resources_[r].full = resources_[r].searched = false;
  for (const Group group : solved_) {
    resources_[groups_[group].bottleneck].full = true;
    groups_[group].phase = Phase::fixed;
  }
  changed_.clear();
  joined_.clear();
}

}  // namespace railweave
