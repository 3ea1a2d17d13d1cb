#include "indirect_prepare.hpp"

#include <algorithm>

namespace railweave::cuda {
namespace {

constexpr std::uint8_t kOverHost = 1u << kHostPath;

// With less than this left nothing goes over the host any more: while the pieces drain that are under way there, half its slots full, the
// straight path moves as many bytes more as it is faster.
std::uint64_t host_tail(const LaunchLimits& limits) { return std::uint64_t{kHostSlots} / 2 * 1000 / limits.host_share; }

// Pieces go over the host for two thirds of the message at least; with half of it, it would gain 5%, as much as two PCIe round trips and
// the blocks taken from the straight path may cost.
std::uint64_t least_over_host(const LaunchLimits& limits) { return 3 * host_tail(limits) * kIndirectBytes; }

// A relay's pieces take 20 us longer than straight ones, so a path is worth it for twice what its slots hold.
std::uint64_t least_over_relays(const Message& m) { return 2 * m.relay_slots * kIndirectBytes; }

// Where nearly all that a GPU sends has one destination, what it injects into NVLink is the bottleneck, which a path over the host widens.
// With several destinations the receivers' links are as likely, and the host's would be shared.
bool dominates(const Message& send, std::uint64_t sent) { return send.bytes >= sent / 4 * 3; }

}  // namespace

bool choose_indirect(std::span<Message> messages, const LaunchLimits& limits) {
  std::uint64_t sent = 0;
  for (const Message& m : messages) sent += m.direction == Direction::send ? m.bytes : 0;
  const bool possible = !limits.beside_rails && messages.size() <= kMaxMessages &&
                        std::all_of(messages.begin(), messages.end(), [](const Message& m) { return m.path == Path::granted; });
  bool any = possible && limits.link_MBps != 0;
  for (Message& m : messages) {
    std::uint8_t wanted = 0;
    const bool send = m.direction == Direction::send;
    if (possible && limits.host_share != 0 && m.bytes >= least_over_host(limits) && (!send || dominates(m, sent))) wanted |= kOverHost;
    if (possible && m.bytes >= least_over_relays(m)) wanted |= static_cast<std::uint8_t>(~kOverHost);
    m.paths &= wanted;
    m.relay_slots = static_cast<std::uint8_t>(std::max<std::uint32_t>(1, m.relay_slots));
    m.host_blocks = 0;
    m.host_tail = 0;
    any = any || m.paths != 0;
  }
  return any;
}

// A block pulls some 20 GB/s out of slots: four for what comes over the host (50 GB/s of PCIe), as many as for a send where relays bring
// most of a message.
std::uint64_t indirect_blocks_worth(const Message& message) {
  constexpr std::uint64_t kForHost = 4, kBytesPerBlock = 256u << 10;
  return (message.paths & ~kOverHost) != 0 ? message.bytes / kBytesPerBlock : kForHost;
}

void assign_indirect(std::span<Message> messages, const LaunchLimits& limits) {
  for (Message& m : messages) {
    if (m.direction != Direction::send || (m.paths & kOverHost) == 0) continue;
    // As many blocks of the message's as the path has of its bytes. A quarter at most, and none where there are too few.
    const std::uint32_t blocks = m.last_block - m.first_block;
    m.host_blocks = static_cast<std::uint8_t>(std::min((blocks * limits.host_share + 500) / 1000, blocks / 4));
    m.host_tail = static_cast<std::uint16_t>(host_tail(limits));
  }
}

}  // namespace railweave::cuda
