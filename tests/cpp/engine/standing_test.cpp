// What an engine says of operations that stand still (docs/cuda.md).
#include "standing.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "engine.hpp"
#include "fault_transport.hpp"
#include "job.hpp"

namespace railweave::test {
namespace {

using engine::ChunkState;

std::string name_of(std::uint32_t link) { return "link " + std::to_string(link); }

engine::SendMessage send_of(std::uint32_t chunks) {
  engine::SendMessage message;
  message.key = {0, 0, 5, 0, 1};
  message.bytes = std::uint64_t{chunks} * 1000;
  message.chunks.resize(chunks);
  return message;
}

TEST(Standing, ASendWaitsForItsGrant) {
  EXPECT_EQ(engine::waiting_text(send_of(3), name_of), "send of 3000 bytes to rank 5: waits for rank 5's grant: its receive has not begun");
}

TEST(Standing, ASendNamesItsChunksByWhereTheyAre) {
  engine::SendMessage message = send_of(10);
  message.granted = true;
  for (const std::uint32_t chunk : {0u, 1u, 4u}) message.chunks[chunk].state = ChunkState::done;
  message.done = 3;
  message.chunks[2].state = ChunkState::copying;
  for (const std::uint32_t chunk : {3u, 5u, 6u}) message.chunks[chunk].state = ChunkState::out;
  message.chunks[5].link = message.chunks[6].link = 7;
  EXPECT_EQ(
      engine::waiting_text(message, name_of),
      "send of 10000 bytes to rank 5: granted, 3 of 10 chunks landed; being copied: 2; under way over link 0: 3; under way over link 7: "
      "5-6; not sent yet: 7-9");
}

TEST(Standing, ALongListEnds) {
  engine::SendMessage message = send_of(40);
  message.granted = true;
  for (std::uint32_t chunk = 0; chunk < 40; chunk += 2) message.chunks[chunk].state = ChunkState::done;
  message.done = 20;
  EXPECT_EQ(engine::waiting_text(message, name_of),
            "send of 40000 bytes to rank 5: granted, 20 of 40 chunks landed; not sent yet: 1, 3, 5, 7, 9, 11, 13, 15 and 12 more");
}

TEST(Standing, AReceiveNamesWhatItLacks) {
  engine::RecvMessage message;
  message.key = {0, 5, 0, 0, 1};
  message.bytes = 5000;
  message.chunks = 70;
  message.bits = message.copying = {0, 0};
  EXPECT_EQ(engine::waiting_text(message), "receive of 5000 bytes from rank 5: waits for rank 5, which needs no grant for so little");
  message.granted = true;
  message.bits = {~std::uint64_t{0}, 0x3};
  message.copying = {~std::uint64_t{0}, 0x7};
  message.arrived = 66;
  EXPECT_EQ(engine::waiting_text(message),
            "receive of 5000 bytes from rank 5: granted, 66 of 70 chunks arrived; being copied: 66; not here yet: 67-69");
  message.here = true;
  EXPECT_EQ(engine::waiting_text(message), "receive of 5000 bytes from rank 5: has come and is being copied");
}

TEST(Standing, ALinkSaysWhatItCarries) {
  EXPECT_EQ(engine::waiting_text(engine::LinkLoad{0, 1, true, 4, 3, 2, 1}, "a to b", 987'654'321),
            "link a to b: 0.988 GB/s; chunks: 4 queued, 3 waiting for a slot there, 2 with a slot, not sent, 1 sent and not confirmed");
  EXPECT_EQ(engine::waiting_text(engine::LinkLoad{}, "a to b", 0), "link a to b (down): no rate measured; chunks: none");
}

// Its NIC hears everything but data, while `lose` says so.
class DeafTransport final : public FaultTransport {
 public:
  DeafTransport(std::unique_ptr<engine::Transport> inner, const std::atomic<bool>& lose)
      : FaultTransport(std::move(inner), {}, std::make_shared<RailSwitch>(1), 0), lose_(lose) {}
  std::byte* on_incoming(const engine::RailHeader& header, std::size_t bytes) override {
    if (lose_ && header.kind == engine::RailFrame::data) return nullptr;
    return FaultTransport::on_incoming(header, bytes);
  }

 private:
  const std::atomic<bool>& lose_;
};

// Two engines on two nodes, of which the second one gets no data at first.
class StandingEngines : public testing::Test {
 protected:
  static constexpr std::uint32_t kChunks = 40;
  static constexpr std::uint64_t kChunk = 4096, kBytes = kChunks * kChunk;

