// What both kernels tell of an operation: that it has ended, in the ledger, or why it cannot, to the host.
#pragma once

#include "operation.hpp"

#ifdef __CUDACC__
#define RAILWEAVE_ROLE __device__ __forceinline__
#else
#define RAILWEAVE_ROLE inline
#endif

namespace railweave::cuda {

RAILWEAVE_ROLE Part whole_part(const OperationHeader& header, const Message* messages) {
  return {.state = &header.state->parts[0],
          .states = header.state->messages,
          .messages = messages,
          .count = header.count,
          .timeout_ns = header.timeout_ns,
          .link_MBps = header.link_MBps,
          .patience_ns = header.patience_ns,
          .send_warps = header.send_warps,
          .receive_warps = header.receive_warps,
          .warp_distance = header.warp_distance,
          .in_step_blocks = header.in_step_blocks,
          .in_step_KiB = header.in_step_KiB,
          .others = messages + header.count,
          .other_count = header.rails};
}
RAILWEAVE_ROLE Part packet_part(const OperationHeader& header, const Message* messages) {
  return {.state = &header.state->parts[0],
          .states = nullptr,
          .messages = messages,
          .count = header.packet_messages,
          .timeout_ns = header.timeout_ns,
          .others = messages + header.packet_messages,
          .other_count = header.count - header.packet_messages};
}
RAILWEAVE_ROLE Part part_in_trains(Part part, const Train* trains, std::uint32_t count) {
  part.trains = trains;
  part.count = count;
  return part;
}
RAILWEAVE_ROLE Part granted_part(const OperationHeader& header, const Message* messages) {
  return {.state = &header.state->parts[1],
          .states = header.state->messages,
          .messages = messages + header.packet_messages,
          .count = header.count - header.packet_messages,
          .timeout_ns = header.timeout_ns,
          .link_MBps = header.link_MBps,
          .patience_ns = header.patience_ns,
          .others = messages,
          .other_count = header.packet_messages};
}

RAILWEAVE_ROLE Part rail_part(const OperationHeader& header, const Message* messages) {
  return {.state = &header.state->parts[2],
          .states = nullptr,
          .messages = messages + header.count,
          .count = header.rails,
          .timeout_ns = header.timeout_ns,
          .others = messages,
          .other_count = header.count};
}

// Of Port::counts; not for rails.
RAILWEAVE_ROLE constexpr std::uint32_t count_at(Path path, Direction direction) {
  return 2 * static_cast<std::uint32_t>(path) + static_cast<std::uint32_t>(direction);
}

RAILWEAVE_ROLE bool sends(const Message& m) { return m.direction == Direction::send; }

RAILWEAVE_ROLE constexpr std::uint32_t account_of(Path path, bool captured) {
  return static_cast<std::uint32_t>(path) + (captured ? kPaths : 0);
}

// Of a message that reports. Nobody waits for these adds but the kernel's end.
template <typename Words>
RAILWEAVE_ROLE void report(Words& words, const Message& m) {
  Totals& totals = m.ledger->accounts[account_of(m.path, m.captured)].totals;
  words.add(&totals.completed, m.operation.completed);
  words.add(&totals.bytes_sent, m.operation.bytes_sent);
  words.add(&totals.bytes_received, m.operation.bytes_received);
}

// The same for packets, while the operation runs. `before`: messages of the account.
template <typename Words>
RAILWEAVE_ROLE void report_ahead(Words& words, const Message& m, std::uint64_t before) {
  Account& account = m.ledger->accounts[account_of(Path::packets, m.captured)];
  static_assert(offsetof(Account, totals) == sizeof account.newest && offsetof(Totals, completed) == 0);
  words.store_pair(&account.newest, m.operation.completed, before + m.operation.completed);
  words.add(&account.totals.bytes_sent, m.operation.bytes_sent);
  words.add(&account.totals.bytes_received, m.operation.bytes_received);
}

// Of a pair and direction, in the own port; nobody waits for this one either.
template <typename Words>
RAILWEAVE_ROLE void report_moved(Words& words, const Message& m, std::uint64_t bytes) {
  words.add(&m.local->moved_bytes[static_cast<std::uint32_t>(m.direction)], bytes);
}

// Of a message that begins: the communicator's operation before has ended. In no order with report_ahead() but that a block which adds
// itself to those that have begun has stored this long before, and the last of them waits for the answer to that add.
template <typename Words>
RAILWEAVE_ROLE void report_begin(Words& words, const Message& m) {
  for (const bool captured : {false, true}) words.store(&m.ledger->accounts[account_of(Path::packets, captured)].newest, std::uint64_t{0});
}

// Of a message that reports, in an operation of which any part was stopped: its communicator ends, and its host says so to the parts that
// have not heard.
template <typename Words>
RAILWEAVE_ROLE void tell_aborted(Words& words, const Message& m) {
  if (words.relaxed(&m.host->error) == 0) words.release(&m.host->error, static_cast<std::uint32_t>(KernelError::aborted));
}

// Of a message that reports, in an operation that was stopped: it counts for nothing, so each of its communicators has ended, and not only
// the one for which it was stopped. Its numbers would be used again by the next operation, which would find grants that were given to this
// one, and would be taken for it: so that one moves nothing.
template <typename Words>
RAILWEAVE_ROLE void give_up(Words& words, const Message& m) {
  for (std::uint32_t k = 0; k < m.ledger->mates * kCounts; ++k)
    words.store(&m.ledger->ports[k / kCounts].counts[k % kCounts].over, kNeverMoved);
  tell_aborted(words, m);
}

// What a block adds to PartState::left when it leaves, so that the last one knows whether all was done.
inline constexpr std::uint32_t kLeft = 1, kLeftStopped = 1u << 16 | 1u;
RAILWEAVE_ROLE constexpr std::uint32_t blocks_left(std::uint32_t left) { return left & 0xffff; }
RAILWEAVE_ROLE constexpr bool any_stopped(std::uint32_t left) { return left >> 16 != 0; }

// The first error of a communicator stays.
template <typename Words>
RAILWEAVE_ROLE void tell_error(Words& words, const Message& m, KernelError error) {
  if (words.relaxed(&m.host->error) != 0) return;
  words.store(&m.host->error_peer, m.peer);
  words.release(&m.host->error, static_cast<std::uint32_t>(error));
}
template <typename Words>
RAILWEAVE_ROLE void stop_operation(Words& words, PartState& state, const Message& m, KernelError error) {
  tell_error(words, m, error);
  words.store(&state.stopped, 1u);
}

}  // namespace railweave::cuda
