// Max-min fair rates of groups of flows over resources, kept up to date while flows end and groups join.
//
// A group is flows that load the same resources, so they have one rate. After solve() each group has a bottleneck: a resource
// that is full and on which no flow is faster. Rates with that property are unique (Bertsekas and Gallager, Data Networks, 6.5.2).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace railweave {

class MaxMin {
 public:
  using Group = std::uint32_t;
  using Resource = std::uint32_t;
  static constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();

  struct Load {
    Resource resource;
    std::uint32_t times;  // how often a byte of the group's flows loads it
  };

  explicit MaxMin(std::span<const double> capacities);

  // A group and what it loads; ids count from 0. All groups are added before the first one joins.
  Group add(std::span<const Load> loads);
  void seal();

  // The group's flows begin, all at once and once only.
  void join(Group group, std::uint32_t flows);
  // One flow of the group ends. Others keep their rates until the next solve().
  void leave(Group group);

  // Brings the rates up to date and returns the groups whose rate or bottleneck may have changed, in the order of rising rate.
  // Only what can change is computed again. A resource whose flows changed lets go of the groups it holds back, these change
  // the other full resources that they load, and so on; a group held back elsewhere is drawn in only if a resource's new
  // level turns out to be below its rate. Whatever is left out keeps a bottleneck that nobody touched, so it is still right.
  // Only resources that held somebody back, and those of groups that joined, are candidates from the start. Any other one
  // becomes a candidate when the first of its groups is about to get more than its level: until then it changed nothing.
  std::span<const Group> solve();

  std::uint32_t flows(Group group) const noexcept { return groups_[group].flows; }
  double rate(Group group) const noexcept { return groups_[group].rate; }
  Resource bottleneck(Group group) const noexcept { return groups_[group].bottleneck; }
  std::span<const Load> loads(Group group) const noexcept {
    return {loads_.data() + load_start_[group], loads_.data() + load_start_[group + 1]};
  }
  double capacity(Resource resource) const noexcept { return capacity_[resource]; }
  // Bytes/s that flow through a resource now.
  double load(Resource resource) const noexcept { return capacity_[resource] - shares_[resource].spare; }
  // Whether flows still wait for the resource: it was full at the last solve() and not all who load it have left.
  bool is_wanted(Resource resource) const noexcept { return (flags_[resource] & kFull) && users_[resource] != 0; }
  // Resources whose load the last solve() may have changed.
  std::span<const Resource> touched() const noexcept { return touched_; }

 private:
  struct Share {
    double spare = 0;    // capacity less the load of all groups that have a rate
    double waiting = 0;  // flows * times of the loose groups
  };
  // full: some group's bottleneck at the last solve. Of the solve that is under way: touched by a loosened group; its held
  // groups are let go; a candidate, so in the heap.
  static constexpr std::uint32_t kFull = 1, kTouched = 2, kSearched = 4, kQueued = 8;
  struct GroupState {
    double rate = 0;
    std::uint32_t flows = 0;
    Resource bottleneck = kNobody;
  };
  // What a solve wants to know of a group: its rate if that is fixed, or else one of these. Loose: waits for a rate. Settled:
  // got it in the solve that is under way, and keeps it there (or has not joined). Ended: has no flows any more.
  static constexpr double kLoose = -1, kSettled = -2, kEnded = -3;
  struct Entry {
    double level;
    Resource resource;
    // Without a branch, which would be foreseen wrongly half of the time.
    bool operator>(const Entry& other) const noexcept {
      const int is_higher = level > other.level, is_equal = level == other.level, is_later = resource > other.resource;
      return (is_higher | (is_equal & is_later)) != 0;
    }
  };

  void begin_solve();
  void loosen(Group group);
  void loosen_held();
  void search(Resource resource);
  void nominate(Resource resource);
  void draw_in();
  bool sort_members(Resource resource, double level);
  bool fits(double level);
  void settle(Resource resource, double level);
  double level(Resource resource) const noexcept;
  void enqueue(std::vector<Resource>& resources);
  void replace_top(double level);
  void finish_solve();

  std::vector<double> capacity_;
  std::vector<Share> shares_;
  std::vector<std::uint32_t> flags_;         // not of bytes, which the compiler takes to overlap everything
  std::vector<std::uint64_t> users_;         // flows * times of all groups
  std::vector<std::size_t> member_start_;    // per resource: its groups in members_
  std::vector<std::uint32_t> member_count_;  // so many of them, those that had flows when last looked at
  std::vector<Group> members_;
  std::vector<std::uint32_t> held_count_;  // per resource: so many groups in its part of held_
  std::vector<Group> held_;                // those whose bottleneck it is; laid out as members_

  std::vector<GroupState> groups_;
  std::vector<double> keys_;  // per group
  std::vector<std::size_t> load_start_{0};
  std::vector<Load> loads_;

  std::vector<Resource> changed_;  // full resources that flows left since the last solve
  std::vector<Group> joined_;
  std::vector<Resource> touched_, search_, candidates_, lowered_;
  bool drawing_ = false;
  std::size_t unsettled_ = 0;  // groups that are loose
  std::vector<Group> solved_, loose_, faster_;
  std::vector<Entry> heap_;  // least level first; an entry may be out of date, but never too high
};

}  // namespace railweave
