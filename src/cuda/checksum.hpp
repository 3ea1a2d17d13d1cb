// The checksum mode (docs/cuda.md): what a message's sender and its receiver compare. The sender's sums follow the message as a message of
// their own. Written once for GPU blocks (checksum.cu) and for the host (tests), over `Threads`:
//
//   index(), count()     of this thread in its block
//   total(v)             the sum of all threads' v, known to the first one
//   first(f)             f() by that one
//   relaxed, store, release, add   of words (roles.hpp)
//   most(p, v)           raises a word of this GPU to v
#pragma once

#include <span>
#include <string>

#include "ending.hpp"

namespace railweave::cuda {

inline constexpr std::uint32_t kCheckedChunks = 62;
inline constexpr std::uint64_t kLeastCheckedChunk = 64u << 10;

struct Sums {
  std::uint64_t number;  // of the message among those of its pair and direction, from 0
  std::uint64_t bytes;
  std::uint64_t chunks[kCheckedChunks];
};
static_assert(sizeof(Sums) == 512);

RAILWEAVE_ROLE std::uint64_t checked_chunk_bytes(std::uint64_t bytes) {
  const std::uint64_t share = (bytes + kCheckedChunks - 1) / kCheckedChunks;
  const std::uint64_t whole = (share + 4095) / 4096 * 4096;
  return whole < kLeastCheckedChunk ? kLeastCheckedChunk : whole;
}
RAILWEAVE_ROLE std::uint32_t checked_chunks(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + checked_chunk_bytes(bytes) - 1) / checked_chunk_bytes(bytes));
}

// SplitMix64's finalizer: one to one, so a difference within one word always changes the sum.
RAILWEAVE_ROLE std::uint64_t mixed(std::uint64_t word) {
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
  word = (word ^ word >> 27) * 0x94d049bb133111eb;
  return word ^ word >> 31;
}
// Words that change places change the sum.
RAILWEAVE_ROLE std::uint64_t placed_word(std::uint64_t word, std::uint64_t place) { return mixed(word + (place + 1) * 0x9e3779b97f4a7c15); }

RAILWEAVE_ROLE std::uint64_t word_of_bytes(const std::byte* from, std::uint64_t bytes) {
  std::uint64_t word = 0;
  for (std::uint32_t i = 0; i < 8 && i < bytes; ++i) word |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return word;
}

// A thread's part of the sum of bytes `begin` to `end` of a message; `begin` is a multiple of 8.
RAILWEAVE_ROLE std::uint64_t partial_sum(const std::byte* data, std::uint64_t begin, std::uint64_t end, std::uint32_t thread,
                                         std::uint32_t threads) {
  constexpr std::uint32_t kInFlight = 8;
  std::uint64_t sum = 0;
  const std::uint64_t whole = end / 8;  // words that are all there
  std::uint64_t at = begin / 8 + thread;
  if (reinterpret_cast<std::uintptr_t>(data) % 8 == 0) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(data);
    for (; at + std::uint64_t{kInFlight - 1} * threads < whole; at += std::uint64_t{kInFlight} * threads) {
      std::uint64_t values[kInFlight];
      for (std::uint32_t k = 0; k < kInFlight; ++k) values[k] = words[at + std::uint64_t{k} * threads];
      for (std::uint32_t k = 0; k < kInFlight; ++k) sum += placed_word(values[k], at + std::uint64_t{k} * threads);
    }
  }
  for (; at * 8 < end; at += threads) sum += placed_word(word_of_bytes(data + at * 8, end - at * 8), at);
  return sum;
}

// A message whose sums are made or compared. A launch has several; each chunk is a block.
struct CheckedMessage {
  const std::byte* data;
  std::uint64_t bytes;
  Sums* sums;
  std::uint64_t* count;       // sends: messages to that peer so far
  HostView* host;             // receives
  std::uint32_t ordinal;      // sends: messages of the launch before it with the same count
  std::uint32_t first_block;  // has its first chunk
  std::uint32_t peer;
};

// Sets `ordinal` and `first_block`; the number of blocks.
std::uint32_t place_checks(std::span<CheckedMessage> messages);

