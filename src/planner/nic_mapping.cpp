#include "railweave/planner/nic_mapping.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "nic_symmetry.hpp"

namespace railweave {

namespace {

using Choice = std::vector<std::uint32_t>;  // positions of NICs, ascending

class Search {
 public:
  Search(const Fabric& fabric, NodeId node, std::span<const RankGpu> gpus, std::span<const RankNic> nics,
         const std::vector<std::vector<std::optional<NicWay>>>& ways, const NicMappingRules& rules)
      : fabric_(fabric), nics_(nics), ways_(ways), rules_(rules), symmetry_(fabric, node, gpus, nics, ways) {
    // Several NICs a rank only where there are more NICs than ranks; else ranks share.
    width_ = std::max<std::size_t>(1, nics.size() / gpus.size());
    for (std::size_t rank = 0; rank < gpus.size(); ++rank) unit_ = std::lcm(unit_, count_of(rank));
    least_cost_.assign(gpus.size() + 1, 0);
    for (std::size_t rank = gpus.size(); rank-- > 0;) least_cost_[rank] = least_cost_[rank + 1] + cost(rank, first_of(rank, false));
    even_ = even_time();
    load_.assign(fabric.resources().size(), 0);
    users_.assign(nics.size(), 0);
    for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
      for (const Load& load : unavoidable_.emplace_back(unavoidable(rank))) load_[load.resource] += load.units;
    }
  }

  NicMapping run() {
    double bound = even_;
    for (ResourceId r = 0; r < load_.size(); ++r) bound = std::max(bound, time(r, load_[r]));
    NicMapping found;
    if (width_ > 1) found.nics = shared_out();
    const bool is_settled = width_ > 1 && is_best(found.nics, bound);
    if (!is_settled && width_ > 1 && choices() > rules_.most_steps) {
      steps_ = rules_.most_steps;
    } else if (!is_settled) {
      search(bound);
      found.nics = best_nics();
    }
    std::tie(found.seconds_per_byte, found.bottleneck) = bound_of(found.nics);
    found.nearest_seconds_per_byte = bound_of(nearest()).first;
    found.steps = steps_;
    return found;
  }

 private:
  struct Load {
    ResourceId resource;
    std::uint64_t units;
  };
  struct Option {
    Choice nics;
    std::uint64_t cost;
    std::vector<Load> beyond{};  // by resource, each once, what is not unavoidable
  };
  struct Key {
    double bound, busiest_nic;
    std::uint64_t cost;
  };

  // What is minimised, most important first.
  bool is_less(const Key& a, const Key& b) const {
    if (rules_.shortest_first) return std::tie(a.cost, a.bound, a.busiest_nic) < std::tie(b.cost, b.bound, b.busiest_nic);
    return std::tie(a.bound, a.busiest_nic, a.cost) < std::tie(b.bound, b.busiest_nic, b.cost);
  }

  double time(ResourceId resource, std::uint64_t units) const {
    return static_cast<double>(units) / static_cast<double>(fabric_.resources()[resource].capacity_Bps);
  }

  double nic_time(std::size_t nic) const { return static_cast<double>(users_[nic]) / static_cast<double>(nics_[nic].capacity_Bps); }

  // Ways that are not known count as equal: what is left is to divide the NICs evenly.
  static std::uint64_t far(const NicWay& way) { return way.distance ? static_cast<std::uint64_t>(*way.distance) : 0; }

  // Distance before latency: latencies of templates are partly assumed, distances are not. Latencies are below 2^44 ns, checked by the
  // readers of fabrics.
  std::uint64_t cost(std::size_t rank, const Choice& choice) const {
    std::uint64_t sum = 0;
    for (const std::uint32_t nic : choice) sum += (far(*ways_[rank][nic]) << 44) + ways_[rank][nic]->latency_ns;
    return sum;
  }

  Choice reachable(std::size_t rank) const {
    Choice found;
    for (std::uint32_t nic = 0; nic < nics_.size(); ++nic) {
      if (ways_[rank][nic]) found.push_back(nic);
    }
    return found;
  }

  std::size_t count_of(std::size_t rank) const { return std::min(width_, reachable(rank).size()); }

