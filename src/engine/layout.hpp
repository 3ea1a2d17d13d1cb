// What lies in a rank's region (docs/protocol.md §3). Fixed-layout PODs, 64-bit flags, offsets instead of pointers: a GPU backend
// maps the same bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace railweave::engine {

inline constexpr std::uint64_t kRegionMagic = 0x3145564157'4c5241ull;  // "ARLWAVE1"
inline constexpr std::uint32_t kProtocolVersion = 14;
inline constexpr std::uint32_t kRingRecords = 256;
inline constexpr std::uint32_t kMaxCarryBytes = 96u << 10;  // of the control frames that a rail carries at once; any frame fits
inline constexpr std::uint32_t kMaxFrameBytes =
    68u << 10;  // the largest small message fits, and a row of 1024 ranks (16 bytes a rank and the header)
inline constexpr std::uint64_t kMailBytes = 256u << 10;
inline constexpr std::uint32_t kMaxRanks = 1024;
// Eager messages of a pair that may be under way or wait for their receives: 512 KiB, and 64 of them; not swept. Nothing paces them on a
// rail: at 400 Mbit/s what eight pairs have under way is sent within half a resend time.
inline constexpr std::uint32_t kEagerCredits = 64;
inline constexpr std::uint64_t kCreditBytes = 8u << 10;
constexpr std::uint32_t credits_of(std::uint64_t bytes) {
  return bytes == 0 ? 1 : static_cast<std::uint32_t>((bytes + kCreditBytes - 1) / kCreditBytes);
}

// Release/acquire on a flag that lives in shared memory.
inline std::uint64_t load_flag(const std::uint64_t& flag) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(flag)).load(std::memory_order_acquire);
}
inline void store_flag(std::uint64_t& flag, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(flag).store(value, std::memory_order_release);
}

// (communicator, source, destination, number): §2.
struct MessageKey {
  std::uint32_t communicator = 0;
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t reserved = 0;
  std::uint64_t number = 0;
  bool operator==(const MessageKey&) const = default;
};
static_assert(sizeof(MessageKey) == 24);

enum class Pool : std::uint8_t { direct = 0, tx = 1, rx = 2 };
enum class RecordKind : std::uint8_t { landed = 1, placed = 2, forward = 3, confirmed = 4 };

// One announcement. `flag` is written last.
struct Record {
  std::uint64_t flag = 0;  // index of the record in its ring + 1
  MessageKey message;
  std::uint32_t chunk = 0;
  std::uint32_t length = 0;
  std::uint32_t slot = 0;   // position in its pool
  std::uint16_t owner = 0;  // local index of the rank in whose region the slot lies
  Pool pool = Pool::direct;
  RecordKind kind = RecordKind::landed;
  std::uint64_t turn = 0;  // the slot's flag while it holds this chunk
  std::uint32_t link = 0;  // forward: link id; else 0
  std::uint32_t attempt = 0;
  std::uint64_t word = 0;  // forward: the link's word that the attempt counts on
  std::uint64_t reserved[7] = {};
};
static_assert(sizeof(Record) == 128);

struct RingHeader {
  std::uint64_t consumed = 0;
  std::uint64_t reserved[7] = {};
};
static_assert(sizeof(RingHeader) == 64);

// Mail ring: bytes written / read so far; on different cache lines.
struct MailHeader {
  std::uint64_t written = 0;
  std::uint64_t pad0[7] = {};
  std::uint64_t read = 0;
  std::uint64_t pad1[7] = {};
};
static_assert(sizeof(MailHeader) == 128);

constexpr std::uint64_t kNoLease = 0;  // in a lease's place: the engine's thread has broken down

struct RegionHeader {
  std::uint64_t magic = 0;
  std::uint64_t size = 0;
  std::uint64_t sleeping = 0;      // doorbell flag
  std::uint64_t lease_ns = 0;      // CLOCK_MONOTONIC of the last heartbeat: one clock on a node
  std::uint64_t link_changes = 0;  // raised after each change of a link word
  std::uint64_t leaving = 0;
  std::uint64_t unended = 0;  // operations that the program has posted and that have not ended
  std::uint64_t failed = 0;   // 1 once an operation has failed
  std::uint64_t posted = 0;   // operations so far
  std::uint64_t ended = 0;    // of which so many, from the first one on, have ended
  std::uint64_t reserved[6] = {};
};
static_assert(sizeof(RegionHeader) == 128);

// A rank's row: seqlock (odd while it is written), then bytes to each rank, then messages that it has posted with each.
struct RowHeader {
  std::uint64_t version = 0;
  std::uint64_t serial = 0;  // operations that the rank has started, on any communicator
  std::uint64_t communicator = 0;
  std::uint64_t operation = 0;  // collectives that the rank has started on that communicator
  std::uint64_t at = 0;         // when it was written here, by this machine's clock
};

