// The bell by which ranks wake each other.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "book.hpp"

namespace railweave::cuda {
namespace {

using namespace std::chrono_literals;

// Much longer than a wait that is ended, however busy the machine is, and much shorter than the next.
constexpr auto kNever = 60s;

TEST(Bell, WhatRangSinceItWasAskedEndsAWaitAtOnce) {
  Bell bell{};
  const std::uint32_t heard = rings_of(bell);
  ring(bell);
  const auto begin = std::chrono::steady_clock::now();
  wait_for_ring(bell, heard, kNever);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kNever / 2);
  EXPECT_NE(rings_of(bell), heard);
}

TEST(Bell, AnotherProcessEndsAWait) {
  engine::SharedMemory shared = engine::SharedMemory::create("bell", sizeof(BookPage));
  Bell& bell = shared.at<BookPage>(0).bell;
  const std::uint32_t heard = rings_of(bell);
  const pid_t child = ::fork();
  if (child == 0) {
    engine::SharedMemory there = engine::SharedMemory::open(shared.handle());
    ::usleep(50'000);
    ring(there.at<BookPage>(0).bell);
    ::_exit(0);
  }
  const auto begin = std::chrono::steady_clock::now();
  while (rings_of(bell) == heard && std::chrono::steady_clock::now() - begin < kNever) wait_for_ring(bell, heard, kNever);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kNever / 2);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Bell, AWaitEndsWithItsTime) {
  Bell bell{};
  const auto begin = std::chrono::steady_clock::now();
  wait_for_ring(bell, rings_of(bell), 20ms);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
}

}  // namespace
}  // namespace railweave::cuda
