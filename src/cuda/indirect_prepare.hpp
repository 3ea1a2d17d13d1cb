// Which messages of an operation may use indirect paths, and how many blocks do.
#pragma once

#include <cstdint>
#include <span>

#include "operation.hpp"
#include "prepare.hpp"

namespace railweave::cuda {

// Whether this rank and the peer have mapped slots of other GPUs, as where each pair has links of its own.
bool offers_relays(const Message& message);

// Takes away the paths that the messages are not to use: all of them where they have a kernel that knows none. False when none is left
// that uses one and no link is paced: then another kernel serves. Messages have their `path`.
bool choose_indirect(std::span<Message> messages, const LaunchLimits& limits, bool has_kernel);

// Blocks that a message with paths is worth.
std::uint64_t indirect_blocks_worth(const Message& message);

// For messages that have their blocks: how large pieces are, which blocks send over the host, and until when.
void assign_indirect(std::span<Message> messages, const LaunchLimits& limits);

}  // namespace railweave::cuda
