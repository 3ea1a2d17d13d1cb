// Which blocks of an operation begin with its granted messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "planned_messages.hpp"

namespace railweave::cuda {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

// To each of the peers; to the rank itself, its peer 0, last.
std::vector<Message> sends_to(const std::vector<std::uint64_t>& bytes, std::uint64_t own) {
  std::vector<Message> messages;
  for (std::uint32_t i = 0; i < bytes.size(); ++i) messages.push_back(make_message(Direction::send, i + 1, bytes[i]));
  if (own == 0) return messages;
  for (const Direction way : {Direction::send, Direction::receive}) {
    messages.push_back(make_message(way, 0, own));
    messages.back().remote = messages.back().local;
  }
  return messages;
}

LaunchLimits limits_of(std::uint32_t world, bool knows_rates = true) {
  LaunchLimits limits{16, 1, world};
  limits.knows_rates = knows_rates;
  return limits;
}

// Who only receives, into memory that mates can write to, has one block, which grants all messages at its begin; where more are granted
// only when an earlier one is over, as many blocks as those are; and what comes through slots has as many as pull it.
TEST(GrantedBlocks, OneGrantsWhatAllMatesSend) {
  const auto blocks_of = [](std::uint32_t peers, std::uint32_t of_a_peer) {
    std::vector<Message> messages;
    for (std::uint32_t i = 0; i < peers * of_a_peer; ++i) messages.push_back(make_message(Direction::receive, 1 + i % peers, 16u << 20));
    return prepare(sized(messages, 64u << 10), limits_of(peers + 1)).blocks;
  };
  EXPECT_EQ(blocks_of(1, 1), 1u);
  EXPECT_EQ(blocks_of(3, 1), 1u);
  EXPECT_EQ(blocks_of(1, kGrants), 1u);
  EXPECT_EQ(blocks_of(1, kGrants + 3), 3u);
  EXPECT_EQ(blocks_of(3, kGrants + 2), 6u);
  std::vector<Message> through_slots(kGrants + 1, make_message(Direction::receive, 1, 16u << 20));
  through_slots[kGrants].named = {};
  EXPECT_EQ(prepare(sized(through_slots, 64u << 10), limits_of(2)).blocks, std::uint32_t{kSlots});
}

// Half of the blocks begin with the next rank, half with the one after it, and none with those that follow.
TEST(GrantedBlocks, BlocksTakeSeveralPeersInTurn) {
  std::vector<Message> messages;
  for (const std::uint32_t peer : {1, 2, 3}) messages.push_back(make_message(Direction::send, peer, 16u << 20));
  messages.insert(messages.begin() + 1, make_message(Direction::receive, 1, 16u << 20));
  messages.insert(messages.begin() + 2, make_message(Direction::send, 1, 48u << 20));
  ASSERT_EQ(prepare(sized(messages, 512u << 10), {16, 16, 4}).blocks, 24u);
  const std::pair<int, int> expected[] = {{0, 3}, {0, 0}, {3, 12}, {12, 24}, {0, 0}};  // of a peer's messages in proportion
  for (std::size_t i = 0; i < messages.size(); ++i)
    EXPECT_EQ(std::pair(int{messages[i].first_block}, int{messages[i].last_block}), expected[i]) << i;
  // An eighth of a block's share of the message, in whole KiB, of all in their turn; 256 KiB at most.
  for (const auto& [i, piece] : {std::pair{0, 256u}, {2, 256u}, {3, 171u}, {4, 171u}}) EXPECT_EQ(messages[i].piece_bytes, piece << 10) << i;
}

// With one peer, with little to send, where a message goes over other paths as well, and where each peer has links
// of its own, blocks are divided between all sends.
TEST(GrantedBlocks, BlocksAreDividedWhereTurnsBringNothing) {
  const auto blocks_of = [](std::vector<Message> messages, const LaunchLimits& limits) {
    prepare(sized(messages, 64u << 10), limits);
    std::vector<int> blocks;
    for (const Message& m : messages) blocks.push_back(m.last_block - m.first_block);
    return blocks;
  };
  const auto sends = [](std::vector<std::pair<std::uint32_t, std::uint64_t>> to, std::uint8_t paths = 0) {
    std::vector<Message> messages;
    for (const auto& [peer, bytes] : to) {
      messages.push_back(make_message(Direction::send, peer, bytes));
      messages.back().paths = paths;
    }
    return messages;
  };
  const std::vector turns{12, 12, 0}, divided{8, 8, 8};
  EXPECT_EQ(blocks_of(sends({{1, 16 * kMiB}, {1, 16 * kMiB}}), {16, 1, 2}), (std::vector{8, 8}));
  EXPECT_EQ(blocks_of(sends({{1, 4 * kMiB}, {2, 4 * kMiB}, {3, 4 * kMiB}}), {16, 1, 4}), turns);
  EXPECT_EQ(blocks_of(sends({{1, 4 * kMiB}, {2, 4 * kMiB}, {3, 4 * kMiB - 1}}), {16, 1, 4}), divided);
  EXPECT_EQ(blocks_of(sends({{1, 256 * kMiB}, {2, 16 * kMiB}, {3, 16 * kMiB}}), {16, 1, 4, false, 118}), turns);
  EXPECT_EQ(blocks_of(sends({{1, 256 * kMiB}, {2, 16 * kMiB}, {3, 16 * kMiB}}, 1u << kHostPath), {16, 1, 4, false, 118}),
            (std::vector{21, 1, 2}));
  const std::vector<Message> balanced = sends({{1, 64 * kMiB}, {2, 64 * kMiB}, {3, 64 * kMiB}});
  EXPECT_EQ(blocks_of(balanced, {16, 1, 4}), turns);
  EXPECT_EQ(blocks_of(balanced, {16, 1, 4, false, 0, 1000}), divided) << "an emulated mesh";
  EXPECT_EQ(blocks_of(sends({{1, 64 * kMiB}, {2, 64 * kMiB}, {3, 64 * kMiB}}, 1u << kFirstRelay), {16, 1, 4}), divided);
}

// What comes through slots or other paths, or waits for an earlier one's place, waits for blocks that push, and so do packets.
TEST(GrantedBlocks, RowsAreShortBesideWhatWantsBlocksSoon) {
  const auto piece = [](std::vector<Message> messages, const LaunchLimits& limits) {
    messages.insert(messages.begin(), make_message(Direction::send, 1, 64u << 20));
    prepare(sized(messages, 64u << 10), limits);
    const auto at = std::find_if(messages.begin(), messages.end(), [](const Message& m) { return m.bytes == 64u << 20; });
    return at->piece_bytes >> 10;
  };
  std::vector<Message> one{make_message(Direction::receive, 1, 1u << 20)};
  EXPECT_EQ(piece(one, {16, 1, 2}), 256u);
  one[0].named.buffer = kNoBuffer;
  EXPECT_EQ(piece(one, {16, 1, 2}), 64u);
  one[0] = make_message(Direction::receive, 2, 512u << 20);
  one[0].paths = 1u << kHostPath;
  EXPECT_EQ(piece(one, {16, 1, 3, false, 118}), 64u);
  const std::vector<Message> eight(kGrants, make_message(Direction::receive, 1, 1u << 20)), nine(kGrants + 1, eight[0]);
  EXPECT_EQ(piece(eight, {16, 1, 2}), 256u);
  EXPECT_EQ(piece(nine, {16, 1, 2}), 64u);
  const std::vector<Message> packets{make_message(Direction::send, 2, 100)};
  EXPECT_EQ(piece(packets, {16, 8, 3}), 256u) << "which have blocks of their own";
  EXPECT_EQ(piece(packets, {16, 1, 3, true}), 64u) << "beside rails they have not";
}

// What fills the link to one peer, where it is known what a block and a link carry; NCCL's kernel has 17.
TEST(GrantedBlocks, NoMoreThanFillALink) {
  const auto blocks = [](std::vector<Message> messages, LaunchLimits limits) { return prepare(sized(messages, kMiB), limits).blocks; };
  const std::vector<std::uint64_t> one{64 * kMiB}, three(3, 64 * kMiB);
  EXPECT_EQ(blocks(sends_to(one, 0), limits_of(2)), 12u);
  EXPECT_EQ(blocks(sends_to(one, 0), limits_of(4)), 11u) << "of NCCL's kernel, to one of three";
  EXPECT_EQ(blocks(sends_to(three, 0), limits_of(4)), 24u) << "several";
  EXPECT_EQ(blocks(sends_to(one, 0), limits_of(2, false)), 16u) << "of another machine";
  LaunchLimits fewer = limits_of(2);
  fewer.room = 7;
  EXPECT_EQ(blocks(sends_to(one, 0), fewer), 7u);
  LaunchLimits slow_blocks = limits_of(2);
  slow_blocks.block_rate /= 1.2;
  EXPECT_EQ(blocks(sends_to(one, 0), slow_blocks), 15u);
  LaunchLimits calibrated = limits_of(2);  // what calibrations of H100s say
  calibrated.pair_rate = 368.9e3, calibrated.block_rate = 40.6e3;
  EXPECT_EQ(blocks(sends_to(one, 0), calibrated), 12u);
  slow_blocks.block_rate = 1;
  EXPECT_EQ(blocks(sends_to(one, 0), slow_blocks), 16u) << "never more than there may be";
  LaunchLimits fast_blocks = limits_of(2);
  fast_blocks.block_rate = 10 * fast_blocks.pair_rate;
  EXPECT_EQ(blocks(sends_to(one, 0), fast_blocks), 1u);
  // Others want the rest: links of each pair's own, slots that are pulled, paths beside NVLink.
  LaunchLimits mesh = limits_of(2);
  mesh.link_MBps = 100'000;
  EXPECT_EQ(blocks(sends_to(one, 0), mesh), 16u);
  std::vector<Message> through_slots = sends_to(one, 0);
  through_slots.push_back(make_message(Direction::receive, 1, 64 * kMiB));
  through_slots.back().named.buffer = kNoBuffer;
  EXPECT_EQ(blocks(through_slots, limits_of(2)), 16u);
  std::vector<Message> over_host = sends_to({256 * kMiB}, 0);
  over_host[0].paths = 1u << kHostPath;
  LaunchLimits with_host = limits_of(2);
  with_host.host_share = 118;
  EXPECT_EQ(blocks(over_host, with_host), 16u);
}

// What a rank sends itself has the last blocks, by bytes, and no more than have moved it when the link to one peer has moved the rest.
TEST(GrantedBlocks, SomeBeginWithWhatStaysHere) {
  const auto blocks_of = [](std::vector<Message> messages, const LaunchLimits& limits) {
    prepare(sized(messages, kMiB), limits);
    std::vector<std::pair<int, int>> blocks;
    for (const Message& m : messages) {
      if (m.direction == Direction::send) blocks.emplace_back(m.first_block, m.last_block);
    }
    return blocks;
  };
  using Found = std::vector<std::pair<int, int>>;
  const std::vector<std::uint64_t> three(3, 64 * kMiB);
  EXPECT_EQ(blocks_of(sends_to(three, 64 * kMiB), limits_of(4)), (Found{{0, 12}, {12, 24}, {0, 0}, {24, 32}}));
  EXPECT_EQ(blocks_of(sends_to({64 * kMiB}, 64 * kMiB), limits_of(2, false)), (Found{{0, 16}, {16, 32}}));
  EXPECT_EQ(blocks_of(sends_to({64 * kMiB}, 64 * kMiB), limits_of(2)), (Found{{0, 12}, {12, 24}}));
  EXPECT_EQ(blocks_of(sends_to({60 * kMiB}, 4 * kMiB), limits_of(2)), (Found{{0, 12}, {12, 13}}));
  EXPECT_EQ(blocks_of(sends_to({}, 64 * kMiB), limits_of(2)), (Found{{0, 16}})) << "nothing else";
  // Little goes over links: by bytes.
  EXPECT_EQ(blocks_of(sends_to({4 * kMiB}, 60 * kMiB), limits_of(2)), (Found{{0, 2}, {2, 32}}));
  LaunchLimits few = limits_of(4);
  few.room = 4;
  EXPECT_EQ(blocks_of(sends_to(three, 64 * kMiB), few), (Found{{0, 1}, {1, 3}, {0, 0}, {3, 4}}));
  few.room = 1;
  EXPECT_EQ(blocks_of(sends_to(three, 64 * kMiB), few), (Found{{0, 1}, {0, 1}, {0, 1}, {0, 1}}));
}

// As much from each of several peers as to each, and that is much: these blocks may all begin with the first one.
TEST(GrantedBlocks, MayBeInStepWhereAllIsAlike) {
  const auto in_step = [](std::vector<Message> messages, const LaunchLimits& limits) {
    return prepare(sized(messages, kMiB), limits).in_step_blocks;
  };
  const auto with = [](const std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& from, std::uint64_t own = 0) {
    std::vector<Message> messages = sends_to(to, own);
    for (std::uint32_t i = 0; i < from.size(); ++i) messages.push_back(make_message(Direction::receive, i + 1, from[i]));
    return messages;
  };
  const std::vector<std::uint64_t> alike(3, 24 * kMiB), less(3, 23 * kMiB), one_more{24 * kMiB, 24 * kMiB, 24 * kMiB + 1};
  EXPECT_EQ(in_step(with(alike, alike), limits_of(4)), 24u);
  EXPECT_EQ(in_step(with(alike, alike, 24 * kMiB), limits_of(4)), 24u) << "beside blocks for what stays here";
  EXPECT_EQ(in_step(with(alike, alike, 100 * kMiB), limits_of(4)), 13u) << "of whatever size";
  EXPECT_EQ(in_step(with(less, less), limits_of(4)), 0u);
  EXPECT_EQ(in_step(with(less, less, 100 * kMiB), limits_of(4)), 0u) << "however much stays here";
  EXPECT_EQ(in_step(with(one_more, alike), limits_of(4)), 0u);
  EXPECT_EQ(in_step(with(alike, one_more), limits_of(4)), 0u);
  EXPECT_EQ(in_step(with(alike, {48 * kMiB, 24 * kMiB}), limits_of(4)), 0u);
  EXPECT_EQ(in_step(with(alike, {24 * kMiB, 24 * kMiB}), limits_of(4)), 0u) << "one sends nothing";
  EXPECT_EQ(in_step(with({64 * kMiB}, {64 * kMiB}), limits_of(2)), 0u) << "one peer";
  std::vector<Message> of_two = with(alike, {24 * kMiB, 24 * kMiB});
  of_two.push_back(make_message(Direction::receive, 2, 24 * kMiB));
  EXPECT_EQ(in_step(of_two, limits_of(4)), 0u) << "one sends twice and one nothing";
  std::vector<Message> of_another = with(alike, {24 * kMiB, 24 * kMiB});
  of_another.push_back(make_message(Direction::receive, 4, 24 * kMiB));
  EXPECT_EQ(in_step(of_another, limits_of(5)), 0u) << "one who gets nothing sends";
  std::vector<Message> through_slots = with(alike, alike);
  through_slots.back().named.buffer = kNoBuffer;
  EXPECT_EQ(in_step(through_slots, limits_of(4)), 0u) << "of slots a pair has eight";
  std::vector<Message> odd = with({25'500'001, 25'500'001}, {25'500'001, 25'500'001});
  EXPECT_EQ(prepare(sized(odd, kMiB), limits_of(3)).in_step_KiB, 25'500'001u / 1024) << "its size";
  LaunchLimits others = limits_of(4);
  others.beside_rails = true;
  EXPECT_EQ(in_step(with(alike, alike), others), 0u);
  others = limits_of(4);
  others.link_MBps = 100'000;
  EXPECT_EQ(in_step(with(alike, alike), others), 0u) << "links of each pair's own";
  std::vector<Message> beside_packets = with(alike, alike);
  beside_packets.push_back(make_message(Direction::send, 1, 1000));
  EXPECT_EQ(in_step(beside_packets, limits_of(4)), 0u);
}

TEST(GrantedBlocks, WaitsForGrantsAThirdOfWhatThePairTakes) {
  EXPECT_EQ(patience_ns(LaunchLimits{}.pair_rate), kPatience_ns);
  EXPECT_EQ(patience_ns(100e3), 218u);
  EXPECT_EQ(patience_ns(1e9), 1u) << "never none";
  EXPECT_EQ(patience_ns(1), 1000u) << "nor more than 1 ms for 64 MiB";
}

}  // namespace
}  // namespace railweave::cuda
