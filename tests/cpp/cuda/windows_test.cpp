// Messages in packets that wait for credits: with threads as warps, every byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <tuple>

#include "gpu_node.hpp"

namespace railweave::cuda {
namespace {

// A message of more packets than slots, also of more than the general kernel has bits for, and operations that run ahead of their receiver
// until the slots are full. The answer: some warps send and some receive, in proportion; of one so small that none would, all do both.
class Windows : public testing::TestWithParam<
                    std::tuple<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::tuple<std::uint64_t, std::uint64_t>>> {};

TEST_P(Windows, CreditsComeBack) {
  std::mt19937_64 random(11);
  Node node(2);
  std::tie(node.cluster_blocks, node.blocks_at_most, node.single_blocks) = std::get<0>(GetParam());
  const auto [bytes, answer] = std::get<1>(GetParam());
  node.low_latency_bytes = bytes;
  const bool general = node.cluster_blocks == 1 && node.single_blocks == 1;
  Program program(2);
  for (std::size_t op = 0; op < 3; ++op) {
    program.add(random, 0, op, 1, op, bytes);
    program.add(random, 1, op, 0, op, answer);
    if (general) program.add(random, 0, op, 1, op, bytes + 1);  // beside a granted one
  }
  program.run(node);
  EXPECT_EQ(node.kernels(0).front(), general ? Kernel::any : Kernel::packets);
}
constexpr std::uint64_t kMoreThanSlots = kPacketSlots * Packet::kData + 100'001, kMoreThanBits = kMostBundles * kBundleBytes + 100'001;
INSTANTIATE_TEST_SUITE_P(
    Kernels, Windows,
    testing::Combine(testing::Values(std::tuple{1u, 4u, 1u}, std::tuple{1u, 4u, 4u}, std::tuple{8u, 1u, 1u}, std::tuple{8u, 4u, 1u}),
                     testing::Values(std::tuple{kMoreThanSlots, std::uint64_t{250'000}}, std::tuple{kMoreThanSlots, kMoreThanSlots},
                                     std::tuple{kMoreThanSlots, std::uint64_t{8}}, std::tuple{kMoreThanBits, std::uint64_t{250'000}})));

// Messages to and from several peers, of which some wait for credits: each warp has one of them, until there are too few warps for that.
class SeveralWindows : public testing::TestWithParam<std::uint32_t> {};

TEST_P(SeveralWindows, CreditsComeBack) {
  std::mt19937_64 random(12);
  Node node(3);
  std::tie(node.cluster_blocks, node.blocks_at_most, node.single_blocks) = std::tuple{8u, GetParam(), 1u};
  node.low_latency_bytes = 3 * kMoreThanSlots;
  Program program(3);
  for (std::uint32_t from = 0; from < 3; ++from) {
    for (std::uint32_t to = 0; to < 3; ++to) {
      if (from != to) program.add(random, from, 0, to, 0, kMoreThanSlots);                                         // balanced
      if (from != to) program.add(random, from, 1, to, 1, to == 2 ? 2 * kMoreThanSlots + from : 8 + 50'000 * to);  // a hot receiver
    }
  }
  for (const std::uint32_t peer : {1u, 2u}) program.add(random, 0, 2, peer, 2, peer * kMoreThanSlots);
  for (const std::uint32_t peer : {1u, 2u}) program.add(random, peer, 3, 0, 3, peer == 1 ? kMoreThanSlots : 1);
  for (std::uint32_t i = 0; i < 2; ++i) program.add(random, 0, 4, 1, 4, kMoreThanSlots + i);  // the second one waits for the first
  program.run(node);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    for (const Kernel kernel : node.kernels(rank)) EXPECT_EQ(kernel, Kernel::packets);
  }
}
INSTANTIATE_TEST_SUITE_P(Blocks, SeveralWindows, testing::Values(1u, 3u));

// Packets beside granted messages, in blocks of two clusters, or in single ones.
class BesideGranted : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint64_t>> {};

TEST_P(BesideGranted, PacketsOfAllClustersArrive) {
  const auto [cluster_blocks, seed] = GetParam();
  std::mt19937_64 random(seed);
  Node node(2, seed);
  node.cluster_blocks = cluster_blocks;
  node.blocks_at_most = std::max(2 * cluster_blocks, 3u);
  node.single_blocks = 3;
  node.low_latency_bytes = kMoreThanSlots;
  Program program(2);
  for (std::size_t op = 0; op < 3; ++op) {
    program.add(random, 0, op, 1, op, kMoreThanSlots);
    program.add(random, 0, op, 1, op, kMoreThanSlots + 1);
    if (op != 1) program.add(random, 1, op, 0, op, kMoreThanSlots - 8);
    program.add(random, 1, op, 0, op, 300'000);
  }
  program.run(node);
  EXPECT_EQ(node.kernels(0).front(), Kernel::apart);
}
INSTANTIATE_TEST_SUITE_P(Seeds, BesideGranted, testing::Combine(testing::Values(1u, 2u, 4u), testing::Values(1u, 2u, 3u)));

}  // namespace
}  // namespace railweave::cuda