// Of a communicator, in device memory. All zero between launches.
struct CheckState {
  std::uint64_t wrong;  // 0, or of the first chunk found wrong ~(message << 32 | chunk)
  std::uint32_t left;   // blocks
};

// A message that is not what its sender summed up.
struct Damage {
  std::uint32_t peer;
  std::uint64_t number;  // as the sender counts
  std::uint64_t bytes;
  std::uint64_t sent_bytes;
  std::uint32_t chunk;
};
std::string damage_text(const Damage& damage);

template <typename Threads>
class ChecksumRoles {
 public:
  RAILWEAVE_ROLE ChecksumRoles(Threads& threads, const CheckedMessage* messages, std::uint32_t count)
      : threads_(threads), messages_(messages), count_(count) {}

  // The sender's side, before the operation.
  RAILWEAVE_ROLE void make(std::uint32_t block) {
    const CheckedMessage& m = messages_[message_of(block)];
    const std::uint32_t chunk = block - m.first_block;
    const std::uint64_t sum = sum_of(m, chunk);
    threads_.first([&] {
      m.sums->chunks[chunk] = sum;
      if (chunk == 0 && m.ordinal == 0) number(m.count);
    });
  }

  // The receiver's, after it. `blocks`: of the launch.
  RAILWEAVE_ROLE void compare(std::uint32_t block, std::uint32_t blocks, CheckState& state) {
    const std::uint32_t i = message_of(block);
    const CheckedMessage& m = messages_[i];
    const std::uint32_t chunk = block - m.first_block;
    const std::uint64_t sum = sum_of(m, chunk);
    threads_.first([&] {
      if (m.sums->bytes != m.bytes || m.sums->chunks[chunk] != sum) threads_.most(&state.wrong, ~(std::uint64_t{i} << 32 | chunk));
      threads_.fence();
      if (threads_.add(&state.left, 1u) != blocks - 1) return;
      threads_.fence();
      const std::uint64_t wrong = threads_.relaxed(&state.wrong);
      if (wrong != 0) report(~wrong);
      threads_.store(&state.wrong, std::uint64_t{0});
      threads_.store(&state.left, 0u);
    });
  }

 private:
  RAILWEAVE_ROLE std::uint32_t message_of(std::uint32_t block) const {
    std::uint32_t i = count_ - 1;
    while (messages_[i].first_block > block) --i;
    return i;
  }

  RAILWEAVE_ROLE std::uint64_t sum_of(const CheckedMessage& m, std::uint32_t chunk) {
    const std::uint64_t size = checked_chunk_bytes(m.bytes), begin = chunk * size;
    const std::uint64_t end = m.bytes - begin < size ? m.bytes : begin + size;
    return threads_.total(partial_sum(m.data, begin, end, threads_.index(), threads_.count()));
  }

  // All messages of a count, by the block that has the first one's first chunk.
  RAILWEAVE_ROLE void number(std::uint64_t* count) {
    std::uint64_t next = *count;
    for (std::uint32_t i = 0; i < count_; ++i) {
      const CheckedMessage& m = messages_[i];
      if (m.count != count) continue;
      m.sums->number = next++;
      m.sums->bytes = m.bytes;
    }
    *count = next;
  }

  // After an operation that failed, or was told to leave, nothing is known about the bytes.
  RAILWEAVE_ROLE void report(std::uint64_t wrong) {
    const CheckedMessage& m = messages_[wrong >> 32];
    if (threads_.relaxed(&m.host->error) != 0 || threads_.relaxed(&m.host->stop) != 0) return;
    threads_.store(&m.host->error_peer, m.peer);
    threads_.store(&m.host->error_bytes[0], m.bytes);
    threads_.store(&m.host->error_bytes[1], m.sums->bytes);
    threads_.store(&m.host->error_message, m.sums->number);
    threads_.store(&m.host->error_chunk, static_cast<std::uint32_t>(wrong));
    threads_.release(&m.host->error, static_cast<std::uint32_t>(KernelError::damaged));
  }

  Threads& threads_;
  const CheckedMessage* messages_;
  std::uint32_t count_;
};

}  // namespace railweave::cuda
