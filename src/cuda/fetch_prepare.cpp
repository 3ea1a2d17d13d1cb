#include "fetch_prepare.hpp"

#include <algorithm>

#include "fetch_roles.hpp"

namespace railweave::cuda {
namespace {

// A shorter one is over before its offer and the first pieces have come.
constexpr std::uint64_t kFetchFrom = 4u << 20;

// Where blocks are too few to fill a link those of the other end can help, which have nothing else to do: a pair of 8 MiB took 52.7, 42.7,
// 38.8 and 34.7 us with 3, 5, 6 and 8 blocks at each end, and 69.3, 45.3, 39.5 and 31.9 with the source's alone; one of 64 MiB 278 and 195
// us with 3 and 6, and 563 and 301 (4 and 2 x H200, docs/cuda-measured.md). A calibration takes a block's rate from more of them
// (effect.py).
constexpr std::uint32_t kMostBlocks = 6;
// Both ways at once they are in each other's way: 366 GB/s written, 275 so (4 x H200, docs/gpu-probe.md).
constexpr std::uint64_t kOneWay = 4;

}  // namespace

std::uint32_t choose_fetched(std::span<Message> messages, const LaunchLimits& limits) {
  const auto may = [](const Message& m) { return m.path == Path::granted && m.local != m.remote && m.bytes >= kFetchFrom; };
  if (limits.link_MBps != 0 || limits.beside_rails || messages.size() > kMaxMessages || std::none_of(messages.begin(), messages.end(), may))
    return 0;
  const std::uint32_t blocks = most_blocks(messages, limits);
  if (blocks > kMostBlocks) return 0;
  const auto bytes_of = [&](Direction direction, auto&& counts) {
    std::uint64_t sum = 0;
    for (const Message& m : messages) sum += m.direction == direction && counts(m) ? m.bytes : 0;
    return sum;
  };
  const auto takes_a_link = [](const Message& m) { return m.local != m.remote; };
  const std::uint64_t sent = bytes_of(Direction::send, takes_a_link), received = bytes_of(Direction::receive, takes_a_link);
  bool any = false;
  for (Message& m : messages) {
    const bool send = m.direction == Direction::send;
    if (!may(m) || (send ? sent / kOneWay < received : received / kOneWay < sent)) continue;
    // One of a pair at most, so that no offer takes another's place; and most of what its destination receives, as reading from several
    // peers brings no more than what they write.
    const std::uint64_t all = send ? bytes_of(m.direction, [&](const Message& other) { return other.local == m.local; }) : received;
    if (m.bytes <= all / 4 * 3) continue;
    m.paths |= kFetched;
    any = true;
  }
  return any ? blocks : 0;
}

// The source counts on as many as it has itself, and cannot take its end back.
void reconsider_fetched(std::span<Message> messages, const LaunchLimits& limits, std::uint32_t expected) {
  if (3 * most_blocks(messages, limits) >= 2 * expected) return;
  for (Message& m : messages) {
    if (m.direction == Direction::receive) m.paths &= static_cast<std::uint8_t>(~kFetched);
  }
}

std::uint64_t moved_here(const Message& m) {
  const std::uint64_t begin = is_fetched(m) ? fetched_from(m.bytes) : m.bytes;
  return m.direction == Direction::send ? begin : m.bytes - begin;
}

}  // namespace railweave::cuda
