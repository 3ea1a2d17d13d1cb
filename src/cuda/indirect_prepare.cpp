#include "indirect_prepare.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "fetch_roles.hpp"

namespace railweave::cuda {
namespace {

constexpr std::uint32_t kOverHost = 1u << kHostPath, kOverRelays = kSlotPaths & ~kOverHost;

// With less than this left nothing goes over the host any more: while the pieces drain that are under way there, half its slots full, the
// straight path moves as many bytes more as it is faster.
std::uint64_t host_tail(const LaunchLimits& limits) { return std::uint64_t{kHostSlots} / 2 * 1000 / limits.host_share; }

// Pieces go over the host for two thirds of the message at least; with half of it, it would gain 5%, as much as two PCIe round trips and
// the blocks taken from the straight path may cost.
std::uint64_t least_over_host(const LaunchLimits& limits) { return 3 * host_tail(limits) * kIndirectBytes; }

// A relay's pieces take 20 us longer than straight ones, and what half its slots hold goes straight at the end: four times as much.
std::uint64_t least_over_relays(const Message& m) { return 2 * m.relay_slots * kIndirectBytes; }

// Blocks that keep up with what comes over the host: PCIe brings 50 GB/s where a block pulls 20 out of slots, and half as many again, as
// each waits for pieces: four (H100 and H200, docs/cuda-measured.md).
std::uint8_t pulls_over_host(const LaunchLimits& limits) {
  const double host_rate = limits.pair_rate * limits.host_share / (1000 - limits.host_share);
  constexpr double kPullRate = 20e3, kMargin = 1.5, kMost = 16;
  return static_cast<std::uint8_t>(std::clamp(std::ceil(kMargin * host_rate / (kPullRate * limits.block_speed())), 1.0, kMost));
}

// What a rank sends, or receives, in an operation.
struct Traffic {
  std::uint64_t bytes = 0;
  std::vector<std::pair<const Port*, std::uint64_t>> by_peer;
  const Port* granted = nullptr;  // a peer of granted messages
  bool several_granted = false;

