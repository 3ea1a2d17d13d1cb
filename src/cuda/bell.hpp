// What wakes the threads of a rank that look around now and then: a word of its page that mates ring, in other processes too.
#pragma once

#include <chrono>
#include <cstdint>

namespace railweave::cuda {

struct Bell {
  std::uint32_t rings;
};

void ring(Bell& bell) noexcept;
// To be asked before the look that the next wait follows: what rings during the look ends that wait at once.
std::uint32_t rings_of(Bell& bell) noexcept;
// Until it has rung since `heard`, or the time is over.
void wait_for_ring(Bell& bell, std::uint32_t heard, std::chrono::nanoseconds at_most) noexcept;

}  // namespace railweave::cuda
