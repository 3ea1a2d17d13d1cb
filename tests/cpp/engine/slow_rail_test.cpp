// What measured rates do to plans (docs/protocol.md §11), operation by operation on a clock of the test's own.
#include <gtest/gtest.h>

#include "parts.hpp"
#include "railweave/engine/exchange.hpp"
#include "router.hpp"
#include "tx_link.hpp"

namespace railweave::test {
namespace {

constexpr std::uint32_t kRails = 4;
constexpr std::uint64_t kRailBps = 50'000'000;  // 400 Mbit/s
constexpr std::uint64_t kHotBytes = 32u << 20;

// 2 nodes of 4 ranks with a NIC each, seen by rank 0, which sends to rank 4 over all rails.
class SlowRail : public testing::Test {
 protected:
  explicit SlowRail(std::uint64_t rate_Bps = kRailBps) : cluster_(rail_cluster(kRails, rate_Bps)) {}

  // One operation: rank 0's bytes by rail, with each rail's confirmations at its pace. `cpu_wait`: part of the time without a CPU, which
  // slows the rail as much.
  std::vector<std::uint64_t> exchange(std::uint64_t hot_bytes = kHotBytes) {
    std::vector<std::vector<std::uint64_t>> rows(cluster_.world, std::vector<std::uint64_t>(cluster_.world, 0));
    rows[0][kRails] = hot_bytes;
    std::unordered_map<std::uint32_t, engine::Routes> routes;
    plan_id_ = router_.plan(rows, routes).id;
    std::vector<std::uint64_t> bytes(kRails, 0);
    for (const engine::RouteShare& share : routes[kRails].shares) bytes[share.nic] += share.bytes;
    for (std::uint32_t nic = 0; nic < kRails; ++nic) carry(nic, bytes[nic]);
    return bytes;
  }

  void carry(std::uint32_t nic, std::uint64_t bytes) {
    Rail& rail = rails_[nic];
    const std::uint64_t chunk = settings_.chunk_bytes;
    double spare = rail.Bps * rail.burst;
    for (std::uint64_t sent = 0; sent + chunk <= bytes; sent += chunk) {
      if (sent + (rail.window + 1) * chunk > bytes) break;  // not enough is under way any more
      double Bps = rail.Bps * (1 - rail.cpu_wait);
      if (spare > 0) Bps *= 3, spare -= static_cast<double>(chunk);
      const auto span = static_cast<std::uint64_t>(static_cast<double>(chunk) * 1e9 / Bps);
      rail.sample.rx_now_us += static_cast<std::uint32_t>(span / 1000);
      rail.sample.rx_wait_ns += static_cast<std::uint64_t>(static_cast<double>(span) * rail.cpu_wait);
      rail.sample.tx_work_ns += static_cast<std::uint64_t>(static_cast<double>(span) * rail.tx_work);
      rail.sample.rx_work_us += static_cast<std::uint32_t>(static_cast<double>(span) * rail.rx_work / 1000);
      rail.sample.link_bytes += chunk;
      rail.sample.tx_nic_bytes += chunk;
      rail.sample.rx_nic_bytes += chunk;
      if (const auto rate = rail.meter.confirmed(rail.sample)) router_.set_rate(nic, kRails + nic, *rate);
    }
    rail.meter.interrupt();  // the pipe ran empty
  }

  // Operations until `nic` carries between `low` and `high` of an even share; 10 if it never does.
  int operations_until(std::uint32_t nic, double low, double high, std::uint64_t hot_bytes = kHotBytes) {
    for (int operation = 1; operation < 10; ++operation) {
      const double part = static_cast<double>(exchange(hot_bytes)[nic]) / (static_cast<double>(hot_bytes) / kRails);
      if (part >= low && part <= high) return operation - 1;  // after which the plan had followed
    }
    return 10;
  }

