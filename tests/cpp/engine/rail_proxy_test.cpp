// What a rank takes for a sign of life, and whom it answers (docs/protocol.md §12, death of a node).
#include "rail_proxy.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "parts.hpp"

namespace railweave::test {
namespace {

using engine::RailFrame;
using engine::RailHeader;

// Rank 0 with NIC 0, which may have mates without one; NICs 1 and 2 belong to the two ranks of node 1.
class RailProxyTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kNow = 1'000'000'000;

  explicit RailProxyTest(std::uint32_t mates = 1, std::uint64_t rail_Bps = 50'000'000) : node_(mates, {}), memory_(*node_.memories[0]) {
    auto transport = std::make_unique<NotedTransport>();
    transport_ = transport.get();
    std::vector<std::unique_ptr<engine::Transport>> transports;
    transports.push_back(std::move(transport));
    proxy_ = std::make_unique<engine::RailProxy>(
        node_.clusters[0], memory_, ExchangeSettings{}, std::move(transports), [](std::uint32_t, std::uint32_t) { return true; },
        [rail_Bps](std::uint32_t) { return rail_Bps; }, [this](std::span<const std::byte> frame) { frames_.push_back(text_of(frame)); },
        [this](const engine::Record& record) { confirmed_.push_back(record); });
    proxy_->advance(kNow);
  }

  void deliver(RailFrame kind, std::uint32_t from) {
    RailHeader frame;
    frame.kind = kind;
    frame.from_nic = from;
    frame.generation = 1;
    transport_->listener->on_delivered(frame, nullptr, 0, true);
  }
  // Whether an answer goes out to that NIC in the next turn.
  bool answers(std::uint32_t to) {
    transport_->sent.clear();
    proxy_->advance(kNow + 1);
    return std::any_of(transport_->sent.begin(), transport_->sent.end(), [to](const RailHeader& frame) {
      return frame.to_nic == to && (frame.kind == RailFrame::hello_back || frame.kind == RailFrame::pong || frame.kind == RailFrame::over);
    });
  }

  static std::string text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
  static std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
  // A `carry` from NIC 1 with that payload.
  void deliver_carried(const std::string& payload) {
    RailHeader frame;
    frame.kind = RailFrame::carry;
    frame.from_nic = 1;
    frame.generation = 1;
    frame.length = static_cast<std::uint32_t>(payload.size());
    transport_->listener->on_carried(frame, bytes_of(payload));
  }

