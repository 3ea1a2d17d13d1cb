// Indirect paths: who may use them, every byte over each mix of them, and what refuses them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gpu_node.hpp"
#include "indirect_layout.hpp"
#include "indirect_prepare.hpp"
#include "planned_messages.hpp"
#include "waiting.hpp"

namespace railweave::cuda {
namespace {

constexpr std::uint8_t kOverHost = 1u << kHostPath, kOverTwoRelays = 3u << kFirstRelay;
// Half of the bytes: the shortest tail, so that small messages do.
constexpr std::uint32_t kHalf = 500;
constexpr std::uint64_t kMiB = 1u << 20;

// --- Who may

Message make(Direction direction, std::uint32_t peer, std::uint64_t bytes) {
  Message m = make_message(direction, peer, bytes);
  m.paths = kOverHost | kOverTwoRelays;
  m.relay_slots = 4;
  return m;
}

TEST(PrepareIndirect, PathsByMessagesAndLimits) {
  constexpr Direction kSend = Direction::send, kReceive = Direction::receive;
  // The tail of a path with 118 thousandths is 33 pieces, and a message has to be three times as long.
  constexpr std::uint64_t kEnough = std::uint64_t{3} * 33 * kIndirectBytes;
  struct Case {
    const char* what;
    std::vector<std::tuple<Direction, std::uint32_t, std::uint64_t>> messages;
    std::uint32_t host_share, link_MBps;
    std::vector<unsigned> paths;  // by message
    Kernel kernel;
  };
  const unsigned none = 0, over_relays = kOverTwoRelays, both = kOverHost | kOverTwoRelays;
  for (const Case& c : std::vector<Case>{
           {"a lone send", {{kSend, 1, kEnough}}, 118, 0, {both}, Kernel::indirect},
           {"a lone receive", {{kReceive, 1, kEnough}}, 118, 0, {both}, Kernel::indirect},
           {"too short for the host", {{kSend, 1, kEnough - 1}}, 118, 0, {over_relays}, Kernel::indirect},
           {"no share is known", {{kSend, 1, kEnough}}, 0, 0, {over_relays}, Kernel::indirect},
           {"just long enough for relays", {{kSend, 1, 2 * kMiB}}, 118, 0, {over_relays}, Kernel::indirect},
           {"too short for relays", {{kSend, 1, 2 * kMiB - 1}}, 118, 0, {none}, Kernel::granted},
           {"too short, links paced", {{kSend, 1, kMiB}}, 118, 1000, {none}, Kernel::indirect},
           {"background of a quarter", {{kSend, 1, 6 * kEnough}, {kSend, 2, 2 * kEnough}}, 118, 0, {both, none}, Kernel::indirect},
           {"background of a third", {{kSend, 1, 6 * kEnough}, {kSend, 2, 2 * kEnough + 8}}, 118, 0, {over_relays, none}, Kernel::indirect},
           {"just long enough beside others", {{kSend, 1, 4 * kEnough}, {kSend, 2, 70'000}}, 118, 0, {both, none}, Kernel::indirect},
           {"packets to another", {{kSend, 1, kEnough}, {kSend, 2, 100}}, 118, 0, {none, both}, Kernel::apart_indirect},
           {"too short beside others",
            {{kReceive, 1, 4 * kEnough - 1}, {kReceive, 2, 70'000}},
            118,
            0,
            {over_relays, none},
            Kernel::indirect},
           {"background of a half", {{kSend, 1, 2 * kEnough}, {kSend, 2, kEnough}}, 118, 0, {over_relays, none}, Kernel::indirect},
           {"of more than a half", {{kSend, 1, 2 * kEnough}, {kSend, 2, kEnough + 1}}, 118, 0, {none, none}, Kernel::granted},
           {"two to a peer",
            {{kSend, 1, kEnough}, {kSend, 1, kEnough}, {kSend, 2, kEnough}},
            118,
            0,
            {over_relays, over_relays, none},
            Kernel::indirect},
           {"balanced", {{kSend, 1, kEnough}, {kSend, 2, kEnough}, {kSend, 3, kEnough}}, 118, 0, {none, none, none}, Kernel::granted},
           {"incast",
            {{kReceive, 1, kEnough}, {kReceive, 2, kEnough}, {kReceive, 3, kEnough}},
            118,
            0,
            {none, none, none},
            Kernel::granted},
           {"a quarter comes back", {{kSend, 1, 4 * kEnough}, {kReceive, 1, kEnough}}, 118, 0, {both, over_relays}, Kernel::indirect},
           {"more comes back", {{kSend, 1, 4 * kEnough}, {kReceive, 1, kEnough + 1}}, 118, 0, {over_relays, over_relays}, Kernel::indirect},
           {"as much comes back", {{kSend, 1, kEnough}, {kReceive, 1, kEnough}}, 118, 0, {over_relays, over_relays}, Kernel::indirect},
           {"much both ways", {{kSend, 1, 5 * kEnough}, {kReceive, 1, 5 * kEnough}}, 118, 0, {both, both}, Kernel::indirect},
           {"not enough both ways",
            {{kSend, 1, 5 * kEnough}, {kReceive, 1, 5 * kEnough - 1}},
            118,
            0,
            {both, over_relays},
            Kernel::indirect},
           {"in a ring", {{kSend, 1, 5 * kEnough}, {kReceive, 2, 5 * kEnough}}, 118, 0, {both, both}, Kernel::indirect},
           {"packets beside it", {{kSend, 1, 100}, {kSend, 1, kEnough}}, 118, 0, {none, both}, Kernel::apart_indirect},
           {"of a size for relays", {{kSend, 1, 64u << 10}, {kSend, 1, 70'000}}, 118, 1000, {none, none}, Kernel::apart_indirect},
           {"packets alone", {{kSend, 2, 100}}, 118, 1000, {none}, Kernel::packets},
       }) {
    SCOPED_TRACE(c.what);
    std::vector<Message> messages;
    for (const auto& [direction, peer, bytes] : c.messages) messages.push_back(make(direction, peer, bytes));
    EXPECT_EQ(prepare(sized(messages, 64u << 10), {16, 16, 4, false, c.host_share, c.link_MBps}).kernel, c.kernel);
    for (std::size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(messages[i].paths, c.paths[i]) << "message " << i;
  }
}

// Kernels that do not know the paths are never told of them: their grants name none.
TEST(PrepareIndirect, NotBesideRailsAndNotInLongOperations) {
  std::vector<Message> beside{make(Direction::receive, 1, 512 * kMiB)};
  EXPECT_EQ(prepare(sized(beside, 0), {16, 1, 4, true, 118, 0}).kernel, Kernel::granted);
  EXPECT_EQ(beside[0].paths, 0);
  std::vector<Message> many(kMaxMessages + 1, make(Direction::receive, 1, 512 * kMiB));
  EXPECT_EQ(prepare(sized(many, 0), {16, 1, 4, false, 118, 1000}).kernel, Kernel::any);
  for (const Message& m : many) EXPECT_EQ(m.paths, 0);
}

// The share of the blocks is the share of the bytes; with few blocks none is left for the host.
TEST(PrepareIndirect, BlocksForTheHost) {
  struct Case {
    std::uint32_t blocks, share, host_blocks, tail;
  };
  for (const Case& c : {Case{16, 118, 2, 33}, Case{16, 180, 3, 22}, Case{16, 30, 0, 133}, Case{8, 118, 1, 33}, Case{4, 500, 1, 8},
                        Case{3, 500, 0, 8}, Case{1, 118, 0, 33}}) {
    std::vector<Message> messages{make(Direction::send, 1, 256 * kMiB)};
    messages[0].paths = kOverHost;
    ASSERT_EQ(prepare(sized(messages, 0), {c.blocks, 1, 4, false, c.share, 0}).kernel, Kernel::indirect);
    EXPECT_EQ(messages[0].host_blocks, c.host_blocks) << c.blocks << " blocks, " << c.share;
    EXPECT_EQ(messages[0].host_tail, c.tail);
    EXPECT_EQ(messages[0].piece_bytes, kIndirectBytes);
    // As much comes: at most two.
    messages.push_back(make(Direction::receive, 1, 512 * kMiB));
    messages[0].bytes = 512 * kMiB;
    for (Message& m : messages) m.paths = kOverHost;
    prepare(sized(messages, 0), {c.blocks, 1, 4, false, c.share, 0});
    EXPECT_EQ(messages[0].host_blocks, c.share < 100 ? 0 : std::min(c.host_blocks, 2u)) << c.blocks << " blocks both ways, " << c.share;
  }
}

// Its destination has blocks enough to pull: one for a plain receive, eight more where the straight path is slots.
TEST(PrepareIndirect, BlocksThatPull) {
  for (const auto& [paths, mapped, in_slots] :
       {std::tuple{0u, 1u, 8u}, std::tuple{unsigned{kOverHost}, 4u, 12u}, std::tuple{unsigned{kOverTwoRelays}, 16u, 16u}}) {
    std::vector<Message> messages{make(Direction::receive, 1, 256 * kMiB)};
    messages[0].paths = static_cast<std::uint8_t>(paths);
    EXPECT_EQ(prepare(sized(messages, 0), {16, 1, 4, false, 118, 0}).blocks, mapped);
    messages[0].paths = static_cast<std::uint8_t>(paths);
    messages[0].named = {};
    EXPECT_EQ(prepare(sized(messages, 0), {16, 1, 4, false, 118, 0}).blocks, in_slots);
  }
}

// As many pull what comes over the host as that brings, by the rates that were measured.
TEST(PrepareIndirect, BlocksThatPullKeepUpWithTheHost) {
  struct Case {
    std::uint32_t share;
    double pair_rate, block_rate;
    std::uint32_t blocks;
  };
  for (const Case& c : {Case{118, 366e3, 38.6e3, 4}, Case{63, 366e3, 38.6e3, 2}, Case{118, 235e3, 38.6e3, 3}, Case{118, 366e3, 19.3e3, 8},
                        Case{500, 900e3, 10e3, 16}}) {
    LaunchLimits limits{16, 1, 4, false, c.share, 0};
    limits.pair_rate = c.pair_rate;
    limits.block_rate = c.block_rate;
    std::vector<Message> messages{make(Direction::receive, 1, 1024 * kMiB)};
    messages[0].paths = kOverHost;
    EXPECT_EQ(prepare(sized(messages, 0), limits).blocks, c.blocks) << c.share << " of " << c.pair_rate << ", blocks " << c.block_rate;
  }
}

// --- Where

// In each relay's memory, and in each destination's, every pair has slots of its own, and all fit.
TEST(IndirectLayout, NoTwoPairsShareASlot) {
  for (std::uint32_t mates = 2; mates <= 9; ++mates) {
    const std::uint64_t bytes = relay_slots(mates) * kIndirectBytes;
    EXPECT_EQ(relay_slots(mates) == 0, mates < 3 || mates > 8);
    EXPECT_TRUE(relay_slots(mates) == 0 || std::has_single_bit(relay_slots(mates)));
    EXPECT_LE(lent_bytes(mates) + mates * sizeof(Port), 64 * kMiB);
    for (std::uint32_t rank = 0; rank < mates; ++rank) {
      std::set<std::uint64_t> lent, over_host;
      for (std::uint32_t source = 0; source < mates; ++source) {
        if (source != rank) {
          EXPECT_TRUE(over_host.insert(host_offset(source, rank)).second);
          EXPECT_EQ(host_offset(source, rank) % kHostBytes, 0u);
        }
        for (std::uint32_t destination = 0; destination < mates && bytes != 0; ++destination) {
          if (source == destination || source == rank || destination == rank) continue;
          EXPECT_TRUE(lent.insert(lent_offset(mates, rank, source, destination)).second);
          EXPECT_EQ(lent_offset(mates, rank, source, destination) % bytes, 0u);
        }
      }
      EXPECT_EQ(*over_host.rbegin() + kHostBytes, host_bytes(mates));
      EXPECT_EQ(lent.empty() ? 0 : *lent.rbegin() + bytes, lent_bytes(mates));
    }
  }
}

// --- Every byte

// Pieces that went over each path, from a rank to another.
std::uint64_t pieces(Node& node, std::uint32_t source, std::uint32_t destination, std::uint32_t path) {
  const IndirectPath& at_source = node.port(source, destination).indirect[path];
  const IndirectPath& at_destination = node.port(destination, source).indirect[path];
  EXPECT_EQ(at_source.taken, at_destination.pulled);
  return at_source.taken;
}

class Mixes : public testing::TestWithParam<std::tuple<std::uint32_t, bool, bool, int, bool>> {
 protected:
  void set_up(Node& node) {
    bool one_at_a_time, mapped, host_path;
    int relay_slots;
    std::tie(node.blocks_at_most, one_at_a_time, mapped, relay_slots, host_path) = GetParam();
    node.one_at_a_time = one_at_a_time;
    node.mapped = mapped;
    node.delays = 100;
    node.low_latency_bytes = 1000;
    node.host_share = host_path ? kHalf : 0;
    node.add_paths(host_path, static_cast<std::uint8_t>(relay_slots));
  }
};

// Messages both ways and beside each other, several of a pair, none aligned, in operations one after another.
TEST_P(Mixes, EveryByteArrives) {
  std::mt19937_64 random(21);
  Node node(4);
  set_up(node);
  // What goes over the host has three tails of 2 MiB.
  const std::uint64_t large = node.host_share != 0 ? 6 * kMiB : kMiB;
  Program program(4);
  for (std::size_t op = 0; op < 2; ++op) {
    program.add(random, 0, op, 1, op, large + kMiB + random() % 1000);
    program.add(random, 1, op, 0, op, large + random() % 1000);
    program.add(random, 2, op, 3, op, large + 2 * kMiB + random() % 1000);
    program.add(random, 2, op, 3, op, kMiB + random() % 1000);
    program.add(random, 3, op, 0, op, 5000 + random() % 100'000);
  }
  program.run(node);
  program.check_moved(node);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(node.host(rank).error, 0u);
    for (const PartState& part : node.state(rank).parts) EXPECT_EQ(part.left, 0u);
    for (const MessageState& state : node.state(rank).messages) EXPECT_EQ(state.claimed, 0u);
  }
}
INSTANTIATE_TEST_SUITE_P(Paths, Mixes,
                         testing::Values(std::tuple{8u, false, true, 2, true}, std::tuple{8u, false, true, 2, false},
                                         std::tuple{8u, false, true, 0, true}, std::tuple{8u, false, false, 2, true},
                                         std::tuple{8u, true, true, 2, true}, std::tuple{8u, true, false, 1, false},
                                         std::tuple{1u, false, true, 2, true}));

// Links that carry so little that each piece waits for its turn, also those to a relay that sends itself.
TEST(Indirect, PacedLinks) {
  std::mt19937_64 random(22);
  for (const bool one_at_a_time : {false, true}) {
    Node node(3);
    node.blocks_at_most = 4;
    node.one_at_a_time = one_at_a_time;
    node.link_MBps = 4000;
    node.add_paths(false, 2);
    Program program(3);
    for (std::size_t op = 0; op < 2; ++op) {
      program.add(random, 0, op, 1, op, 3 * kMiB + 5);
      program.add(random, 2, op, 1, op, 2 * kMiB + 7);
      program.add(random, 1, op, 2, op, 100'000);
    }
    program.run(node);
    for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(node.host(rank).error, 0u);
  }
}

// A link of an emulated mesh carries no more than its rate, whoever moves bytes over it.
TEST(Indirect, APacedLinkCarriesItsRate) {
  std::mt19937_64 random(23);
  Node node(2);
  node.blocks_at_most = 4;
  node.link_MBps = 1000;
  Program program(2);
  program.add(random, 0, 0, 1, 0, 20 * kMiB);
  const auto begin = std::chrono::steady_clock::now();
  program.run(node);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // All but the last pieces, which are under way when their link time is counted, within 1 GB/s. A busy machine only takes longer.
  EXPECT_GE(took.count(), (20.0 - 1.25) * kMiB / 1e9);
}

// Clocks of two GPUs that differ by an hour stop nobody.
TEST(Indirect, AClockThatIsFarAheadIsNotWaitedFor) {
  std::mt19937_64 random(24);
  Node node(2);
  node.blocks_at_most = 2;
  node.link_MBps = 100'000;
  node.port(0, 1).link_free = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) + 3600'000'000'000;
  Program program(2);
  program.add(random, 0, 0, 1, 0, 2 * kMiB);
  program.run(node);
}

// Where the last block alone is resident, it is known what goes which way: all of the message but its tail.
class LastBlock : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 8 * kMiB, kPieces = kBytes / kIndirectBytes, kHostTail = 8, kRelayTail = 1;
  void exchange(Node& node, std::uint32_t world = 4) {
    std::mt19937_64 random(25);
    node.one_at_a_time = node.last_first = true;
    Program program(world);
    program.add(random, 0, 0, 1, 0, kBytes);
    program.run(node);
  }
};

TEST_F(LastBlock, SendsOverTheHostUntilTheTail) {
  Node node(4);
  node.blocks_at_most = 8;
  node.host_share = kHalf;
  node.add_paths(true, 2);
  IndirectSent sent{};
  node.count_at(0, 1, sent);
  exchange(node);
  EXPECT_EQ(pieces(node, 0, 1, kHostPath), kPieces - kHostTail);
  EXPECT_EQ(sent.over_host, (kPieces - kHostTail) * kIndirectBytes);
  EXPECT_EQ(pieces(node, 0, 1, kFirstRelay), 0u);
}

// Block i takes path i modulo paths, the straight one first.
TEST_F(LastBlock, SendsOverItsRelayUntilTheTail) {
  for (const auto& [blocks, path] : {std::pair{7u, kHostPath}, std::pair{8u, kFirstRelay}, std::pair{6u, kFirstRelay + 1}}) {
    Node node(4);
    node.blocks_at_most = blocks;
    node.add_paths(false, 2);
    IndirectSent sent{};
    node.count_at(0, 1, sent);
    exchange(node);
    EXPECT_EQ(sent.over_relays, path == kHostPath ? 0 : (kPieces - kRelayTail) * kIndirectBytes);
    for (const std::uint32_t relay : {kFirstRelay, kFirstRelay + 1})
      EXPECT_EQ(pieces(node, 0, 1, relay), relay == path ? kPieces - kRelayTail : 0) << blocks << " blocks, path " << relay;
  }
}

// What one end has not mapped is used by neither.
TEST_F(LastBlock, LeavesOutWhatOneEndHasNotMapped) {
  for (const std::uint32_t refused_by : {0u, 1u}) {
    Node over_host(4), over_relays(4);
    over_host.blocks_at_most = over_relays.blocks_at_most = 8;
    over_host.host_share = kHalf;
    over_host.add_paths(true, 2);
    over_host.refuse_path(refused_by, 1 - refused_by, kHostPath);
    exchange(over_host);
    EXPECT_EQ(pieces(over_host, 0, 1, kHostPath), 0u);
    over_relays.add_paths(false, 2);
    over_relays.refuse_path(refused_by, 1 - refused_by, kFirstRelay);
    exchange(over_relays);  // two paths are left, and the last block has the relay's
    EXPECT_EQ(pieces(over_relays, 0, 1, kFirstRelay), 0u);
    EXPECT_EQ(pieces(over_relays, 0, 1, kFirstRelay + 1), kPieces - kRelayTail);
  }
}

// Messages in packets beside it, at the destination alone or at both ends: in blocks of their own, while others send or pull.
TEST_F(LastBlock, SendsOverTheHostBesidePackets) {
  for (const std::uint32_t from : {0u, 2u}) {
    Node node(3);
    node.blocks_at_most = 8;
    node.host_share = kHalf;
    node.low_latency_bytes = 1000;
    node.add_paths(true, 1);
    std::mt19937_64 random(26);
    node.one_at_a_time = node.last_first = true;
    Program program(3);
    program.add(random, 0, 0, 1, 0, kBytes);
    for (std::uint32_t i = 0; i < 40; ++i) program.add(random, from, 0, 1, 0, 500 + i);  // in a train
    program.run(node);
    program.check_moved(node);
    EXPECT_EQ(node.kernels(0).front(), from == 0 ? Kernel::apart_indirect : Kernel::indirect);
    EXPECT_EQ(node.kernels(1).front(), Kernel::apart_indirect);
    const std::uint64_t over_host = pieces(node, 0, 1, kHostPath);
    EXPECT_GT(over_host, 0u) << from;
    EXPECT_LE(over_host, kPieces - kHostTail);
  }
}

// The destination's kernel is one that knows no paths.
TEST(Indirect, ADestinationThatKnowsNoneNamesNone) {
  std::mt19937_64 random(26);
  Node node(3);
  node.blocks_at_most = 8;
  node.clusters_of = {8, 1, 8};
  node.host_share = kHalf;
  node.low_latency_bytes = 1000;
  node.add_paths(true, 1);
  Program program(3);
  program.add(random, 0, 0, 1, 0, 8 * kMiB);
  program.add(random, 2, 0, 1, 0, 500);
  program.run(node);
  EXPECT_EQ(node.kernels(0).front(), Kernel::indirect);
  EXPECT_EQ(node.kernels(1).front(), Kernel::any);
  for (std::uint32_t path = 0; path < kIndirectPaths; ++path) EXPECT_EQ(pieces(node, 0, 1, path), 0u);
}

// --- What goes wrong

TEST(Indirect, ARecordOutsideItsMessageIsRefused) {
  Node node(2);
  node.host_share = kHalf;
  node.add_paths(true, 0);
  Bytes came(8 * kMiB);
  IndirectPath& path = node.port(0, 1).indirect[kHostPath];
  path.records[0] = {1, came.size() - 8, 16, 0};
  path.filled[0] = 1;
  const std::jthread watching = node.watch(0);
  node.run(0, {{Direction::receive, 1, came.data(), came.size()}});
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::bad_record));
  EXPECT_EQ(came, Bytes(came.size()));
}

// The receiver has granted, and then nothing: the source fills the path's slots, waits for them, says so, and ends when it is told to.
TEST(Indirect, ASourceWhoseReceiverIsGoneEndsWhenToldSo) {
  Node node(2);
  node.blocks_at_most = 8;
  node.host_share = kHalf;
  node.add_paths(true, 0);
  Bytes data(64 * kMiB);
  Port& port = node.port(0, 1);
  const std::uint64_t words[Grant::kWords] = {data.size(), 0, kNoBuffer, 0, 0, kOverHost};
  for (std::uint32_t k = 0; k < Grant::kWords; ++k) port.grants[1].words[k] = words[k] | std::uint64_t{1} << 32;
  std::jthread source([&] { node.run(0, {{Direction::send, 1, data.data(), data.size()}}); });
  while (std::atomic_ref(port.indirect[kHostPath].taken).load() != kHostSlots) std::this_thread::yield();
  while (std::any_of(port.taken, port.taken + kSlots, [](std::uint64_t& taken) { return std::atomic_ref(taken).load() == 0; }))
    std::this_thread::yield();
  EXPECT_EQ(waiting_text({Direction::send, Path::granted, 1, data.size(), 0}, *copy_words(port), is_ahead(node.ledger(0))),
            "send of 67108864 bytes to rank 1: granted, over slots; slots that rank 1 has not emptied: 0, 1, 2, 3, 4, 5, 6, 7; pieces that "
            "rank 1 has not taken: 8 over the host");
  std::atomic_ref(node.host(0).stop).store(kLeave);
  source.join();
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(node.completed(0), 0u);
  for (const PartState& part : node.state(0).parts) EXPECT_EQ(part.left, 0u);
}

}  // namespace
}  // namespace railweave::cuda
