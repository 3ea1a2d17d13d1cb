// What a block does with pieces that go over an indirect path (port.hpp): in pinned host memory, or in the memory of another GPU. Written
// once for GPU blocks and for threads, over a `Block` as roles.hpp has it, and
//
//   raise_between(p, v), add_between(p, v)   the larger one of the word and v, and a sum, of a word that two GPUs change
//
// The source takes the path's next slot, fills it, and announces record and number at the destination, whose blocks pull the pieces of a
// path in their order, add their bytes to `claimed`, and free the slot. So a path is a ring, and a look costs two trips to L2 however many
// slots it has.
#pragma once

#include "ending.hpp"

namespace railweave::cuda {

// Links of an emulated mesh (docs/cuda.md): a link may be this far behind its rate, so that turns between two pieces do not lower it...
inline constexpr std::uint64_t kLinkSlack_ns = 4'000;
// ... and what is that far ahead is a clock of another GPU that differs, for which nothing waits: a link is never further ahead than a
// piece for each block.
inline constexpr std::uint64_t kLinkAhead_ns = 100'000'000;

template <typename Block>
RAILWEAVE_ROLE SlotRecord read_record(Block& block, const SlotRecord& record) {
  return {block.relaxed(&record.number), block.relaxed(&record.offset), block.relaxed(&record.bytes), 0};
}

// Bytes of a granted send that are this block's to push, of those before `end`.
RAILWEAVE_ROLE void own_piece(const Message& m, Share& own, std::uint64_t at, std::uint64_t end) {
  own.at = at < end ? at : end;
  own.end = end - own.at < m.piece_bytes ? end : own.at + m.piece_bytes;
}

// Of a send, on its way over an indirect path.
struct Piece {
  std::uint32_t path;
  std::uint32_t bytes = 0;
  std::uint64_t offset = 0;  // in the message
  std::uint64_t number = 0;  // of the path
};

template <typename Block>
class IndirectRoles {
 public:
  static constexpr std::uint32_t kStraight = kIndirectPaths;  // no indirect path

  RAILWEAVE_ROLE IndirectRoles(Block& block, std::uint32_t link_MBps) : block_(block), link_MBps_(link_MBps) {}

  // --- At the source

  // What this block sends a piece of the message over. A path is only used while what is left is more than what half its slots hold, so
  // that the others are not over long before it; the last pieces go straight.
  RAILWEAVE_ROLE std::uint32_t path_of(const Message& m, std::uint64_t number, std::uint64_t claimed) const {
    const std::uint32_t blocks = m.last_block - m.first_block;
    const std::uint32_t place = block_.index() - m.first_block;
    if ((m.paths & kSlotPaths) == 0 || block_.index() < m.first_block || place >= blocks) return kStraight;
    const std::uint64_t granted = m.paths & block_.relaxed(&m.local->grants[number % kGrants].words[Grant::kPaths]);
    const std::uint64_t left = claimed < m.bytes ? m.bytes - claimed : 0;
    if (place >= blocks - m.host_blocks) {
      const bool early = left >= m.host_tail * kIndirectBytes;
      return early && (granted >> kHostPath & 1) != 0 ? kHostPath : kStraight;
    }
    if (left < m.relay_slots / 2 * kIndirectBytes) return kStraight;
    std::uint32_t relays = 0;
    for (std::uint32_t path = kFirstRelay; path < kIndirectPaths; ++path) relays += granted >> path & 1;
    std::uint32_t turn = place % (1 + relays);
    for (std::uint32_t path = kFirstRelay; path < kIndirectPaths && turn != 0; ++path) {
      turn -= granted >> path & 1;
      if (turn == 0) return path;
    }
    return kStraight;
  }

