#include "router.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>

#include "railweave/error.hpp"

namespace railweave::engine {
namespace {

// For a derived fabric only ratios matter: what is between mates is far faster than rails, and unknown rails are equal.
constexpr std::uint64_t kMateBps = 100'000'000'000;
constexpr std::uint64_t kHostLinkBps = 50'000'000'000;
constexpr std::uint64_t kUnknownRailBps = 1'250'000'000;
constexpr const char* kAssumed = "assumed";
constexpr std::uint64_t kMateLatencyNs = 1000, kRailLatencyNs = 5000;

// Not slower than the other one by more than measuring and headers explain.
bool alike(std::uint64_t Bps, std::uint64_t other) { return Bps >= other - other / 8; }

[[noreturn]] void mismatch(const std::string& what, std::size_t found, std::size_t expected) {
  throw FabricError("the fabric has " + std::to_string(found) + " " + what + "; the job has " + std::to_string(expected) +
                    ": give the fabric of this job, or none to derive it");
}

}  // namespace

Fabric derive_fabric(const Cluster& cluster) {
  FabricBuilder builder("derived");
  std::uint32_t rails = 0;
  bool uneven = false;
  for (const NodeInfo& node : cluster.nodes) {
    uneven = uneven || (rails != 0 && rails != node.nics.size());
    rails = std::max(rails, static_cast<std::uint32_t>(node.nics.size()));
  }
  std::vector<VertexId> gpus(cluster.world), nics(cluster.nics.size()), leafs;
  for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) {
    const NodeInfo& node = cluster.nodes[n];
    const std::string name = "node" + std::to_string(n);
    const NodeId id = builder.add_node(name);
    for (std::uint32_t i = 0; i < node.ranks.size(); ++i) {
      Vertex gpu;
      gpu.kind = VertexKind::gpu;
      gpu.node = id;
      gpu.index = i;
      gpu.name = name + "/gpu" + std::to_string(i);
      gpu.gdr = true;  // a rank's memory is host memory here: its NICs read it
      gpus[node.ranks[i]] = builder.add_vertex(gpu);
      for (std::uint32_t j = 0; j < i; ++j) {
        builder.add_link(gpus[node.ranks[j]], gpus[node.ranks[i]], EdgeKind::nvlink, kMateBps, kMateLatencyNs, "shared memory");
      }
    }
    for (std::uint32_t i = 0; i < node.nics.size(); ++i) {
      const NicInfo& info = cluster.nics[node.nics[i]];
      Vertex nic;
      nic.kind = VertexKind::nic;
      nic.node = id;
      nic.index = i;
      nic.rail = i;
      nic.name = name + "/nic" + std::to_string(i);
      nic.model = info.device;
      nics[node.nics[i]] = builder.add_vertex(nic);
      builder.add_link(gpus[info.owner], nics[node.nics[i]], EdgeKind::pcie, kHostLinkBps, kMateLatencyNs, "shared memory");
    }
  }
  for (std::uint32_t rail = 0; rail < rails; ++rail) {
    Vertex leaf;
    leaf.kind = VertexKind::leaf;
    leaf.index = leaf.rail = rail;
    leaf.name = "leaf" + std::to_string(rail);
    leafs.push_back(builder.add_vertex(leaf));
  }
  std::uint64_t leaf_Bps = 0;
  for (std::uint32_t i = 0; i < nics.size(); ++i) {
    const NicInfo& info = cluster.nics[i];
    const std::uint64_t rate = info.rate_Bps != 0 ? info.rate_Bps : kUnknownRailBps;
    leaf_Bps += rate;
    builder.add_link(nics[i], leafs[info.position], EdgeKind::rail, rate, kRailLatencyNs,
                     info.rate_Bps != 0 ? "interface speed" : kAssumed);
  }
  if (uneven) {
    Vertex spine;
    spine.kind = VertexKind::spine;
    spine.name = "spine0";
    const VertexId top = builder.add_vertex(spine);
    for (const VertexId leaf : leafs) builder.add_link(leaf, top, EdgeKind::uplink, leaf_Bps, kRailLatencyNs, kAssumed);
  }
  return std::move(builder).build();
}

