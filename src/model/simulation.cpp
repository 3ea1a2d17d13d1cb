#include "railweave/model/simulation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "groups.hpp"
#include "max_min.hpp"
#include "railweave/error.hpp"

namespace railweave {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Completions that are this close, relative to the time, happen together: symmetric flows end at one instant, but the sums
// that lead there are rounded differently.
constexpr double kSameInstant = 1e-10;
// How much of the loss that batching may cause in the whole time is allowed from the start, as a part of it.
constexpr double kAdvance = 1.0 / 16;
// Once a resource has used its allowance up, each completion on it would ask for a solve. This part of the allowance is the
// least time between two, so that their number stays below (1 / kLeastWindow / batching) in the time of the bound.
constexpr double kLeastWindow = 0.25;

double seconds(std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

class Simulator {
 public:
  Simulator(const Flows& flows, const SimulationSettings& settings);
  Simulation run();

 private:
  using Group = MaxMin::Group;
  using Resource = MaxMin::Resource;  // merged

  struct Progress {
    double service = 0;  // bytes that each flow of the group has moved
    double next = 0;     // bytes at which the next of them ends
    double since = 0;    // up to this time
    double rate = 0;     // and at this rate from then on
    Resource bottleneck = MaxMin::kNobody;
    std::uint32_t history = kNone;  // last entry in Simulation::history_
    std::uint32_t place = 0;        // in active_ and ends_
    std::size_t next_flow = 0;      // who ends next, in groups_.flows
  };
  struct Channel {
    double rate = 0;   // bytes/s that pass
    double since = 0;  // counted up to this time
    double idle = 0;   // part of the capacity that flows have left free since the last solve
    double idle_since = 0;
    double lost = 0;  // seconds of its time lost to batching so far
  };
  struct Event {
    double time;
    Group group;
    bool operator>(const Event& other) const noexcept { return time != other.time ? time > other.time : group > other.group; }
  };

  void finish_idle_flows();
  void prepare_series();
  void join_starting();
  void share_out();
  void advance();
  void end_next(Group group, double time);
  void settle(Group group, double time);
  void aim(Group group);
  void plan_end(Group group);
  void settle_channel(Resource resource, double time);
  void free_part(Resource resource, double rate, double time);
  void deposit(Resource resource, double begin, double end, double rate);
  void widen_slices(double end);
  double next_start() const { return joined_ < by_start_.size() ? seconds(groups_.groups[by_start_[joined_]].start_ns) : kNever; }
  double first_end() const;
  void drop_ended();

  const Flows& flows_;
  const SimulationSettings settings_;
  MergedResources merged_;
  Groups groups_;
  MaxMin shares_;
  Simulation result_;

  double now_ = 0;
  double window_ = 0;    // time between the last two solves
  double deadline_ = 0;  // rates must be shared out again by then
  double earliest_ = 0;  // but not before this
  std::vector<Progress> progress_;
  std::vector<Channel> channels_;
  std::vector<double> waited_;  // per merged resource
  std::vector<Group> by_start_, active_;
  std::vector<double> ends_;  // of each group in active_: when its next flow ends; kNever: all have ended
  std::size_t joined_ = 0, ended_ = 0;
  std::size_t slice_ = 0;  // that bytes were counted into last
  double slice_begin_ = 0, slice_end_ = 0;
  std::vector<Event> events_;
  std::vector<Resource> idle_;
};

namespace {

std::vector<double> narrowest_capacities(const Flows& flows, const MergedResources& merged) {
  std::vector<double> capacities;
  capacities.reserve(merged.narrowest.size());
  for (const ResourceId resource : merged.narrowest) capacities.push_back(static_cast<double>(flows.capacities_Bps()[resource]));
  return capacities;
}

}  // namespace

Simulator::Simulator(const Flows& flows, const SimulationSettings& settings)
    : flows_(flows),
      settings_(settings),
      merged_(merge_resources(flows)),
      groups_(group_flows(flows, merged_)),
      shares_(narrowest_capacities(flows, merged_)) {
  const std::size_t groups = groups_.groups.size();
  for (const Groups::Group& group : groups_.groups) {
    shares_.add({groups_.loads.data() + group.first_load, group.end_load - group.first_load});
  }
  shares_.seal();
  progress_.resize(groups);
  channels_.resize(merged_.narrowest.size());
  waited_.assign(merged_.narrowest.size(), 0.0);
  by_start_.resize(groups);
  for (Group g = 0; g < groups; ++g) by_start_[g] = g;
  std::stable_sort(by_start_.begin(), by_start_.end(),
                   [this](Group a, Group b) { return groups_.groups[a].start_ns < groups_.groups[b].start_ns; });
  finish_idle_flows();
  prepare_series();
}

// Flows that load nothing or carry nothing end when their latency is over.
void Simulator::finish_idle_flows() {
  result_.finish_.resize(flows_.size());
  result_.last_wait_.assign(flows_.size(), kNone);
  for (FlowId id = 0; id < flows_.size(); ++id) {
    result_.finish_[id] = seconds(flows_[id].start_ns) + seconds(flows_[id].latency_ns);
  }
}

void Simulator::prepare_series() {
  result_.bytes_ = flows_.load();
  result_.waited_.assign(result_.bytes_.size(), 0.0);
  result_.last_held_.assign(result_.bytes_.size(), 0);
  for (std::size_t r = 0; r < result_.bytes_.size(); ++r) {
    if (result_.bytes_[r] == 0) continue;
    result_.load_bound_ = std::max(result_.load_bound_, result_.bytes_[r] / static_cast<double>(flows_.capacities_Bps()[r]));
  }
  result_.series_ = merged_.merged_of;
  result_.carried_.assign(merged_.narrowest.size() * Simulation::kSlices, 0.0);
  result_.slice_seconds_ = result_.load_bound_ / static_cast<double>(Simulation::kSlices);
}

Simulation Simulator::run() {
  while (joined_ < by_start_.size() || !active_.empty()) {
    if (active_.empty()) now_ = next_start();
    join_starting();
    share_out();
    advance();
  }
  for (Resource r = 0; r < channels_.size(); ++r) {
    settle_channel(r, now_);
    result_.batching_loss_ = std::max(result_.batching_loss_, channels_[r].lost);
    result_.waited_[merged_.narrowest[r]] = waited_[r];
  }
  for (const double time : result_.finish_) result_.seconds_ = std::max(result_.seconds_, time);
  if (result_.slice_seconds_ > 0) {
    result_.slices_ = std::min(Simulation::kSlices, static_cast<std::size_t>(std::ceil(now_ / result_.slice_seconds_ * (1 - 1e-12))));
  }
  return std::move(result_);
}

void Simulator::join_starting() {
  while (next_start() <= now_ * (1 + kSameInstant)) {
    const Group group = by_start_[joined_++];
    const Groups::Group& flows = groups_.groups[group];
    shares_.join(group, static_cast<std::uint32_t>(flows.end_flow - flows.first_flow));
    Progress& progress = progress_[group];
    progress.since = now_;
    progress.next_flow = flows.first_flow;
    progress.place = static_cast<std::uint32_t>(active_.size());
    active_.push_back(group);
    ends_.push_back(kNever);
    aim(group);
  }
}

void Simulator::share_out() {
  for (const Resource r : idle_) {
    Channel& channel = channels_[r];
    channel.lost += channel.idle * (now_ - channel.idle_since);
    channel.idle = 0;
  }
  idle_.clear();
  for (const Group group : shares_.solve()) {
    settle(group, now_);
    Progress& progress = progress_[group];
    progress.rate = shares_.rate(group);
    if (progress.bottleneck != shares_.bottleneck(group)) {
      progress.bottleneck = shares_.bottleneck(group);
      result_.history_.push_back({now_, merged_.narrowest[progress.bottleneck], progress.history});
      progress.history = static_cast<std::uint32_t>(result_.history_.size() - 1);
    }
    plan_end(group);
  }
  for (const Resource r : shares_.touched()) {
    settle_channel(r, now_);
    channels_[r].rate = shares_.load(r);
  }
  ++result_.solves_;
}

// The earliest next end. Eight at a time, because a chain of comparisons would wait for each one before it.
double Simulator::first_end() const {
  std::array<double, 8> first;
  first.fill(kNever);
  std::size_t i = 0;
  for (; i + first.size() <= ends_.size(); i += first.size()) {
    for (std::size_t k = 0; k < first.size(); ++k) first[k] = std::min(first[k], ends_[i + k]);
  }
  for (; i < ends_.size(); ++i) first[0] = std::min(first[0], ends_[i]);
  return *std::min_element(first.begin(), first.end());
}

// Lets flows end, at the rates of the last solve, until these have to be shared out again.
void Simulator::advance() {
  const double begin = now_;
  deadline_ = next_start();
  earliest_ = begin + settings_.batching * kLeastWindow * result_.load_bound_;
  // Only groups that end soon are put in order. How soon is a guess: if nothing stops the flows by then, look further ahead.
  double ahead = 2 * window_;
  for (;;) {
    const double first = first_end();
    if (first == kNever || first > deadline_ * (1 + kSameInstant)) break;
    const double horizon = std::min(deadline_ * (1 + kSameInstant), first * (1 + kSameInstant) + ahead);
    ahead = std::max(2 * ahead, horizon - begin);
    events_.clear();
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i] <= horizon) events_.push_back({ends_[i], active_[i]});
    }
    std::make_heap(events_.begin(), events_.end(), std::greater<>{});
    while (!events_.empty() && events_.front().time <= deadline_ * (1 + kSameInstant)) {
      const Event event = events_.front();
      std::pop_heap(events_.begin(), events_.end(), std::greater<>{});
      events_.pop_back();
      end_next(event.group, event.time);
      const double next = ends_[progress_[event.group].place];
      if (next <= horizon) {
        events_.push_back({next, event.group});
        std::push_heap(events_.begin(), events_.end(), std::greater<>{});
      }
    }
    if (deadline_ * (1 + kSameInstant) <= horizon) break;
  }
  if (deadline_ != kNever) now_ = std::max(now_, deadline_);
  window_ = settings_.batching > 0 ? now_ - begin : 0;
  drop_ended();
}

