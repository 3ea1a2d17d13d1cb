// The fabric graph: what a machine or a cluster can carry. Everything else (model, planner, engine, reports) reads this.
//
// A fabric is immutable once built; what changes at run time (measured rates, links that are down) lives in the LinkState
// overlay. Capacities are bytes/s and latencies nanoseconds, as integers: the planner must give the same plan on every CPU
// and compiler, so nothing it reads is floating point.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace railweave {

using VertexId = std::uint32_t;
using EdgeId = std::uint32_t;
using ResourceId = std::uint32_t;
using NodeId = std::uint32_t;  // a host
using GpuId = std::uint32_t;   // position of a GPU in (node, index) order; also its rank and its row in a demand matrix
inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

enum class VertexKind : std::uint8_t { gpu, nic, pcie_switch, numa, nvswitch, leaf, spine };
enum class EdgeKind : std::uint8_t {
  nvlink,  // GPU-GPU or GPU-NVSwitch
  c2c,     // NVLink-C2C between a GPU and its CPU
  pcie,    // one PCIe link (any generation and width)
  socket,  // between NUMA nodes: UPI, xGMI, on-die mesh
  rail,    // NIC-leaf
  uplink,  // leaf-spine
};

std::string_view to_string(VertexKind kind) noexcept;
std::string_view to_string(EdgeKind kind) noexcept;

// What a topology file says of a part beyond what the graph has a field for, so that it can be written again: "cpu.affinity",
// "pci.class", "net.guid". The keys are element and attribute.
using Attributes = std::map<std::string, std::string, std::less<>>;

struct Vertex {
  VertexKind kind = VertexKind::gpu;
  NodeId node = kNone;         // the host it belongs to; kNone for leaf and spine
  std::uint32_t index = 0;     // position among the vertices of its kind on its node (for leaf and spine: in the cluster)
  std::uint32_t rail = kNone;  // nic, leaf: which rail; kNone when the wiring has no rails
  std::string name;            // unique in the fabric, e.g. "node0/gpu3", "leaf2"
  // Capacities of the vertex itself in bytes/s, beside those of its edges; 0 means it has none of its own.
  std::uint64_t egress_Bps = 0;                    // sum over all edges that leave it (a GPU's injection)
  std::uint64_t ingress_Bps = 0;                   // sum over all edges that enter it
  std::uint64_t through_Bps = 0;                   // each byte that starts, ends or passes here counts once in and once out (host memory)
  bool gdr = false;                                // gpu: GPUDirect RDMA usable, so a NIC reads and writes its memory
  std::string model;                               // "H200", "ConnectX-7"; free text
  std::string bus_id;                              // PCI address where known
  std::string source;                              // where its capacities come from
  std::shared_ptr<const Attributes> attributes{};  // null for none; the nodes made of one template share them
};

struct Edge {
  VertexId from = kNone;
  VertexId to = kNone;
  EdgeKind kind = EdgeKind::pcie;
  std::uint64_t capacity_Bps = 0;  // one direction; never 0 in a built fabric
  std::uint64_t latency_ns = 0;
  std::string source;  // where the capacity comes from (data sheet, measurement, rule)
};

// Anything that can be the bottleneck: an edge, or a vertex's own capacity. Planner and model work on resources alone.
// Ids: edges first (ResourceId == EdgeId), then the vertices' capacities in vertex order.
struct Resource {
  enum class Kind : std::uint8_t { edge, vertex_egress, vertex_ingress, vertex_through };
  Kind kind = Kind::edge;
  std::uint32_t id = kNone;  // EdgeId or VertexId
  std::uint64_t capacity_Bps = 0;
};

class Fabric {
 public:
  std::string_view name() const noexcept { return name_; }
  std::span<const Vertex> vertices() const noexcept { return vertices_; }
  std::span<const Edge> edges() const noexcept { return edges_; }
  std::span<const Resource> resources() const noexcept { return resources_; }
  const Vertex& vertex(VertexId id) const { return vertices_.at(id); }
  const Edge& edge(EdgeId id) const { return edges_.at(id); }

  // Edges that leave / enter a vertex, ascending by id.
  std::span<const EdgeId> out_edges(VertexId id) const;
  std::span<const EdgeId> in_edges(VertexId id) const;
  // The edge from -> to, or kNone.
  EdgeId find_edge(VertexId from, VertexId to) const noexcept;
  // The vertex of that name, or kNone.
  VertexId find_vertex(std::string_view name) const noexcept;
  // The resource that stands for a vertex's own capacity of that kind, or kNone.
  ResourceId vertex_resource(VertexId id, Resource::Kind kind) const noexcept;
  // "node0/nic1 -> leaf1 (rail)" or "node0/numa0 (through)".
  std::string describe(ResourceId id) const;

  std::uint32_t node_count() const noexcept { return static_cast<std::uint32_t>(node_names_.size()); }
  std::uint32_t gpu_count() const noexcept { return static_cast<std::uint32_t>(gpus_.size()); }
  std::string_view node_name(NodeId id) const { return node_names_.at(id); }
  VertexId gpu(GpuId id) const { return gpus_.at(id); }
  NodeId node_of(GpuId id) const { return vertices_[gpus_.at(id)].node; }
  // GPUs of a node, ascending; contiguous by construction.
  std::span<const VertexId> gpus_of(NodeId id) const;
  // The first GpuId of a node.
  GpuId first_gpu(NodeId id) const { return first_gpu_.at(id); }
  // NICs of a node, ascending by index.
  std::span<const VertexId> nics_of(NodeId id) const;

 private:
  friend class FabricBuilder;
  std::string name_;
  std::vector<std::string> node_names_;
  std::vector<Vertex> vertices_;
  std::vector<Edge> edges_;
  std::vector<Resource> resources_;
  std::vector<std::uint32_t> out_start_, in_start_;
  std::vector<EdgeId> out_, in_;
  std::vector<VertexId> gpus_, nics_;
  std::vector<GpuId> first_gpu_;
  std::vector<std::uint32_t> first_nic_;
  std::vector<ResourceId> vertex_resource_;  // 3 per vertex: egress, ingress, through
};

// Collects vertices and edges, checks them, and makes the fabric. Order of calls gives the ids (vertices are not reordered),
// except that GPUs are numbered by (node, index).
class FabricBuilder {
 public:
  explicit FabricBuilder(std::string name);
  NodeId add_node(std::string name);
  VertexId add_vertex(Vertex vertex);
  EdgeId add_edge(Edge edge);
  // Both directions with the same capacity; returns the first (from -> to), the other has the next id.
  EdgeId add_link(VertexId a, VertexId b, EdgeKind kind, std::uint64_t capacity_Bps, std::uint64_t latency_ns, std::string source);
  // Throws FabricError: duplicate names, an edge with capacity 0, unknown or equal ends or a twin, a GPU or NIC outside a
  // node, no GPU at all.
  Fabric build() &&;

 private:
  std::string name_;
  std::vector<std::string> nodes_;
  std::vector<Vertex> vertices_;
  std::vector<Edge> edges_;
};

}  // namespace railweave
