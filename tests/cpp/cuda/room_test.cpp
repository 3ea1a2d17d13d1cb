#include "room.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace railweave::cuda {
namespace {

constexpr std::uint32_t kBlocksOfNccl = 32;

TEST(Room, ALoneCommunicatorIsHardlyBounded) {
  const Room room = room_beside({132}, {});
  EXPECT_GE(room.blocks, 32u);
  EXPECT_EQ(room.cluster, 8u);
  EXPECT_GE(room.needed, 16u);
}

TEST(Room, WhatOthersHoldIsLeftOut) {
  struct {
    DeviceShare share;
    Held held;
    std::uint32_t blocks, cluster, needed;
  } const cases[] = {
      {{132}, {28, 1}, 36, 8, 8},      // one more communicator
      {{132}, {16, 1}, 42, 8, 24},     // that has little
      {{132}, {56, 1}, 22, 4, 12},     // two
      {{132}, {28, 8, 28}, 21, 8, 8},  // whose cluster may not have begun: 75 processors may be taken beside it, 32 of them by NCCL
      {{132}, {16, 8, 8}, 17, 8, 16},  // the second of its clusters may not
      {{132}, {56, 8, 28}, 7, 4, 4},
      {{132}, {56, 8, 8}, 1, 4, 4},
      {{132}, {85, 2, 28}, 7, 1, 7},
      {{132}, {200, 1}, 1, 1, 1},  // more than there are
      {{132, 2}, {}, 25, 4, 20},   // ranks under MPS
      {{132, 4}, {}, 12, 2, 10},
      {{132, 8}, {}, 6, 1, 2},  // eight times six communicators have no room for more
      {{132, 64}, {}, 1, 1, 1},
      {{78}, {}, 23, 4, 16},         // smaller GPUs
      {{108, 1, 1}, {}, 38, 1, 38},  // without clusters
      {{108, 1, 1}, {28, 1}, 24, 1, 24},
      {{108, 1, 1}, {56, 1}, 10, 1, 10},
      {{80, 1, 1}, {}, 24, 1, 24},
      {{132, 4, 1}, {}, 12, 1, 12},
      {{58, 1, 1}, {}, 13, 1, 13},
      {{48, 1, 1}, {}, 8, 1, 7},
      {{40, 1, 1}, {}, 4, 1, 2},
      {{32}, {}, 8, 1, 1},  // parts of a device, in which a kernel of NCCL's may fill what is left
      {{16}, {}, 4, 1, 1},
      {{16}, {4, 1}, 2, 1, 1},
      {{8}, {}, 2, 1, 1},
      {{0}, {}, 1, 1, 1},
  };
  for (const auto& each : cases) {
    const Room room = room_beside(each.share, each.held);
    EXPECT_EQ(room.blocks, each.blocks) << each.share.processors << " " << each.share.ranks << " " << each.held.blocks;
    EXPECT_EQ(room.cluster, each.cluster) << each.share.processors << " " << each.share.ranks << " " << each.held.blocks;
    EXPECT_EQ(room.needed, each.needed) << each.share.processors << " " << each.share.ranks << " " << each.held.blocks;
  }
}

// A device whose processors are spread over GPCs, and blocks that took them anywhere.
struct Device {
  std::vector<std::uint32_t> free;  // by GPC

