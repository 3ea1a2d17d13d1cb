// The receiving half of a NIC: who owns an rx slot when senders, destinations and links come and go (docs/protocol.md §7, §12).
#include "rx_port.hpp"

#include <gtest/gtest.h>

#include "parts.hpp"

namespace railweave::test {
namespace {

using engine::Pool;
using engine::RailFrame;
using engine::RailHeader;

ExchangeSettings few_slots(std::uint64_t rx_slots) {
  ExchangeSettings settings;
  settings.chunk_bytes = 4096;
  settings.rx_slots = rx_slots;
  settings.slots_per_writer = 2;
  return settings;
}

// Rank 0 owns the NIC; ranks 1 and 2 are destinations behind it. NICs 1 and 2 of node 1 send.
class RxPortTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kBytes = 100;
  static constexpr std::uint64_t kSilence = 1000;

  explicit RxPortTest(std::uint64_t slots = 2, std::uint32_t ahead = 0)
      : node_(3, few_slots(slots)), port_(node_.clusters[0], memory(), 0, 0, kSilence, ahead, engine::own_times) {
    hello(1, 1);
    hello(2, 1);
  }

  engine::NodeMemory& memory(std::uint32_t rank = 0) { return *node_.memories[rank]; }

  static RailHeader frame(RailFrame kind, std::uint32_t from, std::uint64_t generation, std::uint64_t transfer = 0,
                          std::uint32_t destination = 1) {
    RailHeader header;
    header.kind = kind;
    header.from_nic = from;
    header.generation = generation;
    header.transfer = transfer;
    header.base = kind == RailFrame::offer ? 1 : 0;
    header.length = kBytes;
    header.message = {0, 3, destination, 0, 1};
    header.chunk = static_cast<std::uint32_t>(transfer);
    return header;
  }

  // The answers since the last look.
  std::vector<RailHeader> answers() {
    std::vector<RailHeader> taken;
    taken.swap(port_.answers());
    return taken;
  }
  // The only answer since the last look; of kind hello when there was none or several.
  RailHeader answer() {
    const auto all = answers();
    return all.size() == 1 ? all[0] : frame(RailFrame::hello, 0, 0);
  }

  void hello(std::uint32_t from, std::uint64_t generation) {
    port_.on_hello(frame(RailFrame::hello, from, generation));
    ASSERT_EQ(answer().kind, RailFrame::hello_back);
  }
  // Offers a transfer that finds a free slot; gives the header of its data.
  RailHeader accepted(std::uint32_t from, std::uint64_t generation, std::uint64_t transfer, std::uint32_t destination = 1) {
    port_.on_offer(frame(RailFrame::offer, from, generation, transfer, destination));
    const RailHeader accept = answer();
    EXPECT_EQ(accept.kind, RailFrame::accept);
    RailHeader data = frame(RailFrame::data, from, generation, transfer, destination);
    data.slot = accept.slot;
    data.turn = accept.turn;
    return data;
  }
  bool held(const RailHeader& data) { return memory().holds(0, Pool::rx, data.slot, data.turn); }
  bool announced_to(std::uint32_t rank) {
    engine::Record record;
    return memory(rank).next(0, record);
  }