  // Takes the next slot of `piece.path` for what the block owns of the message, by one thread. False when it is not free, or the link to
  // the relay is not.
  RAILWEAVE_ROLE bool take_slot(const Message& m, Share& own, Piece& piece) {
    IndirectPath& path = m.local->indirect[piece.path];
    const std::uint32_t slots = slots_of(m, piece.path);
    const std::uint64_t bytes = own.end - own.at < kIndirectBytes ? own.end - own.at : kIndirectBytes;
    std::uint64_t taken = block_.relaxed(&path.taken);
    for (std::uint32_t tries = 0; tries < kTries; ++tries, ++taken) {
      const std::uint64_t before = taken < slots ? 0 : taken - slots + 1;
      const std::uint64_t free = free_at(path.link_to);
      if (block_.acquire(&path.freed[taken & (slots - 1)]) != before || !is_past(free)) return false;
      if (!block_.swap_if(&path.taken, taken, taken + 1)) continue;
      use(path.link_to, bytes);
      block_.add(&path.sent, bytes);
      piece.bytes = static_cast<std::uint32_t>(bytes);
      piece.offset = own.at;
      piece.number = taken + 1;
      own.at += bytes;
      return true;
    }
    return false;
  }

  // So many pieces in a row, by the whole block: the next one and its slot are taken while one is copied, and one is announced while the
  // next is copied, as a fence waits for the bytes' way there.
  RAILWEAVE_ROLE void push(const Message& m, Share& own, std::uint64_t* claimed, Piece piece, std::uint32_t row) {
    for (std::uint32_t k = 1;; ++k) {
      Piece next{kStraight};
      block_.leader([&] {
        if (k == row) return;
        if (own.at == own.end) own_piece(m, own, block_.add(claimed, std::uint64_t{m.piece_bytes}), m.bytes);
        if (own.at == own.end) return;
        Piece wanted{path_of(m, own.number, block_.relaxed(claimed))};
        if (wanted.path != kStraight && take_slot(m, own, wanted)) next = wanted;
      });
      const std::uint64_t slots = block_.relaxed(&m.local->indirect[piece.path].to);
      block_.copy(slot_at(m, piece.path, slots, piece.number), m.data + piece.offset, piece.bytes);
      next = block_.share([&] { return next; });
      block_.leader([&] { announce(m, own.number, piece); });
      if (next.path == kStraight) return;
      piece = next;
    }
  }

  // At an operation's end, for the last message of the pair.
  RAILWEAVE_ROLE void report(const Message& m) const {
    auto* const sent = reinterpret_cast<IndirectSent*>(block_.relaxed(&m.local->sent_at));
    if ((m.paths & kSlotPaths) == 0 || sent == nullptr) return;
    std::uint64_t over_relays = 0;
    for (std::uint32_t path = kFirstRelay; path < kIndirectPaths; ++path) over_relays += block_.relaxed(&m.local->indirect[path].sent);
    block_.store(&sent->over_host, block_.relaxed(&m.local->indirect[kHostPath].sent));
    block_.store(&sent->over_relays, over_relays);
  }

  // --- At the destination

  // A path on which a piece has come, or kStraight: the first one from `first` on.
  RAILWEAVE_ROLE std::uint32_t find_piece(const Message& m, std::uint32_t first) const {
    std::uint64_t pulled[kIndirectPaths], filled[kIndirectPaths];
    for (std::uint32_t path = 0; path < kIndirectPaths; ++path) pulled[path] = block_.relaxed(&m.local->indirect[path].pulled);
    for (std::uint32_t path = 0; path < kIndirectPaths; ++path)
      filled[path] = block_.relaxed(&m.local->indirect[path].filled[pulled[path] & (slots_of(m, path) - 1)]);
    std::uint32_t found = kStraight, least = kIndirectPaths;
    for (std::uint32_t path = 0; path < kIndirectPaths; ++path) {
      const std::uint32_t distance = (path + kIndirectPaths - first % kIndirectPaths) % kIndirectPaths;
      if ((m.paths >> path & 1) == 0 || filled[path] != pulled[path] + 1 || distance >= least) continue;
      found = path;
      least = distance;
    }
    return found;
  }

