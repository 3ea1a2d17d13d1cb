// Which NICs are alike for the ranks still to be placed: one can be carried to the other by an exchange of equal parts of the PCIe tree
// that leaves every rank that has its NIC, the NICs in use, and the rank in turn where they are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "railweave/planner/nic_mapping.hpp"

namespace railweave {

class NicSymmetry {
 public:
  NicSymmetry(const Fabric& fabric, NodeId node, std::span<const RankGpu> gpus, std::span<const RankNic> nics,
              const std::vector<std::vector<std::optional<NicWay>>>& ways);

  // By position of a NIC: equal values are alike. `in_use` are the NICs of the ranks below `rank`, whose turn it is.
  std::vector<std::uint32_t> orbits(std::size_t rank, const std::set<VertexId>& in_use);

 private:
  using Words = std::vector<std::uint64_t>;

  std::uint32_t number(Words words);
  std::uint32_t shape(VertexId vertex, const std::set<VertexId>& fixed, std::map<VertexId, std::uint32_t>& shapes);
  Words own(VertexId vertex) const;

  const Fabric& fabric_;
  std::vector<RankGpu> gpus_;
  std::vector<RankNic> nics_;
  std::vector<std::vector<bool>> between_roots_;  // by rank and NIC: facts that the fabric does not have break its symmetry
  bool is_tree_ = true;
  std::vector<VertexId> roots_;
  std::map<VertexId, VertexId> parents_;
  std::map<VertexId, std::vector<VertexId>> children_;
  std::map<VertexId, std::uint32_t> own_;
  std::map<Words, std::uint32_t> numbers_;  // what was met so far; equal parts have equal numbers
};

}  // namespace railweave