  NodeParts node_;
  engine::RxPort port_;
};

TEST_F(RxPortTest, LandsWhatItAccepted) {
  const RailHeader data = accepted(1, 1, 1);
  ASSERT_NE(port_.on_data(data, kBytes), nullptr);
  port_.on_data_done(data, true);
  EXPECT_EQ(answer().kind, RailFrame::got);
  EXPECT_TRUE(announced_to(1));
  EXPECT_TRUE(held(data));
  memory(1).release(0, Pool::rx, data.slot, data.turn);
  EXPECT_TRUE(port_.idle());
}

TEST_F(RxPortTest, TakesNoBytesWhileTheTransferIsBeingWritten) {
  const RailHeader data = accepted(1, 1, 1);
  ASSERT_NE(port_.on_data(data, kBytes), nullptr);
  EXPECT_EQ(port_.on_data(data, kBytes), nullptr);
}

TEST_F(RxPortTest, AFrameWithoutPayloadLandsNothing) {
  const RailHeader data = accepted(1, 1, 1);
  port_.on_data_done(data, true);
  EXPECT_FALSE(announced_to(1));
  EXPECT_TRUE(answers().empty());
}

// Freed at once, the slot could get another transfer's bytes and then the late ones.
TEST_F(RxPortTest, ASlotOfADeadDestinationStaysWithItsTransferUntilThatLands) {
  const RailHeader data = accepted(1, 1, 1);
  memory().reader_gone(1);
  EXPECT_TRUE(held(data));
  ASSERT_NE(port_.on_data(data, kBytes), nullptr);
  EXPECT_TRUE(held(data));
  port_.on_data_done(data, true);
  EXPECT_EQ(answer().kind, RailFrame::unwanted) << "its send has not ended well";
  EXPECT_FALSE(held(data));
  EXPECT_FALSE(announced_to(1));
  EXPECT_TRUE(port_.idle());
  port_.on_offer(frame(RailFrame::offer, 1, 1, 1));
  EXPECT_EQ(answer().kind, RailFrame::unwanted) << "nor later";
}

// What was said once holds: the send may have ended already.
TEST_F(RxPortTest, WhatHasLandedStaysSoWhenItsDestinationDies) {
  const RailHeader data = accepted(1, 1, 1);
  ASSERT_NE(port_.on_data(data, kBytes), nullptr);
  port_.on_data_done(data, true);
  EXPECT_EQ(answer().kind, RailFrame::got);
  memory().reader_gone(1);
  port_.on_offer(frame(RailFrame::offer, 1, 1, 1));
  EXPECT_EQ(answer().kind, RailFrame::got);
  EXPECT_EQ(port_.on_data(data, kBytes), nullptr);
  EXPECT_EQ(answer().kind, RailFrame::got);
}

// The ring of rank 1 is full: what lands for it is known to this process alone.
class RxPortFullRingTest : public RxPortTest {
 protected:
  RxPortFullRingTest() {
    engine::Record other;
    other.kind = engine::RecordKind::placed;
    for (std::uint32_t i = 0; i < engine::kRingRecords; ++i) memory().announce(1, other);
    EXPECT_FALSE(memory().crowded(1));
    data_ = accepted(1, 1, 1);
    EXPECT_NE(port_.on_data(data_, kBytes), nullptr);
    port_.on_data_done(data_, true);
  }
  // Rank 1 reads all there is; whether the chunk was among it.
  bool reads_it() {
    bool landed = false;
    for (engine::Record record; memory(1).next(0, record);) landed = landed || record.kind == engine::RecordKind::landed;
    return landed;
  }
  RailHeader data_;
};

TEST_F(RxPortFullRingTest, GotWaitsForTheRecord) {
  EXPECT_TRUE(answers().empty());
  EXPECT_FALSE(port_.idle()) << "this process must not end with it";
  EXPECT_FALSE(memory().all_announced());
  port_.on_offer(frame(RailFrame::offer, 1, 1, 1));
  EXPECT_EQ(port_.on_data(data_, kBytes), nullptr);
  EXPECT_FALSE(port_.advance(1));
  EXPECT_TRUE(answers().empty()) << "nor when it is asked";
  EXPECT_FALSE(reads_it());
  EXPECT_TRUE(memory().flush_backlog());
  EXPECT_TRUE(memory().all_announced());
  EXPECT_TRUE(port_.advance(2));
  const RailHeader got = answer();
  EXPECT_EQ(got.kind, RailFrame::got);
  EXPECT_EQ(got.transfer, 1u);
  EXPECT_EQ(got.chunk, 0u) << "it says nothing of the rail's rate";
  EXPECT_TRUE(reads_it());
  EXPECT_TRUE(port_.idle());
  port_.on_offer(frame(RailFrame::offer, 1, 1, 1));
  EXPECT_EQ(answer().kind, RailFrame::got) << "from now on as often as it is asked";
}

// Under load something always waits.
TEST_F(RxPortFullRingTest, GotDoesNotWaitForRecordsBehindIt) {
  const RailHeader second = accepted(2, 1, 1);
  ASSERT_NE(port_.on_data(second, kBytes), nullptr);
  port_.on_data_done(second, true);
  EXPECT_TRUE(answers().empty());
  engine::Record record;
  ASSERT_TRUE(memory(1).next(0, record));  // room for one
  EXPECT_TRUE(memory().flush_backlog());
  EXPECT_TRUE(memory().crowded(1));
  EXPECT_TRUE(port_.advance(1));
  const RailHeader got = answer();
  EXPECT_EQ(got.kind, RailFrame::got);
  EXPECT_EQ(got.to_nic, 1u);
  EXPECT_FALSE(port_.advance(2)) << "the other one has no room yet";
}

TEST_F(RxPortFullRingTest, WhatTheDestinationCannotReadAnyMoreIsUnwanted) {
  memory().reader_gone(1);
  EXPECT_TRUE(port_.advance(1));
  EXPECT_EQ(answer().kind, RailFrame::unwanted);
  EXPECT_FALSE(held(data_));
  EXPECT_TRUE(port_.idle());
  port_.on_offer(frame(RailFrame::offer, 1, 1, 1));
  EXPECT_EQ(answer().kind, RailFrame::unwanted);
}

// Its slot is the destination's since it landed. The answer names the generation that is over, so nobody counts it.
TEST_F(RxPortFullRingTest, AFenceTakesNothingOfIt) {
  hello(1, 2);
  EXPECT_TRUE(held(data_));
  EXPECT_FALSE(reads_it());
  EXPECT_TRUE(memory().flush_backlog());
  EXPECT_TRUE(port_.advance(1));
  EXPECT_EQ(answer().generation, 1u);
  EXPECT_TRUE(reads_it());
}

TEST_F(RxPortTest, ASlotThatLandedForADestinationIsTakenBackWhenThatDies) {
  const RailHeader dead = accepted(1, 1, 1, 1), alive = accepted(1, 1, 2, 2);
  for (const RailHeader& data : {dead, alive}) {
    ASSERT_NE(port_.on_data(data, kBytes), nullptr);
    port_.on_data_done(data, true);
  }
  memory().reader_gone(1);
  EXPECT_FALSE(held(dead));
  EXPECT_TRUE(held(alive));
}

TEST_F(RxPortTest, OffersForADeadDestinationAreUnwantedAndTakeNoSlot) {
  const RailHeader first = accepted(1, 1, 1, 2), second = accepted(1, 1, 2, 2);
  port_.on_offer(frame(RailFrame::offer, 2, 1, 1, 1));  // waits
  EXPECT_TRUE(answers().empty());
  memory().reader_gone(1);
  EXPECT_TRUE(port_.advance(1));
  EXPECT_EQ(answer().kind, RailFrame::unwanted);
  port_.on_offer(frame(RailFrame::offer, 2, 1, 1, 1));  // asked again
  EXPECT_EQ(answer().kind, RailFrame::unwanted);
  port_.on_offer(frame(RailFrame::offer, 2, 1, 2, 1));  // a new one
  EXPECT_EQ(answer().kind, RailFrame::unwanted);
  EXPECT_TRUE(held(first));
  EXPECT_TRUE(held(second));
}

TEST_F(RxPortTest, SlotsOfASenderThatFellSilentGoToOthers) {
  const RailHeader first = accepted(1, 1, 1), second = accepted(1, 1, 2);
  port_.on_offer(frame(RailFrame::offer, 2, 1, 1));  // waits
  port_.hear(2, kSilence);
  EXPECT_FALSE(port_.advance(kSilence));
  EXPECT_TRUE(port_.advance(2 * kSilence));
  EXPECT_FALSE(held(first) && held(second));
  const auto told = answers();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].kind, RailFrame::over);
  EXPECT_EQ(told[0].to_nic, 1u);
  EXPECT_EQ(told[1].kind, RailFrame::accept);
  EXPECT_EQ(told[1].to_nic, 2u);
}

