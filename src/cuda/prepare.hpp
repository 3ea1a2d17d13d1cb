// Turns the messages of an operation into what the kernel needs: which path each takes, how it is numbered, which blocks begin with it.
#pragma once

#include <cstdint>
#include <span>

#include "operation.hpp"

namespace railweave::cuda {

struct LaunchLimits {
  std::uint32_t blocks = 16;
  std::uint64_t low_latency_bytes = 64u << 10;  // a message of at most that many goes in packets; the same on all ranks
};

// Fills ordinal, piece_bytes, grant_after, first_block, last_block, path, last_of_pair and reports of messages that have all else.
// Returns the number of blocks to launch.
std::uint32_t prepare(std::span<Message> messages, const LaunchLimits& limits);

}  // namespace railweave::cuda
