// A mate's book, and the mappings of its buffers here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "../engine/shared_memory.hpp"
#include "book_page.hpp"
#include "extent_book.hpp"

namespace railweave::cuda {

// What the book needs of the GPU.
struct MappingTable {
  // Writes the table in device memory at an index, the name last: a kernel that reads it finds the base. In order with earlier writes.
  std::function<void(std::uint32_t index, Mapping mapping)> write;
  // Maps by an entry's handle; nothing where that is refused. None: a mate of this process, whose memory is reached where it lies.
  std::function<std::shared_ptr<void>(const void* handle)> open;
  // Runs `close`, which unmaps what `open` gave, while no kernel of this library runs on the device and none can begin; false: not now.
  // `quiet`: as the look found it. With `open`.
  std::function<bool(bool quiet, const std::function<void()>& close)> close_alone;
};

class MateBook {
 public:
  // `memory`: to map what the mate has in virtual memory, or none. `mate`: its name in remarks.
  MateBook(const engine::MemoryHandle& handle, MappingTable table, VirtualMemory* memory, const std::string& mate, Remarks& remarks);
  MateBook(const MateBook&) = delete;
  MateBook& operator=(const MateBook&) = delete;
  BookPage& page() const { return memory_.at<BookPage>(0); }

  // Counts of operations, for deciding when an old mapping is no longer in use.
  struct Progress {
    std::uint64_t enqueued;  // counted before their kernels can begin
    std::uint64_t completed;
    bool captured;  // operations may run that were not counted
    bool settled;   // the table's changes of earlier calls had taken effect before `enqueued` was read
    bool quiet;     // settled, and none ran at some time after that
  };
  // Whether mappings that have left the table are still kept: only then the last two matter.
  bool keeps_retired() const { return !retired_.empty(); }
  // Maps what is new, and puts it into the table; `mail` has come from this mate before the call. `left`: the mate has, or its process has
  // ended. Nobody withdraws its names any more, and nothing is sent to its buffers, so all of them are let go of.
  void follow(const Progress& progress, const std::vector<const Mail*>& mail = {}, bool left = false);

 private:
  struct Mapped {
    std::uint64_t number = 0;
    std::shared_ptr<const void> base;  // none: refused, or its descriptors are on their way
    BufferKind kind = BufferKind::ipc;
  };
  struct Retired {
    std::shared_ptr<const void> base;
    BufferKind kind;
    std::optional<std::uint64_t> enqueued;  // operations that may have found it in the table; none until the table's change has settled
  };
  void map(std::uint64_t number);
  // Lets go of those of which `over` says that no operation uses them.
  template <typename Over>
  void let_go(bool quiet, Over over);
  void retire(std::uint32_t index);

  engine::SharedMemory memory_;
  const MappingTable table_;
  std::optional<ExtentArrivals> arrivals_;
  std::uint64_t seen_ = kAbsoluteBuffer;
  std::unordered_map<std::uint32_t, Mapped> mapped_;  // by index in the table
  std::vector<Retired> retired_;
};

}  // namespace railweave::cuda
