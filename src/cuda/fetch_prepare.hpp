// Which messages of an operation their destinations may read the end of (fetch_roles.hpp).
#pragma once

#include <span>

#include "prepare.hpp"

namespace railweave::cuda {

// Adds kFetched to the paths of granted messages where this rank's traffic wants it; before prepare(). Whoever sends one then has to name
// its buffer, or take the bit away. Returns how many blocks the operation may have by `limits`; 0: nothing is fetched.
std::uint32_t choose_fetched(std::span<Message> messages, const LaunchLimits& limits);
// Takes it away from receives where the room on the device leaves much fewer blocks than that.
void reconsider_fetched(std::span<Message> messages, const LaunchLimits& limits, std::uint32_t expected);

// Bytes of a granted message that this rank's blocks push, or fetch.
std::uint64_t moved_here(const Message& message);

}  // namespace railweave::cuda
