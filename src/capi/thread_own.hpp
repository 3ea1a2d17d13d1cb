// What the libraries that programs load keep for each thread.
#pragma once

#include <utility>

namespace railweave::capi {

// The thread's own T, freed when the thread ends. Programs call from the destructors of static objects too, when the main thread's
// thread_local ones are gone: from then on the thread has another T, which is never freed. `Tag` tells several of one type apart.
template <typename T, typename Tag = T>
T& thread_own() {
  static thread_local T* own = nullptr;  // both without a destructor, so good for as long as the thread runs
  static thread_local bool ended = false;
  struct End {
    ~End() {
      ended = true;
      delete std::exchange(own, nullptr);
    }
  };
  if (own == nullptr) {
    own = new T();
    if (!ended) {
      static thread_local End end;
      static_cast<void>(end);
    }
  }
  return *own;
}

}  // namespace railweave::capi
