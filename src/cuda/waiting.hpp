// What a message waits for, read from the words of its port: a line of the dump that tells of a stall. docs/cuda.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "operation.hpp"

namespace railweave::cuda {

// The words of a port: all in front of its packets.
inline constexpr std::size_t kPortWordsBytes = offsetof(Port, packets);
static_assert(kPortWordsBytes <= 12 << 10);

struct Waiting {
  Direction direction;
  Path path;
  std::uint32_t peer;
  std::uint64_t bytes;
  std::uint64_t before;  // messages (granted) or packets of this pair, direction and path that are under way before it
};

// `port`: a copy of this rank's for the peer, of which only the words are read.
std::string waiting_text(const Waiting& message, const Port& port);

// Whether a peer that will queue nothing any more, and all of whose operations have ended, has queued no message for this one to meet.
// `port` as above; `peers`: a copy of the peer's for this rank, whose counts are final.
bool is_unmatched(const Waiting& message, const Port& port, const Port& peers);

}  // namespace railweave::cuda