TEST_F(RxPortTest, WhatAGivenUpGenerationSaysIsAnsweredOverUntilTheNext) {
  const RailHeader data = accepted(1, 1, 1);
  port_.give_up(1);
  EXPECT_EQ(answer().kind, RailFrame::over);
  port_.on_offer(frame(RailFrame::offer, 1, 1, 2));
  EXPECT_EQ(answer().kind, RailFrame::over);
  EXPECT_EQ(port_.on_data(data, kBytes), nullptr);
  EXPECT_EQ(answer().kind, RailFrame::over);
  port_.on_ping(frame(RailFrame::ping, 1, 1));
  EXPECT_EQ(answer().kind, RailFrame::over);
  port_.on_hello(frame(RailFrame::hello, 1, 1));
  EXPECT_EQ(answer().kind, RailFrame::over);
  hello(1, 2);
  accepted(1, 2, 2);
}

TEST_F(RxPortTest, ASlotThatIsBeingWrittenIsFreedOnlyWhenTheWriteEnds) {
  const RailHeader data = accepted(1, 1, 1);
  ASSERT_NE(port_.on_data(data, kBytes), nullptr);
  port_.give_up(1);
  EXPECT_TRUE(held(data));
  EXPECT_FALSE(port_.idle());
  port_.on_data_done(data, true);
  EXPECT_FALSE(held(data));
  EXPECT_FALSE(announced_to(1));
  EXPECT_TRUE(port_.idle());
}

