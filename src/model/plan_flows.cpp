#include "railweave/model/plan_flows.hpp"

#include <algorithm>
#include <limits>

namespace railweave {
namespace {

bool stores_chunks(const Vertex& vertex) { return vertex.kind == VertexKind::gpu || vertex.kind == VertexKind::numa; }

std::vector<std::uint64_t> rates(const Fabric& fabric, const LinkState& links) {
  std::vector<std::uint64_t> rates;
  rates.reserve(fabric.resources().size());
  for (const Resource& resource : fabric.resources()) {
    rates.push_back(resource.kind == Resource::Kind::edge ? links.rate_Bps(resource.id) : resource.capacity_Bps);
  }
  return rates;
}

}  // namespace

std::uint64_t startup_ns(const Path& path, std::uint64_t bytes, std::uint64_t chunk_bytes, const Fabric& fabric, const LinkState& links) {
  const double chunk = static_cast<double>(std::min(bytes, chunk_bytes));
  double sum = 0, slowest = 0;
  std::uint64_t stage_Bps = std::numeric_limits<std::uint64_t>::max();
  for (const EdgeId id : path.edges) {
    const Edge& edge = fabric.edge(id);
    stage_Bps = std::min(stage_Bps, links.rate_Bps(id));
    if (id != path.edges.back() && !stores_chunks(fabric.vertex(edge.to))) continue;
    const double stage = chunk / static_cast<double>(std::max<std::uint64_t>(stage_Bps, 1));
    sum += stage;
    slowest = std::max(slowest, stage);
    stage_Bps = std::numeric_limits<std::uint64_t>::max();
  }
  return path.latency_ns + static_cast<std::uint64_t>((sum - slowest) * 1e9);
}

Flows plan_flows(const Plan& plan, const Planner& planner, std::uint64_t chunk_bytes, const Fabric& fabric, const LinkState& links) {
  Flows flows(rates(fabric, links));
  for (const Share& share : plan.shares) {
    const Path path = planner.expand(share.route);
    if (flows.size() == 0) flows.reserve(plan.shares.size(), path.resources.size());
    flows.add({share.bytes, 0, startup_ns(path, share.bytes, chunk_bytes, fabric, links)}, path.resources);
  }
  return flows;
}

}  // namespace railweave
