// What a block does where the destination reads the end of a granted message out of the source's buffer itself, while the source writes
// the beginning. Where blocks are too few to fill the links between two GPUs, those of both ends move twice as much one way as the source's
// alone (docs/cuda-measured.md). Written once for GPU blocks and for threads, over a `Block` as roles.hpp has it.
//
// Both ends judge by their own messages whether they want that: the destination's grant says so, and the source's offer, which says where
// its bytes lie. Neither waits for the other's before it sends its own, so nothing takes a trip longer than without. Where one of the two
// is missing, or the destination has not mapped the source's buffer and declines, the source writes the end as well.
#pragma once

#include "ending.hpp"

namespace railweave::cuda {

// Where that end begins. Half of a message, as both ends' blocks move 46 GB/s each (docs/gpu-probe.md).
RAILWEAVE_ROLE constexpr std::uint64_t fetched_from(std::uint64_t bytes) { return bytes / 2 / 128 * 128; }

RAILWEAVE_ROLE bool is_fetched(const Message& m) { return (m.paths & kFetched) != 0; }

// Bytes that the source's blocks claim first.
RAILWEAVE_ROLE std::uint64_t pushed_bytes(const Message& m) { return is_fetched(m) ? fetched_from(m.bytes) : m.bytes; }

template <typename Block>
class FetchRoles {
 public:
  RAILWEAVE_ROLE explicit FetchRoles(Block& block) : block_(block) {}

  // --- At the source

  // By one thread, when the first block begins at the send.
  RAILWEAVE_ROLE void offer(const Message& m, std::uint64_t number) {
    const std::uint64_t payload[FetchOffer::kWords] = {m.bytes, m.bytes >> 32, m.named.buffer, m.named.offset, m.named.offset >> 32};
    FetchOffer& there = m.remote->offer;
    for (std::uint32_t k = 0; k < FetchOffer::kWords; ++k) block_.store(&there.words[k], (payload[k] & 0xffffffff) | number << 32);
  }

  // Of a message that was offered and granted; `granted_paths`: what the grant says.
  enum class End : std::uint32_t { to_be_read, was_read, is_pushed };
  RAILWEAVE_ROLE End end_of(const Message& m, std::uint64_t granted_paths) const {
    const std::uint64_t fetched = block_.arrived(&m.local->fetched);
    if ((granted_paths & kFetched) == 0 || (fetched & kDeclined) != 0) return End::is_pushed;
    return fetched >= m.bytes - fetched_from(m.bytes) ? End::was_read : End::to_be_read;
  }

  // Of one that was offered: by what its grant says, or may yet say.
  RAILWEAVE_ROLE bool may_be_read(const Message& m, std::uint64_t number) const {
    const std::uint64_t paths = block_.relaxed(&m.local->grants[number % kGrants].words[Grant::kPaths]);
    const bool granted = paths >> 32 == (number & 0xffffffff);
    return end_of(m, granted ? paths : kFetched) == End::to_be_read;
  }

  // --- At the destination, of a message that it has granted

  RAILWEAVE_ROLE bool has_piece(const Message& m, const MessageState& s, std::uint64_t number) const {
    const std::uint32_t answered = block_.relaxed(&s.answered), pieces = block_.relaxed(&s.pieces);
    bool offered = true;
    for (const std::uint64_t& word : m.local->offer.words) offered = offered && block_.relaxed(&word) >> 32 == (number & 0xffffffff);
    if (answered == kUnanswered) return offered;
    return answered == kAccepted && fetched_from(m.bytes) + pieces * std::uint64_t{m.piece_bytes} < m.bytes;
  }

  // Answers the offer where nobody has, by one thread. `find` gives the address of a peer's buffer here, or null.
  template <typename Find>
  RAILWEAVE_ROLE void answer(const Message& m, MessageState& s, Find&& find) {
    if (!block_.swap_if(&s.answered, kUnanswered, kBeingAnswered)) return;
    std::uint64_t words[FetchOffer::kWords];
    for (std::uint32_t k = 0; k < FetchOffer::kWords; ++k) words[k] = block_.relaxed(&m.local->offer.words[k]) & 0xffffffff;
    // The source finds by the grant that sizes differ.
    const bool same = (words[0] | words[1] << 32) == m.bytes;
    const std::byte* const data = same ? find(words[2], words[3] | words[4] << 32) : nullptr;
    if (data == nullptr) {
      block_.store(&s.answered, kNotAccepted);
      block_.add_between(&m.remote->fetched, kDeclined);
      return;
    }
    block_.store(&m.local->offered_at, reinterpret_cast<std::uint64_t>(data));
    block_.release(&s.answered, kAccepted);
  }

  // Takes on the next piece, by one thread: where it begins, or where the message ends.
  RAILWEAVE_ROLE std::uint64_t take(const Message& m, MessageState& s) {
    const std::uint64_t at = fetched_from(m.bytes) + block_.add(&s.pieces, 1u) * std::uint64_t{m.piece_bytes};
    return at < m.bytes ? at : m.bytes;
  }

  // So many pieces or about so many bytes, from this one on, by the whole block: the next one is taken while one is copied. They are
  // counted at both ends once they are there, without a fence: what was read had come before it was stored.
  RAILWEAVE_ROLE void fetch(const Message& m, MessageState& s, std::uint64_t offset, std::uint32_t pieces, std::uint64_t most) {
    const auto* const from = reinterpret_cast<const std::byte*>(block_.relaxed(&m.local->offered_at));
    std::uint64_t fetched = 0;
    for (std::uint32_t k = 1; offset < m.bytes; ++k) {
      std::uint64_t next = m.bytes;
      if (k < pieces && fetched < most) block_.leader([&] { next = take(m, s); });
      const auto bytes = static_cast<std::uint32_t>(m.bytes - offset < m.piece_bytes ? m.bytes - offset : m.piece_bytes);
      block_.copy(m.data + offset, from + offset, bytes);
      fetched += bytes;
      offset = block_.share([&] { return next; });
    }
    block_.leader([&] {
      block_.add(&s.claimed, fetched);
      block_.add_between(&m.remote->fetched, fetched);
    });
  }

 private:
  Block& block_;
};

}  // namespace railweave::cuda
