// The sending half of a link when the receiver ends a generation (docs/protocol.md §7).
#include "tx_link.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "parts.hpp"
#include "rx_port.hpp"

namespace railweave::test {
namespace {

using engine::RailFrame;
using engine::RailHeader;

class TxLinkTest : public testing::Test {
 protected:
  TxLinkTest()
      : node_(1, {}),
        memory_(*node_.memories[0]),
        holds_(memory_),
        link_({transport_, memory_, holds_, bytes_, clock_, confirm_}, {0, 0, 1}, {100, 100, 1000, 100}, 2) {}

  void answer(RailFrame kind, std::uint64_t generation) {
    RailHeader frame;
    frame.kind = kind;
    frame.from_nic = 1;
    frame.generation = generation;
    link_.on_answer(frame, now_);
  }
  // `base`, of `accept`: not 0 where the offer had to wait for a slot, or was known.
  void answer(RailFrame kind, const RailHeader& asked, std::uint64_t base = 0) {
    RailHeader frame = asked;
    frame.kind = kind;
    frame.from_nic = 1;
    frame.base = base;
    link_.on_answer(frame, now_);
  }
  void forward(std::uint32_t bytes) { forward(bytes, link_); }
  void forward(std::uint32_t bytes, engine::TxLink& link) {
    const auto slot = memory_.take(0, engine::Pool::tx, 0);
    if (!slot) return;
    engine::Record record;
    record.slot = slot->slot;
    record.turn = slot->turn;
    record.length = bytes;
    record.word = word();
    link.forward(record);
  }
  // A turn of the engine's: what was asked and sent in it.
  std::vector<RailHeader> turn() {
    transport_.sent.clear();
    link_.advance(now_, {});
    link_.send_accepted(now_);
    for (const std::uint64_t token : transport_.tokens) holds_.sent(token);
    transport_.tokens.clear();
    return transport_.sent;
  }
  // A turn with two more chunks to send, whose offers are accepted.
  void keep_full(std::deque<RailHeader>& on_the_rail) {
    for (int i = 0; i < 2; ++i) forward(static_cast<std::uint32_t>(memory_.chunk_bytes()));
    for (const RailHeader& frame : turn()) {
      if (frame.kind == RailFrame::offer) answer(RailFrame::accept, frame);
      if (frame.kind == RailFrame::data) on_the_rail.push_back(frame);
    }
  }
  void bring_up() {
    link_.advance(now_, {});
    answer(RailFrame::hello_back, word() >> 1);
    ASSERT_TRUE(link_.up());
  }
  std::uint64_t word() const { return memory_.link_word(0, 0, 1); }

