// The control channel (docs/protocol.md §4).
#include "control.hpp"

#include <gtest/gtest.h>

#include "parts.hpp"

namespace railweave::test {
namespace {

class NoCarrier final : public engine::Carrier {
 public:
  bool carry(std::uint32_t, std::span<const std::byte>, std::uint32_t) override { return false; }
};

class CountingCarrier final : public engine::Carrier {
 public:
  bool carry(std::uint32_t, std::span<const std::byte>, std::uint32_t) override {
    ++frames;
    return true;
  }
  int frames = 0;
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

// A turn of the engine reads the clock before it sends.
TEST(Control, AFrameIsSentAgainAfterTheResendTimeOnly) {
  NodeParts node(1, {});
  CountingCarrier carrier;
  const ExchangeSettings settings;
  engine::ControlChannel channel(node.clusters[0], *node.memories[0], carrier, settings,
                                 [](std::uint32_t, engine::FrameType, engine::ByteReader&) {});
  const std::uint64_t now = engine::now_ns();
  channel.send(1, engine::FrameType::lease_end, {});
  EXPECT_FALSE(channel.flush(now));
  EXPECT_EQ(carrier.frames, 1);
  EXPECT_TRUE(channel.flush(channel.next_deadline()));
  EXPECT_EQ(carrier.frames, 2);
}

}  // namespace
}  // namespace railweave::test
