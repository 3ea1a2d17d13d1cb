// The exchange kernels' roles with threads as blocks and warps: every byte, every order of launches, every failure.
#include "roles.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "host_block.hpp"
#include "prepare.hpp"

namespace railweave::cuda {
namespace {

using Bytes = std::vector<std::byte>;

struct Transfer {
  Direction direction;
  std::uint32_t peer;
  std::byte* data;
  std::uint64_t bytes;
};

// Ranks of one node, each with its region; operations run in threads.
class Node {
 public:
  explicit Node(std::uint32_t world, std::uint64_t seed = 1) : seed_(seed), hosts_(world), totals_(world), states_(world) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      regions_.push_back(std::make_unique<Port[]>(world));
      states_[rank] = std::make_unique<OperationState>();
    }
  }

  std::uint32_t blocks_at_most = 3;
  // What a device can begin together. With 1, and with messages for the general kernel, there are other readers and writers of packets.
  std::uint32_t cluster_blocks = 8;
  std::uint64_t low_latency_bytes = 32u << 10;
  bool mapped = true;
  std::uint32_t delays = 20;
  std::uint64_t timeout_ns = 3600'000'000'000;

  HostView& host(std::uint32_t rank) { return hosts_[rank]; }
  const OperationState& state(std::uint32_t rank) const { return *states_[rank]; }
  Port& port(std::uint32_t rank, std::uint32_t peer) { return regions_[rank][peer]; }

  // Runs one operation of a rank to its end.
  void run(std::uint32_t rank, const std::vector<Transfer>& transfers) {
    std::vector<Message> messages;
    for (const Transfer& t : transfers) {
      Message m{};
      m.local = &regions_[rank][t.peer];
      m.remote = &regions_[t.peer][rank];
      m.data = t.data;
      m.bytes = t.bytes;
      m.direction = t.direction;
      m.peer = t.peer;
      m.host = &hosts_[rank];
      m.totals = &totals_[rank];
      if (t.direction == Direction::receive) {
        m.receive.buffer = mapped ? kAbsoluteBuffer : kNoBuffer;
        m.receive.offset = reinterpret_cast<std::uint64_t>(t.data);
      }
      messages.push_back(m);
    }
    const Plan plan = prepare(messages, {blocks_at_most, low_latency_bytes, cluster_blocks});
    const OperationHeader header{states_[rank].get(), timeout_ns, static_cast<std::uint32_t>(messages.size()), 0};
    std::vector<std::jthread> threads;
    const std::uint64_t seed = seed_ * 1000 + rank * 10;
    if (plan.packets_only) {
      const std::uint32_t warps = plan.blocks * kBundlePackets;
      for (std::uint32_t w = 0; w < warps; ++w) {
        threads.emplace_back([&, w] {
          HostWarp warp(w, warps, seed + w + 1, delays);
          PacketRoles<HostWarp>(warp, header, messages.data()).run();
        });
      }
      return;
    }
    for (std::uint32_t b = 0; b < plan.blocks; ++b) {
      threads.emplace_back([&, b] {
        HostBlock block(b, plan.blocks, seed + b + 1, delays);
        if (plan.has_packets) {
          Roles<HostBlock, true>(block, header, messages.data()).run();
        } else {
          Roles<HostBlock, false>(block, header, messages.data()).run();
        }
      });
    }
  }

 private:
  std::uint64_t seed_;
  std::vector<HostView> hosts_;
  std::vector<Totals> totals_;
  std::vector<std::unique_ptr<Port[]>> regions_;
  std::vector<std::unique_ptr<OperationState>> states_;
};

Bytes random_bytes(std::mt19937_64& random, std::uint64_t count) {
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// A message of a program: its bytes at the source, and what came.
struct Sent {
  std::uint32_t source, destination;
  Bytes data, came;
};
// Operations in the order in which each rank runs them; a message is in one operation of its source and in one of its destination.
struct Program {
  std::vector<std::unique_ptr<Sent>> messages;
  std::vector<std::vector<std::vector<Transfer>>> operations;  // by rank

  explicit Program(std::uint32_t world) : operations(world) {}
  void add(std::mt19937_64& random, std::uint32_t source, std::size_t send_op, std::uint32_t destination, std::size_t receive_op,
           std::uint64_t bytes) {
    messages.push_back(std::make_unique<Sent>(Sent{source, destination, random_bytes(random, bytes), Bytes(bytes)}));
    Sent& m = *messages.back();
    at(source, send_op).push_back({Direction::send, destination, m.data.data(), bytes});
    at(destination, receive_op).push_back({Direction::receive, source, m.came.data(), bytes});
  }
  void run(Node& node) const {
    std::vector<std::jthread> ranks;
    for (std::uint32_t rank = 0; rank < operations.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        for (const auto& operation : operations[rank]) {
          if (!operation.empty()) node.run(rank, operation);
        }
      });
    }
  }
  void check() const {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Sent& m = *messages[i];
      EXPECT_TRUE(m.data == m.came) << "message " << i << ", " << m.source << " to " << m.destination << ", " << m.data.size() << " bytes";
    }
  }

 private:
  std::vector<Transfer>& at(std::uint32_t rank, std::size_t op) {
    if (operations[rank].size() <= op) operations[rank].resize(op + 1);
    return operations[rank][op];
  }
};

