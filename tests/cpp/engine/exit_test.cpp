// Processes that end without close() when their own operations have ended: what that costs the others (docs/protocol.md §12).
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include <cstring>
#include <fstream>

#include "copying_backend.hpp"
#include "engine.hpp"
#include "fault_transport.hpp"
#include "job.hpp"
#include "processes.hpp"

namespace railweave::test {
namespace {

constexpr std::uint64_t kBytes = 300'000;
constexpr std::uint64_t kSmall = 1000;

void wait_for(const std::atomic<int>& counter, int value) {
  while (counter < value) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Waits until this rank's engine holds the victim for dead: for a message that never comes.
bool hears_of_the_death(Exchange& exchange, std::uint32_t victim) {
  std::byte data{};
  Group group = exchange.group(1);
  group.recv(&data, 1, victim);
  try {
    group.end().wait();
  } catch (const RankDied& error) {
    return error.rank() == victim;
  }
  return false;
}

struct Buffers {
  Buffers(std::uint32_t rank, std::uint32_t world) : send(kBytes * world), recv(kBytes * world), counts(world, kBytes), offsets(world) {
    for (std::uint32_t peer = 0; peer < world; ++peer) {
      offsets[peer] = peer * kBytes;
      fill(send.data() + offsets[peer], kBytes, tag_of(rank, peer, 0));
    }
  }
  bool right(std::uint32_t rank) const {
    for (std::uint32_t peer = 0; peer < counts.size(); ++peer) {
      if (first_wrong(recv.data() + offsets[peer], kBytes, tag_of(peer, rank, 0)) != kBytes) return false;
    }
    return true;
  }
  std::vector<std::byte> send, recv;
  std::vector<std::uint64_t> counts, offsets;
};

struct Ending {
  Shape shape;
  int signal;  // 0: _exit
};

// The last rank ends as soon as its part of an all_to_all_v is over, and the others only learn of it in the middle of theirs.
class EndsAfterItsPart : public testing::TestWithParam<Ending> {};

TEST_P(EndsAfterItsPart, TheOthersEndTheSameOperation) {
  const Ending ending = GetParam();
  const std::uint32_t world = ending.shape.world(), victim = world - 1;
  const ScratchDirectory directory;
  SharedCounters shared;
  const auto statuses = run_processes(world, [&](std::uint32_t rank) {
    ExchangeSettings settings = rank_settings(ending.shape, rank);
    settings.drain_ms = 500;  // rank 1 has no rail any more when rank 0 has closed first
    Exchange exchange(rank, world, directory.rendezvous(), settings);
    Buffers buffers(rank, world);
    const auto collective = [&] {
      return exchange.all_to_all_v(buffers.send.data(), buffers.counts, buffers.offsets, buffers.recv.data(), buffers.counts,
                                   buffers.offsets);
    };
    if (rank == victim) {
      collective().wait();
      if (ending.signal != 0) ::kill(::getpid(), ending.signal);
      ::_exit(7);
    }
    if (rank == 1) {
      // Its own part in two groups, so that rank 0 still waits for it when the last rank is dead.
      const auto with = [&](bool rank_0) {
        Group group = exchange.group();
        for (std::uint32_t peer = 0; peer < world; ++peer) {
          if ((peer == 0) != rank_0) continue;
          group.send(buffers.send.data() + buffers.offsets[peer], kBytes, peer);
          group.recv(buffers.recv.data() + buffers.offsets[peer], kBytes, peer);
        }
        group.end().wait();
      };
      with(false);
      wait_for(shared[0], 1);
      with(true);
    } else {
      Handle handle = collective();
      if (rank == 0) {
        if (!hears_of_the_death(exchange, victim)) return 1;
        ++shared[0];
      }
      handle.wait();
    }
    if (!buffers.right(rank)) return 2;
    ++shared[1];  // nobody leaves while others may need its NIC
    wait_for(shared[1], static_cast<int>(world) - 1);
    // The next one names it.
    if (!hears_of_the_death(exchange, victim)) return 3;
    try {
      collective().wait();
      return 4;
    } catch (const RankDied& error) {
      if (error.rank() != victim) return 5;
    }
    ++shared[2];
    wait_for(shared[2], static_cast<int>(world) - 1);
    return 0;
  });
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    EXPECT_EQ(statuses[rank], rank != victim ? 0 : ending.signal == 0 ? 7 : -ending.signal) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, EndsAfterItsPart,
                         testing::Values(Ending{{1, 3}, 0}, Ending{{1, 3}, SIGKILL}, Ending{{2, 2}, 0}, Ending{{2, 2}, SIGKILL}));

// Tells nobody that a chunk has landed.
class LosesGot final : public FaultTransport {
 public:
  explicit LosesGot(std::unique_ptr<engine::Transport> inner) : FaultTransport(std::move(inner), {}, std::make_shared<RailSwitch>(1), 0) {}
  void send(std::uint32_t peer, const engine::RailHeader& header, std::span<const std::byte> payload, std::uint64_t token) override {
    if (header.kind != engine::RailFrame::got) FaultTransport::send(peer, header, payload, token);
  }
};

std::shared_ptr<engine::Operation> one_message(engine::Engine& engine, std::byte* data, std::uint64_t bytes, std::uint32_t source,
                                               std::uint32_t destination) {
  auto operation = std::make_shared<engine::Operation>();
  const auto chunks = static_cast<std::uint32_t>((bytes + engine.memory().chunk_bytes() - 1) / engine.memory().chunk_bytes());
  if (engine.cluster().rank == source) {
    engine::SendMessage send;
    send.key = {0, source, destination, 0, 0};
    send.data = data;
    send.bytes = bytes;
    send.chunks.resize(chunks);
    operation->sends.push_back(std::move(send));
  } else {
    engine::RecvMessage recv;
    recv.key = {0, source, destination, 0, 0};
    recv.data = data;
    recv.bytes = bytes;
    recv.chunks = chunks;
    operation->recvs.push_back(std::move(recv));
  }
  engine.post(operation);
  return operation;
}

// Rank 3 has all bytes and its program knows it; the link takes the `got` along. `more`: it has begun another receive. Then nobody can know
// what it had when it dies, and when it leaves it has cancelled that one alone.
struct Loss {
  bool dies, more;
};
class LosesEachGot : public testing::TestWithParam<Loss> {};

TEST_P(LosesEachGot, TheSendEndsIfItsDestinationIsKnownToHaveIt) {
  const auto [dies, more] = GetParam();
  const Shape shape{2, 2};
  const ScratchDirectory directory;
  SharedCounters shared;
  const auto statuses = run_processes(4, [&](std::uint32_t rank) {
    ExchangeSettings settings = rank_settings(shape, rank);
    settings.drain_ms = 2000;  // of a rank whose transfers have no end
    engine::Engine engine(rank, 4, directory.rendezvous(), settings, std::nullopt,
                          [&](std::unique_ptr<engine::Transport> inner, std::uint32_t) -> std::unique_ptr<engine::Transport> {
                            if (rank < 2) return inner;
                            return std::make_unique<LosesGot>(std::move(inner));
                          });
    std::vector<std::byte> data(kBytes);
    int status = 0;
    if (rank == 0 || rank == 3) {
      if (rank == 0) fill(data.data(), kBytes, 9);
      const auto operation = one_message(engine, data.data(), kBytes, 0, 3);
      std::shared_ptr<engine::Operation> other;
      std::vector<std::byte> unsent(kBytes);
      if (rank == 3 && more) other = one_message(engine, unsent.data(), kBytes, 1, 3);
      {
        std::unique_lock lock(operation->mutex);
        operation->changed.wait(lock, [&] { return operation->ended; });
      }
      if (rank == 3) {
        status = first_wrong(data.data(), kBytes, 9) == kBytes ? 7 : 6;
        if (dies) ::_exit(status);
        engine.close();
        return status;
      }
      status = operation->failure.kind == (dies && more ? engine::FailureKind::died : engine::FailureKind::none) ? 0 : 1;
    }
    ++shared[0];
    wait_for(shared[0], 3);
    engine.close();
    return status;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 7}));
}

INSTANTIATE_TEST_SUITE_P(Jobs, LosesEachGot, testing::Values(Loss{true, false}, Loss{true, true}, Loss{false, false}, Loss{false, true}));

bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto name_ends = line.rfind(')');
  return name_ends != std::string::npos && line.substr(name_ends + 1, 3) == " T ";
}

// Rank 1 has lent its buffer and is stopped, and its ring has room for all records of a send but one. Rank 0's program is told that its
// send has ended when that one stands there, too, and ends its process at once; if rank 1 dies instead, it is told that.
class FullRing : public testing::TestWithParam<int> {};

TEST_P(FullRing, ASendThatHasEndedNeedsItsProcessNoMore) {
  const int signal = GetParam();
  const ScratchDirectory directory;
  SharedCounters shared;
  const auto statuses = run_processes(2, [&](std::uint32_t rank) {
    constexpr std::uint32_t kChunks = engine::kRingRecords + 1;
    constexpr auto kSoon = std::chrono::seconds(10);
    ExchangeSettings settings = rank_settings({1, 2}, rank);
    settings.chunk_bytes = 4096;
    settings.lease_ms = 600'000;  // it is stopped on purpose
    engine::Engine engine(rank, 2, directory.rendezvous(), settings, std::nullopt);
    const auto buffer = engine.allocate(kChunks * settings.chunk_bytes);
    const std::uint64_t bytes = buffer->bytes();
    if (rank == 1) {
      const auto operation = one_message(engine, buffer->data(), bytes, 0, 1);
      const std::string granted = "receive of " + std::to_string(bytes) + " bytes from rank 0: granted, 0 of 257 chunks arrived";
      for (auto now = engine.standing(kSoon); !now || now->messages.empty() || now->messages[0].find(granted) != 0;
           now = engine.standing(kSoon))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      shared[0] = ::getpid();
      ::raise(SIGSTOP);
      std::unique_lock lock(operation->mutex);
      operation->changed.wait(lock, [&] { return operation->ended; });
      return operation->failure.kind == engine::FailureKind::none && first_wrong(buffer->data(), bytes, 5) == bytes ? 0 : 1;
    }
    fill(buffer->data(), bytes, 5);
    while (shared[0] == 0 || !is_stopped(shared[0])) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto operation = one_message(engine, buffer->data(), bytes, 0, 1);
    const std::string landed =
        "send of " + std::to_string(bytes) +
        " bytes to rank 1: granted, 257 of 257 chunks landed; a record waits for room in the ring of rank 1, which reads nothing";
    for (auto now = engine.standing(kSoon); !now || now->messages != std::vector{landed}; now = engine.standing(kSoon)) {
      const std::lock_guard lock(operation->mutex);
      if (operation->ended) ::kill(shared[0], SIGKILL);
      if (operation->ended) ::_exit(2);
    }
    ::kill(shared[0], signal);
    std::unique_lock lock(operation->mutex);
    operation->changed.wait(lock, [&] { return operation->ended; });
    const auto expected = signal == SIGCONT ? engine::FailureKind::none : engine::FailureKind::died;
    ::_exit(operation->failure.kind == expected ? 0 : 3);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, signal == SIGCONT ? 0 : -SIGKILL}));
}

