// Two nodes that lose each other (docs/protocol.md §12).
#include <gtest/gtest.h>

#include <barrier>

#include "engine.hpp"
#include "fault_transport.hpp"
#include "job.hpp"

namespace railweave::test {
namespace {

// Receives a message that never comes; gives why the operation ended, or an error text of the test's.
std::string wait_in_vain(engine::Engine& engine, std::uint32_t rank, std::uint32_t peer) {
  std::vector<std::byte> data(100);
  auto operation = std::make_shared<engine::Operation>();
  engine::RecvMessage recv;
  recv.key = {0, peer, rank, 0, 0};
  recv.data = data.data();
  recv.bytes = data.size();
  recv.chunks = 1;
  operation->recvs.push_back(std::move(recv));
  engine.post(operation);
  std::unique_lock lock(operation->mutex);
  if (!operation->changed.wait_for(lock, std::chrono::seconds(120), [&] { return operation->ended; })) return "never ended";
  return operation->failure.text;
}

// The cut heals when one node has already decided. Were it to answer again, the other would wait for it for ever.
TEST(NodeDeath, BothSidesEndWhenTheCutHealsBetweenTheirDecisions) {
  const ScratchDirectory directory;
  const auto rails = std::make_shared<RailSwitch>(2);
  FaultPolicy policy;
  policy.outlives_disconnect = true;  // else rank 1 could not answer if it would
  std::barrier ready(2), ended(2);
  std::vector<std::string> why(2);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ExchangeSettings settings = rank_settings({2, 1}, rank);
      settings.rail_timeout_ms = 200;
      settings.heartbeat_ms = 20;
      settings.reconnect_ms = 50;
      settings.death_ms = rank == 0 ? 3000 : 500;
      settings.drain_ms = 500;
      engine::Engine engine(rank, 2, directory.rendezvous(), settings, std::nullopt,
                            [&](std::unique_ptr<engine::Transport> inner, std::uint32_t) -> std::unique_ptr<engine::Transport> {
                              return std::make_unique<FaultTransport>(std::move(inner), policy, rails, rank);
                            });
      ready.arrive_and_wait();
      if (rank == 1) rails->set_dead(1, true);
      why[rank] = wait_in_vain(engine, rank, 1 - rank);
      if (rank == 1) rails->set_dead(1, false);
      ended.arrive_and_wait();
      engine.close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(why[0], "rank 1 has died: its node has not answered on any link for 3000 ms");
  EXPECT_EQ(why[1], "rank 0 has died: its node has not answered on any link for 500 ms");
}

}  // namespace
}  // namespace railweave::test