void Simulator::end_next(Group group, double time) {
  settle(group, time);
  now_ = std::max(now_, time);
  Progress& progress = progress_[group];
  const FlowId flow = groups_.flows[progress.next_flow++];
  progress.service = static_cast<double>(flows_[flow].bytes);
  result_.finish_[flow] = time + seconds(flows_[flow].latency_ns);
  result_.last_wait_[flow] = progress.history;
  ++result_.last_held_[merged_.narrowest[progress.bottleneck]];
  shares_.leave(group);
  for (const MaxMin::Load& load : shares_.loads(group)) free_part(load.resource, progress.rate * load.times, time);
  aim(group);
  plan_end(group);
}

void Simulator::settle(Group group, double time) {
  Progress& progress = progress_[group];
  const double passed = time - progress.since;
  progress.service += progress.rate * passed;
  progress.since = time;
  if (progress.bottleneck != MaxMin::kNobody) waited_[progress.bottleneck] += passed * shares_.flows(group);
}

// Reads where the group's next flow ends.
void Simulator::aim(Group group) {
  Progress& progress = progress_[group];
  const bool all_ended = progress.next_flow == groups_.groups[group].end_flow;
  progress.next = all_ended ? kNever : static_cast<double>(flows_[groups_.flows[progress.next_flow]].bytes);
  ended_ += all_ended ? 1 : 0;
}

