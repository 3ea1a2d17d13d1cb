#include "prepare.hpp"

#include <algorithm>

namespace railweave::cuda {
namespace {

// What makes a block worth launching: a low-latency piece, or so many bytes of a push.
constexpr std::uint64_t kBytesPerBlock = 16u << 10;
// Below this an operation gets half the blocks, as NCCL's kernel has 9 CTAs at 64 KB and 17 from 1 MB on (docs/gpu-probe.md).
constexpr std::uint64_t kManyBlocksFrom = 1u << 20;
// Pieces of a push: short enough that blocks end together, long enough that claiming one (0.5 us) costs little beside moving it at 46 GB/s.
// A block's share below kLeastPiece is one piece.
constexpr std::uint64_t kLeastPiece = 64u << 10, kMostPiece = 256u << 10;
constexpr std::uint64_t kPiecesPerBlock = 4;

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

std::uint64_t blocks_worth(const Message& m) {
  if (m.path == Path::low_latency) return divide_up(m.bytes, kLowLatencyBytes);
  return m.direction == Direction::send ? divide_up(m.bytes, kBytesPerBlock) : 1;
}

void number(std::span<Message> messages, std::size_t i) {
  Message& m = messages[i];
  m.ordinal = 0;
  m.grant_after = kNone;
  m.last_of_pair = true;
  m.reports = true;
  m.operation = {};
  std::uint32_t same = 0;
  for (std::size_t k = i; k-- > 0;) {
    Message& before = messages[k];
    if (before.host == m.host) m.reports = false;
    if (before.local != m.local || before.direction != m.direction || before.path != m.path) continue;
    if (++same == 1) {
      m.ordinal = before.ordinal + (m.path == Path::granted ? 1 : static_cast<std::uint32_t>(divide_up(before.bytes, kLowLatencyBytes)));
      before.last_of_pair = false;
    }
    if (same == kGrants && m.path == Path::granted && m.direction == Direction::receive) m.grant_after = static_cast<std::int32_t>(k);
  }
}

// What the operation adds to each communicator's totals, at its first message.
void count(std::span<Message> messages) {
  for (Message& first : messages) {
    if (!first.reports) continue;
    for (const Message& m : messages) {
      if (m.host != first.host) continue;
      ++first.operation.completed;
      (m.direction == Direction::send ? first.operation.bytes_sent : first.operation.bytes_received) += m.bytes;
    }
  }
}

// Blocks in proportion to bytes, at least one a send; several small sends may begin on one block.
void assign(std::span<Message> messages, std::uint32_t blocks, std::uint64_t total) {
  std::uint64_t before = 0;
  for (Message& m : messages) {
    m.first_block = m.last_block = 0;
    m.piece_bytes = 0;
    if (m.direction != Direction::send) continue;
    // 128 bits: bytes times blocks may pass 2^64.
    __extension__ using Wide = unsigned __int128;
    m.first_block = static_cast<std::uint16_t>(Wide{before} * blocks / total);
    before += m.bytes;
    m.last_block = std::max(static_cast<std::uint16_t>(m.first_block + 1), static_cast<std::uint16_t>(Wide{before} * blocks / total));
    const std::uint64_t share = std::max(1, m.last_block - m.first_block);
    const std::uint64_t piece =
        std::min(divide_up(m.bytes, share), std::clamp(m.bytes / (share * kPiecesPerBlock), kLeastPiece, kMostPiece));
    m.piece_bytes = static_cast<std::uint32_t>(divide_up(piece, 1024) * 1024);
  }
}

}  // namespace

std::uint32_t prepare(std::span<Message> messages, const LaunchLimits& limits) {
  std::uint64_t sent = 0, received = 0, push_blocks = 0, pull_blocks = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Message& m = messages[i];
    m.path = m.bytes <= limits.low_latency_bytes ? Path::low_latency : Path::granted;
    number(messages, i);
    (m.direction == Direction::send ? sent : received) += m.bytes;
    (m.direction == Direction::send ? push_blocks : pull_blocks) += blocks_worth(m);
  }
  count(messages);
  const std::uint32_t most = std::max(sent, received) < kManyBlocksFrom ? std::max(1u, limits.blocks / 2) : limits.blocks;
  const auto blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(std::max(push_blocks, pull_blocks), 1, most));
  assign(messages, blocks, std::max<std::uint64_t>(sent, 1));
  return blocks;
}

}  // namespace railweave::cuda
