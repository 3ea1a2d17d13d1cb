// What has ended, and what a message waits for, read from copies of a communicator's ledger and of its ports' words. docs/cuda.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ending.hpp"

namespace railweave::cuda {

// The words of a port: all in front of its packets.
inline constexpr std::size_t kPortWordsBytes = offsetof(Port, packets);
static_assert(kPortWordsBytes <= 12 << 10);

// Unless the newest operation is known to have ended: its messages are in the totals and in the ports' counts already.
inline bool is_ahead(const Ledger& ledger) {
  return (ledger.accounts[account_of(Path::packets, false)].newest | ledger.accounts[account_of(Path::packets, true)].newest) != 0;
}
// Messages that have ended, and the bytes of these and of such.
inline Totals ended_of(const Ledger& ledger, Path path, bool captured) {
  const Account& account = ledger.accounts[account_of(path, captured)];
  Totals totals = account.totals;
  totals.completed -= account.newest;
  return totals;
}
// Where that is known.
inline void forget_newest(Ledger& ledger) {
  for (Account& account : ledger.accounts) account.newest = 0;
}

struct Waiting {
  Direction direction;
  Path path;
  std::uint32_t peer;
  std::uint64_t bytes;
  std::uint64_t before;  // messages (granted) or packets of this pair, direction and path that are under way before it
};

// `port`: a copy of this rank's for the peer, of which only the words are read. `ahead`: see is_ahead().
std::string waiting_text(const Waiting& message, const Port& port, bool ahead);

// Whether a peer that will queue nothing any more, and all of whose operations have ended, has queued no message for this one to meet.
// `port` as above; `peers`: a copy of the peer's for this rank, whose counts are final.
bool is_unmatched(const Waiting& message, const Port& port, bool ahead, const Port& peers);

}  // namespace railweave::cuda
