// Nothing that an engine thread waits for is missed between its last look and its sleep (docs/protocol.md §3, doorbell): with timers an
// hour apart a wake-up that is lost is a hang.
#include <gtest/gtest.h>

#include "random_groups.hpp"

namespace railweave::test {
namespace {

TEST(Sleep, LosesNoWakeUp) {
  ExchangeSettings settings;
  settings.chunk_bytes = 4096;
  settings.slots_per_writer = 2;
  settings.spin_us = 0;
  settings.heartbeat_ms = settings.lease_ms = settings.resend_ms = 3'600'000;
  run_job({1, 4}, settings, [](Exchange& exchange) {
    std::string mismatch;
    run_rank(exchange, {4, 400, 60'000, 31, 2, {}}, mismatch);
    EXPECT_EQ(mismatch, "");
  });
}

}  // namespace
}  // namespace railweave::test