  NodeParts node_;
  engine::NodeMemory& memory_;
  NotedTransport transport_;
  engine::TxSlotHolds holds_;
  std::uint64_t bytes_ = 0, now_ = 1;
  // Of threads that always have a CPU and never much to do.
  engine::ThreadClock clock_ = [this] { return engine::ThreadTimes{now_, 0, 0}; };
  std::vector<engine::Record> confirmed_;
  const std::function<void(const engine::Record&)> confirm_ = [this](const engine::Record& record) { confirmed_.push_back(record); };
  engine::TxLink link_;
};

TEST_F(TxLinkTest, OverEndsTheGenerationAndKeepsTheConnection) {
  bring_up();
  const auto slot = memory_.take(0, engine::Pool::tx, 0);
  ASSERT_TRUE(slot);
  engine::Record record;
  record.slot = slot->slot;
  record.turn = slot->turn;
  record.length = 100;
  record.word = word();
  link_.forward(record);
  link_.advance(now_, {});
  ASSERT_EQ(transport_.sent.back().kind, RailFrame::offer);
  answer(RailFrame::over, 1);
  EXPECT_EQ(word(), 2u << 1);
  EXPECT_TRUE(memory_.is_free(*slot));
  EXPECT_EQ(transport_.disconnects, 0);
  link_.advance(now_, {});
  EXPECT_EQ(transport_.sent.back().kind, RailFrame::hello);
  EXPECT_EQ(transport_.sent.back().generation, 2u);
  answer(RailFrame::hello_back, 2);
  EXPECT_EQ(word(), (2u << 1) + 1);
}

TEST_F(TxLinkTest, OverThatOvertakesHelloBackRaisesTheGenerationOfALinkThatIsDown) {
  link_.advance(now_, {});
  answer(RailFrame::over, 1);
  answer(RailFrame::hello_back, 1);
  EXPECT_EQ(word(), 2u << 1);
  answer(RailFrame::hello_back, 2);
  EXPECT_TRUE(link_.up());
}

TEST_F(TxLinkTest, OverOfAnOlderGenerationSaysNothingNew) {
  bring_up();
  answer(RailFrame::over, 1);
  bring_up();
  const std::uint64_t before = word();
  answer(RailFrame::over, 1);
  EXPECT_EQ(word(), before);
}

TEST_F(TxLinkTest, DataWaitsForTheEndOfTheTurn) {
  bring_up();
  forward(100);
  const std::vector<RailHeader> asked = turn();
  ASSERT_EQ(asked.back().kind, RailFrame::offer);
  transport_.sent.clear();
  answer(RailFrame::accept, asked.back());
  EXPECT_TRUE(transport_.sent.empty());
  EXPECT_EQ(turn().back().kind, RailFrame::data);
}

// What landed is its destination's: the source hears of it once, with the attempt that it was, before it finds its slot free.
TEST_F(TxLinkTest, GotTellsTheSourceAndUnwantedDoesNot) {
  bring_up();
  for (const std::uint32_t bytes : {100u, 200u, 300u}) forward(bytes);
  const std::vector<RailHeader> asked = turn();
  ASSERT_EQ(asked.size(), 3u);
  for (const RailHeader& offer : asked) answer(RailFrame::accept, offer);
  turn();
  answer(RailFrame::got, asked[0]);
  ASSERT_EQ(confirmed_.size(), 1u);
  EXPECT_EQ(confirmed_[0].length, 100u);
  answer(RailFrame::got, asked[0]);  // repeated
  EXPECT_EQ(confirmed_.size(), 1u);
  answer(RailFrame::unwanted, asked[1]);
  EXPECT_EQ(confirmed_.size(), 1u) << "it has not landed";
  EXPECT_FALSE(link_.idle()) << "the third is under way";
  answer(RailFrame::unwanted, asked[2]);
  EXPECT_TRUE(link_.idle());
  EXPECT_TRUE(holds_.empty()) << "slots go back either way";
}

// Its attempt may have been retired already, and the slot given to another chunk.
TEST_F(TxLinkTest, GotOfAnEarlierGenerationTellsNobody) {
  bring_up();
  forward(100);
  const std::vector<RailHeader> asked = turn();
  answer(RailFrame::accept, asked.back());
  turn();
  answer(RailFrame::over, 1);
  answer(RailFrame::got, asked.back());
  EXPECT_TRUE(confirmed_.empty());
  EXPECT_TRUE(holds_.empty());
}

// Slots that the receiver accepts before it is asked.
class TxLinkAheadTest : public TxLinkTest {
 protected:
  void accept_ahead(std::uint64_t transfer, std::uint64_t generation) {
    RailHeader frame;
    frame.transfer = transfer;
    frame.generation = generation;
    frame.slot = static_cast<std::uint32_t>(100 + transfer);
    frame.turn = 7;
    answer(RailFrame::accept, frame);
  }
  std::vector<RailFrame> kinds() {
    std::vector<RailFrame> kinds;
    for (const RailHeader& frame : turn()) kinds.push_back(frame.kind);
    return kinds;
  }
};

TEST_F(TxLinkAheadTest, DataGoesWithoutAnOffer) {
  bring_up();
  turn();
  accept_ahead(1, 1);
  forward(100);
  const std::vector<RailHeader> sent = turn();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].kind, RailFrame::data);
  EXPECT_EQ(sent[0].transfer, 1u);
  EXPECT_EQ(sent[0].slot, 101u);
  EXPECT_EQ(sent[0].turn, 7u);
  EXPECT_EQ(sent[0].base, 1u) << "the receiver forgets finished transfers below it";
  accept_ahead(3, 1);  // not the next one
  forward(100);
  EXPECT_EQ(kinds(), std::vector{RailFrame::offer});
}

