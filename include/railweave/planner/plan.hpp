// Paths and plans: which bytes of which demand take which way. The model simulates plans, the engine executes them.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "railweave/fabric/fabric.hpp"

namespace railweave {

enum class PathKind : std::uint8_t {
  direct,      // GPU to GPU in one hop: NVLink, NVSwitch or peer-to-peer PCIe
  relay,       // two NVLink hops over another GPU of the node (relay_src)
  host,        // staged in host memory, inside the node
  rail,        // NIC to NIC of one rail through its leaf
  cross_rail,  // NIC to NIC of different rails, over the spine
};
std::string_view to_string(PathKind kind) noexcept;

// One way from src to dst, as the engine needs it. For rail and cross_rail: relay_src is the GPU of the source's node whose
// memory or process feeds nic_src when that is not src itself, relay_dst the same at the destination; kNone where no relay is
// needed. The edges follow from it (expand), because inside a node each segment takes its one best way.
struct Route {
  PathKind kind = PathKind::direct;
  GpuId src = kNone;
  GpuId dst = kNone;
  GpuId relay_src = kNone;
  GpuId relay_dst = kNone;
  VertexId nic_src = kNone;
  VertexId nic_dst = kNone;

  // GPUs that lend memory and links: 0, 1 or 2.
  std::uint32_t relays() const noexcept {
    return static_cast<std::uint32_t>(relay_src != kNone) + static_cast<std::uint32_t>(relay_dst != kNone);
  }
  auto operator<=>(const Route&) const = default;
};

// A route with everything it loads.
struct Path {
  Route route;
  std::uint64_t latency_ns = 0;       // sum over the edges
  std::vector<EdgeId> edges;          // in order; an edge may appear twice (through host memory and back)
  std::vector<ResourceId> resources;  // edges and vertex capacities that a byte on this path loads; repeated if loaded twice
};

// `bytes` of the demand from route.src to route.dst take that route.
struct Share {
  Route route;
  std::uint64_t bytes = 0;
};

enum class Policy : std::uint8_t { single_path, nccl, ucx_rails, nimble, railweave };
std::string_view to_string(Policy policy) noexcept;

// Why no plan can end earlier. A GPU's bound is everything its links and host path carry together; a node's is all its NICs.
// That of prices is of the planner's own routes, which others can beat (docs/planner.md, "What a bound holds for").
struct Bound {
  enum class Kind : std::uint8_t { none, gpu_out, gpu_in, node_out, node_in, prices };
  Kind kind = Kind::none;
  double seconds = 0;
  std::uint32_t at = kNone;  // GpuId or NodeId; kNone for prices (several links together, shown by linear-programming duality)
};
std::string_view to_string(Bound::Kind kind) noexcept;

struct Plan {
  Policy policy = Policy::railweave;
  std::uint64_t id = 0;             // equal inputs give equal ids
  std::uint64_t link_epoch = 0;     // the link state it was made for
  std::vector<Share> shares;        // only routes that carry bytes, ordered by (src, dst) and then as the planner ranks them
  std::vector<std::uint64_t> load;  // bytes on each resource of the fabric
  double z_seconds = 0;             // max over resources of load / capacity: the plan's completion time in the fluid limit
  ResourceId bottleneck = kNone;    // where that maximum is reached (lowest id)
  Bound bound;                      // the best lower bound that planning found on the way
};

}  // namespace railweave