  // Takes the path's next piece, by one thread: its number, and its record. False when it has not come, or the link from the relay is not
  // free.
  RAILWEAVE_ROLE bool take_piece(const Message& m, std::uint32_t path, std::uint64_t& number, SlotRecord& record) {
    IndirectPath& own = m.local->indirect[path];
    const std::uint64_t link = block_.relaxed(&own.link_in), free = free_at(link);
    std::uint64_t pulled = block_.relaxed(&own.pulled);
    for (std::uint32_t tries = 0; tries < kTries; ++tries, ++pulled) {
      const std::uint64_t slot = pulled & (slots_of(m, path) - 1);
      if (block_.acquire(&own.filled[slot]) != pulled + 1 || !is_past(free)) return false;
      record = read_record(block_, own.records[slot]);
      if (!block_.swap_if(&own.pulled, pulled, pulled + 1)) continue;
      use(link, record.bytes);
      number = pulled + 1;
      return true;
    }
    return false;
  }

  RAILWEAVE_ROLE void empty_slot(const Message& m, std::uint32_t path, std::uint64_t piece, std::uint64_t offset, std::uint32_t bytes) {
    block_.copy(m.data + offset, slot_at(m, path, block_.relaxed(&m.local->indirect[path].from), piece), bytes);
    block_.sync();
    block_.leader([&] { block_.vacate(&m.remote->indirect[path].freed[slot_of(m, path, piece)], piece); });
  }

  // --- Links of an emulated mesh. Two who look at once may both find a link free; what they use is added up, so its rate holds.

  RAILWEAVE_ROLE bool straight_is_free(const Message& m) const {
    return is_past(free_at(reinterpret_cast<std::uint64_t>(&m.local->link_free)));
  }
  RAILWEAVE_ROLE void use_straight(const Message& m, std::uint64_t bytes) {
    use(reinterpret_cast<std::uint64_t>(&m.local->link_free), bytes);
  }
  RAILWEAVE_ROLE bool paced() const { return link_MBps_ != 0; }

 private:
  // By one thread, after a barrier.
  RAILWEAVE_ROLE void announce(const Message& m, std::uint64_t message, const Piece& piece) {
    IndirectPath& there = m.remote->indirect[piece.path];
    const std::uint64_t slot = slot_of(m, piece.path, piece.number);
    block_.store(&there.records[slot].number, message);
    block_.store(&there.records[slot].offset, piece.offset);
    block_.store(&there.records[slot].bytes, std::uint64_t{piece.bytes});
    block_.release(&there.filled[slot], piece.number);
  }

  // All blocks are after a path's next slot; one that loses the race for it looks at the one behind it instead of losing a turn.
  static constexpr std::uint32_t kTries = 4;

  RAILWEAVE_ROLE static std::uint32_t slots_of(const Message& m, std::uint32_t path) {
    return path == kHostPath ? kHostSlots : m.relay_slots;
  }
  RAILWEAVE_ROLE static std::uint64_t slot_of(const Message& m, std::uint32_t path, std::uint64_t piece) {
    return (piece - 1) & (slots_of(m, path) - 1);
  }
  RAILWEAVE_ROLE static std::byte* slot_at(const Message& m, std::uint32_t path, std::uint64_t slots, std::uint64_t piece) {
    return reinterpret_cast<std::byte*>(slots + slot_of(m, path, piece) * kIndirectBytes);
  }

  RAILWEAVE_ROLE std::uint64_t free_at(std::uint64_t link) const {
    return link_MBps_ == 0 || link == 0 ? 0 : block_.relaxed(reinterpret_cast<const std::uint64_t*>(link));
  }
  RAILWEAVE_ROLE bool is_past(std::uint64_t free) const {
    if (free == 0) return true;
    const std::uint64_t now = block_.now();
    return free <= now || free > now + kLinkAhead_ns;
  }
  // Nobody waits for the words of a link to change: the relay's are a trip over NVLink away.
  RAILWEAVE_ROLE void use(std::uint64_t link, std::uint64_t bytes) {
    if (link_MBps_ == 0 || link == 0) return;
    auto* const word = reinterpret_cast<std::uint64_t*>(link);
    block_.raise_between(word, block_.now() - kLinkSlack_ns);
    block_.add_between(word, bytes * 1000 / link_MBps_);
  }

  Block& block_;
  std::uint32_t link_MBps_;
};

}  // namespace railweave::cuda
