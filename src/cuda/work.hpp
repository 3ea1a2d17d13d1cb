// Steps of a block (roles.hpp), and what goes with them.
#pragma once

#include "packet_roles.hpp"

namespace railweave::cuda {

// What a block does next, the most urgent first: pulls free what others wait for, so they go before pushes. What it fetches is waited for
// by nobody but this operation's two ends. `waiting` and `over` are states of a message; a block leaves when all are over.
enum class Step : std::uint32_t { pull_packets, pull_slot, grant, push_packets, push, own_bundle, own_more, fetch, waiting, over };

struct Work {
  Step step;
  std::uint32_t message;
  std::uint32_t slot;  // or the bundle; from kFirstIndirect on, an indirect path; kOffered: of what was offered, and is not
                       // read; kNotYet: of a send that has not been granted, but is waited for
  std::uint32_t bytes;
  std::uint64_t offset;  // in the message
  std::uint64_t turn;    // of the slot; or number of the piece; or of the bundle's first packet
  std::byte* base;       // of a push: the destination's buffer, or null for a slot
};

// Of a message of so many packets; a power of two. All of a bundle's are seen before one is moved, so a pair's slots have to hold them.
RAILWEAVE_ROLE constexpr std::uint32_t packets_of_bundle(std::uint32_t packets) {
  std::uint32_t bundle = kBundlePackets;
  while (bundle * kMostBundles < packets) bundle *= 2;
  return bundle;
}
static_assert(packets_of_bundle(packets_of(8u << 20)) <= kPacketSlots, "the most that gpu_low_latency_bytes may be (settings.cpp)");

// Work::slot beyond the slots: kSlots is none, path p is kFirstIndirect + p.
inline constexpr std::uint32_t kFirstIndirect = kSlots + 1;
inline constexpr std::uint32_t kOffered = 1, kNotYet = 2;

}  // namespace railweave::cuda
