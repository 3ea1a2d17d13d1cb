// Ranks as processes: what happens when one dies, leaves, or disagrees.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "job.hpp"
#include "random_groups.hpp"

namespace railweave::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Counters that the ranks of a job share with the test.
class SharedCounters {
 public:
  SharedCounters()
      : data_(static_cast<std::atomic<int>*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedCounters() { ::munmap(data_, 4096); }
  SharedCounters(const SharedCounters&) = delete;
  SharedCounters& operator=(const SharedCounters&) = delete;
  std::atomic<int>& operator[](std::size_t i) { return data_[i]; }

 private:
  std::atomic<int>* data_;
};

// Forks one process a rank; `body` gives its exit status. Returns the statuses, or -signal.
std::vector<int> run_processes(std::uint32_t world, const std::function<int(std::uint32_t)>& body) {
  std::vector<pid_t> pids;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int status = 99;
      try {
        status = body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %u: %s\n", rank, error.what());
      }
      std::fflush(nullptr);
      ::_exit(status);
    }
    pids.push_back(pid);
  }
  std::vector<int> statuses;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return statuses;
}

TEST(Processes, RandomGroups) {
  const Shape shape{2, 2};
  const ScratchDirectory directory;
  SharedCounters done;
  const auto statuses = run_processes(shape.world(), [&](std::uint32_t rank) {
    Exchange exchange(rank, shape.world(), directory.rendezvous(), rank_settings(shape, rank));
    std::string mismatch;
    run_rank(exchange, {shape.world(), 200, 400'000, 21, 2, {}}, mismatch);
    ++done[0];
    while (done[0] < static_cast<int>(shape.world())) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    exchange.close();
    if (!mismatch.empty()) std::fprintf(stderr, "%s\n", mismatch.c_str());
    return mismatch.empty() ? 0 : 1;
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "the rendezvous left files behind";
}

TEST(Processes, RendezvousOverTcp) {
  const Shape shape{2, 1};
  const std::string port = std::to_string(20000 + ::getpid() % 20000);
  const auto statuses = run_processes(2, [&](std::uint32_t rank) {
    Exchange exchange(rank, 2, "tcp://127.0.0.1:" + port, rank_settings(shape, rank));
    std::string mismatch;
    run_rank(exchange, {2, 20, 400'000, 22, 1, {}}, mismatch);
    return mismatch.empty() ? 0 : 1;
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

// Rank `victim` kills itself while all others wait for bytes of it, some of them through a group, some through all_to_all_v.
class RankDeath : public testing::TestWithParam<std::pair<Shape, std::uint32_t>> {};

TEST_P(RankDeath, EveryOtherRankEndsWithAnErrorThatNamesIt) {
  const auto [shape, victim] = GetParam();
  const std::uint32_t world = shape.world();
  const ScratchDirectory directory;
  SharedCounters shared;
  const auto statuses = run_processes(world, [&, victim = victim, shape = shape](std::uint32_t rank) {
    Exchange exchange(rank, world, directory.rendezvous(), rank_settings(shape, rank));
    constexpr std::uint64_t kBytes = 300'000;
    std::vector<std::byte> send(kBytes * world), recv(kBytes * world);
    std::vector<std::uint64_t> counts(world, kBytes), offsets(world);
    for (std::uint32_t peer = 0; peer < world; ++peer) offsets[peer] = peer * kBytes;
    exchange.all_to_all_v(send.data(), counts, offsets, recv.data(), counts, offsets).wait();
    ++shared[0];
    while (shared[0] < static_cast<int>(world)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank == victim) ::kill(::getpid(), SIGKILL);
    const auto start = Clock::now();
    const auto named = [&](Handle handle) {
      try {
        handle.wait();
        return false;
      } catch (const RankDied& error) {
        return error.rank() == victim;
      }
    };
    if (!named(exchange.all_to_all_v(send.data(), counts, offsets, recv.data(), counts, offsets))) return 1;
    if (seconds_since(start) > 10) return 2;
    Group group = exchange.group(1);  // a later one
    group.recv(recv.data(), 10, victim);
    if (!named(group.end())) return 3;
    if (seconds_since(start) > 10) return 4;
    // What does not need the dead rank still works, on the same communicator.
    const std::uint32_t other = world - 1 - rank;
    if (other != victim && other != rank) {
      fill(send.data(), kBytes, tag_of(rank, other, 0));
      Group alive = exchange.group(2);
      alive.send(send.data(), kBytes, other);
      alive.recv(recv.data(), kBytes, other);
      alive.end().wait();
      if (first_wrong(recv.data(), kBytes, tag_of(other, rank, 0)) != kBytes) return 5;
    }
    ++shared[1];  // nobody leaves while others may need its NIC
    while (shared[1] < static_cast<int>(world) - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  });
  for (std::uint32_t rank = 0; rank < world; ++rank) EXPECT_EQ(statuses[rank], rank == victim ? -SIGKILL : 0) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Jobs, RankDeath,
                         testing::Values(std::pair{Shape{1, 3}, 1u}, std::pair{Shape{2, 2}, 3u}, std::pair{Shape{2, 1}, 0u}));

// Rank 1 is rank 0's relay; it dies while rank 0 sends through it.
TEST(Processes, DeathOfARelayIsSurvived) {
  const Shape shape{2, 2};
  const ScratchDirectory directory;
  SharedCounters progress;
  ExchangeSettings settings;
  settings.multipath_min_bytes = 0;
  settings.chunk_bytes = 16384;
  const auto statuses = run_processes(4, [&](std::uint32_t rank) {
    Exchange exchange(rank, 4, directory.rendezvous(), rank_settings(shape, rank, settings));
    if (rank == 1) {
      while (progress[0] < 5) std::this_thread::sleep_for(std::chrono::microseconds(100));
      ::kill(::getpid(), SIGKILL);
    }
    constexpr std::uint64_t kBytes = 4'000'000;
    std::vector<std::byte> data(kBytes);
    for (std::uint64_t round = 0; round < 30 && rank % 2 == 0; ++round) {
      Group group = exchange.group();
      if (rank == 0) {
        fill(data.data(), kBytes, round);
        group.send(data.data(), kBytes, 2);
      } else {
        group.recv(data.data(), kBytes, 0);
      }
      group.end().wait();
      if (rank == 2 && first_wrong(data.data(), kBytes, round) != kBytes) return 1;
      if (rank == 0) ++progress[0];
    }
    ++progress[1];
    while (progress[1] < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, -SIGKILL, 0, 0}));
}

// A relay whose process is stopped keeps its slots; what it held goes out again elsewhere, and it is used again when it runs.
TEST(Processes, StoppedRelayIsPassedBy) {
  const Shape shape{2, 2};
  const ScratchDirectory directory;
  SharedCounters shared;
  ExchangeSettings settings;
  settings.multipath_min_bytes = 0;
  settings.chunk_bytes = 16384;
  settings.lease_ms = 300;
  settings.rail_timeout_ms = 300;
  const auto statuses = run_processes(4, [&](std::uint32_t rank) {
    Exchange exchange(rank, 4, directory.rendezvous(), rank_settings(shape, rank, settings));
    if (rank == 1) shared[2] = ::getpid();
    constexpr std::uint64_t kBytes = 4'000'000;
    std::vector<std::byte> data(kBytes);
    for (std::uint64_t round = 0; round < 20 && rank % 2 == 0; ++round) {
      if (rank == 0 && round == 5) {
        while (shared[2] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ::kill(shared[2], SIGSTOP);
      }
      Group group = exchange.group();
      if (rank == 0) {
        fill(data.data(), kBytes, round);
        group.send(data.data(), kBytes, 2);
      } else {
        group.recv(data.data(), kBytes, 0);
      }
      group.end().wait();
      if (rank == 2 && first_wrong(data.data(), kBytes, round) != kBytes) return 1;
      if (rank == 0 && round == 12) ::kill(shared[2], SIGCONT);
    }
    ++shared[1];
    while (shared[1] < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
}

// What all ranks of a job of two get when rank 1 is started like that.
std::vector<std::string> bootstrap_errors(const std::function<void(ExchangeSettings&)>& change, std::uint32_t world_of_rank_1 = 2) {
  const ScratchDirectory directory;
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ExchangeSettings settings = rank_settings({1, 2}, rank);
      settings.bootstrap_ms = 1500;
      if (rank == 1) change(settings);
      try {
        Exchange exchange(rank, rank == 1 ? world_of_rank_1 : 2, directory.rendezvous(), settings);
      } catch (const BootstrapError& error) {
        texts[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

TEST(Bootstrap, SettingsThatDifferAreNamedOnAllRanks) {
  const auto texts = bootstrap_errors([](ExchangeSettings& settings) { settings.chunk_bytes = 8192; });
  EXPECT_EQ(texts[0],
            "setting chunk_bytes: rank 1 has '8192', rank 0 has '262144'; expected the same on all ranks (RAILWEAVE_CHUNK_BYTES)");
  EXPECT_EQ(texts[1], texts[0]);
}

TEST(Bootstrap, ANodeWithoutThatInterfaceIsNamedOnAllRanks) {
  const auto texts = bootstrap_errors([](ExchangeSettings& settings) {
    settings.node_id = "elsewhere";
    settings.nics = "norail9";
  });
  EXPECT_NE(texts[0].find("rank 1: "), std::string::npos) << texts[0];
  EXPECT_NE(texts[0].find("norail9"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[1], texts[0]);
}

TEST(Bootstrap, AMissingRankIsNamed) {
  const ScratchDirectory directory;
  ExchangeSettings settings;
  settings.bootstrap_ms = 200;
  try {
    Exchange exchange(0, 3, directory.rendezvous(), settings);
    FAIL();
  } catch (const BootstrapError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1, 2 did not reach 'identity' within 200 ms"), std::string::npos) << error.what();
  }
}

TEST(Sizes, ThatDifferFailOnBothEnds) {
  run_job({2, 1}, {}, [](Exchange& exchange) {
    std::vector<std::byte> data(5000);
    Group group = exchange.group();
    if (exchange.rank() == 0)
      group.send(data.data(), 5000, 1);
    else
      group.recv(data.data(), 4000, 0);
    try {
      group.end().wait();
      FAIL();
    } catch (const ExchangeError& error) {
      EXPECT_NE(std::string(error.what()).find("the sender has 5000 bytes, the receiver 4000"), std::string::npos) << error.what();
    }
    // The next message is not affected.
    Group next = exchange.group();
    if (exchange.rank() == 0)
      next.send(data.data(), 100, 1);
    else
      next.recv(data.data(), 100, 0);
    next.end().wait();
  });
}

TEST(Leaving, FailsMessagesThatNeedTheRankAndNoOthers) {
  run_job({1, 3}, {}, [](Exchange& exchange) {
    std::vector<std::byte> data(1000);
    if (exchange.rank() == 2) {
      exchange.close();
      return;
    }
    Group group = exchange.group();
    group.recv(data.data(), 1000, 2);
    try {
      group.end().wait();
      FAIL();
    } catch (const RankDied& error) {
      EXPECT_EQ(error.rank(), 2u);
      EXPECT_STREQ(error.what(), "rank 2 has left: it has closed its exchange");
    }
    Group rest = exchange.group();
    if (exchange.rank() == 0)
      rest.send(data.data(), 1000, 1);
    else
      rest.recv(data.data(), 1000, 0);
    rest.end().wait();
  });
}

}  // namespace
}  // namespace railweave::test