  std::vector<std::string> frames_;
  std::vector<engine::Record> confirmed_;
  NodeParts node_;
  engine::NodeMemory& memory_;
  NotedTransport* transport_ = nullptr;
  std::unique_ptr<engine::RailProxy> proxy_;
};

TEST_F(RailProxyTest, OnlyAnAnswerIsASignOfLife) {
  for (const RailFrame kind : {RailFrame::hello, RailFrame::ping, RailFrame::offer}) deliver(kind, 1);
  EXPECT_EQ(memory_.last_heard(1), 0u);
  deliver(RailFrame::hello_back, 1);
  EXPECT_EQ(memory_.last_heard(1), kNow);
}

// Whether the link to NIC 1 is up, so long after a ping of which it has heard nothing.
class RailTimeoutTest : public RailProxyTest {
 protected:
  explicit RailTimeoutTest(std::uint64_t rail_Bps = 50'000'000) : RailProxyTest(1, rail_Bps) {
    deliver(RailFrame::hello_back, 1);
    proxy_->advance(kAsked);
  }
  bool is_up_after(std::uint64_t ms) {
    proxy_->advance(kAsked + ms * 1'000'000);
    return (memory_.link_word(0, 0, 1) & 1) != 0;
  }
  static constexpr std::uint64_t kAsked = kNow + 200'000'000;
};

TEST_F(RailTimeoutTest, ARailThatAnswersNothingIsDown) {
  EXPECT_TRUE(is_up_after(999));
  EXPECT_FALSE(is_up_after(1001));
}

class SlowRailTimeoutTest : public RailTimeoutTest {
 protected:
  SlowRailTimeoutTest() : RailTimeoutTest(125'000) {}  // 1 Mbit/s
};

// Two links with two chunks of 128 KiB each take 4.2 s, and answers may wait behind as many bytes of the other direction.
TEST_F(SlowRailTimeoutTest, ASlowRailHasTheTimeThatItsChunksTake) {
  EXPECT_TRUE(is_up_after(8400));
  EXPECT_FALSE(is_up_after(13'000));
}

class RailProxyForMatesTest : public RailProxyTest {
 protected:
  RailProxyForMatesTest() : RailProxyTest(2) {}

  // A chunk of that source's goes over the rail from NIC 0 to NIC 1, and is answered so.
  void send(std::uint32_t source, RailFrame end) {
    const auto slot = memory_.take(0, engine::Pool::tx, 0);
    ASSERT_TRUE(slot);
    engine::Record record;
    record.kind = engine::RecordKind::forward;
    record.message = {0, source, 2, 0, 7};
    record.chunk = 3;
    record.attempt = 2;
    record.pool = engine::Pool::tx;
    record.slot = slot->slot;
    record.turn = slot->turn;
    record.link = 0 * 3 + 1;
    record.length = 100;
    record.word = memory_.link_word(0, 0, 1);
    proxy_->forward(record);
    transport_->sent.clear();
    proxy_->advance(kNow + 1);
    ASSERT_EQ(transport_->sent.back().kind, RailFrame::offer);
    RailHeader answer = transport_->sent.back();
    answer.from_nic = 1;
    answer.to_nic = 0;
    for (const RailFrame kind : {RailFrame::accept, end}) {
      answer.kind = kind;
      transport_->listener->on_delivered(answer, nullptr, 0, true);
      proxy_->advance(kNow + 1);
    }
  }
  bool told(std::uint32_t rank) {
    engine::Record record;
    if (!node_.memories[rank]->next(0, record)) return false;
    EXPECT_EQ(record.kind, engine::RecordKind::confirmed);
    EXPECT_EQ(record.message, (engine::MessageKey{0, rank, 2, 0, 7}));
    EXPECT_EQ(record.chunk, 3u);
    EXPECT_EQ(record.attempt, 2u);
    return true;
  }
};

TEST_F(RailProxyForMatesTest, WhatHasLandedIsToldToItsSource) {
  deliver(RailFrame::hello_back, 1);
  send(1, RailFrame::unwanted);
  EXPECT_FALSE(told(1));
  send(1, RailFrame::got);
  EXPECT_TRUE(told(1));
  EXPECT_TRUE(confirmed_.empty());
  send(0, RailFrame::got);
  EXPECT_EQ(confirmed_.size(), 1u) << "of this rank's own, without a ring";
  EXPECT_FALSE(told(0));
  for (const std::uint32_t stranger : {2u, 1000u}) send(stranger, RailFrame::got);  // a mate's record said so
  EXPECT_FALSE(told(1));
  EXPECT_EQ(confirmed_.size(), 1u);
}

TEST_F(RailProxyTest, TheDeadGetNoAnswer) {
  deliver(RailFrame::hello, 1);
  EXPECT_TRUE(answers(1));
  proxy_->abandon(1, true);
  deliver(RailFrame::hello, 1);
  deliver(RailFrame::ping, 1);
  EXPECT_FALSE(answers(1));
  deliver(RailFrame::hello, 2);
  EXPECT_TRUE(answers(2));
}

TEST_F(RailProxyTest, FramesOfATurnToANicGoOutTogetherAndComeApart) {
  deliver(RailFrame::hello_back, 1);
  deliver(RailFrame::hello_back, 2);
  transport_->sent.clear();
  for (const std::string frame : {"one", "two"}) EXPECT_TRUE(proxy_->carry(1, engine::Frame(bytes_of(frame)), 0));
  EXPECT_TRUE(proxy_->carry(2, engine::Frame(bytes_of("another")), 0));
  EXPECT_TRUE(transport_->sent.empty()) << "there may be more";
  proxy_->flush();
  ASSERT_EQ(transport_->sent.size(), 2u);
  for (const RailHeader& sent : transport_->sent) {
    EXPECT_EQ(sent.kind, RailFrame::carry);
    EXPECT_EQ(sent.length, transport_->payloads[&sent - transport_->sent.data()].size());
  }
  proxy_->flush();
  EXPECT_EQ(transport_->sent.size(), 2u) << "nothing twice";
  deliver_carried(transport_->payloads[transport_->sent[0].to_nic == 1 ? 0 : 1]);
  EXPECT_EQ(frames_, (std::vector<std::string>{"one", "two"}));
}

TEST_F(RailProxyTest, AsManyFramesGoTogetherAsTheOtherEndTakes) {
  deliver(RailFrame::hello_back, 1);
  transport_->sent.clear();
  const std::vector<std::string> frames(20, std::string(8u << 10, 'x'));
  for (const std::string& frame : frames) EXPECT_TRUE(proxy_->carry(1, engine::Frame(bytes_of(frame)), 0));
  proxy_->flush();
  EXPECT_EQ(transport_->sent.size(), 2u);
  for (const std::string& payload : std::vector(transport_->payloads)) {
    EXPECT_LE(payload.size(), engine::kMaxCarryBytes);
    deliver_carried(payload);
  }
  EXPECT_EQ(frames_, frames);
}

TEST_F(RailProxyTest, LargeFramesGoAloneAndFromWhereTheyLie) {
  deliver(RailFrame::hello_back, 1);
  transport_->sent.clear();
  const std::string large(engine::kMaxFrameBytes, 'x');
  const engine::Frame frame(bytes_of(large));
  for (const auto& each : {engine::Frame(bytes_of("before")), frame, engine::Frame(bytes_of("behind")), engine::Frame(bytes_of("it"))})
    EXPECT_TRUE(proxy_->carry(1, each, 0));
  proxy_->flush();
  ASSERT_EQ(transport_->sent.size(), 3u);
  EXPECT_EQ(transport_->addresses[1], frame.carried().data());
  for (const std::string& payload : std::vector(transport_->payloads)) deliver_carried(payload);
  EXPECT_EQ(frames_, (std::vector<std::string>{"before", large, "behind", "it"})) << "in their order";
}

// Of what another machine sent.
TEST_F(RailProxyTest, LengthsThatDoNotFitEndTheFrames) {
  const std::string three{"\3\0\0\0abc", 7};
  for (const std::string& rest : {std::string(), std::string("\1", 1), std::string("\0\0\0\0", 4), std::string("\xff\xff\xff\xff", 4),
                                  std::string("\4\0\0\0abc", 7)}) {
    frames_.clear();
    deliver_carried(three + rest);
    EXPECT_EQ(frames_, (std::vector<std::string>{"abc"})) << rest.size() << " bytes behind it";
  }
}

TEST_F(RailProxyTest, ARailOf400MbitGetsAWindowOfThreeChunks) {
  deliver(RailFrame::hello_back, 1);
  constexpr int kChunks = 12;
  for (int i = 0; i < kChunks; ++i) {
    const auto slot = memory_.take(0, engine::Pool::tx, 0);
    ASSERT_TRUE(slot);
    engine::Record record;
    record.slot = slot->slot;
    record.turn = slot->turn;
    record.link = 0 * 3 + 1;  // from NIC 0 to NIC 1, of three
    record.length = 100;
    record.word = memory_.link_word(0, 0, 1);
    proxy_->forward(record);
  }
  transport_->sent.clear();
  proxy_->advance(kNow + 1);
  // 7.5 ms at 50 MB/s are 2.9 chunks of 128 KiB; offers run two windows ahead.
  EXPECT_EQ(std::count_if(transport_->sent.begin(), transport_->sent.end(),
                          [](const RailHeader& frame) { return frame.kind == RailFrame::offer; }),
            9);
}

}  // namespace
}  // namespace railweave::test