  Device(std::uint32_t gpcs, std::mt19937& random) {
    for (std::uint32_t i = 0; i < gpcs; ++i) free.push_back(14 + static_cast<std::uint32_t>(random()) % 5);
  }
  std::uint32_t processors() const {
    std::uint32_t sum = 0;
    for (const std::uint32_t each : free) sum += each;
    return sum;
  }
  // The worst: always from the GPC that has most left.
  void take(std::uint32_t blocks) {
    for (; blocks > 0; --blocks) {
      auto most = std::max_element(free.begin(), free.end());
      if (*most > 0) --*most;
    }
  }
  bool has_room(std::uint32_t cluster) const { return *std::max_element(free.begin(), free.end()) >= cluster; }
  // In some GPC that has room for it.
  void take_cluster(std::uint32_t cluster, std::mt19937& random) {
    std::vector<std::uint32_t*> roomy;
    for (std::uint32_t& each : free) {
      if (each >= cluster) roomy.push_back(&each);
    }
    *roomy[random() % roomy.size()] -= cluster;
  }
};

// Communicators queue operations one after another; the first of them may begin last, and all others wait for it.
TEST(Room, WhatWasQueuedFirstCanBeginLast) {
  std::mt19937 random(1);
  for (int round = 0; round < 2'000; ++round) {
    const Device device(8, random);
    struct Operation {
      std::uint32_t blocks, cluster;
      std::uint32_t needed;  // of the blocks, in clusters
    };
    std::vector<Operation> queued;
    Held held;
    const std::uint32_t can_cluster = round % 3 == 0 ? 1 : 8;
    const std::uint32_t communicators = 1 + static_cast<std::uint32_t>(random()) % 6;
    for (std::uint32_t i = 0; i < communicators; ++i) {
      const Room room = room_beside({device.processors(), 1, can_cluster}, held);
      const bool all_it_may = round % 4 == 0;
      const std::uint32_t wanted = random() % 2 == 0 ? 1 : all_it_may ? 8 : std::uint32_t{1} << random() % 4;
      const std::uint32_t cluster = std::min(room.cluster, wanted);
      // A grid of clusters has whole ones.
      const std::uint32_t most = std::min(room.blocks, 28u);
      const std::uint32_t blocks = std::max(all_it_may ? most : 1 + static_cast<std::uint32_t>(random()) % most, cluster);
      if (cluster > room.blocks) continue;
      const bool in_packets = (cluster > 1 || room.cluster == 1) && random() % 2 == 0;
      const Operation operation = in_packets ? Operation{room.needed / cluster * cluster, cluster, room.needed / cluster * cluster}
                                             : Operation{blocks, cluster, cluster};
      queued.push_back(operation);
      held.add(operation.blocks, cluster, operation.needed - cluster);
    }
    for (std::size_t last = 0; last < queued.size(); ++last) {
      Device taken = device;
      taken.take(kBlocksOfNccl);
      for (std::size_t i = 0; i < queued.size(); ++i) {
        if (i != last) taken.take(queued[i].blocks);
      }
      for (std::uint32_t begun = 0; begun < queued[last].needed; begun += queued[last].cluster) {
        ASSERT_TRUE(taken.has_room(queued[last].cluster)) << round << ": " << last << " of " << queued.size() << " after " << begun;
        taken.take_cluster(queued[last].cluster, random);
      }
    }
  }
}

// Ranks that share a device, each with six communicators that hold all they may: what an operation needs of it still finds room.
TEST(Room, BlocksThatAllBeginDoSoBesideOtherRanks) {
  for (const std::uint32_t processors : {60u, 80u, 108u, 132u}) {
    for (std::uint32_t ranks = 1; ranks <= 16; ++ranks) {
      const DeviceShare share{processors, ranks, 1};
      std::vector<Room> rooms;
      Held held;
      for (int communicator = 0; communicator < 6; ++communicator) {
        rooms.push_back(room_beside(share, held));
        held.add(rooms.back().blocks, 1, 0);
      }
      for (const Room& room : rooms) {
        const std::uint32_t taken = kBlocksOfNccl + ranks * held.blocks - room.blocks;
        EXPECT_TRUE(room.needed == 1 || taken + room.needed <= processors) << processors << ", " << ranks << " ranks: " << room.needed;
      }
    }
  }
}

// On whichever device it would find room alone.
TEST(Room, AKernelOfNcclBeginsBesideALoneCommunicators) {
  for (std::uint32_t processors = kBlocksOfNccl + 1; processors <= 132; ++processors) {
    for (const std::uint32_t can_cluster : {1u, 8u})
      EXPECT_LE(room_beside({processors, 1, can_cluster}, {}).blocks + kBlocksOfNccl, processors) << processors;
  }
}

// Ranks that share a device each queue what they may: one block of the last one still has a processor.
TEST(Room, RanksOfADeviceLeaveEachOtherRoom) {
  for (std::uint32_t ranks = 1; ranks <= 32; ++ranks) {
    std::uint32_t taken = kBlocksOfNccl;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) taken += room_beside({132, ranks}, {}).blocks;
    EXPECT_LE(taken, 132u) << ranks;
  }
}

}  // namespace
}  // namespace railweave::cuda
