// Where in the memory of indirect paths each pair's slots lie. Ranks are counted among those of the node.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "port.hpp"

namespace railweave::cuda {

// A rank's number among those that remain without another.
constexpr std::uint32_t without(std::uint32_t other, std::uint32_t rank) { return rank - (rank > other ? 1 : 0); }

// Over the host: of a pair, and all that a destination has, its sources one after the other.
inline constexpr std::uint64_t kHostBytes = kHostSlots * kIndirectBytes;
constexpr std::uint64_t host_bytes(std::uint32_t mates) { return (mates - 1) * kHostBytes; }
constexpr std::uint64_t host_offset(std::uint32_t source, std::uint32_t destination) { return without(destination, source) * kHostBytes; }

// What a rank lends at most, so that a communicator takes less than 64 MiB of a GPU with its ports.
inline constexpr std::uint64_t kMostLent = 42u << 20;

// A relay has slots for every ordered pair of the others.
constexpr std::uint32_t pairs_without(std::uint32_t mates) { return mates < 3 ? 0 : (mates - 1) * (mates - 2); }
// Of each path over a relay, a power of two; 0 where there are none, or too many for what a rank may lend.
constexpr std::uint8_t relay_slots(std::uint32_t mates) {
  const std::uint32_t pairs = pairs_without(mates);
  if (pairs == 0 || mates > kMostRelays + 2) return 0;
  return static_cast<std::uint8_t>(std::bit_floor(std::min<std::uint64_t>(kIndirectSlots, kMostLent / (pairs * kIndirectBytes))));
}
constexpr std::uint64_t lent_bytes(std::uint32_t mates) { return pairs_without(mates) * relay_slots(mates) * kIndirectBytes; }
constexpr std::uint64_t lent_offset(std::uint32_t mates, std::uint32_t relay, std::uint32_t source, std::uint32_t destination) {
  const std::uint32_t from = without(relay, source), to = without(from, without(relay, destination));
  return (from * (mates - 2) + to) * relay_slots(mates) * kIndirectBytes;
}

}  // namespace railweave::cuda
