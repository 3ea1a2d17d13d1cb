// A message at one of its ends, as tests run it, and what a program does with its buffer once its operation has ended.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "operation.hpp"

namespace railweave::cuda {

struct Transfer {
  Direction direction;
  std::uint32_t peer;
  std::byte* data;
  std::uint64_t bytes;
  const std::byte* expected = nullptr;  // of a receive: what is to come
};

// What buffers hold once they have been used: it is not what anybody sends.
inline constexpr std::byte kUsed{0xa5};

// By the rank's own thread, right behind the operation, while its peers' may still run: what came is all there, and then the program has
// something else in its buffers, so that a source whose send ended too early sends that.
inline void use_buffers(const std::vector<Transfer>& operation) {
  for (const Transfer& t : operation) {
    if (t.direction == Direction::send) continue;
    const auto right = static_cast<std::uint64_t>(std::mismatch(t.data, t.data + t.bytes, t.expected).first - t.data);
    EXPECT_EQ(right, t.bytes) << "first wrong byte of those that came from rank " << t.peer;
  }
  for (const Transfer& t : operation) std::fill_n(t.data, t.bytes, kUsed);
}

// Nobody has written into them since.
inline void expect_left_alone(const std::vector<Transfer>& operation) {
  for (const Transfer& t : operation) {
    const auto left = static_cast<std::uint64_t>(std::find_if(t.data, t.data + t.bytes, [](std::byte b) { return b != kUsed; }) - t.data);
    EXPECT_EQ(left, t.bytes) << "a byte written behind the end of its operation with rank " << t.peer;
  }
}

}  // namespace railweave::cuda
