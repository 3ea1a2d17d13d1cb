// The exchange kernels' roles with threads as blocks and warps: every byte, every order of launches, every failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "gpu_node.hpp"
#include "waiting.hpp"

namespace railweave::cuda {
namespace {

// Sizes around each border: packets, pieces, paths, slots.
std::uint64_t random_size(std::mt19937_64& random) {
  constexpr std::uint64_t kBorders[] = {1, 8, Line::kData, Packet::kData, 32u << 10, kBundleBytes, kSlotBytes, 4 * kSlotBytes};
  const std::uint64_t border = kBorders[random() % std::size(kBorders)];
  return std::max<std::uint64_t>(1, border + random() % 33 - 16 + (random() % 4 == 0 ? random() % 100'000 : 0)) % (1u << 20);
}

class RandomPrograms : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, bool, std::uint32_t>> {};

TEST_P(RandomPrograms, EveryByteArrives) {
  const auto [world, blocks, mapped, low_latency_bytes] = GetParam();
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed * 31 + world * 7 + blocks);
    Node node(world, seed);
    node.blocks_at_most = blocks;
    node.mapped = mapped;
    node.low_latency_bytes = low_latency_bytes;
    Program program(world);
    for (std::size_t op = 0; op < 4; ++op) {
      const std::size_t count = 1 + random() % 8;
      for (std::size_t i = 0; i < count; ++i) {
        program.add(random, random() % world, op, random() % world, op, random_size(random));
      }
    }
    program.run(node);
    program.check_moved(node);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      EXPECT_EQ(node.host(rank).error, 0u);
      for (const PartState& part : node.state(rank).parts) EXPECT_EQ(part.left, 0u);
      for (const MessageState& state : node.state(rank).messages) EXPECT_EQ(state.claimed, 0u);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, RandomPrograms,
                         testing::Combine(testing::Values(1u, 2u, 4u), testing::Values(1u, 4u), testing::Bool(),
                                          testing::Values(32u << 10, 128u << 10, 2u << 20)));

// docs/protocol-model.md, program 1 of the kernels: rank 1 receives from 0 only after it has received from 2, which sends only after it
// has received from 0. With one block, rank 0's push to 1 must not keep it from pushing to 2.
class Orders : public testing::TestWithParam<bool> {};

TEST_P(Orders, AReceiverThatComesLateHoldsNobodyElseUp) {
  std::mt19937_64 random(5);
  Node node(3);
  node.blocks_at_most = 1;
  node.mapped = GetParam();
  Program program(3);
  for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{16} * kSlotBytes}) {
    const std::size_t op = bytes == 100 ? 0 : 2;
    program.add(random, 0, op, 1, op + 1, bytes);
    program.add(random, 0, op, 2, op, bytes);
    program.add(random, 2, op + 1, 1, op, bytes);
  }
  program.run(node);
}
// What one resident block of a rank can do, all must be able to do: every block, or cluster, begins only when the one before it has ended.
class OneResidentBlock : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, bool>> {
 protected:
  void set_up(Node& node) {
    std::tie(node.cluster_blocks, node.blocks_at_most, node.mapped) = GetParam();
    node.one_at_a_time = true;
  }
};

TEST_P(OneResidentBlock, CompletesEverything) {
  std::mt19937_64 random(12);
  Node node(3);
  set_up(node);
  Program program(3);
  for (std::size_t op = 0; op < 3; ++op) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      for (std::uint32_t j = 0; j < 3; ++j) {
        program.add(random, i, op, j, op, 100'000 + random() % 300'000);
        program.add(random, i, op, j, op, 1 + random() % 20'000);
      }
    }
  }
  program.run(node);
  program.check_moved(node);
}

// Rank 1 sends the packets that rank 0 waits for only after it has received what rank 0 pushes in the same operation, and the other way
// round: neither kind may wait for the other.
TEST_P(OneResidentBlock, PacketsAndPushesWaitForEachOtherInNoOrder) {
  std::mt19937_64 random(13);
  for (const auto& [first, second] : {std::pair{20'000u, 400'000u}, std::pair{400'000u, 20'000u}}) {
    Node node(2);
    set_up(node);
    Program program(2);
    program.add(random, 0, 0, 1, 0, first);
    program.add(random, 1, 1, 0, 0, second);
    program.run(node);
    const bool together = node.blocks_at_most > 1 && node.cluster_blocks > 1;
    EXPECT_EQ(node.kernels(0).front(), together ? Kernel::apart : Kernel::any);
  }
}
INSTANTIATE_TEST_SUITE_P(Grids, OneResidentBlock, testing::Combine(testing::Values(1u, 2u, 8u), testing::Values(1u, 8u), testing::Bool()));

