// What a launch with messages to other nodes is made of.
#include "rail_prepare.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "planned_messages.hpp"
#include "rail_port.hpp"

namespace railweave::cuda {
namespace {

Message message(Direction direction, HostView* host, std::uint64_t bytes) {
  Message m{};
  m.direction = direction;
  m.host = host;
  m.bytes = bytes;
  return m;
}

TEST(PrepareRails, TheFirstOfEachCommunicatorReportsAndMessagesOfAPairKeepTheirOrder) {
  HostView a{}, b{};
  std::vector<Message> rails{message(Direction::send, &a, 1), message(Direction::send, &b, 2), message(Direction::send, &a, 3),
                             message(Direction::receive, &b, 4)};
  prepare_rails(rails, {Kernel::any, 1}, {});
  const std::vector<std::uint64_t> bytes{1, 3, 2, 4};
  const std::vector<bool> reports{true, false, true, false};
  for (std::size_t i = 0; i < rails.size(); ++i) {
    EXPECT_EQ(rails[i].bytes, bytes[i]) << i;
    EXPECT_EQ(rails[i].reports, reports[i]) << i;
    EXPECT_EQ(rails[i].path, Path::rail) << i;
  }
  EXPECT_EQ(rails[0].piece_bytes, 2u);
  EXPECT_EQ(rails[2].piece_bytes, 2u);
  EXPECT_EQ(rails[0].operation.completed, 2u);
  EXPECT_EQ(rails[0].operation.bytes_sent, 4u);
  EXPECT_EQ(rails[2].operation.bytes_sent, 2u);
  EXPECT_EQ(rails[2].operation.bytes_received, 4u);
}

// Each communicator has a port of its own.
TEST(PrepareRails, SmallSendsFindPlacesInThePortOfTheirCommunicator) {
  constexpr std::uint64_t kMost = 60'000;
  static_assert(kRailStage / kMost == 4);
  HostView a{}, b{};
  std::vector<Message> rails{
      message(Direction::send, &a, 1),         message(Direction::send, &a, kMost), message(Direction::receive, &a, 5),
      message(Direction::send, &a, kMost + 1), message(Direction::send, &a, kMost), message(Direction::send, &a, kMost),
      message(Direction::send, &a, kMost),     message(Direction::send, &a, kMost), message(Direction::send, &a, 17),
      message(Direction::send, &b, 7),         message(Direction::send, &b, kMost)};
  LaunchLimits limits;
  limits.staged_bytes = kMost;
  prepare_rails(rails, {Kernel::any, 1}, limits);
  std::vector<std::uint32_t> places;
  for (const Message& m : rails) places.push_back(m.ordinal);
  EXPECT_EQ(places, (std::vector<std::uint32_t>{0, 16, kNotStaged, kNotStaged, 16 + 60'000, 16 + 120'000, 16 + 180'000, kNotStaged,
                                                16 + 240'000, 0, 16}));
}

// The kernel for rails has the general roles: they number and deal messages in packets and granted ones together.
TEST(PrepareRails, MessagesInsideTheNodeAreLeftToTheGeneralRoles) {
  HostView a{};
  Port ports[2];
  std::vector<Message> near{message(Direction::send, &a, 4u << 20), message(Direction::send, &a, 16),
                            message(Direction::send, &a, 2u << 20)};
  for (std::size_t i = 0; i < near.size(); ++i) near[i].local = &ports[i % 2];
  LaunchLimits limits;
  limits.cluster_blocks = 8;
  EXPECT_EQ(prepare(sized(near, 1u << 20), limits).kernel, Kernel::apart);
  limits.beside_rails = true;
  std::vector<Message> rails{message(Direction::send, &a, 9)};
  const Plan plan = prepare_rails(rails, prepare(sized(near, 1u << 20), limits), limits);
  EXPECT_EQ(plan.kernel, Kernel::rails);
  EXPECT_EQ(plan.packet_messages, 0u);
  EXPECT_GT(plan.blocks, 4u);
}

// Bytes of a send and a receive inside the node, of each message; those over rails in the fuller direction; what the operation gets.
struct Beside {
  std::uint64_t near, rails;
  bool mapped;
  std::uint32_t blocks;
};
class BlocksBeside : public testing::TestWithParam<Beside> {};

TEST_P(BlocksBeside, MessagesInsideTheNodeNeedBeNoFasterThanRails) {
  const Beside& c = GetParam();
  HostView a{};
  Port port;
  std::vector<Message> near{message(Direction::send, &a, c.near), message(Direction::receive, &a, c.near)};
  for (Message& m : near) m.local = &port;
  near[1].named.buffer = c.mapped ? kAbsoluteBuffer : kNoBuffer;
  LaunchLimits limits;
  limits.world = 4;
  limits.beside_rails = true;
  std::vector<Message> rails{message(Direction::send, &a, c.rails), message(Direction::receive, &a, c.rails / 2)};
  limits.rail_bytes = bytes_over_rails(rails);
  EXPECT_EQ(limits.rail_bytes, c.rails);
  EXPECT_EQ(prepare(sized(near, 1u << 20), limits).blocks, c.blocks);
}
constexpr std::uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
INSTANTIATE_TEST_SUITE_P(Table, BlocksBeside,
                         testing::Values(Beside{64_MiB, 64_MiB, true, 4}, Beside{64_MiB, 192_MiB, true, 4}, Beside{64_MiB, 10_MiB, true, 8},
                                         Beside{64_MiB, 1, true, 11}, Beside{64_MiB, 0, true, 11},
                                         // out of slots, and in packets
                                         Beside{64_MiB, 64_MiB, false, 5}, Beside{1_MiB, 2_MiB, true, 4}, Beside{1_MiB, 1_MiB, true, 5},
                                         // short ones
                                         Beside{256_KiB, 256_KiB, true, 2}, Beside{256_KiB, 1_MiB, true, 2},
                                         Beside{256_KiB + 16, 1_MiB, true, 4}, Beside{256_KiB, 255_KiB, true, 5},
                                         Beside{256_KiB, 1, true, 5}));

// What else there is or may be had counts as before.
TEST(PrepareRails, FewBlocksBesideRailsAreNotMore) {
  HostView a{};
  Port port;
  std::vector<Message> near{message(Direction::receive, &a, 64_MiB), message(Direction::send, &a, 100)};
  for (Message& m : near) m.local = &port;
  near[0].named.buffer = kAbsoluteBuffer;
  LaunchLimits limits;
  limits.beside_rails = true;
  limits.rail_bytes = 1_MiB;
  EXPECT_EQ(prepare(sized(near, 1u << 20), limits).blocks, 1u) << "a mapped receive needs one that grants";
  near[0].named.buffer = kNoBuffer;
  limits.room = 2;
  EXPECT_EQ(prepare(sized(near, 1u << 20), limits).blocks, 2u);
}

struct Case {
  std::uint64_t bytes;
  std::uint32_t near_blocks, limit, blocks;
};
class Blocks : public testing::TestWithParam<Case> {};

TEST_P(Blocks, RailsHaveFewOfTheirOwn) {
  const Case& c = GetParam();
  HostView a{};
  std::vector<Message> rails{message(Direction::send, &a, c.bytes)};
  LaunchLimits limits;
  limits.blocks = c.limit;
  EXPECT_EQ(prepare_rails(rails, {Kernel::any, c.near_blocks}, limits).blocks, c.blocks);
}
// Copies of small messages are trips over PCIe, which two blocks make side by side.
TEST(PrepareRails, SmallMessagesThatComeHaveABlockEach) {
  HostView a{};
  std::vector<Message> rails{message(Direction::send, &a, 16), message(Direction::send, &a, 16), message(Direction::receive, &a, 16)};
  EXPECT_EQ(prepare_rails(rails, {Kernel::any, 1}, {}).blocks, 1u);
  rails.push_back(message(Direction::receive, &a, 16));
  EXPECT_EQ(prepare_rails(rails, {Kernel::any, 1}, {}).blocks, 2u);
}
INSTANTIATE_TEST_SUITE_P(Table, Blocks,
                         testing::Values(Case{1, 1, 16, 1}, Case{512u << 10, 1, 16, 2}, Case{1u << 30, 1, 16, 2}, Case{1u << 30, 1, 1, 1},
                                         Case{1u << 30, 8, 16, 8}));

}  // namespace
}  // namespace railweave::cuda