  void add(const Message& m) {
    bytes += m.bytes;
    if (m.path == Path::granted && m.local != m.remote) {
      several_granted = several_granted || (granted != nullptr && granted != m.local);
      granted = m.local;
    }
    const auto at = std::find_if(by_peer.begin(), by_peer.end(), [&](const auto& peer) { return peer.first == m.local; });
    (at == by_peer.end() ? by_peer.emplace_back(m.local, 0) : *at).second += m.bytes;
  }
  std::uint64_t with(const Port* peer) const {
    return std::find_if(by_peer.begin(), by_peer.end(), [&](const auto& each) { return each.first == peer; })->second;
  }
};

// Beside granted messages to or from other peers a message has to be so much larger: blocks take peers in turn where none goes over the
// host (prepare.cpp), and a hot pair of 64 MiB with 1/16 between all others moved 339 GB/s so and 306 with that path, one of 256 MiB at
// most 352 and 372 with it (4 x H100).
constexpr std::uint64_t kLargerBesideOthers = 4;

// Where more than a quarter as much goes the other way, blocks that pull push less, and PCIe carries less of each, so a message has to be
// so much larger: both ways of 64 MiB took 205 us for 192.5, of 128, 256 and 512 MiB 367, 714 and 1,401 for 377, 743 and 1,474, all by two
// blocks; by one, three and four 256 MiB took 1.3, 4 and 9% longer than by two (2 x H200, docs/cuda-measured.md).
constexpr std::uint64_t kLargerBothWays = 5;
constexpr std::uint8_t kBlocksBothWays = 2, kAnyBlocks = 255;

bool goes_both_ways(const Traffic& same, const Traffic& other) { return other.bytes > same.bytes / 4; }

// Where three quarters of what a GPU sends go to one other, what it injects into NVLink is the bottleneck, which a path over the host
// widens. Its destination judges by what comes, and names the path or not.
bool widens(const Message& m, const Traffic& same, const Traffic& other, const LaunchLimits& limits) {
  const std::uint64_t larger = goes_both_ways(same, other) ? kLargerBothWays : same.several_granted ? kLargerBesideOthers : 1;
  return m.bytes >= larger * least_over_host(limits) && m.bytes >= same.bytes / 4 * 3;
}

// Links to relays have room where the straight one has at least twice what a rank's links have on average. What other ranks send over them
// it cannot know, but the destination can say the same of what comes.
bool crowds(const Message& m, const Traffic& same) {
  const int links = std::popcount(m.paths & kSlotPaths) + ((m.paths & kOverHost) != 0 ? 0 : 1);  // those to relays, and the straight one
  return same.with(m.local) * static_cast<std::uint64_t>(links) >= 2 * same.bytes;
}

}  // namespace

bool offers_relays(const Message& message) { return (message.paths & kOverRelays) != 0; }

bool choose_indirect(std::span<Message> messages, const LaunchLimits& limits, bool has_kernel) {
  const auto large = [&](const Message& m, bool over_host) {
    return over_host ? limits.host_share != 0 && (m.paths & kOverHost) != 0 && m.bytes >= least_over_host(limits)
                     : (m.paths & kOverRelays) != 0 && m.bytes >= least_over_relays(m);
  };
  const bool any_large =
      has_kernel && std::any_of(messages.begin(), messages.end(), [&](const Message& m) { return large(m, true) || large(m, false); });
  Traffic traffic[2];
  for (std::size_t i = 0; any_large && i < messages.size(); ++i) traffic[static_cast<int>(messages[i].direction)].add(messages[i]);
  bool any = has_kernel && limits.link_MBps != 0;
  for (Message& m : messages) {
    const Traffic &same = traffic[static_cast<int>(m.direction)], &other = traffic[1 - static_cast<int>(m.direction)];
    std::uint32_t wanted = 0;
    const bool may = any_large && m.path == Path::granted;
    if (may && large(m, true) && widens(m, same, other, limits)) wanted |= kOverHost;
    if (may && large(m, false) && crowds(m, same)) wanted |= kOverRelays;
    if (has_kernel && m.path == Path::granted && is_fetched(m))
      wanted = kFetched;  // its blocks are too few for more than the straight path
    m.paths &= static_cast<std::uint8_t>(wanted);
    m.relay_slots = std::max(m.relay_slots, std::uint8_t{1});
    const std::uint8_t sends = goes_both_ways(same, other) ? kBlocksBothWays : kAnyBlocks;  // at most: assign_indirect()
    m.host_blocks = (wanted & kOverHost) == 0 ? std::uint8_t{0} : m.direction == Direction::receive ? pulls_over_host(limits) : sends;
    m.host_tail = 0;
    any = any || m.paths != 0;
  }
  return any;
}

// As many as for a send where relays bring most of a message.
std::uint64_t indirect_blocks_worth(const Message& message) {
  constexpr std::uint64_t kBytesPerBlock = 256u << 10;
  return (message.paths & kOverRelays) != 0 ? message.bytes / kBytesPerBlock : message.host_blocks;
}

void assign_indirect(std::span<Message> messages, const LaunchLimits& limits) {
  for (Message& m : messages) {
    if (m.direction != Direction::send || (m.paths & kSlotPaths) == 0) continue;
    m.piece_bytes = kIndirectBytes;  // a slot's
    if ((m.paths & kOverHost) == 0) continue;
    // As many blocks of the message's as the path has of its bytes. A quarter at most, and none where there are too few.
    const std::uint32_t blocks = m.last_block - m.first_block;
    m.host_blocks =
        static_cast<std::uint8_t>(std::min({(blocks * limits.host_share + 500) / 1000, blocks / 4, std::uint32_t{m.host_blocks}}));
    m.host_tail = static_cast<std::uint16_t>(host_tail(limits));
  }
}

}  // namespace railweave::cuda
