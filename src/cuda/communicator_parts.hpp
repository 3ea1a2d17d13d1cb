// What more than one file of the communicator needs.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "operation.hpp"

namespace railweave::cuda {

// A program may exit in a signal's handler, on a thread that holds the mutex.
inline std::unique_lock<std::mutex> lock_for_a_moment(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (int look = 0; !lock && look < 100; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock = std::unique_lock(mutex, std::try_to_lock);
  }
  return lock;
}

inline std::string name(Direction direction, std::uint64_t bytes, std::uint32_t peer) {
  return (direction == Direction::send ? "send of " : "receive of ") + std::to_string(bytes) + " bytes " +
         (direction == Direction::send ? "to" : "from") + " rank " + std::to_string(peer);
}

}  // namespace railweave::cuda
