#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>
#include <utility>

#include "railweave/error.hpp"

namespace railweave::engine {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& hint) {
  const int error = errno;
  throw Error(what + ": " + std::generic_category().message(error) + (hint.empty() ? "" : "; " + hint));
}

std::string proc_path(pid_t pid, int fd) { return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd); }

constexpr const char* kMateHint =
    "ranks of one node must run in one PID namespace and under one user (RAILWEAVE_NODE_ID gives ranks that do not share memory different "
    "nodes)";

std::byte* map(int fd, std::uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes of shared memory", "lower chunk_bytes or slots_per_writer");
  return static_cast<std::byte*>(data);
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

SharedMemory SharedMemory::create(const std::string& name, std::uint64_t bytes) {
  SharedMemory memory;
  memory.fd_ = Fd(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!memory.fd_) fail("cannot create shared memory", "");
  if (::ftruncate(memory.fd_.get(), static_cast<off_t>(bytes)) != 0) {
    fail("cannot reserve " + std::to_string(bytes) + " bytes of shared memory", "lower chunk_bytes or slots_per_writer");
  }
  struct stat status {};
  if (::fstat(memory.fd_.get(), &status) != 0) fail("cannot inspect shared memory", "");
  memory.data_ = map(memory.fd_.get(), bytes);
  memory.bytes_ = bytes;
  memory.handle_ = {::getpid(), memory.fd_.get(), static_cast<std::uint64_t>(status.st_ino), bytes};
  return memory;
}

SharedMemory SharedMemory::open(const MemoryHandle& handle) {
  const std::string path = proc_path(handle.pid, handle.fd);
  SharedMemory memory;
  const Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) fail("cannot open the shared memory of process " + std::to_string(handle.pid) + " (" + path + ")", kMateHint);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("cannot inspect " + path, "");
  if (static_cast<std::uint64_t>(status.st_ino) != handle.inode || static_cast<std::uint64_t>(status.st_size) != handle.bytes) {
    throw Error(path + " is not the shared memory that process " + std::to_string(handle.pid) + " announced; " + kMateHint);
  }
  memory.data_ = map(fd.get(), handle.bytes);
  memory.bytes_ = handle.bytes;
  memory.handle_ = handle;
  return memory;
}

// Not by cutting it off: a mate that was stopped in the middle of a write would be killed by it.
void SharedMemory::discard() const noexcept {
  [[maybe_unused]] const auto done = ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_));
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), handle_(other.handle_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, bytes_);
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = other.bytes_;
    handle_ = other.handle_;
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Doorbell Doorbell::create() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) fail("cannot create a pipe", "raise the limit on open files (ulimit -n)");
  Doorbell bell;
  bell.read_ = Fd(fds[0]);
  bell.write_ = Fd(fds[1]);
  return bell;
}

Doorbell Doorbell::open(pid_t pid, int fd) {
  const std::string path = proc_path(pid, fd);
  Doorbell bell;
  bell.write_ = Fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
  if (!bell.write_) fail("cannot open the doorbell of process " + std::to_string(pid) + " (" + path + ")", kMateHint);
  return bell;
}

void Doorbell::ring() const noexcept {
  const char byte = 1;
  [[maybe_unused]] const auto written = ::write(write_.get(), &byte, 1);
}

void Doorbell::clear() const noexcept {
  char bytes[256];
  while (::read(read_.get(), bytes, sizeof bytes) > 0) {
  }
}

std::uint64_t now_ns() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000ull + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace railweave::engine
