// Jobs of several ranks inside one test: each rank a thread, spread over emulated nodes that reach each other over loopback.
#pragma once

#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "railweave/engine/exchange.hpp"

namespace railweave::test {

// A fresh directory for a file rendezvous, removed at the end.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "railweave-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string rendezvous() const { return "file://" + path_.string(); }

 private:
  std::filesystem::path path_;
};

struct Shape {
  std::uint32_t nodes = 1;
  std::uint32_t ranks = 1;  // of each node
  std::uint32_t world() const { return nodes * ranks; }
};

// The libucx wheel of the project's virtual environment, where there is one (CMakeLists.txt); else the system's. Asked once, before any
// rank's thread loads it: UCX is told by the environment what to leave alone, which no other thread may read meanwhile.
inline const std::string& test_ucx_library() {
  static const std::string library = [] {
    const char* path = std::getenv("RAILWEAVE_UCX_LIBRARY");
    return std::string(path == nullptr ? "" : path);
  }();
  return library;
}

inline ExchangeSettings rank_settings(const Shape& shape, std::uint32_t rank, ExchangeSettings base = {}) {
  base.node_id = "node" + std::to_string(rank / shape.ranks);
  base.nics = "lo";
  // A busy machine may keep a node's threads from its CPUs for seconds; tests of deaths say themselves when they are due.
  base.bootstrap_ms = 120'000;
  if (base.death_ms == ExchangeSettings{}.death_ms) base.death_ms = 600'000;
  // Messages of some tens of KiB are to be moved in chunks.
  if (base.eager_bytes == ExchangeSettings{}.eager_bytes) base.eager_bytes = 16u << 10;
  base.ucx_library = test_ucx_library();
  return base;
}

// Runs `body` on every rank in a thread of its own; throws what the first failing rank threw. No rank closes before all bodies have
// ended: a rank that has left relays nothing.
inline void run_job(const Shape& shape, const ExchangeSettings& base, const std::function<void(Exchange&)>& body,
                    const std::optional<Fabric>& fabric = std::nullopt) {
  const ScratchDirectory directory;
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  std::barrier bodies_ended(shape.world());
  const auto note = [&] {
    const std::lock_guard lock(mutex);
    if (!failure) failure = std::current_exception();
  };
  for (std::uint32_t rank = 0; rank < shape.world(); ++rank) {
    threads.emplace_back([&, rank] {
      std::optional<Exchange> exchange;
      try {
        exchange.emplace(rank, shape.world(), directory.rendezvous(), rank_settings(shape, rank, base), fabric);
        body(*exchange);
      } catch (...) {
        note();
      }
      bodies_ended.arrive_and_wait();
      if (exchange) exchange->close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// Byte `at` of the message `tag`: any two messages, and any two places of one, differ somewhere near.
inline std::byte pattern(std::uint64_t tag, std::uint64_t at) {
  std::uint64_t x = tag * 0x9E3779B97F4A7C15ull + (at >> 3) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 31;
  return static_cast<std::byte>(x >> ((at & 7) * 8));
}

inline void fill(std::byte* data, std::uint64_t bytes, std::uint64_t tag) {
  for (std::uint64_t i = 0; i < bytes; ++i) data[i] = pattern(tag, i);
}

// Position of the first wrong byte, or `bytes`.
inline std::uint64_t first_wrong(const std::byte* data, std::uint64_t bytes, std::uint64_t tag) {
  for (std::uint64_t i = 0; i < bytes; ++i) {
    if (data[i] != pattern(tag, i)) return i;
  }
  return bytes;
}

inline std::uint64_t tag_of(std::uint32_t source, std::uint32_t destination, std::uint64_t round) {
  return (std::uint64_t{source} << 48) ^ (std::uint64_t{destination} << 32) ^ round;
}

}  // namespace railweave::test