TEST_F(TxLinkAheadTest, SlotsOfAGenerationEndWithIt) {
  bring_up();
  turn();
  accept_ahead(1, 1);
  answer(RailFrame::over, 1);
  answer(RailFrame::hello_back, 2);
  ASSERT_TRUE(link_.up());
  accept_ahead(1, 1);  // late
  forward(100);
  const std::vector<RailFrame> sent = kinds();
  EXPECT_EQ(std::count(sent.begin(), sent.end(), RailFrame::offer), 1);
  EXPECT_EQ(std::count(sent.begin(), sent.end(), RailFrame::data), 0);
}

// The window is two. Behind it offers run ahead of the data, but not where slots come by themselves.
TEST_F(TxLinkAheadTest, AFullWindowAsksForNothingWhereSlotsComeWithAnswers) {
  bring_up();
  turn();
  accept_ahead(1, 1);
  accept_ahead(2, 1);
  for (int i = 0; i < 5; ++i) forward(100);
  const std::vector<RailHeader> first = turn();
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(kinds(), std::vector<RailFrame>{});
  answer(RailFrame::got, first[0]);
  accept_ahead(3, 1);
  EXPECT_EQ(kinds(), std::vector{RailFrame::data});
  // No slot came with this one: the rest is asked for.
  answer(RailFrame::got, first[1]);
  EXPECT_EQ(kinds(), (std::vector{RailFrame::offer, RailFrame::offer}));
}

// What waits with a slot of its own goes out in the turn of the answer, so the pipe does not run empty.
TEST_F(TxLinkAheadTest, ALinkWithAWindowOfTwoIsMeasured) {
  bring_up();
  turn();
  std::uint64_t accepted = 0;
  std::deque<RailHeader> on_the_rail;
  std::optional<std::uint64_t> rate;
  for (; accepted < 3; ++accepted) accept_ahead(accepted + 1, 1);
  for (int turns = 0; turns < 1000 && !rate; ++turns) {
    now_ += 1'000'000;
    if (!on_the_rail.empty()) {
      on_the_rail.front().chunk = static_cast<std::uint32_t>(now_ / 1000);
      answer(RailFrame::got, on_the_rail.front());
      on_the_rail.pop_front();
      accept_ahead(++accepted, 1);
    }
    for (int i = 0; i < 2; ++i) forward(static_cast<std::uint32_t>(memory_.chunk_bytes()));
    for (const RailHeader& frame : turn()) {
      if (frame.kind == RailFrame::data) on_the_rail.push_back(frame);
    }
    rate = link_.take_rate();
  }
  EXPECT_TRUE(rate);
}

