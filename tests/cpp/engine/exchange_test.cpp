#include <gtest/gtest.h>
#include <sched.h>

#include <barrier>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "job.hpp"

namespace railweave::test {
namespace {

using Matrix = std::vector<std::vector<std::uint64_t>>;

// All ranks exchange `matrix` with each byte checked; gives the reports by rank.
std::vector<OperationReport> exchange_matrix(const Shape& shape, const ExchangeSettings& settings, const Matrix& matrix, int rounds,
                                             bool mapped) {
  std::vector<OperationReport> reports(shape.world());
  run_job(shape, settings, [&](Exchange& exchange) {
    const std::uint32_t me = exchange.rank(), world = exchange.world();
    std::vector<std::uint64_t> send_counts = matrix[me], recv_counts(world), send_offsets(world), recv_offsets(world);
    for (std::uint32_t peer = 0; peer < world; ++peer) recv_counts[peer] = matrix[peer][me];
    std::exclusive_scan(send_counts.begin(), send_counts.end(), send_offsets.begin(), std::uint64_t{0});
    std::exclusive_scan(recv_counts.begin(), recv_counts.end(), recv_offsets.begin(), std::uint64_t{0});
    const std::uint64_t received = recv_offsets.back() + recv_counts.back();
    std::vector<std::byte> send(send_offsets.back() + send_counts.back()), plain(mapped ? 0 : received);
    const ExchangeBuffer buffer = exchange.allocate(received);
    std::byte* recv = mapped ? buffer.data() : plain.data();
    for (int round = 0; round < rounds; ++round) {
      for (std::uint32_t peer = 0; peer < world; ++peer) {
        fill(send.data() + send_offsets[peer], send_counts[peer], tag_of(me, peer, static_cast<std::uint64_t>(round)));
      }
      Handle handle = exchange.all_to_all_v(send.data(), send_counts, send_offsets, recv, recv_counts, recv_offsets);
      handle.wait();
      for (std::uint32_t peer = 0; peer < world; ++peer) {
        ASSERT_EQ(first_wrong(recv + recv_offsets[peer], recv_counts[peer], tag_of(peer, me, static_cast<std::uint64_t>(round))),
                  recv_counts[peer])
            << "rank " << me << " from " << peer << " round " << round;
      }
      reports[me] = handle.report();
    }
  });
  return reports;
}

Matrix uneven(std::uint32_t world, std::uint64_t scale) {
  Matrix matrix(world, std::vector<std::uint64_t>(world));
  for (std::uint32_t i = 0; i < world; ++i) {
    for (std::uint32_t j = 0; j < world; ++j) matrix[i][j] = (i * 7 + j * 13) % 5 * scale + i;
  }
  return matrix;
}

TEST(Exchange, OneRankSendsToItself) { exchange_matrix({1, 1}, {}, {{1'000'003}}, 3, false); }

TEST(Exchange, OneNodeThroughSlots) { exchange_matrix({1, 2}, {}, {{5, 3'000'001}, {777'777, 0}}, 5, false); }

TEST(Exchange, OneNodeMappedBuffers) {
  ExchangeSettings settings;
  settings.eager_bytes = 0;
  const auto reports = exchange_matrix({1, 4}, settings, uneven(4, 400'000), 5, true);
  for (const OperationReport& report : reports) EXPECT_EQ(report.mapped_bytes, report.bytes_sent);
}

std::uint64_t shared_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stoull(line.substr(9)) << 10;
  }
  throw std::runtime_error("no RssShmem in /proc/self/status");
}

// Mates keep a buffer mapped when its owner has let go of it.
TEST(Exchange, BuffersOfThePastHoldNoMemoryAndNoDescriptors) {
  constexpr std::uint64_t kBytes = 4u << 20;
  const auto descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  std::uint64_t bytes_before = 0;
  std::ptrdiff_t descriptors_before = 0;
  std::barrier step(2);
  run_job({1, 2}, {}, [&](Exchange& exchange) {
    const std::uint32_t peer = 1 - exchange.rank();
    const std::vector<std::byte> send(kBytes);
    for (int round = 0; round < 20; ++round) {
      const ExchangeBuffer buffer = exchange.allocate(kBytes);
      Group group = exchange.group();
      group.send(send.data(), kBytes, peer);
      group.recv(buffer.data(), kBytes, peer);
      Handle handle = group.end();
      handle.wait();
      ASSERT_EQ(handle.report().mapped_bytes, kBytes);
      step.arrive_and_wait();
      if (round == 0 && exchange.rank() == 0) {
        bytes_before = shared_bytes();
        descriptors_before = descriptors();
      }
      step.arrive_and_wait();
    }
    step.arrive_and_wait();
    if (exchange.rank() == 0) {
      EXPECT_LE(shared_bytes(), bytes_before);
      EXPECT_LE(descriptors(), descriptors_before);
    }
    step.arrive_and_wait();
  });
}

// Else it would be killed for what it touches.
TEST(Exchange, ABufferBeyondTheMachinesMemoryIsRefused) {
  run_job({1, 1}, {}, [](Exchange& exchange) {
    try {
      exchange.allocate(std::uint64_t{1} << 46);
      FAIL();
    } catch (const ExchangeError& error) {
      EXPECT_EQ(std::string(error.what()).find("a buffer of 70368744177664 bytes; expected at most the "), 0u) << error.what();
    }
  });
}

// Also where the engine thread has just looked for posts, as it comes to on one processor beside the program again and again.
TEST(Exchange, WhatWasPostedLastIsDoneBeforeTheEnd) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
  ::sched_setaffinity(0, sizeof one, &one);
  const ScratchDirectory directory;
  ExchangeSettings settings = rank_settings({1, 1}, 0);
  settings.spin_us = 100'000;
  for (int life = 0; life < 2000 && !testing::Test::HasFailure(); ++life) {
    std::vector<std::byte> sent(64, std::byte{1}), received(64);
    Exchange exchange(0, 1, "file://" + (directory.path() / std::to_string(life)).string(), settings, std::nullopt);
    std::this_thread::sleep_for(std::chrono::microseconds(50 + life % 200));
    Group group = exchange.group(0);
    group.send(sent.data(), sent.size(), 0);
    group.recv(received.data(), received.size(), 0);
    Handle handle = group.end();
    exchange.close();
    EXPECT_TRUE(handle.test()) << "life " << life;
  }
  ::sched_setaffinity(0, sizeof before, &before);
}

TEST(Exchange, TwoNodesOfOneRank) { exchange_matrix({2, 1}, {}, {{9, 5'000'001}, {3'000'001, 11}}, 5, false); }

TEST(Exchange, HotPairTakesAllRails) {
  Matrix matrix(4, std::vector<std::uint64_t>(4, 0));
  matrix[0][2] = 32u << 20;
  ExchangeSettings settings;
  settings.rail_timeout_ms = 60'000;  // no rail is down because its thread has no CPU
  const auto reports = exchange_matrix({2, 2}, settings, matrix, 3, false);
  // How much each takes follows the rates measured on loopback, which depend on the machine's load.
  for (const std::uint64_t bytes : reports[0].bytes_by_nic) EXPECT_GT(bytes, 0u);
}

TEST(Exchange, SinglePathTakesOneRail) {
  Matrix matrix(4, std::vector<std::uint64_t>(4, 0));
  matrix[0][2] = 8u << 20;
  ExchangeSettings settings;
  settings.policy = Policy::single_path;
  settings.rail_timeout_ms = 60'000;  // as above
  const auto reports = exchange_matrix({2, 2}, settings, matrix, 2, false);
  EXPECT_EQ(std::count(reports[0].bytes_by_nic.begin(), reports[0].bytes_by_nic.end(), 0u), 1);
}

TEST(Exchange, UnevenMatrixOverTwoNodes) { exchange_matrix({2, 4}, {}, uneven(8, 500'000), 5, true); }

TEST(Exchange, ThreeNodesWithTinyChunks) {
  ExchangeSettings settings;
  settings.chunk_bytes = 4096;
  settings.multipath_min_bytes = 16384;
  settings.slots_per_writer = 2;
  settings.rx_slots = 2;
  settings.link_window = 2;
  exchange_matrix({3, 2}, settings, uneven(6, 60'000), 4, false);
}

}  // namespace
}  // namespace railweave::test
