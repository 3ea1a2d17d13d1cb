// The routes that are usable under one link state, each with the resources it loads, laid out for the planner's hot path: flat
// arrays, ids resolved, nothing allocated when the link state changes again.
//
// A route between nodes is source segment + rail column + destination segment. The segments belong to (GPU, NIC) and the columns to
// (node, node), so that their number follows GPUs and node pairs and not GPU pairs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "railweave/fabric/fabric.hpp"
#include "railweave/fabric/link_state.hpp"
#include "railweave/planner/plan.hpp"
#include "railweave/planner/planner.hpp"
#include "route_table.hpp"

namespace railweave {

struct PoolRange {
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
};

// Between a GPU and a NIC of its node, in one direction.
struct Segment {
  GpuId relay = kNone;
  bool usable = false;
  PoolRange resources;
  PoolRange binding;  // those of them that can be the bottleneck: no others are loaded by the same routes and narrower
};

// From a NIC of one node to a NIC of another; NICs are numbered within their nodes.
struct RailColumn {
  std::uint16_t nic_src = 0;
  std::uint16_t nic_dst = 0;
  PathKind kind = PathKind::rail;
  PoolRange network;           // resources between the NICs
  std::uint64_t rate_Bps = 0;  // of the narrowest thing that every byte of this column passes
  std::uint32_t weight = 0;    // its part of the node pair's bytes, out of 2^32, when all columns are filled by rate
};

// Inside a node.
struct NodeColumn {
  PathKind kind = PathKind::direct;
  GpuId relay = kNone;
  PoolRange resources;
  PoolRange binding;  // as in Segment
};

// Demands between two nodes with these columns take one path if they are smaller; none: between GPUs of one node.
std::uint64_t split_min_bytes(const PlannerSettings& settings, std::span<const RailColumn> columns);

class LiveRoutes {
 public:
  // A demand is never spread over more columns than this; masks of columns are 64 bits.
  static constexpr std::uint32_t kMaxColumns = 64;

  explicit LiveRoutes(const RouteTable& table);

  // Takes over a link state; false when it is the one already held.
  bool refresh(const LinkState& links);

  std::uint64_t capacity_Bps(ResourceId id) const { return capacity_[id]; }
  std::span<const std::uint64_t> capacities_Bps() const noexcept { return capacity_; }
  std::span<const ResourceId> resources(PoolRange range) const { return std::span(pool_).subspan(range.begin, range.count); }

  std::uint32_t nic_count(NodeId node) const { return nic_start_[node + 1] - nic_start_[node]; }
  std::uint32_t first_nic(NodeId node) const { return nic_start_[node]; }
  // Position of a GPU's first segment in sources() and destinations(); one for each NIC of its node follows.
  std::uint32_t first_segment(GpuId gpu) const { return segment_start_[gpu]; }
  const Segment& source(GpuId gpu, std::uint32_t nic) const { return source_[segment_start_[gpu] + nic]; }
  const Segment& destination(std::uint32_t nic, GpuId gpu) const { return destination_[segment_start_[gpu] + nic]; }
  // The relays of these, packed: a plan of a thousand GPUs asks for millions of them.
  const GpuId* source_relays(GpuId gpu) const { return source_relay_.data() + segment_start_[gpu]; }            // by NIC
  const GpuId* destination_relays(GpuId gpu) const { return destination_relay_.data() + segment_start_[gpu]; }  // by NIC
  // Rate of a NIC (numbered within its node) towards and from its rail, counting what every byte through it passes on its node.
  std::uint64_t nic_out_Bps(NodeId node, std::uint32_t nic) const { return out_Bps_[nic_start_[node] + nic]; }
  std::uint64_t nic_in_Bps(NodeId node, std::uint32_t nic) const { return in_Bps_[nic_start_[node] + nic]; }
  // The most that any policy's routes can get through it: its rail edge, and what every way between it and a GPU loads, also ways that
  // are not these segments.
  std::uint64_t nic_out_most_Bps(NodeId node, std::uint32_t nic) const { return out_most_Bps_[nic_start_[node] + nic]; }
  std::uint64_t nic_in_most_Bps(NodeId node, std::uint32_t nic) const { return in_most_Bps_[nic_start_[node] + nic]; }
  // Every GPU of the node reaches every live NIC of it, so that its demands may be planned together.
  bool uniform(NodeId node) const { return uniform_[node] != 0; }

  // Every NIC has a peer on its rail in every other node.
  bool rails_complete() const noexcept { return rails_complete_; }