TEST_F(RxPortTest, ASenderThatHoldsNothingIsNotGivenUp) {
  port_.advance(10 * kSilence);
  EXPECT_TRUE(answers().empty());
}

// Half of four slots for two links: one each.
class RxPortAheadTest : public RxPortTest {
 protected:
  RxPortAheadTest() : RxPortTest(4, 1) {}

  void lands(const RailHeader& data) {
    ASSERT_NE(port_.on_data(data, kBytes), nullptr);
    port_.on_data_done(data, true);
  }
  // Data of the transfer that was accepted ahead, beside the `got` of the last that landed.
  RailHeader data_ahead(std::uint64_t transfer, std::uint32_t destination) {
    const auto told = answers();
    EXPECT_EQ(told.size(), 2u);
    EXPECT_EQ(told.front().kind, RailFrame::got);
    EXPECT_EQ(told.back().kind, RailFrame::accept);
    EXPECT_EQ(told.back().transfer, transfer);
    RailHeader data = frame(RailFrame::data, 1, told.back().generation, transfer, destination);
    data.slot = told.back().slot;
    data.turn = told.back().turn;
    return data;
  }
};

TEST_F(RxPortAheadTest, WhatLandsIsFollowedByASlotForTheNextTransfer) {
  lands(accepted(1, 1, 1, 1));
  EXPECT_TRUE(announced_to(1));
  const RailHeader second = data_ahead(2, 2);
  EXPECT_TRUE(port_.idle()) << "nobody waits for a transfer that may never come";
  ASSERT_NE(port_.on_data(second, kBytes), nullptr);
  EXPECT_FALSE(port_.idle());
  port_.on_data_done(second, true);
  EXPECT_TRUE(announced_to(2));
  lands(data_ahead(3, 1));
  EXPECT_TRUE(announced_to(1));
}

