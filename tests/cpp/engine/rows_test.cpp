// Whose rows a source waits for before it plans (docs/protocol.md §10).
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <chrono>
#include <latch>
#include <thread>

#include "job.hpp"
#include "parts.hpp"
#include "router.hpp"

namespace railweave::test {
namespace {

// A thread that a busy machine holds up takes no rail down: plans are for both.
ExchangeSettings patient() {
  ExchangeSettings settings;
  settings.rail_timeout_ms = 60'000;
  return settings;
}

// Rank 3 comes to rank 0's fourth group as to its first. Its row of that is there, and nothing is waited for.
TEST(Rows, OfARankThatTookPartInFewerGroupsAreNotWaitedFor) {
  ExchangeSettings settings;
  settings.row_wait_us = 2'000'000;
  constexpr std::uint64_t kFar = 8'000'000, kOther = 300'000;
  constexpr int kAlone = 3, kTogether = 3;
  // On rails as slow as this the bytes are worth the whole wait.
  const Fabric slow = engine::derive_fabric(rail_cluster(2, kFar / 40));
  std::vector<std::uint64_t> missing;
  const auto body = [&](Exchange& exchange) {
    std::vector<std::byte> far(kFar), other(kOther);
    for (int i = 0; i < kAlone + kTogether; ++i) {
      if (exchange.rank() == 1 || (exchange.rank() == 3 && i < kAlone)) continue;
      Group group = exchange.group();
      if (exchange.rank() == 0) {
        group.send(far.data(), kFar, 2);
        if (i >= kAlone) group.send(other.data(), kOther, 3);
      } else if (exchange.rank() == 2) {
        group.recv(far.data(), kFar, 0);
      } else {
        group.recv(other.data(), kOther, 0);
      }
      Handle handle = group.end();
      handle.wait();
      if (exchange.rank() == 0) missing.push_back(handle.report().rows_missing);
    }
  };
  run_job({2, 2}, settings, body, slow);
  EXPECT_EQ(missing, std::vector<std::uint64_t>(kAlone + kTogether, 0));
}

// Ranks 0 and 2 have come to more groups, when all four call all_to_all_v.
TEST(Rows, OfAnAllToAllVAreOfAsManyAllToAllVs) {
  ExchangeSettings settings;
  settings.row_wait_us = 10'000'000;
  constexpr std::uint64_t kBytes = 1'000'000;
  const Fabric slow = engine::derive_fabric(rail_cluster(2, kBytes / 100));
  std::atomic<std::uint64_t> missing{0};
  const auto body = [&](Exchange& exchange) {
    std::vector<std::byte> send(4 * kBytes), receive(4 * kBytes);
    if (exchange.rank() % 2 == 0) {
      Group group = exchange.group();
      group.send(send.data(), kBytes, exchange.rank() ^ 2);
      group.recv(receive.data(), kBytes, exchange.rank() ^ 2);
      group.end().wait();
    }
    const std::vector<std::uint64_t> counts(4, kBytes), offsets{0, kBytes, 2 * kBytes, 3 * kBytes};
    Handle handle = exchange.all_to_all_v(send.data(), counts, offsets, receive.data(), counts, offsets);
    handle.wait();
    missing += handle.report().rows_missing;
  };
  run_job({2, 2}, settings, body, slow);
  EXPECT_EQ(missing, 0u);
}

// What rank 1 has with its mate keeps no rail busy. But its mate, which waits for its row, cannot know that it has nothing else.
TEST(Rows, OfAMateWithoutMessagesToOtherNodesAreThere) {
  ExchangeSettings settings;
  settings.row_wait_us = 10'000'000;
  constexpr std::uint64_t kFar = 8'000'000, kNear = 300'000;
  const Fabric slow = engine::derive_fabric(rail_cluster(2, kFar / 100));
  std::vector<std::uint64_t> missing;
  const auto body = [&](Exchange& exchange) {
    if (exchange.rank() == 3) return;
    std::vector<std::byte> far(kFar), near(kNear);
    Group group = exchange.group();
    if (exchange.rank() == 0) {
      group.send(far.data(), kFar, 2);
      group.send(near.data(), kNear, 1);
    } else if (exchange.rank() == 2) {
      group.recv(far.data(), kFar, 0);
    } else {
      group.recv(near.data(), kNear, 0);
    }
    Handle handle = group.end();
    handle.wait();
    if (exchange.rank() == 0) missing.push_back(handle.report().rows_missing);
  };
  run_job({2, 2}, settings, body, slow);
  EXPECT_EQ(missing, std::vector<std::uint64_t>{0});
}

// Nobody says that a group is over to those who were not in it. Its row keeps rails for it as long as it may run, and no longer.
TEST(Rows, OfAGroupThatIsOverKeepNoRail) {
  using namespace std::chrono_literals;
  constexpr std::uint64_t kFar = 8'000'000;
  constexpr double kOneRail = 0.2;  // seconds that the bytes take
  const auto rate = static_cast<std::uint64_t>(kFar / kOneRail);
  const Fabric fabric = engine::derive_fabric(rail_cluster(2, rate));
  std::barrier ended(4);
  double planned = 0;
  const auto body = [&](Exchange& exchange) {
    std::vector<std::byte> far(kFar);
    const auto send = [&](std::uint32_t from, std::uint32_t to) {
      if (exchange.rank() != from && exchange.rank() != to) return 0.0;
      Group group = exchange.group();
      if (exchange.rank() == from) group.send(far.data(), kFar, to);
      if (exchange.rank() == to) group.recv(far.data(), kFar, from);
      Handle handle = group.end();
      handle.wait();
      return handle.report().plan_z_seconds;
    };
    send(1, 3);
    ended.arrive_and_wait();
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * kOneRail));
    const double seconds = send(0, 2);
    if (exchange.rank() == 0) planned = seconds;
  };
  run_job({2, 2}, patient(), body, fabric);
  EXPECT_NEAR(planned, kOneRail / 2, kOneRail / 20) << "both rails";
}

