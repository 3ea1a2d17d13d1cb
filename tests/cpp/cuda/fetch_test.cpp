// Destinations that read the end of a message out of its source's buffer: which they are, every byte, and what goes wrong.
#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <vector>

#include "fetch_prepare.hpp"
#include "fetch_roles.hpp"
#include "gpu_node.hpp"
#include "planned_messages.hpp"

namespace railweave::cuda {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kFetchBytes = 64u << 10;  // enough for an end

// --- Which

TEST(PrepareFetch, WhereBytesGoOneWay) {
  constexpr Direction kSend = Direction::send, kReceive = Direction::receive;
  constexpr std::uint64_t kEnough = 4 * kMiB;
  struct Case {
    const char* what;
    std::vector<std::tuple<Direction, std::uint32_t, std::uint64_t>> messages;
    std::uint32_t link_MBps;
    std::vector<bool> fetched;
    Kernel kernel;
  };
  for (const Case& c : std::vector<Case>{
           {"a lone send", {{kSend, 1, kEnough}}, 0, {true}, Kernel::indirect},
           {"a lone receive", {{kReceive, 1, kEnough}}, 0, {true}, Kernel::indirect},
           {"too short", {{kSend, 1, kEnough - 1}}, 0, {false}, Kernel::granted},
           {"a quarter comes back", {{kSend, 1, 4 * kEnough}, {kReceive, 1, kEnough}}, 0, {true, false}, Kernel::indirect},
           {"more comes back", {{kSend, 1, 4 * kEnough}, {kReceive, 2, kEnough + 1}}, 0, {false, false}, Kernel::granted},
           {"a quarter goes back", {{kSend, 1, kEnough}, {kReceive, 1, 4 * kEnough}}, 0, {false, true}, Kernel::indirect},
           {"an outcast", {{kSend, 1, kEnough}, {kSend, 2, kEnough}, {kSend, 3, kEnough}}, 0, {true, true, true}, Kernel::indirect},
           {"an incast", {{kReceive, 1, kEnough}, {kReceive, 2, kEnough}}, 0, {false, false}, Kernel::granted},
           {"most of an incast", {{kReceive, 1, 4 * kEnough}, {kReceive, 2, kEnough}}, 0, {true, false}, Kernel::indirect},
           {"two alike of a pair", {{kSend, 1, kEnough}, {kSend, 1, kEnough}}, 0, {false, false}, Kernel::granted},
           {"most of a pair", {{kSend, 1, 4 * kEnough}, {kSend, 1, kEnough}}, 0, {true, false}, Kernel::indirect},
           {"packets beside it", {{kSend, 1, kEnough}, {kReceive, 2, 1000}}, 0, {false, true}, Kernel::apart_indirect},
           {"links paced", {{kSend, 1, kEnough}}, 1000, {false}, Kernel::indirect},
       }) {
    SCOPED_TRACE(c.what);
    std::vector<Message> messages;
    for (const auto& [direction, peer, bytes] : c.messages) messages.push_back(make_message(direction, peer, bytes));
    const LaunchLimits limits{.cluster_blocks = 16, .world = 4, .link_MBps = c.link_MBps, .room = 4};
    choose_fetched(sized(messages, 64u << 10), limits);
    EXPECT_EQ(prepare(messages, limits).kernel, c.kernel);
    for (std::size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(is_fetched(messages[i]), c.fetched[i]) << "message " << i;
  }
}

TEST(PrepareFetch, NotWhatARankSendsItselfAndNotInLongOperations) {
  std::vector<Message> own{make_message(Direction::send, 1, 64 * kMiB), make_message(Direction::receive, 1, 64 * kMiB),
                           make_message(Direction::send, 2, 8 * kMiB)};
  for (Message& m : std::span(own).first(2)) m.remote = m.local;
  const LaunchLimits few{.room = 4};
  choose_fetched(sized(own, 0), few);
  EXPECT_FALSE(is_fetched(own[0]) || is_fetched(own[1]));
  EXPECT_TRUE(is_fetched(own[2])) << "it takes no link";
  std::vector<Message> many(kMaxMessages + 1, make_message(Direction::receive, 1, 1000));
  many[0].bytes = 1024 * kMiB;
  choose_fetched(sized(many, 0), few);
  EXPECT_FALSE(is_fetched(many[0]));
}

// With more blocks the source alone fills the link: those of NCCL's kernel are few in communicators over several nodes.
TEST(PrepareFetch, WhereBlocksAreFew) {
  struct Case {
    LaunchLimits limits;
    std::uint32_t blocks;
  };
  for (const Case& c :
       {Case{{.blocks = 6, .world = 4}, 6}, Case{{.blocks = 7, .world = 4}, 7}, Case{{.blocks = 16, .room = 3}, 3},
        Case{{.world = 4, .channel_bytes = 8u << 10, .several_nodes = true}, 3}, Case{{.world = 4, .several_nodes = true}, 11},
        Case{{.world = 8, .channel_bytes = 8u << 10, .several_nodes = true}, 7}}) {
    std::vector<Message> messages{make_message(Direction::send, 1, 64 * kMiB)};
    EXPECT_EQ(most_blocks(sized(messages, 0), c.limits), c.blocks);
    choose_fetched(messages, c.limits);
    EXPECT_EQ(is_fetched(messages[0]), c.blocks <= 6) << c.blocks;
  }
}

// By the room on the device, which is known later: a source cannot take back what it counts on its mate for.
TEST(PrepareFetch, NotWhereOtherWorkLeavesTooFewBlocks) {
  for (const auto& [room, kept] : {std::pair{6u, true}, {4u, true}, {3u, false}, {1u, false}}) {
    std::vector<Message> messages{make_message(Direction::receive, 1, 64 * kMiB), make_message(Direction::send, 1, 8 * kMiB)};
    LaunchLimits limits{.blocks = 6, .world = 4};
    const std::uint32_t expected = choose_fetched(sized(messages, 0), limits);
    ASSERT_EQ(expected, 6u);
    messages[1].paths |= kFetched;
    limits.room = room;
    reconsider_fetched(messages, limits, expected);
    EXPECT_EQ(is_fetched(messages[0]), kept) << room;
    EXPECT_TRUE(is_fetched(messages[1])) << "its mate has as many blocks as it has";
  }
}

// With few blocks nothing goes over the host; both ends' blocks are dealt what they move.
TEST(PrepareFetch, BesideOtherPathsAndBlocks) {
  for (const bool fetched : {false, true}) {
    std::vector<Message> messages{make_message(Direction::send, 1, 64 * kMiB)};
    messages[0].paths = static_cast<std::uint8_t>(1u << kHostPath | (fetched ? kFetched : 0));
    const Plan plan = prepare(sized(messages, 0), {.blocks = 4, .world = 2, .host_share = 118});
    EXPECT_EQ(plan.kernel, Kernel::indirect);
    EXPECT_EQ(messages[0].paths, fetched ? kFetched : 1u << kHostPath);
    EXPECT_EQ(messages[0].piece_bytes, fetched ? kMiB : kIndirectBytes);
  }
  std::vector<Message> receive{make_message(Direction::receive, 1, 64 * kMiB)};
  receive[0].paths = kFetched;
  EXPECT_EQ(prepare(sized(receive, 0), {.blocks = 16, .world = 2}).blocks, 16u);
  EXPECT_EQ(moved_here(receive[0]), 32 * kMiB);
  receive[0].paths = kFetched;
  EXPECT_EQ(prepare(sized(receive, 0), {.blocks = 16, .world = 2, .beside_rails = true}).kernel, Kernel::granted);
  EXPECT_FALSE(is_fetched(receive[0])) << "a kernel that does not know it";
}

// A few blocks fill no link, and have larger pieces; not beside anything else that wants them.
TEST(Prepare, FewBlocksHaveLargerPieces) {
  const auto piece = [](std::uint32_t blocks, std::uint64_t bytes, bool beside_rails) {
    std::vector<Message> messages{make_message(Direction::send, 1, bytes)};
    const LaunchLimits limits{.blocks = blocks, .beside_rails = beside_rails, .rail_bytes = 1};
    EXPECT_EQ(prepare(sized(messages, 0), limits).blocks, blocks);
    return messages[0].piece_bytes;
  };
  EXPECT_EQ(piece(8, 64u << 20, false), 1u << 20);
  EXPECT_EQ(piece(4, 512u << 20, false), 4u << 20);
  EXPECT_EQ(piece(9, 64u << 20, false), 256u << 10);
  EXPECT_EQ(piece(4, 512u << 20, true), 256u << 10);
}

// --- Every byte

// Either end of a message wants it or not, and the destination has mapped the source's buffer or not.
struct Wishes {
  std::uint32_t offering = 2, wanting = 2, mapped = 2;  // of 2
};
struct Case {
  std::uint32_t blocks;
  bool one_at_a_time, last_first, mapped;
  Wishes wishes;
  std::uint32_t delays = 100;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.blocks << " blocks, " << c.wishes.offering << c.wishes.wanting << c.wishes.mapped << (c.one_at_a_time ? ", one at a time" : "");
}

class Fetches : public testing::TestWithParam<Case> {
 protected:
  void set_up(Node& node) {
    const Case& c = GetParam();
    node.blocks_at_most = c.blocks;
    node.one_at_a_time = c.one_at_a_time;
    node.last_first = c.last_first;
    node.mapped = c.mapped;
    node.delays = c.delays;
    node.low_latency_bytes = 1000;
    node.choose = [&node, this](std::uint32_t rank, std::span<Message> messages) {
      const std::scoped_lock lock(mutex_);
      for (Message& m : messages) {
        const bool first = std::none_of(messages.data(), &m, [&](const Message& before) {
          return before.local == m.local && before.direction == m.direction && is_fetched(before);
        });
        if (m.path != Path::granted || m.bytes < 2 * kFetchBytes || !first) continue;
        const Wishes& wishes = GetParam().wishes;
        if (random_() % 2 >= (m.direction == Direction::send ? wishes.offering : wishes.wanting)) continue;
        m.paths |= kFetched;
        if (m.direction == Direction::receive) continue;
        const std::uint64_t name = 2 + random_() % 1000;
        m.named = {name, 8};
        // As the library's thread writes the table: the name last.
        Mapping& there = node.port(m.peer, rank).mappings[name];
        const bool mapped = random_() % 2 < wishes.mapped;
        std::atomic_ref(there.base).store(reinterpret_cast<std::uint64_t>(m.data) - 8);
        std::atomic_ref(there.buffer).store(mapped ? name : 0);
      }
    };
  }
  std::mutex mutex_;
  std::minstd_rand random_{5};
};

// One message of the pair is offered; others of it, others' and what comes back are beside it.
TEST_P(Fetches, EveryByteArrives) {
  std::mt19937_64 random(31);
  Node node(3);
  set_up(node);
  Program program(3);
  for (std::size_t op = 0; op < 4; ++op) {
    program.add(random, 0, op, 1, op, kMiB + random() % 1000);
    program.add(random, 0, op, 1, op, 3 * kFetchBytes + random() % 1000);
    program.add(random, 1, op, 0, op, 2 * kFetchBytes + random() % 1000);
    program.add(random, 2, op, 0, op, 5000 + random() % 100'000);
    program.add(random, 1, op, 2, op, 500'000 + random() % 1000);
    if (op % 2 == 1) program.add(random, 2, op, 1, op, 700);
  }
  // More of a pair than have places, so some are granted in another's: in that of what was offered, and what is offered in one.
  for (const std::uint32_t offered : {0, 3, 9}) {
    const std::size_t op = 4 + offered;
    for (std::uint32_t i = 0; i < 12; ++i) program.add(random, 2, op, 1, op, (i == offered ? 8 : 1) * kFetchBytes + i);
  }
  program.run(node);
  program.check_moved(node);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(node.host(rank).error, 0u);
    for (const PartState& part : node.state(rank).parts) EXPECT_EQ(part.left, 0u);
    for (const MessageState& state : node.state(rank).messages)
      EXPECT_EQ(state.claimed + state.granted + state.answered + state.pieces, 0u);
    for (std::uint32_t peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(node.port(rank, peer).fetched, 0u);
      for (const std::uint64_t placed : node.port(rank, peer).placed) EXPECT_EQ(placed, 0u);
    }
  }
}

// With nothing beside it the source's operation ends as soon as its bytes are said to have been read.
TEST_P(Fetches, OneMessageAtATime) {
  std::mt19937_64 random(33);
  Node node(2);
  set_up(node);
  Program program(2);
  for (std::size_t op = 0; op < 40; ++op) program.add(random, 0, op, 1, op, 2 * kFetchBytes + random() % 1000);
  program.run(node);
  program.check_moved(node);
}
INSTANTIATE_TEST_SUITE_P(Ends, Fetches,
                         testing::Values(Case{3, false, false, true, {2, 2, 2}}, Case{3, false, false, true, {2, 2, 0}},
                                         Case{3, false, false, true, {1, 1, 1}}, Case{3, false, false, false, {1, 1, 1}},
                                         Case{3, true, false, true, {1, 1, 1}}, Case{3, true, true, true, {1, 1, 1}},
                                         Case{1, false, false, true, {1, 1, 1}}, Case{4, false, true, true, {2, 2, 1}, 0}));

// Pieces come out of the source's buffer; that it does not push them as well shows below.
TEST(Fetch, TheEndIsRead) {
  Node node(2);
  node.choose = [](std::uint32_t, std::span<Message> messages) {
    messages[0].paths |= kFetched;
    if (messages[0].direction == Direction::send) messages[0].named = {kAbsoluteBuffer, reinterpret_cast<std::uint64_t>(messages[0].data)};
  };
  std::mt19937_64 random(32);
  Program program(2);
  program.add(random, 0, 0, 1, 0, 8 * kMiB + 5);
  std::jthread source([&] { node.run(0, program.operations[0][0]); });
  while (std::atomic_ref(node.port(1, 0).offer.words[FetchOffer::kWords - 1]).load() >> 32 != 1) std::this_thread::yield();
  node.run(1, program.operations[1][0]);
  source.join();
  use_buffers(program.operations[1][0]);
  EXPECT_EQ(node.port(1, 0).offered_at, reinterpret_cast<std::uint64_t>(program.operations[0][0][0].data));
}

// --- What goes wrong

// A destination that has accepted and reads no more: the source waits, says so, and stays until nobody may read its buffer any more.
TEST(Fetch, ASourceWhoseReaderIsGoneEndsWhenToldSo) {
  Node node(2);
  node.choose = [](std::uint32_t, std::span<Message> messages) {
    messages[0].paths |= kFetched;
    messages[0].named = {kAbsoluteBuffer, reinterpret_cast<std::uint64_t>(messages[0].data)};
  };
  Bytes data(8 * kMiB), came(8 * kMiB);
  Port& port = node.port(0, 1);
  const auto address = reinterpret_cast<std::uint64_t>(came.data());
  const std::uint64_t words[Grant::kWords] = {data.size(), 0, kAbsoluteBuffer, address & 0xffffffff, address >> 32, kFetched};
  for (std::uint32_t k = 0; k < Grant::kWords; ++k) port.grants[1].words[k] = words[k] | std::uint64_t{1} << 32;
  std::atomic<bool> left = false;
  std::jthread source([&] {
    node.run(0, {{Direction::send, 1, data.data(), data.size()}});
    left = true;
  });
  std::uint64_t& placed = node.port(1, 0).placed[1];
  while (std::atomic_ref(placed).load() != fetched_from(data.size())) std::this_thread::yield();
  std::atomic_ref(port.fetched).fetch_add(kFetchBytes);
  const std::string text = waiting_text({Direction::send, Path::granted, 1, data.size(), 0}, *copy_words(port), is_ahead(node.ledger(0)));
  EXPECT_EQ(text,
            "send of 8388608 bytes to rank 1: granted, into rank 1's buffer, or over slots until that is mapped; rank 1 has read 65536 "
            "bytes of it itself");
  std::atomic_ref(node.host(0).stop).store(kStop);
  while (std::atomic_ref(node.host(0).rests).load() == 0) std::this_thread::yield();
  EXPECT_FALSE(left);
  std::atomic_ref(node.host(0).stop).store(kLeave);
  source.join();
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(std::atomic_ref(placed).load(), fetched_from(data.size()));
}

// What was read in full, was declined, or is granted to be pushed keeps nobody: not until kernels leave by themselves, a minute later.
TEST(Fetch, ASourceThatNobodyReadsLeavesAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::uint64_t fetched : {4 * kMiB, kDeclined, std::uint64_t{0}}) {
    Node node(3);
    node.choose = [](std::uint32_t, std::span<Message> messages) {
      messages[0].paths |= kFetched;
      messages[0].named = {kAbsoluteBuffer, reinterpret_cast<std::uint64_t>(messages[0].data)};
    };
    Bytes data(8 * kMiB), other(kMiB);
    node.port(0, 1).fetched = fetched;
    if (fetched == 0) node.port(0, 1).grants[1].words[Grant::kPaths] = std::uint64_t{1} << 32;
    std::jthread source([&] {  // the second one is never granted
      node.run(0, {{Direction::send, 1, data.data(), data.size()}, {Direction::send, 2, other.data(), other.size()}});
    });
    std::atomic_ref(node.host(0).stop).store(kStop);
    source.join();
    EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(Fetch, AnOfferOfAnotherSizeIsNotRead) {
  Node node(2);
  node.choose = [](std::uint32_t, std::span<Message> messages) {
    messages[0].paths |= kFetched;
    if (messages[0].direction == Direction::send) messages[0].named = {kAbsoluteBuffer, reinterpret_cast<std::uint64_t>(messages[0].data)};
  };
  Bytes data(4 * kMiB), came(8 * kMiB);
  std::jthread destination([&] { node.run(1, {{Direction::receive, 0, came.data(), came.size()}}); });
  node.run(0, {{Direction::send, 1, data.data(), data.size()}});
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::sizes_differ));
  std::atomic_ref(node.host(1).stop).store(kLeave);
  destination.join();
  EXPECT_EQ(came, Bytes(came.size()));
}

}  // namespace
}  // namespace railweave::cuda
