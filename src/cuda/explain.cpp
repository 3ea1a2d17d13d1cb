#include "explain.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "counted.hpp"
#include "fetch_roles.hpp"
#include "rail_port.hpp"

namespace railweave::cuda {
namespace {

constexpr std::size_t kMostExplained = 32;
constexpr std::array kKernels{"packets", "granted", "indirect", "apart", "apart-indirect", "any", "rails"};  // by Kernel

std::string size_text(std::uint64_t bytes) {
  constexpr std::array kUnits{" B", " KiB", " MiB", " GiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + kUnits[unit];
}

std::string granted_way(const Message& m) {
  std::string text = " after a grant";
  if (!sends(m) && m.named.buffer == kNoBuffer) return text + ", through slots, as no other process can write into its buffer";
  const auto relays = static_cast<std::uint64_t>(std::popcount(m.paths & kSlotPaths & ~(1u << kHostPath)));
  if (relays != 0) text += ", also over " + counted(relays, "relay");
  if ((m.paths & 1u << kHostPath) != 0) text += ", also over the host";
  if (is_fetched(m)) text += sends(m) ? ", its second half for the destination to read" : ", its second half read by this rank";
  if (!sends(m)) return text;
  text += ", in pieces of " + size_text(m.piece_bytes);
  if (m.first_block != m.last_block)
    text += ", begun by blocks " + std::to_string(m.first_block) + " to " + std::to_string(m.last_block - 1);
  return text;
}

std::string way(const Message& m) {
  switch (m.path) {
    case Path::packets: return " in packets, as it is short";
    case Path::granted: return granted_way(m);
    case Path::rail: break;
  }
  const bool staged = sends(m) && m.ordinal != kNotStaged;
  return staged ? " over rails, copied out at once" : " over rails";
}

}  // namespace

std::string explanation(const Plan& plan, std::span<const Message> messages, const LaunchLimits& limits) {
  std::string text = "kernel ";
  text += kKernels[static_cast<std::size_t>(plan.kernel)];
  text += ", " + counted(plan.blocks, "block");
  if (plan.cluster > 1) text += " that begin in clusters of " + std::to_string(plan.cluster);
  if (plan.fills_link) text += ", which fill the link";
  if (plan.in_step_blocks != 0) {
    text += ", " + (plan.in_step_blocks == plan.blocks ? "all" : std::to_string(plan.in_step_blocks)) +
            " at one peer after another where the last such operation was balanced at all ranks";
  }
  if (plan.packet_blocks != 0) text += ", " + std::to_string(plan.packet_blocks) + " of them for packets";
  const auto far = std::find_if(messages.begin(), messages.end(), [](const Message& m) { return m.path == Path::rail; });
  if (far != messages.begin()) {
    LaunchLimits alone = limits;
    alone.room = ~0u;
    const std::uint32_t most = most_blocks(messages.first(static_cast<std::size_t>(far - messages.begin())), alone);
    text += " (at most " + std::to_string(most) + " for what stays inside the node";
    if (limits.room < most) text += ", room for " + std::to_string(limits.room);
    text += ")";
  }
  for (const Message& m : messages.first(std::min(messages.size(), kMostExplained)))
    text += "; " + size_text(m.bytes) + (sends(m) ? " to " : " from ") + std::to_string(m.peer) + way(m);
  if (messages.size() > kMostExplained) text += "; and " + counted(messages.size() - kMostExplained, "message") + " more";
  return text;
}

}  // namespace railweave::cuda