// Two pairs that do the same again and again, and have no message in common. Each of the sources counts on the other one although its last
// group is over: planning for itself alone, one of them would use both rails and the other, which knows both rows, its own.
TEST(Rows, OfGroupsThatComeAgainAndAgainStandForTheNextOnes) {
  // So few bytes and so slow a rail that no rate is measured, or a higher one, also by sanitized threads.
  constexpr std::uint64_t kFar = 2'000'000;
  constexpr double kOneRail = 0.1;  // seconds that the bytes take
  const Fabric fabric = engine::derive_fabric(rail_cluster(2, static_cast<std::uint64_t>(kFar / kOneRail)));
  constexpr int kOperations = 5, kTogether = 2;  // before the third a source has seen the other one come again
  std::barrier began(4), ended(4);
  std::vector<double> planned;
  const auto body = [&](Exchange& exchange) {
    std::vector<std::byte> far(kFar);
    for (int i = 0; i < kOperations; ++i) {
      // Rank 1 comes so late that rank 0 has planned, and its own last row is older than it lived.
      if (exchange.rank() == 1) began.arrive_and_wait();
      Group group = exchange.group();
      if (exchange.rank() < 2) group.send(far.data(), kFar, exchange.rank() + 2);
      if (exchange.rank() >= 2) group.recv(far.data(), kFar, exchange.rank() - 2);
      Handle handle = group.end();
      if (exchange.rank() == 0) handle.wait();
      if (exchange.rank() != 1) began.arrive_and_wait();
      if (exchange.rank() != 0) handle.wait();
      if (exchange.rank() == 0) planned.push_back(handle.report().plan_z_seconds);
      ended.arrive_and_wait();
      std::this_thread::sleep_for(std::chrono::duration<double>(2 * kOneRail));
    }
  };
  run_job({2, 2}, patient(), body, fabric);
  EXPECT_NEAR(planned[0], kOneRail / 2, kOneRail / 20) << "nobody else is known";
  for (int i = kTogether; i < kOperations; ++i) EXPECT_NEAR(planned[i], kOneRail, kOneRail / 20) << "operation " << i;
}

// A mate of the same operation that comes too late to be waited for sends what it sent last.
TEST(Rows, ThatAreLateAreForecastByTheLastOnes) {
  constexpr std::uint64_t kFar = 2'000'000, kNear = 300'000;
  constexpr double kOneRail = 0.1;
  const Fabric fabric = engine::derive_fabric(rail_cluster(2, static_cast<std::uint64_t>(kFar / kOneRail)));
  constexpr int kOperations = 3;
  std::barrier ended(4);
  std::vector<double> planned;
  const auto body = [&](Exchange& exchange) {
    std::vector<std::byte> far(kFar + kOperations), near(kNear);
    for (int i = 0; i < kOperations; ++i) {
      if (exchange.rank() == 1 && i != 0) std::this_thread::sleep_for(std::chrono::duration<double>(2 * kOneRail));
      Group group = exchange.group();
      if (exchange.rank() < 2) group.send(far.data(), kFar + static_cast<std::uint64_t>(i), exchange.rank() + 2);
      if (exchange.rank() >= 2) group.recv(far.data(), kFar + static_cast<std::uint64_t>(i), exchange.rank() - 2);
      if (exchange.rank() == 0) group.send(near.data(), kNear, 1);
      if (exchange.rank() == 1) group.recv(near.data(), kNear, 0);
      Handle handle = group.end();
      handle.wait();
      if (exchange.rank() == 0) planned.push_back(handle.report().plan_z_seconds);
      ended.arrive_and_wait();
      std::this_thread::sleep_for(std::chrono::duration<double>(2 * kOneRail));
    }
  };
  run_job({2, 2}, patient(), body, fabric);
  for (int i = 1; i < kOperations; ++i) EXPECT_NEAR(planned[i], kOneRail, kOneRail / 20) << "operation " << i;
}

