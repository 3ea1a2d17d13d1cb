#pragma once

#include <span>

#include "prepare.hpp"

namespace railweave::cuda {

// The messages with the path of their size, as a communicator of that limit gives it.
inline std::span<Message> sized(std::span<Message> messages, std::uint64_t low_latency_bytes) {
  for (Message& m : messages) m.path = path_of(m.bytes, low_latency_bytes);
  return messages;
}

}  // namespace railweave::cuda