void Simulator::plan_end(Group group) {
  const Progress& progress = progress_[group];
  ends_[progress.place] = progress.since + std::max(progress.next - progress.service, 0.0) / progress.rate;
}

// `rate` of the resource becomes free at `time`: that is lost until rates are shared out again.
void Simulator::free_part(Resource resource, double rate, double time) {
  settle_channel(resource, time);
  Channel& channel = channels_[resource];
  channel.rate = shares_.load(resource);
  if (channel.idle == 0) {
    idle_.push_back(resource);
  } else {
    channel.lost += channel.idle * (time - channel.idle_since);
  }
  channel.idle_since = time;
  channel.idle += rate / shares_.capacity(resource);
  if (!shares_.is_wanted(resource)) {
    channel.idle = 0;
    return;
  }
  // The allowance grows with the time, so that it is not spent at the start; but small flows, which all end there, may use some
  // of it in advance.
  const double advance = kAdvance * result_.load_bound_;
  const double allowed = settings_.batching * std::max(time, advance) - channel.lost;
  const double growth = time < advance ? 0 : settings_.batching;
  if (channel.idle <= growth) return;
  deadline_ = std::min(deadline_, std::max(earliest_, time + std::max(allowed, 0.0) / (channel.idle - growth)));
}

void Simulator::settle_channel(Resource resource, double time) {
  Channel& channel = channels_[resource];
  if (channel.rate > 0 && time > channel.since) deposit(resource, channel.since, time, channel.rate);
  channel.since = time;
}

