// What a destination makes of frames that no engine sends: they came over a network.
#include "host_destination.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "parts.hpp"

namespace railweave::test {
namespace {

using engine::FrameType;
using engine::MessageKey;

class Services final : public engine::EngineServices {
 public:
  const engine::Cluster& cluster() const override { return node_.clusters[0]; }
  engine::NodeMemory& memory() override { return *node_.memories[0]; }
  engine::ControlChannel& control() override { return channel_; }
  const engine::Router& router() const override { std::abort(); }  // destinations route nothing
  bool relays(std::uint32_t) const override { return true; }
  bool serves(std::uint32_t) const override { return true; }
  std::uint64_t link_word(std::uint32_t, std::uint32_t) const override { return 1; }
  std::shared_ptr<void> registered(const std::byte*, std::uint64_t, engine::MemoryHandle&, std::uint64_t&) override { return nullptr; }
  std::shared_ptr<engine::SharedMemory> map(const engine::MemoryHandle&) override { return nullptr; }
  engine::MessageState state_of(const MessageKey&) const override { return engine::MessageState::unfinished; }
  std::uint64_t eager_bytes() const override { return 1000; }
  void message_over(engine::Operation& operation) override { --operation.unfinished; }
  void fail(engine::Operation& operation, const engine::Failure& failure) override { operation.failure = failure; }
  std::optional<engine::Failure> death() const override { return std::nullopt; }
  void post(const std::shared_ptr<engine::Operation>&) override {}

  std::vector<FrameType> sent() const { return carrier_.types; }

 private:
  struct Noted final : engine::Carrier {
    bool carry(std::uint32_t, const engine::Frame& frame, std::uint32_t) override {
      engine::FrameHeader header;
      std::memcpy(&header, frame.content().data(), sizeof header);
      types.push_back(header.type);
      return true;
    }
    std::vector<FrameType> types;
  };
  NodeParts node_{1, {}};
  Noted carrier_;
  engine::ControlChannel channel_{
      node_.clusters[0], *node_.memories[0], carrier_, {}, [](std::uint32_t, FrameType, engine::ByteReader&) {}};
};

// Copies when the test says so, as a GPU does when its kernel comes to it.
class LateCopier final : public engine::Copier {
 public:
  bool has_room() const override { return true; }
  bool push(std::byte*, const std::byte*, std::uint64_t, std::uint64_t ticket) override { return note(ticket); }
  bool pull(std::byte*, const std::byte*, std::uint64_t, std::uint64_t ticket) override { return note(ticket); }
  bool put(std::byte*, std::span<const std::byte>, std::uint64_t ticket) override { return note(ticket); }
  void take_ended(std::vector<Ended>&) override {}
  std::vector<std::uint64_t> tickets;

 private:
  bool note(std::uint64_t ticket) {
    tickets.push_back(ticket);
    return false;
  }
};

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
