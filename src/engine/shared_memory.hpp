// Memory that ranks of one node share: memfds, which mates open through /proc/PID/fd, so that nothing in the file system can be left
// behind by a crash and network namespaces do not matter.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace railweave::engine {

// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const noexcept { return fd_; }
  int release() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// How a mate finds a memfd of this process. `inode` guards against a descriptor number that was used again.
struct MemoryHandle {
  std::int32_t pid = 0;
  std::int32_t fd = -1;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(MemoryHandle) == 24);

class SharedMemory {
 public:
  SharedMemory() = default;
  // New zeroed memory of this process. Throws Error.
  static SharedMemory create(const std::string& name, std::uint64_t bytes);
  // A mate's memory. Throws Error saying what the mate's process did not allow.
  static SharedMemory open(const MemoryHandle& handle);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  const MemoryHandle& handle() const noexcept { return handle_; }
  // Of memory that create() made: gives the bytes back to the system, also those that mates keep mapped, where they read as zeros then.
  void discard() const noexcept;
  template <typename T>
  T& at(std::uint64_t offset) const {
    return *reinterpret_cast<T*>(data_ + offset);
  }

 private:
  Fd fd_;  // of the process that made it, for mates to open
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  MemoryHandle handle_;
};

// Wakes an engine thread of this node: a pipe, opened by mates through /proc/PID/fd.
class Doorbell {
 public:
  static Doorbell create();
  static Doorbell open(pid_t pid, int fd);
  // Writes a byte. A full pipe is as good as rung; a reader that is gone is noticed elsewhere.
  void ring() const noexcept;
  void clear() const noexcept;
  int read_fd() const noexcept { return read_.get(); }
  int write_fd() const noexcept { return write_.get(); }

 private:
  Fd read_, write_;
};

// CLOCK_MONOTONIC, one clock for all processes of a node.
std::uint64_t now_ns() noexcept;

}  // namespace railweave::engine
