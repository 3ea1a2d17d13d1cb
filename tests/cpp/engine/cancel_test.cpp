// Operations that fail while a peer may write their buffers (docs/protocol.md §9).
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <thread>

#include "job.hpp"
#include "parts.hpp"
#include "router.hpp"

namespace railweave::test {
namespace {

// Rank 0 sends to its mate 1 (which lends its buffer) and, planned with rows, to rank 2; it waits for rank 2's row when rank 1's operation
// fails, because rank 3 sends it another size than it receives. From then on rank 1's program has its buffer back.
TEST(Cancel, ReachesASendWhoseOperationStillWaitsForRows) {
  ExchangeSettings settings;
  settings.row_wait_us = 4'000'000;
  constexpr std::uint64_t kMapped = 1'000'000, kFar = 8'000'000, kSent = 100'000, kExpected = 200'000;
  // On rails as slow as this the bytes are worth the whole wait.
  const Fabric slow = engine::derive_fabric(rail_cluster(2, kFar / 40));
  std::latch posted(1);  // by rank 0, which waits for rows from then on
  const auto body = [&posted](Exchange& exchange) {
    if (exchange.rank() != 0) posted.wait();
    if (exchange.rank() == 0) {
      std::vector<std::byte> near(kMapped, std::byte{0x5a}), far(kFar);
      Group group = exchange.group();
      group.send(near.data(), kMapped, 1);
      group.send(far.data(), kFar, 2);
      Handle handle = group.end();
      posted.count_down();
      try {
        EXPECT_TRUE(handle.wait_for(120)) << "the cancel was not heard";
        ADD_FAILURE() << "the operation succeeded";
      } catch (const ExchangeError& error) {
        EXPECT_NE(std::string(error.what()).find("the sender has 100000 bytes, the receiver 200000"), std::string::npos) << error.what();
      }
    }
    if (exchange.rank() == 1) {
      const ExchangeBuffer buffer = exchange.allocate(kMapped);
      std::vector<std::byte> other(kExpected);
      Group group = exchange.group();
      group.recv(buffer.data(), kMapped, 0);
      group.recv(other.data(), kExpected, 3);
      Handle handle = group.end();
      EXPECT_THROW(handle.wait(), ExchangeError);
      std::fill_n(buffer.data(), kMapped, std::byte{0});
      std::this_thread::sleep_for(std::chrono::milliseconds(5000));  // rank 0's wait for rows is over
      EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + kMapped, [](std::byte b) { return b == std::byte{0}; }))
          << "written after its end";
    }
    if (exchange.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 0 has rank 1's grant
      std::vector<std::byte> data(kSent);
      Group group = exchange.group();
      group.send(data.data(), kSent, 1);
      Handle handle = group.end();
      EXPECT_THROW(handle.wait(), ExchangeError);
    }
  };
  run_job({2, 2}, settings, body, slow);
}

