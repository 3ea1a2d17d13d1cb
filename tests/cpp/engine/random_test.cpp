// Random groups over healthy and faulty rails: every byte arrives once, whatever is lost, doubled, late or reordered.
#include <gtest/gtest.h>

#include <barrier>

#include "engine.hpp"
#include "fault_transport.hpp"
#include "random_groups.hpp"
#include "ucx_library.hpp"

namespace railweave::test {
namespace {

int run_workload(const Shape& shape, const ExchangeSettings& settings, RandomWorkload workload) {
  workload.world = shape.world();
  std::atomic<int> operations{0};
  run_job(shape, settings, [&](Exchange& exchange) {
    std::string mismatch;
    operations += run_rank(exchange, workload, mismatch);
    EXPECT_EQ(mismatch, "") << "rank " << exchange.rank();
  });
  return operations;
}

// Small chunks and few slots: everything that can be full, is.
ExchangeSettings cramped() {
  ExchangeSettings settings;
  settings.chunk_bytes = 4096;
  settings.multipath_min_bytes = 8192;
  settings.slots_per_writer = 2;
  settings.rx_slots = 3;
  settings.link_window = 1;
  return settings;
}

TEST(RandomGroups, OneNode) { EXPECT_GE(run_workload({1, 4}, cramped(), {0, 1200, 60'000, 11, 2, {}}), 1000); }

TEST(RandomGroups, TwoNodes) { EXPECT_GE(run_workload({2, 3}, cramped(), {0, 1200, 100'000, 12, 3, {}}), 1000); }

TEST(RandomGroups, IdleRelays) {
  ExchangeSettings settings = cramped();
  settings.multipath_min_bytes = 0;
  run_workload({2, 4}, settings, {0, 200, 300'000, 13, 2, {false, true, true, true, false, true, true, true}});
}

TEST(RandomGroups, DefaultSettings) { run_workload({2, 2}, {}, {0, 60, 3'000'000, 14, 2, {}}); }

class Faults : public testing::TestWithParam<FaultPolicy> {
 protected:
  // Jobs of engines whose transports are wrapped.
  static void run(const Shape& shape, const ExchangeSettings& base, const FaultPolicy& policy, const std::shared_ptr<RailSwitch>& rails,
                  const std::function<void(engine::Engine&, std::uint32_t)>& body) {
    const ScratchDirectory directory;
    std::vector<std::thread> threads;
    std::barrier bodies_ended(shape.world());
    for (std::uint32_t rank = 0; rank < shape.world(); ++rank) {
      threads.emplace_back([&, rank] {
        ExchangeSettings settings = rank_settings(shape, rank, base);
        if (policy.ucx) settings.ucx_tls = "tcp";
        engine::Engine instance(rank, shape.world(), directory.rendezvous(), settings, std::nullopt,
                                [&](std::unique_ptr<engine::Transport> inner, std::uint32_t) -> std::unique_ptr<engine::Transport> {
                                  return std::make_unique<FaultTransport>(std::move(inner), policy, rails, rank);
                                });
        body(instance, rank);
        bodies_ended.arrive_and_wait();
        instance.close();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Rank 0 sends to the first rank of the other node, and back, through all rails; `rounds` operations of `bytes`.
  static void ping(engine::Engine& engine, std::uint32_t rank, const Shape& shape, int rounds, std::uint64_t bytes) {
    const std::uint32_t peer = rank == 0 ? shape.ranks : 0;
    if (rank != 0 && rank != shape.ranks) return;
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::byte> out(bytes), in(bytes);
      fill(out.data(), bytes, tag_of(rank, peer, static_cast<std::uint64_t>(round)));
      auto operation = std::make_shared<engine::Operation>();
      engine::SendMessage send;
      send.key = {0, rank, peer, 0, 0};
      send.data = out.data();
      send.bytes = bytes;
      send.chunks.resize((bytes + engine.memory().chunk_bytes() - 1) / engine.memory().chunk_bytes());
      engine::RecvMessage recv;
      recv.key = {0, peer, rank, 0, 0};
      recv.data = in.data();
      recv.bytes = bytes;
      recv.chunks = static_cast<std::uint32_t>(send.chunks.size());
      operation->sends.push_back(std::move(send));
      operation->recvs.push_back(std::move(recv));
      engine.post(operation);
      std::unique_lock lock(operation->mutex);
      ASSERT_TRUE(operation->changed.wait_for(lock, std::chrono::seconds(120), [&] { return operation->ended; })) << "round " << round;
      ASSERT_EQ(operation->failure.text, "");
      ASSERT_EQ(first_wrong(in.data(), bytes, tag_of(peer, rank, static_cast<std::uint64_t>(round))), bytes) << "round " << round;
    }
  }
};

TEST_P(Faults, EveryByteArrivesOnce) {
  const Shape shape{2, 2};
  ExchangeSettings settings = cramped();
  settings.link_window = 3;
  settings.slots_per_writer = 6;
  settings.rx_slots = 6;
  settings.resend_ms = 10;
  settings.rail_timeout_ms = 300;
  settings.heartbeat_ms = 20;
  settings.reconnect_ms = 50;
  run(shape, settings, GetParam(), std::make_shared<RailSwitch>(shape.world()), [&](engine::Engine& engine, std::uint32_t rank) {
    ping(engine, rank, shape, 10, 200'000);
    ping(engine, rank, shape, 20, 3000);  // in control frames
  });
}

INSTANTIATE_TEST_SUITE_P(Rails, Faults,
                         testing::Values(FaultPolicy{1, 30, 0, 0}, FaultPolicy{2, 0, 100, 0}, FaultPolicy{3, 0, 0, 100},
                                         FaultPolicy{4, 30, 50, 50}, FaultPolicy{5, 150, 150, 150},
                                         FaultPolicy{
                                             .seed = 8, .drop_permille = 30, .duplicate_permille = 50, .delay_permille = 50, .ucx = true}));

using RailDeath = Faults;

TEST_P(RailDeath, ChunksGoOutAgainOnTheOthersAndTheRailComesBack) {
  if (GetParam().ucx && !engine::UcxLibrary::load(test_ucx_library())->survives_failed_connects())
    GTEST_SKIP() << "this UCX cannot connect again (needs 1.14)";
  const Shape shape{2, 2};
  ExchangeSettings settings = cramped();
  settings.slots_per_writer = 6;
  settings.rail_timeout_ms = 200;
  settings.heartbeat_ms = 20;
  settings.resend_ms = 30;
  settings.reconnect_ms = 50;
  const auto rails = std::make_shared<RailSwitch>(shape.world());
  std::barrier step(shape.world());
  run(shape, settings, GetParam(), rails, [&](engine::Engine& engine, std::uint32_t rank) {
    ping(engine, rank, shape, 3, 100'000);
    std::thread killer;
    if (rank == 1) {
      killer = std::thread([&] {  // while the next operations run; rank 1 is rank 0's relay
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        rails->set_dead(1, true);
      });
    }
    ping(engine, rank, shape, 20, 400'000);
    if (killer.joinable()) killer.join();
    step.arrive_and_wait();
    // The dead NIC's owner is still reached for control: it can talk to the other node through its mate.
    if (rank == 0) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
      while (engine.links_down().empty() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_FALSE(engine.links_down().empty());
      rails->set_dead(1, false);
      while (!engine.links_down().empty() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_TRUE(engine.links_down().empty()) << "the rail was not used again";
    }
    step.arrive_and_wait();
    ping(engine, rank, shape, 3, 100'000);
  });
}

INSTANTIATE_TEST_SUITE_P(Rails, RailDeath,
                         testing::Values(FaultPolicy{6, 0, 0, 0}, FaultPolicy{7, 20, 20, 20}, FaultPolicy{.seed = 9, .ucx = true}));

}  // namespace
}  // namespace railweave::test
