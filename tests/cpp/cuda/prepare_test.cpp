#include "prepare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "planned_messages.hpp"

namespace railweave::cuda {
namespace {

TEST(Prepare, SizeDecidesThePath) {
  std::vector<Message> messages{make_message(Direction::send, 1, 64u << 10), make_message(Direction::send, 1, (64u << 10) + 1)};
  prepare(sized(messages, 64u << 10), {16});
  EXPECT_EQ(messages[0].path, Path::packets);
  EXPECT_EQ(messages[1].path, Path::granted);
}

// Its communicator's limit decides, which its peer has as well, whatever else is in the operation: communicators of two ranks and of four
// have different ones.
TEST(Prepare, CommunicatorsOfAnOperationHaveTheirOwnLimits) {
  std::vector<Message> of_two{make_message(Direction::send, 1, 3u << 20)}, of_four{make_message(Direction::send, 2, 3u << 20, &hosts[1])};
  sized(of_two, 4u << 20);
  sized(of_four, 2u << 20);
  std::vector<Message> messages{of_four[0], of_two[0]};
  EXPECT_EQ(prepare(messages, {16, 8}).kernel, Kernel::apart);
  EXPECT_EQ(messages[0].peer, 1u);
  EXPECT_EQ(messages[0].path, Path::packets);
  EXPECT_EQ(messages[1].path, Path::granted);
}

TEST(Prepare, NumbersCountPerPairDirectionAndPath) {
  std::vector<Message> messages{make_message(Direction::send, 1, 10'000),    make_message(Direction::send, 2, 10),
                                make_message(Direction::send, 1, 100'000),   make_message(Direction::receive, 1, 10),
                                make_message(Direction::send, 1, 1),         make_message(Direction::send, 1, 200'000),
                                make_message(Direction::receive, 1, 100'000)};
  ASSERT_EQ(prepare(sized(messages, 64u << 10), {16, 16}).packet_messages, 4u);
  struct {
    std::uint64_t bytes;
    std::uint32_t ordinal;
    bool last, reports;
  } const wanted[] = {{10'000, 0, false, true},  // three packets
                      {10, 0, true, false},      {10, 0, true, false},      {1, 3, true, false},
                      {100'000, 0, false, true}, {200'000, 1, true, false}, {100'000, 0, true, false}};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].bytes, wanted[i].bytes) << i;
    EXPECT_EQ(messages[i].ordinal, wanted[i].ordinal) << i;
    EXPECT_EQ(messages[i].last_of_pair, wanted[i].last) << i;
    EXPECT_EQ(messages[i].reports, wanted[i].reports) << i;
  }
  EXPECT_EQ(messages[0].operation.completed, 4u);
  EXPECT_EQ(messages[4].operation.bytes_sent, 300'000u);
  EXPECT_EQ(messages[4].operation.bytes_received, 100'000u);
}

// Packets and granted messages may end at different times, so each has its own.
TEST(Prepare, OneReportForEachCommunicatorAndPath) {
  std::vector<Message> messages{make_message(Direction::send, 1, 1), make_message(Direction::send, 1, 1, &hosts[1]),
                                make_message(Direction::send, 2, 1, &hosts[1])};
  prepare(sized(messages, 1u << 20), {});
  EXPECT_TRUE(messages[0].reports);
  EXPECT_TRUE(messages[1].reports);
  EXPECT_FALSE(messages[2].reports);
}

// By its index among the messages that the same blocks move.
TEST(Prepare, AGrantWaitsForTheMessageWhosePlaceItTakes) {
  for (const std::uint32_t blocks : {1u, 16u}) {
    std::vector<Message> messages;
    for (std::uint32_t i = 0; i < kGrants + 2; ++i) {
      messages.push_back(make_message(Direction::receive, 1, 100'000));
      messages.push_back(make_message(Direction::receive, 2, 10));
    }
    const Plan plan = prepare(sized(messages, 64u << 10), {blocks, 16});
    EXPECT_EQ(plan.kernel, blocks == 1 ? Kernel::any : Kernel::apart);
    std::vector<std::int32_t> granted;
    for (std::size_t i = plan.packet_messages; i < messages.size(); ++i) {
      if (messages[i].path == Path::packets) continue;
      const bool waits = granted.size() >= kGrants;
      EXPECT_EQ(messages[i].grant_after, waits ? granted[granted.size() - kGrants] : kNone) << i;
      granted.push_back(static_cast<std::int32_t>(i - plan.packet_messages));
    }
  }
}

struct MostCase {
  std::uint32_t world, peers;
  std::uint64_t bytes;
  std::uint32_t blocks;
};
class Most : public testing::TestWithParam<MostCase> {};

TEST_P(Most, FollowsTheNumberOfPeers) {
  const auto [world, peers, bytes, blocks] = GetParam();
  std::vector<Message> messages;
  for (std::uint32_t peer = 0; peer < peers; ++peer) messages.push_back(make_message(Direction::send, peer, bytes));
  EXPECT_EQ(prepare(sized(messages, 64u << 10), {16, 1, world}).blocks, blocks);
}
// Small, or to few: as NCCL's 9 and 17. Four GPUs that send to all: 8 each. One peer of more: not above NCCL's 11.
INSTANTIATE_TEST_SUITE_P(Table, Most,
                         testing::Values(MostCase{2, 1, 256u << 20, 16}, MostCase{4, 1, 256u << 20, 16}, MostCase{4, 2, 256u << 20, 16},
                                         MostCase{4, 1, 128u << 20, 11}, MostCase{8, 1, 64u << 20, 11}, MostCase{8, 2, 1u << 20, 14},
                                         MostCase{4, 3, 256u << 20, 24}, MostCase{4, 3, 1u << 20, 24}, MostCase{4, 3, 256u << 10, 24},
                                         MostCase{2, 1, 127u << 10, 8}, MostCase{2, 1, 160u << 10, 10}, MostCase{8, 3, 256u << 20, 16},
                                         MostCase{8, 7, 256u << 20, 28}, MostCase{16, 15, 1u << 20, 30}, MostCase{3, 2, 256u << 20, 16}));

// Where channels carry 64 KiB of a peer at least.
struct ChannelCase {
  std::uint32_t world, peers;
  std::uint64_t bytes;
  std::uint32_t clustered, single;  // blocks, where clusters of eight begin and where single blocks do
};
class Channels : public testing::TestWithParam<ChannelCase> {};

TEST_P(Channels, AreAsManyBlocksAsThereMayBe) {
  const auto [world, peers, bytes, clustered, single] = GetParam();
  std::vector<Message> messages;
  for (std::uint32_t peer = 0; peer < peers; ++peer) {
    messages.push_back(make_message(Direction::send, peer, bytes));
    messages.push_back(make_message(Direction::receive, peer, bytes / 16 + 1));
  }
  LaunchLimits limits{16, 8, world};
  limits.channel_bytes = 64u << 10;
  limits.needed = 24;
  EXPECT_EQ(prepare(sized(messages, 4u << 20), limits).blocks, clustered);
  limits.cluster_blocks = 1;
  EXPECT_EQ(prepare(sized(messages, 4u << 20), limits).blocks, single);
}
// A power of two where there are clusters, or an even number: of 2, 3, 5, 7, 9 and 17 for 64 KiB to 1 MiB of a pair.
INSTANTIATE_TEST_SUITE_P(Table, Channels,
                         testing::Values(ChannelCase{2, 1, 16, 1, 1}, ChannelCase{2, 1, 64u << 10, 2, 2},
                                         ChannelCase{2, 1, 128u << 10, 2, 3}, ChannelCase{2, 1, 256u << 10, 4, 5},
                                         ChannelCase{2, 1, 384u << 10, 6, 7}, ChannelCase{2, 1, 512u << 10, 8, 9},
                                         ChannelCase{2, 1, 1u << 20, 16, 16}, ChannelCase{4, 1, 64u << 10, 4, 4},
                                         ChannelCase{4, 3, 64u << 10, 4, 4}, ChannelCase{4, 3, 256u << 10, 12, 13},
                                         ChannelCase{4, 3, 8u << 20, 24, 24}, ChannelCase{4, 3, 256u << 20, 24, 24}));

// As many CTAs as NCCL 2.28.9 has, a channel for each 8 KiB of what it takes for short; between two GPUs and four. From 256 KiB on between
// four as many as 2.32.3.
struct ShortCase {
  std::uint32_t world;
  std::vector<std::uint64_t> bytes;  // to each peer
  std::uint32_t blocks;              // where single ones begin
};
class ShortChannels : public testing::TestWithParam<ShortCase> {};

TEST_P(ShortChannels, AreAsManyBlocksAsThereMayBe) {
  std::vector<Message> messages;
  std::uint32_t peer = 0;
  for (const std::uint64_t bytes : GetParam().bytes) {
    messages.push_back(make_message(Direction::send, peer, bytes));
    messages.push_back(make_message(Direction::receive, peer++, bytes));
  }
  LaunchLimits limits{16, 1, GetParam().world};
  limits.channel_bytes = 8u << 10;
  limits.needed = 24;
  EXPECT_EQ(prepare(sized(messages, 4u << 20), limits).blocks, GetParam().blocks);
}
INSTANTIATE_TEST_SUITE_P(Table, ShortChannels,
                         testing::Values(ShortCase{4, {248u << 10, 16u << 10, 16u << 10}, 13},
                                         ShortCase{4, {256u << 10, 16u << 10, 16u << 10}, 9}, ShortCase{4, {256u << 10}, 7},
                                         ShortCase{4, {256u << 10, 256u << 10, 256u << 10}, 13},
                                         ShortCase{4, {1u << 20, 64u << 10, 64u << 10}, 24}, ShortCase{2, {16u << 10}, 2},
                                         ShortCase{2, {512u << 10}, 16}, ShortCase{2, {576u << 10}, 10}, ShortCase{2, {1u << 20}, 16}));

// Together they are more than what NCCL takes for short, each by itself is not.
TEST(Prepare, ShortMessagesOfAPeerHaveTheirChannelsBesideOthers) {
  for (const std::uint64_t other : {300u << 10, 400u << 10, 576u << 10}) {
    std::vector<Message> messages;
    for (const std::uint64_t bytes : {std::uint64_t{300u << 10}, other}) {
      messages.push_back(make_message(Direction::send, 1, bytes));
      messages.push_back(make_message(Direction::receive, 1, bytes));
    }
    LaunchLimits limits{16, 1, 2};
    limits.channel_bytes = 8u << 10;
    limits.needed = 24;
    EXPECT_EQ(prepare(sized(messages, 4u << 20), limits).blocks, 16u) << other;
  }
}

// Sent and received packets, granted sends; blocks in all, and those of packets.
struct ApartCase {
  std::vector<std::uint64_t> sends, receives;
  std::uint32_t cluster_blocks, blocks, packet_blocks;
};
class Apart : public testing::TestWithParam<ApartCase> {};

TEST_P(Apart, BothKindsEndAsEarlyAsTheyCan) {
  std::vector<Message> messages;
  for (const std::uint64_t bytes : GetParam().sends) messages.push_back(make_message(Direction::send, 1, bytes));
  for (const std::uint64_t bytes : GetParam().receives) messages.push_back(make_message(Direction::receive, 1, bytes));
  const Plan plan = prepare(sized(messages, 512u << 10), {16, GetParam().cluster_blocks, 2});
  ASSERT_EQ(plan.kernel, Kernel::apart);
  EXPECT_EQ(plan.blocks, GetParam().blocks);
  EXPECT_EQ(plan.packet_blocks, GetParam().packet_blocks);
  EXPECT_EQ(plan.cluster, 2 * plan.packet_blocks) << "the first cluster has blocks of both kinds";
  EXPECT_EQ(plan.blocks % plan.cluster, 0u) << "a grid is made of whole clusters";
  for (const Message& m : messages) EXPECT_TRUE(m.path == Path::packets || m.last_block <= plan.blocks - plan.packet_blocks);
}
INSTANTIATE_TEST_SUITE_P(Table, Apart,
                         testing::Values(ApartCase{{1u << 20}, {64u << 10}, 16, 16, 2},  // the hot pair's source, 1/16 back
                                         ApartCase{{64u << 10}, {1u << 20}, 16, 8, 4},   // and its destination
                                         ApartCase{{4u << 20, 256u << 10, 256u << 10}, {256u << 10, 256u << 10, 256u << 10}, 16, 16, 4},
                                         ApartCase{{4u << 20, 256u << 10, 256u << 10}, {256u << 10, 256u << 10, 256u << 10}, 2, 16, 1},
                                         ApartCase{{513u << 10, 1}, {}, 16, 16, 1}, ApartCase{{1}, {1u << 20}, 16, 2, 1}));

// Sent and received packets and granted messages, blocks in all, and those of packets in all and of a cluster, where three clusters begin.
struct SpreadCase {
  std::vector<std::uint64_t> sends, receives;
  std::uint32_t world, blocks, packet_blocks, a_cluster;
};
class Spread : public testing::TestWithParam<SpreadCase> {};

TEST_P(Spread, WhereHalfAClusterIsTooLittleForPackets) {
  const SpreadCase& expected = GetParam();
  std::vector<Message> messages;
  for (std::uint32_t peer = 1; peer < expected.world; ++peer) {
    for (const std::uint64_t bytes : expected.sends) messages.push_back(make_message(Direction::send, peer, bytes));
    for (const std::uint64_t bytes : expected.receives) messages.push_back(make_message(Direction::receive, peer, bytes));
  }
  LaunchLimits limits{16, 8, expected.world};
  limits.needed = 24;
  const Plan plan = prepare(sized(messages, 4u << 20), limits);
  ASSERT_EQ(plan.kernel, Kernel::apart);
  EXPECT_EQ(plan.blocks, expected.blocks);
  EXPECT_EQ(plan.packet_blocks, expected.packet_blocks);
  EXPECT_EQ(plan.packet_blocks_a_cluster, expected.a_cluster);
  EXPECT_LT(plan.packet_blocks_a_cluster, plan.cluster) << "one for granted messages";
  EXPECT_EQ(plan.blocks % plan.cluster, 0u);
  const bool spread = plan.packet_blocks > plan.packet_blocks_a_cluster;
  EXPECT_EQ(plan.ahead(), spread ? plan.blocks - plan.cluster : 0) << "each cluster that has packets is needed";
  for (const Message& m : messages) EXPECT_TRUE(m.path == Path::packets || m.last_block <= plan.blocks - plan.packet_blocks);
  limits.needed = 8;
  EXPECT_EQ(prepare(messages, limits).ahead(), 0u) << "no more clusters than surely begin";
}
INSTANTIATE_TEST_SUITE_P(Table, Spread,
                         testing::Values(SpreadCase{{8u << 20}, {4u << 20}, 2, 16, 6, 3},  // half as much comes back in packets
                                         SpreadCase{{4u << 20}, {8u << 20}, 2, 16, 6, 3},  // and there
                                         SpreadCase{{4u << 20, 5u << 20}, {4u << 20, 5u << 20}, 2, 16, 10, 5},  // both ways
                                         SpreadCase{{2u << 20, 5u << 20}, {2u << 20, 5u << 20}, 4, 24, 12, 4},  // to three peers
                                         SpreadCase{{16u << 20}, {1u << 20}, 2, 16, 2, 2},                      // little
                                         SpreadCase{{128u << 10}, {8u << 20}, 2, 8, 4, 4},                      //
                                         // 7 messages both ways and to one side, 3 to one side (docs/cuda-measured.md, "Many messages")
                                         SpreadCase{{4u << 20, 3u << 20, 25u << 20}, {4u << 20, 3u << 20, 25u << 20}, 2, 16, 6, 3},
                                         SpreadCase{{4u << 20, 3u << 20, 25u << 20}, {4u << 20, 4u << 20, 4u << 20, 4u << 20}, 2, 16, 8, 4},
                                         SpreadCase{{3u << 20, 13u << 20}, {4u << 20, 4u << 20}, 2, 16, 8, 4}));

// Packets of 4 MiB between all ranks beside a hot pair's 64 MiB, which hold up those of its source and destination; beside fewer
// than 32 MiB, or with one peer, they are not.
TEST(Prepare, PacketsBesideWhatFillsALinkHaveMoreBlocks) {
  struct {
    std::uint32_t world;
    std::uint64_t hot, others;
    std::uint32_t at_source, at_destination;
  } const cases[] = {{4, 64u << 20, 4u << 20, 9, 8}, {4, 16u << 20, 1u << 20, 6, 6}, {2, 64u << 20, 4u << 20, 2, 4}};
  for (const auto& each : cases) {
    for (const Direction hot : {Direction::send, Direction::receive}) {
      std::vector<Message> messages;
      for (std::uint32_t peer = 1; peer < each.world; ++peer) {
        for (const Direction way : {Direction::send, Direction::receive})
          messages.push_back(make_message(way, peer, peer == 1 && way == hot ? each.hot : each.others));
      }
      LaunchLimits limits{16, 8, each.world};
      limits.needed = 24;
      const Plan plan = prepare(sized(messages, 4u << 20), limits);
      ASSERT_EQ(plan.kernel, Kernel::apart);
      EXPECT_EQ(plan.packet_blocks, hot == Direction::send ? each.at_source : each.at_destination) << each.world << " ranks, " << each.hot;
    }
  }
}

// How blocks are divided goes by what was measured of the machine: beside links that are a third as fast packets need fewer, beside blocks
// that are half as fast more.
TEST(Prepare, DividesBlocksByMeasuredRates) {
  const auto blocks_of_packets = [](double pair_rate, double block_rate) {
    std::vector<Message> messages;
    for (const Direction way : {Direction::send, Direction::receive}) {
      messages.push_back(make_message(way, 1, 4u << 20));
      messages.push_back(make_message(way, 1, 5u << 20));
    }
    LaunchLimits limits{16, 1, 2};
    limits.needed = 40;
    limits.pair_rate = pair_rate;
    limits.block_rate = block_rate;
    const Plan plan = prepare(sized(messages, 4u << 20), limits);
    EXPECT_EQ(plan.kernel, Kernel::apart);
    return plan.packet_blocks;
  };
  const LaunchLimits usual;
  const std::uint32_t here = blocks_of_packets(usual.pair_rate, usual.block_rate);
  EXPECT_LT(blocks_of_packets(usual.pair_rate / 3, usual.block_rate), here);
  EXPECT_GT(blocks_of_packets(usual.pair_rate, usual.block_rate / 2), here);
}

// What blocks were seen to do holds of those as well that a calibration says write more: a rank of Zipf traffic of 16 MiB between four
// H200, whose packets need six blocks and not four, and a pair of 16 MiB with 1 MiB back, whose packets need no more than two.
TEST(Prepare, BlocksThatWriteFasterMoveNoMoreInPackets) {
  const auto blocks_of_packets = [](std::uint32_t world, std::vector<Message> messages, double block_rate) {
    LaunchLimits limits{16, 8, world};
    limits.needed = 24;
    limits.pair_rate = 369e3;
    limits.block_rate = block_rate;
    const Plan plan = prepare(sized(messages, 4u << 20), limits);
    EXPECT_EQ(plan.kernel, Kernel::apart);
    return plan.packet_blocks;
  };
  for (const double rate : {38.6e3, 43.4e3, 100e3}) {
    std::vector<Message> zipf;
    for (const auto& [peer, kib] : {std::pair{1u, 3449u}, {2u, 10348u}, {3u, 2587u}})
      zipf.push_back(make_message(Direction::send, peer, std::uint64_t{kib} << 10));
    for (const auto& [peer, kib] : {std::pair{1u, 4681u}, {2u, 7562u}, {3u, 4468u}})
      zipf.push_back(make_message(Direction::receive, peer, std::uint64_t{kib} << 10));
    EXPECT_EQ(blocks_of_packets(4, zipf, rate), 6u) << rate;
    const std::vector<Message> pair{make_message(Direction::send, 1, 16u << 20), make_message(Direction::receive, 1, 1u << 20)};
    EXPECT_EQ(blocks_of_packets(2, pair, rate), 2u) << rate;
  }
}

// Without clusters: single blocks, of which as many surely begin.
TEST(Prepare, SingleBlocksThatAllBeginDoAsWell) {
  struct {
    std::uint32_t needed;
    Kernel alone, beside;
    std::uint32_t alone_blocks, beside_blocks, packet_blocks;
  } const cases[] = {{1, Kernel::packets, Kernel::any, 1, 16, 0},
                     {2, Kernel::packets, Kernel::any, 2, 16, 0},
                     {8, Kernel::packets, Kernel::apart, 8, 8, 5},
                     {40, Kernel::packets, Kernel::apart, 16, 16, 10}};
  for (const auto& each : cases) {
    LaunchLimits limits{16, 1, 2};
    limits.needed = each.needed;
    std::vector<Message> alone{make_message(Direction::send, 1, 4u << 20), make_message(Direction::receive, 1, 4u << 20)};
    const Plan packets = prepare(sized(alone, 4u << 20), limits);
    EXPECT_EQ(packets.kernel, each.alone) << each.needed;
    EXPECT_EQ(packets.blocks, each.alone_blocks) << each.needed;
    EXPECT_EQ(packets.cluster, 1u);
    std::vector<Message> beside{alone};
    beside.push_back(make_message(Direction::send, 1, 5u << 20));
    beside.push_back(make_message(Direction::receive, 1, 5u << 20));
    const Plan apart = prepare(sized(beside, 4u << 20), limits);
    EXPECT_EQ(apart.kernel, each.beside) << each.needed;
    EXPECT_EQ(apart.blocks, each.beside_blocks) << each.needed;
    EXPECT_EQ(apart.packet_blocks, each.packet_blocks) << each.needed;
    EXPECT_EQ(apart.cluster, 1u);
    for (const Message& m : beside) EXPECT_TRUE(m.path == Path::packets || m.last_block <= apart.blocks - apart.packet_blocks);
  }
}

// Whatever comes together: what kernels rely on.
TEST(Prepare, EveryPlanHoldsTogether) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20'000; ++round) {
    constexpr std::uint64_t kLimit = 1u << 20;
    LaunchLimits limits{1 + static_cast<std::uint32_t>(random() % 32), 1u << random() % 4, 2 + static_cast<std::uint32_t>(random() % 7)};
    limits.channel_bytes = std::array{0u, 8u << 10, 64u << 10}[random() % 3];
    limits.beside_rails = random() % 8 == 0;
    limits.several_nodes = limits.beside_rails || random() % 4 == 0;
    limits.host_share = random() % 2 == 0 ? 118 : 0;
    limits.link_MBps = random() % 8 == 0 ? 1000 : 0;
    limits.room = random() % 2 == 0 ? ~0u : 1 + static_cast<std::uint32_t>(random() % 32);
    limits.needed = limits.cluster_blocks * (1 + static_cast<std::uint32_t>(random() % (limits.cluster_blocks == 1 ? 38 : 5)));
    limits.knows_rates = random() % 2 == 0;
    limits.pair_rate = std::array{1.0, 20e3, 366e3, 1e7}[random() % 4];
    limits.block_rate = std::array{1.0, 5e3, 38.6e3, 1e6}[random() % 4];
    const bool first_is_itself = random() % 2 == 0;
    std::vector<Message> messages;
    const std::size_t count = random() % 10 == 0 ? 1 + random() % 300 : 1 + random() % 12, peers = 1 + random() % 16;
    const int largest = 1 + static_cast<int>(random() % 28);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = 1 + random() % (std::uint64_t{1} << random() % largest);
      messages.push_back(
          make_message(random() % 2 == 0 ? Direction::send : Direction::receive, static_cast<std::uint32_t>(random() % peers), bytes));
      Message& m = messages.back();
      if (m.direction == Direction::receive && random() % 8 == 0) m.named = {};
      m.paths = static_cast<std::uint8_t>(random() % 8 | (random() % 4 == 0 ? kFetched : 0));
      m.relay_slots = 16;
      if (first_is_itself && m.peer == 0) m.remote = m.local, m.paths = 0;
    }
    const Plan plan = prepare(sized(messages, kLimit), limits);
    SCOPED_TRACE(round);
    const bool apart = plan.kernel == Kernel::apart || plan.kernel == Kernel::apart_indirect;
    ASSERT_GT(plan.blocks, 0u);
    ASSERT_LE(plan.blocks, std::max(limits.room, 1u));
    ASSERT_LE(plan.cluster, limits.cluster_blocks);
    ASSERT_EQ(plan.blocks % plan.cluster, 0u);
    const bool single = plan.cluster == 1 && (apart || plan.kernel == Kernel::packets);
    ASSERT_TRUE(!single || plan.blocks <= limits.needed) << "all begin";
    ASSERT_TRUE(plan.kernel != Kernel::packets || plan.blocks == plan.cluster || plan.blocks <= limits.needed) << "all clusters begin";
    std::uint32_t granted_blocks = plan.blocks;
    if (apart) {
      ASSERT_GT(plan.packet_blocks, 0u);
      ASSERT_EQ(plan.packet_blocks % plan.packet_blocks_a_cluster, 0u) << "the first ones of whole clusters";
      ASSERT_LE(plan.packet_blocks / plan.packet_blocks_a_cluster, plan.blocks / plan.cluster);
      ASSERT_TRUE(plan.packet_blocks_a_cluster < plan.cluster || plan.cluster == 1) << "each has one for granted messages";
      ASSERT_LT(plan.packet_blocks, plan.blocks);
      const bool spread = plan.packet_blocks > plan.packet_blocks_a_cluster;
      ASSERT_TRUE(!spread || plan.blocks <= limits.needed) << "all of these clusters begin";
      granted_blocks -= plan.packet_blocks;
    }
    const bool knows_paths = plan.kernel == Kernel::indirect || plan.kernel == Kernel::apart_indirect;
    std::vector<bool> has_home(granted_blocks);
    bool any_granted_send = false;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Message& m = messages[i];
      ASSERT_EQ(m.path, path_of(m.bytes, kLimit));
      ASSERT_TRUE(!apart || (m.path == Path::packets) == (i < plan.packet_messages));
      ASSERT_TRUE((knows_paths && m.path == Path::granted) || m.paths == 0);
      if (m.direction != Direction::send || m.path == Path::packets) continue;
      ASSERT_GT(m.piece_bytes, 0u);
      ASSERT_LE(m.last_block, granted_blocks);
      any_granted_send = true;
      if (m.last_block == 0) {
        ASSERT_EQ(m.paths, 0);
        ASSERT_EQ(m.host_blocks, 0);
        continue;
      }
      ASSERT_LT(m.first_block, m.last_block);
      ASSERT_LT(m.host_blocks, m.last_block - m.first_block);
      std::fill(has_home.begin() + m.first_block, has_home.begin() + m.last_block, true);
    }
    ASSERT_TRUE(!any_granted_send || std::count(has_home.begin(), has_home.end(), false) == 0) << "each block begins with one";
  }
}

struct SplitCase {
  std::vector<std::uint64_t> sends, receives;
  std::uint32_t send_warps, receive_warps;
  std::uint32_t blocks = 16;
};
class Split : public testing::TestWithParam<SplitCase> {};

TEST_P(Split, WhereAMessageWaitsForCreditsWarpsSendOrReceive) {
  std::vector<Message> messages;
  for (const std::uint64_t bytes : GetParam().sends) messages.push_back(make_message(Direction::send, 1, bytes));
  for (const std::uint64_t bytes : GetParam().receives) messages.push_back(make_message(Direction::receive, 1, bytes));
  const std::uint32_t blocks = GetParam().blocks;
  const Plan plan = prepare(sized(messages, 4u << 20), {blocks, std::min(blocks, 8u), 2, false, 0, 0, ~0u, blocks});
  ASSERT_EQ(plan.kernel, Kernel::packets);
  ASSERT_EQ(plan.blocks, blocks);
  EXPECT_EQ(plan.send_warps, GetParam().send_warps);
  EXPECT_EQ(plan.receive_warps, GetParam().receive_warps);
  for (const Message& m : messages) {
    const std::uint32_t of_direction = m.direction == Direction::send ? plan.send_warps : plan.receive_warps;
    EXPECT_LT(m.first_warp, plan.send_warps + plan.receive_warps == 0 ? blocks * kBundlePackets : of_direction);
  }
}
constexpr std::uint64_t kSlotted = std::uint64_t{kPacketSlots} * Packet::kData;  // which its slots hold
INSTANTIATE_TEST_SUITE_P(Table, Split,
                         testing::Values(SplitCase{{2u << 20}, {2u << 20}, 144, 112},      // balanced
                                         SplitCase{{kSlotted}, {kSlotted}, 0, 0},          // nothing waits
                                         SplitCase{{kSlotted + 1}, {kSlotted}, 144, 112},  //
                                         SplitCase{{2u << 20}, {128u << 10}, 208, 16},     // the hot pair's source, 1/16 back
                                         SplitCase{{128u << 10}, {2u << 20}, 16, 128},     // and its destination
                                         SplitCase{{2u << 20}, {8}, 208, 16},              // not even a warp of a block's
                                         SplitCase{{8}, {2u << 20}, 16, 128},              //
                                         SplitCase{{2u << 20}, {}, 208, 0}, SplitCase{{}, {2u << 20}, 0, 128},
                                         SplitCase{{1u << 20, 1u << 20, 1u << 20}, {1u << 20}, 192, 64},
                                         SplitCase{{2u << 20}, {2u << 20}, 72, 56, 8},  // fewer blocks
                                         SplitCase{{1u << 20, 1u << 20}, {}, 208, 0},   // two of a pair
                                         SplitCase{{}, {1u << 20, 1u << 20}, 0, 128}, SplitCase{{2u << 20}, {}, 128, 0, 8},
                                         SplitCase{{}, {2u << 20}, 0, 128, 8}));

// Which warps share a message: some of them, or all where they are too few, or where one message waits for another.
struct SharedCase {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> sends, receives;  // peer, bytes
  std::uint32_t blocks, send_warps, receive_warps;
  std::vector<std::uint32_t> shares;  // of sends, then receives
};
class Shared : public testing::TestWithParam<SharedCase> {};

TEST_P(Shared, WarpsHaveAMessageEachByPackets) {
  std::vector<Message> messages;
  for (const auto& [peer, bytes] : GetParam().sends) messages.push_back(make_message(Direction::send, peer, bytes));
  for (const auto& [peer, bytes] : GetParam().receives) messages.push_back(make_message(Direction::receive, peer, bytes));
  LaunchLimits limits{16, 8, 4};
  limits.needed = 40;
  const Plan plan = prepare(sized(messages, 4u << 20), limits);
  ASSERT_EQ(plan.kernel, Kernel::packets);
  ASSERT_EQ(plan.blocks, GetParam().blocks);
  ASSERT_TRUE(plan.trains.empty());
  EXPECT_EQ(plan.send_warps, GetParam().send_warps);
  EXPECT_EQ(plan.receive_warps, GetParam().receive_warps);
  std::vector<std::uint32_t> shares;
  for (const Message& m : messages) {
    shares.push_back(m.warps);
    const std::uint32_t all = m.direction == Direction::send ? plan.send_warps : plan.receive_warps;
    ASSERT_GT(m.warps, 0u);
    EXPECT_LT(m.first_warp, all);
    EXPECT_TRUE(m.warps == all || m.first_warp + m.warps <= all) << "all share it, or neighbours";
  }
  EXPECT_EQ(shares, GetParam().shares);
}
constexpr std::uint64_t kMiB = 1u << 20;
INSTANTIATE_TEST_SUITE_P(
    Table, Shared,
    testing::Values(
        // Balanced between four.
        SharedCase{{{1, kMiB}, {2, kMiB}, {3, kMiB}}, {{1, kMiB}, {2, kMiB}, {3, kMiB}}, 24, 192, 192, {64, 64, 64, 64, 64, 64}},
        // Incast: its destination has as many blocks as who sends to three.
        SharedCase{{}, {{1, 2 * kMiB}, {2, 2 * kMiB}, {3, 2 * kMiB}}, 24, 0, 240, {80, 80, 80}},
        SharedCase{{{1, 2 * kMiB}, {2, 2 * kMiB}, {3, 2 * kMiB}}, {}, 24, 312, 0, {104, 104, 104}},
        // A hot pair's source: others have a sixteenth.
        SharedCase{{{1, 2 * kMiB}, {2, kMiB / 8}, {3, kMiB / 8}}, {{1, kMiB / 8}}, 12, 180, 12, {159, 10, 11, 12}},
        // Of 1 MiB, and where they have half of it.
        SharedCase{{{1, kMiB}, {2, kMiB / 16}, {3, kMiB / 16}}, {{1, kMiB / 16}}, 24, 192, 24, {169, 11, 12, 24}},
        SharedCase{{{1, kMiB}, {2, kMiB / 2}, {3, kMiB / 2}}, {{1, kMiB / 2}}, 24, 192, 72, {96, 48, 48, 72}},
        SharedCase{{{1, 2 * kMiB}, {2, 8}}, {}, 12, 192, 0, {191, 1}},
        // Both to one.
        SharedCase{{{1, 2 * kMiB}, {1, 8}}, {}, 10, 160, 0, {160, 160}},
        // Two of a pair: the second one has to wait.
        SharedCase{{{1, kMiB}, {1, kMiB}}, {}, 10, 160, 0, {160, 160}}));

// Cycles between the begins of a block's warps: by blocks to one peer, half of what one beside short ones has to several.
TEST(Prepare, WarpsThatSendBeginOneAfterAnother) {
  const auto distance = [](std::uint32_t world, const std::vector<std::uint64_t>& sends) {
    std::vector<Message> messages;
    std::uint32_t peer = 0;
    for (const std::uint64_t bytes : sends) messages.push_back(make_message(Direction::send, ++peer, bytes));
    LaunchLimits limits{16, 8, world};
    limits.needed = 40;
    const Plan plan = prepare(sized(messages, 4u << 20), limits);
    EXPECT_EQ(plan.kernel, Kernel::packets);
    return std::pair{plan.blocks, plan.warp_distance};
  };
  EXPECT_EQ(distance(2, {2 * kMiB}), (std::pair{16u, 240u}));
  EXPECT_EQ(distance(4, {2 * kMiB}), (std::pair{10u, 150u}));
  EXPECT_EQ(distance(4, {kMiB, kMiB, kMiB}), (std::pair{24u, 150u * 13 / 16}));
  EXPECT_EQ(distance(4, {2 * kMiB, kMiB / 2, kMiB / 2}), (std::pair{24u, 300u * 8 / 16})) << "the others are too long to be short";
  EXPECT_EQ(distance(4, {4 * kMiB, kMiB / 4, kMiB / 4}), (std::pair{12u, 300u * 16 / 16})) << "of a block's warps all send";
  EXPECT_EQ(distance(4, {kMiB / 2}), (std::pair{10u, kWarpDistance})) << "nothing waits";
}

// More messages than lanes, or several of a pair that wait for each other's credits.
TEST(Prepare, PacketsOfAPairAreATrain) {
  std::vector<Message> messages;
  for (std::uint32_t i = 0; i < 20; ++i) {
    messages.push_back(make_message(Direction::send, 1 + i % 2, 8'000 + i));
    messages.push_back(make_message(Direction::receive, 1 + i % 2, 100 + i, &hosts[i % 2]));
  }
  const LaunchLimits limits{16, 8, 3, false, 0, 0, ~0u, 16};
  const Plan plan = prepare(sized(messages, 1u << 20), limits);
  EXPECT_EQ(plan.kernel, Kernel::packets);
  ASSERT_EQ(plan.trains.size(), 4u);
  std::uint32_t next = 0, reporters = 0;
  for (const Train& train : plan.trains) {
    ASSERT_EQ(train.first, next);
    ASSERT_EQ(train.count, 10u);
    next += train.count;
    std::uint32_t packets = 0;
    std::uint64_t bytes = 0;
    for (std::uint32_t i = train.first; i < next; ++i) {
      const Message& m = messages[i];
      EXPECT_EQ(m.local, messages[train.first].local);
      EXPECT_EQ(m.direction, messages[train.first].direction);
      EXPECT_EQ(m.ordinal, packets) << "in their order";
      EXPECT_TRUE(i == train.first || m.bytes > messages[i - 1].bytes) << "in their order";
      packets += static_cast<std::uint32_t>((m.bytes + Packet::kData - 1) / Packet::kData);
      bytes += m.bytes;
      EXPECT_EQ(m.reports, static_cast<std::int32_t>(i) == train.reporter);
      reporters += m.reports;
    }
    EXPECT_EQ(train.packets, packets);
    EXPECT_EQ(train.bytes, bytes);
  }
  EXPECT_EQ(reporters, 2u) << "one for each communicator";

  std::vector<Message> few{make_message(Direction::send, 1, 400'000), make_message(Direction::send, 1, 400'000),
                           make_message(Direction::receive, 1, 400'000)};
  EXPECT_TRUE(prepare(sized(few, 1u << 20), limits).trains.empty()) << "its slots hold both";
  few.push_back(make_message(Direction::send, 1, 400'000));
  EXPECT_EQ(prepare(sized(few, 1u << 20), limits).trains.size(), 2u);
  std::vector<Message> beside{few};
  beside.push_back(make_message(Direction::send, 1, 2u << 20));
  const Plan apart = prepare(sized(beside, 1u << 20), limits);
  EXPECT_EQ(apart.kernel, Kernel::apart);
  EXPECT_EQ(apart.trains.size(), 2u);
  EXPECT_EQ(apart.packet_messages, 4u);

  std::vector<Message> many;
  for (std::uint32_t i = 0; i < 2 * kMaxMessages; ++i) many.push_back(make_message(Direction::send, 1 + i % 3, 1));
  EXPECT_EQ(prepare(sized(many, 1u << 20), limits).kernel, Kernel::packets) << "also where they do not fit into a kernel's parameters";
  many.push_back(make_message(Direction::send, 1, 2u << 20));
  EXPECT_EQ(prepare(sized(many, 1u << 20), limits).kernel, Kernel::any);
  std::vector<Message> pairs;
  for (std::uint32_t i = 0; i < kMaxPacketMessages + 1; ++i) {
    pairs.push_back(make_message(i % 2 == 0 ? Direction::send : Direction::receive, i / 2 % 16, 1));
    pairs.back().local = reinterpret_cast<Port*>(sizeof(Port) * (i + 1));
  }
  EXPECT_EQ(prepare(sized(pairs, 1u << 20), limits).kernel, Kernel::any) << "more trains than lanes";
}

struct BlocksCase {
  std::vector<std::uint64_t> sends, receives;
  std::uint32_t blocks;
};
class Blocks : public testing::TestWithParam<BlocksCase> {};

TEST_P(Blocks, FollowTheBytes) {
  std::vector<Message> messages;
  for (const std::uint64_t bytes : GetParam().sends) messages.push_back(make_message(Direction::send, 1, bytes));
  for (const std::uint64_t bytes : GetParam().receives) messages.push_back(make_message(Direction::receive, 2, bytes));
  const Plan plan = prepare(sized(messages, 32u << 10), {16});
  EXPECT_EQ(plan.blocks, GetParam().blocks);
}
INSTANTIATE_TEST_SUITE_P(Table, Blocks,
                         testing::Values(BlocksCase{{1}, {}, 1}, BlocksCase{{32768}, {32768}, 1}, BlocksCase{{}, {1u << 30}, 1},
                                         BlocksCase{{65537}, {65537}, 5}, BlocksCase{{130'000}, {}, 8}, BlocksCase{{1u << 20}, {}, 16},
                                         BlocksCase{{256u << 20}, {256u << 20}, 16}));

// Receives into memory that has no name, beside sends; a block for each of the slots that they are pulled from.
TEST(Prepare, WhatComesThroughSlotsHasBlocksToPullIt) {
  struct Case {
    std::vector<std::uint64_t> sends, receives;
    Kernel kernel;
    std::uint32_t blocks;
  };
  for (const Case& c : {Case{{}, {256u << 20}, Kernel::granted, 8}, Case{{}, {3 * kSlotBytes}, Kernel::granted, 3},
                        Case{{}, {1u << 20, 1u << 20, 1u << 20}, Kernel::granted, 16}, Case{{1u << 20}, {256u << 20}, Kernel::granted, 16},
                        Case{{1}, {256u << 20}, Kernel::apart, 10}, Case{{1, 70'000}, {256u << 20}, Kernel::apart, 10}}) {
    std::vector<Message> messages;
    for (const std::uint64_t bytes : c.sends) messages.push_back(make_message(Direction::send, 1, bytes));
    for (const std::uint64_t bytes : c.receives) {
      messages.push_back(make_message(Direction::receive, 1, bytes));
      messages.back().named = {};
    }
    const Plan plan = prepare(sized(messages, 32u << 10), {16, 16});
    EXPECT_EQ(plan.kernel, c.kernel);
    EXPECT_EQ(plan.blocks, c.blocks) << c.sends.size() << " sends, " << c.receives.size() << " receives";
  }
}

struct PacketCase {
  std::vector<std::uint64_t> sends, receives;
  std::uint32_t blocks_at_most, cluster_blocks;
  Kernel kernel;
  std::uint32_t blocks;
};
class Packets : public testing::TestWithParam<PacketCase> {};

TEST(Plan, TheMessagesDecideTheKernel) {
  struct Case {
    std::vector<std::uint64_t> bytes;
    Kernel kernel;
  };
  constexpr std::uint64_t kLimit = 512u << 10;
  const std::vector<std::uint64_t> many_small(kMaxPacketMessages + 1, 1), many_large(kMaxMessages, kLimit + 1),
      more_large(kMaxMessages + 1, kLimit + 1);
  for (const Case& c : {Case{{kLimit}, Kernel::packets}, Case{{kLimit + 1}, Kernel::granted}, Case{{kLimit + 1, 1}, Kernel::apart},
                        Case{{1, kLimit + 1}, Kernel::apart}, Case{{kLimit + 1, kLimit + 1}, Kernel::granted},
                        Case{many_small, Kernel::packets}, Case{many_large, Kernel::granted}, Case{more_large, Kernel::any}}) {
    std::vector<Message> messages;
    for (const std::uint64_t bytes : c.bytes) messages.push_back(make_message(Direction::send, 1, bytes));
    EXPECT_EQ(prepare(sized(messages, kLimit), {16, 16}).kernel, c.kernel) << c.bytes.size() << " messages";
  }
}

TEST_P(Packets, HaveAKernelOfTheirOwnWhereBlocksBeginTogether) {
  std::vector<Message> messages;
  for (const std::uint64_t bytes : GetParam().sends) messages.push_back(make_message(Direction::send, 1, bytes));
  for (const std::uint64_t bytes : GetParam().receives) messages.push_back(make_message(Direction::receive, 2, bytes));
  LaunchLimits limits{GetParam().blocks_at_most, GetParam().cluster_blocks};
  limits.needed = limits.cluster_blocks;  // at least, as room_beside() says
  const Plan plan = prepare(sized(messages, 2u << 20), limits);
  EXPECT_EQ(plan.kernel, GetParam().kernel);
  EXPECT_EQ(plan.blocks, GetParam().blocks);
}
INSTANTIATE_TEST_SUITE_P(
    Table, Packets,
    testing::Values(PacketCase{{1}, {}, 16, 16, Kernel::packets, 1}, PacketCase{{4 * Packet::kData}, {1}, 16, 16, Kernel::packets, 1},
                    PacketCase{{4 * Packet::kData}, {4 * Packet::kData + 1}, 16, 16, Kernel::packets, 2},
                    PacketCase{{Packet::kData, 8 * Packet::kData}, {}, 16, 16, Kernel::packets, 4},
                    PacketCase{{130'000}, {}, 16, 16, Kernel::packets, 8}, PacketCase{{1u << 20}, {}, 16, 16, Kernel::packets, 16},
                    PacketCase{{1u << 20}, {}, 16, 8, Kernel::packets, 8}, PacketCase{{1u << 20}, {}, 7, 16, Kernel::packets, 6},
                    PacketCase{{16 * Packet::kData}, {1}, 16, 1, Kernel::packets, 1},
                    PacketCase{{16 * Packet::kData + 1}, {1}, 16, 1, Kernel::packets, 1},
                    PacketCase{{1}, {(2u << 20) + 1}, 16, 16, Kernel::apart, 2},
                    PacketCase{std::vector<std::uint64_t>(kMaxPacketMessages, 1), {}, 16, 16, Kernel::packets, 8},
                    PacketCase{std::vector<std::uint64_t>(kMaxPacketMessages, 1), {1}, 16, 16, Kernel::packets, 8}));

// They own their packets for good, so none may be missing: as many whole clusters as begin whatever else waits.
TEST(Prepare, ManyPacketsHaveAllClustersThatSurelyBegin) {
  struct {
    std::uint32_t cluster_blocks, needed, blocks, cluster;
  } const cases[] = {{8, 8, 8, 8}, {8, 16, 16, 8}, {8, 40, 16, 8}, {4, 12, 12, 4}, {4, 16, 16, 4}};
  for (const auto& each : cases) {
    std::vector<Message> messages{make_message(Direction::send, 1, 1u << 20)};
    LaunchLimits limits{16, each.cluster_blocks};
    limits.needed = each.needed;
    const Plan plan = prepare(sized(messages, 1u << 20), limits);
    ASSERT_EQ(plan.kernel, Kernel::packets);
    EXPECT_EQ(plan.blocks, each.blocks) << each.cluster_blocks << " " << each.needed;
    EXPECT_EQ(plan.cluster, each.cluster);
    EXPECT_EQ(plan.ahead(), each.blocks - each.cluster) << "may run while the last cluster has not begun";
  }
  std::vector<Message> messages{make_message(Direction::send, 1, 1u << 20), make_message(Direction::send, 1, 2u << 20)};
  EXPECT_EQ(prepare(sized(messages, 1u << 20), {16, 8}).ahead(), 0u) << "one cluster does everything";
}

// To so many of the other ranks: NCCL's kernel has 11, 18 and 25 CTAs for one to three of four, and 29 for seven of eight.
TEST(Prepare, PacketsToSeveralPeersHaveClustersOfWhichThereAreMost) {
  struct {
    std::uint32_t world, peers, needed, blocks, cluster;
  } const cases[] = {{2, 1, 40, 16, 8}, {4, 1, 40, 10, 2}, {4, 2, 40, 16, 8}, {4, 3, 40, 24, 8},
                     {8, 7, 40, 28, 4}, {4, 3, 16, 16, 8}, {4, 3, 8, 8, 8},   {4, 1, 8, 8, 8}};
  for (const auto& each : cases) {
    std::vector<Message> messages;
    for (std::uint32_t peer = 1; peer <= each.peers; ++peer) {
      messages.push_back(make_message(Direction::send, peer, 1u << 20));
      messages.push_back(make_message(Direction::receive, peer, 1u << 20));
    }
    LaunchLimits limits{16, 8, each.world};
    limits.needed = each.needed;
    const Plan plan = prepare(sized(messages, 4u << 20), limits);
    SCOPED_TRACE(std::to_string(each.peers) + " of " + std::to_string(each.world) + ", " + std::to_string(each.needed));
    ASSERT_EQ(plan.kernel, Kernel::packets);
    EXPECT_EQ(plan.blocks, each.blocks);
    EXPECT_EQ(plan.cluster, each.cluster);
    EXPECT_EQ(plan.ahead(), each.blocks - each.cluster);
    EXPECT_LE(plan.send_warps + plan.receive_warps, 16 * plan.blocks);
  }
}

TEST(Prepare, WarpsBeginOneMessageAfterAnother) {
  std::vector<Message> messages{make_message(Direction::send, 0, 3 * Packet::kData), make_message(Direction::receive, 0, 1),
                                make_message(Direction::send, 1, 30 * Packet::kData), make_message(Direction::send, 2, 1),
                                make_message(Direction::receive, 1, 1)};
  ASSERT_EQ(prepare(sized(messages, 2u << 20), {2, 16}).blocks, 1u);
  const std::uint16_t first[] = {0, 0, 3, 1, 1};  // of 16 warps
  for (std::size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(messages[i].first_warp, first[i]) << i;
}

TEST(Prepare, BlocksGoToSendsByBytes) {
  std::vector<Message> messages{make_message(Direction::send, 0, 512u << 10), make_message(Direction::send, 1, 7u << 20),
                                make_message(Direction::receive, 1, 50'000), make_message(Direction::send, 2, 512u << 10)};
  ASSERT_EQ(prepare(sized(messages, 32u << 10), {16, 1, 8}).blocks, 16u);
  EXPECT_EQ(messages[0].first_block, 0);
  EXPECT_EQ(messages[0].last_block, 1);
  EXPECT_EQ(messages[1].first_block, 1);
  EXPECT_EQ(messages[1].last_block, 15);
  EXPECT_EQ(messages[3].first_block, 15);
  EXPECT_EQ(messages[3].last_block, 16);
  EXPECT_EQ(messages[0].piece_bytes, 64u << 10);  // an eighth of a block's share
  EXPECT_EQ(messages[1].piece_bytes, 64u << 10);
}

TEST(Prepare, AShortShareIsOnePiece) {
  std::vector<Message> messages{make_message(Direction::send, 1, 512u << 10)};
  ASSERT_EQ(prepare(sized(messages, 64u << 10), {16}).blocks, 16u);
  EXPECT_EQ(messages[0].piece_bytes, 32u << 10);
  messages[0].bytes = 100'000;
  ASSERT_EQ(prepare(sized(messages, 64u << 10), {16}).blocks, 7u);
  EXPECT_EQ(messages[0].piece_bytes, 14u << 10);
}

}  // namespace
}  // namespace railweave::cuda
