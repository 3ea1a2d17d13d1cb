// What two ranks of a node share: the memory in front of a rank for each peer, in the rank's GPU, mapped by the peer. Plain data without
// pointers, read and written by kernels (and by threads in tests). docs/cuda.md says who writes which word and when.
#pragma once

#include <cstddef>
#include <cstdint>

namespace railweave::cuda {

// Granted messages of a pair that may be under way at once; more wait for the first ones.
inline constexpr std::uint32_t kGrants = 8;
// Slots of a pair for what cannot be written into the user's buffer. With the packets, and the peer's mappings, they stay under 1 MiB a
// peer.
inline constexpr std::uint32_t kSlots = 8;
inline constexpr std::uint64_t kSlotBytes = 15u << 10;
// Indirect paths of a pair: its bytes lie in slots elsewhere in between, in pinned host memory (kHostPath) or in the memory of another GPU
// of the node (a relay each, from kFirstRelay on). The words that tell of them stay at the pair's two ends, as those of kSlots do.
inline constexpr std::uint32_t kHostPath = 0, kFirstRelay = 1, kMostRelays = 6;
inline constexpr std::uint32_t kIndirectPaths = kFirstRelay + kMostRelays;
inline constexpr std::uint32_t kSlotPaths = (1u << kIndirectPaths) - 1;
// Beside their bits: the destination reads the end of the message out of the source's buffer itself (fetch_roles.hpp).
inline constexpr std::uint32_t kFetched = 1u << kIndirectPaths;
static_assert(kFetched < 1u << 8, "a bit of Message::paths");
// In grants only: all messages of the destination's operation have one size (Part::in_step_blocks).
inline constexpr std::uint32_t kBalanced = 1u << 8;
// As large as the largest piece of other pushes, as filling a slot costs a fence and a handshake beside its copy.
inline constexpr std::uint64_t kIndirectBytes = 256u << 10;
// A path's slots are a ring: piece n (from 1) lies in slot n - 1 modulo their number, a power of two. Relay paths have fewer than most
// where many pairs share a GPU's memory. A slot's turn (filled, seen, pulled, seen) is estimated at 23 us over NVLink and 30 us over PCIe;
// then 16 and 8 slots carry 182 and 70 GB/s.
inline constexpr std::uint32_t kIndirectSlots = 16, kHostSlots = 8;
// Packets of a pair that may be under way at once: what is left of 1 MiB. With 184 and slots twice as large messages from 704 KiB to 3 MiB
// took 3 to 10% longer (docs/cuda-measured.md).
inline constexpr std::uint32_t kPacketSlots = 220;

// Names of a rank's buffers in grants and offers; others are numbers in its book (book.hpp).
inline constexpr std::uint64_t kNoBuffer = 0;        // slots only
inline constexpr std::uint64_t kAbsoluteBuffer = 1;  // `offset` is an address, valid at the mate: same process
// What a grant or an offer, and the mate's table, has of a buffer's number. Numbers of which that would be one of the two above are left
// out.
constexpr std::uint64_t granted_name(std::uint64_t number) { return number & 0xffffffff; }

// 120 bytes of data and a flag. Eight threads of a warp write a line in one instruction, and NVLink carries the 128 bytes together: so the
// flag is there when the data are, without a fence.
struct alignas(128) Line {
  static constexpr std::uint32_t kWords = 15;
  static constexpr std::uint32_t kData = 8 * kWords;
  std::uint64_t words[kWords];
  std::uint64_t flag;  // number of the packet, from 1; never used twice, so nothing has to be wiped
};
// What a warp sends at once: four lines an instruction, eight instructions in flight.
struct Packet {
  static constexpr std::uint32_t kLines = 32;
  static constexpr std::uint32_t kData = kLines * Line::kData;
  Line lines[kLines];
};

// Of a slot for packets: the low half of the last packet's flag that was taken from it. Two that are compared are less than 2^31 apart.
using Credit = std::uint32_t;

// Of a pair, path and direction at one of its ranks. Kernels read both words in one access, so that the second costs nothing.
struct alignas(16) Count {
  std::uint64_t value;  // moved by operations that have ended well; of packets also the newest one's, see Ledger
  std::uint64_t over;   // once the communicator has ended, kNeverMoved: what begins then moves nothing
};
inline constexpr std::uint32_t kCounts = 4;
// Added to the numbers of what must not be moved: no packet comes with such a flag, and no slot is credited for it. Nor for twice as much:
// an operation of which some warps began just before the host's copy may leave it in the count.
inline constexpr std::uint64_t kNeverMoved = 1u << 29;

// What a receive tells its source. Each word carries 4 bytes below and the low half of the message's number above, so that the words need
// no order among themselves: a grant is there when all its words name the message.
struct alignas(16) Grant {
  static constexpr std::uint32_t kWords = 6;
  static constexpr std::uint32_t kPaths = 5;
  // Bytes low, bytes high, buffer, offset low, offset high; indirect paths (a bit each), kFetched and kBalanced.
  std::uint64_t words[kWords];
};

// What a send tells its destination, as a grant does: the end of the message may be read from this buffer. One of a pair and direction in
// an operation at most, which does not end at the source before the destination has answered it, or granted without wanting any: so there
// is one place for all.
struct FetchOffer {
  static constexpr std::uint32_t kWords = 5;
  std::uint64_t words[kWords];  // bytes low, bytes high, buffer, offset low, offset high
};
// In Port::fetched: nothing of the message will be read.
inline constexpr std::uint64_t kDeclined = std::uint64_t{1} << 63;

// Where a peer's buffer is mapped here; zero when it is not. At index `buffer % kMappings`.
inline constexpr std::uint32_t kMappings = 1024;
struct alignas(16) Mapping {  // kernels read both words in one access
  std::uint64_t buffer;       // granted_name()
  std::uint64_t base;
};

// Which piece of which message lies in a slot.
struct SlotRecord {
  std::uint64_t number;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t reserved;
};

// An indirect path of the pair (r, p), in r's port for p. The number of a piece counts from 1.
struct IndirectPath {
  std::uint64_t freed[kIndirectSlots];   // r is the source; p writes: number of the last piece that it took from the slot
  std::uint64_t filled[kIndirectSlots];  // r is the destination; p writes: number of the piece in the slot, after slot and record
  SlotRecord records[kIndirectSlots];
  // r's own.
  std::uint64_t taken;   // pieces that r has begun to send
  std::uint64_t pulled;  // pieces that r has begun to pull
  std::uint64_t sent;    // bytes of those that were taken
  // Addresses at r, written when the communicator is made; zero where there is no such path.
  std::uint64_t to, from;          // the slots for what r sends, and for what it receives
  std::uint64_t link_to, link_in;  // relays of an emulated mesh: Port::link_free of r to the relay, and of the relay to r
};

// What the host is told at an operation's end: bytes that a pair has sent since it was made.
struct IndirectSent {
  std::uint64_t over_host, over_relays;
};

// In rank r's memory, at index p: what the pair (r, p) needs at r.
struct alignas(128) Port {
  // r is the source; p writes.
  Grant grants[kGrants];        // of message n at n % kGrants
  std::uint64_t freed[kSlots];  // how often p has emptied its slot
  Credit credits[kPacketSlots];
  std::uint64_t fetched;  // bytes of what was offered that p has read from the user's buffer; p adds, r clears
  // r is the destination; p writes.
  std::uint64_t placed[kGrants];  // bytes of message n, at n % kGrants, that are in the user's buffer; p adds, r clears
  std::uint64_t filled[kSlots];   // how often the slot was filled; written after slot and record
  SlotRecord records[kSlots];
  FetchOffer offer;
  // r's own.
  // Bytes of messages of operations that have ended, by direction; of those in packets also the newest one's, see Ledger. In front of the
  // line that is aligned 32 bytes are left: so nothing else of a port changes its place.
  std::uint64_t moved_bytes[2];
  alignas(128) Count counts[kCounts];  // by count_at(): messages, or packets, all before this operation
  std::uint64_t taken[kSlots];         // how often r has taken the slot at p
  std::uint64_t pulled[kSlots];        // how often r has claimed its own slot for a pull
  IndirectPath indirect[kIndirectPaths];
  std::uint64_t sent_at;     // address at r of an IndirectSent of the host's, or zero
  std::uint64_t link_free;   // emulated mesh: ns at which the link from r to p is free; whoever moves bytes over it adds what they take
  std::uint64_t touched_at;  // ns; r's own: when it last read from all over p's port (keep_links_awake())
  // Packets of the newest operation that moved some, by direction. While that runs they may be in `counts` already: see Ledger.
  std::uint64_t newest_packets[2];
  std::uint64_t offered_at;  // address at r of the buffer that p offers, once it is accepted
  // p writes.
  Packet packets[kPacketSlots];  // packet q at q % kPacketSlots
  alignas(128) std::byte slots[kSlots][kSlotBytes];
  // r's own: p's buffers.
  Mapping mappings[kMappings];
};
static_assert(sizeof(Port) <= 1u << 20, "a peer costs at most 1 MiB");
}  // namespace railweave::cuda
