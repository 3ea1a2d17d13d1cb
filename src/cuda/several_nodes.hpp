// Whether a communicator over several nodes is served where nobody says how many it may have (gpu_nodes 0): only where what it would meet
// is like what has been measured. docs/cuda.md, "Several nodes".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "../engine/cluster.hpp"

namespace railweave::cuda {

// CPUs that a rank's threads may run on, a bit each.
struct CpuSet {
  std::array<std::uint64_t, 16> words{};
};

// What a rank says of its node.
struct NodeFacts {
  std::string network;  // by which NCCL would go there instead of TCP, or nothing
  CpuSet cpus;
  std::uint32_t quota = 0;  // CPUs' time that its control group may take, rounded up; 0: all
};
NodeFacts own_node_facts();
// From what cpu.max says ("200000 100000", "max 100000").
std::uint32_t quota_of(const std::string& cpu_max);
// The network of a machine whose RDMA devices are those in the folder. `variable`: of the environment, or nullptr.
std::string better_network(const std::string& infiniband, const char* (*variable)(const char* name));

// Why such a communicator is left to NCCL, or nothing. `facts`: by rank. The same on all ranks.
std::string objection_to(const engine::Cluster& cluster, const std::vector<NodeFacts>& facts);

}  // namespace railweave::cuda