// Both ends, where the receiver has a slot ahead for the link now and then only: the rail must not run dry while the sender waits for one,
// and is measured.
TEST_F(TxLinkAheadTest, ARailStaysFullWhereOneSlotIsAcceptedAhead) {
  constexpr std::uint64_t kChunkNs = 1'000'000, kLongNs = 1'000'000'000'000;
  constexpr int kSteps = 8, kDelay = 4, kChunks = 400;  // a chunk takes so many steps, a small frame half as many
  NodeParts far(1, {});
  engine::NodeMemory& far_memory = *far.memories[0];
  engine::RxPort rx(far.clusters[0], far_memory, 0, 1, kLongNs, 1, clock_);
  engine::TxLink tx({transport_, memory_, holds_, bytes_, clock_, confirm_}, {0, 0, 1}, {kLongNs, kLongNs, kLongNs, kLongNs}, 2);
  std::deque<std::pair<int, RailHeader>> there, back;
  std::deque<RailHeader> rail;
  int busy = 0, landed = 0, rates = 0;
  for (int step = 0; step < kChunks * kSteps; ++step) {
    now_ += kChunkNs / kSteps;
    for (; !back.empty() && back.front().first <= step; back.pop_front()) tx.on_answer(back.front().second, now_);
    for (; !there.empty() && there.front().first <= step; there.pop_front()) {
      const RailHeader& frame = there.front().second;
      frame.kind == RailFrame::hello ? rx.on_hello(frame) : rx.on_offer(frame);
    }
    if (!rail.empty() && ++busy == kSteps) {
      busy = 0;
      ASSERT_NE(rx.on_data(rail.front(), rail.front().length), nullptr);
      rx.on_data_done(rail.front(), true);
      rail.pop_front();
      ++landed;
      engine::Record record;
      while (far_memory.next(0, record)) far_memory.release(record.owner, record.pool, record.slot, record.turn);
    }
    for (RailHeader& answer : std::exchange(rx.answers(), {})) back.emplace_back(step + kDelay, answer);
    transport_.sent.clear();
    if (tx.up()) forward(static_cast<std::uint32_t>(memory_.chunk_bytes()), tx);
    tx.advance(now_, {});
    tx.send_accepted(now_);
    for (const std::uint64_t token : std::exchange(transport_.tokens, {})) holds_.sent(token);
    for (const RailHeader& frame : transport_.sent) {
      if (frame.kind == RailFrame::data) rail.push_back(frame);
      if (frame.kind == RailFrame::hello || frame.kind == RailFrame::offer) there.emplace_back(step + kDelay, frame);
    }
    if (tx.take_rate()) ++rates;
  }
  EXPECT_GE(landed, kChunks * 98 / 100);
  EXPECT_GT(rates, 10);
}

// As it would overtake the data, whose `accept` would say that the data was lost.
TEST_F(TxLinkTest, AnOfferIsNotRepeatedWhileTheTransportHasTheData) {
  bring_up();
  forward(100);
  answer(RailFrame::accept, turn().back());
  link_.send_accepted(now_);
  ASSERT_EQ(transport_.sent.back().kind, RailFrame::data);
  const std::uint64_t token = std::exchange(transport_.tokens, {}).back();
  const auto offers = [&] {
    const std::vector<RailHeader> sent = turn();
    return std::count_if(sent.begin(), sent.end(), [](const RailHeader& frame) { return frame.kind == RailFrame::offer; });
  };
  now_ += 150;  // the resend time is 100
  EXPECT_EQ(offers(), 0);
  EXPECT_GT(link_.next_deadline(), now_) << "or the thread would not sleep";
  holds_.sent(token);
  EXPECT_LE(link_.next_deadline(), now_);
  EXPECT_EQ(offers(), 1);
}

