// What a rank tells its mates outside the kernels, in host memory that they map: that it is alive and well, and which buffers grants and
// offers may name. One writer but of the bell, any number of readers, no locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "bell.hpp"
#include "liveness.hpp"
#include "operation.hpp"

namespace railweave::cuda {

// How mates map a buffer.
enum class BufferKind : std::uint32_t {
  ipc,      // by the handle of the entry (cudaIpcOpenMemHandle)
  virtual_  // by file descriptors that come to their mailboxes (extent_book.hpp)
};

struct BookPage {
  struct Entry {
    std::uint64_t buffer;  // 0: being written, or withdrawn
    BufferKind kind;
    std::uint32_t reserved;
    std::uint64_t handle[8];  // a cudaIpcMemHandle_t
  };
  Liveness life;
  Bell bell;                 // what wakes this rank's threads; mates ring it
  std::uint64_t newest;      // number of the newest entry; the first one is kAbsoluteBuffer + 1
  Entry entries[kMappings];  // buffer n at n % kMappings
};

// Buffers, and pieces of those in virtual memory, at which the mapping thread looks for what was freed, for each millisecond between its
// looks. A piece is three calls of the driver, so some 24,000 calls a second at most.
inline constexpr std::size_t kLooksPerMs = 8;

// The entry of buffer `number`, or what has taken its place.
inline BookPage::Entry& entry_of(BookPage& page, std::uint64_t number) { return page.entries[number % kMappings]; }
inline bool is_listed(BookPage& page, std::uint64_t number) { return std::atomic_ref(entry_of(page, number).buffer).load() == number; }

// Lists one more buffer, in the place of the oldest, and returns its number. `handle`: 64 bytes, or none.
std::uint64_t list_buffer(BookPage& page, BufferKind kind, const void* handle);
// What the entry of buffer `number` says; nothing where it is another's, or becomes that while it is read.
struct Listing {
  BufferKind kind;
  std::uint64_t handle[8];
};
std::optional<Listing> read_listing(BookPage& page, std::uint64_t number);
// Unless its place has been taken.
void withdraw_buffer(BookPage& page, std::uint64_t number);

}  // namespace railweave::cuda
