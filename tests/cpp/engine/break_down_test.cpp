// An engine whose thread is refused memory.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "../allocations.hpp"
#include "../threads.hpp"
#include "job.hpp"
#include "processes.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::test {
namespace {

namespace allocations = testing::allocations;

constexpr std::uint64_t kBytes = 300'000;
constexpr std::uint32_t kBroken = 1;  // the rank

struct Refusal {
  Shape shape;
  int after;  // allocations
  int most;
};

class BreakDown : public ::testing::TestWithParam<Refusal> {};

// The text of the error that ends it; empty: it ends well.
template <typename Failure>
std::string failure_of(const std::function<void()>& call) {
  try {
    call();
    return {};
  } catch (const Failure& failure) {
    return failure.what();
  }
}

// What it waits for, and what it begins later.
bool is_told(Exchange& exchange) {
  std::vector<std::byte> bytes(kBytes);
  const auto receive = [&] {
    Group group = exchange.group(7);
    group.recv(bytes.data(), kBytes, 0);
    group.end().wait();
  };
  const std::string first = failure_of<ExchangeError>(receive), second = failure_of<ExchangeError>(receive);
  const auto tells = [](const std::string& text) {
    if (text == "the engine of rank 1 has ended: out of memory" || text == "out of memory") return true;
    std::fprintf(stderr, "rank 1: %s\n", text.c_str());
    return false;
  };
  return tells(first) && tells(second);
}

bool hears_of_a_death(Exchange& exchange) {
  std::vector<std::byte> bytes(kBytes);
  const std::string text = failure_of<RankDied>([&] {
    Group group = exchange.group();
    group.recv(bytes.data(), kBytes, kBroken);
    group.end().wait();
  });
  if (text.starts_with("rank 1 has died: ")) return true;
  std::fprintf(stderr, "rank %u: %s\n", exchange.rank(), text.c_str());
  return false;
}

TEST_P(BreakDown, FailsWhatTheRankWaitsForAndIsADeathForTheOthers) {
  const auto [shape, after, most] = GetParam();
  const std::uint32_t world = shape.world();
  const ScratchDirectory directory;
  SharedCounters done;
  const auto statuses = run_processes(world, [&, shape = shape, after = after, most = most](std::uint32_t rank) {
    ExchangeSettings settings = rank_settings(shape, rank);
    settings.death_ms = ExchangeSettings{}.death_ms;
    settings.drain_ms = 500;
    Exchange exchange(rank, world, directory.rendezvous(), settings);
    if (rank == kBroken) allocations::refuse(testing::thread_named("rw-engine"), after, most);
    const bool right = rank == kBroken ? is_told(exchange) : hears_of_a_death(exchange);
    // No process has ended before all have heard.
    ++done[0];
    while (done[0] < static_cast<int>(world)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return right ? 0 : 1;
  });
  EXPECT_EQ(statuses, std::vector<int>(world, 0));
}

// At the first allocation of a turn, at some later one, and without memory for texts either.
INSTANTIATE_TEST_SUITE_P(Ranks, BreakDown,
                         ::testing::Values(Refusal{{1, 2}, 0, 1}, Refusal{{1, 2}, 3, 1}, Refusal{{1, 2}, 0, 1'000'000},
                                           Refusal{{2, 2}, 0, 1}, Refusal{{2, 1}, 0, 1'000'000}));

}  // namespace
}  // namespace railweave::test
