#include "staging.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace railweave::cuda {
namespace {

constexpr std::uint64_t kBytes = 4096;

std::shared_ptr<std::byte> memory() {
  return {static_cast<std::byte*>(std::aligned_alloc(256, kBytes)), [](std::byte* data) { std::free(data); }};
}

// Addresses that are only compared.
std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

TEST(Staging, IsMadeWhenItIsFirstWanted) {
  Staging staging(kBytes);
  EXPECT_FALSE(staging.wanted());
  EXPECT_EQ(staging.place(at(0x10000), 100), nullptr);
  EXPECT_TRUE(staging.want());
  EXPECT_FALSE(staging.want());
  EXPECT_TRUE(staging.wanted());
  EXPECT_FALSE(staging.full());
  EXPECT_EQ(staging.place(at(0x10000), 100), nullptr);
  const auto given = memory();
  staging.provide(given);
  EXPECT_FALSE(staging.wanted());
  EXPECT_EQ(staging.place(at(0x10000), 100), given.get());
}

TEST(Staging, IsNotWantedWhereItHasNoBytes) {
  Staging staging(0);
  EXPECT_FALSE(staging.want());
  EXPECT_FALSE(staging.wanted());
  EXPECT_TRUE(staging.full());
}

TEST(Staging, IsNotAskedForAgainWhereThereIsNoMemory) {
  Staging staging(kBytes);
  staging.want();
  staging.provide(nullptr);
  EXPECT_FALSE(staging.want());
  EXPECT_FALSE(staging.wanted());
  EXPECT_EQ(staging.place(at(0x10000), 1), nullptr);
  EXPECT_FALSE(staging.full());
}

TEST(Staging, KeepsThePlaceBetweenBoundaries) {
  Staging staging(kBytes);
  const auto given = memory();
  staging.provide(given);
  EXPECT_EQ(staging.place(at(0x10003), 10), given.get() + 3);
  EXPECT_EQ(staging.place(at(0x20001), 10), given.get() + 256 + 1);
  EXPECT_EQ(staging.place(at(0x300ff), 1), given.get() + 256 + 255);
}

TEST(Staging, CopiesWhatLiesSideBySideAtOnce) {
  Staging staging(kBytes);
  const auto given = memory();
  staging.provide(given);
  staging.place(at(0x10010), 100);
  staging.place(at(0x10074), 50);
  staging.place(at(0x20000), 7);
  ASSERT_EQ(staging.copies().size(), 2u);
  EXPECT_EQ(staging.copies()[0].to, at(0x10010));
  EXPECT_EQ(staging.copies()[0].from, given.get() + 0x10);
  EXPECT_EQ(staging.copies()[0].bytes, 150u);
  EXPECT_EQ(staging.copies()[1].to, at(0x20000));
  EXPECT_EQ(staging.copies()[1].bytes, 7u);
}

TEST(Staging, DoesNotJoinWhatLiesSideBySideOnlyThere) {
  Staging staging(kBytes);
  staging.provide(memory());
  staging.place(at(0x10000), 256);
  staging.place(at(0x20000), 256);
  EXPECT_EQ(staging.copies().size(), 2u);
}

TEST(Staging, RefusesWhatDoesNotFitAndTakesWhatDoes) {
  Staging staging(kBytes);
  const auto given = memory();
  staging.provide(given);
  EXPECT_EQ(staging.place(at(0x10000), kBytes + 1), nullptr);
  EXPECT_TRUE(staging.full());
  EXPECT_EQ(staging.place(at(0x10001), kBytes), nullptr);  // with what it leaves free before it
  EXPECT_EQ(staging.place(at(0x10000), ~std::uint64_t{0}), nullptr);
  EXPECT_EQ(staging.place(at(0x10000), kBytes - 10), given.get());
  EXPECT_EQ(staging.place(at(0x20000), 1), nullptr);
  EXPECT_EQ(staging.place(at(0x10000 + kBytes - 10), 10), given.get() + kBytes - 10);
  ASSERT_EQ(staging.copies().size(), 1u);
  EXPECT_EQ(staging.copies()[0].bytes, kBytes);
}

TEST(Staging, HasAllItsRoomAgainForTheNextOperation) {
  Staging staging(kBytes);
  const auto given = memory();
  staging.provide(given);
  staging.place(at(0x10000), kBytes);
  staging.begin();
  EXPECT_TRUE(staging.copies().empty());
  EXPECT_EQ(staging.place(at(0x20000), kBytes), given.get());
}

}  // namespace
}  // namespace railweave::cuda
