// Which NICs of a node each of its ranks uses: the assignment whose predicted bound is least, found exactly.
//
// The load is that of a balanced exchange between nodes: each rank sends and receives the same bytes over its NICs. The bound is the time
// of the busiest resource (load over capacity: PCIe links, links between sockets, host memory, NIC ports), in seconds for each byte of a
// rank. A branch and bound over all assignments finds the least; NICs that the wiring makes alike are tried once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "railweave/fabric/fabric.hpp"

namespace railweave {

// How a GPU reaches a NIC, in the words of `nvidia-smi topo -m` and NCCL; lower is nearer.
enum class Distance : std::uint8_t {
  pix,   // one PCIe switch
  pxb,   // several PCIe switches
  phb,   // through the CPU's PCIe root; of a fabric, which does not tell roots apart, node as well
  node,  // between PCIe roots of one NUMA node
  sys,   // between NUMA nodes
};

struct NicWay {
  std::optional<Distance> distance;     // none where it is not known
  std::uint64_t latency_ns = 0;         // from the GPU to the NIC
  std::vector<ResourceId> resources{};  // what a byte loads when sent or received; repeated if loaded twice
};

struct RankGpu {
  VertexId vertex = kNone;
  bool gdr = false;  // whether GPUDirect RDMA is usable; else bytes are staged in the memory of the GPU's NUMA node
};

struct RankNic {
  VertexId vertex = kNone;
  std::uint64_t capacity_Bps = 0;
};

// The NUMA node at the root of a device's PCIe tree, or kNone.
VertexId numa_above(const Fabric& fabric, VertexId device);

// The way of each GPU (row) to each NIC (column) through PCIe, C2C and links between sockets; none where there is none.
std::vector<std::vector<std::optional<NicWay>>> nic_ways(const Fabric& fabric, std::span<const RankGpu> gpus,
                                                         std::span<const VertexId> nics);

struct NicMapping {
  std::vector<std::vector<std::uint32_t>> nics;  // positions of a rank's NICs, by rank
  double seconds_per_byte = 0.0;                 // of a rank
  ResourceId bottleneck = kNone;
  double nearest_seconds_per_byte = 0.0;  // if each rank took the nearest NIC, the first one of equals
  std::uint64_t steps = 0;                // partial assignments that were looked at
};

struct NicMappingRules {
  bool shortest_first = false;  // short ways before the bound
  // After so many steps the best that was found stands; the result is exact if there were fewer. So it does, and the steps count as taken,
  // where ranks have more choices of several NICs than that.
  std::uint64_t most_steps = 0;
};

// The best assignment of a node's NICs to its GPUs; each GPU has a way to one of them at least (`ways` as nic_ways has them, distances
// perhaps better known), else std::invalid_argument. With more NICs than GPUs each rank has several, else ranks share.
NicMapping map_nics(const Fabric& fabric, NodeId node, std::span<const RankGpu> gpus, std::span<const RankNic> nics,
                    const std::vector<std::vector<std::optional<NicWay>>>& ways, const NicMappingRules& rules);

}  // namespace railweave
