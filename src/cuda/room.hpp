// How many blocks an operation may have, and how many of them may have to begin together, so that it begins however long others wait:
// kernels that wait for other ranks keep their processors until those have come.
#pragma once

#include <cstdint>

namespace railweave::cuda {

// A device, as one of the ranks on it sees it.
struct DeviceShare {
  std::uint32_t processors;     // SMs; a block fills one at most
  std::uint32_t ranks = 1;      // that have this device, each with a process of its own
  std::uint32_t cluster = ~0u;  // blocks that the device can begin together, 1 before sm_90
};

// Operations of this process on the device that are queued or run.
struct Held {
  std::uint32_t blocks = 0;    // of them all
  std::uint32_t cluster = 1;   // the largest: blocks that begin together or not at all
  std::uint32_t absent = ~0u;  // of those with clusters, the fewest blocks that one has not begun while a cluster that it needs is missing

  // One with blocks in clusters of so many; of them `ahead` may run while a cluster that it needs has not begun.
  void add(std::uint32_t more_blocks, std::uint32_t of_cluster, std::uint32_t ahead);
};

// For the next one.
struct Room {
  std::uint32_t blocks;
  std::uint32_t cluster;  // a power of two
  std::uint32_t needed;   // blocks in clusters of that size or, where that is 1, single: all begin, so each may wait for every other
};

// No order of beginning and no choice of processors keeps one of these from beginning for ever: the operations that are held, up to five of
// them, this one, those of the other ranks on the device, and a kernel of NCCL's. Of more than that the later ones have a block each.
Room room_beside(const DeviceShare& share, const Held& held);

}  // namespace railweave::cuda
