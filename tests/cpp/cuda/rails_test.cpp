// Exchanges of GPUs on several nodes with threads as blocks: each byte, each failure, and relays that run no kernel.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "gpu_rank.hpp"

namespace railweave::test {
namespace {

using namespace std::chrono_literals;

// Small chunks and few slots: everything that can be full, is.
ExchangeSettings cramped() {
  ExchangeSettings settings;
  settings.chunk_bytes = 4096;
  settings.multipath_min_bytes = 8192;
  settings.slots_per_writer = 3;
  settings.rx_slots = 4;
  settings.link_window = 2;
  return settings;
}

// The messages of a rank in a random operation that all ranks draw alike.
struct Buffers {
  std::vector<Transfer> transfers;

  void add(std::uint32_t rank, std::uint32_t source, std::uint32_t destination, std::uint64_t bytes, std::uint64_t tag) {
    if (source == rank) transfers.push_back({Direction::send, destination, message(bytes, tag), bytes});
    if (destination == rank) transfers.push_back({Direction::receive, source, buffer(bytes), bytes, message(bytes, tag)});
  }

 private:
  std::byte* buffer(std::uint64_t bytes) { return memory_.emplace_back(std::make_unique<std::byte[]>(bytes)).get(); }
  std::byte* message(std::uint64_t bytes, std::uint64_t tag) {
    std::byte* const data = buffer(bytes);
    fill(data, bytes, tag);
    return data;
  }
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

std::uint64_t random_size(std::mt19937_64& random) {
  constexpr std::uint64_t kBorders[] = {1, 8, 4096, 8192, 8u << 10, 20'000, 100'000, 300'000};
  return std::max<std::uint64_t>(1, kBorders[random() % std::size(kBorders)] + random() % 33 - 16) % (1u << 20);
}

// Which ranks' NICs have their slots in their GPUs' memory.
using Moved = std::vector<std::uint32_t>;
void move_slots(GpuJob& job, const Moved& ranks) {
  job.prepare_slots = [ranks](std::uint32_t rank, HiddenSlots& slots) {
    if (std::count(ranks.begin(), ranks.end(), rank) != 0) slots.objections = {""};
  };
}

struct RandomCase {
  std::uint32_t blocks, delays, operations;
  Moved moved = {};
  Shape shape = {2, 2};
};
class RandomOperations : public testing::TestWithParam<RandomCase> {};

TEST_P(RandomOperations, EveryByteArrives) {
  const RandomCase& c = GetParam();
  GpuJob job(c.shape);
  job.limits.blocks = c.blocks;
  job.delays = c.delays;
  move_slots(job, c.moved);
  run_gpu_job(job, cramped(), [&](GpuRank& rank) {
    std::mt19937_64 random(c.blocks * 100 + c.delays);
    std::uint64_t messages = 0;
    std::vector<std::array<std::uint64_t, 2>> with_peers(c.shape.world());
    for (std::uint32_t op = 0; op < c.operations; ++op) {
      Buffers buffers;
      const std::size_t count = 1 + random() % 10;
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t source = random() % c.shape.world(), destination = random() % c.shape.world();
        buffers.add(rank.rank(), source, destination, random_size(random), op * 100 + i);
      }
      if (buffers.transfers.empty()) continue;
      rank.run(buffers.transfers);
      messages += buffers.transfers.size();
      for (const Transfer& t : buffers.transfers) with_peers[t.peer][static_cast<std::size_t>(t.direction)] += t.bytes;
      use_buffers(buffers.transfers);
      ASSERT_EQ(rank.failure(), "");
    }
    for (std::uint32_t peer = 0; peer < c.shape.world(); ++peer) EXPECT_EQ(rank.bytes_with(peer), with_peers[peer]) << "rank " << peer;
    EXPECT_EQ(rank.host().error, 0u);
    EXPECT_EQ(rank.completed(), messages);
    const std::uint64_t taken = rank.counts().taken;
    EXPECT_TRUE(cuda::is_of(rank.port().copies[taken % cuda::kRailCopies].words[0], taken)) << "a copy that nobody made";
    const bool moved = std::count(c.moved.begin(), c.moved.end(), rank.rank()) != 0;
    EXPECT_EQ(rank.moved().sent != 0, moved);
    EXPECT_EQ(rank.moved().received != 0, moved);
  });
}
INSTANTIATE_TEST_SUITE_P(Blocks, RandomOperations, testing::Values(RandomCase{1, 20, 20}, RandomCase{2, 200, 12}, RandomCase{6, 0, 20}));
// The other labs of eight GPUs.
INSTANTIATE_TEST_SUITE_P(Nodes, RandomOperations, testing::Values(RandomCase{2, 20, 12, {}, {4, 2}}, RandomCase{2, 20, 12, {}, {2, 4}}));
// Everywhere; on one node; on one of each.
INSTANTIATE_TEST_SUITE_P(Direct, RandomOperations,
                         testing::Values(RandomCase{1, 20, 20, {0, 1, 2, 3}}, RandomCase{2, 200, 12, {0, 1, 2, 3}},
                                         RandomCase{2, 20, 12, {0, 1}}, RandomCase{2, 20, 12, {1, 2}}));

// Rank 0 sends to rank 1 beside it, which receives only after bytes have gone 0 → 2 → 3 → 1. With one block rank 0's push to 1 must not
// keep it from what its engine asks for, and the other way round.
TEST(Rails, AReceiverThatComesLateHoldsNobodyElseUp) {
  for (const bool near_is_late : {true, false}) {
    GpuJob job({2, 2});
    job.limits.blocks = 1;
    // Ranks in the roles of the text, so that the late receiver is a mate once and on the other node once.
    const std::array<std::uint32_t, 4> role =
        near_is_late ? std::array<std::uint32_t, 4>{0, 1, 2, 3} : std::array<std::uint32_t, 4>{0, 2, 1, 3};
    run_gpu_job(job, cramped(), [&](GpuRank& rank) {
      constexpr std::uint64_t kBytes = 200'000;
      const auto run = [&](std::vector<std::array<std::uint32_t, 2>> messages) {
        Buffers buffers;
        for (const auto& [source, destination] : messages)
          buffers.add(rank.rank(), source, destination, kBytes, tag_of(source, destination, 0));
        rank.run(buffers.transfers);
        use_buffers(buffers.transfers);
      };
      const std::uint32_t a = role[0], b = role[1], c = role[2], d = role[3];
      if (rank.rank() == a) run({{a, b}, {a, c}});
      if (rank.rank() == b) run({{d, b}});
      if (rank.rank() == b) run({{a, b}});
      if (rank.rank() == c) run({{a, c}});
      if (rank.rank() == c) run({{c, d}});
      if (rank.rank() == d) run({{c, d}});
      if (rank.rank() == d) run({{d, b}});
      EXPECT_EQ(rank.failure(), "");
    });
  }
}

// Small messages travel in control frames: their sender's operation is over before anybody receives them.
TEST(Rails, SmallMessagesWaitForNoReceiver) {
  constexpr std::uint64_t kSizes[] = {1, 15, 4096, 16'384, 16'384, 16'383};
  GpuJob job({2, 2});
  std::atomic<bool> sent{false};
  run_gpu_job(job, cramped(), [&](GpuRank& rank) {
    Buffers buffers;
    for (std::uint64_t i = 0; i < std::size(kSizes); ++i) buffers.add(rank.rank(), 0, 3, kSizes[i], tag_of(0, 3, i));
    if (rank.rank() == 3) sent.wait(false);
    if (!buffers.transfers.empty()) rank.run(buffers.transfers);
    if (rank.rank() == 0) {
      EXPECT_EQ(rank.counts().taken, 0u) << "copies that its engine wanted";
      sent = true;
      sent.notify_all();
    }
    use_buffers(buffers.transfers);
    EXPECT_EQ(rank.failure(), "");
  });
}

// Their sender may have gone before a block has put them where they belong.
TEST(Rails, WhatARankSentBeforeItLeftIsReceived) {
  GpuJob job({2, 1});
  std::atomic<bool> here{false}, left{false};
  run_gpu_job(job, cramped(), [&](GpuRank& rank) {
    Buffers buffers;
    buffers.add(rank.rank(), 0, 1, 5000, 1);
    if (rank.rank() == 1) {
      rank.before_copy = [&](std::span<const std::byte>) {
        here = true;
        here.notify_all();
        left.wait(false);
      };
    }
    rank.run(buffers.transfers);
    if (rank.rank() == 0) {
      here.wait(false);
      rank.engine().close();  // until the other has heard of it
      left = true;
      left.notify_all();
    }
    use_buffers(buffers.transfers);
    EXPECT_EQ(rank.failure(), "");
  });
}

// All of them are there when their receives come, and only some find a place to be copied from.
TEST(Rails, SmallMessagesThatFindNoPlaceWaitForOne) {
  constexpr std::uint64_t kBytes = 60'000, kEach = 4;
  static_assert(2 * kEach * kBytes > cuda::kRailStage);
  ExchangeSettings settings = cramped();
  settings.eager_bytes = kBytes;
  GpuJob job({2, 2});
  std::atomic<int> left{0};
  run_gpu_job(job, settings, [&](GpuRank& rank) {
    Buffers buffers;
    for (std::uint64_t i = 0; i < 2 * kEach; ++i) buffers.add(rank.rank(), i % 2, 2, kBytes, i);
    while (rank.rank() == 2 && left < 2) std::this_thread::sleep_for(1ms);
    if (rank.rank() != 3) rank.run(buffers.transfers);
    if (rank.rank() < 2) {
      rank.engine().close();  // until the others have all that it sent
      ++left;
    }
    use_buffers(buffers.transfers);
    EXPECT_EQ(rank.failure(), "");
  });
}

struct ManyCase {
  std::uint64_t messages, bytes;
  bool spread;  // over all ranks; else to one on the other node
};
class ManySmall : public testing::TestWithParam<ManyCase> {};

TEST_P(ManySmall, MessagesArrive) {
  const ManyCase& c = GetParam();
  ExchangeSettings settings = cramped();
  settings.eager_bytes = c.bytes;
  GpuJob job({2, 2});
  run_gpu_job(job, settings, [&](GpuRank& rank) {
    for (std::uint64_t round = 0; round < 6; ++round) {
      Buffers buffers;
      for (std::uint64_t i = 0; i < c.messages; ++i) {
        const std::uint64_t source = i % 4, destination = c.spread ? (i / 4 + 2 + source) % 4 : source ^ 2;
        buffers.add(rank.rank(), static_cast<std::uint32_t>(source), static_cast<std::uint32_t>(destination),
                    c.bytes - c.bytes / 100 * round * (i % 3), round * 1000 + i);
      }
      rank.run(buffers.transfers);
      use_buffers(buffers.transfers);
      ASSERT_EQ(rank.failure(), "");
    }
  });
}

// More bytes than find a place at their sources, 600 KB a rank; more messages than may be under way unasked: 75 of a pair; and more of a
// rank than a kernel's parameters hold.
INSTANTIATE_TEST_SUITE_P(Than, ManySmall,
                         testing::Values(ManyCase{80, 60'000, true}, ManyCase{300, 1000, false}, ManyCase{1200, 400, false},
                                         ManyCase{700, 400, true}));

TEST(Rails, BytesAreCountedByTheNicThatSentThem) {
  GpuJob job({2, 2});
  run_gpu_job(job, cramped(), [&](GpuRank& rank) {
    std::uint64_t bytes = 0;
    for (std::uint64_t round = 0; round < 2; ++round) {
      Buffers buffers;
      for (std::uint32_t source = 0; source < 4; ++source) buffers.add(rank.rank(), source, source ^ 2, 1'000'000, round * 10 + source);
      rank.run(buffers.transfers);
      bytes += 1'000'000;
    }
    const cuda::RailControl& control = rank.control();
    ASSERT_EQ(control.bytes_by_nic.size(), 2u) << "of its node, its mate's too";
    EXPECT_GE(control.bytes_by_nic[0] + control.bytes_by_nic[1], bytes);
    EXPECT_EQ(control.bytes_by_nic[0] + control.bytes_by_nic[1], control.bytes_by_kind[static_cast<std::size_t>(PathKind::rail)] +
                                                                     control.bytes_by_kind[static_cast<std::size_t>(PathKind::cross_rail)]);
  });
}

// One of two destinations comes when the other one has all its bytes, which the source has counted then.
TEST(Rails, BytesAreCountedWhileTheirOperationRuns) {
  constexpr std::uint64_t kBytes = 1'000'000;
  GpuJob job({2, 2});
  std::atomic<const cuda::RailControl*> source{nullptr};
  run_gpu_job(job, cramped(), [&](GpuRank& rank) {
    Buffers buffers;
    for (const std::uint32_t destination : {2u, 3u}) buffers.add(rank.rank(), 0, destination, kBytes, destination);
    if (rank.rank() == 0) source = &rank.control();
    const auto sent = [&] {
      const cuda::RailControl* const control = source.load();
      return control == nullptr ? 0 : control->bytes_by_kind[3] + control->bytes_by_kind[4];
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (rank.rank() == 3 && sent() < kBytes && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    if (rank.rank() == 3) {
      EXPECT_GE(sent(), kBytes);
      EXPECT_EQ(source.load()->bytes_of_ended, 0u);
    }
    if (rank.rank() != 1) rank.run(buffers.transfers);
    use_buffers(buffers.transfers);
    EXPECT_EQ(rank.failure(), "");
    if (rank.rank() == 0) {
      EXPECT_GE(rank.control().bytes_of_ended, 2 * kBytes);
    }
  });
}

// A graph's launches come without a word to the engine, and with the same parameters each time.
TEST(Rails, ACapturedLaunchRunsAgainAndAgain) {
  GpuJob job({2, 2});
  run_gpu_job(job, cramped(), [&](GpuRank& rank) {
    constexpr std::uint64_t kBytes = 50'000;
    const std::uint32_t mate = rank.rank() ^ 1, far = rank.rank() ^ 2;
    std::vector<std::byte> send(2 * kBytes), receive(2 * kBytes);
    const auto launch = rank.prepare({{Direction::send, far, send.data(), kBytes},
                                      {Direction::send, mate, send.data() + kBytes, kBytes},
                                      {Direction::receive, far, receive.data(), kBytes},
                                      {Direction::receive, mate, receive.data() + kBytes, kBytes}});
    for (std::uint64_t replay = 0; replay < 20; ++replay) {
      fill(send.data(), kBytes, tag_of(rank.rank(), far, replay));
      fill(send.data() + kBytes, kBytes, tag_of(rank.rank(), mate, replay));
      rank.run(launch, true);
      EXPECT_EQ(first_wrong(receive.data(), kBytes, tag_of(far, rank.rank(), replay)), kBytes) << "replay " << replay;
      EXPECT_EQ(first_wrong(receive.data() + kBytes, kBytes, tag_of(mate, rank.rank(), replay)), kBytes) << "replay " << replay;
    }
    EXPECT_EQ(rank.completed(), 80u);
    for (const std::uint32_t peer : {mate, far})
      EXPECT_EQ(rank.bytes_with(peer), (std::array{20 * kBytes, 20 * kBytes})) << "rank " << peer;
  });
}

ExchangeSettings impatient() {
  ExchangeSettings settings = cramped();
  settings.multipath_min_bytes = 0;
  settings.resend_ms = 50;
  settings.rail_timeout_ms = 300;
  settings.heartbeat_ms = 20;
  settings.reconnect_ms = 50;
  settings.drain_ms = 20'000;  // whoever has not heard by then that a rank leaves waits for it for ever
  return settings;
}

// Ranks 1 and 3 lend their NICs and launch nothing. Rank 0's own NIC dies in the middle of an operation, and comes back.
class DyingRail : public testing::TestWithParam<Moved> {};
TEST_P(DyingRail, LosesNothingAndMatesRelayWithoutKernels) {
  GpuJob job({2, 2});
  move_slots(job, GetParam());
  run_gpu_job(job, impatient(), [&](GpuRank& rank) {
    if (rank.rank() % 2 != 0) return;
    constexpr std::uint64_t kBytes = 2'000'000;
    const std::uint32_t far = rank.rank() ^ 2;
    for (std::uint64_t round = 0; round < 4; ++round) {
      Buffers buffers;
      buffers.add(rank.rank(), 0, 2, kBytes, round);
      buffers.add(rank.rank(), 2, 0, kBytes, 100 + round);
      std::jthread plug;
      if (rank.rank() == 0 && round == 1) {
        plug = std::jthread([&, before = rank.taken()] {
          while (rank.taken() < before + 20) std::this_thread::sleep_for(1ms);
          job.rails->set_dead(0, true);
        });
      }
      if (rank.rank() == 0 && round == 3) job.rails->set_dead(0, false);
      rank.run(buffers.transfers);
      use_buffers(buffers.transfers);
      ASSERT_EQ(rank.failure(), "") << "round " << round << " with rank " << far;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Slots, DyingRail, testing::Values(Moved{}, Moved{0, 1, 2, 3}, Moved{0, 3}));

// --- What is decided when the communicator is made

// Two nodes of two ranks exchange a message; gives what each rank said of its NIC's slots.
std::vector<std::string> said_by_ranks(GpuJob& job) {
  std::vector<std::string> said(4);
  run_gpu_job(job, cramped(), [&](GpuRank& rank) {
    Buffers buffers;
    for (std::uint32_t source = 0; source < 4; ++source) buffers.add(rank.rank(), source, source ^ 2, 100'000, source);
    rank.run(buffers.transfers);
    use_buffers(buffers.transfers);
    EXPECT_EQ(rank.failure(), "");
    for (const std::string& text : rank.slots().said) said[rank.rank()] += text + '\n';
    const bool moved = said[rank.rank()].find("lie in the GPU's memory") != std::string::npos;
    EXPECT_EQ(rank.moved().received != 0, moved);
    EXPECT_EQ(rank.slots().entered, moved);
    if (said[rank.rank()].find("could not register") != std::string::npos) {
      EXPECT_EQ(rank.slots().own(), nullptr) << "kept for nothing";
    }
  });
  return said;
}
constexpr const char* kDirect = "the slots of NIC lo lie in the GPU's memory (GPUDirect)\n";

TEST(SlotsOfNics, EachOwnerDecidesAlone) {
  GpuJob job({2, 2});
  job.prepare_slots = [](std::uint32_t rank, HiddenSlots& slots) { slots.objections = {rank == 3 ? "it is far" : ""}; };
  EXPECT_EQ(said_by_ranks(job),
            (std::vector<std::string>{kDirect, kDirect, kDirect, "the slots of NIC lo lie in host memory: it is far\n"}));
}

// Slots of both NICs are in use, and their owner's mate sends through them.
TEST(SlotsOfNics, EachNicOfARankHasItsOwn) {
  GpuJob job({2, 2});
  job.nics = "lo,lo";
  job.prepare_slots = [](std::uint32_t rank, HiddenSlots& slots) {
    slots.objections = rank % 2 == 0 ? std::vector<std::string>{"it is far", ""} : std::vector<std::string>{"", "it is far"};
  };
  const std::string far = "the slots of NIC lo lie in host memory: it is far\n";
  EXPECT_EQ(said_by_ranks(job), (std::vector<std::string>{far + kDirect, kDirect + far, far + kDirect, kDirect + far}));
}

TEST(SlotsOfNics, WhatIsRefusedLeavesThemInHostMemory) {
  GpuJob job({2, 2});
  job.prepare_slots = [](std::uint32_t rank, HiddenSlots& slots) {
    slots.objections = {""};
    slots.refuses_memory = rank == 0;
  };
  job.nic_of = [](std::uint32_t rank) { return HiddenTransport::Refuses{rank == 3, false}; };
  EXPECT_EQ(said_by_ranks(job), (std::vector<std::string>{"the slots of NIC lo lie in host memory: out of memory\n", kDirect, kDirect,
                                                          "the slots of NIC lo lie in host memory: the NIC could not register it\n"}));
}

// Data between such slots and others takes what UCX has for GPUs at both ends.
TEST(SlotsOfNics, APeerWhoseNetworkLibraryKnowsNoGpusLeavesThemInHostMemoryForAll) {
  GpuJob job({2, 2});
  job.prepare_slots = [](std::uint32_t rank, HiddenSlots& slots) { slots.objections = {rank == 3 ? "it is far" : ""}; };
  job.nic_of = [](std::uint32_t rank) { return HiddenTransport::Refuses{false, rank == 3}; };
  const std::string host = "the slots of NIC lo lie in host memory: ";
  const std::string unknown = host + "the network library of rank 3 knows no memory of GPUs\n";
  EXPECT_EQ(said_by_ranks(job), (std::vector<std::string>{unknown, unknown, unknown, host + "it is far\n"}));
}

TEST(SlotsOfNics, AMateThatDoesNotReachThemLeavesThemInHostMemoryForAll) {
  GpuJob job({2, 2});
  job.prepare_slots = [](std::uint32_t rank, HiddenSlots& slots) {
    slots.objections = {""};
    slots.refuses_mates = rank == 1;
  };
  const auto said = said_by_ranks(job);
  EXPECT_EQ(said[0], "the slots of NIC lo lie in host memory: another rank of the node does not reach the GPU's\n");
  EXPECT_EQ(said[1], std::string("the slots of rank 0's NICs stay in host memory: no IPC\n") + kDirect);
  EXPECT_EQ(said[2], kDirect);
  EXPECT_EQ(said[3], kDirect);
}

TEST(StandIn, UcxMovesPayloadsOfADeviceByItsDriversCopies) {
  const StandInDriver* driver = StandInDriver::get();
  if (driver == nullptr) GTEST_SKIP() << "without the stand-in for CUDA's driver, or with a UCX without CUDA";
  GpuJob job({2, 1});
  move_slots(job, {0, 1});
  const std::uint64_t before = driver->copies();
  run_gpu_job(job, cramped(), [&](GpuRank& rank) {
    Buffers buffers;
    buffers.add(rank.rank(), 0, 1, 100'000, 1);
    rank.run(buffers.transfers);
    use_buffers(buffers.transfers);
  });
  EXPECT_GE(driver->copies() - before, 2u * (100'000 / 4096)) << "out of a slot and into one";
}

// --- Failures

// Where no rail dies, none shall be held for dead because a busy machine kept threads from their CPUs: with UCX 1.13 and older it does not
// come back, and the test would wait for ever.
ExchangeSettings patient() {
  ExchangeSettings settings = impatient();
  settings.rail_timeout_ms = 10'000;
  return settings;
}

// Waits for bytes that the rank never sends.
void wait_in_vain(GpuRank& rank, std::uint32_t source) {
  std::vector<std::byte> data(100'000, std::byte{7});
  rank.run({{Direction::receive, source, data.data(), data.size()}});
}

TEST(Rails, ARankThatAbortsFailsThoseThatWaitForIt) {
  GpuJob job({2, 2});
  std::atomic<int> waiting{0};
  run_gpu_job(job, patient(), [&](GpuRank& rank) {
    if (rank.rank() >= 2) {
      if (rank.rank() == 2) return;
      while (waiting < 2) std::this_thread::sleep_for(1ms);
      rank.fail("aborted");
      // Launched after it: leaves, and takes nothing that was meant for another.
      std::vector<std::byte> data(10'000, std::byte{7});
      rank.run({{Direction::receive, 0, data.data(), data.size()}});
      EXPECT_EQ(data, std::vector<std::byte>(10'000, std::byte{7}));
      return;
    }
    ++waiting;
    wait_in_vain(rank, 3);
    EXPECT_EQ(rank.failure(), "rank 3 has left: it has closed its exchange");
    EXPECT_EQ(rank.host().error, static_cast<std::uint32_t>(cuda::KernelError::aborted));
  });
}

// In the middle of an operation: copies are under way on both sides.
TEST(Rails, AnAbortWhileBytesMoveEndsBothSides) {
  for (const std::uint32_t aborts : {0u, 1u}) {
    GpuJob job({2, 1});
    run_gpu_job(job, patient(), [&](GpuRank& rank) {
      Buffers buffers;
      buffers.add(rank.rank(), 0, 1, 8'000'000, 1);
      buffers.add(rank.rank(), 1, 0, 8'000'000, 2);
      // For one more that never comes: else the operation may be over before the thread that aborts it has a CPU.
      std::vector<std::byte> never(100'000);
      buffers.transfers.push_back({Direction::receive, 1 - rank.rank(), never.data(), never.size()});
      std::jthread plug;
      if (rank.rank() == aborts) {
        plug = std::jthread([&] {
          while (rank.taken() < 50) std::this_thread::sleep_for(1ms);
          rank.fail("aborted");
        });
      }
      rank.run(buffers.transfers);
      EXPECT_NE(rank.failure(), "");
    });
  }
}

// A block that is in the middle of a copy when its rank aborts still reads the slot: nothing may land there.
TEST(Rails, ASlotIsNobodyElsesWhileABlockOfAnAbortedRankReadsIt) {
  GpuJob job({2, 1});
  const ExchangeSettings settings = patient();
  std::atomic<bool> failed{false}, goes_on{false};
  run_gpu_job(job, settings, [&](GpuRank& rank) {
    Buffers buffers;
    buffers.add(rank.rank(), 0, 1, 1'000'000, 1);
    if (rank.rank() == 0) {
      rank.run(buffers.transfers);
      EXPECT_NE(rank.failure(), "");
      failed = true;
      return;
    }
    rank.before_copy = [&](std::span<const std::byte> slot) {
      const std::vector<std::byte> before(slot.begin(), slot.end());
      goes_on.wait(false);
      EXPECT_TRUE(std::equal(before.begin(), before.end(), slot.begin()));
    };
    std::jthread plug([&] {
      while (!rank.asked(settings.rx_slots)) std::this_thread::sleep_for(1ms);  // more chunks wait for a slot
      rank.fail("aborted");
      while (!failed) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(100ms);  // what the other's link still had would come
      goes_on = true;
      goes_on.notify_all();
    });
    rank.run(buffers.transfers);
    EXPECT_EQ(rank.failure(), "aborted");
  });
}

// As on a GPU that has failed. Its block pushes: a slot that it fills is nobody else's, whatever happens.
TEST(Rails, AKernelThatDoesNotLeaveKeepsItsRankForTheDrainTimeAtMost) {
  GpuJob job({2, 2});
  ExchangeSettings settings = patient();
  settings.drain_ms = ExchangeSettings{}.drain_ms;
  std::atomic<bool> heard{false};
  run_gpu_job(job, settings, [&](GpuRank& rank) {
    if (rank.rank() < 2) wait_in_vain(rank, 2);
    if (rank.rank() == 1) {
      EXPECT_EQ(rank.failure(), "rank 2 has left: it has closed its exchange");
      heard = true;
      heard.notify_all();
    }
    if (rank.rank() != 2) return;
    rank.before_copy = [&](std::span<const std::byte>) {
      rank.fail("aborted");
      heard.wait(false);
    };
    std::vector<std::byte> data(100'000);
    rank.run({{Direction::send, 0, data.data(), data.size()}});
    EXPECT_EQ(rank.failure(), "aborted");
  });
}

TEST(Rails, SizesThatDifferFailBothSides) {
  GpuJob job({2, 1});
  run_gpu_job(job, patient(), [&](GpuRank& rank) {
    std::vector<std::byte> data(20'000);
    const bool sends = rank.rank() == 0;
    rank.run({{sends ? Direction::send : Direction::receive, 1 - rank.rank(), data.data(), sends ? 20'000u : 10'000u}});
    EXPECT_NE(rank.failure().find("the sender has 20000 bytes, the receiver 10000"), std::string::npos) << rank.failure();
  });
}

TEST(Rails, ANodeThatIsCutOffFailsTheOthers) {
  GpuJob job({2, 2});
  std::atomic<int> waiting{0};
  ExchangeSettings settings = impatient();
  settings.death_ms = 2000;
  run_gpu_job(job, settings, [&](GpuRank& rank) {
    ++waiting;
    if (rank.rank() == 0) {
      while (waiting < 4) std::this_thread::sleep_for(1ms);
      job.rails->set_dead(2, true);
      job.rails->set_dead(3, true);
    }
    if (rank.rank() >= 2) return;
    wait_in_vain(rank, 2);
    EXPECT_EQ(rank.failure(), "rank 2 has died: its node has not answered on any link for 2000 ms");
  });
}

// Whose fault a failure is: another rank's where that has died or left, also by an abort.
TEST(Rails, AFailureNamesTheRankThatIsLost) {
  using engine::FailureKind;
  constexpr auto kNone = std::optional<std::uint32_t>{};
  const struct {
    FailureKind kind;
    std::optional<std::uint32_t> dead, lost;
  } cases[] = {{FailureKind::died, 2, kNone},
               {FailureKind::left, kNone, 2},
               {FailureKind::size_mismatch, kNone, kNone},
               {FailureKind::closed, kNone, kNone}};
  for (const auto& [kind, dead, lost] : cases) {
    const cuda::Failure failure = cuda::failure_of({kind, 2, "text"});
    EXPECT_EQ(failure.text, "text");
    EXPECT_EQ(failure.dead_rank, dead) << static_cast<int>(kind);
    EXPECT_EQ(failure.lost_rank, lost) << static_cast<int>(kind);
  }
}

TEST(Rails, AnOperationThatWaitsTooLongGivesUp) {
  GpuJob job({2, 1});
  job.timeout_ns = 50'000'000;
  run_gpu_job(job, patient(), [&](GpuRank& rank) {
    if (rank.rank() == 1) return;
    wait_in_vain(rank, 1);
    EXPECT_EQ(rank.host().error, static_cast<std::uint32_t>(cuda::KernelError::timed_out));
    EXPECT_EQ(rank.host().error_peer, 1u);
    rank.fail("timed out");
  });
}

// Before the host has seen why that one gave up. What its engine asks for in the meantime is in the buffer of an operation that has left.
TEST(Rails, AnOperationBehindOneThatGaveUpTakesNothingThatWasMeantForIt) {
  GpuJob job({2, 1});
  job.timeout_ns = 50'000'000;
  std::atomic<bool> gave_up{false};
  run_gpu_job(job, patient(), [&](GpuRank& rank) {
    std::vector<std::byte> data(100'000, std::byte{7});
    if (rank.rank() == 0) {
      gave_up.wait(false);
      std::fill(data.begin(), data.end(), std::byte{8});
      rank.run({{Direction::send, 1, data.data(), data.size()}});
      EXPECT_NE(rank.failure(), "");
      return;
    }
    rank.run({{Direction::receive, 0, data.data(), data.size()}});
    EXPECT_EQ(rank.host().error, static_cast<std::uint32_t>(cuda::KernelError::timed_out));
    job.timeout_ns = GpuJob({1, 1}).timeout_ns;
    gave_up = true;
    gave_up.notify_all();
    while (!rank.asked(1)) std::this_thread::sleep_for(1ms);
    std::vector<std::byte> next = data;
    rank.run({{Direction::receive, 0, next.data(), next.size()}});
    EXPECT_EQ(data, std::vector<std::byte>(data.size(), std::byte{7}));
    EXPECT_EQ(rank.completed(), 0u);
    rank.fail("timed out");
  });
}

}  // namespace
}  // namespace railweave::test
