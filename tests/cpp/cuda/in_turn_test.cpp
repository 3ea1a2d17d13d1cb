// Which send a block goes on with: its own, or another.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "gpu_node.hpp"

namespace railweave::cuda {
namespace {

// A granted send of all of `data`, in pieces of 1 KiB, that no block begins with.
Message send_of(Port& local, Port& remote, Bytes& data, HostView& host, Ledger& ledger) {
  Message m{};
  m.local = &local;
  m.remote = &remote;
  m.data = data.data();
  m.bytes = data.size();
  m.host = &host;
  m.ledger = &ledger;
  m.direction = Direction::send;
  m.path = Path::granted;
  m.piece_bytes = 1024;
  m.grant_after = kNone;
  return m;
}

// A block waits for the grant of a send whose turn has come, then helps with those behind it: a piece at a time while its own one has not
// been granted, so that it is back when the grant comes, in rows once that is over.
class OwnSend : public testing::Test {
 protected:
  struct Block : HostBlock {
    using HostBlock::HostBlock;
    std::uint64_t now() const { return time; }
    std::uint64_t time = 1'000'000;  // ns
  };

  static constexpr std::uint32_t kSends = 4, kPiece = 1024, kPieces = 6;

  OwnSend() {
    for (std::uint32_t i = 0; i < kSends; ++i) {
      Message& m = messages[i] = send_of((*here)[i], (*there)[i], data, host, ledger);
      if (i == 0) m.piece_bytes = static_cast<std::uint32_t>(data.size());  // the block's own one is one piece
      m.first_block = static_cast<std::uint16_t>(i);
      m.last_block = static_cast<std::uint16_t>(i + 1);
    }
    block.make_room(kSends);
    roles.emplace(block, Part{&state.parts[0], state.messages, messages.data(), kSends, 3600'000'000'000});
    roles->begin();
    grant(1);
  }

  void grant(std::uint32_t i) {
    const auto to = reinterpret_cast<std::uint64_t>(came[i].data());
    const std::uint64_t said[Grant::kWords] = {data.size(), 0, kAbsoluteBuffer, to & 0xffffffff, to >> 32};
    for (std::uint32_t k = 0; k < Grant::kWords; ++k) (*here)[i].grants[1].words[k] = said[k] | std::uint64_t{1} << 32;
  }
  void take_back(std::uint32_t i) {
    for (std::uint64_t& word : (*here)[i].grants[1].words) word = 0;
  }
  void turns(std::uint32_t count) {
    for (std::uint32_t turn = 0; turn < count; ++turn) EXPECT_TRUE(roles->turn(false));
  }
  // A turn claims a piece, the next one pushes it and what follows.
  std::uint64_t pieces_after_two_turns(std::uint32_t i = 1) {
    turns(2);
    return (*there)[i].placed[1] / kPiece;
  }
  // From the turn on in which it is seen that there is no grant.
  static std::uint64_t wait_of(std::uint64_t bytes) { return bytes * kPatience_ns / 65'536; }
  void find_waiting_until(std::uint64_t wait, std::uint32_t i) {
    turns(1);
    block.time += wait - 1;
    EXPECT_EQ(pieces_after_two_turns(i), 0u);
    block.time += 1;
    turns(1);
  }

  const std::unique_ptr<std::array<Port, kSends>> here = std::make_unique<std::array<Port, kSends>>(),
                                                  there = std::make_unique<std::array<Port, kSends>>();
  Bytes data = Bytes(kPieces * kPiece), came[kSends] = {data, data, data, data};
  HostView host{};
  OperationState state{};
  Ledger ledger{};
  std::array<Message, kSends> messages{};
  Block block{0, 2, 1, 0};
  std::optional<Roles<Block, false>> roles;
};

TEST_F(OwnSend, IsWaitedForAndHelpBeforeItsGrantIsBrief) {
  messages[0].bytes = 100'000;
  find_waiting_until(wait_of(100'000), 1);
  EXPECT_EQ(pieces_after_two_turns(), 1u);
}

TEST_F(OwnSend, IsNotWaitedForLongerThanForSixtyFourMebibytes) {
  messages[0].bytes = std::uint64_t{1} << 40;
  find_waiting_until(wait_of(64u << 20), 1);
  EXPECT_EQ(pieces_after_two_turns(), 1u);
}

TEST_F(OwnSend, IsFollowedByOthersInARow) {
  grant(0);
  turns(1);
  EXPECT_EQ((*there)[0].placed[1], data.size());
  EXPECT_EQ(pieces_after_two_turns(), kPieces);
}

// While the next one in turn may be granted soon, nothing is done for the one behind it.
TEST_F(OwnSend, IsFollowedByTheNextInTurnOnceThatIsGranted) {
  grant(0);
  turns(1);
  take_back(1);
  grant(2);
  turns(1);
  block.time += wait_of(data.size()) - 1;
  EXPECT_EQ(pieces_after_two_turns(), 0u);
  EXPECT_EQ((*there)[2].placed[1], 0u);
  grant(1);
  EXPECT_EQ(pieces_after_two_turns(), kPieces);
  EXPECT_EQ((*there)[2].placed[1], 0u);
}

// However long the one before took.
TEST_F(OwnSend, IsFollowedByAnotherWhereTheNextIsGrantedLate) {
  grant(0);
  turns(1);
  take_back(1);
  grant(2);
  block.time += 10 * wait_of(data.size());
  find_waiting_until(wait_of(data.size()), 2);
  EXPECT_EQ(pieces_after_two_turns(2), kPieces);
  EXPECT_EQ((*there)[1].placed[1], 0u);
}

// The one behind it is waited for as long as if it were the first.
TEST_F(OwnSend, IsWaitedForOnce) {
  take_back(1);
  find_waiting_until(wait_of(data.size()), 1);
  messages[2].bytes = 100'000;
  grant(3);
  find_waiting_until(wait_of(data.size()), 3);
  find_waiting_until(wait_of(100'000), 3);
  EXPECT_EQ(pieces_after_two_turns(3), 1u) << "of the one behind all three";
  grant(2);
  messages[2].bytes = data.size();
  EXPECT_EQ(pieces_after_two_turns(2), 1u) << "though nothing has been seen of the first two";
  grant(1);
  EXPECT_EQ(pieces_after_two_turns(1), 1u);
  grant(0);
  turns(1);
  EXPECT_EQ((*there)[0].placed[1], data.size());
  EXPECT_EQ(pieces_after_two_turns(1), kPieces);
}

// Others to a peer are granted with the first, or once earlier ones are over: nobody waits for each.
TEST_F(OwnSend, IsTheFirstToItsPeerOrNotWaitedFor) {
  take_back(1);
  messages[1].ordinal = messages[2].ordinal = 1;
  grant(3);
  find_waiting_until(wait_of(data.size()), 3);  // the block's own one
  EXPECT_EQ(pieces_after_two_turns(3), 1u);
}

// Behind a send that is waited for a block still moves packets, also those that are another block's, and what stands in a later window of
// an operation of many messages.
class AwaitedGrant : public testing::Test {
 protected:
  struct Block : HostBlockOfMany {
    using HostBlockOfMany::HostBlockOfMany;
    std::uint64_t now() const { return 1'000'000; }
  };

  // A send that is waited for, receives that are never granted, and two bundles of packets, of which the other block has one.
  std::vector<Message> operation(std::uint32_t count) {
    std::vector<Message> messages(count, send_of((*here)[1], (*there)[1], data, host, ledger));
    for (std::uint32_t i = 1; i + 1 < count; ++i) {
      messages[i].direction = Direction::receive;
      messages[i].grant_after = 0;
    }
    Message &awaited = messages.front(), &packets = messages.back();
    awaited.local = &(*here)[0];
    awaited.remote = &(*there)[0];
    awaited.last_block = 1;
    packets.path = Path::packets;
    return messages;
  }

  const std::unique_ptr<std::array<Port, 2>> here = std::make_unique<std::array<Port, 2>>(),
                                             there = std::make_unique<std::array<Port, 2>>();
  Bytes data = Bytes(2 * kBundleBytes);
  HostView host{};
  Ledger ledger{};
  PartState state{};
};

TEST_F(AwaitedGrant, HoldsBackNoPackets) {
  for (const std::uint32_t count : {2u, 300u}) {
    for (Port& port : *there) port = Port{};
    state = {};
    const std::vector<Message> messages = operation(count);
    std::vector<MessageState> states(count);
    Block block{0, 2, 1, 0};
    block.make_room(count);
    Roles<Block, true> roles(block, Part{&state, states.data(), messages.data(), count, 3600'000'000'000});
    roles.begin();
    for (std::uint32_t turn = 0; turn < 4; ++turn) EXPECT_TRUE(roles.turn(false));
    for (const std::uint32_t packet : {0u, kBundlePackets})
      EXPECT_EQ((*there)[1].packets[packet].lines[0].flag, packet_flag(packet)) << packet << " of " << count << " messages";
    EXPECT_EQ(states[0].claimed, 1024u) << "the block's own piece";
  }
}

// One that was given up has not heard from all.
TEST_F(AwaitedGrant, ThatNeverComesLeavesWhatTheLastOperationFound) {
  std::vector<Message> messages = operation(2);
  messages.pop_back();
  messages[0].reports = true;
  host.stop = kLeave;
  state.in_step = 5;
  std::vector<MessageState> states(1);
  Block block{0, 1, 1, 0};
  block.make_room(1);
  Part part{&state, states.data(), messages.data(), 1, 3600'000'000'000};
  part.in_step_blocks = 1;
  part.in_step_KiB = 5;
  Roles<Block, false>(block, part).run();
  EXPECT_EQ(host.error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(state.in_step, 5u);
}

// So much to all that blocks take peers in turn: some sends have no block that begins with them. Blocks begin one at a time, the last one
// first.
TEST(InTurn, EveryByteComesThoughBlocksBeginLate) {
  std::mt19937_64 random(34);
  Node node(4);
  node.blocks_at_most = 4;
  node.low_latency_bytes = 1000;
  node.one_at_a_time = node.last_first = true;
  Program program(4);
  for (std::uint32_t source = 0; source < 4; ++source) {
    for (std::uint32_t k = 1; k < 4; ++k) program.add(random, source, 0, (source + k) % 4, 0, (5u << 20) + 1000 * source + k);
  }
  program.run(node);
}

// Of ranks whose operations are alike: as many messages, of one size, but for those of one rank in the second one.
TEST(InStep, IsWhatTheLastSuchOperationFoundAtAllRanks) {
  std::mt19937_64 random(42);
  constexpr std::uint32_t kRanks = 3;
  Node node(kRanks);
  node.low_latency_bytes = 1000;
  node.in_step = true;
  const auto found = [&] {
    std::vector<std::uint32_t> in_step;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) in_step.push_back(node.state(rank).parts[0].in_step);
    return in_step;
  };
  const auto run = [&](std::uint64_t bytes, std::uint64_t of_last) {
    Program program(kRanks);
    for (std::uint32_t source = 0; source < kRanks; ++source) {
      for (std::uint32_t k = 1; k < kRanks; ++k)
        program.add(random, source, 0, (source + k) % kRanks, 0, source == 2 && k == 1 ? of_last : bytes);
    }
    program.run(node);
  };
  const auto everywhere = [](std::uint32_t KiB) { return std::vector<std::uint32_t>(kRanks, KiB); };
  EXPECT_EQ(found(), everywhere(0));
  run(100'000, 100'000);
  EXPECT_EQ(found(), everywhere(97));
  run(100'000, 100'000);
  EXPECT_EQ(found(), everywhere(97));
  run(100'000, 200'000);  // rank 2 to 0: their operations are not such ones; that of rank 1 is, and hears from both that theirs are not
  EXPECT_EQ(found(), (std::vector<std::uint32_t>{97, 0, 97}));
  run(100'000, 100'000);
  EXPECT_EQ(found(), everywhere(97));
  run(50'000, 50'000);
  EXPECT_EQ(found(), everywhere(48));
}

// Then all blocks but those of what stays here begin where the first one does, if that was of the same size.
TEST(InStep, BlocksBeginWithTheFirstPeer) {
  const auto ports = std::make_unique<std::array<Port, 6>>();
  Bytes data(4000);
  HostView host{};
  Ledger ledger{};
  for (const std::uint32_t in_step : {0, 3, 4}) {
    OperationState state{};
    state.parts[0].in_step = in_step;
    std::array<Message, 3> messages{};
    for (std::uint32_t i = 0; i < messages.size(); ++i) {
      Message& m = messages[i] = send_of((*ports)[i], (*ports)[3 + i], data, host, ledger);
      m.first_block = static_cast<std::uint16_t>(i);
      m.last_block = static_cast<std::uint16_t>(i + 1);
    }
    for (std::uint32_t index = 0; index < 3; ++index) {
      HostBlock block(index, 3, 1, 0);
      block.make_room(3);
      Part part{&state.parts[0], state.messages, messages.data(), 3, 3600'000'000'000};
      part.in_step_blocks = 2;
      part.in_step_KiB = 3;
      Roles<HostBlock, false>(block, part).begin();
    }
    const std::array<std::uint64_t, 3> claimed{state.messages[0].claimed, state.messages[1].claimed, state.messages[2].claimed};
    EXPECT_EQ(claimed, in_step == 3 ? (std::array<std::uint64_t, 3>{2048, 0, 1024}) : (std::array<std::uint64_t, 3>{1024, 1024, 1024}));
  }
}

}  // namespace
}  // namespace railweave::cuda