  StandingEngines() {
    std::vector<std::jthread> starts;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      starts.emplace_back([this, rank] {
        ExchangeSettings settings = rank_settings({2, 1}, rank);
        settings.chunk_bytes = kChunk;
        settings.slots_per_writer = 8;
        engines_[rank] = std::make_unique<engine::Engine>(
            rank, 2, directory_.rendezvous(), settings, std::nullopt,
            [this](std::unique_ptr<engine::Transport> inner, std::uint32_t) -> std::unique_ptr<engine::Transport> {
              return std::make_unique<DeafTransport>(std::move(inner), lose_);
            });
      });
    }
  }
  ~StandingEngines() override {
    for (auto& engine : engines_) engine->begin_close();
    for (auto& engine : engines_) engine->close();
  }

  std::shared_ptr<engine::Operation> post(std::uint32_t rank) {
    auto operation = std::make_shared<engine::Operation>();
    if (rank == 0) {
      engine::SendMessage& send = operation->sends.emplace_back();
      send.key = {0, 0, 1, 0, 0};
      send.data = from_.data();
      send.bytes = kBytes;
      send.chunks.resize(kChunks);
    } else {
      engine::RecvMessage& recv = operation->recvs.emplace_back();
      recv.key = {0, 0, 1, 0, 0};
      recv.data = to_.data();
      recv.bytes = kBytes;
      recv.chunks = kChunks;
    }
    engines_[rank]->post(operation);
    return operation;
  }
  // Until a rank says it, for a while.
  testing::AssertionResult says(std::uint32_t rank, const std::vector<std::string>& messages, const std::string& of_link) {
    engine::Standing last;
    for (int i = 0; i < 1200; ++i) {
      const auto now = engines_[rank]->standing(std::chrono::seconds(10));
      if (!now) return testing::AssertionFailure() << "no answer";
      last = *now;
      const bool linked = of_link.empty() ? last.links.empty() : last.links.size() == 1 && last.links[0].find(of_link) != std::string::npos;
      if (last.messages == messages && linked) return testing::AssertionSuccess();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    testing::AssertionResult result = testing::AssertionFailure() << "rank " << rank << " says";
    for (const auto* lines : {&last.messages, &last.links}) {
      for (const std::string& line : *lines) result << "\n  " << line;
    }
    return result;
  }
  static bool ends(engine::Operation& operation) {
    std::unique_lock lock(operation.mutex);
    return operation.changed.wait_for(lock, std::chrono::seconds(120), [&] { return operation.ended; }) &&
           operation.failure.kind == engine::FailureKind::none;
  }

  ScratchDirectory directory_;
  std::atomic<bool> lose_{true};
  std::vector<std::byte> from_ = std::vector<std::byte>(kBytes, std::byte{1}), to_ = std::vector<std::byte>(kBytes);
  std::array<std::unique_ptr<engine::Engine>, 2> engines_;
};

TEST_F(StandingEngines, SayWhichChunkIsWhere) {
  const auto send = post(0);
  EXPECT_TRUE(says(0, {"send of 163840 bytes to rank 1: waits for rank 1's grant: its receive has not begun"}, ""));
  const auto receive = post(1);
  EXPECT_TRUE(says(1, {"receive of 163840 bytes from rank 0: granted, 0 of 40 chunks arrived; not here yet: 0-39"}, ""));
  EXPECT_TRUE(says(0,
                   {"send of 163840 bytes to rank 1: granted, 0 of 40 chunks landed; under way over lo of rank 0 to lo of rank 1: 0-7; not "
                    "sent yet: 8-39"},
                   "sent and not confirmed"));
  lose_ = false;
  EXPECT_TRUE(ends(*send));
  EXPECT_TRUE(ends(*receive));
  EXPECT_EQ(from_, to_);
  for (const std::uint32_t rank : {0u, 1u}) EXPECT_TRUE(says(rank, {}, ""));
}

TEST_F(StandingEngines, OneThatHasEndedDoesNotAnswer) {
  for (auto& engine : engines_) engine->begin_close();
  for (auto& engine : engines_) engine->close();
  EXPECT_EQ(engines_[0]->standing(std::chrono::milliseconds(10)), std::nullopt);
}

}  // namespace
}  // namespace railweave::test
