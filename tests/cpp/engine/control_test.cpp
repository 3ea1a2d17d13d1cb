// The control channel (docs/protocol.md §4).
#include "control.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "parts.hpp"

namespace railweave::test {
namespace {

class NoCarrier final : public engine::Carrier {
 public:
  bool carry(std::uint32_t, const engine::Frame&, std::uint32_t) override { return false; }
};

// A transport that has not read anything yet.
class KeepingCarrier final : public engine::Carrier {
 public:
  bool carry(std::uint32_t, const engine::Frame& frame, std::uint32_t) override {
    frames.push_back(frame);
    return true;
  }
  engine::FrameHeader header(std::size_t index) const {
    engine::FrameHeader header;
    std::memcpy(&header, frames[index].content().data(), sizeof header);
    return header;
  }
  std::vector<engine::Frame> frames;
};

// A rank that leaves waits for this: a mate that has not read its lease_end may be about to take one of its slots.
TEST(Control, AFrameToAMateIsSettledWhenTheMateHasReadIt) {
  NodeParts node(2, {});
  NoCarrier carrier;
  engine::ControlChannel channel(node.clusters[0], *node.memories[0], carrier, {},
                                 [](std::uint32_t, engine::FrameType, engine::ByteReader&) {});
  EXPECT_TRUE(channel.settled(1));
  channel.send(1, engine::FrameType::lease_end, {});
  EXPECT_FALSE(channel.settled(1));
  std::vector<std::byte> frame;
  ASSERT_TRUE(node.memories[1]->next_mail(0, frame));
  EXPECT_TRUE(channel.settled(1));
}

// Where this rank has no NIC of its own. What the board of a dead mate says of its links nobody renews.
TEST(Control, AFrameGoesToAMateThatLivesAndShowsIt) {
  NodeParts node(rail_cluster(3, 1'000'000), {});
  NoCarrier carrier;
  engine::ControlChannel channel(node.clusters[0], *node.memories[0], carrier, {},
                                 [](std::uint32_t, engine::FrameType, engine::ByteReader&) {});
  for (const std::uint32_t mate : {1u, 2u}) node.memories[mate]->set_link_word(0, 3, 3);
  const auto carried_by = [&] {
    channel.send(3, engine::FrameType::lease_end, {});
    std::vector<std::uint32_t> found;
    for (const std::uint32_t mate : {1u, 2u}) {
      std::vector<std::byte> frame;
      while (node.memories[mate]->next_mail(0, frame)) found.push_back(mate);
    }
    return found;
  };
  using Mates = std::vector<std::uint32_t>;
  EXPECT_EQ(carried_by(), Mates{1});
  node.memories[0]->set_shows_life(1, false);
  EXPECT_EQ(carried_by(), Mates{2});
  const std::uint64_t changes = node.memories[0]->link_changes();
  node.memories[0]->set_dead(2);
  EXPECT_NE(node.memories[0]->link_changes(), changes);
  EXPECT_EQ(carried_by(), Mates{1}) << "nobody else can";
  node.memories[0]->set_shows_life(1, true);
  EXPECT_EQ(carried_by(), Mates{1});
  EXPECT_EQ(node.memories[0]->link_word(2, 0, 3), 2u);
}

// A turn of the engine reads the clock before it sends.
TEST(Control, AFrameIsSentAgainAfterTheResendTimeOnly) {
  NodeParts node(1, {});
  KeepingCarrier carrier;
  const ExchangeSettings settings;
  engine::ControlChannel channel(node.clusters[0], *node.memories[0], carrier, settings,
                                 [](std::uint32_t, engine::FrameType, engine::ByteReader&) {});
  const std::uint64_t now = engine::now_ns();
  channel.send(1, engine::FrameType::lease_end, {});
  EXPECT_FALSE(channel.flush(now));
  EXPECT_EQ(carrier.frames.size(), 1u);
  EXPECT_TRUE(channel.flush(channel.next_deadline()));
  EXPECT_EQ(carrier.frames.size(), 2u);
}

TEST(Control, AFrameThatIsStillBeingReadIsNotChangedBySendingItAgain) {
  NodeParts node(1, {});
  KeepingCarrier carrier;
  engine::ControlChannel channel(node.clusters[0], *node.memories[0], carrier, {},
                                 [](std::uint32_t, engine::FrameType, engine::ByteReader&) {});
  channel.send(1, engine::FrameType::lease_end, {});
  engine::FrameHeader answer = carrier.header(0);
  std::swap(answer.source, answer.destination);
  channel.receive(std::as_bytes(std::span(&answer, 1)), engine::now_ns());
  channel.links_changed();
  EXPECT_TRUE(channel.flush(engine::now_ns()));
  ASSERT_EQ(carrier.frames.size(), 2u);
  EXPECT_EQ(carrier.header(0).acknowledge, 0u);
  EXPECT_EQ(carrier.header(1).acknowledge, 1u);
}

// Rank 1 has no NIC. What its mate has no room for goes out when there is room, in its order, and not only when it is time for a resend.
TEST(Control, FramesThatTheirCarrierHasNoRoomForWait) {
  NodeParts node(2, {});
  node.clusters[1].nodes[1].nics = {1, 2};
  node.memories[0]->set_link_word(0, 1, 3);
  NoCarrier carrier;
  engine::ControlChannel channel(node.clusters[1], *node.memories[1], carrier, {},
                                 [](std::uint32_t, engine::FrameType, engine::ByteReader&) {});
  constexpr std::uint64_t kFrames = 10;
  const std::vector<std::byte> data(64u << 10);
  static_assert(kFrames * (64u << 10) > 2 * engine::kMailBytes);
  const std::uint64_t now = engine::now_ns();
  for (std::uint64_t i = 0; i < kFrames; ++i) channel.send(2, engine::FrameType::eager, data);
  std::vector<std::uint64_t> sequences;
  do {
    std::vector<std::byte> frame;
    while (node.memories[0]->next_mail(1, frame)) {
      engine::FrameHeader header;
      std::memcpy(&header, frame.data(), sizeof header);
      sequences.push_back(header.sequence);
    }
  } while (channel.flush(now));
  EXPECT_EQ(sequences, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

// A carrier that loses what it gets until it is mended, between two ranks that have no others.
class LosingCarrier final : public engine::Carrier {
 public:
  bool carry(std::uint32_t, const engine::Frame& frame, std::uint32_t) override {
    if (mended) frames.push_back(frame);
    return true;
  }
  void deliver(engine::ControlChannel& to, std::uint64_t now) {
    for (const engine::Frame& frame : std::exchange(frames, {})) to.receive(frame.content(), now);
  }
  bool mended = false;
  std::vector<engine::Frame> frames;
};

// A link under load loses thousands of frames before it is known to be down.
TEST(Control, WhatALinkHasLostIsSentAgainWithoutAResendTimeForEachPartOfIt) {
  constexpr std::uint64_t kFrames = 3000;
  NodeParts node(1, {});
  engine::Cluster far = node.clusters[0];
  far.rank = 1;
  std::uint64_t delivered = 0;
  LosingCarrier there, back;
  const ExchangeSettings settings;
  engine::ControlChannel sender(node.clusters[0], *node.memories[0], there, settings,
                                [](std::uint32_t, engine::FrameType, engine::ByteReader&) {});
  engine::ControlChannel receiver(far, *node.memories[0], back, settings,
                                  [&](std::uint32_t, engine::FrameType, engine::ByteReader&) { ++delivered; });
  for (std::uint64_t i = 0; i < kFrames; ++i) sender.send(1, engine::FrameType::credit, {});
  there.mended = back.mended = true;
  const std::uint64_t begin = engine::now_ns(), resend_ns = settings.resend_ms * 1'000'000;
  std::uint64_t now = begin;
  for (int turn = 0; turn < 100'000 && !sender.settled(1); ++turn) {
    sender.flush(now);
    receiver.flush(now);
    there.deliver(receiver, now);
    back.deliver(sender, now);
    if (!sender.settled(1)) now = std::max(now, std::min(sender.next_deadline(), receiver.next_deadline()));
  }
  EXPECT_EQ(delivered, kFrames);
  EXPECT_TRUE(sender.settled(1));
  EXPECT_LT(now - begin, 10 * resend_ns);
}

}  // namespace
}  // namespace railweave::test