// Rank 1 comes when rank 0 has planned for itself alone, half of its bytes by either rail. Rank 2's grants come later still: by then rank 0
// leaves the other rail to rank 1.
TEST(Rows, ThatComeWhileTheOperationRunsChangeItsPlan) {
  using namespace std::chrono_literals;
  constexpr std::uint64_t kFar = 8'000'000, kNear = 300'000;
  const Fabric slow = engine::derive_fabric(rail_cluster(2, kFar * 10));
  OperationReport report;
  std::latch rank_0_came(1), rank_0_knows(2);
  // A message there and back. What rank 1's engine has told before the first, rank 0's has seen before the second, if it looks again as
  // seldom as every millisecond.
  const auto ping = [](Exchange& exchange) {
    for (const std::uint32_t sender : {0u, 1u}) {
      std::byte data{};
      Group group = exchange.group(1);
      if (exchange.rank() == sender)
        group.send(&data, 1, 1 - sender);
      else
        group.recv(&data, 1, sender);
      group.end().wait();
    }
  };
  const auto body = [&](Exchange& exchange) {
    std::vector<std::byte> far(kFar), near(kNear);
    if (exchange.rank() == 1) {
      rank_0_came.wait();
      std::this_thread::sleep_for(300ms);  // however long: a rank 0 that has not planned yet does so once
    }
    if (exchange.rank() >= 2) rank_0_knows.wait();
    Group group = exchange.group();
    if (exchange.rank() < 2) group.send(far.data(), kFar, exchange.rank() + 2);
    if (exchange.rank() >= 2) group.recv(far.data(), kFar, exchange.rank() - 2);
    if (exchange.rank() == 0) group.send(near.data(), kNear, 1);
    if (exchange.rank() == 1) group.recv(near.data(), kNear, 0);
    Handle handle = group.end();
    if (exchange.rank() == 0) rank_0_came.count_down();
    if (exchange.rank() < 2) {
      ping(exchange);
      std::this_thread::sleep_for(1ms);
      ping(exchange);
      rank_0_knows.count_down();
    }
    handle.wait();
    if (exchange.rank() == 0) report = handle.report();
  };
  ExchangeSettings as_planned = patient();
  as_planned.policy = Policy::nimble;  // the policy railweave would use rank 1's rail where that rank has no CPU for a while
  run_job({2, 2}, as_planned, body, slow);
  EXPECT_EQ(report.rows_missing, 0u);
  EXPECT_NEAR(report.plan_z_seconds, 0.1, 0.01);
  EXPECT_EQ(report.bytes_by_nic, (std::vector<std::uint64_t>{kFar, 0}));
}

// What has gone one way already is taken off what a later plan gives that way.
TEST(Routes, OfALaterPlanCountWhatHasBeenSent) {
  const auto share = [](std::uint32_t nic, std::uint64_t bytes, std::uint64_t sent) {
    engine::RouteShare made;
    made.kind = PathKind::rail;
    made.nic = made.peer_nic = nic;
    made.bytes = bytes;
    made.sent = sent;
    return made;
  };
  engine::Routes routes{{share(0, 100, 300), share(1, 50, 350), share(2, 0, 10)}, 1};
  routes.follow({{share(1, 200, 0), share(0, 600, 0), share(3, 10, 0)}, 0});
  std::vector<std::array<std::uint64_t, 3>> found;
  for (const engine::RouteShare& way : routes.shares) found.push_back({way.nic, way.bytes, way.sent});
  const std::vector<std::array<std::uint64_t, 3>> wanted{{1, 0, 350}, {0, 300, 300}, {3, 10, 0}, {2, 0, 10}};
  EXPECT_EQ(found, wanted);
  routes.follow({{share(2, 30, 0)}, 0});
  EXPECT_EQ(routes.shares.front().bytes, 20u);
}

}  // namespace
}  // namespace railweave::test