// Slow rails have windows of two. The other transfer is under way, and the next one goes out in the same turn.
// The receiver remembers each transfer that has ended until the ones before it have, too.
TEST_F(TxLinkTest, ATransferWithoutAnAnswerIsNotOvertakenByAnyNumber) {
  bring_up();
  std::optional<RailHeader> first;
  std::uint64_t newest = 0;
  const auto turns = [&](int count) {
    for (int each = 0; each < count; ++each) {
      forward(100);
      for (const RailHeader& frame : turn()) {
        newest = std::max(newest, frame.transfer);
        if (frame.kind == RailFrame::offer) answer(RailFrame::accept, frame);
        if (frame.kind != RailFrame::data) continue;
        if (first)
          answer(RailFrame::got, frame);
        else
          first = frame;
      }
    }
  };
  turns(10'000);
  ASSERT_TRUE(first);
  EXPECT_EQ(newest, first->transfer + 4095);
  answer(RailFrame::got, *first);
  turns(10);
  EXPECT_GT(newest, first->transfer + 4095);
}

TEST_F(TxLinkTest, ALinkWithAWindowOfTwoIsMeasured) {
  EXPECT_FALSE(link_.is_rate_old(20'000'000'000)) << "never measured";
  const auto bytes = static_cast<std::uint32_t>(memory_.chunk_bytes());
  constexpr std::uint64_t kChunkNs = 1'000'000;
  bring_up();
  std::deque<RailHeader> on_the_rail;
  std::optional<std::uint64_t> rate;
  for (int turns = 0; turns < 1000 && !rate; ++turns) {
    now_ += kChunkNs;
    if (!on_the_rail.empty()) {
      on_the_rail.front().chunk = static_cast<std::uint32_t>(now_ / 1000);
      answer(RailFrame::got, on_the_rail.front());
      on_the_rail.pop_front();
    }
    keep_full(on_the_rail);
    rate = link_.take_rate();
  }
  ASSERT_TRUE(rate);
  const std::uint64_t paced = std::uint64_t{bytes} * 1'000'000'000 / kChunkNs;
  EXPECT_GE(*rate, paced);
  EXPECT_LE(*rate, paced * 4 / 3);  // time for which this thread lacked a CPU does not count
  EXPECT_FALSE(link_.is_rate_old(now_ + 9'000'000'000));
  EXPECT_TRUE(link_.is_rate_old(now_ + 10'000'000'000));
  EXPECT_FALSE(link_.is_rate_old(now_ + 10'000'000'001)) << "said once";
}

// Where answers take longer than the resend time, each offer is repeated, and its repetition answered, too.
TEST_F(TxLinkTest, ALinkWhoseOffersAreRepeatedIsMeasured) {
  bring_up();
  std::deque<RailHeader> on_the_rail;
  std::map<std::uint64_t, int> asked;
  std::optional<std::uint64_t> rate;
  for (int turns = 0; turns < 1000 && !rate; ++turns) {
    now_ += 1'000'000;
    answer(RailFrame::pong, word() >> 1);  // it lives
    if (!on_the_rail.empty()) {
      on_the_rail.front().chunk = static_cast<std::uint32_t>(now_ / 1000);
      answer(RailFrame::got, on_the_rail.front());
      on_the_rail.pop_front();
    }
    for (int i = 0; i < 2; ++i) forward(static_cast<std::uint32_t>(memory_.chunk_bytes()));
    for (const RailHeader& frame : turn()) {
      if (frame.kind == RailFrame::data) on_the_rail.push_back(frame);
      if (frame.kind != RailFrame::offer || ++asked[frame.transfer] != 2) continue;
      answer(RailFrame::accept, frame);
      answer(RailFrame::accept, frame, 1);
    }
    rate = link_.take_rate();
  }
  EXPECT_TRUE(rate);
}

// A `got` that is repeated, or answers an offer that nobody wants, does not say when anything came.
TEST_F(TxLinkTest, AnswersWithoutATimeMeasureNothing) {
  const auto bytes = static_cast<std::uint32_t>(memory_.chunk_bytes());
  constexpr std::uint64_t kChunkNs = 1'000'000;
  constexpr std::uint32_t kUptimeUs = 1'000'000'000;
  bring_up();
  std::deque<RailHeader> on_the_rail;
  for (int turns = 0; turns < 200; ++turns) {
    now_ += kChunkNs;
    if (!on_the_rail.empty()) {
      on_the_rail.front().chunk = turns % 40 < 20 || turns % 2 == 0 ? kUptimeUs + static_cast<std::uint32_t>(now_ / 1000) : 0;
      on_the_rail.front().length = 0;
      answer(RailFrame::got, on_the_rail.front());
      on_the_rail.pop_front();
    }
    keep_full(on_the_rail);
    if (const auto rate = link_.take_rate()) {
      EXPECT_GE(*rate, std::uint64_t{bytes} * 1'000'000'000 / kChunkNs * 7 / 8) << "turn " << turns;
    }
  }
}

}  // namespace
}  // namespace railweave::test
