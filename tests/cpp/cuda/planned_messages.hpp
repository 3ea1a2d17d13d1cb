// Messages as prepare() gets them, with no memory behind them.
#pragma once

#include <span>

#include "prepare.hpp"

namespace railweave::cuda {

// Of one communicator, or of each of two.
inline HostView hosts[2];

// In a buffer that mates may have mapped.
inline Message make_message(Direction direction, std::uint32_t peer, std::uint64_t bytes, HostView* host = &hosts[0]) {
  static Port ports[16];
  Message m{};
  m.local = &ports[peer];
  m.peer = peer;
  m.direction = direction;
  m.bytes = bytes;
  m.host = host;
  m.named = {kAbsoluteBuffer + 1, 0};
  return m;
}

// The messages with the path of their size, as a communicator of that limit gives it.
inline std::span<Message> sized(std::span<Message> messages, std::uint64_t low_latency_bytes) {
  for (Message& m : messages) m.path = path_of(m.bytes, low_latency_bytes);
  return messages;
}

}  // namespace railweave::cuda
