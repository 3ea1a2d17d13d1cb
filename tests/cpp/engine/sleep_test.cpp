// Nothing that an engine thread waits for is missed between its last look and its sleep (docs/protocol.md §3, doorbell): with timers an
// hour apart a wake-up that is lost is a hang.
#include <gtest/gtest.h>

#include <barrier>

#include "engine.hpp"
#include "fault_transport.hpp"
#include "random_groups.hpp"

namespace railweave::test {
namespace {

ExchangeSettings without_timers(ExchangeSettings settings) {
  settings.spin_us = 0;
  settings.heartbeat_ms = settings.lease_ms = settings.resend_ms = 3'600'000;
  return settings;
}

// A rank's messages to itself, one after the other.
class Posts {
 public:
  Posts(std::uint32_t rank, int count) : data_(100) {
    for (int i = 0; i < count; ++i) {
      auto operation = std::make_shared<engine::Operation>();
      engine::SendMessage send;
      send.key = {0, rank, rank, 0, 0};
      send.data = data_.data();
      send.bytes = data_.size();
      send.chunks.resize(1);
      engine::RecvMessage recv;
      recv.key = send.key;
      recv.data = data_.data();
      recv.bytes = data_.size();
      recv.chunks = 1;
      operation->sends.push_back(std::move(send));
      operation->recvs.push_back(std::move(recv));
      operations_.push_back(std::move(operation));
    }
  }
  void start(engine::Engine& engine) {
    engine_ = &engine;
    post();
  }
  // Engine thread: whether all posted ones have ended, and some are left.
  bool idle() const {
    const std::size_t posted = posted_.load();
    return posted != 0 && posted < operations_.size() && operations_[posted - 1]->ended;
  }
  void post() {
    // Counted first: the engine thread may be through with the first one, and asleep, before this thread goes on.
    const std::size_t next = posted_++;
    engine_->post(operations_[next]);
  }
  bool all_end() {
    engine::Operation& last = *operations_.back();
    std::unique_lock lock(last.mutex);
    return last.changed.wait_for(lock, std::chrono::seconds(120), [&] { return last.ended; });
  }

 private:
  std::vector<std::byte> data_;
  engine::Engine* engine_ = nullptr;
  std::vector<std::shared_ptr<engine::Operation>> operations_;
  std::atomic<std::size_t> posted_{0};
};

// Posts in the middle of an idle turn of the engine thread, when the turn has already looked for posts.
class PostingTransport final : public FaultTransport {
 public:
  PostingTransport(std::unique_ptr<engine::Transport> inner, Posts& posts, int turn)
      : FaultTransport(std::move(inner), {}, std::make_shared<RailSwitch>(1), 0), posts_(posts), turn_(turn) {}
  bool progress() override {
    const bool moved = FaultTransport::progress();
    if (!posts_.idle())
      turns_ = 0;
    else if (!moved && turns_++ == turn_)
      posts_.post();
    return moved;
  }

 private:
  Posts& posts_;
  int turn_, turns_ = 0;
};

class SleepAfter : public testing::TestWithParam<int> {};

TEST_P(SleepAfter, APostInAnIdleTurn) {
  const ScratchDirectory directory;
  std::barrier ended(2);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Posts posts(rank, 50);
      engine::Engine engine(rank, 2, directory.rendezvous(), without_timers(rank_settings({2, 1}, rank)), std::nullopt,
                            [&](std::unique_ptr<engine::Transport> inner, std::uint32_t) -> std::unique_ptr<engine::Transport> {
                              return std::make_unique<PostingTransport>(std::move(inner), posts, GetParam());
                            });
      posts.start(engine);
      EXPECT_TRUE(posts.all_end());
      ended.arrive_and_wait();
      engine.close();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The idle turn before the doorbell flag is set, and the look after it.
INSTANTIATE_TEST_SUITE_P(Turns, SleepAfter, testing::Values(0, 1));

// No role waits for a timer: each thing that one rank waits for and another does rings.
TEST(Sleep, NeedsNoTimers) {
  ExchangeSettings settings;
  settings.chunk_bytes = 4096;
  settings.slots_per_writer = 2;
  run_job({1, 4}, without_timers(settings), [](Exchange& exchange) {
    std::string mismatch;
    run_rank(exchange, {4, 400, 60'000, 31, 2, {}}, mismatch);
    EXPECT_EQ(mismatch, "");
  });
}

}  // namespace
}  // namespace railweave::test
