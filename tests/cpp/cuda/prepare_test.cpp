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
  prepare(messages, {});
  EXPECT_EQ(messages[0].path, Path::low_latency);
  EXPECT_EQ(messages[1].path, Path::granted);
}

TEST(Prepare, NumbersCountPerPairDirectionAndPath) {
  std::vector<Message> messages{make(Direction::send, 1, 10'000),    make(Direction::send, 2, 10), make(Direction::send, 1, 100'000),
                                make(Direction::receive, 1, 10),     make(Direction::send, 1, 1),  make(Direction::send, 1, 200'000),
                                make(Direction::receive, 1, 100'000)};
  prepare(messages, {});
  const std::uint32_t ordinals[] = {0, 0, 0, 0, 2, 1, 0};  // 10,000 bytes are two low-latency pieces
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
  prepare(messages, {});
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
  EXPECT_EQ(prepare(messages, {16, 32u << 10}), GetParam().blocks);
}
INSTANTIATE_TEST_SUITE_P(Table, Blocks,
                         testing::Values(BlocksCase{{1}, {}, 1}, BlocksCase{{8192}, {8193}, 2}, BlocksCase{{32768}, {32768}, 4},
                                         BlocksCase{{}, {1u << 30}, 1}, BlocksCase{{65537}, {65537}, 5}, BlocksCase{{1'000'000}, {}, 8},
                                         BlocksCase{{1u << 20}, {}, 16}, BlocksCase{{256u << 20}, {256u << 20}, 16}));

TEST(Prepare, BlocksGoToSendsByBytes) {
  std::vector<Message> messages{make(Direction::send, 0, 1u << 20), make(Direction::send, 1, 14u << 20), make(Direction::receive, 1, 5),
                                make(Direction::send, 2, 1u << 20)};
  ASSERT_EQ(prepare(messages, {16, 32u << 10}), 16u);
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
  ASSERT_EQ(prepare(messages, {}), 8u);
  EXPECT_EQ(messages[0].piece_bytes, 64u << 10);
  messages[0].bytes = 100'000;
  ASSERT_EQ(prepare(messages, {}), 7u);
  EXPECT_EQ(messages[0].piece_bytes, 14u << 10);
}

}  // namespace
}  // namespace railweave::cuda
