#include "room.hpp"

#include <algorithm>

namespace railweave::cuda {
namespace {

// Of a collective on another communicator, which waits for ranks as ours do; NCCL 2.28 has at most 32 channels.
constexpr std::uint32_t kBlocksOfNccl = 32;
constexpr std::uint32_t kForLaterOnes = 8;  // beside a cluster that may not have begun when they are queued
constexpr std::uint32_t kMostCluster = 8;   // that every device with clusters has
// A cluster begins inside a GPC, of which Hopper has at most 8, with 18 processors at most. Larger devices: as many to a GPC.
constexpr std::uint32_t kGpcs = 8, kMostOfGpc = 18;

// What a rank's communicators may hold together, as each has half of what its others leave of `all`, and one block at least.
constexpr std::uint32_t kCommunicators = 6;
std::uint32_t most_held(std::uint32_t all) {
  std::uint32_t held = 0;
  for (std::uint32_t i = 0; i < kCommunicators; ++i) held += std::max(1u, (all - std::min(all, held)) / 2);
  return held;
}

// Processors that may be taken, whichever they are, with room left for the cluster in some GPC; negative where it may have none anyway.
std::int64_t may_be_taken(std::uint32_t processors, std::uint32_t cluster) {
  const std::uint32_t gpcs = std::max(kGpcs, (processors + kMostOfGpc - 1) / kMostOfGpc);
  return std::int64_t{processors} - std::int64_t{gpcs} * (cluster - 1) - 1;
}

}  // namespace

void Held::add(std::uint32_t more_blocks, std::uint32_t of_cluster, std::uint32_t ahead) {
  blocks += more_blocks;
  if (of_cluster < 2) return;
  cluster = std::max(cluster, of_cluster);
  absent = std::min(absent, more_blocks - ahead);
}

Room room_beside(const DeviceShare& share, const Held& held) {
  // Where NCCL's kernel with as many CTAs as it may have finds no room even alone, half is left to it.
  const std::uint32_t of_nccl = share.processors > kBlocksOfNccl ? kBlocksOfNccl : share.processors / 2;
  const std::uint32_t ours = std::max(1u, share.processors - of_nccl), each = std::max(1u, ours / share.ranks);
  // Half of what is left, so that however many communicators there are the next one finds room.
  std::int64_t blocks = (std::int64_t{each} - held.blocks) / 2;
  const std::int64_t others = std::max(each, most_held(each));
  const std::int64_t taken = std::int64_t{kBlocksOfNccl} + (share.ranks - 1) * others + held.blocks;
  std::uint32_t cluster = std::min(kMostCluster, share.cluster);
  while (cluster > 1 && taken + kForLaterOnes > may_be_taken(share.processors, cluster)) cluster /= 2;
  // What is queued and has not begun keeps its room beside the others. Half of what that leaves, for the same reason.
  if (held.cluster > 1) blocks = std::min(blocks, (may_be_taken(share.processors, held.cluster) - (taken - held.absent)) / 2);
  blocks = std::max<std::int64_t>(blocks, 1);
  std::uint32_t needed = cluster;
  if (cluster == 1) {
    // What is left when all communicators hold what they may.
    const std::int64_t of_rank = std::max(others, held.blocks + blocks);
    const std::int64_t left = share.processors - (kBlocksOfNccl + (share.ranks - 1) * others + of_rank - blocks);
    needed = static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 1, blocks));
  } else {
    while (needed + cluster <= blocks && taken + needed + kForLaterOnes <= may_be_taken(share.processors, cluster)) needed += cluster;
  }
  return {static_cast<std::uint32_t>(blocks), cluster, needed};
}

}  // namespace railweave::cuda
