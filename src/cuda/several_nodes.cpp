#include "several_nodes.hpp"

#include <sched.h>
#include <strings.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "../engine/folder.hpp"
#include "liveness.hpp"

namespace railweave::cuda {
namespace {

// What the NICs of a node may have for each of its ranks. With a rail of 8 Gbit/s a rank exchanges are as fast as NCCL's, with two balanced
// ones of 256 KiB to 1 MiB take 4 to 12% longer, as a rank's one thread is full (2x2 and 2x4 labs on two and four GPUs, docs/results.md).
constexpr std::uint64_t kMostBps = 1'250'000'000;
// CPUs for each rank of a node: its engine's thread and the program's own look for work all the time. With two for each rank messages of
// 16 KiB took 2.3 and 3.4 times as long as NCCL's, with four 1.02 times (2x4 labs on one and two H200, docs/results.md).
constexpr std::uint32_t kLeastCpus = 4;

std::string gbits(std::uint64_t Bps) {
  char text[32];
  std::snprintf(text, sizeof text, "%g Gbit/s", static_cast<double>(Bps) / 125e6);
  return text;
}

bool is_set(const char* text) { return text != nullptr && *text != '\0'; }

// NCCL may see that they are one machine, and take NVLink.
std::string one_machine(const engine::Cluster& cluster) {
  std::map<std::string, const engine::NodeInfo*> first_of;  // by boot
  for (const engine::NodeInfo& node : cluster.nodes) {
    const std::string boot = boot_of(node.name);
    if (boot.empty()) continue;
    const auto [first, is_first] = first_of.emplace(boot, &node);
    if (is_first) continue;
    const engine::NodeInfo& other = *first->second;
    return "rank " + std::to_string(node.ranks[0]) + " runs on another node than rank " + std::to_string(other.ranks[0]) +
           other_namespace(node.name, other.name);
  }
  return {};
}

std::string few_cpus(const engine::NodeInfo& node, const std::vector<NodeFacts>& facts) {
  std::uint32_t cpus = 0;
  for (std::size_t word = 0; word < CpuSet{}.words.size(); ++word) {
    std::uint64_t any = 0;
    for (const std::uint32_t rank : node.ranks) any |= facts[rank].cpus.words[word];
    cpus += static_cast<std::uint32_t>(std::popcount(any));
  }
  // Whether ranks with a quota share it nobody says.
  std::uint32_t quota = 0;
  for (const std::uint32_t rank : node.ranks) quota = std::max(quota, facts[rank].quota);
  if (quota != 0) cpus = std::min(cpus, quota);
  if (cpus >= kLeastCpus * node.ranks.size()) return {};
  return "node '" + node.name + "' has " + std::to_string(cpus) + " CPUs for " + std::to_string(node.ranks.size()) +
         " ranks; with less than " + std::to_string(kLeastCpus) + " for each its threads take each other's";
}

std::string unmeasured_nics(const engine::Cluster& cluster, const engine::NodeInfo& node) {
  std::uint64_t sum = 0;
  for (const std::uint32_t id : node.nics) {
    const engine::NicInfo& nic = cluster.nics[id];
    if (nic.rate_Bps == 0) return "the speed of NIC " + nic.device + " of rank " + std::to_string(nic.owner) + " is not known";
    sum += nic.rate_Bps;
  }
  if (sum <= kMostBps * node.ranks.size()) return {};
  return "the NICs of node '" + node.name + "' have " + gbits(sum) + " for " + std::to_string(node.ranks.size()) + " ranks; more than " +
         gbits(kMostBps) + " for each can be too much for its thread";
}

}  // namespace

std::string better_network(const std::string& infiniband, const char* (*variable)(const char* name)) {
  for (const char* const name : {"NCCL_NET", "NCCL_NET_PLUGIN"}) {
    const char* const text = variable(name);
    if (is_set(text) && ::strcasecmp(text, "Socket") != 0 && ::strcasecmp(text, "none") != 0) return std::string(name) + "=" + text;
  }
  // As NCCL reads it: any number but 0.
  const char* const disabled = variable("NCCL_IB_DISABLE");
  if (is_set(disabled) && std::strtol(disabled, nullptr, 10) != 0) return {};
  const std::vector<std::string> devices = engine::names_in(infiniband);
  return devices.empty() ? std::string() : "RDMA device " + *std::min_element(devices.begin(), devices.end());
}

std::uint32_t quota_of(const std::string& cpu_max) {
  std::istringstream in(cpu_max);
  double quota = 0, period = 0;  // "max" is no number
  return in >> quota >> period && quota > 0 && period > 0 ? static_cast<std::uint32_t>(std::ceil(quota / period)) : 0;
}

NodeFacts own_node_facts() {
  NodeFacts facts;
  // Of a container; the root group of a machine has no such file.
  std::string line;
  std::getline(std::ifstream("/sys/fs/cgroup/cpu.max"), line);
  facts.quota = quota_of(line);
  facts.network = better_network("/sys/class/infiniband", [](const char* name) -> const char* { return std::getenv(name); });
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (::sched_getaffinity(0, sizeof cpus, &cpus) != 0) return facts;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) facts.cpus.words[static_cast<std::size_t>(cpu) / 64] |= std::uint64_t{1} << cpu % 64;
  }
  return facts;
}

std::string objection_to(const engine::Cluster& cluster, const std::vector<NodeFacts>& facts) {
  std::string objection = one_machine(cluster);  // which its networks, NICs and CPUs would hide
  for (std::uint32_t rank = 0; objection.empty() && rank < cluster.world; ++rank) {
    if (!facts[rank].network.empty())
      objection = "rank " + std::to_string(rank) + " has " + facts[rank].network + ", over which several nodes have not run";
  }
  for (auto node = cluster.nodes.begin(); objection.empty() && node != cluster.nodes.end(); ++node) {
    objection = unmeasured_nics(cluster, *node);
    if (objection.empty()) objection = few_cpus(*node, facts);
  }
  return objection;
}

}  // namespace railweave::cuda
