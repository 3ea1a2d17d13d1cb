// What both kernels tell the host: that an operation has ended, or why it cannot.
#pragma once

#include "operation.hpp"

#ifdef __CUDACC__
#define RAILWEAVE_ROLE __device__ __forceinline__
#else
#define RAILWEAVE_ROLE inline
#endif

namespace railweave::cuda {

RAILWEAVE_ROLE bool sends(const Message& m) { return m.direction == Direction::send; }

// Of a message that reports.
template <typename Words>
RAILWEAVE_ROLE Totals read_totals(Words& words, const Message& m) {
  return {words.relaxed(&m.totals->completed), words.relaxed(&m.totals->bytes_sent), words.relaxed(&m.totals->bytes_received)};
}

template <typename Words>
RAILWEAVE_ROLE void report(Words& words, const Message& m, const Totals& before) {
  const Totals now{before.completed + m.operation.completed, before.bytes_sent + m.operation.bytes_sent,
                   before.bytes_received + m.operation.bytes_received};
  *m.totals = now;
  words.store(&m.host->bytes_sent, now.bytes_sent);
  words.store(&m.host->bytes_received, now.bytes_received);
  words.store(&m.host->completed, now.completed);
}

// The first error of a communicator stays.
template <typename Words>
RAILWEAVE_ROLE void stop_operation(Words& words, OperationState& state, const Message& m, KernelError error) {
  if (words.relaxed(&m.host->error) == 0) {
    words.store(&m.host->error_peer, m.peer);
    words.release(&m.host->error, static_cast<std::uint32_t>(error));
  }
  words.store(&state.stopped, 1u);
}

}  // namespace railweave::cuda