// Most of the time all that happens falls into one slice, which is kept at hand.
void Simulator::deposit(Resource resource, double begin, double end, double rate) {
  constexpr std::size_t n = Simulation::kSlices;
  if (end > result_.slice_seconds_ * static_cast<double>(n)) widen_slices(end);
  double* const series = result_.carried_.data() + std::size_t{resource} * n;
  if (begin < slice_begin_ || end > slice_end_) {
    const double width = result_.slice_seconds_;
    slice_ = std::min(n - 1, static_cast<std::size_t>(begin / width));
    for (; slice_ < n - 1; ++slice_) {
      const double boundary = width * static_cast<double>(slice_ + 1);
      if (end <= boundary) break;
      series[slice_] += std::max(boundary - begin, 0.0) * rate;
      begin = std::max(begin, boundary);
    }
    slice_begin_ = width * static_cast<double>(slice_);
    slice_end_ = width * static_cast<double>(slice_ + 1);
  }
  series[slice_] += (end - begin) * rate;
}

// Makes slices twice as wide until they reach `end`.
void Simulator::widen_slices(double end) {
  constexpr std::size_t n = Simulation::kSlices;
  while (end > result_.slice_seconds_ * static_cast<double>(n)) {
    for (std::size_t i = 0; i < result_.carried_.size(); i += n) {
      double* const series = result_.carried_.data() + i;
      for (std::size_t s = 0; s < n / 2; ++s) series[s] = series[2 * s] + series[2 * s + 1];
      std::fill(series + n / 2, series + n, 0.0);
    }
    result_.slice_seconds_ *= 2;
  }
  slice_begin_ = slice_end_ = 0;
}

// Groups that have ended stay in the list until they are a quarter of it, so that removing them costs little per group.
void Simulator::drop_ended() {
  if (ended_ * 4 < active_.size() && ended_ != active_.size()) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    if (ends_[i] == kNever) continue;
    progress_[active_[i]].place = static_cast<std::uint32_t>(kept);
    active_[kept] = active_[i];
    ends_[kept++] = ends_[i];
  }
  active_.resize(kept);
  ends_.resize(kept);
  ended_ = 0;
}

std::vector<Wait> Simulation::waits(FlowId id) const {
  std::vector<Wait> waits;
  for (std::uint32_t at = last_wait_.at(id); at != kNone; at = history_[at].previous) {
    waits.push_back({history_[at].begin, history_[at].resource});
  }
  std::reverse(waits.begin(), waits.end());
  return waits;
}

std::span<const double> Simulation::carried_bytes(ResourceId id) const noexcept {
  if (series_[id] == kNone) return {};
  return {carried_.data() + std::size_t{series_[id]} * kSlices, slices_};
}

Simulation simulate(const Flows& flows, const SimulationSettings& settings) {
  if (!(settings.batching >= 0 && settings.batching < 1)) {
    throw Error("batching of " + std::to_string(settings.batching) + "; expected a part of the simulated time from 0 (exact) to below 1");
  }
  return Simulator(flows, settings).run();
}

}  // namespace railweave