// Rank 0's operation fails because of rank 2, and rank 0 leaves, before rank 1 posts its end of it: the cause is what rank 1 is to hear.
TEST(Cancel, NamesTheCauseAndNotThatTheOtherRankHasLeftSince) {
  constexpr std::uint64_t kBytes = 100'000;
  const ScratchDirectory directory;
  const Shape shape{1, 3};
  std::latch left(1), posted(1);
  const auto wait_for_failure = [](Handle handle, const std::string& what) {
    try {
      handle.wait();
      ADD_FAILURE() << what << " succeeded";
    } catch (const RankDied& error) {
      ADD_FAILURE() << what << ": " << error.what();
    } catch (const ExchangeError& error) {
      EXPECT_NE(std::string(error.what()).find("the sender has"), std::string::npos) << what << ": " << error.what();
    }
  };
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Exchange exchange(rank, 3, directory.rendezvous(), rank_settings(shape, rank, {}));
      std::vector<std::byte> data(kBytes), other(kBytes);
      if (rank == 1) left.wait();
      Group group = exchange.group();
      if (rank == 0) {
        group.send(data.data(), kBytes, 1);
        group.recv(other.data(), kBytes, 2);
      } else if (rank == 1) {
        group.recv(data.data(), kBytes, 0);
      } else {
        group.send(data.data(), kBytes / 2, 0);
      }
      wait_for_failure(group.end(), "rank " + std::to_string(rank));
      if (rank == 1) posted.count_down();
      if (rank == 2) posted.wait();
      exchange.close();
      if (rank == 0) left.count_down();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// The sides of a message to oneself in two operations, of which the first fails as rank 1 leaves: the other one fails with it.
enum class First { receives, sends };
class ToOneself : public testing::TestWithParam<First> {};

TEST_P(ToOneself, TheOtherSideFailsToo) {
  run_job({1, 2}, {}, [](Exchange& exchange) {
    if (exchange.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return exchange.close();
    }
    const auto post = [&](bool sends, std::vector<std::byte>& data, std::vector<std::byte>* never) {
      Group group = exchange.group();
      if (sends)
        group.send(data.data(), data.size(), 0);
      else
        group.recv(data.data(), data.size(), 0);
      if (never != nullptr) group.recv(never->data(), never->size(), 1);
      return group.end();
    };
    for (int round = 0; round < 2; ++round) {  // rank 1 leaves while the first one waits, and before it is posted
      std::vector<std::byte> first(1000), second(1000, std::byte{1}), never(1000);
      EXPECT_THROW(post(GetParam() == First::sends, first, &never).wait(), RankDied);
      std::fill(first.begin(), first.end(), std::byte{2});  // it is the program's again
      Handle other = post(GetParam() != First::sends, second, nullptr);
      try {
        EXPECT_TRUE(other.wait_for(120)) << "it was not heard";
        ADD_FAILURE() << "the other side succeeded";
      } catch (const RankDied& error) {
        EXPECT_NE(std::string(error.what()).find("rank 1 has left"), std::string::npos) << error.what();
      }
      EXPECT_EQ(first, std::vector<std::byte>(1000, std::byte{2})) << "written after its end";
    }
    // What comes later is not taken for one of those.
    std::vector<std::byte> sent(1000, std::byte{3}), received(1000);
    Handle send = post(true, sent, nullptr), receive = post(false, received, nullptr);
    send.wait();
    receive.wait();
    EXPECT_EQ(received, sent);
  });
}

INSTANTIATE_TEST_SUITE_P(Sides, ToOneself, testing::Values(First::receives, First::sends),
                         [](const auto& side) { return side.param == First::receives ? "Receive" : "Send"; });

// Both are under way when the receive's operation fails: nothing is written once it has ended.
TEST(Cancel, EndsAMessageToOneselfThatIsUnderWay) {
  constexpr std::size_t kBytes = 256u << 20;
  std::latch posted(1);
  run_job({1, 2}, {}, [&posted](Exchange& exchange) {
    if (exchange.rank() == 1) {
      posted.wait();
      return exchange.close();
    }
    std::vector<std::byte> sent(kBytes, std::byte{1}), received(kBytes), never(1000);
    Group first = exchange.group(), second = exchange.group();
    first.recv(received.data(), kBytes, 0);
    first.recv(never.data(), never.size(), 1);
    Handle receive = first.end();
    second.send(sent.data(), kBytes, 0);
    Handle send = second.end();
    posted.count_down();
    EXPECT_THROW(receive.wait(), RankDied);
    std::fill(received.begin(), received.end(), std::byte{2});
    try {
      send.wait();  // well, if its bytes had been written before rank 1 left
    } catch (const RankDied&) {
    }
    EXPECT_TRUE(std::all_of(received.begin(), received.end(), [](std::byte b) { return b == std::byte{2}; })) << "written after its end";
  });
}

TEST(Cancel, SizesOfAMessageToOneselfThatDifferFailBothSides) {
  run_job({1, 1}, {}, [](Exchange& exchange) {
    std::vector<std::byte> sent(1000), received(2000);
    Group first = exchange.group(), second = exchange.group();
    first.send(sent.data(), sent.size(), 0);
    Handle send = first.end();
    second.recv(received.data(), received.size(), 0);
    Handle receive = second.end();
    EXPECT_THROW(send.wait(), ExchangeError);
    EXPECT_THROW(static_cast<void>(receive.wait_for(120)), ExchangeError) << "it was not heard";
  });
}

}  // namespace
}  // namespace railweave::test
