// A program with allocations.cpp counts its allocations, and can be refused memory.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace railweave::testing::allocations {

// So far, on all threads.
std::size_t count() noexcept;
// From now on the thread (0: any) is refused memory: `most` times, after it was given it `after` times. Replaces what was asked for before.
void refuse(pid_t thread, int after, int most) noexcept;
int refused() noexcept;  // so often
void give_again() noexcept;

}  // namespace railweave::testing::allocations
