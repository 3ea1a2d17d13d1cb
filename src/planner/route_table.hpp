// What a fabric offers whatever its links do today: which NIC belongs to which GPU, how bytes get from a GPU to a NIC and from
// NIC to NIC, and the edges of every route. docs/planner.md has the rules and their reasons.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "node_paths.hpp"
#include "railweave/fabric/fabric.hpp"
#include "railweave/planner/plan.hpp"

namespace railweave {

class RouteTable {
 public:
  explicit RouteTable(const Fabric& fabric);

  const Fabric& fabric() const noexcept { return *fabric_; }
  // NICs that belong to a GPU, and GPUs that a NIC belongs to: the nearest, shared out evenly where several are equally near.
  std::span<const VertexId> own_nics(GpuId gpu) const { return own_nics_[gpu]; }
  std::span<const GpuId> owners(VertexId nic) const { return owners_[nic_index_[nic]]; }
  bool owns(GpuId gpu, VertexId nic) const;
  bool peers(GpuId a, GpuId b) const;  // NVLink both ways
  // Who feeds `nic` for `gpu` (kNone: the GPU itself), best first. The same GPUs take bytes from it at a destination.
  std::vector<GpuId> relay_choices(GpuId gpu, VertexId nic) const;
  // Whether `relay` takes what `gpu` sends to a NIC over NVLink into its own memory, and how far a GPU is from a NIC.
  bool relays_over_nvlink(GpuId gpu, GpuId relay) const {
    return relay != gpu && fabric_->vertex(fabric_->gpu(relay)).gdr && peers(gpu, relay);
  }
  std::uint32_t distance(GpuId gpu, VertexId nic) const { return paths_.distance(NodePaths::Domain::pcie, fabric_->gpu(gpu), nic); }
  // NICs of a node ordered by their distance from a GPU of it, equally near ones starting with the GPU's own.
  std::vector<VertexId> nics_by_distance(GpuId gpu) const;
  // The NIC of `node` on the rail of `nic` (same rail number and leaf; without rail numbers the same position on the same
  // leaf), or kNone.
  VertexId rail_peer(VertexId nic, NodeId node) const;
  // Every leaf leads to every other one, over a spine: any two NICs have a way.
  bool leaves_joined() const noexcept { return leaves_joined_; }
  // Routes inside a node, best first, whatever the links do: direct, relays, host.
  std::vector<Route> node_routes(GpuId src, GpuId dst) const;

  // Append edges; false (and nothing appended) where the fabric has no such way.
  bool append_source(GpuId src, GpuId relay, VertexId nic, std::vector<EdgeId>& edges) const;
  bool append_network(VertexId nic_src, VertexId nic_dst, std::vector<EdgeId>& edges) const;
  bool append_destination(VertexId nic, GpuId relay, GpuId dst, std::vector<EdgeId>& edges) const;
  bool append_edges(const Route& route, std::vector<EdgeId>& edges) const;
  // The resources that one byte on these edges loads, with repetition.
  void append_resources(std::span<const EdgeId> edges, std::vector<ResourceId>& resources) const;

 private:
  using Domain = NodePaths::Domain;
  void assign_nics(NodeId node);
  bool append_staged(VertexId from, VertexId to, VertexId numa, std::vector<EdgeId>& edges) const;
  std::uint64_t width(const Route& route) const;
  EdgeId uplink(VertexId nic) const;
  EdgeId downlink(VertexId nic) const;

  const Fabric* fabric_;
  NodePaths paths_;
  std::vector<std::uint32_t> nic_index_;  // vertex -> position among all NICs
  std::vector<std::vector<VertexId>> own_nics_;
  std::vector<std::vector<GpuId>> owners_;
  // leaf to leaf over spines: each choice is two edges; [from leaf][to leaf], leaves numbered in vertex order
  struct Crossing {
    EdgeId up = kNone, down = kNone;
  };
  std::vector<std::uint32_t> leaf_index_;
  std::uint32_t leaf_count_ = 0;
  bool leaves_joined_ = true;
  std::vector<std::vector<Crossing>> crossings_;
};

}  // namespace railweave