  std::span<const RailColumn> columns(NodeId src, NodeId dst) const {
    const std::size_t pair = std::size_t{src} * uniform_.size() + dst;
    return std::span(columns_).subspan(column_start_[pair], column_start_[pair + 1] - column_start_[pair]);
  }
  // Of two GPUs of one node.
  std::span<const NodeColumn> node_columns(GpuId src, GpuId dst) const {
    const std::size_t pair = std::size_t{node_row_[src]} + dst;
    return std::span(node_columns_).subspan(node_column_start_[pair], node_column_start_[pair + 1] - node_column_start_[pair]);
  }
  bool column_usable(const RailColumn& column, GpuId src, GpuId dst) const {
    return source(src, column.nic_src).usable && destination(column.nic_dst, dst).usable;
  }
  std::span<const Segment> sources() const noexcept { return source_; }
  std::span<const Segment> destinations() const noexcept { return destination_; }
  std::span<const RailColumn> columns() const noexcept { return columns_; }
  std::span<const NodeColumn> node_columns() const noexcept { return node_columns_; }
  Route route(const RailColumn& column, GpuId src, GpuId dst) const;
  static Route route(const NodeColumn& column, GpuId src, GpuId dst);

 private:
  struct Choice {
    GpuId relay = kNone;
    PoolRange edges, resources;
  };
  // A resource and how often a byte loads it.
  struct Passed {
    ResourceId resource = kNone;
    std::uint32_t times = 0;
  };
  std::vector<Choice> segment_choices(GpuId gpu, VertexId nic, bool outward);
  bool append_way(GpuId gpu, GpuId relay, VertexId nic, bool outward, std::vector<EdgeId>& edges) const;
  void find_passed(VertexId nic, bool outward);
  bool alive(PoolRange edges) const;
  bool alive(std::span<const EdgeId> edges) const;
  void choose_segments();
  void relay_over_nvlink(GpuId gpu, VertexId nic, bool outward, Segment& segment);
  void rate_nics();
  void list_columns();
  void list_node_columns();
  void find_binding(NodeId node);
  bool outdone_by_edges(ResourceId resource) const;
  bool hides(ResourceId narrow, ResourceId wide) const;
  void add_extra_columns(NodeId src, NodeId dst, std::size_t begin);
  bool leave_out_a_pair(NodeId src, NodeId dst, std::size_t begin) const;
  std::size_t leave_out_negligible(NodeId src, NodeId dst, std::size_t begin, std::size_t matched);
  void leave_out_negligible(std::size_t begin);
  void weigh_columns(std::size_t begin, std::size_t end);
  std::uint64_t common_rate(NodeId node, std::uint32_t nic, bool outward) const;
  std::optional<RailColumn> make_column(NodeId src, NodeId dst, std::uint32_t a, std::uint32_t b);

  const RouteTable* table_;
  std::optional<LinkState> links_;
  std::vector<std::uint64_t> capacity_;  // by resource; 0 when down

  // Fixed at construction.
  std::vector<EdgeId> edge_pool_;
  std::size_t fixed_pool_ = 0;                                 // part of pool_ that refresh keeps
  std::vector<std::uint32_t> nic_start_;                       // by node
  std::vector<std::uint32_t> segment_start_;                   // by GPU
  std::vector<std::vector<Choice>> out_choices_, in_choices_;  // by segment
  std::vector<Passed> passed_;                                 // what all ways to a NIC load, then what all ways from it do; NIC by NIC
  std::vector<std::uint32_t> passed_start_;                    // by 2 x NIC + (0: to it, 1: from it)
  std::vector<std::uint16_t> peer_;                            // [NIC][node]: NIC of that node on its rail
  bool rails_complete_ = true;
  std::vector<std::uint32_t> node_pair_start_;  // by node: first of its GPU pairs
  std::vector<std::uint32_t> node_row_;         // by GPU: its row of pairs, less the first GPU of its node
  struct FixedNodeColumn {
    NodeColumn column;
    PoolRange edges;
  };
  std::vector<FixedNodeColumn> fixed_node_columns_;
  std::vector<std::uint32_t> fixed_node_start_;  // by GPU pair inside a node

  // By link state.
  std::vector<ResourceId> pool_;
  std::vector<Segment> source_, destination_;
  std::vector<GpuId> source_relay_, destination_relay_;
  std::vector<std::uint64_t> out_Bps_, in_Bps_, out_most_Bps_, in_most_Bps_;  // by NIC
  std::vector<std::uint8_t> uniform_;
  std::vector<RailColumn> columns_;
  std::vector<std::uint32_t> column_start_;  // [src node][dst node]
  std::vector<NodeColumn> node_columns_;
  std::vector<std::uint32_t> node_column_start_;
  std::vector<EdgeId> scratch_;
  std::vector<PoolRange> units_;                     // find_binding: what one byte loads on the node, for each way there
  std::vector<std::vector<std::uint32_t>> unit_of_;  // by resource
};

}  // namespace railweave
