#include "bound.hpp"

#include <algorithm>

namespace railweave {

void DemandSums::add_up(const Demand& demand, const Fabric& fabric) {
  const std::uint32_t ranks = demand.ranks(), nodes = fabric.node_count();
  gpu_out.assign(ranks, 0);
  gpu_in.assign(ranks, 0);
  between.assign(std::size_t{nodes} * nodes, 0);
  node_out.assign(nodes, 0);
  node_in.assign(nodes, 0);
  rail_pairs = 0;
  const std::uint64_t* row = demand.bytes().data();
  for (GpuId src = 0; src < ranks; ++src, row += ranks) {
    const NodeId src_node = fabric.node_of(src);
    std::uint64_t out = 0;
    GpuId dst = 0;
    for (NodeId dst_node = 0; dst_node < nodes; ++dst_node) {
      const auto last = static_cast<GpuId>(dst + fabric.gpus_of(dst_node).size());
      std::uint64_t block = 0;
      std::size_t pairs = 0;
      for (; dst < last; ++dst) {
        const std::uint64_t bytes = dst == src ? 0 : row[dst];
        block += bytes;
        pairs += bytes != 0 ? 1 : 0;
        gpu_in[dst] += bytes;
      }
      out += block;
      if (dst_node == src_node) continue;
      between[std::size_t{src_node} * nodes + dst_node] += block;
      rail_pairs += pairs;
    }
    gpu_out[src] = out;
  }
  for (NodeId a = 0; a < nodes; ++a) {
    for (NodeId b = 0; b < nodes; ++b) {
      node_out[a] += between[std::size_t{a} * nodes + b];
      node_in[b] += between[std::size_t{a} * nodes + b];
    }
  }
}

void EndpointBounds::refresh(const Fabric& fabric, const LiveRoutes& routes) {
  gpu_out_Bps_.assign(fabric.gpu_count(), 0);
  gpu_in_Bps_.assign(fabric.gpu_count(), 0);
  node_out_Bps_.assign(fabric.node_count(), 0);
  node_in_Bps_.assign(fabric.node_count(), 0);
  chosen_out_Bps_.assign(fabric.node_count(), 0);
  chosen_in_Bps_.assign(fabric.node_count(), 0);
  for (GpuId g = 0; g < fabric.gpu_count(); ++g) {
    const Vertex& vertex = fabric.vertex(fabric.gpu(g));
    for (EdgeId e : fabric.out_edges(fabric.gpu(g))) gpu_out_Bps_[g] += routes.capacity_Bps(e);
    for (EdgeId e : fabric.in_edges(fabric.gpu(g))) gpu_in_Bps_[g] += routes.capacity_Bps(e);
    if (vertex.egress_Bps != 0) gpu_out_Bps_[g] = std::min(gpu_out_Bps_[g], vertex.egress_Bps);
    if (vertex.ingress_Bps != 0) gpu_in_Bps_[g] = std::min(gpu_in_Bps_[g], vertex.ingress_Bps);
  }
  for (NodeId n = 0; n < fabric.node_count(); ++n) {
    for (std::uint32_t nic = 0; nic < routes.nic_count(n); ++nic) {
      node_out_Bps_[n] += routes.nic_out_most_Bps(n, nic);
      node_in_Bps_[n] += routes.nic_in_most_Bps(n, nic);
      chosen_out_Bps_[n] += routes.nic_out_Bps(n, nic);
      chosen_in_Bps_[n] += routes.nic_in_Bps(n, nic);
    }
  }
}

Bound EndpointBounds::find(const DemandSums& sums) const {
  Bound bound;
  const auto consider = [&](Bound::Kind kind, const std::vector<std::uint64_t>& bytes, const std::vector<std::uint64_t>& rate) {
    for (std::uint32_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] == 0 || rate[i] == 0) continue;
      const double seconds = static_cast<double>(bytes[i]) / static_cast<double>(rate[i]);
      if (seconds > bound.seconds) bound = {kind, seconds, i};
    }
  };
  consider(Bound::Kind::gpu_out, sums.gpu_out, gpu_out_Bps_);
  consider(Bound::Kind::gpu_in, sums.gpu_in, gpu_in_Bps_);
  consider(Bound::Kind::node_out, sums.node_out, node_out_Bps_);
  consider(Bound::Kind::node_in, sums.node_in, node_in_Bps_);
  return bound;
}

double EndpointBounds::over_chosen_ways(const DemandSums& sums) const {
  double longest = 0;
  for (NodeId n = 0; n < chosen_out_Bps_.size(); ++n) {
    if (chosen_out_Bps_[n] != 0)
      longest = std::max(longest, static_cast<double>(sums.node_out[n]) / static_cast<double>(chosen_out_Bps_[n]));
    if (chosen_in_Bps_[n] != 0) longest = std::max(longest, static_cast<double>(sums.node_in[n]) / static_cast<double>(chosen_in_Bps_[n]));
  }
  return longest;
}

}  // namespace railweave
