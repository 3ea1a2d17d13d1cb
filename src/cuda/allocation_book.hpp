// Names of buffers that whole allocations are (cudaMalloc's), which mates map by an IPC handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "book_page.hpp"

namespace railweave::cuda {

// Calls may run beside each other.
class AllocationBook {
 public:
  // `id_at`: CUDA's buffer id of what is allocated at an address now, which no two allocations share; 0: nothing.
  using IdAt = std::function<std::uint64_t(std::uint64_t address)>;
  AllocationBook(BookPage& page, IdAt id_at);

  // The name of an allocation that is listed.
  std::optional<std::uint64_t> find(std::uint64_t id);
  // Lists one. `handle`: 64 bytes.
  std::uint64_t list(std::uint64_t id, std::uint64_t base, const void* handle);
  // Withdraws what its program has given back, so that mates let go of it: until then the GPU's memory is not free. Looks at so many at
  // most, the next time at those behind them. Whether there was any.
  bool look_for_freed(std::size_t most);

 private:
  struct Listed {
    std::uint64_t id, base;
  };
  // Under mutex_.
  void forget(std::uint64_t number);

  BookPage& page_;
  const IdAt id_at_;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint64_t> names_;  // id → number
  std::map<std::uint64_t, Listed> listed_;                  // by number
  std::uint64_t looked_at_ = 0;
};

}  // namespace railweave::cuda