INSTANTIATE_TEST_SUITE_P(Mate, FullRing, testing::Values(SIGCONT, SIGKILL));

// Its copies into buffers wait until the test says so, as those of a GPU may.
class HeldBackend final : engine::Copier, public engine::CopyingBackend {
 public:
  HeldBackend(engine::EngineServices& services, const std::atomic<int>& released)
      : CopyingBackend(services, static_cast<Copier&>(*this)), released_(released) {}

 private:
  bool has_room() const override { return true; }
  bool push(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t) override {
    std::memcpy(to, from, bytes);
    return true;
  }
  bool pull(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t ticket) override {
    held_.push_back({to, from, bytes, ticket});
    return false;
  }
  bool put(std::byte* to, std::span<const std::byte> data, std::uint64_t) override {
    std::memcpy(to, data.data(), data.size());
    return true;
  }
  void take_ended(std::vector<Ended>& ended) override {
    if (released_ == 0) return;
    for (const Held& copy : held_) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      ended.push_back({copy.ticket, true});
    }
    held_.clear();
  }

  struct Held {
    std::byte* to;
    const std::byte* from;
    std::uint64_t bytes, ticket;
  };
  std::vector<Held> held_;
  const std::atomic<int>& released_;
};

// A send ends when its bytes have landed, and its program may go: rank 3 hears that rank 0 is gone before it has copied anything.
enum class Gone { left, died, died_unwell, its_relay_died };
class GoesBeforeItsBytesAreCopied : public testing::TestWithParam<Gone> {};

