#include "prepare.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace railweave::cuda {
namespace {

Port ports[3];
HostView hosts[2];

Message make(Direction direction, std::uint32_t peer, std::uint64_t bytes, HostView* host = &hosts[0]) {
  Message m{};
  m.local = &ports[peer];
  m.peer = peer;
  m.direction = direction;
  m.bytes = bytes;
  m.host = host;
  return m;
}

TEST(Prepare, SizeDecidesThePath) {
  std::vector<Message> messages{make(Direction::send, 1, 64u << 10), make(Direction::send, 1, (64u << 10) + 1)};
  prepare(messages, {16, 64u << 10});
  EXPECT_EQ(messages[0].path, Path::packets);
  EXPECT_EQ(messages[1].path, Path::granted);
}

TEST(Prepare, NumbersCountPerPairDirectionAndPath) {
  std::vector<Message> messages{make(Direction::send, 1, 10'000),    make(Direction::send, 2, 10), make(Direction::send, 1, 100'000),
                                make(Direction::receive, 1, 10),     make(Direction::send, 1, 1),  make(Direction::send, 1, 200'000),
                                make(Direction::receive, 1, 100'000)};
  prepare(messages, {16, 64u << 10});
  const std::uint32_t ordinals[] = {0, 0, 0, 0, 3, 1, 0};  // 10,000 bytes are three packets
  const bool last[] = {false, true, false, true, true, true, true};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].ordinal, ordinals[i]) << i;
    EXPECT_EQ(messages[i].last_of_pair, last[i]) << i;
    EXPECT_EQ(messages[i].reports, i == 0) << i;
  }
}

TEST(Prepare, OneReportForEachCommunicator) {
  std::vector<Message> messages{make(Direction::send, 1, 1), make(Direction::send, 1, 1, &hosts[1]),
                                make(Direction::send, 2, 1, &hosts[1])};
  prepare(messages, {});
  EXPECT_TRUE(messages[0].reports);
  EXPECT_TRUE(messages[1].reports);
  EXPECT_FALSE(messages[2].reports);
}

TEST(Prepare, AGrantWaitsForTheMessageWhosePlaceItTakes) {
  std::vector<Message> messages;
  for (std::uint32_t i = 0; i < kGrants + 2; ++i) {
    messages.push_back(make(Direction::receive, 1, 100'000));
    messages.push_back(make(Direction::receive, 2, 10));
  }
  prepare(messages, {16, 64u << 10});
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool waits = i % 2 == 0 && i >= 2 * kGrants;
    EXPECT_EQ(messages[i].grant_after, waits ? static_cast<std::int32_t>(i - 2 * kGrants) : kNone) << i;
  }
}

struct BlocksCase {
  std::vector<std::uint64_t> sends, receives;
  std::uint32_t blocks;
};
class Blocks : public testing::TestWithParam<BlocksCase> {};

TEST_P(Blocks, FollowTheBytes) {
  std::vector<Message> messages;
  for (const std::uint64_t bytes : GetParam().sends) messages.push_back(make(Direction::send, 1, bytes));
  for (const std::uint64_t bytes : GetParam().receives) messages.push_back(make(Direction::receive, 2, bytes));
  const Plan plan = prepare(messages, {16, 32u << 10});
  EXPECT_EQ(plan.blocks, GetParam().blocks);
}
INSTANTIATE_TEST_SUITE_P(Table, Blocks,
                         testing::Values(BlocksCase{{1}, {}, 1}, BlocksCase{{32768}, {32768}, 1}, BlocksCase{{}, {1u << 30}, 1},
                                         BlocksCase{{65537}, {65537}, 5}, BlocksCase{{1'000'000}, {}, 8}, BlocksCase{{1u << 20}, {}, 16},
                                         BlocksCase{{256u << 20}, {256u << 20}, 16}));

struct PacketCase {
  std::vector<std::uint64_t> sends, receives;
  std::uint32_t blocks_at_most, cluster_blocks;
  bool packets_only;
  std::uint32_t blocks;
};
class Packets : public testing::TestWithParam<PacketCase> {};

TEST(Plan, SaysWhetherTheKernelNeedsPackets) {
  struct Case {
    std::vector<std::uint64_t> bytes;
    bool packets_only, has_packets;
  };
  constexpr std::uint64_t kLimit = 512u << 10;
  for (const Case& c : {Case{{kLimit}, true, true}, Case{{kLimit + 1}, false, false}, Case{{kLimit + 1, 1}, false, true},
                        Case{{1, kLimit + 1}, false, true}, Case{{kLimit + 1, kLimit + 1}, false, false}}) {
    std::vector<Message> messages;
    for (const std::uint64_t bytes : c.bytes) messages.push_back(make(Direction::send, 1, bytes));
    const Plan plan = prepare(messages, {16, kLimit, 16});
    EXPECT_EQ(plan.packets_only, c.packets_only);
    EXPECT_EQ(plan.has_packets, c.has_packets);
  }
}

TEST_P(Packets, HaveAKernelOfTheirOwnWhereBlocksBeginTogether) {
  std::vector<Message> messages;
  for (const std::uint64_t bytes : GetParam().sends) messages.push_back(make(Direction::send, 1, bytes));
  for (const std::uint64_t bytes : GetParam().receives) messages.push_back(make(Direction::receive, 2, bytes));
  const Plan plan = prepare(messages, {GetParam().blocks_at_most, 2u << 20, GetParam().cluster_blocks});
  EXPECT_EQ(plan.packets_only, GetParam().packets_only);
  EXPECT_EQ(plan.blocks, GetParam().blocks);
}
INSTANTIATE_TEST_SUITE_P(Table, Packets,
                         testing::Values(PacketCase{{1}, {}, 16, 16, true, 1}, PacketCase{{4 * Packet::kData}, {1}, 16, 16, true, 1},
                                         PacketCase{{4 * Packet::kData}, {4 * Packet::kData + 1}, 16, 16, true, 2},
                                         PacketCase{{Packet::kData, 8 * Packet::kData}, {}, 16, 16, true, 4},
                                         PacketCase{{1'000'000}, {}, 16, 16, true, 8}, PacketCase{{1u << 20}, {}, 16, 16, true, 16},
                                         PacketCase{{1u << 20}, {}, 16, 8, true, 8}, PacketCase{{1u << 20}, {}, 7, 16, true, 4},
                                         PacketCase{{16 * Packet::kData}, {1}, 16, 1, true, 1},
                                         PacketCase{{16 * Packet::kData + 1}, {1}, 16, 1, false, 2},
                                         PacketCase{{1}, {(2u << 20) + 1}, 16, 16, false, 1},
                                         PacketCase{std::vector<std::uint64_t>(kMaxPacketMessages, 1), {}, 16, 16, true, 8},
                                         PacketCase{std::vector<std::uint64_t>(kMaxPacketMessages, 1), {1}, 16, 16, false, 8}));

TEST(Prepare, WarpsBeginOneMessageAfterAnother) {
  std::vector<Message> messages{make(Direction::send, 0, 3 * Packet::kData), make(Direction::receive, 0, 1),
                                make(Direction::send, 1, 30 * Packet::kData), make(Direction::send, 2, 1), make(Direction::receive, 1, 1)};
  ASSERT_EQ(prepare(messages, {2, 2u << 20, 16}).blocks, 1u);
  const std::uint16_t first[] = {0, 0, 3, 1, 1};  // of 16 warps
  for (std::size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(messages[i].first_warp, first[i]) << i;
}

TEST(Prepare, BlocksGoToSendsByBytes) {
  std::vector<Message> messages{make(Direction::send, 0, 1u << 20), make(Direction::send, 1, 14u << 20), make(Direction::receive, 1, 5),
                                make(Direction::send, 2, 1u << 20)};
  ASSERT_EQ(prepare(messages, {16, 32u << 10}).blocks, 16u);
  EXPECT_EQ(messages[0].first_block, 0);
  EXPECT_EQ(messages[0].last_block, 1);
  EXPECT_EQ(messages[1].first_block, 1);
  EXPECT_EQ(messages[1].last_block, 15);
  EXPECT_EQ(messages[3].first_block, 15);
  EXPECT_EQ(messages[3].last_block, 16);
  EXPECT_EQ(messages[0].piece_bytes, 256u << 10);  // a quarter of a block's share
  EXPECT_EQ(messages[1].piece_bytes, 256u << 10);
}

TEST(Prepare, AShortShareIsOnePiece) {
  std::vector<Message> messages{make(Direction::send, 1, 512u << 10)};
  ASSERT_EQ(prepare(messages, {16, 64u << 10}).blocks, 8u);
  EXPECT_EQ(messages[0].piece_bytes, 64u << 10);
  messages[0].bytes = 100'000;
  ASSERT_EQ(prepare(messages, {16, 64u << 10}).blocks, 7u);
  EXPECT_EQ(messages[0].piece_bytes, 14u << 10);
}

}  // namespace
}  // namespace railweave::cuda
