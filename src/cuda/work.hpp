// Steps of a block (roles.hpp), and what goes with them: bundles of packets, and what a look finds.
#pragma once

#include <type_traits>

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
RAILWEAVE_ROLE std::uint32_t bundle_packets(const Message& m) { return packets_of_bundle(packets_of(m.bytes)); }
RAILWEAVE_ROLE std::uint64_t bundles(const Message& m) {
  const std::uint64_t bytes = std::uint64_t{bundle_packets(m)} * Packet::kData;
  return (m.bytes + bytes - 1) / bytes;
}
// Dealt to the blocks in turn: those of block `block` modulo their number.
RAILWEAVE_ROLE std::uint64_t bundles_of(const Message& m, std::uint32_t block, std::uint32_t blocks) {
  std::uint64_t mine = 0;
  for (std::uint64_t bundle = block % blocks; bundle < bundles(m); bundle += blocks) mine |= std::uint64_t{1} << bundle;
  return mine;
}
RAILWEAVE_ROLE std::uint64_t all_bundles(const Message& m) { return ~std::uint64_t{0} >> (kMostBundles - bundles(m)); }

// Work::slot beyond the slots: kSlots is none, path p is kFirstIndirect + p.
inline constexpr std::uint32_t kFirstIndirect = kSlots + 1;
inline constexpr std::uint32_t kOffered = 1, kNotYet = 2;

// What a look finds, the most urgent first: step, distance from the block's own send, slot. In a word of 32 bits where an operation has at
// most 256 messages: a GPU finds the least of a warp's in one instruction.
template <bool kMany>
struct Finding {
  using Word = std::conditional_t<kMany, std::uint64_t, std::uint32_t>;
  static constexpr std::uint32_t kStepBit = kMany ? 48 : 28, kDistanceBit = kMany ? 16 : 8;
  static_assert(static_cast<std::uint32_t>(Step::over) < 16 && kMaxMessages <= 1u << 20);
  static_assert(kMostBundles <= 256 && kFirstIndirect + kIndirectPaths <= 256);

  RAILWEAVE_ROLE static constexpr Word word(Step step, std::uint32_t distance, std::uint32_t slot) {
    return static_cast<Word>(step) << kStepBit | static_cast<Word>(distance) << kDistanceBit | slot;
  }
  RAILWEAVE_ROLE static constexpr Step step(Word found) { return static_cast<Step>(found >> kStepBit); }
  RAILWEAVE_ROLE static constexpr std::uint32_t distance(Word found) {
    return static_cast<std::uint32_t>(found >> kDistanceBit & ((Word{1} << (kStepBit - kDistanceBit)) - 1));
  }
  RAILWEAVE_ROLE static constexpr std::uint32_t slot(Word found) {
    return static_cast<std::uint32_t>(found & ((Word{1} << kDistanceBit) - 1));
  }
  RAILWEAVE_ROLE static constexpr bool is_not_yet(Word found) { return step(found) == Step::own_more && slot(found) == kNotYet; }
};

}  // namespace railweave::cuda
