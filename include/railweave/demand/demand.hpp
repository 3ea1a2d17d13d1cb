// Demand: bytes from each GPU to each GPU of one operation. The file format is that of nccl-tests' alltoallv matrix.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "railweave/fabric/fabric.hpp"

namespace railweave {

// Square matrix of bytes; row = sender, column = receiver. Every entry, and their total, is below 2^63.
class Demand {
 public:
  Demand() = default;
  explicit Demand(std::uint32_t ranks) : ranks_(ranks), bytes_(std::size_t{ranks} * ranks, 0) {}

  std::uint32_t ranks() const noexcept { return ranks_; }
  std::uint64_t at(GpuId src, GpuId dst) const noexcept { return bytes_[std::size_t{src} * ranks_ + dst]; }
  // Throws DemandError when the entry or the new total would reach 2^63, or a rank is out of range.
  void set(GpuId src, GpuId dst, std::uint64_t bytes);
  std::uint64_t total() const noexcept { return total_; }
  const std::vector<std::uint64_t>& bytes() const noexcept { return bytes_; }

  // busiest endpoint / mean over endpoints of max(sent, received); 1 for a balanced matrix, 0 for an empty one.
  double skew() const noexcept;
  bool operator==(const Demand&) const = default;

 private:
  std::uint32_t ranks_ = 0;
  std::uint64_t total_ = 0;
  std::vector<std::uint64_t> bytes_;
};

// Reads a matrix file: one row a line, entries separated by spaces, tabs or commas, '#' starts a comment. Throws ParseError.
Demand parse_demand(std::string_view text, const std::string& source);
std::string format_demand(const Demand& demand);
// Throws DemandError when the matrix does not have one row for each GPU of the fabric.
void check_fits(const Demand& demand, const Fabric& fabric);

}  // namespace railweave
