// Memory of destroyed communicators, beside operations of others.
#include "deferred.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace railweave::cuda {
namespace {

// Counts what of a device was given back.
std::shared_ptr<void> memory(std::vector<int>& freed, int number) {
  return {&freed, [&freed, number](void*) { freed.push_back(number); }};
}

bool at_once(const std::function<void()>& call) {
  call();
  return true;
}

TEST(Deferred, IsGivenBackOneByOneAsLongAsNothingRuns) {
  Deferred deferred;
  std::vector<int> freed;
  for (int number = 0; number < 4; ++number) deferred.add(0, memory(freed, number));
  int asked = 0;
  const auto until_two = [&](const std::function<void()>& call) {
    ++asked;
    return freed.size() < 2 && at_once(call);
  };
  deferred.give_back(0, until_two);
  EXPECT_EQ(freed, (std::vector{0, 1})) << "then an operation began";
  EXPECT_EQ(asked, 3);
  deferred.give_back(0, at_once);
  EXPECT_EQ(freed, (std::vector{0, 1, 2, 3}));
}

TEST(Deferred, KernelsOfAnotherDeviceAreNotWaitedFor) {
  Deferred deferred;
  std::vector<int> freed;
  deferred.add(0, memory(freed, 0));
  deferred.add(1, memory(freed, 1));
  deferred.give_back(1, at_once);
  EXPECT_EQ(freed, std::vector{1});
  deferred.give_back(1, [](const auto&) -> bool { throw std::logic_error("there is nothing more of it"); });
  deferred.give_back(0, at_once);
  EXPECT_EQ(freed, (std::vector{1, 0}));
}

// As communicators' threads do: `running` is an operation of another's, noted and ended under the same mutex.
TEST(Deferred, ThreadsThatGiveBackSideBySideLoseNothing) {
  Deferred deferred;
  std::mutex noting;
  bool running = false;
  std::atomic<int> freed = 0;
  std::atomic<bool> done = false;
  const auto alone = [&](const std::function<void()>& call) {
    const std::scoped_lock lock(noting);
    if (!running) call();
    return !running;
  };
  {
    std::jthread program([&] {
      while (!done) {
        const std::scoped_lock lock(noting);
        running = !running;
      }
    });
    std::vector<std::jthread> mappers;
    for (int thread = 0; thread < 3; ++thread) {
      mappers.emplace_back([&] {
        while (!done) deferred.give_back(0, alone);
      });
    }
    for (int number = 0; number < 1000; ++number) {
      deferred.add(0, {&freed, [&](void*) {
                         EXPECT_FALSE(running);
                         ++freed;
                       }});
    }
    while (freed < 1000) std::this_thread::yield();
    done = true;
  }
  EXPECT_EQ(freed, 1000);
}

}  // namespace
}  // namespace railweave::cuda
