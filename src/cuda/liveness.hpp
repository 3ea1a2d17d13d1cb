// What ranks of a node say of themselves in memory that their mates map, and what a rank concludes when one of them fails or dies.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace railweave::cuda {

// What ended a communicator.
struct Failure {
  std::string text;
  std::optional<std::uint32_t> dead_rank;  // or one that has left, and is waited for
  bool damaged = false;                    // bytes arrived that nobody sent
  // One that lives, has failed, been aborted or left, and is waited for. Mates do not hear of it as of a death.
  std::optional<std::uint32_t> lost_rank = std::nullopt;
};

// As the exception that it is for who uses the communicator: RankDied where another rank ended it, however it did, TransportError for
// damage, ExchangeError for what was ended here.
[[noreturn]] void throw_failure(const Failure& failure);

// The boot in an identity that the system gave (engine::node_identity), by which PID namespaces of one machine are found; empty where
// RAILWEAVE_NODE_ID gave it.
std::string boot_of(const std::string& identity);
// What to add to "runs on another node" when that node is this machine. Identities are those of engine::node_identity: they end with the
// PID namespace, by whose numbers ranks find each other's memory.
std::string other_namespace(const std::string& theirs, const std::string& mine);

// One writer: the rank that it is about.
struct Liveness {
  std::uint32_t failed;   // kWell; else its communicator has ended: by an error or abort, or because of a death
  std::uint32_t leaving;  // no kernel of this rank will touch anything any more; if it is well, all that it had queued has ended
  std::uint32_t rests;    // it has failed, and no kernel of this rank writes into other ranks' buffers any more
};
inline constexpr std::uint32_t kWell = 0, kFailed = 1, kDeathOf = 2;  // kDeathOf + r: rank r has died

struct Mate {
  std::uint32_t rank;
  Liveness* life;
  int pidfd;  // -1: a rank of this process
};

// The first failure that is told stays.
void tell_failure(Liveness& own, const Failure& failure);
void tell_leaving(Liveness& own);
void tell_rest(Liveness& own);
// No kernel of that rank touches anything any more: it said so, or its process has ended.
bool has_left(const Mate& mate);
// The same, and nothing that it had queued was lost.
bool has_left_well(const Mate& mate);

// No kernel of that rank writes into other ranks' buffers any more: it says so, or its process has died, `settled`: some time ago.
bool rests(const Mate& mate, bool settled);

// Why the communicator cannot go on, or nothing. A death goes before the failures that it causes: when a rank dies each of its mates fails,
// and a mate that has seen the death a moment earlier must not hide it from the others.
std::optional<Failure> find_failure(std::span<const Mate> mates);

}  // namespace railweave::cuda
