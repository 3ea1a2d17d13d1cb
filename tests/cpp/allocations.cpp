#include "allocations.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr pid_t kNobody = -1;

std::atomic<std::size_t> made{0};
std::atomic<pid_t> refused_thread{kNobody};
std::atomic<int> left{0}, refusals{0}, times_refused{0};

bool is_refused() noexcept {
  const pid_t thread = refused_thread;
  if (thread == kNobody || (thread != 0 && thread != ::gettid()) || --left >= 0 || --refusals < 0) return false;
  ++times_refused;
  return true;
}

void* allocate(std::size_t size) noexcept {
  ++made;
  return is_refused() ? nullptr : std::malloc(size == 0 ? 1 : size);
}

void* allocate_or_throw(std::size_t size) {
  if (void* const memory = allocate(size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return allocate_or_throw(size); }
void* operator new[](std::size_t size) { return allocate_or_throw(size); }
// std::stable_sort asks without exceptions; its memory comes back through the same operator delete.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace railweave::testing::allocations {

std::size_t count() noexcept { return made; }

void refuse(pid_t thread, int after, int most) noexcept {
  refused_thread = kNobody;
  left = after;
  refusals = most;
  times_refused = 0;
  refused_thread = thread;
}

int refused() noexcept { return times_refused; }

void give_again() noexcept { refused_thread = kNobody; }

}  // namespace railweave::testing::allocations