// A destination is known when the data come; it takes what landed back then, as always.
TEST_F(RxPortAheadTest, ASlotAheadIsItsDestinationsWhenItHasLanded) {
  lands(accepted(1, 1, 1, 1));
  const RailHeader second = data_ahead(2, 2);
  lands(second);
  EXPECT_TRUE(held(second));
  memory().reader_gone(2);
  EXPECT_FALSE(held(second));
}

TEST_F(RxPortAheadTest, AnOfferOnItsWayIsAnsweredWithTheSlotThatWasAcceptedAhead) {
  lands(accepted(1, 1, 1, 1));
  const RailHeader second = data_ahead(2, 1);
  port_.on_offer(frame(RailFrame::offer, 1, 1, 2));
  const RailHeader accept = answer();
  EXPECT_EQ(accept.kind, RailFrame::accept);
  EXPECT_EQ(accept.slot, second.slot);
  EXPECT_EQ(accept.turn, second.turn);
  lands(second);
}

TEST_F(RxPortAheadTest, EachLinkHasItsPartAndOffersHaveTheRest) {
  lands(accepted(1, 1, 1, 1));
  const RailHeader ahead = data_ahead(2, 1);
  const RailHeader third = accepted(1, 1, 3), fourth = accepted(1, 1, 4);
  port_.on_offer(frame(RailFrame::offer, 2, 1, 1));  // waits: all four are taken
  EXPECT_TRUE(answers().empty());
  lands(third);
  EXPECT_EQ(answer().kind, RailFrame::got) << "a slot is accepted ahead already";
  lands(ahead);
  EXPECT_EQ(answer().kind, RailFrame::got) << "an offer waits for a slot";
  memory(1).release(0, Pool::rx, third.slot, third.turn);
  EXPECT_TRUE(port_.advance(1));
  EXPECT_EQ(answer().to_nic, 2u);
  EXPECT_TRUE(held(fourth));
}

TEST_F(RxPortAheadTest, AHelloFreesSlotsThatWereAcceptedAheadAndTheirNumbers) {
  lands(accepted(1, 1, 1, 1));
  const RailHeader ahead = data_ahead(2, 1);
  hello(1, 2);
  EXPECT_FALSE(held(ahead));
  EXPECT_EQ(port_.on_data(ahead, kBytes), nullptr);
  lands(accepted(1, 2, 2));
}

TEST_F(RxPortAheadTest, ASilentSenderKeepsTheSlotsThatWereAcceptedAheadAndADeadOneDoesNot) {
  const RailHeader first = accepted(1, 1, 1, 1);
  lands(first);
  memory(1).release(0, Pool::rx, first.slot, first.turn);
  const RailHeader ahead = data_ahead(2, 1);
  port_.give_up(1);
  EXPECT_TRUE(answers().empty());
  EXPECT_TRUE(held(ahead)) << "nobody else would have had it";
  port_.bury(1);
  EXPECT_TRUE(answers().empty());
  EXPECT_FALSE(held(ahead));
}

TEST_F(RxPortAheadTest, DataForADeadDestinationFreesTheSlotThatWasAcceptedAhead) {
  lands(accepted(1, 1, 1, 1));
  const RailHeader second = data_ahead(2, 2);
  memory().reader_gone(2);
  EXPECT_EQ(port_.on_data(second, kBytes), nullptr);
  EXPECT_EQ(answer().kind, RailFrame::unwanted);
  EXPECT_FALSE(held(second));
  EXPECT_EQ(port_.on_data(second, kBytes), nullptr);
  EXPECT_EQ(answer().kind, RailFrame::unwanted) << "it is over";
}

TEST(NodeMemoryTest, NoSlotIsTakenForAReaderThatIsGone) {
  NodeParts node(3, few_slots(2));
  engine::NodeMemory& memory = *node.memories[0];
  memory.reader_gone(1);
  EXPECT_FALSE(memory.take(0, Pool::direct, 1));
  EXPECT_TRUE(memory.take(0, Pool::direct, 2));
}

}  // namespace
}  // namespace railweave::test