// More than kernel parameters hold: 5,000 transfers a rank in one operation, and then a small one.
TEST(Roles, AsManyTransfersAsYouLike) {
  std::mt19937_64 random(14);
  Node node(2);
  node.blocks_at_most = 4;
  node.delays = 0;
  Program program(2);
  for (std::uint32_t i = 0; i < 2500; ++i) {
    program.add(random, 0, 0, 1, 0, i % 100 == 0 ? 40'000 + i : 1 + random() % 500);
    program.add(random, 1, 0, 0, 0, i % 70 == 0 ? 40'000 + i : 1 + random() % 500);
  }
  program.add(random, 0, 1, 1, 1, 100);
  program.run(node);
  program.check_moved(node);
  EXPECT_EQ(node.kernels(0), (std::vector{Kernel::any, Kernel::packets}));
  EXPECT_EQ(node.completed(0), 5001u);
}

// Small messages do not wait for their receiver at all, as long as there are credits.
TEST(Roles, SmallSendsEndBeforeTheirReceive) {
  std::mt19937_64 random(6);
  Node node(2);
  Bytes data = random_bytes(random, 1000), came(1000);
  node.run(0, {{Direction::send, 1, data.data(), data.size()}});
  EXPECT_EQ(node.completed(0), 1u);
  node.run(1, {{Direction::receive, 0, came.data(), came.size()}});
  EXPECT_TRUE(data == came);
}

TEST(Roles, ShortMessagesKeepLinksAwake) {
  Node node(2);
  Bytes data(100), received(300);
  std::uint64_t& touched_at = node.port(0, 1).touched_at;
  const auto send = [&] { node.run(0, {{Direction::send, 1, data.data(), data.size()}}); };
  const auto begin = std::chrono::steady_clock::now();
  send();
  const std::uint64_t first = touched_at;
  EXPECT_NE(first, 0u);
  send();
  const bool at_once = std::chrono::steady_clock::now() - begin < std::chrono::nanoseconds(kTouchEveryNs);
  EXPECT_TRUE(touched_at == first || !at_once);
  const std::uint64_t long_ago = touched_at -= kTouchEveryNs + 1;
  send();
  EXPECT_GT(touched_at - long_ago, kTouchEveryNs);
  node.run(1, {{Direction::receive, 0, received.data(), 100},
               {Direction::receive, 0, received.data() + 100, 100},
               {Direction::receive, 0, received.data() + 200, 100}});
  EXPECT_EQ(node.port(1, 0).touched_at, 0u) << "a rank that only receives";
  EXPECT_EQ(node.host(0).error + node.host(1).error, 0u);
}

// More of a pair than have places at once: later ones are granted in those of earlier ones.
TEST_P(Orders, ManyMessagesOfAPair) {
  for (std::uint64_t seed = 1; seed <= 48; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Node node(2, seed);
    node.mapped = GetParam();
    Program program(2);
    for (std::uint32_t i = 0; i < 3 * kGrants; ++i) {
      program.add(random, 0, 0, 1, 0, i % 3 == 0 ? 40'000 : 70'000);
      program.add(random, 1, 0, 0, 0, i % 2 == 0 ? 10 : 33'000);
    }
    program.run(node);
    program.check_moved(node);
    EXPECT_EQ(node.completed(0), 6u * kGrants);
  }
}

// The same over operations, which find the places as if nothing had been there.
TEST_P(Orders, ManyOperationsOfAPair) {
  std::mt19937_64 random(7);
  Node node(2);
  node.mapped = GetParam();
  Program program(2);
  for (std::size_t op = 0; op < 3 * kGrants; ++op) program.add(random, 0, op, 1, op, 100'000 - 1000 * op);
  program.run(node);
  program.check_moved(node);
}
INSTANTIATE_TEST_SUITE_P(Paths, Orders, testing::Bool());

// Sends of one operation may be received in several, in any split, as long as each pair's order is kept.
TEST(Roles, GroupsNeedNotMatch) {
  std::mt19937_64 random(8);
  Node node(3);
  Program program(3);
  for (std::size_t i = 0; i < 6; ++i) program.add(random, 0, 0, 1, i, 5000 + i);
  for (std::size_t i = 0; i < 6; ++i) program.add(random, 0, 0, 2, i / 3, 100'000 + i);
  program.run(node);
}

TEST(Roles, PacketNumbersDoNotWrap) {
  std::mt19937_64 random(9);
  constexpr std::uint64_t kStart = (std::uint64_t{1} << 32) - 3;
  Node node(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Port& port = node.port(rank, 1 - rank);
    for (const Direction direction : {Direction::send, Direction::receive}) port.counts[count_at(Path::packets, direction)].value = kStart;
    for (std::uint64_t number = kStart - kPacketSlots; number < kStart; ++number) port.credits[number % kPacketSlots] = credit_of(number);
  }
  Program program(2);
  for (std::size_t op = 0; op < 8; ++op) {
    program.add(random, 0, op, 1, op, 30'000);
    program.add(random, 1, op, 0, op, 1 + op);
  }
  program.run(node);
  EXPECT_EQ(node.port(1, 0).counts[count_at(Path::packets, Direction::receive)].value, kStart + 8 * packets_of(30'000));
}

// Messages of a pair in packets, more than a warp has lanes: alone, beside a granted one, and more than a kernel's parameters hold.
class ManyMessages : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> {};

TEST_P(ManyMessages, ShareAPairsSlots) {
  const auto [count, largest, granted] = GetParam();
  std::mt19937_64 random(count + largest);
  Node node(3, 5);
  node.cluster_blocks = 2;
  node.blocks_at_most = 4;
  node.low_latency_bytes = 128u << 10;
  Program program(3);
  for (std::size_t op = 0; op < 2; ++op) {
    for (std::uint32_t i = 0; i < count; ++i) {
      program.add(random, 0, op, 1, op, 1 + random() % largest);
      program.add(random, i % 3, op, (i + 1) % 3, op, 1 + random() % largest);
    }
    if (granted != 0) program.add(random, 1, op, 0, op, granted);
  }
  program.run(node);
  program.check_moved(node);
  EXPECT_EQ(node.kernels(0).front(), granted != 0 ? Kernel::apart : Kernel::packets);
  for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(node.host(rank).error, 0u);
}
INSTANTIATE_TEST_SUITE_P(Counts, ManyMessages,
                         testing::Values(std::tuple{40u, 100'000u, 0u}, std::tuple{40u, 5'000u, 300'000u}, std::tuple{10u, 128u << 10, 0u},
                                         std::tuple{300u, 9'000u, 0u}));

// Ranks whose plans differ: one has packets alone, another the same beside granted messages, in trains or not, or general roles.
class PlansDiffer : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PlansDiffer, EveryByteArrives) {
  const std::uint64_t seed = GetParam();
  std::mt19937_64 random(seed);
  const std::uint32_t world = 2 + random() % 3;
  Node node(world, seed);
  node.delays = random() % 2 == 0 ? 0 : 5;
  constexpr std::uint64_t kLimits[] = {64u << 10, 512u << 10, 1u << 20, 4u << 20, 8u << 20};
  node.low_latency_bytes = kLimits[random() % std::size(kLimits)];
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    node.clusters_of.push_back(1u << random() % 3);
    node.blocks_of.push_back(1 + random() % 8);
  }
  node.single_blocks = 1 + random() % 4;
  Program program(world);
  for (std::size_t op = 0; op < 3; ++op) {
    const std::size_t count = random() % 4 == 0 ? 280 : random() % 3 == 0 ? 1 + random() % 60 : 1 + random() % 6;
    const std::uint64_t most = std::min<std::uint64_t>(10'000'000 / count, 9u << 20);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = 1 + random() % (random() % 3 == 0 ? most : std::min<std::uint64_t>(most, 20'000));
      program.add(random, random() % world, op, random() % world, op, bytes);
    }
  }
  program.run(node);
  program.check_moved(node);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    EXPECT_EQ(node.host(rank).error, 0u);
    for (const PartState& part : node.state(rank).parts) EXPECT_EQ(part.left, 0u);
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, PlansDiffer, testing::Range<std::uint64_t>(1, 25));

// Of the general kernel, too, with a message of more packets than slots: its block takes on what those that have not begun would have.
class OneBlockAtATime : public testing::TestWithParam<std::tuple<std::uint64_t, std::uint32_t, bool>> {};

TEST_P(OneBlockAtATime, MovesMoreThanSlotsHold) {
  const auto [bytes, blocks, both_ways] = GetParam();
  std::mt19937_64 random(3);
  Node node(2);
  node.cluster_blocks = 1;
  node.blocks_at_most = blocks;
  node.low_latency_bytes = bytes;
  node.one_at_a_time = true;
  node.timeout_ns = 60'000'000'000;
  Program program(2);
  program.add(random, 0, 0, 1, 0, bytes);
  program.add(random, 0, 0, 1, 0, bytes + 1);  // granted
  program.add(random, 1, 0, 0, 0, bytes + 1);
  if (both_ways) program.add(random, 1, 0, 0, 0, bytes);
  program.run(node);
  program.check_moved(node);
  EXPECT_EQ(node.kernels(0).front(), Kernel::any);
  for (std::uint32_t rank = 0; rank < 2; ++rank) EXPECT_EQ(node.host(rank).error, 0u);
}
INSTANTIATE_TEST_SUITE_P(Sizes, OneBlockAtATime,
                         testing::Combine(testing::Values(500'000u, 1u << 20, 5u << 20), testing::Values(4u, 16u), testing::Bool()));

// An abort reaches whoever waits in trains, and counts nothing.
TEST(Roles, AnAbortEndsTrains) {
  Node node(2);
  node.low_latency_bytes = 64u << 10;
  Bytes came(40 * 5'000);
  std::vector<Transfer> receives;
  for (std::size_t i = 0; i < 40; ++i) receives.push_back({Direction::receive, 1, came.data() + i * 5'000, 5'000});
  std::jthread waiting([&] { node.run(0, receives); });
  std::atomic_ref(node.host(0).stop).store(kLeave);
  waiting.join();
  EXPECT_EQ(node.kernels(0).front(), Kernel::packets);
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(node.completed(0), 0u);
  for (const PartState& part : node.state(0).parts) EXPECT_EQ(part.left + part.stopped, 0u);
}

TEST(Roles, SizesThatDifferStopTheSource) {
  std::mt19937_64 random(10);
  Node node(2);
  Bytes data = random_bytes(random, 100'000), came(90'000);
  std::jthread receiver([&] { node.run(1, {{Direction::receive, 0, came.data(), came.size()}}); });
  node.run(0, {{Direction::send, 1, data.data(), data.size()}});
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::sizes_differ));
  EXPECT_EQ(node.host(0).error_peer, 1u);
  EXPECT_EQ(node.host(0).error_bytes[0], 100'000u);
  EXPECT_EQ(node.host(0).error_bytes[1], 90'000u);
  // Its host tells the peer's, which ends the receive.
  std::atomic_ref(node.host(1).stop).store(kLeave);
  receiver.join();
  EXPECT_EQ(node.host(1).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(came, Bytes(90'000));
}

TEST(Roles, AnAbortEndsWhatWaits) {
  Node node(2);
  Bytes data(100'000), came(100);
  std::jthread waiting([&] {
    node.run(0, {{Direction::send, 1, data.data(), data.size()}, {Direction::receive, 1, came.data(), came.size()}});
  });
  std::atomic_ref(node.host(0).stop).store(kLeave);
  waiting.join();
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(node.completed(0), 0u);
  EXPECT_EQ(node.port(0, 1).moved_bytes[0] + node.port(0, 1).moved_bytes[1], 0u);
  for (const PartState& part : node.state(0).parts) EXPECT_EQ(part.left, 0u);
}

// Packets and granted messages of an operation wait, in blocks of their own.
TEST(Roles, AnAbortEndsBothKinds) {
  Node node(2);
  node.blocks_at_most = 4;
  Bytes data(100'000), came(100), more(100'000);
  std::jthread waiting([&] {
    node.run(0, {{Direction::send, 1, data.data(), data.size()},
                 {Direction::receive, 1, came.data(), came.size()},
                 {Direction::receive, 1, more.data(), more.size()}});
  });
  std::atomic_ref(node.host(0).stop).store(kLeave);
  waiting.join();
  EXPECT_EQ(node.kernels(0).front(), Kernel::apart);
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(node.completed(0), 0u);
  EXPECT_EQ(node.port(0, 1).moved_bytes[0], 0u);
  EXPECT_LE(node.port(0, 1).moved_bytes[1], came.size()) << "packets may have been counted ahead";
  for (const PartState& part : node.state(0).parts) EXPECT_EQ(part.left + part.stopped, 0u);
}

// A push is over, and said to be, while a packet of the same operation is still awaited.
TEST(Roles, PacketsThatNeverComeHoldNoPushUp) {
  std::mt19937_64 random(15);
  Node node(2);
  node.blocks_at_most = 4;
  Bytes data = random_bytes(random, 100'000), came(data.size()), never(100);
  std::jthread waiting([&] {
    node.run(0, {{Direction::send, 1, data.data(), data.size()}, {Direction::receive, 1, never.data(), never.size()}});
  });
  node.run(1, {{Direction::receive, 0, came.data(), came.size()}});
  EXPECT_TRUE(data == came);
  while (ended_of(node.ledger(0), Path::granted, false).completed == 0) std::this_thread::yield();
  std::atomic_ref(node.host(0).stop).store(kLeave);
  waiting.join();
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(node.completed(0), 1u);
}

// The host counts operations when it queues them and replays not at all, so what it waits for must not be hidden by them.
TEST(Roles, ReplaysAreCountedApart) {
  std::mt19937_64 random(16);
  for (const bool apart : {false, true}) {
    Node node(2);
    node.blocks_at_most = 4;
    node.cluster_blocks = apart ? 8 : 1;
    for (std::uint64_t run = 0; run < 4; ++run) {
      node.captured = run != 0;
      Program program(2);
      program.add(random, 0, 0, 1, 0, 100);
      program.add(random, 0, 0, 1, 0, 100'000);
      program.add(random, 1, 0, 0, 0, 200);
      program.run(node);
      const auto completed = [&](Path path, bool captured) { return node.ledger(0).accounts[account_of(path, captured)].totals.completed; };
      EXPECT_EQ(completed(Path::packets, false), 2u);
      EXPECT_EQ(completed(Path::granted, false), 1u);
      EXPECT_EQ(completed(Path::packets, true), 2 * run);
      EXPECT_EQ(completed(Path::granted, true), run);
      EXPECT_EQ(node.ledger(1).accounts[account_of(Path::granted, true)].totals.bytes_received, 100'000 * run);
      program.check_moved(node, run + 1);
    }
    EXPECT_EQ(node.kernels(0).front(), apart ? Kernel::apart : Kernel::any);
  }
}

// Rank 0 receives from rank 1, and has granted that.
void await_grant(Node& node) {
  while (std::atomic_ref(node.port(1, 0).grants[1].words[5]).load() == 0) std::this_thread::yield();
}

// As rank 0's host does when the communicator has ended, until the kernel says that it rests.
void stop_until_it_rests(Node& node) {
  std::atomic_ref(node.host(0).stop).store(kStop);
  while (std::atomic_ref(node.host(0).rests).load() == 0) std::this_thread::yield();
}

// A mate that has the grant may be writing, or begin to, until its host has heard of the end: then the receiver's buffer is its program's.
TEST(Roles, WhatWasGrantedIsOutlastedUntilMatesRest) {
  std::mt19937_64 random(21);
  Node node(2);
  Bytes data = random_bytes(random, 1'000'000), came(data.size());
  std::atomic<bool> left{false};
  std::jthread receiver([&] {
    node.run(0, {{Direction::receive, 1, came.data(), came.size()}});
    left.store(true);
  });
  await_grant(node);
  stop_until_it_rests(node);
  EXPECT_EQ(std::atomic_ref(node.host(0).error).load(), static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_FALSE(left.load());
  node.run(1, {{Direction::send, 0, data.data(), data.size()}});  // it has not heard yet
  EXPECT_TRUE(came == data);
  // All that was granted has come: there is nothing to wait for any more.
  receiver.join();
  EXPECT_EQ(node.completed(0), 0u);
}

TEST(Roles, AReceiverThatWasStoppedLeavesWhenItsHostSaysSo) {
  Node node(2);
  Bytes came(1'000'000);
  std::atomic<bool> left{false};
  std::jthread receiver([&] {
    node.run(0, {{Direction::receive, 1, came.data(), came.size()}});
    left.store(true);
  });
  await_grant(node);
  stop_until_it_rests(node);
  for (int turns = 0; turns < 1000; ++turns) std::this_thread::yield();
  EXPECT_FALSE(left.load());
  std::atomic_ref(node.host(0).stop).store(kLeave);
  receiver.join();
}

// Its launch was queued behind computing, say, and its host has heard of the end meanwhile.
TEST(Roles, AKernelThatBeginsAfterTheEndWritesNothing) {
  std::mt19937_64 random(22);
  Node node(2);
  Bytes data = random_bytes(random, 1'000'000), came(data.size()), more(data.size());
  std::jthread receiver([&] { node.run(0, {{Direction::receive, 1, came.data(), came.size()}}); });
  await_grant(node);
  node.halt(1);
  std::atomic_ref(node.host(1).stop).store(kLeave);
  node.run(1, {{Direction::send, 0, data.data(), data.size()}, {Direction::receive, 0, more.data(), more.size()}});
  EXPECT_EQ(node.host(1).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(came, Bytes(came.size()));
  std::atomic_ref(node.host(0).stop).store(kLeave);
  receiver.join();
}

// The numbers of an operation that was given up are used again by the next one, which finds grants that its mate gave to the first.
TEST(Roles, WhatIsQueuedBehindAnOperationThatWasGivenUpMovesNothing) {
  std::mt19937_64 random(23);
  for (const std::size_t bytes : {1'000'000u, 100u}) {
    Node node(3);
    Bytes first = random_bytes(random, bytes), second = random_bytes(random, bytes), never(1'000'000), came(bytes), more(bytes);
    std::jthread receiver([&] {
      node.run(0, {{Direction::receive, 1, came.data(), bytes}, {Direction::send, 2, never.data(), never.size()}});
    });
    std::jthread sender([&] {
      node.run(1, {{Direction::send, 0, first.data(), bytes}, {Direction::send, 2, never.data(), never.size()}});
    });
    const auto has_come = [&] {
      return bytes < never.size() ? std::atomic_ref(node.port(1, 0).credits[0]).load() != 0
                                  : std::atomic_ref(node.port(0, 1).placed[1]).load() == bytes;
    };
    while (!has_come()) std::this_thread::yield();
    // Rank 2 has died. Neither of the others has granted what has not come, so both leave, and their programs have their buffers again.
    for (const std::uint32_t rank : {0u, 1u}) std::atomic_ref(node.host(rank).stop).store(kStop);
    receiver.join();
    sender.join();
    EXPECT_TRUE(came == first);
    std::fill(came.begin(), came.end(), std::byte{0});
    const std::uint64_t before = node.completed(0) + node.completed(1);  // packets end for themselves
    // Their hosts' copies have not come yet.
    for (const std::uint32_t rank : {0u, 1u}) std::atomic_ref(node.host(rank).stop).store(kLeave);
    node.run(1, {{Direction::send, 0, second.data(), bytes}});
    node.run(0, {{Direction::receive, 1, more.data(), bytes}});
    EXPECT_EQ(came, Bytes(bytes));
    EXPECT_EQ(more, Bytes(bytes)) << "what is in the place is the first one's";
    EXPECT_EQ(node.completed(0) + node.completed(1), before);
  }
}

// Where a kernel finds an error itself its host hears of it later: until then the next operation must not be taken for the first.
TEST(Roles, AMateDoesNotTakeTheNextOperationForOneThatWasGivenUp) {
  std::mt19937_64 random(24);
  for (const auto& [bytes, clusters] : {std::pair{100u, 8u}, std::pair{30'000u, 1u}, std::pair{1'000'000u, 8u}}) {
    Node node(3);
    node.cluster_blocks = clusters;
    node.timeout_ns = 20'000'000;
    Bytes first = random_bytes(random, bytes), second = random_bytes(random, bytes), never(1'000'000), came(bytes);
    node.run(0, {{Direction::send, 2, never.data(), never.size()}, {Direction::send, 2, never.data(), 100}});
    EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::timed_out));
    node.timeout_ns = 3600'000'000'000;
    const std::uint64_t before = node.completed(0);
    std::jthread next([&] { node.run(0, {{Direction::send, 1, second.data(), bytes}}); });
    std::atomic<bool> left{false};
    std::jthread mate([&] {
      node.run(1, {{Direction::receive, 0, came.data(), bytes}});
      left.store(true);
    });
    for (int turns = 0; turns < 2000 && !left; ++turns) std::this_thread::sleep_for(std::chrono::microseconds(10));
    EXPECT_FALSE(left.load());
    for (const std::uint32_t rank : {0u, 1u}) std::atomic_ref(node.host(rank).stop).store(kLeave);
    next.join();
    mate.join();
    EXPECT_EQ(came, Bytes(bytes));
    EXPECT_EQ(node.completed(0), before);
    EXPECT_EQ(node.completed(1), 0u);
  }
}

// What an operation has moved of another communicator's messages is not counted when it is stopped, so that one cannot go on either: its
// next message would have the number of one that has partly been sent.
// Also where one has only messages in packets, the other only granted ones, and either kind has blocks of its own.
TEST(Roles, CommunicatorsThatShareAnOperationEndTogether) {
  for (const auto& [first, second] :
       {std::pair{100u, 100u}, std::pair{100'000u, 100'000u}, std::pair{5'000u, 100'000u}, std::pair{100'000u, 5'000u}}) {
    for (const std::uint32_t clusters : {1u, 2u}) {
      Node one(2), other(2);
      one.low_latency_bytes = 10'000;
      one.blocks_at_most = 4;
      one.cluster_blocks = clusters;
      Bytes data(200'000);
      std::vector<Message> messages = one.messages_of(0, {{Direction::receive, 1, data.data(), first}});
      other.low_latency_bytes = one.low_latency_bytes;
      const std::vector<Message> others = other.messages_of(0, {{Direction::receive, 1, data.data(), second}});
      messages.insert(messages.end(), others.begin(), others.end());
      std::jthread running([&] { one.run(0, messages); });
      const std::jthread watching = other.watch(0);
      std::atomic_ref(one.host(0).stop).store(kLeave);
      running.join();
      if (first != second) {
        EXPECT_EQ(one.kernels(0).at(0), clusters == 1 ? Kernel::any : Kernel::apart);
      }
      EXPECT_EQ(one.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
      EXPECT_EQ(other.host(0).error, static_cast<std::uint32_t>(KernelError::aborted)) << first << " and " << second << " bytes";
      EXPECT_EQ(one.completed(0) + other.completed(0), 0u);
    }
  }
}

TEST(Roles, APeerThatNeverComesEndsInATimeOut) {
  Node node(2);
  node.timeout_ns = 1'000'000;
  Bytes came(100'000);
  const std::jthread watching = node.watch(0);
  node.run(0, {{Direction::receive, 1, came.data(), came.size()}});
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::timed_out));
  EXPECT_EQ(node.host(0).error_peer, 1u);
}

// A record that names bytes outside its message is refused, not copied.
TEST(Roles, ARecordOutsideItsMessageIsRefused) {
  Node node(2);
  node.low_latency_bytes = 0;
  Bytes came(kSlotBytes);
  SlotRecord& record = node.port(0, 1).records[2];
  record = {1, kSlotBytes - 8, 16, 0};
  node.port(0, 1).filled[2] = 1;
  const std::jthread watching = node.watch(0);
  node.run(0, {{Direction::receive, 1, came.data(), came.size()}});
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::bad_record));
  EXPECT_EQ(came, Bytes(kSlotBytes));
}

// Blocks that look at the same time are after slots of their own, at both ends, and take what there is when that is another one.
class SlotsOfABlock : public testing::TestWithParam<Direction> {
 protected:
  // The slots that a block of so many, beginning with a message of as many slots, uses in its first turns, when these are ready.
  static std::vector<std::uint32_t> used(std::uint32_t index, const std::vector<std::uint32_t>& ready) {
    const auto here = std::make_unique<Port>(), there = std::make_unique<Port>();
    const bool sends = GetParam() == Direction::send;
    Bytes data(kSlots * kSlotBytes);
    HostView host{};
    OperationState state{};
    Ledger ledger{};
    Message m{};
    m.local = here.get();
    m.remote = there.get();
    m.data = data.data();
    m.bytes = data.size();
    m.host = &host;
    m.ledger = &ledger;
    m.direction = GetParam();
    m.path = Path::granted;
    m.piece_bytes = static_cast<std::uint32_t>(data.size());
    m.grant_after = kNone;
    m.last_block = 2 * kSlots;
    if (sends) {
      const std::uint64_t said[Grant::kWords] = {m.bytes, 0, kNoBuffer};
      for (std::uint32_t k = 0; k < Grant::kWords; ++k) here->grants[1].words[k] = said[k] | std::uint64_t{1} << 32;
    }
    for (std::uint32_t k = 0; k < kSlots; ++k) {
      const bool is_ready = std::ranges::find(ready, k) != ready.end();
      here->taken[k] = sends && !is_ready ? 1 : 0;
      here->filled[k] = !sends && is_ready ? 1 : 0;
      here->records[k] = {1, k * kSlotBytes, kSlotBytes, 0};
    }
    HostBlock block(index, 2 * kSlots, index + 1, 0);
    block.make_room(1);
    Roles<HostBlock, false> roles(block, {&state.parts[0], state.messages, &m, 1, 3600'000'000'000});
    roles.begin();
    std::vector<std::uint32_t> order;
    std::vector<bool> before(kSlots);
    for (std::uint32_t turn = 0; turn < ready.size(); ++turn) {
      EXPECT_TRUE(roles.turn(false));
      for (std::uint32_t k = 0; k < kSlots; ++k) {
        const bool now = sends ? there->filled[k] == 1 : there->freed[k] == 1;
        if (now && !before[k]) order.push_back(k);
        before[k] = now;
      }
    }
    return order;
  }
};

TEST_P(SlotsOfABlock, BeginWithItsOwn) {
  for (std::uint32_t index = 0; index < 2 * kSlots; ++index) {
    std::vector<std::uint32_t> all(kSlots), wanted;
    for (std::uint32_t k = 0; k < kSlots; ++k) {
      all[k] = k;
      wanted.push_back((index + k) % kSlots);
    }
    EXPECT_EQ(used(index, all), wanted);
    EXPECT_EQ(used(index, {3}), std::vector{3u});
  }
}
INSTANTIATE_TEST_SUITE_P(Ends, SlotsOfABlock, testing::Values(Direction::send, Direction::receive));

// Four ranks of which each waits for all three others, which do something else: each rank's dump says for whom, and in which state.
TEST(Roles, AStallOfFourRanksIsToldWhole) {
  Node node(4);
  Bytes data(100'000), came[4] = {Bytes(200'000), Bytes(200'000), Bytes(200'000), Bytes(200'000)};
  Bytes small[4] = {Bytes(500), Bytes(500), Bytes(500), Bytes(500)};
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      node.run(rank, {{Direction::send, (rank + 1) % 4, data.data(), data.size()},
                      {Direction::receive, (rank + 2) % 4, came[rank].data(), came[rank].size()},
                      {Direction::receive, (rank + 3) % 4, small[rank].data(), small[rank].size()}});
    });
  }
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto text = [&](Direction direction, Path path, std::uint32_t distance, std::uint64_t bytes) {
      const std::uint32_t peer = (rank + distance) % 4;
      for (;;) {
        const bool ahead = is_ahead(node.ledger(rank));
        const auto words = copy_words(node.port(rank, peer));
        const bool counted = words->counts[count_at(path, direction)].value != 0;
        if (path == Path::packets && counted != ahead) continue;  // counted between the two looks
        return waiting_text({direction, path, peer, bytes, 0}, *words, ahead);
      }
    };
    const auto name = [&](std::uint32_t distance) { return "rank " + std::to_string((rank + distance) % 4); };
    EXPECT_EQ(text(Direction::send, Path::granted, 1, 100'000),
              "send of 100000 bytes to " + name(1) + ": waits for " + name(1) + "'s grant: its receive has not begun");
    EXPECT_EQ(text(Direction::receive, Path::granted, 2, 200'000),
              "receive of 200000 bytes from " + name(2) + ": " + name(2) + " has written 0 bytes into the buffer");
    EXPECT_EQ(text(Direction::receive, Path::packets, 3, 500),
              "receive of 500 bytes from " + name(3) + ": in 1 packet from number 0, of which not all have come");
  }
  for (std::uint32_t rank = 0; rank < 4; ++rank) std::atomic_ref(node.host(rank).stop).store(kLeave);
}

// The counts of packets are moved on while an operation runs, by whichever warp began last, unless that one waits for packets: the last
// warps do, so they are begun first.
TEST(Roles, WhatRunsHasNotEndedThoughItIsCounted) {
  std::mt19937_64 random(27);
  bool seen_ahead = false;
  for (int run = 0; run < 20 || (!seen_ahead && run < 400); ++run) {  // a busy machine may start that one late
    Node node(2, run + 1);
    node.last_first = true;
    const Bytes first = random_bytes(random, 4000), second = random_bytes(random, 9000);
    Bytes data = first, more = second, came(4000), came_next(9000);
    std::jthread sender([&] { node.run(1, {{Direction::send, 0, data.data(), data.size()}}); });
    node.run(0, {{Direction::receive, 1, came.data(), came.size()}});
    sender.join();
    EXPECT_EQ(node.completed(0), 1u);
    std::jthread receiver([&] { node.run(0, {{Direction::receive, 1, came_next.data(), came_next.size()}}); });
    const auto ended = [&] { return ended_of(node.ledger(0), Path::packets, false).completed; };
    while (ended() != 1) std::this_thread::yield();  // the second one has begun, so the first one has ended
    for (int look = 0; look < 50; ++look, std::this_thread::sleep_for(std::chrono::microseconds(200))) {
      const Ledger ledger = node.ledger(0);
      EXPECT_EQ(ended_of(ledger, Path::packets, false).completed, 1u);
      const auto words = copy_words(node.port(0, 1));
      if ((words->counts[count_at(Path::packets, Direction::receive)].value == 5) != is_ahead(ledger)) continue;  // just now
      EXPECT_EQ(waiting_text({Direction::receive, Path::packets, 1, 9000, 0}, *words, is_ahead(ledger)),
                "receive of 9000 bytes from rank 1: in 3 packets from number 2, of which not all have come");
      seen_ahead = seen_ahead || is_ahead(ledger);
    }
    node.run(1, {{Direction::send, 0, more.data(), more.size()}});
    receiver.join();
    EXPECT_EQ(node.completed(0), 2u);
    EXPECT_TRUE(came == first && came_next == second);
  }
  EXPECT_TRUE(seen_ahead);
}

}  // namespace
}  // namespace railweave::cuda
