// Turns the messages of an operation into what the kernel needs: which path each takes, how it is numbered, which blocks begin with it.
#pragma once

#include <cstdint>
#include <span>

#include "operation.hpp"

namespace railweave::cuda {

struct LaunchLimits {
  std::uint32_t blocks = 16;
  std::uint64_t low_latency_bytes = 512u << 10;  // a message of at most that many goes in packets; the same on all ranks
  std::uint32_t cluster_blocks = 1;              // as many blocks begin together or not at all on this device
};

// How an operation is launched.
struct Plan {
  std::uint32_t blocks;
  bool packets_only;  // by the packet kernel
  bool has_packets;
};

// Fills ordinal, piece_bytes, grant_after, first_block, last_block, first_warp, path, last_of_pair and reports of messages that have all
// else.
Plan prepare(std::span<Message> messages, const LaunchLimits& limits);

}  // namespace railweave::cuda
