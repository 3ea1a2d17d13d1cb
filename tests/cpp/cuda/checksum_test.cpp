// The checksum mode's arithmetic and roles, with threads in the place of GPU blocks.
#include "checksum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "host_block.hpp"

namespace railweave::cuda {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::uint64_t whole_sum(const std::byte* data, std::uint64_t bytes) { return partial_sum(data, 0, bytes, 0, 1); }

TEST(Checksum, IsTheSameForAnyNumberOfThreadsAndAnyAlignment) {
  for (const std::uint64_t bytes : {1ull, 7ull, 8ull, 9ull, 4096ull, 70'001ull}) {
    const auto data = random_bytes(bytes, bytes);
    const std::uint64_t expected = whole_sum(data.data(), bytes);
    for (const std::uint32_t threads : {2u, 32u, 512u}) {
      std::uint64_t sum = 0;
      for (std::uint32_t thread = 0; thread < threads; ++thread) sum += partial_sum(data.data(), 0, bytes, thread, threads);
      EXPECT_EQ(sum, expected) << bytes << " bytes, " << threads << " threads";
    }
    std::vector<std::byte> moved(bytes + 8);
    for (std::size_t offset = 0; offset < 8; ++offset) {
      std::memcpy(moved.data() + offset, data.data(), bytes);
      EXPECT_EQ(whole_sum(moved.data() + offset, bytes), expected) << bytes << " bytes at offset " << offset;
    }
  }
}

TEST(Checksum, AnyBitAndAnyExchangeOfWordsChangesIt) {
  auto data = random_bytes(133, 1);
  const std::uint64_t expected = whole_sum(data.data(), data.size());
  for (std::size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_NE(whole_sum(data.data(), data.size()), expected) << bit;
    data[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
  std::swap_ranges(data.begin(), data.begin() + 8, data.begin() + 64);
  EXPECT_NE(whole_sum(data.data(), data.size()), expected);
}

TEST(Checksum, ChunksCoverAMessageAndFitIntoItsSums) {
  for (const std::uint64_t bytes : {1ull, 65'536ull, 65'537ull, 62ull * 65'536, 62ull * 65'536 + 1, 1ull << 30, (1ull << 40) + 7}) {
    const std::uint64_t chunks = checked_chunks(bytes), size = checked_chunk_bytes(bytes);
    EXPECT_LE(chunks, kCheckedChunks) << bytes;
    EXPECT_GE(chunks * size, bytes);
    EXPECT_LT((chunks - 1) * size, bytes);
    EXPECT_EQ(size % 8, 0u);
  }
}

// A block is a thread with one thread in it.
class HostThreads : public HostWords {
 public:
  using HostWords::HostWords;
  std::uint32_t index() const { return 0; }
  std::uint32_t count() const { return 1; }
  std::uint64_t total(std::uint64_t value) { return value; }
  template <typename F>
  void first(F&& f) {
    f();
  }
  void most(std::uint64_t* word, std::uint64_t value) {
    std::uint64_t now = relaxed(word);
    while (now < value && !atomic(word).compare_exchange_weak(now, value)) {
    }
  }
};

// Launches as checksum.cu does, blocks at the same time.
void launch(std::vector<CheckedMessage>& messages, CheckState* compared) {
  const std::uint32_t blocks = place_checks(messages);
  std::vector<std::jthread> threads;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    threads.emplace_back([&, block] {
      HostThreads words(block, 200);
      ChecksumRoles<HostThreads> roles(words, messages.data(), static_cast<std::uint32_t>(messages.size()));
      if (compared == nullptr)
        roles.make(block);
      else
        roles.compare(block, blocks, *compared);
    });
  }
}

// Five messages to two peers, of which the receiver's copies are compared.
struct Exchanged {
  Exchanged() {
    const std::uint64_t sizes[] = {1, 200'000, 65'536, 90'001, 65'537};
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      sent.push_back(random_bytes(sizes[i], i));
      CheckedMessage m{};
      m.data = sent.back().data();
      m.bytes = sizes[i];
      m.peer = i % 2 == 0 ? 3 : 5;
      m.count = &counts[i % 2];
      m.sums = &sums[i];
      sends.push_back(m);
    }
  }
  void run() {
    launch(sends, nullptr);
    received = sent;
    receives = sends;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      receives[i].data = received[i].data();
      receives[i].count = nullptr;
      receives[i].host = &host;
    }
  }

  std::vector<std::vector<std::byte>> sent, received;
  std::vector<CheckedMessage> sends, receives;
  std::uint64_t counts[2] = {};
  Sums sums[5] = {};
  HostView host{};
  CheckState state{};
};

TEST(ChecksumRoles, WholeMessagesAreNoErrorAndCountOn) {
  Exchanged all;
  for (std::uint64_t round = 0; round < 3; ++round) {
    all.run();
    launch(all.receives, &all.state);
    EXPECT_EQ(all.host.error, 0u);
    const std::uint64_t numbers[] = {0, 0, 1, 1, 2}, each[] = {3, 2};
    for (std::size_t i = 0; i < std::size(numbers); ++i) EXPECT_EQ(all.sums[i].number, numbers[i] + round * each[i % 2]) << i;
  }
}

TEST(ChecksumRoles, TheFirstChunkOfTheFirstDamagedMessageIsNamed) {
  Exchanged all;
  all.run();
  all.run();
  all.received[1][199'999] ^= std::byte{1};   // its fourth chunk
  all.received[1][70'000] ^= std::byte{128};  // its second
  all.received[3][0] ^= std::byte{1};
  launch(all.receives, &all.state);
  EXPECT_EQ(all.host.error, static_cast<std::uint32_t>(KernelError::damaged));
  EXPECT_EQ(all.host.error_peer, 5u);
  EXPECT_EQ(all.host.error_message, 2u) << "the second operation's first of two to that peer";
  EXPECT_EQ(all.host.error_chunk, 1u);
  EXPECT_EQ(all.host.error_bytes[0], 200'000u);
  EXPECT_EQ(
      damage_text({all.host.error_peer, all.host.error_message, 200'000, 200'000, all.host.error_chunk}),
      "message 2 from rank 5 (200000 bytes) was damaged on its way: chunk 1 of 4, bytes 65536 to 131071, is the first whose checksum is "
      "not its sender's");
  EXPECT_EQ(all.state.wrong, 0u) << "as it was found";
  EXPECT_EQ(all.state.left, 0u);
}

TEST(ChecksumRoles, BothEndsOfEachChunkAreSummedUp) {
  constexpr std::uint64_t kBytes = 200'000, kChunk = kLeastCheckedChunk;
  for (std::uint64_t begin = 0; begin < kBytes; begin += kChunk) {
    for (const std::uint64_t at : {begin, std::min(begin + kChunk, kBytes) - 1}) {
      Exchanged all;
      all.run();
      all.received[1][at] ^= std::byte{1};
      launch(all.receives, &all.state);
      EXPECT_EQ(all.host.error, static_cast<std::uint32_t>(KernelError::damaged)) << at;
      EXPECT_EQ(all.host.error_chunk, begin / kChunk) << at;
    }
  }
}

TEST(ChecksumRoles, AfterAnOperationThatFailedNothingIsSaidAboutBytes) {
  for (const bool stopped : {true, false}) {
    Exchanged all;
    all.run();
    all.received[2][9] ^= std::byte{1};
    (stopped ? all.host.stop : all.host.error) = 1;
    launch(all.receives, &all.state);
    EXPECT_EQ(all.host.error, stopped ? 0u : 1u);
    EXPECT_EQ(all.state.wrong, 0u);
  }
}

}  // namespace
}  // namespace railweave::cuda
