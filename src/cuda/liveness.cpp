#include "liveness.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>

#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

std::uint32_t load(const std::uint32_t& word) { return std::atomic_ref(const_cast<std::uint32_t&>(word)).load(std::memory_order_acquire); }

bool has_exited(int pidfd) {
  if (pidfd < 0) return false;
  pollfd poll{pidfd, POLLIN, 0};
  return ::poll(&poll, 1, 0) == 1;
}

Failure death_of(std::uint32_t rank) { return {"rank " + std::to_string(rank) + " has died", rank}; }

// Of a rank that a mate could not do without.
Failure loss_of(std::uint32_t rank, std::span<const Mate> mates) {
  const bool left = std::any_of(mates.begin(), mates.end(), [rank](const Mate& mate) { return mate.rank == rank && has_left_well(mate); });
  return left ? Failure{"rank " + std::to_string(rank) + " has left, and another rank waits for it", rank} : death_of(rank);
}

}  // namespace

void throw_failure(const Failure& failure) {
  if (failure.dead_rank) throw RankDied(*failure.dead_rank, failure.text);
  if (failure.lost_rank) throw RankDied(*failure.lost_rank, failure.text);
  if (failure.damaged) throw TransportError(failure.text);
  throw ExchangeError(failure.text);
}

// Host name, boot, PID namespace; containers have host names of their own.
std::string boot_of(const std::string& identity) {
  const std::size_t last = identity.rfind(' ');
  if (last == std::string::npos || last == 0) return {};
  const std::size_t before = identity.rfind(' ', last - 1);
  return before == std::string::npos ? std::string() : identity.substr(before + 1, last - before - 1);
}

std::string other_namespace(const std::string& theirs, const std::string& mine) {
  const std::string boot = boot_of(mine);
  if (boot.empty() || boot_of(theirs) != boot) return "";
  return ", or in another PID namespace of this one (start containers in one: --pid=host, shareProcessNamespace)";
}

void tell_failure(Liveness& own, const Failure& failure) {
  std::uint32_t well = kWell;
  const std::uint32_t said = failure.dead_rank ? kDeathOf + *failure.dead_rank : kFailed;
  std::atomic_ref(own.failed).compare_exchange_strong(well, said, std::memory_order_acq_rel);
}

void tell_leaving(Liveness& own) { std::atomic_ref(own.leaving).store(1, std::memory_order_release); }

void tell_rest(Liveness& own) { std::atomic_ref(own.rests).store(1, std::memory_order_release); }

bool rests(const Mate& mate, bool settled) {
  return load(mate.life->rests) != 0 || load(mate.life->leaving) != 0 || (settled && has_exited(mate.pidfd));
}

bool has_left(const Mate& mate) { return load(mate.life->leaving) != 0 || has_exited(mate.pidfd); }

bool has_left_well(const Mate& mate) { return load(mate.life->leaving) != 0 && load(mate.life->failed) == kWell; }

// From the least doubtful to the most: a rank that died well; one that a mate names; one that died after it had failed, or a failure.
std::optional<Failure> find_failure(std::span<const Mate> mates) {
  std::optional<Failure> named, dead, failed;
  for (const Mate& mate : mates) {
    // A rank says that it leaves before its process ends, so this order of looks finds no death in an orderly end.
    const bool gone = has_exited(mate.pidfd) && load(mate.life->leaving) == 0;
    const std::uint32_t said = load(mate.life->failed);
    if (gone && said == kWell) return death_of(mate.rank);
    if (said >= kDeathOf && !named) named = loss_of(said - kDeathOf, mates);
    if (gone && !dead) dead = death_of(mate.rank);
    if (said == kFailed && !failed)
      failed = Failure{"rank " + std::to_string(mate.rank) + "'s side of the communicator has failed", {}, false, mate.rank};
  }
  if (named) return named;
  return dead ? dead : failed;
}

}  // namespace railweave::cuda
