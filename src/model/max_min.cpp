#include "max_min.hpp"

#include <algorithm>
#include <functional>

namespace railweave {
namespace {

// Two rates that differ by less than this part came from the same arithmetic in another order.
constexpr double kRounding = 1e-12;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace

MaxMin::MaxMin(std::span<const double> capacities)
    : capacity_(capacities.begin(), capacities.end()), shares_(capacities.size()), flags_(capacities.size()), users_(capacities.size()) {
  for (std::size_t r = 0; r < capacity_.size(); ++r) shares_[r].spare = capacity_[r];
}

MaxMin::Group MaxMin::add(std::span<const Load> loads) {
  loads_.insert(loads_.end(), loads.begin(), loads.end());
  load_start_.push_back(loads_.size());
  return static_cast<Group>(load_start_.size() - 2);
}

void MaxMin::seal() {
  groups_.resize(load_start_.size() - 1);
  keys_.assign(groups_.size(), kSettled);
  member_start_.assign(capacity_.size() + 1, 0);
  for (const Load& load : loads_) ++member_start_[load.resource + 1];
  for (std::size_t r = 0; r < capacity_.size(); ++r) member_start_[r + 1] += member_start_[r];
  members_.resize(loads_.size());
  held_.resize(loads_.size());
  member_count_.assign(capacity_.size(), 0);
  held_count_.assign(capacity_.size(), 0);
  for (Group group = 0; group < groups_.size(); ++group) {
    for (const Load& load : loads(group)) members_[member_start_[load.resource] + member_count_[load.resource]++] = group;
  }
}

void MaxMin::join(Group group, std::uint32_t flows) {
  groups_[group].flows = flows;
  keys_[group] = 0;  // its rate until the next solve
  joined_.push_back(group);
  for (const Load& load : loads(group)) users_[load.resource] += std::uint64_t{flows} * load.times;
}

void MaxMin::leave(Group group) {
  GroupState& state = groups_[group];
  if (--state.flows == 0) keys_[group] = kEnded;
  for (const Load& load : loads(group)) {
    shares_[load.resource].spare += state.rate * load.times;
    users_[load.resource] -= load.times;
    if (flags_[load.resource] & kFull) changed_.push_back(load.resource);
  }
}

void MaxMin::search(Resource resource) {
  if (flags_[resource] & kSearched) return;
  flags_[resource] |= kSearched;
  search_.push_back(resource);
}

// The group gives its rate back and waits for a new one; whoever was held back by a full resource that it loads may change too.
void MaxMin::loosen(Group group) {
  const GroupState& state = groups_[group];
  keys_[group] = kLoose;
  ++unsettled_;
  const double flows = state.flows, rate = state.rate;
  for (const Load& load : loads(group)) {
    Share& share = shares_[load.resource];
    const double users = flows * load.times;
    share.spare += rate * users;
    share.waiting += users;
    std::uint32_t& flags = flags_[load.resource];
    if (!(flags & kTouched)) {
      flags |= kTouched;
      touched_.push_back(load.resource);
    }
    if ((flags & (kFull | kSearched)) == kFull) search(load.resource);
    if (drawing_) lowered_.push_back(load.resource);
  }
}

void MaxMin::nominate(Resource resource) {
  if (flags_[resource] & kQueued) return;
  flags_[resource] |= kQueued;
  candidates_.push_back(resource);
}

// Loosens the groups that the resources in search_ hold back, and so on; these resources become candidates.
void MaxMin::loosen_held() {
  while (!search_.empty()) {
    const Resource r = search_.back();
    search_.pop_back();
    nominate(r);
    const Group* const held = held_.data() + member_start_[r];
    for (std::uint32_t i = 0; i < held_count_[r]; ++i) {
      if (keys_[held[i]] >= 0) loosen(held[i]);
    }
    held_count_[r] = 0;
  }
}

// Finds who gets the level of a resource (loose_) and who has a fixed rate above it and must share after all (faster_).
// Returns whether there is anybody of the second kind.
bool MaxMin::sort_members(Resource resource, double level) {
  // No branch for what cannot be foreseen: write each member, and keep it by counting on.
  loose_.resize(member_count_[resource]);
  faster_.clear();
  const double above = level * (1 + kRounding);
  Group* const members = members_.data() + member_start_[resource];
  Group* const loose = loose_.data();
  std::uint32_t kept = 0, waiting = 0;
  for (std::uint32_t i = 0; i < member_count_[resource]; ++i) {
    const Group group = members[i];
    const double key = keys_[group];
    members[kept] = group;
    kept += key != kEnded ? 1 : 0;
    loose[waiting] = group;
    waiting += key == kLoose ? 1 : 0;
    if (key > above) faster_.push_back(group);
  }
  member_count_[resource] = kept;
  loose_.resize(waiting);
  return !faster_.empty();
}

// Whether the groups in loose_ can have the level. Resources that would have been full below it become candidates.
bool MaxMin::fits(double level) {
  const double least = level * (1 - kRounding);
  for (const Group group : loose_) {
    for (const Load& load : loads(group)) {
      const Share& share = shares_[load.resource];
      if (share.spare < least * share.waiting) nominate(load.resource);
    }
  }
  return candidates_.empty();
}

// Gives the groups in loose_ their rate.
void MaxMin::settle(Resource resource, double level) {
  Group* const held = held_.data() + member_start_[resource];
  for (const Group group : loose_) {
    GroupState& state = groups_[group];
    keys_[group] = kSettled;
    state.rate = level;
    state.bottleneck = resource;
    const double flows = state.flows;
    for (const Load& load : loads(group)) {
      const double users = flows * load.times;
      shares_[load.resource].spare -= level * users;
      shares_[load.resource].waiting -= users;
    }
    held[held_count_[resource]++] = group;
  }
  solved_.insert(solved_.end(), loose_.begin(), loose_.end());
  unsettled_ -= loose_.size();
  shares_[resource].spare = std::max(shares_[resource].spare, 0.0);
}

// The rate that each loose flow would get if the resource were the next to fill up.
double MaxMin::level(Resource resource) const noexcept {
  const Share& share = shares_[resource];
  return share.waiting == 0 ? kUnlimited : std::max(share.spare, 0.0) / share.waiting;
}

// Gives the first entry of the heap a higher level and moves it down to its place.
void MaxMin::replace_top(double level) {
  const Entry entry{level, heap_.front().resource};
  std::size_t at = 0;
  for (std::size_t child = 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size()) child += heap_[child] > heap_[child + 1] ? 1 : 0;
    if (!(entry > heap_[child])) break;
    heap_[at] = heap_[child];
    at = child;
  }
  heap_[at] = entry;
}

void MaxMin::enqueue(std::vector<Resource>& resources) {
  for (const Resource r : resources) {
    if (!(flags_[r] & kQueued)) continue;
    heap_.push_back({level(r), r});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
  }
  resources.clear();
}

// Loosens the groups in faster_ while others are settled already. That lowers the levels of what they load, so that candidates
// among it get a second entry.
void MaxMin::draw_in() {
  drawing_ = true;
  for (const Group group : faster_) {
    if (keys_[group] >= 0) loosen(group);
  }
  loosen_held();
  drawing_ = false;
  enqueue(candidates_);
  enqueue(lowered_);
}

// Loosens whatever may change, and puts the first candidates in order.
void MaxMin::begin_solve() {
  touched_.clear();
  solved_.clear();
  heap_.clear();
  for (const Group group : joined_) loosen(group);
  for (const Resource r : touched_) nominate(r);
  for (const Resource r : changed_) search(r);
  loosen_held();
  for (const Resource r : candidates_) heap_.push_back({level(r), r});
  candidates_.clear();
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>{});
}

std::span<const MaxMin::Group> MaxMin::solve() {
  begin_solve();
  while (unsettled_ != 0) {
    const Resource r = heap_.front().resource;
    const double least = level(r);
    if (least > heap_.front().level) {
      replace_top(least);
    } else if (sort_members(r, least)) {
      draw_in();
    } else if (fits(least)) {
      settle(r, least);
    } else {
      enqueue(candidates_);
    }
  }
  finish_solve();
  return solved_;
}

void MaxMin::finish_solve() {
  for (const Resource r : touched_) flags_[r] = 0;
  for (const Resource r : changed_) flags_[r] = 0;
  for (const Group group : solved_) {
    flags_[groups_[group].bottleneck] = kFull;
    keys_[group] = groups_[group].rate;
  }
  changed_.clear();
  joined_.clear();
}

}  // namespace railweave
