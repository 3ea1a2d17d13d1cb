// Receives into memory that mates cannot map: into a buffer of the library's, which they can, and from there by copies behind the
// operation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace railweave::cuda {

// The operations of a communicator run one after another, so one buffer does for all of them. wanted() and provide() are called by the
// thread that maps, as making memory may wait for others' calls of the driver; want() by any; the rest by the one that queues operations.
class Staging {
 public:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::uint64_t bytes;
  };

  // `bytes`: of the buffer, which is made when it is first wanted; 0: never.
  explicit Staging(std::uint64_t bytes) : bytes_(bytes) {}

  // A new operation: all room is free again.
  void begin();
  // Asks for the buffer. Whether this call was the first to.
  bool want();
  // Where a message to `data` is received instead, in the same place between 256-byte boundaries; null: no buffer yet, or no room left in
  // it.
  std::byte* place(std::byte* data, std::uint64_t bytes);
  // To queue behind the operation. Messages that lie side by side are one copy.
  std::span<const Copy> copies() const { return copies_; }

  std::uint64_t bytes() const { return bytes_; }
  // What place() refuses did not fit.
  bool full() const { return bytes_ == 0 || (provided_ && memory_ != nullptr); }
  // Asked for, and not provided yet.
  bool wanted() const { return wanted_ && !provided_; }
  // Of bytes(), aligned to 256; null: there is none, and none will be asked for.
  void provide(std::shared_ptr<std::byte> memory);

 private:
  const std::uint64_t bytes_;
  std::atomic<bool> wanted_ = false, provided_ = false;
  std::shared_ptr<std::byte> memory_;  // set before provided_
  std::uint64_t taken_ = 0;
  std::vector<Copy> copies_;
};

}  // namespace railweave::cuda
