#include "prepare.hpp"

#include <algorithm>
#include <bit>

#include "packet_roles.hpp"

namespace railweave::cuda {
namespace {

// What makes a block worth launching beside a bundle of packets: so many bytes of a push.
constexpr std::uint64_t kBytesPerBlock = 16u << 10;
// Below this an operation gets half the blocks, as NCCL's kernel has 9 CTAs at 64 KB and 17 from 1 MB on (docs/gpu-probe.md).
constexpr std::uint64_t kManyBlocksFrom = 1u << 20;
// Pieces of a push: short enough that blocks end together, long enough that claiming one (0.5 us) costs little beside moving it at 46 GB/s.
// A block's share below kLeastPiece is one piece.
constexpr std::uint64_t kLeastPiece = 64u << 10, kMostPiece = 256u << 10;
constexpr std::uint64_t kPiecesPerBlock = 4;

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

std::uint64_t blocks_worth(const Message& m) {
  if (m.path == Path::packets) return divide_up(m.bytes, kBundleBytes);
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
      m.ordinal = before.ordinal + (m.path == Path::granted ? 1 : packets_of(before.bytes));
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

// Packets of the fuller direction, and which warp begins with which message. A block has 16 warps and one packet keeps a warp busy for a
// microsecond; a second block costs an operation 0.3 us, so there is one for every 4 packets (docs/gpu-probe.md).
constexpr std::uint64_t kPacketsPerBlock = 4;

Plan plan_packets(std::span<Message> messages, const LaunchLimits& limits, std::uint32_t most) {
  std::uint64_t packets[2] = {};
  for (const Message& m : messages) packets[static_cast<int>(m.direction)] += packets_of(m.bytes);
  const std::uint64_t wanted = divide_up(std::max(packets[0], packets[1]), kPacketsPerBlock);
  const auto blocks =
      static_cast<std::uint32_t>(std::bit_floor(std::min<std::uint64_t>(std::bit_ceil(wanted), std::min(most, limits.cluster_blocks))));
  std::uint64_t before[2] = {};
  for (Message& m : messages) {
    std::uint64_t& first = before[static_cast<int>(m.direction)];
    m.first_warp = static_cast<std::uint16_t>(first % (blocks * kBundlePackets));
    first += packets_of(m.bytes);
  }
  return {blocks, true, true};
}

}  // namespace

Plan prepare(std::span<Message> messages, const LaunchLimits& limits) {
  std::uint64_t sent = 0, received = 0, push_blocks = 0, pull_blocks = 0;
  bool packets_only = messages.size() <= kMaxPacketMessages, has_packets = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Message& m = messages[i];
    m.path = m.bytes <= limits.low_latency_bytes ? Path::packets : Path::granted;
    packets_only = packets_only && m.path == Path::packets;
    has_packets = has_packets || m.path == Path::packets;
    number(messages, i);
    (m.direction == Direction::send ? sent : received) += m.bytes;
    (m.direction == Direction::send ? push_blocks : pull_blocks) += blocks_worth(m);
  }
  count(messages);
  const std::uint32_t most = std::max(sent, received) < kManyBlocksFrom ? std::max(1u, limits.blocks / 2) : limits.blocks;
  // More than a block of them must not wait for each other, so where blocks do not begin together the general kernel claims its bundles.
  if (packets_only && (limits.cluster_blocks > 1 || std::max(push_blocks, pull_blocks) == 1)) return plan_packets(messages, limits, most);
  const auto blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(std::max(push_blocks, pull_blocks), 1, most));
  assign(messages, blocks, std::max<std::uint64_t>(sent, 1));
  return {blocks, false, has_packets};
}

}  // namespace railweave::cuda
