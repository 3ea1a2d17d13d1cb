// Small messages, which wait for no grant (docs/protocol.md §6a).
#include <gtest/gtest.h>

#include <barrier>

#include "job.hpp"
#include "layout.hpp"

namespace railweave::test {
namespace {

constexpr std::uint64_t kSmall = 1000, kLarge = 100'000;
constexpr std::uint64_t kMany = engine::kEagerCredits + 10;

Handle send_one(Exchange& exchange, const std::vector<std::byte>& data, std::uint32_t communicator = 0) {
  Group group = exchange.group(communicator);
  group.send(data.data(), data.size(), 1);
  return group.end();
}

std::vector<std::byte> message(std::uint64_t bytes, std::uint64_t tag) {
  std::vector<std::byte> data(bytes);
  fill(data.data(), bytes, tag);
  return data;
}

// Receives one message of rank 0 and compares it.
void expect_message(Exchange& exchange, std::uint64_t bytes, std::uint64_t tag, std::uint32_t communicator = 0) {
  std::vector<std::byte> data(bytes);
  Group group = exchange.group(communicator);
  group.recv(data.data(), bytes, 0);
  group.end().wait();
  EXPECT_EQ(first_wrong(data.data(), bytes, tag), bytes) << "message " << tag;
}

std::string failure_of(Handle handle) {
  try {
    handle.wait();
  } catch (const ExchangeError& error) {
    return error.what();
  }
  return "";
}

// Two ranks, on one node or on two: the mail ring, or a rail.
class Eager : public testing::TestWithParam<Shape> {};

TEST_P(Eager, SendsEndWithoutTheirReceivesAsLongAsThereAreCredits) {
  std::barrier sent(2);
  run_job(GetParam(), {}, [&](Exchange& exchange) {
    if (exchange.rank() == 0) {
      std::vector<std::vector<std::byte>> data;
      std::vector<Handle> handles;
      for (std::uint64_t i = 0; i < kMany; ++i) {
        data.push_back(message(kSmall, i));
        handles.push_back(send_one(exchange, data.back()));
      }
      for (std::uint64_t i = 0; i < engine::kEagerCredits; ++i) handles[i].wait();
      for (std::uint64_t i = engine::kEagerCredits; i < kMany; ++i) EXPECT_FALSE(handles[i].test()) << "message " << i;
      // Another communicator's message goes through although those before it hold all credits.
      const std::vector<std::byte> other = message(kSmall, 7777);
      Handle last = send_one(exchange, other, 1);
      sent.arrive_and_wait();
      last.wait();
      for (Handle& handle : handles) handle.wait();
    } else {
      sent.arrive_and_wait();
      expect_message(exchange, kSmall, 7777, 1);
      for (std::uint64_t i = 0; i < kMany; ++i) expect_message(exchange, kSmall, i);
    }
  });
}

TEST_P(Eager, CreditsComeBack) {
  run_job(GetParam(), {}, [](Exchange& exchange) {
    for (std::uint64_t i = 0; i < 5 * kMany; ++i) {
      if (exchange.rank() == 1) {
        expect_message(exchange, kSmall, i);
      } else {
        const std::vector<std::byte> data = message(kSmall, i);
        send_one(exchange, data).wait();
      }
    }
  });
}

TEST_P(Eager, SizesOnBothSidesOfTheLimitFail) {
  std::barrier step(2);
  run_job(GetParam(), {}, [&](Exchange& exchange) {
    for (const auto& [sent, expected] : {std::pair{kLarge, kSmall}, std::pair{kSmall, kLarge}, std::pair{kSmall, kSmall + 1}}) {
      const std::string text = "the sender has " + std::to_string(sent) + " bytes, the receiver " + std::to_string(expected);
      if (exchange.rank() == 0) {
        const std::vector<std::byte> data = message(sent, 0);
        Handle handle = send_one(exchange, data);
        const std::string failure = failure_of(handle);
        // A small one is mostly gone before anybody can know.
        if (sent == kLarge || !failure.empty()) {
          EXPECT_NE(failure.find(text), std::string::npos) << failure;
        }
      } else {
        std::vector<std::byte> data(expected);
        Group group = exchange.group();
        group.recv(data.data(), expected, 0);
        EXPECT_NE(failure_of(group.end()).find(text), std::string::npos);
      }
      step.arrive_and_wait();
    }
    // The messages after those are as good as ever.
    if (exchange.rank() == 1) {
      expect_message(exchange, kSmall, 5);
    } else {
      const std::vector<std::byte> data = message(kSmall, 5);
      send_one(exchange, data).wait();
    }
  });
}

TEST_P(Eager, WhatARankSentBeforeItLeftIsReceived) {
  std::barrier left(2);
  run_job(GetParam(), {}, [&](Exchange& exchange) {
    if (exchange.rank() == 0) {
      const std::vector<std::byte> data = message(kSmall, 9);
      send_one(exchange, data).wait();
      exchange.close();
      left.arrive_and_wait();
    } else {
      left.arrive_and_wait();
      expect_message(exchange, kSmall, 9);
      std::vector<std::byte> data(kSmall);
      Group group = exchange.group();
      group.recv(data.data(), kSmall, 0);
      EXPECT_NE(failure_of(group.end()).find("rank 0 has left"), std::string::npos);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Nodes, Eager, testing::Values(Shape{1, 2}, Shape{2, 1}));

}  // namespace
}  // namespace railweave::test