  struct Rail {
    double Bps = static_cast<double>(kRailBps) * 0.99;  // headers take their part
    double cpu_wait = 0;
    double burst = 0;                 // s of its rate that it lets through at once after a pause
    double tx_work = 0, rx_work = 0;  // parts of the time in which the threads have work
    std::uint64_t window = 0;         // chunks at the end of an operation that say nothing
    engine::RateMeter meter;
    engine::RateMeter::Sample sample;
  };
  ExchangeSettings settings_;
  engine::Cluster cluster_;
  engine::Router router_{cluster_, engine::derive_fabric(cluster_), settings_};
  std::vector<Rail> rails_{kRails};
  std::uint64_t plan_id_ = 0;
};

TEST_F(SlowRail, ThePlanFollowsWithinThreeOperationsAndBack) {
  EXPECT_EQ(operations_until(1, 0.9, 1.1), 0);
  rails_[1].Bps /= 2;  // the plan's optimum: 4/7 of an even share
  EXPECT_LE(operations_until(1, 0.45, 0.70), 3);
  rails_[1].Bps *= 2;
  EXPECT_LE(operations_until(1, 0.9, 1.1), 3);
}

// The nine chunks that a rail held for slow gets here make a single span. Operations whose span is lost, as the threads lacked a CPU,
// change nothing, whatever their number; then it takes as many as it would have without them.
TEST_F(SlowRail, OneSpanAnOperationIsEnoughAndThoseThatDoNotCountOnlyPutItOff) {
  constexpr std::uint64_t kSmall = kHotBytes / 4;
  for (Rail& rail : rails_) rail.window = 2;
  EXPECT_EQ(operations_until(1, 0.9, 1.1, kSmall), 0);
  rails_[1].Bps /= 2;
  EXPECT_LE(operations_until(1, 0.45, 0.70, kSmall), 2);
  rails_[1].Bps *= 2;
  rails_[1].cpu_wait = 0.6;  // what came shows no more than is believed
  const std::uint64_t slow = exchange(kSmall)[1];
  EXPECT_LT(slow, kSmall / kRails);
  for (int operation = 0; operation < 5; ++operation) EXPECT_EQ(exchange(kSmall)[1], slow) << "nobody can know";
  rails_[1].cpu_wait = 0;
  EXPECT_EQ(operations_until(1, 0.9, 1.1, kSmall), 2);
}

// The kernel's queues keep the rail busy while its threads wait for a CPU, so what came in a span shows what the rail can do at least.
TEST_F(SlowRail, OneThatIsFastAgainIsUsedAgainByThreadsThatLackACpu) {
  exchange();
  rails_[1].Bps /= 2;
  EXPECT_LE(operations_until(1, 0.45, 0.70), 3);
  rails_[1].Bps *= 2;
  rails_[1].cpu_wait = 0.4;
  rails_[1].Bps /= 1 - rails_[1].cpu_wait;
  EXPECT_LE(operations_until(1, 0.9, 1.1), 3);
}

// What the threads of one rail cannot carry is not missing from its link.
TEST_F(SlowRail, ThreadsWithTooMuchToDoDoNotMoveThePlan) {
  exchange();
  const std::uint64_t before = plan_id_;
  for (double Rail::*work : {&Rail::tx_work, &Rail::rx_work}) {
    rails_[1].*work = 0.95;
    rails_[1].Bps /= 3;
    for (int operation = 0; operation < 3; ++operation) exchange();
    EXPECT_EQ(plan_id_, before);
    rails_[1].Bps *= 3;
    rails_[1].*work = 0;
  }
}

TEST_F(SlowRail, OneThatIsFastAgainIsUsedAgainByBusyThreads) {
  exchange();
  rails_[1].Bps /= 2;
  rails_[1].tx_work = rails_[1].rx_work = 0.5;
  EXPECT_LE(operations_until(1, 0.45, 0.70), 3);
  rails_[1].Bps *= 2;
  rails_[1].tx_work = rails_[1].rx_work = 1;
  EXPECT_LE(operations_until(1, 0.9, 1.1), 3);
}

TEST_F(SlowRail, ThreadsThatLackACpuDoNotMoveThePlan) {
  exchange();
  const std::uint64_t before = plan_id_;
  for (const double wait : {0.1, 0.24, 0.4}) {
    for (Rail& rail : rails_) rail.cpu_wait = wait;
    rails_[2].cpu_wait = 0;
    for (int operation = 0; operation < 3; ++operation) exchange();
    EXPECT_EQ(plan_id_, before) << wait;
  }
}

// The rail goes on meanwhile, with what is under way: it is not faster than it was by the time that a thread did not see it.
TEST_F(SlowRail, IsNoFasterWhereItsThreadsLackACpu) {
  engine::RateMeter meter;
  engine::RateMeter::Sample sample;
  std::uint64_t most = 0;
  for (int chunk = 0; chunk < 400; ++chunk) {
    sample.rx_now_us += 131;
    if (chunk < 50 || chunk > 250) sample.rx_wait_ns += 131'000 / 5;
    sample.link_bytes += settings_.chunk_bytes;
    sample.tx_nic_bytes = sample.rx_nic_bytes = sample.link_bytes;
    if (const auto rate = meter.confirmed(sample)) most = std::max(most, *rate);
  }
  EXPECT_NEAR(static_cast<double>(most), 1e9, 1e7);
}

// A span of a fast rail is short: a window that a late thread finds all at once, or what a shaper has saved up, is a fifth of it.
TEST_F(SlowRail, AFewShortSpansThatSaySomethingElseAreNotBelieved) {
  engine::RateMeter meter;
  engine::RateMeter::Sample sample;
  std::vector<std::uint64_t> rates;
  const auto operation = [&](double Bps) {  // of 64 chunks: one span
    for (int chunk = 0; chunk < 64; ++chunk) {
      sample.rx_now_us += static_cast<std::uint32_t>(static_cast<double>(settings_.chunk_bytes) / Bps * 1e6);
      sample.link_bytes += settings_.chunk_bytes;
      sample.tx_nic_bytes = sample.rx_nic_bytes = sample.link_bytes;
      if (const auto rate = meter.confirmed(sample)) rates.push_back(*rate);
    }
    meter.interrupt();
  };
  for (int each = 0; each < 5; ++each) operation(1e9);
  ASSERT_FALSE(rates.empty());
  rates.clear();
  for (const double Bps : {1.25e9, 1.2e9, 1.25e9, 1e9, 0.8e9, 0.8e9, 0.8e9, 1e9, 1.25e9, 0.8e9, 1.25e9, 0.8e9, 1.25e9}) operation(Bps);
  for (const std::uint64_t rate : rates) EXPECT_NEAR(static_cast<double>(rate), 1e9, 2e7);
  rates.clear();
  for (int each = 0; each < 4; ++each) operation(0.5e9);
  ASSERT_FALSE(rates.empty()) << "it is true this time";
  EXPECT_NEAR(static_cast<double>(rates.back()), 0.5e9, 1e7);
}

// What a span with lost time cannot say is no confirmation, and nothing against what others said.
TEST_F(SlowRail, SpansThatLostTimeDoNotKeepAFalseRateAlive) {
  engine::RateMeter meter;
  engine::RateMeter::Sample sample;
  std::uint64_t rate = 0;
  int said = 0;
  const auto operation = [&](double Bps, double lost) {
    for (int chunk = 0; chunk < 64; ++chunk) {
      const double us = static_cast<double>(settings_.chunk_bytes) / Bps * 1e6;
      sample.rx_now_us += static_cast<std::uint32_t>(us);
      sample.rx_wait_ns += static_cast<std::uint64_t>(us * lost * 1000);
      sample.link_bytes += settings_.chunk_bytes;
      sample.tx_nic_bytes = sample.rx_nic_bytes = sample.link_bytes;
      if (const auto news = meter.confirmed(sample)) rate = *news, ++said;
    }
    meter.interrupt();
  };
  for (int each = 0; each < 5; ++each) operation(1e9, 0);
  EXPECT_NEAR(static_cast<double>(rate), 1e9, 2e7);
  said = 0;
  for (int each = 0; each < 5; ++each) operation(0.9e9, 0.4);
  EXPECT_EQ(said, 0);
  for (int each = 0; each < 4; ++each) operation(0.5e9, 0), operation(0.5e9, 0.4);
  EXPECT_NEAR(static_cast<double>(rate), 0.5e9, 1e7);
}

// Other ranks hear of the rate once.
TEST_F(SlowRail, ARateThatComesWhileTheNicIsDownCountsWhenItIsUp) {
  router_.set_nic_down(0, true);
  router_.set_rate(0, kRails, kRailBps / 2);
  router_.set_nic_down(0, false);
  EXPECT_NEAR(router_.seconds_on_one_rail(kRailBps), 2, 0.1);
}

// Only some of the rates are within an eighth of what the interfaces say.
TEST_F(SlowRail, RailsThatAreAlikeHaveLikePartsBelowTheirNominalRateToo) {
  for (std::uint32_t nic = 0; nic < kRails; ++nic) rails_[nic].Bps = static_cast<double>(kRailBps) * (nic % 2 == 0 ? 0.86 : 0.90);
  for (int operation = 0; operation < 4; ++operation) {
    const std::vector<std::uint64_t> bytes = exchange();
    for (std::uint32_t nic = 1; nic < kRails; ++nic) EXPECT_EQ(bytes[nic], bytes[0]) << "operation " << operation << ", rail " << nic;
  }
}

// The first rate that is believed may be a little low.
TEST_F(SlowRail, WhatALaterRateSaysOfARailIsNotTooLittleToCount) {
  for (Rail& rail : rails_) rail.Bps = static_cast<double>(kRailBps) * 0.80;
  rails_[1].Bps = static_cast<double>(kRailBps) * 0.69;
  for (int operation = 0; operation < 2; ++operation) exchange();
  rails_[1].Bps = static_cast<double>(kRailBps) * 0.77;
  for (int operation = 0; operation < 6; ++operation) exchange();
  const std::vector<std::uint64_t> bytes = exchange();
  EXPECT_EQ(bytes[1], bytes[0]);
}

TEST_F(SlowRail, OneThatCarriesTooLittleToBeMeasuredIsTriedAgain) {
  rails_[1].Bps /= 20;
  EXPECT_LE(operations_until(1, 0, 0.1), 3);
  rails_[1].Bps *= 20;
  const auto part = [this] { return static_cast<double>(exchange(kHotBytes / 8)[1]) / (static_cast<double>(kHotBytes) / 8 / kRails); };
  for (int operation = 0; operation < 20; ++operation) EXPECT_LT(part(), 0.2) << "nobody can know";
  for (int times = 0; times < 5; ++times) router_.set_rate(1, kRails + 1, router_.rate_to_try(1, kRails + 1));
  EXPECT_NEAR(part(), 1, 0.1);
  EXPECT_FALSE(router_.set_rate(1, kRails + 1, router_.rate_to_try(1, kRails + 1))) << "no news any more";
}

TEST_F(SlowRail, OneThatIsTriedAndStillSlowIsFoundOut) {
  rails_[1].Bps /= 20;
  EXPECT_LE(operations_until(1, 0, 0.1), 3);
  for (int times = 0; times < 5; ++times) router_.set_rate(1, kRails + 1, router_.rate_to_try(1, kRails + 1));
  EXPECT_NEAR(static_cast<double>(exchange()[1]), kHotBytes / kRails, kHotBytes / kRails / 10.);
  EXPECT_LE(operations_until(1, 0, 0.1), 1);
}

// Three nodes of two ranks. Which end of a slow link is slow, other links of both say.
class SlowEnd : public testing::Test {
 protected:
  // What rank 0 sends over its own rail when it sends to that rank, as a part of an even share.
  double part(std::uint32_t destination) {
    std::vector<std::vector<std::uint64_t>> rows(cluster_.world, std::vector<std::uint64_t>(cluster_.world, 0));
    rows[0][destination] = kHotBytes;
    std::unordered_map<std::uint32_t, engine::Routes> routes;
    router_.plan(rows, routes);
    double bytes = 0;
    for (const engine::RouteShare& share : routes[destination].shares) bytes += share.nic == 0 ? static_cast<double>(share.bytes) : 0;
    return bytes / (kHotBytes / 2.);
  }

