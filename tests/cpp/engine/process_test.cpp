// Ranks as processes: what happens when one dies, leaves, or disagrees.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include "job.hpp"
#include "lost_time.hpp"
#include "processes.hpp"
#include "random_groups.hpp"

namespace railweave::test {
namespace {

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

// A free port of this machine, nobody else's as long as this lives; rank 0 can listen at it.
class Port {
 public:
  Port() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_, any, length) == 0 && ::getsockname(socket_, any, &length) == 0) number_ = ntohs(address.sin_port);
  }
  ~Port() { ::close(socket_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  std::string number() const { return std::to_string(number_); }

 private:
  int socket_;
  std::uint16_t number_ = 0;
};

TEST(Processes, RendezvousOverTcp) {
  const Shape shape{2, 1};
  const Port port;
  const auto statuses = run_processes(2, [&](std::uint32_t rank) {
    Exchange exchange(rank, 2, "tcp://127.0.0.1:" + port.number(), rank_settings(shape, rank));
    std::string mismatch;
    run_rank(exchange, {2, 20, 400'000, 22, 1, {}}, mismatch);
    return mismatch.empty() ? 0 : 1;
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

// Each thread wants a stack that is larger than what there are addresses for.
TEST(Processes, ARankWithoutAThreadIsNamedOnAllRanks) {
  const Shape shape{2, 2};
  const ScratchDirectory directory;
  const auto statuses = run_processes(shape.world(), [&](std::uint32_t rank) {
    if (rank == 2) {
      pthread_attr_t attributes;
      ::pthread_attr_init(&attributes);
      ::pthread_attr_setstacksize(&attributes, std::size_t{1} << 48);
      ::pthread_setattr_default_np(&attributes);
    }
    try {
      Exchange exchange(rank, shape.world(), directory.rendezvous(), rank_settings(shape, rank));
    } catch (const BootstrapError& error) {
      const std::string text = error.what();
      if (text.starts_with("rank 2: no thread for the engine: ")) return 0;
      std::fprintf(stderr, "rank %u: %s\n", rank, text.c_str());
    }
    return 1;
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "the rendezvous left files behind";
}

// Rank `victim` kills itself while all others wait for bytes of it, some of them through a group, some through all_to_all_v.
class RankDeath : public testing::TestWithParam<std::pair<Shape, std::uint32_t>> {};

TEST_P(RankDeath, EveryOtherRankEndsWithAnErrorThatNamesIt) {
  const auto [shape, victim] = GetParam();
  const std::uint32_t world = shape.world();
  const ScratchDirectory directory;
  SharedCounters shared;
  const auto statuses = run_processes(world, [&, victim = victim, shape = shape](std::uint32_t rank) {
    ExchangeSettings settings = rank_settings(shape, rank);
    settings.death_ms = ExchangeSettings{}.death_ms;
    Exchange exchange(rank, world, directory.rendezvous(), settings);
    constexpr std::uint64_t kBytes = 300'000;
    std::vector<std::byte> send(kBytes * world), recv(kBytes * world);
    std::vector<std::uint64_t> counts(world, kBytes), offsets(world);
    for (std::uint32_t peer = 0; peer < world; ++peer) offsets[peer] = peer * kBytes;
    exchange.all_to_all_v(send.data(), counts, offsets, recv.data(), counts, offsets).wait();
    ++shared[0];
    while (shared[0] < static_cast<int>(world)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank == victim) ::kill(::getpid(), SIGKILL);
    const Span span;
    const auto named = [&](Handle handle) {
      try {
        handle.wait();
        return false;
      } catch (const RankDied& error) {
        return error.rank() == victim;
      }
    };
    if (!named(exchange.all_to_all_v(send.data(), counts, offsets, recv.data(), counts, offsets))) return 1;
    if (span.ran() > 10) return 2;
    Group group = exchange.group(1);  // a later one
    group.recv(recv.data(), 10, victim);
    if (!named(group.end())) return 3;
    if (span.ran() > 10) return 4;
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

// Rank 0 sends to rank 2, over ranks 1 and 3, too; `after` is called on rank 0 after each round. Whether rank 2 got the right bytes.
bool relayed_rounds(Exchange& exchange, std::uint64_t rounds, const std::function<void(std::uint64_t round)>& after) {
  constexpr std::uint64_t kBytes = 4'000'000;
  std::vector<std::byte> data(kBytes);
  bool right = true;
  for (std::uint64_t round = 0; round < rounds && exchange.rank() % 2 == 0; ++round) {
    Group group = exchange.group();
    if (exchange.rank() == 0) {
      fill(data.data(), kBytes, round);
      group.send(data.data(), kBytes, 2);
    } else {
      group.recv(data.data(), kBytes, 0);
    }
    group.end().wait();
    if (exchange.rank() == 2) right = right && first_wrong(data.data(), kBytes, round) == kBytes;
    if (exchange.rank() == 0) after(round);
  }
  return right;
}

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
    const bool right = relayed_rounds(exchange, 30, [&](std::uint64_t) { ++progress[0]; });
    ++progress[1];
    while (progress[1] < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return right ? 0 : 1;
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
    const bool right = relayed_rounds(exchange, 20, [&](std::uint64_t round) {
      if (round == 4) {
        while (shared[2] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ::kill(shared[2], SIGSTOP);
      }
      if (round == 12) ::kill(shared[2], SIGCONT);
    });
    ++shared[1];
    while (shared[1] < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return right ? 0 : 1;
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
}

// Nothing is planned for the NIC of a mate that has died, and its links count as down.
TEST(Processes, NicsOfADeadMateAreDown) {
  const Shape shape{2, 3};
  const ScratchDirectory directory;
  SharedCounters progress;
  const auto statuses = run_processes(6, [&](std::uint32_t rank) {
    Exchange exchange(rank, 6, directory.rendezvous(), rank_settings(shape, rank));
    ++progress[0];
    while (progress[0] < 6) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    bool right = true;
    if (rank == 0) {
      for (int looks = 0; looks < 12'000 && exchange.links_down().empty(); ++looks)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      right = !exchange.links_down().empty();
    }
    if (rank == 0 || rank == 3) {
      std::vector<std::byte> data(32u << 20);
      Group group = exchange.group();
      if (rank == 0)
        group.send(data.data(), data.size(), 3);
      else
        group.recv(data.data(), data.size(), 0);
      Handle handle = group.end();
      handle.wait();
      const auto by_nic = handle.report().bytes_by_nic;
      if (rank == 0 && (by_nic[1] != 0 || by_nic[0] < data.size() / 4 || by_nic[2] < data.size() / 4)) {
        std::fprintf(stderr, "by NIC: %llu %llu %llu\n", static_cast<unsigned long long>(by_nic[0]),
                     static_cast<unsigned long long>(by_nic[1]), static_cast<unsigned long long>(by_nic[2]));
        right = false;
      }
    }
    ++progress[1];
    while (progress[1] < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return right ? 0 : 1;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, -SIGKILL, 0, 0, 0, 0}));
}

// Who tells other nodes of deaths is stopped when rank 3 dies: the next one tells them.
TEST(Processes, AStoppedRankKeepsNoDeathFromOtherNodes) {
  const ScratchDirectory directory;
  SharedCounters shared;
  ExchangeSettings settings;
  settings.lease_ms = 500;
  const auto statuses = run_processes(4, [&](std::uint32_t rank) {
    ExchangeSettings own = rank_settings({1, 4}, rank, settings);
    own.node_id = rank == 0 ? "a" : "b";
    own.nics = rank == 0 || rank == 2 ? "lo" : ",";
    Exchange exchange(rank, 4, directory.rendezvous(), own);
    shared[2 + rank] = ::getpid();
    ++shared[0];
    while (shared[0] < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    bool right = true;
    if (rank == 0) {
      std::vector<std::byte> data(1000);
      Group group = exchange.group();
      group.recv(data.data(), data.size(), 3);
      Handle handle = group.end();
      ::kill(shared[3], SIGSTOP);
      ::kill(shared[5], SIGKILL);
      try {
        right = false;
        if (!handle.wait_for(120)) std::fprintf(stderr, "the death was not heard\n");
      } catch (const RankDied& error) {
        right = error.rank() == 3;
      }
      ::kill(shared[3], SIGCONT);
    }
    if (rank == 3) ::pause();
    ++shared[1];
    while (shared[1] < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return right ? 0 : 1;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, -SIGKILL}));
}

}  // namespace
}  // namespace railweave::test
