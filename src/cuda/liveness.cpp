#include "liveness.hpp"

#include <poll.h>

#include <atomic>

namespace railweave::cuda {
namespace {

std::uint32_t load(const std::uint32_t& word) { return std::atomic_ref(const_cast<std::uint32_t&>(word)).load(std::memory_order_acquire); }

bool has_exited(int pidfd) {
  if (pidfd < 0) return false;
  pollfd poll{pidfd, POLLIN, 0};
  return ::poll(&poll, 1, 0) == 1;
}

Failure death_of(std::uint32_t rank) { return {"rank " + std::to_string(rank) + " has died", rank}; }

}  // namespace

std::string other_namespace(const std::string& theirs, const std::string& mine) {
  const std::size_t place = mine.rfind(' ');
  if (place == std::string::npos || theirs.compare(0, place, mine, 0, place) != 0) return "";
  return ", or in another PID namespace of this one (start containers in one: --pid=host, shareProcessNamespace)";
}

void tell_failure(Liveness& own, const Failure& failure) {
  std::uint32_t well = kWell;
  const std::uint32_t said = failure.dead_rank ? kDeathOf + *failure.dead_rank : kFailed;
  std::atomic_ref(own.failed).compare_exchange_strong(well, said, std::memory_order_acq_rel);
}

void tell_leaving(Liveness& own) { std::atomic_ref(own.leaving).store(1, std::memory_order_release); }

bool has_left(const Mate& mate) { return load(mate.life->leaving) != 0 || has_exited(mate.pidfd); }

// From the least doubtful to the most: a rank that died well; one that a mate names; one that died after it had failed, or a failure.
std::optional<Failure> find_failure(std::span<const Mate> mates) {
  std::optional<Failure> named, dead, failed;
  for (const Mate& mate : mates) {
    // A rank says that it leaves before its process ends, so this order of looks finds no death in an orderly end.
    const bool gone = has_exited(mate.pidfd) && load(mate.life->leaving) == 0;
    const std::uint32_t said = load(mate.life->failed);
    if (gone && said == kWell) return death_of(mate.rank);
    if (said >= kDeathOf && !named) named = death_of(said - kDeathOf);
    if (gone && !dead) dead = death_of(mate.rank);
    if (said == kFailed && !failed) failed = Failure{"rank " + std::to_string(mate.rank) + "'s side of the communicator has failed", {}};
  }
  if (named) return named;
  return dead ? dead : failed;
}

}  // namespace railweave::cuda
