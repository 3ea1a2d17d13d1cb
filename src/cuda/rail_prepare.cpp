#include "rail_prepare.hpp"

#include <algorithm>
#include <vector>

#include "rail_roles.hpp"

namespace railweave::cuda {
namespace {

// Two chunks of the default size, or a small message that comes: a copy of 16 KiB takes a block some 10 us, most of them trips over PCIe,
// so that two should be made side by side (2x2 lab on an H200, docs/cuda-measured.md).
constexpr std::uint64_t kBytesPerRailBlock = 256u << 10;

}  // namespace

std::uint64_t bytes_over_rails(std::span<const Message> rails) {
  std::uint64_t bytes[2] = {};
  for (const Message& m : rails) bytes[static_cast<int>(m.direction)] += m.bytes;
  return std::max(bytes[0], bytes[1]);
}

Plan prepare_rails(std::span<Message> rails, const Plan& near, const LaunchLimits& limits) {
  std::vector<const HostView*> communicators;
  for (const Message& m : rails) {
    if (std::find(communicators.begin(), communicators.end(), m.host) == communicators.end()) communicators.push_back(m.host);
  }
  const auto place = [&](const Message& m) { return std::find(communicators.begin(), communicators.end(), m.host); };
  std::stable_sort(rails.begin(), rails.end(), [&](const Message& a, const Message& b) { return place(a) < place(b); });

  std::uint64_t bytes = 0, receives = 0;
  std::uint64_t staged = 0;  // of the communicator
  Message* reporter = nullptr;
  for (Message& m : rails) {
    m.path = Path::rail;
    m.operation = {};
    m.reports = reporter == nullptr || reporter->host != m.host;
    if (m.reports) {
      reporter = &m;
      staged = 0;
      m.piece_bytes = 0;
    }
    ++reporter->piece_bytes;
    m.ordinal = kNotStaged;
    if (m.direction == Direction::send && m.bytes <= limits.staged_bytes && m.bytes <= kRailStage - staged) {
      m.ordinal = static_cast<std::uint32_t>(staged);
      staged += stage_bytes(m.bytes);
    }
    Totals& totals = reporter->operation;
    ++totals.completed;
    (m.direction == Direction::send ? totals.bytes_sent : totals.bytes_received) += m.bytes;
    bytes += m.bytes;
    if (m.direction == Direction::receive) ++receives;
  }
  const auto wanted = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(std::max(bytes / kBytesPerRailBlock, receives), 1, kRailBlocks));
  return {.kernel = Kernel::rails, .blocks = std::max(near.blocks, std::min({wanted, limits.blocks, limits.room}))};
}

}  // namespace railweave::cuda
