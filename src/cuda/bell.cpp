#include "bell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <ctime>

namespace railweave::cuda {
namespace {

// Not FUTEX_PRIVATE_FLAG: other processes ring.
long futex(Bell& bell, int operation, std::uint32_t value, const timespec* at_most) {
  return ::syscall(SYS_futex, &bell.rings, operation, value, at_most, nullptr, 0);
}

}  // namespace

void ring(Bell& bell) noexcept {
  std::atomic_ref(bell.rings).fetch_add(1);
  futex(bell, FUTEX_WAKE, INT_MAX, nullptr);
}

std::uint32_t rings_of(Bell& bell) noexcept { return std::atomic_ref(bell.rings).load(); }

void wait_for_ring(Bell& bell, std::uint32_t heard, std::chrono::nanoseconds at_most) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec time{seconds.count(), (at_most - seconds).count()};
  futex(bell, FUTEX_WAIT, heard, &time);  // a signal ends it early, which is a look too many
}

}  // namespace railweave::cuda
