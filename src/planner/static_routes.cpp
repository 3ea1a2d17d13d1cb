#include "static_routes.hpp"

#include <algorithm>

namespace railweave {

StaticRoutes::StaticRoutes(const RouteTable& table, const LiveRoutes& live, const PlannerSettings& settings)
    : table_(&table), live_(&live), settings_(settings) {
  for (GpuId g = 0; g < table.fabric().gpu_count(); ++g) near_nics_.push_back(table.nics_by_distance(g));
}

bool StaticRoutes::append(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares) {
  const Fabric& fabric = table_->fabric();
  if (fabric.node_of(src) == fabric.node_of(dst)) return append_inside(src, dst, bytes, shares);
  bool found = false;
  switch (settings_.policy) {
    case Policy::nccl: found = nccl(src, dst, bytes, shares); break;
    case Policy::ucx_rails: found = ucx_rails(src, dst, bytes, shares); break;
    default: found = single_path(src, dst, bytes, shares); break;
  }
  return found || any_rail(src, dst, bytes, shares);
}

bool StaticRoutes::append_inside(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares) {
  const auto columns = live_->node_columns(src, dst);
  if (columns.empty()) return false;
  shares.push_back({LiveRoutes::route(columns.front(), src, dst), bytes});
  return true;
}

bool StaticRoutes::usable(Route& route) {
  edges_.clear();
  route.kind = PathKind::rail;
  if (route.nic_src == kNone || route.nic_dst == kNone || !table_->append_edges(route, edges_)) return false;
  const auto crosses = [&](EdgeId e) { return table_->fabric().edge(e).kind == EdgeKind::uplink; };
  if (std::any_of(edges_.begin(), edges_.end(), crosses)) route.kind = PathKind::cross_rail;
  return std::all_of(edges_.begin(), edges_.end(), [&](EdgeId e) { return live_->capacity_Bps(e) != 0; });
}

// Each GPU keeps to its own NIC: the sender's to the receiver's, over the spine where they are on different rails; without a spine
// the sender uses its node's NIC on the receiver's rail.
bool StaticRoutes::single_path(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares) {
  const NodeId node = table_->fabric().node_of(src);
  for (VertexId to : table_->own_nics(dst)) {
    for (VertexId from : table_->own_nics(src)) {
      Route route{PathKind::rail, src, dst, kNone, kNone, from, to};
      if (!usable(route)) continue;
      shares.push_back({route, bytes});
      return true;
    }
    const VertexId from = table_->rail_peer(to, node);
    if (from == kNone) continue;
    for (GpuId relay : table_->relay_choices(src, from)) {
      Route route{PathKind::rail, src, dst, relay, kNone, from, to};
      if (!usable(route)) continue;
      shares.push_back({route, bytes});
      return true;
    }
  }
  return false;
}

// PXN (facts: send side only, over NVLink to the GPU beside the NIC, only with GPUDirect): the rail of the destination. Level 1 spares
// the relay where the sender has that NIC itself, level 2 gathers a node's bytes in one GPU's memory for each rail. Without PXN the
// sender's own rail, and the receiver's node takes it in wherever the rail ends.
bool StaticRoutes::nccl(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares) {
  const Fabric& fabric = table_->fabric();
  const NodeId src_node = fabric.node_of(src), dst_node = fabric.node_of(dst);
  const auto put = [&](Route route) {
    if (!usable(route)) return false;
    shares.push_back({route, bytes});
    return true;
  };
  if (settings_.pxn_level > 0 && fabric.vertex(fabric.gpu(src)).gdr) {
    for (VertexId to : table_->own_nics(dst)) {
      const VertexId from = table_->rail_peer(to, src_node);
      if (from == kNone) continue;
      GpuId relay = kNone;
      if (settings_.pxn_level >= 2 || !table_->owns(src, from)) {
        const auto owners = table_->owners(from);
        if (!owners.empty()) relay = owners.front();
      }
      if (relay == src) relay = kNone;
      const bool over_nvlink = relay == kNone || (fabric.vertex(fabric.gpu(relay)).gdr && table_->peers(src, relay));
      if (over_nvlink && put({PathKind::rail, src, dst, relay, kNone, from, to})) return true;
    }
  }
  for (VertexId from : table_->own_nics(src)) {
    if (put({PathKind::rail, src, dst, kNone, kNone, from, table_->rail_peer(from, dst_node)})) return true;
  }
  return false;
}

// UCX_MAX_RNDV_RAILS: equal stripes over the sender's nearest NICs, each to the same rail of the receiver's node.
bool StaticRoutes::ucx_rails(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares) {
  const NodeId dst_node = table_->fabric().node_of(dst);
  const std::size_t begin = shares.size();
  const std::uint32_t most = bytes <= settings_.multipath_min_bytes ? 1 : std::max(1u, settings_.ucx_rails);
  for (VertexId from : near_nics_[src]) {
    if (shares.size() - begin == std::min<std::uint64_t>(most, bytes)) break;  // no stripes of 0 bytes
    Route route{PathKind::rail, src, dst, kNone, kNone, from, table_->rail_peer(from, dst_node)};
    if (usable(route)) shares.push_back({route, 0});
  }
  const std::size_t stripes = shares.size() - begin;
  if (stripes == 0) return false;
  for (std::size_t i = 0; i < stripes; ++i) shares[begin + i].bytes = bytes / stripes + (i < bytes % stripes ? 1 : 0);
  return true;
}

bool StaticRoutes::any_rail(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares) {
  const Fabric& fabric = table_->fabric();
  for (const RailColumn& column : live_->columns(fabric.node_of(src), fabric.node_of(dst))) {
    if (!live_->column_usable(column, src, dst)) continue;
    shares.push_back({live_->route(column, src, dst), bytes});
    return true;
  }
  return false;
}

}  // namespace railweave
