#include <algorithm>
#include <map>
#include <set>

#include "railweave/planner/nic_mapping.hpp"

namespace railweave {

namespace {

bool is_host_bus(EdgeKind kind) { return kind == EdgeKind::pcie || kind == EdgeKind::c2c; }

// Ways of a node through switches and CPUs. A host has hundreds of ways and few starts, so each start's tree is found once.
class HostWays {
 public:
  explicit HostWays(const Fabric& fabric) : fabric_(fabric) {}

  std::optional<NicWay> way(const RankGpu& gpu, VertexId nic) {
    const auto direct = walk(gpu.vertex, nic);
    if (!direct) return std::nullopt;
    Edges there = *direct, back = walk(nic, gpu.vertex).value_or(Edges{});
    if (!gpu.gdr) {
      const VertexId memory = numa_above(fabric_, gpu.vertex);
      if (memory != kNone) {
        if (const auto staged = walk_over(gpu.vertex, memory, nic)) there = *staged;
        if (const auto staged = walk_over(nic, memory, gpu.vertex)) back = *staged;
      }
    }
    NicWay found;
    found.distance = distance(*direct);
    for (const EdgeId e : there) {
      found.latency_ns += fabric_.edge(e).latency_ns;
      add_loads(e, found.resources);
    }
    for (const auto edges : {fabric_.out_edges(nic), fabric_.in_edges(nic)}) {
      const auto port = std::find_if(edges.begin(), edges.end(), [&](EdgeId e) { return fabric_.edge(e).kind == EdgeKind::rail; });
      if (port != edges.end()) add_loads(*port, found.resources);
    }
    for (const EdgeId e : back) add_loads(e, found.resources);
    return found;
  }

 private:
  using Edges = std::vector<EdgeId>;
  using Tree = std::map<VertexId, EdgeId>;  // the last edge of the shortest way to a vertex, the widest first among equals

  const Tree& tree(VertexId start) {
    const auto [place, is_new] = trees_.try_emplace(start);
    Tree& came = place->second;
    if (!is_new) return came;
    std::vector<VertexId> level{start};
    while (!level.empty()) {
      Edges steps;
      for (const VertexId vertex : level) {
        for (const EdgeId e : fabric_.out_edges(vertex)) {
          if (is_host_bus(fabric_.edge(e).kind) || fabric_.edge(e).kind == EdgeKind::socket) steps.push_back(e);
        }
      }
      std::stable_sort(steps.begin(), steps.end(),
                       [&](EdgeId a, EdgeId b) { return fabric_.edge(a).capacity_Bps > fabric_.edge(b).capacity_Bps; });
      level.clear();
      for (const EdgeId e : steps) {
        const VertexId to = fabric_.edge(e).to;
        if (to == start || !came.try_emplace(to, e).second) continue;
        const VertexKind kind = fabric_.vertex(to).kind;
        if (kind == VertexKind::pcie_switch || kind == VertexKind::numa) level.push_back(to);
      }
    }
    return came;
  }

  std::optional<Edges> walk(VertexId start, VertexId goal) {
    const Tree& came = tree(start);
    Edges way;
    for (VertexId at = goal; at != start;) {
      const auto last = came.find(at);
      if (last == came.end()) return std::nullopt;
      way.push_back(last->second);
      at = fabric_.edge(last->second).from;
    }
    std::reverse(way.begin(), way.end());
    return way;
  }

  std::optional<Edges> walk_over(VertexId start, VertexId middle, VertexId goal) {
    auto way = walk(start, middle);
    const auto rest = walk(middle, goal);
    if (!way || !rest) return std::nullopt;
    way->insert(way->end(), rest->begin(), rest->end());
    return way;
  }

  Distance distance(const Edges& way) const {
    bool passes_numa = false;
    for (std::size_t i = 0; i < way.size(); ++i) {
      const Edge& edge = fabric_.edge(way[i]);
      if (edge.kind == EdgeKind::socket) return Distance::sys;
      if (i + 1 < way.size() && fabric_.vertex(edge.to).kind == VertexKind::numa) passes_numa = true;
    }
    if (passes_numa) return Distance::phb;
    return way.size() <= 2 ? Distance::pix : Distance::pxb;
  }

  // An edge and the capacities of its ends, counted as the planner counts them.
  void add_loads(EdgeId e, std::vector<ResourceId>& resources) const {
    using Kind = Resource::Kind;
    const Edge& edge = fabric_.edge(e);
    resources.push_back(e);
    for (const auto& [vertex, kind] : {std::pair{edge.from, Kind::vertex_egress}, std::pair{edge.from, Kind::vertex_through},
                                       std::pair{edge.to, Kind::vertex_ingress}, std::pair{edge.to, Kind::vertex_through}}) {
      const ResourceId resource = fabric_.vertex_resource(vertex, kind);
      if (resource != kNone) resources.push_back(resource);
    }
  }

  const Fabric& fabric_;
  std::map<VertexId, Tree> trees_;
};

}  // namespace

VertexId numa_above(const Fabric& fabric, VertexId device) {
  std::set<VertexId> seen{device};
  std::vector<VertexId> level{device};
  while (!level.empty()) {
    std::vector<VertexId> above;
    for (const VertexId vertex : level) {
      for (const EdgeId e : fabric.out_edges(vertex)) {
        const Edge& edge = fabric.edge(e);
        if (!is_host_bus(edge.kind) || seen.contains(edge.to)) continue;
        const VertexKind kind = fabric.vertex(edge.to).kind;
        if (kind == VertexKind::numa) return edge.to;
        if (kind == VertexKind::pcie_switch) {
          seen.insert(edge.to);
          above.push_back(edge.to);
        }
      }
    }
    level = std::move(above);
  }
  return kNone;
}

std::vector<std::vector<std::optional<NicWay>>> nic_ways(const Fabric& fabric, std::span<const RankGpu> gpus,
                                                         std::span<const VertexId> nics) {
  HostWays host(fabric);
  std::vector<std::vector<std::optional<NicWay>>> ways(gpus.size());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    for (const VertexId nic : nics) ways[rank].push_back(host.way(gpus[rank], nic));
  }
  return ways;
}

}  // namespace railweave