  engine::Cluster cluster_ = rail_cluster(2, kRailBps, 3);
  engine::Router router_{cluster_, engine::derive_fabric(cluster_), {}};
};

TEST_F(SlowEnd, ASlowReceiverDoesNotMakeItsSendersSlow) {
  router_.set_rate(0, 4, kRailBps);
  router_.set_rate(0, 2, kRailBps / 10);
  EXPECT_LT(part(2), 0.3);
  EXPECT_NEAR(part(4), 1, 0.1);
}

TEST_F(SlowEnd, AFastRateOfLongAgoIsForgottenWhereALinkOfTheSameNicIsSlow) {
  router_.set_rate(0, 4, kRailBps);
  EXPECT_EQ(router_.rate_to_try(0, 4), kRailBps) << "nothing speaks against it";
  router_.set_rate(0, 2, kRailBps / 10);
  EXPECT_EQ(router_.rate_to_try(0, 2), kRailBps / 5);
  EXPECT_TRUE(router_.set_rate(0, 4, router_.rate_to_try(0, 4)));
  EXPECT_LT(part(4), 0.3);
  EXPECT_EQ(router_.rate_to_try(0, 4), 0u);
  EXPECT_FALSE(router_.set_rate(0, 4, 0));
}

class UnknownRail : public SlowRail {
 protected:
  UnknownRail() : SlowRail(0) {}
};

// Nobody knows what these rails can do, and some are not measured at all: their threads are always busy. A shaper lets more through after
// each pause, and measurements differ a little.
TEST_F(UnknownRail, ThoseThatAreAlikeHaveLikeParts) {
  for (std::uint32_t nic = 0; nic < kRails; ++nic) {
    rails_[nic].Bps = static_cast<double>(router_.nominal_Bps(nic)) * (nic % 2 == 0 ? 0.76 : 0.80);
    rails_[nic].burst = 0.001;
    if (nic > 1) rails_[nic].tx_work = 1;
  }
  for (int operation = 0; operation < 4; ++operation) {
    const std::vector<std::uint64_t> bytes = exchange();
    for (std::uint32_t nic = 1; nic < kRails; ++nic) EXPECT_EQ(bytes[nic], bytes[0]) << "operation " << operation << ", rail " << nic;
  }
}

}  // namespace
}  // namespace railweave::test