TEST_P(GoesBeforeItsBytesAreCopied, TheReceiveEndsWell) {
  const Gone gone = GetParam();
  const Shape shape{2, 2};
  const ScratchDirectory directory;
  SharedCounters shared;
  std::atomic<int>&released = shared[0], &done = shared[1];
  const auto statuses = run_processes(4, [&](std::uint32_t rank) {
    const ExchangeSettings settings = rank_settings(shape, rank);
    const auto rendezvous = engine::make_rendezvous(directory.rendezvous(), rank, 4, std::chrono::milliseconds(settings.bootstrap_ms));
    engine::Engine engine(engine::exchange_identity(*rendezvous, rank, 4, settings), *rendezvous, settings, std::nullopt, {},
                          [&](engine::EngineServices& services) { return std::make_unique<HeldBackend>(services, released); });
    std::vector<std::byte> data(kBytes), never(kBytes);
    const auto end = [](const std::shared_ptr<engine::Operation>& operation) {
      std::unique_lock lock(operation->mutex);
      operation->changed.wait(lock, [&] { return operation->ended; });
      return operation->failure.kind;
    };
    int status = 0;
    const std::uint32_t victim = gone == Gone::its_relay_died ? 2 : 0;
    if (rank == 0) {
      fill(data.data(), kBytes, 9);
      const auto operation = one_message(engine, data.data(), kBytes, 0, 3);
      std::shared_ptr<engine::Operation> other;
      if (gone == Gone::died_unwell) other = one_message(engine, never.data(), kBytes, 1, 0);
      status = end(operation) == engine::FailureKind::none && released == 0 ? 0 : 1;
      ++shared[2];
      if (gone == Gone::left) engine.close();
      if (victim == 0) ::_exit(status);
    }
    if (rank == victim) {
      wait_for(shared[2], 1);
      ::_exit(0);
    }
    if (rank == 3) {
      const auto operation = one_message(engine, data.data(), kBytes, 0, 3);
      // Heard of: for a message that never comes.
      const engine::FailureKind heard = end(one_message(engine, never.data(), kBytes, victim, 3));
      ++released;
      if (heard != (gone == Gone::left ? engine::FailureKind::left : engine::FailureKind::died)) status = 2;
      if (end(operation) != engine::FailureKind::none) status = 3;
      if (first_wrong(data.data(), kBytes, 9) != kBytes) status = 4;
    }
    ++done;
    wait_for(done, 3);
    engine.close();
    return status;
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
}

INSTANTIATE_TEST_SUITE_P(Jobs, GoesBeforeItsBytesAreCopied,
                         testing::Values(Gone::left, Gone::died, Gone::died_unwell, Gone::its_relay_died));

// Small messages that have come are received, also when their receives are posted after the death of their source.
class SmallOnesFromTheDead : public testing::TestWithParam<Shape> {};

TEST_P(SmallOnesFromTheDead, AreReceivedIfTheyHadCome) {
  const Shape shape = GetParam();
  const std::uint32_t world = shape.world(), victim = world - 1;
  const ScratchDirectory directory;
  SharedCounters shared;
  const auto statuses = run_processes(world, [&](std::uint32_t rank) {
    Exchange exchange(rank, world, directory.rendezvous(), rank_settings(shape, rank));
    std::vector<std::byte> data(kSmall);
    if (rank == victim) {
      for (std::uint64_t i = 0; i < 40; ++i) {
        fill(data.data(), kSmall, i);
        Group group = exchange.group();
        group.send(data.data(), kSmall, 0);
        group.end().wait();
      }
      Group last = exchange.group(2);
      last.send(data.data(), 1, 0);
      last.end().wait();
      wait_for(shared[0], 1);
      ::_exit(7);
    }
    if (rank == 0) {
      Group last = exchange.group(2);  // sent after all others, and the channel keeps their order
      last.recv(data.data(), 1, victim);
      last.end().wait();
      ++shared[0];
      if (!hears_of_the_death(exchange, victim)) return 1;
      for (std::uint64_t i = 0; i < 40; ++i) {
        Group group = exchange.group();
        group.recv(data.data(), kSmall, victim);
        group.end().wait();
        if (first_wrong(data.data(), kSmall, i) != kSmall) return 2;
      }
    }
    ++shared[1];
    wait_for(shared[1], static_cast<int>(world) - 1);
    return 0;
  });
  for (std::uint32_t rank = 0; rank < world; ++rank) EXPECT_EQ(statuses[rank], rank == victim ? 7 : 0) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Nodes, SmallOnesFromTheDead, testing::Values(Shape{1, 2}, Shape{2, 2}));

// Rank 0 does not run while rank 1 writes more into its mail ring than it reads in one turn, and dies.
TEST(SmallOnesFromTheDead, AreReadFromTheMailRing) {
  const ScratchDirectory directory;
  SharedCounters shared;
  const auto statuses = run_processes(3, [&](std::uint32_t rank) {
    Exchange exchange(rank, 3, directory.rendezvous(), rank_settings({1, 3}, rank));
    std::vector<std::byte> data(kSmall);
    shared[rank] = ::getpid();
    wait_for(shared[0], 1);
    wait_for(shared[1], 1);
    if (rank == 1) {
      wait_for(shared[3], 1);
      ::kill(shared[0], SIGSTOP);
      for (std::uint64_t i = 0; i < 60; ++i) {
        fill(data.data(), kSmall, i);
        Group group = exchange.group();
        group.send(data.data(), kSmall, 0);
        group.end().wait();
      }
      ::_exit(7);
    }
    if (rank == 2) {
      const int process = static_cast<int>(::syscall(SYS_pidfd_open, shared[1].load(), 0));
      ++shared[3];
      pollfd ended{process, POLLIN, 0};
      ::poll(&ended, 1, -1);
      ::kill(shared[0], SIGCONT);
    }
    if (rank == 0) {
      if (!hears_of_the_death(exchange, 1)) return 1;
      for (std::uint64_t i = 0; i < 60; ++i) {
        Group group = exchange.group();
        group.recv(data.data(), kSmall, 1);
        group.end().wait();
        if (first_wrong(data.data(), kSmall, i) != kSmall) return 2;
      }
    }
    ++shared[4];
    wait_for(shared[4], 2);
    return 0;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 7, 0}));
}

}  // namespace
}  // namespace railweave::test
