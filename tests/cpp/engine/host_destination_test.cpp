// What a destination makes of frames that no engine sends: they came over a network.
#include "host_destination.hpp"

#include <gtest/gtest.h>

#include "services.hpp"

namespace railweave::test {
namespace {

using engine::FrameType;
using engine::MessageKey;

// A small message from rank 1, on the other node.
class HostDestinationTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 100;
  HostDestinationTest() : destination_(services_, copier_, [](const engine::Grant&, std::byte*) {}) {
    engine::RecvMessage& message = operation_.recvs.emplace_back();
    message.key = {0, 1, 0, 0, 1};
    message.data = data_;
    message.bytes = kBytes;
    message.chunks = 1;
    message.operation = &operation_;
    operation_.unfinished = 1;
    destination_.receive(operation_);
  }
  const MessageKey& key() const { return operation_.recvs[0].key; }
  void eager() { destination_.on_eager(key(), data_); }

  Services services_;
  LateCopier copier_;
  std::byte data_[kBytes] = {};
  engine::Operation operation_;
  engine::HostDestination destination_;
};

// The end of the first copy would end the operation under the second.
TEST_F(HostDestinationTest, AMessageThatIsBeingCopiedIsNotTakenAgain) {
  eager();
  eager();
  destination_.on_ask({key(), kBytes});
  EXPECT_EQ(services_.sent(), std::vector<FrameType>{}) << "it has come";
  ASSERT_EQ(copier_.tickets.size(), 1u);
  EXPECT_EQ(operation_.unfinished, 1u);
  destination_.on_copied({copier_.tickets[0], true});
  EXPECT_EQ(operation_.unfinished, 0u);
  EXPECT_FALSE(operation_.copies_under_way());
}

TEST_F(HostDestinationTest, OneThatComesInChunksIsNotTakenFromAFrame) {
  destination_.on_ask({key(), kBytes});
  EXPECT_EQ(services_.sent(), std::vector<FrameType>{FrameType::grant});
  eager();
  EXPECT_EQ(copier_.tickets.size(), 0u);
}

// An operation that another rank's death refuses was never looked for here; the source still lives and sends others.
TEST_F(HostDestinationTest, WhatHasComeForARefusedOperationGivesItsRoomBack) {
  services_.state = engine::MessageState::unposted;
  engine::Operation refused;
  for (std::uint64_t number = 1; number <= engine::kEagerCredits; ++number) {
    engine::RecvMessage& message = refused.recvs.emplace_back();
    message.key = key();
    message.key.number = 1 + number;
    destination_.on_eager(message.key, data_);
  }
  destination_.on_eager({0, 1, 0, 0, 1000}, data_);
  EXPECT_FALSE(destination_.has_come({0, 1, 0, 0, 1000})) << "no room";
  EXPECT_EQ(services_.sent(), std::vector<FrameType>{});
  destination_.drop(refused);
  EXPECT_EQ(services_.sent(), std::vector<FrameType>(2, FrameType::credit));
  for (const engine::RecvMessage& message : refused.recvs) EXPECT_FALSE(destination_.has_come(message.key));
  destination_.on_eager({0, 1, 0, 0, 1000}, data_);
  EXPECT_TRUE(destination_.has_come({0, 1, 0, 0, 1000}));
}

// Of a source that was not told that it may.
TEST_F(HostDestinationTest, ChunksOfAMessageWithoutAGrantAreNotTaken) {
  const auto slot = services_.memory().take(0, engine::Pool::rx, 0, 0);
  ASSERT_TRUE(slot);
  engine::Record record;
  record.message = key();
  record.length = kBytes;
  record.pool = engine::Pool::rx;
  record.slot = slot->slot;
  record.turn = slot->turn;
  destination_.on_record(record);
  EXPECT_EQ(copier_.tickets.size(), 0u);
  EXPECT_FALSE(services_.memory().holds(0, engine::Pool::rx, slot->slot, slot->turn)) << "freed all the same";
}

}  // namespace
}  // namespace railweave::test
