// Fabrics and demands that the planner's tests share.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "railweave/demand/demand.hpp"
#include "railweave/fabric/fabric.hpp"
#include "railweave/fabric/load.hpp"
#include "railweave/planner/planner.hpp"

namespace railweave::testing {

inline constexpr std::uint64_t kMiB = 1u << 20;

inline Fabric machine(const std::string& name, std::uint32_t nodes) { return load_fabric(name, {nodes, {RAILWEAVE_TEMPLATES}}); }

// Every machine that the planner's targets name, and some with odd wiring.
inline std::vector<std::pair<std::string, std::uint32_t>> machines() {
  return {{"h100-4gpu-ndr", 1}, {"h100-4gpu-ndr", 2},          {"xe9680-4hca", 2}, {"hgx-h100", 2},
          {"dgx-1v", 2},        {"lineyahoo-4nic-rewired", 2}, {"charisma-e", 2},  {"kisti-v100-2gpu", 3}};
}

// Random bytes for about `density` of the pairs, reproducible on every standard library (mt19937_64 is, distributions are not).
inline Demand random_demand(std::uint32_t ranks, std::uint64_t most, double density, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Demand demand(ranks);
  for (GpuId src = 0; src < ranks; ++src) {
    for (GpuId dst = 0; dst < ranks; ++dst) {
      const std::uint64_t draw = random(), size = random() % most + 1;
      if (src != dst && static_cast<double>(draw >> 11) < density * static_cast<double>(std::uint64_t{1} << 53)) demand.set(src, dst, size);
    }
  }
  return demand;
}

inline Demand one_pair(std::uint32_t ranks, GpuId src, GpuId dst, std::uint64_t bytes) {
  Demand demand(ranks);
  demand.set(src, dst, bytes);
  return demand;
}

inline std::map<std::pair<GpuId, GpuId>, std::uint64_t> delivered(const Plan& plan) {
  std::map<std::pair<GpuId, GpuId>, std::uint64_t> bytes;
  for (const Share& share : plan.shares) bytes[{share.route.src, share.route.dst}] += share.bytes;
  return bytes;
}

inline void take_down(const Fabric& fabric, LinkState& links, const std::string& vertex) {
  const VertexId v = fabric.find_vertex(vertex);
  for (EdgeId e : fabric.out_edges(v)) links.set_down(e, true);
  for (EdgeId e : fabric.in_edges(v)) links.set_down(e, true);
}

inline void slow_down(const Fabric& fabric, LinkState& links, const std::string& vertex, std::uint64_t times) {
  const VertexId v = fabric.find_vertex(vertex);
  for (EdgeId e : fabric.out_edges(v)) links.set_rate(e, fabric.edge(e).capacity_Bps / times);
  for (EdgeId e : fabric.in_edges(v)) links.set_rate(e, fabric.edge(e).capacity_Bps / times);
}

inline void slow_to_half(const Fabric& fabric, LinkState& links, const std::string& vertex) { slow_down(fabric, links, vertex, 2); }

}  // namespace railweave::testing
