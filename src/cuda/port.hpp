// What two ranks of a node share: the memory in front of a rank for each peer, in the rank's GPU, mapped by the peer. Plain data without
// pointers, read and written by kernels (and by threads in tests). docs/cuda.md says who writes which word and when.
#pragma once

#include <cstddef>
#include <cstdint>

namespace railweave::cuda {

// Granted messages of a pair that may be under way at once; more wait for the first ones.
inline constexpr std::uint32_t kGrants = 8;
// Slots of a pair for what cannot be written into the user's buffer. With the low-latency slots they stay under 1 MiB a peer.
inline constexpr std::uint32_t kSlots = 8;
inline constexpr std::uint64_t kSlotBytes = 48u << 10;
// Low-latency slots of a pair, bytes of data in each; every 4 bytes of data travel with a flag of 4 bytes.
inline constexpr std::uint32_t kLowLatencySlots = 32;
inline constexpr std::uint64_t kLowLatencyBytes = 8u << 10;
// A low-latency slot is wiped once in so many uses: its flags are 31-bit, so that none that an old, longer message left can be taken for
// new.
inline constexpr std::uint64_t kUsesBetweenWipes = 1u << 24;

// Names of a receiver's buffers in grants; others are numbers in the receiver's book (book.hpp).
inline constexpr std::uint64_t kNoBuffer = 0;        // slots only
inline constexpr std::uint64_t kAbsoluteBuffer = 1;  // `offset` is an address, valid at the source: same process

// 8 bytes of data and their flags: each word has 4 bytes of data below and the flag above, and is written whole.
struct alignas(16) Packet {
  std::uint64_t words[2];
};
inline constexpr std::uint64_t kPackets = kLowLatencyBytes / 8;

// What a receive tells its source. Each word carries 4 bytes below and the low half of the message's number above, so that the words need
// no order among themselves: a grant is there when all its words name the message.
struct alignas(16) Grant {
  static constexpr std::uint32_t kWords = 6;
  std::uint64_t words[kWords];  // bytes low, bytes high, buffer, offset low, offset high, spare
};

// Which piece of which message lies in a slot.
struct SlotRecord {
  std::uint64_t number;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t reserved;
};

// In rank r's memory, at index p: what the pair (r, p) needs at r.
struct alignas(128) Port {
  // r is the source; p writes.
  Grant grants[kGrants];                    // of message n at n % kGrants
  std::uint64_t freed[kSlots];              // how often p has emptied its slot
  std::uint64_t credits[kLowLatencySlots];  // sequence number + 1 of the last low-latency piece that p took from its slot
  // r is the destination; p writes.
  std::uint64_t placed[kGrants];  // bytes of message n, at n % kGrants, that are in the user's buffer; p adds, r clears
  std::uint64_t filled[kSlots];   // how often the slot was filled; written after slot and record
  SlotRecord records[kSlots];
  // r's own.
  alignas(128) std::uint64_t sent;  // granted messages to p, all before this operation
  std::uint64_t received;
  std::uint64_t pieces_sent;  // low-latency pieces
  std::uint64_t pieces_received;
  std::uint64_t taken[kSlots];   // how often r has taken the slot at p
  std::uint64_t pulled[kSlots];  // how often r has claimed its own slot for a pull
  // p writes.
  alignas(128) Packet packets[kLowLatencySlots][kPackets];
  alignas(128) std::byte slots[kSlots][kSlotBytes];
};
static_assert(sizeof(Port) <= 1u << 20, "a peer costs at most 1 MiB");

}  // namespace railweave::cuda
