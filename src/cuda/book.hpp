// What a rank tells its mates outside the kernels, in host memory that they map: that it is alive and well, and the handles of its
// buffers. One writer, any number of readers, no locks.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../engine/shared_memory.hpp"
#include "liveness.hpp"
#include "operation.hpp"

namespace railweave::cuda {

struct BookPage {
  struct Entry {
    std::uint64_t buffer;  // 0 while it is being written
    cudaIpcMemHandle_t handle;
  };
  Liveness life;
  std::uint64_t newest;      // number of the newest entry; the first one is kAbsoluteBuffer + 1
  Entry entries[kMappings];  // buffer n at n % kMappings
};

// This rank's book.
class Book {
 public:
  Book();
  const engine::MemoryHandle& handle() const noexcept { return memory_.handle(); }
  BookPage& page() const { return memory_.at<BookPage>(0); }

  struct Place {
    BufferName remote{};  // for mates in other processes
    BufferName local{};   // for mates of this process
  };
  // Names the memory at `data`, and publishes its handle if it is new. kNoBuffer where it cannot be shared: host memory, pools, virtual
  // memory. A freed and reused address has another buffer id, so it never finds the old name.
  Place name(const void* data, std::uint64_t bytes);

 private:
  engine::SharedMemory memory_;
  std::unordered_map<std::uint64_t, std::uint64_t> names_;  // CUDA's buffer id → name
};

// A mate's book, and the mappings of its buffers here.
class MateBook {
 public:
  MateBook(const engine::MemoryHandle& handle, Mapping* table);
  MateBook(const MateBook&) = delete;
  MateBook& operator=(const MateBook&) = delete;
  ~MateBook();
  BookPage& page() const { return memory_.at<BookPage>(0); }

  // Maps what is new, and puts it into the table in device memory. `under_way`: counts of operations, for deciding when an old mapping is
  // no longer in use.
  struct Progress {
    std::uint64_t enqueued;
    std::uint64_t completed;
    bool captured;  // operations may run that were not counted: nothing is unmapped
  };
  void follow(cudaStream_t stream, const Progress& progress);

 private:
  void map(std::uint64_t number, cudaStream_t stream, const Progress& progress);
  void write_table(std::uint32_t index, Mapping mapping, cudaStream_t stream);

  struct Mapped {
    std::uint64_t number = 0;
    void* base = nullptr;
  };
  struct Retired {
    void* base;
    std::uint64_t enqueued;
  };
  engine::SharedMemory memory_;
  Mapping* table_;
  std::uint64_t seen_ = kAbsoluteBuffer;
  Mapped mapped_[kMappings];
  std::vector<Retired> retired_;
};

}  // namespace railweave::cuda