// Sizes around each border: packets, pieces, paths, slots.
std::uint64_t random_size(std::mt19937_64& random) {
  constexpr std::uint64_t kBorders[] = {1, 8, Line::kData, Packet::kData, 32u << 10, kBundleBytes, kSlotBytes, 4 * kSlotBytes};
  const std::uint64_t border = kBorders[random() % std::size(kBorders)];
  return std::max<std::uint64_t>(1, border + random() % 33 - 16 + (random() % 4 == 0 ? random() % 100'000 : 0)) % (1u << 20);
}

class RandomPrograms : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, bool, std::uint32_t>> {};

TEST_P(RandomPrograms, EveryByteArrives) {
  const auto [world, blocks, mapped, low_latency_bytes] = GetParam();
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed * 31 + world * 7 + blocks);
    Node node(world, seed);
    node.blocks_at_most = blocks;
    node.mapped = mapped;
    node.low_latency_bytes = low_latency_bytes;
    Program program(world);
    for (std::size_t op = 0; op < 4; ++op) {
      const std::size_t count = 1 + random() % 8;
      for (std::size_t i = 0; i < count; ++i) {
        program.add(random, random() % world, op, random() % world, op, random_size(random));
      }
    }
    program.run(node);
    program.check();
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      EXPECT_EQ(node.host(rank).error, 0u);
      EXPECT_EQ(node.state(rank).left, 0u);
      for (const MessageState& state : node.state(rank).messages) EXPECT_EQ(state.claimed, 0u);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, RandomPrograms,
                         testing::Combine(testing::Values(1u, 2u, 4u), testing::Values(1u, 4u), testing::Bool(),
                                          testing::Values(32u << 10, 128u << 10, 2u << 20)));

// docs/protocol-model.md, program 1 of the kernels: rank 1 receives from 0 only after it has received from 2, which sends only after it
// has received from 0. With one block, rank 0's push to 1 must not keep it from pushing to 2.
class Orders : public testing::TestWithParam<bool> {};

TEST_P(Orders, AReceiverThatComesLateHoldsNobodyElseUp) {
  std::mt19937_64 random(5);
  Node node(3);
  node.blocks_at_most = 1;
  node.mapped = GetParam();
  Program program(3);
  for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{16} * kSlotBytes}) {
    const std::size_t op = bytes == 100 ? 0 : 2;
    program.add(random, 0, op, 1, op + 1, bytes);
    program.add(random, 0, op, 2, op, bytes);
    program.add(random, 2, op + 1, 1, op, bytes);
  }
  program.run(node);
  program.check();
}
// Small messages do not wait for their receiver at all, as long as there are credits.
TEST(Roles, SmallSendsEndBeforeTheirReceive) {
  std::mt19937_64 random(6);
  Node node(2);
  Bytes data = random_bytes(random, 1000), came(1000);
  node.run(0, {{Direction::send, 1, data.data(), data.size()}});
  EXPECT_EQ(node.host(0).completed, 1u);
  node.run(1, {{Direction::receive, 0, came.data(), came.size()}});
  EXPECT_TRUE(data == came);
}
// Two ranks that send first and receive in a later operation: legal for small messages only.
TEST_P(Orders, ManyMessagesOfAPair) {
  std::mt19937_64 random(7);
  Node node(2);
  node.mapped = GetParam();
  Program program(2);
  for (std::uint32_t i = 0; i < 5 * kGrants; ++i) {
    program.add(random, 0, 0, 1, 0, i % 3 == 0 ? 40'000 : 70'000);
    program.add(random, 1, 0, 0, 0, i % 2 == 0 ? 10 : 33'000);
  }
  program.run(node);
  program.check();
  EXPECT_EQ(node.host(0).completed, 10u * kGrants);
}
INSTANTIATE_TEST_SUITE_P(Paths, Orders, testing::Bool());

// Sends of one operation may be received in several, in any split, as long as each pair's order is kept.
TEST(Roles, GroupsNeedNotMatch) {
  std::mt19937_64 random(8);
  Node node(3);
  Program program(3);
  for (std::size_t i = 0; i < 6; ++i) program.add(random, 0, 0, 1, i, 5000 + i);
  for (std::size_t i = 0; i < 6; ++i) program.add(random, 0, 0, 2, i / 3, 100'000 + i);
  program.run(node);
  program.check();
}

TEST(Roles, PacketNumbersDoNotWrap) {
  std::mt19937_64 random(9);
  constexpr std::uint64_t kStart = (std::uint64_t{1} << 32) - 3;
  Node node(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Port& port = node.port(rank, 1 - rank);
    port.packets_sent = port.packets_received = kStart;
    for (std::uint64_t number = kStart - kPacketSlots; number < kStart; ++number) port.credits[number % kPacketSlots] = packet_flag(number);
  }
  Program program(2);
  for (std::size_t op = 0; op < 8; ++op) {
    program.add(random, 0, op, 1, op, 30'000);
    program.add(random, 1, op, 0, op, 1 + op);
  }
  program.run(node);
  program.check();
  EXPECT_EQ(node.port(1, 0).packets_received, kStart + 8 * packets_of(30'000));
}

// A message of more packets than slots, and operations that run ahead of their receiver until the slots are full.
class Windows : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t>> {};

TEST_P(Windows, CreditsComeBack) {
  std::mt19937_64 random(11);
  Node node(2);
  std::tie(node.cluster_blocks, node.blocks_at_most) = GetParam();
  node.low_latency_bytes = 2u << 20;
  Program program(2);
  for (std::size_t op = 0; op < 3; ++op) {
    program.add(random, 0, op, 1, op, kPacketSlots * Packet::kData + 100'001);
    program.add(random, 1, op, 0, op, 250'000);
  }
  program.run(node);
  program.check();
}
INSTANTIATE_TEST_SUITE_P(Kernels, Windows, testing::Values(std::tuple{1u, 4u}, std::tuple{8u, 1u}, std::tuple{8u, 4u}));

TEST(Roles, SizesThatDifferStopTheSource) {
  std::mt19937_64 random(10);
  Node node(2);
  Bytes data = random_bytes(random, 100'000), came(90'000);
  std::jthread receiver([&] { node.run(1, {{Direction::receive, 0, came.data(), came.size()}}); });
  node.run(0, {{Direction::send, 1, data.data(), data.size()}});
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::sizes_differ));
  EXPECT_EQ(node.host(0).error_peer, 1u);
  EXPECT_EQ(node.host(0).error_bytes[0], 100'000u);
  EXPECT_EQ(node.host(0).error_bytes[1], 90'000u);
  // Its host tells the peer's, which ends the receive.
  std::atomic_ref(node.host(1).stop).store(1);
  receiver.join();
  EXPECT_EQ(node.host(1).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(came, Bytes(90'000));
}

TEST(Roles, AnAbortEndsWhatWaits) {
  Node node(2);
  Bytes data(100'000), came(100);
  std::jthread waiting([&] {
    node.run(0, {{Direction::send, 1, data.data(), data.size()}, {Direction::receive, 1, came.data(), came.size()}});
  });
  std::atomic_ref(node.host(0).stop).store(1);
  waiting.join();
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::aborted));
  EXPECT_EQ(node.host(0).completed, 0u);
  EXPECT_EQ(node.state(0).left, 0u);
}

TEST(Roles, APeerThatNeverComesEndsInATimeOut) {
  Node node(2);
  node.timeout_ns = 1'000'000;
  Bytes came(100'000);
  node.run(0, {{Direction::receive, 1, came.data(), came.size()}});
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::timed_out));
  EXPECT_EQ(node.host(0).error_peer, 1u);
}

// A record that names bytes outside its message is refused, not copied.
TEST(Roles, ARecordOutsideItsMessageIsRefused) {
  Node node(2);
  node.low_latency_bytes = 0;
  Bytes came(kSlotBytes);
  SlotRecord& record = node.port(0, 1).records[2];
  record = {1, kSlotBytes - 8, 16, 0};
  node.port(0, 1).filled[2] = 1;
  node.run(0, {{Direction::receive, 1, came.data(), came.size()}});
  EXPECT_EQ(node.host(0).error, static_cast<std::uint32_t>(KernelError::bad_record));
  EXPECT_EQ(came, Bytes(kSlotBytes));
}

}  // namespace
}  // namespace railweave::cuda
