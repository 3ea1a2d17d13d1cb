// Ranks as processes, whose kernels are threads: one of them is killed.
#include <gtest/gtest.h>
#include <signal.h>

#include "gpu_rank.hpp"
#include "processes.hpp"

namespace railweave::test {
namespace {

using namespace std::chrono_literals;

// Every rank exchanges with the two of the other node, round after round; rank 3 dies in the middle of one. Nobody waits for ever: neither
// those who wait for its bytes, nor its mate, which exchanges nothing with it. With slots in host memory, and where NICs reach them.
class RailProcesses : public testing::TestWithParam<bool> {};
TEST_P(RailProcesses, WhenARankIsKilledEveryOtherOneNamesIt) {
  const Shape shape{2, 2};
  constexpr std::uint32_t kVictim = 3;
  constexpr std::uint64_t kBytes = 400'000;
  const ScratchDirectory directory;
  SharedCounters rounds;
  const auto statuses = run_processes(shape.world(), [&](std::uint32_t rank) {
    GpuJob job(shape);
    if (GetParam()) job.prepare_slots = [](std::uint32_t, HiddenSlots& slots) { slots.objections = {""}; };
    ExchangeSettings settings;
    settings.chunk_bytes = 4096;
    settings.drain_ms = 20'000;  // as in rails_test.cpp
    GpuRank instance(job, rank, directory.rendezvous(), settings);
    std::vector<std::byte> send(2 * kBytes), receive(2 * kBytes);
    const std::uint32_t peers[] = {rank < 2 ? 2u : 0u, rank < 2 ? 3u : 1u};
    std::jthread plug;
    for (std::uint64_t round = 0;; ++round) {
      std::vector<Transfer> transfers;
      for (std::uint64_t i = 0; i < 2; ++i) {
        fill(send.data() + i * kBytes, kBytes, tag_of(rank, peers[i], round));
        transfers.push_back({Direction::send, peers[i], send.data() + i * kBytes, kBytes});
        transfers.push_back({Direction::receive, peers[i], receive.data() + i * kBytes, kBytes});
      }
      if (rank == kVictim && round == 3) {
        plug = std::jthread([&, before = instance.taken()] {
          while (instance.taken() < before + 20) std::this_thread::sleep_for(1ms);
          ::kill(::getpid(), SIGKILL);
        });
      }
      instance.run(transfers);
      if (!instance.failure().empty()) break;
      if ((instance.moved().received != 0) != GetParam()) return 3;
      for (std::uint64_t i = 0; i < 2; ++i) {
        if (first_wrong(receive.data() + i * kBytes, kBytes, tag_of(peers[i], rank, round)) != kBytes) return 1;
      }
      ++rounds[rank];
    }
    if (instance.failure().starts_with("rank 3 has died")) return 0;
    std::fprintf(stderr, "rank %u: %s\n", rank, instance.failure().c_str());
    return 2;
  });
  for (std::uint32_t rank = 0; rank < shape.world(); ++rank) {
    EXPECT_EQ(statuses[rank], rank == kVictim ? -SIGKILL : 0) << "rank " << rank;
    EXPECT_GE(rounds[rank], 1) << "rank " << rank;
  }
}
// Rank 0 leaves and rank 3 dies: no NIC of the nodes is left that reaches another with a process behind it. Ranks 1 and 2 are alive, but
// cannot hear of each other, and do not wait until a node counts as silent (ten minutes in tests).
TEST(RailProcesses, ThoseBehindNicsThatNobodyDrivesFailAtOnce) {
  const Shape shape{2, 2};
  constexpr std::uint64_t kBytes = 400'000;
  const ScratchDirectory directory;
  SharedCounters ended;
  const auto statuses = run_processes(shape.world(), [&](std::uint32_t rank) {
    GpuJob job(shape);
    ExchangeSettings settings;
    settings.chunk_bytes = 4096;
    settings.drain_ms = 20'000;
    GpuRank instance(job, rank, directory.rendezvous(), settings);
    std::vector<std::byte> send(kBytes), receive(kBytes);
    const std::uint32_t peer = 3 - rank;
    const auto exchange = [&] {
      instance.run({{Direction::send, peer, send.data(), kBytes}, {Direction::receive, peer, receive.data(), kBytes}});
      return instance.failure();
    };
    if (!exchange().empty()) return 1;
    ++ended[0];
    while (ended[0] != 4) std::this_thread::sleep_for(1ms);  // the others' ways may lead through this rank
    if (rank == 0) return 0;
    if (rank == 3) ::kill(::getpid(), SIGKILL);
    std::string failure;
    while ((failure = exchange()).empty()) {
    }
    const std::string expected = "rank " + std::to_string(peer) + " cannot be reached any more";
    if (failure.starts_with(expected) || failure.starts_with("rank 3 has died")) return 0;
    std::fprintf(stderr, "rank %u: %s\n", rank, failure.c_str());
    return 2;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, -SIGKILL}));
}
INSTANTIATE_TEST_SUITE_P(Slots, RailProcesses, testing::Bool());

}  // namespace
}  // namespace railweave::test