Router::Router(const Cluster& cluster, Fabric fabric, const ExchangeSettings& settings)
    : cluster_(cluster),
      fabric_(std::move(fabric)),
      policy_(settings.policy),
      links_(fabric_),
      planner_(fabric_,
               [&] {
                 PlannerSettings planner;
                 planner.policy = settings.policy;
                 planner.multipath_min_bytes = settings.multipath_min_bytes;
                 planner.chunk_bytes = settings.chunk_bytes;
                 return planner;
               }()),
      gpu_of_(cluster.world),
      rank_of_(fabric_.gpu_count()),
      vertex_of_(cluster.nics.size()),
      nic_of_(fabric_.vertices().size(), kNone),
      to_leaf_(cluster.nics.size(), kNone),
      from_leaf_(cluster.nics.size(), kNone) {
  if (fabric_.node_count() != cluster.nodes.size()) mismatch("nodes", fabric_.node_count(), cluster.nodes.size());
  for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) {
    const NodeInfo& node = cluster.nodes[n];
    const std::string where = " on " + std::string(fabric_.node_name(n));
    if (fabric_.gpus_of(n).size() != node.ranks.size()) mismatch("GPUs" + where, fabric_.gpus_of(n).size(), node.ranks.size());
    for (std::uint32_t i = 0; i < node.ranks.size(); ++i) {
      gpu_of_[node.ranks[i]] = fabric_.first_gpu(n) + i;
      rank_of_[fabric_.first_gpu(n) + i] = node.ranks[i];
    }
    if (cluster.nodes.size() == 1) continue;  // no NIC is used
    const auto nics = fabric_.nics_of(n);
    if (nics.size() != node.nics.size()) mismatch("NICs" + where, nics.size(), node.nics.size());
    for (std::uint32_t i = 0; i < nics.size(); ++i) {
      const std::uint32_t nic = node.nics[i];
      vertex_of_[nic] = nics[i];
      nic_of_[nics[i]] = nic;
      for (const EdgeId edge : fabric_.out_edges(nics[i])) {
        if (fabric_.edge(edge).kind == EdgeKind::rail) to_leaf_[nic] = edge;
      }
      for (const EdgeId edge : fabric_.in_edges(nics[i])) {
        if (fabric_.edge(edge).kind == EdgeKind::rail) from_leaf_[nic] = edge;
      }
      if (to_leaf_[nic] == kNone || from_leaf_[nic] == kNone) {
        throw FabricError("NIC " + fabric_.vertex(nics[i]).name + " has no leaf; ranks of several nodes need a cluster's fabric");
      }
    }
  }
  demand_ = Demand(fabric_.gpu_count());
  // Leafs and spines that a leaf reaches.
  std::vector<std::vector<bool>> reaches(fabric_.vertices().size());
  connected_.assign(cluster.nics.size(), std::vector<bool>(cluster.nics.size(), false));
  for (std::uint32_t nic = 0; nic < cluster.nics.size() && cluster.nodes.size() > 1; ++nic) {
    const VertexId leaf = fabric_.edge(to_leaf_[nic]).to;
    if (reaches[leaf].empty()) {
      reaches[leaf].assign(fabric_.vertices().size(), false);
      std::vector<VertexId> open{leaf};
      reaches[leaf][leaf] = true;
      while (!open.empty()) {
        const VertexId at = open.back();
        open.pop_back();
        for (const EdgeId edge : fabric_.out_edges(at)) {
          const VertexId next = fabric_.edge(edge).to;
          const VertexKind kind = fabric_.vertex(next).kind;
          if ((kind != VertexKind::leaf && kind != VertexKind::spine) || reaches[leaf][next]) continue;
          reaches[leaf][next] = true;
          open.push_back(next);
        }
      }
    }
    for (std::uint32_t peer = 0; peer < cluster.nics.size(); ++peer) {
      connected_[nic][peer] = cluster.nics[peer].node != cluster.nics[nic].node && reaches[leaf][fabric_.edge(from_leaf_[peer]).from];
    }
  }
}

bool Router::connected(std::uint32_t nic, std::uint32_t peer) const { return connected_[nic][peer]; }

