// What a virtual machine's threads lose to its host, from /proc/stat.
#include "cpu_wait.hpp"

#include <gtest/gtest.h>

namespace railweave::test {
namespace {

using engine::CpuTicks;

constexpr std::uint64_t kTick = 10'000'000, kSecond = 1'000'000'000;

TEST(CpuTicks, AreTheFirstLineOfProcStat) {
  const auto ticks = engine::parse_cpu_ticks("cpu  10 20 30 400 50 6 7 80 9 1\ncpu0 1 2 3 4 5 6 7 8 9 1\n");
  ASSERT_TRUE(ticks);
  EXPECT_EQ(ticks->busy, 10u + 20 + 30 + 6 + 7);  // guest time is in user and nice already
  EXPECT_EQ(ticks->stolen, 80u);
}

TEST(CpuTicks, AreNothingWhereTheLineIsAnother) {
  for (const char* const text :
       {"", "cpu", "cpu ", "cpu  1 2 3 4 5 6 7", "cpu  1 2 3 x 5 6 7 8", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3 4 5 6 7 99999999999999999999"})
    EXPECT_FALSE(engine::parse_cpu_ticks(text)) << text;
}

TEST(StolenTime, IsTheShareOfWantedTimeThatWasTaken) {
  struct Case {
    const char* what;
    CpuTicks before, after;
    std::uint64_t lost_ms;
  };
  for (const Case& test :
       {Case{"hardware", {100, 0}, {400, 0}, 0}, Case{"a quarter of what four CPUs wanted", {100, 50}, {400, 150}, 250},
        Case{"one of 200 busy CPUs", {0, 0}, {19'900, 100}, 5},
        Case{"an idle machine that wakes up now and then", {100, 50}, {101, 52}, 20}, Case{"counters that go back", {100, 50}, {99, 60}, 0},
        Case{"stolen time that goes back", {100, 50}, {200, 49}, 0}})
    EXPECT_EQ(engine::stolen_ns(test.before, test.after, kSecond, kTick), test.lost_ms * 1'000'000) << test.what;
}

TEST(CpuWait, GrowsOnly) {
  std::uint64_t last = engine::cpu_wait_ns();
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t next = engine::cpu_wait_ns();
    ASSERT_GE(next, last);
    last = next;
  }
}

}  // namespace
}  // namespace railweave::test