  // A rank's NICs if it takes the nearest ones, or `is_even` those that fewest ranks before it took and of these the nearest.
  Choice first_of(std::size_t rank, bool is_even) const {
    Choice nics = reachable(rank);
    const auto key = [&](std::uint32_t nic) { return std::pair{is_even ? users_[nic] : 0, cost(rank, {nic})}; };
    std::stable_sort(nics.begin(), nics.end(), [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
    nics.resize(count_of(rank));
    std::sort(nics.begin(), nics.end());
    return nics;
  }

  // Assignments with several NICs a rank, as nodes have them whose GPUs have NICs of their own, are many: 36,000 choices a rank with four
  // of
  // 32. So what comes of sharing them out in turn is looked at before the choices are listed, and stands where these are too many.
  std::vector<Choice> shared_out() {
    std::vector<Choice> nics;
    for (std::size_t rank = 0; rank < ways_.size(); ++rank) {
      nics.push_back(first_of(rank, !rules_.shortest_first));
      for (const std::uint32_t nic : nics.back()) users_[nic] += unit_ / nics.back().size();
    }
    users_.assign(nics_.size(), 0);
    steps_ = ways_.size();
    return nics;
  }

  // Whether no assignment can be better: none has a bound below `least`.
  bool is_best(const std::vector<Choice>& nics, double least) const {
    std::vector<std::uint64_t> load(load_.size(), 0), users(nics_.size(), 0);
    std::uint64_t total = 0;
    for (std::size_t rank = 0; rank < nics.size(); ++rank) {
      total += cost(rank, nics[rank]);
      for (const std::uint32_t nic : nics[rank]) users[nic] += unit_ / nics[rank].size();
      for (const Load& one : loads(rank, nics[rank])) load[one.resource] += one.units;
    }
    bool is_least = total == least_cost_[0];
    for (ResourceId r = 0; r < load.size(); ++r) is_least = is_least && time(r, load[r]) <= least;
    for (std::size_t nic = 0; nic < users.size(); ++nic) {
      is_least = is_least && static_cast<double>(users[nic]) / static_cast<double>(nics_[nic].capacity_Bps) <= even_;
    }
    return is_least;
  }

  // Of all ranks together; as far as it takes to know that they are too many.
  std::uint64_t choices() const {
    std::uint64_t sum = 0;
    for (std::size_t rank = 0; rank < ways_.size(); ++rank) {
      const std::uint64_t all = reachable(rank).size(), taken = std::min<std::uint64_t>(count_of(rank), all - count_of(rank));
      std::uint64_t ways = 1;
      for (std::uint64_t k = 1; k <= taken && ways <= rules_.most_steps; ++k) ways = ways * (all - taken + k) / k;
      sum += ways;
    }
    return sum;
  }

  // Nearest first, so that good assignments are met early.
  std::vector<Option> options_of(std::size_t rank) const {
    const Choice reachable = this->reachable(rank);
    const std::size_t count = count_of(rank);
    std::vector<Option> options;
    std::vector<std::size_t> places(count);
    std::iota(places.begin(), places.end(), std::size_t{0});
    for (;;) {  // combinations in lexicographic order
      Choice choice;
      for (const std::size_t place : places) choice.push_back(reachable[place]);
      options.push_back({choice, cost(rank, choice)});
      std::size_t at = count;
      while (at > 0 && places[at - 1] == reachable.size() - count + at - 1) --at;
      if (at == 0) break;
      ++places[at - 1];
      for (; at < count; ++at) places[at] = places[at - 1] + 1;
    }
    std::stable_sort(options.begin(), options.end(), [](const Option& a, const Option& b) { return a.cost < b.cost; });
    return options;
  }

  // Bytes are counted in this part of a rank's (`unit_` of them), so that loads are integers and equal ones compare equal.
  std::vector<Load> loads(std::size_t rank, const Choice& choice) const {
    std::vector<ResourceId> resources;
    for (const std::uint32_t nic : choice) {
      resources.insert(resources.end(), ways_[rank][nic]->resources.begin(), ways_[rank][nic]->resources.end());
    }
    std::sort(resources.begin(), resources.end());
    std::vector<Load> sums;
    for (const ResourceId resource : resources) {
      if (sums.empty() || sums.back().resource != resource) sums.push_back({resource, 0});
      sums.back().units += unit_ / choice.size();
    }
    return sums;
  }

  // What a rank loads whichever NICs it takes (its own link, its switch's uplink, memory), by resource. It stands in `load_` from the
  // beginning, and options add what is beyond.
  std::vector<Load> unavoidable(std::size_t rank) const {
    const std::size_t count = count_of(rank);
    std::vector<std::map<ResourceId, std::uint64_t>> times;  // by NIC: how often its way loads a resource
    for (const std::uint32_t nic : reachable(rank)) {
      auto& of_nic = times.emplace_back();
      for (const ResourceId resource : ways_[rank][nic]->resources) ++of_nic[resource];
    }
    std::vector<Load> found;
    for (const Load& load : loads(rank, first_of(rank, false))) {
      std::vector<std::uint64_t> fewest;
      for (const auto& of_nic : times) {
        const auto one = of_nic.find(load.resource);
        fewest.push_back(one == of_nic.end() ? 0 : one->second);
      }
      std::sort(fewest.begin(), fewest.end());
      const std::uint64_t least = std::accumulate(fewest.begin(), fewest.begin() + static_cast<std::ptrdiff_t>(count), std::uint64_t{0});
      found.push_back({load.resource, least * (unit_ / count)});
    }
    return found;
  }

  void search(double bound) {
    steps_ = 0;
    for (std::size_t rank = 0; rank < ways_.size(); ++rank) {
      options_.push_back(options_of(rank));
      std::vector<std::uint64_t> least(load_.size(), 0);
      for (const Load& load : unavoidable_[rank]) least[load.resource] = load.units;
      for (Option& option : options_.back()) {
        for (const Load& load : loads(rank, option.nics)) option.beyond.push_back({load.resource, load.units - least[load.resource]});
      }
    }
    descend(0, bound, 0);
  }

  std::vector<Choice> best_nics() const {
    std::vector<Choice> nics;
    for (std::size_t rank = 0; rank < options_.size(); ++rank) nics.push_back(options_[rank][best_[rank]].nics);
    return nics;
  }

  // The busiest NIC's time if all were used evenly: no assignment does better.
  double even_time() const {
    const double ranks = static_cast<double>(ways_.size()), unit = static_cast<double>(unit_);
    const bool is_equal =
        std::all_of(nics_.begin(), nics_.end(), [&](const RankNic& nic) { return nic.capacity_Bps == nics_[0].capacity_Bps; });
    if (width_ == 1 && is_equal) {
      const std::size_t most = (ways_.size() + nics_.size() - 1) / nics_.size();
      return unit * static_cast<double>(most) / static_cast<double>(nics_[0].capacity_Bps);
    }
    std::uint64_t capacity = 0;
    for (const RankNic& nic : nics_) capacity += nic.capacity_Bps;
    return unit * ranks / static_cast<double>(capacity);
  }

  // Seconds for each byte of a rank, and the resource that takes them.
  std::pair<double, ResourceId> bound_of(const std::vector<Choice>& choices) const {
    std::vector<std::uint64_t> load(load_.size(), 0);
    for (std::size_t rank = 0; rank < choices.size(); ++rank) {
      for (const Load& one : loads(rank, choices[rank])) load[one.resource] += one.units;
    }
    ResourceId busiest = 0;
    for (ResourceId r = 1; r < load.size(); ++r) {
      if (time(r, load[r]) > time(busiest, load[busiest])) busiest = r;
    }
    return {time(busiest, load[busiest]) / static_cast<double>(unit_), busiest};
  }

  std::vector<Choice> nearest() const {
    std::vector<Choice> choices;
    for (const auto& of_rank : ways_) {
      std::uint32_t best = kNone;
      for (std::uint32_t nic = 0; nic < nics_.size(); ++nic) {
        if (!of_rank[nic]) continue;
        if (best == kNone || std::pair{far(*of_rank[nic]), nics_[nic].vertex} < std::pair{far(*of_rank[best]), nics_[best].vertex}) {
          best = nic;
        }
      }
      choices.push_back({best});
    }
    return choices;
  }

  // `load_` has what the ranks below `rank` chose, and what the others cannot avoid; `bound` is its time, `users_` the units by NIC.
  void descend(std::size_t rank, double bound, std::uint64_t cost_so_far) {
    if (rank == options_.size()) {
      double busiest_nic = 0;
      for (std::size_t nic = 0; nic < nics_.size(); ++nic) busiest_nic = std::max(busiest_nic, nic_time(nic));
      best_key_ = Key{bound, busiest_nic, cost_so_far};
      best_ = chosen_;
      return;
    }
    const bool is_single = options_[rank].front().nics.size() == 1;
    const auto orbits = is_single ? symmetry_.orbits(rank, in_use()) : std::vector<std::uint32_t>{};
    std::set<std::uint32_t> tried;
    for (std::uint32_t place = 0; place < options_[rank].size(); ++place) {
      const Option& option = options_[rank][place];
      if (is_single && !tried.insert(orbits[option.nics.front()]).second) continue;
      if (steps_ >= rules_.most_steps && best_key_) return;
      ++steps_;
      double new_bound = bound;
      for (const Load& load : option.beyond) {
        load_[load.resource] += load.units;
        new_bound = std::max(new_bound, time(load.resource, load_[load.resource]));
      }
      double busiest_nic = even_;
      for (const std::uint32_t nic : option.nics) users_[nic] += unit_ / option.nics.size();
      for (std::size_t nic = 0; nic < nics_.size(); ++nic) busiest_nic = std::max(busiest_nic, nic_time(nic));
      const std::uint64_t new_cost = cost_so_far + option.cost;
      if (!best_key_ || is_less({new_bound, busiest_nic, new_cost + least_cost_[rank + 1]}, *best_key_)) {
        chosen_.push_back(place);
        descend(rank + 1, new_bound, new_cost);
        chosen_.pop_back();
      }
      for (const std::uint32_t nic : option.nics) users_[nic] -= unit_ / option.nics.size();
      for (const Load& load : option.beyond) load_[load.resource] -= load.units;
    }
  }

  std::set<VertexId> in_use() const {
    std::set<VertexId> vertices;
    for (std::size_t nic = 0; nic < nics_.size(); ++nic) {
      if (users_[nic] > 0) vertices.insert(nics_[nic].vertex);
    }
    return vertices;
  }

  const Fabric& fabric_;
  std::span<const RankNic> nics_;
  const std::vector<std::vector<std::optional<NicWay>>>& ways_;
  NicMappingRules rules_;
  NicSymmetry symmetry_;
  std::size_t width_ = 1;
  std::uint64_t unit_ = 1;
  std::vector<std::vector<Option>> options_;  // by rank
  std::vector<std::uint64_t> least_cost_;     // of the ranks from here on
  double even_ = 0.0;
  std::vector<std::uint64_t> load_;             // units by resource
  std::vector<std::vector<Load>> unavoidable_;  // of these, by rank
  std::vector<std::uint64_t> users_;
  std::vector<std::uint32_t> chosen_, best_;  // places among a rank's options
  std::optional<Key> best_key_;
  std::uint64_t steps_ = 0;
};

}  // namespace

NicMapping map_nics(const Fabric& fabric, NodeId node, std::span<const RankGpu> gpus, std::span<const RankNic> nics,
                    const std::vector<std::vector<std::optional<NicWay>>>& ways, const NicMappingRules& rules) {
  const auto is_there = [&](ResourceId resource) { return resource < fabric.resources().size(); };
  const bool fits = !gpus.empty() && ways.size() == gpus.size() && std::all_of(ways.begin(), ways.end(), [&](const auto& of_gpu) {
    return of_gpu.size() == nics.size() && std::any_of(of_gpu.begin(), of_gpu.end(), [](const auto& way) { return way.has_value(); }) &&
           std::all_of(of_gpu.begin(), of_gpu.end(),
                       [&](const auto& way) { return !way || std::all_of(way->resources.begin(), way->resources.end(), is_there); });
  });
  if (!fits) {
    throw std::invalid_argument(
        "ways of GPUs to NICs; expected for each GPU one to each NIC or none, one at least, over the fabric's resources");
  }
  return Search(fabric, node, gpus, nics, ways, rules).run();
}

}  // namespace railweave