RouteShare Router::share_of(const Route& route, std::uint64_t bytes) const {
  RouteShare share;
  share.kind = route.kind;
  share.bytes = bytes;
  const std::uint32_t source = rank_of_[route.src];
  const std::uint32_t destination = rank_of_[route.dst];
  switch (route.kind) {
    case PathKind::direct: share.owner = cluster_.ranks[destination].local; break;
    case PathKind::relay: share.owner = cluster_.ranks[rank_of_[route.relay_src]].local; break;
    case PathKind::host: share.owner = cluster_.ranks[source].local; break;
    case PathKind::rail:
    case PathKind::cross_rail:
      share.nic = nic_of_[route.nic_src];
      share.peer_nic = nic_of_[route.nic_dst];
      share.owner = cluster_.ranks[cluster_.nics[share.nic].owner].local;
      break;
  }
  return share;
}

Router::Summary Router::plan(const std::vector<std::vector<std::uint64_t>>& rows, std::unordered_map<std::uint32_t, Routes>& routes) {
  for (std::uint32_t from = 0; from < cluster_.world; ++from) {
    for (std::uint32_t to = 0; to < cluster_.world; ++to) demand_.set(gpu_of_[from], gpu_of_[to], from == to ? 0 : rows[from][to]);
  }
  const Plan& plan = planner_.plan(demand_, links_);
  for (std::uint32_t to = 0; to < cluster_.world; ++to) {
    if (to == cluster_.rank || rows[cluster_.rank][to] == 0) continue;
    Routes& ways = routes[to];
    for (const Share& share : planner_.shares(gpu_of_[cluster_.rank], gpu_of_[to]))
      ways.shares.push_back(share_of(share.route, share.bytes));
  }
  return {plan.id, plan.z_seconds};
}

std::vector<RouteShare> Router::links_to(std::uint32_t destination) const {
  struct Ranked {
    std::array<std::uint32_t, 4> order;
    RouteShare share;
  };
  std::vector<Ranked> ways;
  const RankInfo& target = cluster_.ranks[destination];
  const auto count = static_cast<std::uint32_t>(cluster_.nodes[cluster_.node()].nics.size());
  for (const std::uint32_t nic : cluster_.nodes[cluster_.node()].nics) {
    for (const std::uint32_t peer : cluster_.nodes[target.node].nics) {
      if (!connected(nic, peer)) continue;
      RouteShare share;
      const bool same_rail = fabric_.edge(to_leaf_[nic]).to == fabric_.edge(from_leaf_[peer]).from;
      share.kind = same_rail ? PathKind::rail : PathKind::cross_rail;
      share.nic = nic;
      share.peer_nic = peer;
      share.owner = cluster_.ranks[cluster_.nics[nic].owner].local;
      const auto foreign = static_cast<std::uint32_t>(cluster_.nics[nic].owner != cluster_.rank);
      const auto relays = foreign + static_cast<std::uint32_t>(cluster_.nics[peer].owner != destination);
      // Among equals the own NIC: then all ranks' traffic to everybody loads all rails alike. Ranks without one start elsewhere for each
      // pair.
      const std::uint32_t turn = (cluster_.nics[nic].position + cluster_.rank + destination) % count;
      ways.push_back({{same_rail ? 0u : 1u, relays, foreign, turn}, share});
    }
  }
  std::stable_sort(ways.begin(), ways.end(), [](const Ranked& a, const Ranked& b) { return a.order < b.order; });
  std::vector<RouteShare> shares;
  shares.reserve(ways.size());
  for (const Ranked& way : ways) shares.push_back(way.share);
  return shares;
}

double Router::seconds_on_one_rail(std::uint64_t bytes) const {
  const auto& own = cluster_.self().nics;
  const auto& nics = own.empty() ? cluster_.nodes[cluster_.node()].nics : own;
  const std::uint64_t rate = nics.empty() ? 0 : links_.rate_Bps(to_leaf_[nics.front()]);
  return rate == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(bytes) / static_cast<double>(rate);
}

