// Operations that fail while a peer may write their buffers (docs/protocol.md §9).
#include <gtest/gtest.h>

#include <algorithm>
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
  const auto body = [](Exchange& exchange) {
    if (exchange.rank() == 0) {
      std::vector<std::byte> near(kMapped, std::byte{0x5a}), far(kFar);
      Group group = exchange.group();
      group.send(near.data(), kMapped, 1);
      group.send(far.data(), kFar, 2);
      Handle handle = group.end();
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

}  // namespace
}  // namespace railweave::test
