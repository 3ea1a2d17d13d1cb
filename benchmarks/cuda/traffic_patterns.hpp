// The traffic that gpu_exchange moves: bytes from each rank (row) to each other one (column).
#pragma once

#include <cstdint>
#include <vector>

using Matrix = std::vector<std::vector<std::uint64_t>>;

struct Pattern {
  const char* name;
  const char* option;  // as --patterns has it
  Matrix bytes;
};

// `size`: bytes of the busiest pair (of Zipf's, of a rank's all). Those of which two ranks have nothing of their own are from three on.
std::vector<Pattern> traffic_patterns(std::uint32_t world, std::uint64_t size);

// Bytes that the busiest rank sends to others, or gets from them.
std::uint64_t busiest(const Matrix& m);
