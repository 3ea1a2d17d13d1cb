// The one best way between two vertices of a node, over PCIe (with C2C and socket links) or over NVLink. Found once per fabric.
#pragma once

#include <cstdint>
#include <vector>

#include "railweave/fabric/fabric.hpp"

namespace railweave {

class NodePaths {
 public:
  enum class Domain : std::uint8_t { pcie, nvlink };

  explicit NodePaths(const Fabric& fabric);

  // Appends the edges of the best way from -> to (both on one node) and returns true, or returns false where there is none.
  // Best: fewest socket crossings, then fewest CPU roots passed, then fewest hops, then the widest, then the lowest edge ids.
  bool append(Domain domain, VertexId from, VertexId to, std::vector<EdgeId>& edges) const;
  // How far, comparable between ways of one node: socket crossings, CPU roots passed and hops, in this order. kNone: no way.
  std::uint32_t distance(Domain domain, VertexId from, VertexId to) const;
  // The NUMA node a vertex is attached to (the nearest one), or kNone.
  VertexId numa_of(VertexId id) const { return numa_[id]; }

 private:
  struct Step {
    EdgeId last = kNone;  // the edge that enters the vertex
    std::uint32_t distance = kNone;
    std::uint64_t width_Bps = 0;
  };
  struct Node {
    std::uint32_t size = 0;
    std::vector<Step> pcie, nvlink;  // [from][to], local indices
  };

  void search(const Fabric& fabric, const std::vector<VertexId>& members, Domain domain, std::vector<Step>& steps) const;
  const Step* step(Domain domain, VertexId from, VertexId to) const;

  const Fabric* fabric_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> local_;  // position of a vertex among those of its node
  std::vector<VertexId> numa_;
};

}  // namespace railweave
