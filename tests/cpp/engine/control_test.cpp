// The control channel inside a node (docs/protocol.md §4).
#include "control.hpp"

#include <gtest/gtest.h>

#include "parts.hpp"

namespace railweave::test {
namespace {

class NoCarrier final : public engine::Carrier {
 public:
  bool carry(std::uint32_t, std::span<const std::byte>, std::uint32_t) override { return false; }
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

}  // namespace
}  // namespace railweave::test
