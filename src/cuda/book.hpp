// This rank's book: the names and handles of its buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "../engine/shared_memory.hpp"
#include "allocation_book.hpp"
#include "book_page.hpp"
#include "extent_book.hpp"
#include "mailbox.hpp"
#include "virtual_memory.hpp"

namespace railweave::cuda {

class Book {
 public:
  explicit Book(Remarks& remarks);
  const engine::MemoryHandle& handle() const noexcept { return memory_.handle(); }
  BookPage& page() const { return memory_.at<BookPage>(0); }

  // From now on buffers in virtual memory have names as well.
  ExtentBook& add_extents(VirtualMemory& memory, std::uint32_t rank, std::vector<int> reached);

  struct Place {
    BufferName remote{};     // for mates in other processes
    BufferName local{};      // for mates of this process
    bool is_new = false;     // listed by this call
    bool on_device = false;  // lies in a GPU's memory
  };
  // Names the memory at `data`, and publishes its handle if it is new. kNoBuffer where it cannot be shared: host memory, pools, virtual
  // memory that was not made to be shared. A freed and reused address has another buffer id, so it never finds the old name. Calls may run
  // beside each other: allocators register memory on whatever thread allocates.
  // `which`: whole allocations alone cost no look at each chunk of virtual memory, and nothing is said of what cannot be shared.
  enum class Memory { any, whole_allocations };
  Place name(const void* data, std::uint64_t bytes, Memory which = Memory::any);
  // Withdraws names of memory that its program has given back: until mates let go of it, it is not free. Looks at so many allocations and
  // pieces. Whether there was any.
  bool look_for_freed(std::size_t most);

 private:
  Place find(const void* data, std::uint64_t bytes, Memory which);

  std::mutex mutex_;
  Remarks& remarks_;
  bool remarked_ = false;
  engine::SharedMemory memory_;
  AllocationBook allocations_;
  std::unique_ptr<ExtentBook> extents_;
};

}  // namespace railweave::cuda