std::uint64_t Router::round_rate(std::uint64_t Bps) {
  const int shift = static_cast<int>(std::bit_width(Bps)) - 4;  // 8..15 steps in each octave
  if (shift <= 0) return std::max<std::uint64_t>(Bps, 1);
  return ((Bps + (std::uint64_t{1} << (shift - 1))) >> shift) << shift;
}

bool Router::set_rate(std::uint32_t nic, std::uint32_t peer, std::uint64_t Bps) {
  std::uint64_t& last = measured_[{nic, peer}];
  // Half of what makes rails alike: else two that are could be held for different for ever, each by a rate that was a little wrong.
  const bool news = last == 0 ? Bps != 0 : std::max(Bps, last) - std::min(Bps, last) > last / 16;
  if (news) last = Bps;
  if (last == 0) measured_.erase({nic, peer});
  if (!news) return false;
  const std::uint64_t nominal = fabric_.edge(to_leaf_[nic]).capacity_Bps, other = fabric_.edge(from_leaf_[peer]).capacity_Bps;
  apply_rates(nominal);
  if (other != nominal) apply_rates(other);
  return true;
}

// An end of a link is at least as fast as any link that it is an end of: a slow NIC shows in all of its links, and not in those between
// others.
std::map<EdgeId, std::uint64_t> Router::measured_edges() const {
  std::map<EdgeId, std::uint64_t> edges;
  for (const auto& [link, rate] : measured_) {
    for (const EdgeId edge : {to_leaf_[link.first], from_leaf_[link.second]}) {
      std::uint64_t& most = edges[edge];
      most = std::max(most, rate);
    }
  }
  return edges;
}

// Follows from the measured rates alone, so that all ranks come to the same. Rails of one kind that are as fast as each other must not get
// different parts because each was measured by itself, or one was not measured at all and its rate is only assumed. And headers take their
// part of a rail: TCP goodput of a shaped one is 95.65% of it.
void Router::apply_rates(std::uint64_t nominal) {
  const std::map<EdgeId, std::uint64_t> measured = measured_edges();
  std::uint64_t best = 0;
  for (const auto& [edge, rate] : measured) {
    if (fabric_.edge(edge).capacity_Bps == nominal) best = std::max(best, rate);
  }
  const std::uint64_t common = best == 0 || alike(best, nominal) ? nominal : round_rate(best);
  const std::uint64_t fastest = std::min(best, nominal);
  for (const std::vector<EdgeId>* edges : {&to_leaf_, &from_leaf_}) {
    for (const EdgeId edge : *edges) {
      const Edge& rail = fabric_.edge(edge);
      if (rail.capacity_Bps != nominal) continue;
      const auto found = measured.find(edge);
      std::uint64_t rate = rail.source == kAssumed ? common : nominal;
      if (found != measured.end()) rate = alike(found->second, fastest) ? common : round_rate(found->second);
      links_.set_rate(edge, std::max<std::uint64_t>(rate, 1));
    }
  }
}

std::uint64_t Router::rate(std::uint32_t nic, std::uint32_t peer) const {
  const auto found = measured_.find({nic, peer});
  return found == measured_.end() ? 0 : found->second;
}

std::uint64_t Router::rate_to_try(std::uint32_t nic, std::uint32_t peer) const {
  const std::uint64_t last = rate(nic, peer), nominal = fabric_.edge(to_leaf_[nic]).capacity_Bps;
  if (last == 0) return 0;
  std::uint64_t fastest = 0;
  for (const std::vector<EdgeId>* edges : {&to_leaf_, &from_leaf_}) {
    for (const EdgeId edge : *edges) {
      if (fabric_.edge(edge).capacity_Bps == nominal) fastest = std::max(fastest, links_.rate_Bps(edge));
    }
  }
  if (!alike(last, fastest)) return std::min(2 * last, fastest);
  const bool doubted = std::any_of(measured_.begin(), measured_.end(), [&](const auto& other) {
    return (other.first.first == nic || other.first.second == peer) && !alike(other.second, last);
  });
  return doubted ? 0 : last;
}

void Router::set_nic_down(std::uint32_t nic, bool down) {
  links_.set_down(to_leaf_[nic], down);
  links_.set_down(from_leaf_[nic], down);
}

}  // namespace railweave::engine