// What fixes the offsets; equal on all mates (checked when regions are mapped).
struct RegionShape {
  std::uint32_t world = 0;
  std::uint32_t nodes = 0;
  std::uint32_t mates = 0;
  std::uint32_t own_nics = 0;
  std::uint32_t all_nics = 0;
  std::uint32_t slots = 0;     // per writer, in each of the direct and tx pools
  std::uint32_t rx_slots = 0;  // per own NIC
  std::uint64_t chunk_bytes = 0;
};

class RegionLayout {
 public:
  explicit RegionLayout(const RegionShape& shape) : shape_(shape) {
    at_ = sizeof(RegionHeader);
    heard_ = take(8ull * shape.nodes);
    words_ = take(8ull * shape.own_nics * shape.all_nics);
    maps_ = take(8ull * shape.mates);
    row_bytes_ = align(sizeof(RowHeader) + 16ull * shape.world);
    rows_ = take(row_bytes_ * shape.world);
    ring_bytes_ = sizeof(RingHeader) + sizeof(Record) * kRingRecords;
    rings_ = take(ring_bytes_ * shape.mates);
    mail_ = take((sizeof(MailHeader) + kMailBytes) * shape.mates);
    direct_flags_ = take(8ull * slots(Pool::direct));
    tx_flags_ = take(8ull * slots(Pool::tx));
    rx_flags_ = take(8ull * slots(Pool::rx));
    at_ = (at_ + 4095) & ~std::uint64_t{4095};
    direct_ = take(shape.chunk_bytes * slots(Pool::direct));
    tx_ = take(shape.chunk_bytes * slots(Pool::tx));
    rx_ = take(shape.chunk_bytes * slots(Pool::rx));
    at_ = (at_ + 4095) & ~std::uint64_t{4095};
  }

  const RegionShape& shape() const noexcept { return shape_; }
  std::uint64_t bytes() const noexcept { return at_; }
  std::uint32_t slots(Pool pool) const noexcept {
    switch (pool) {
      case Pool::direct: return shape_.slots * shape_.mates;
      case Pool::tx: return shape_.own_nics == 0 ? 0 : shape_.slots * shape_.mates;
      case Pool::rx: return shape_.rx_slots * shape_.own_nics;
    }
    return 0;
  }
  std::uint64_t heard(std::uint32_t node) const noexcept { return heard_ + 8ull * node; }
  std::uint64_t word(std::uint32_t own_nic, std::uint32_t nic) const noexcept { return words_ + 8ull * (own_nic * shape_.all_nics + nic); }
  // Whether the region's rank reaches the slots of that mate's NICs where they lie.
  std::uint64_t maps(std::uint32_t mate) const noexcept { return maps_ + 8ull * mate; }
  std::uint64_t row(std::uint32_t rank) const noexcept { return rows_ + row_bytes_ * rank; }
  std::uint64_t ring(std::uint32_t writer) const noexcept { return rings_ + ring_bytes_ * writer; }
  std::uint64_t mail(std::uint32_t writer) const noexcept { return mail_ + (sizeof(MailHeader) + kMailBytes) * writer; }
  std::uint64_t flag(Pool pool, std::uint32_t slot) const noexcept {
    return (pool == Pool::direct ? direct_flags_ : pool == Pool::tx ? tx_flags_ : rx_flags_) + 8ull * slot;
  }
  std::uint64_t data(Pool pool, std::uint32_t slot) const noexcept {
    return (pool == Pool::direct ? direct_ : pool == Pool::tx ? tx_ : rx_) + shape_.chunk_bytes * slot;
  }
  // tx and rx slots, from the first one's place on.
  std::uint64_t nic_slots() const noexcept { return tx_; }
  std::uint64_t nic_slot_bytes() const noexcept { return at_ - tx_; }

 private:
  static std::uint64_t align(std::uint64_t bytes) { return (bytes + 63) & ~std::uint64_t{63}; }
  std::uint64_t take(std::uint64_t bytes) {
    const std::uint64_t start = at_;
    at_ += align(bytes);
    return start;
  }

  RegionShape shape_;
  std::uint64_t at_ = 0, heard_ = 0, words_ = 0, maps_ = 0, row_bytes_ = 0, rows_ = 0, ring_bytes_ = 0, rings_ = 0, mail_ = 0;
  std::uint64_t direct_flags_ = 0, tx_flags_ = 0, rx_flags_ = 0, direct_ = 0, tx_ = 0, rx_ = 0;
};

}  // namespace railweave::engine
