// Virtual memory of a process' own: memfds in the place of a GPU's memory, mapped side by side into reserved addresses, as a driver does.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "railweave/error.hpp"
#include "virtual_memory.hpp"

namespace railweave::test {

class HostVirtualMemory final : public cuda::VirtualMemory {
 public:
  static constexpr std::uint64_t kChunk = 64u << 10;

  // --- What a program does.
  std::uint64_t create(std::uint64_t bytes, bool shareable = true, int device = 0) {
    engine::Fd fd(::memfd_create("chunk", MFD_CLOEXEC));
    if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) throw Error("no memory for a chunk");
    return keep(std::move(fd), shareable, device);
  }
  std::set<int> devices;  // that may touch what is mapped here

  // --- What the exchange does.
  std::optional<cuda::Chunk> retain(std::uint64_t address) override {
    const std::lock_guard lock(mutex_);
    auto at = mapped_.upper_bound(address);
    if (at == mapped_.begin()) return std::nullopt;
    --at;
    if (address >= at->first + at->second.bytes) return std::nullopt;
    ++memories_.at(at->second.handle).holders;
    return at->second;
  }
  void release(std::uint64_t handle) noexcept override {
    const std::lock_guard lock(mutex_);
    drop(handle);
  }
  cuda::Terms terms(std::uint64_t handle) override {
    const std::lock_guard lock(mutex_);
    const Memory& memory = memories_.at(handle);
    return {memory.device, memory.shareable ? "" : "it was not made to be shared"};
  }
  bool accessible(const cuda::Chunk&, int device) override { return devices.contains(device); }
  engine::Fd export_memory(std::uint64_t handle) override {
    const std::lock_guard lock(mutex_);
    return engine::Fd(::dup(memories_.at(handle).fd.get()));
  }
  std::uint64_t import_memory(const engine::Fd& fd) override {
    if (refuse_imports) throw Error("importing is refused");
    return keep(engine::Fd(::dup(fd.get())), true, 0);
  }
  std::uint64_t reserve(std::uint64_t bytes) override {
    void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw Error("no addresses");
    ++reserved;
    return reinterpret_cast<std::uint64_t>(at);
  }
  void unreserve(std::uint64_t base, std::uint64_t bytes) noexcept override {
    ::munmap(reinterpret_cast<void*>(base), bytes);
    --reserved;
  }
  void map(const cuda::Chunk& chunk) override {
    const std::lock_guard lock(mutex_);
    Memory& memory = memories_.at(chunk.handle);
    put(chunk, PROT_NONE, MAP_SHARED | MAP_FIXED, memory.fd.get());
    ++memory.holders;
    mapped_[chunk.base] = chunk;
  }
  void allow(std::uint64_t base, std::uint64_t bytes) override {
    if (::mprotect(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE) != 0) throw Error("cannot make it accessible");
  }
  void unmap(std::uint64_t base, std::uint64_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto at = mapped_.find(base);
    if (at == mapped_.end() || at->second.bytes != bytes) std::abort();
    put(at->second, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1);
    drop(at->second.handle);
    mapped_.erase(at);
  }

  // Handles that somebody holds, mappings, reservations.
  std::size_t handles() const {
    const std::lock_guard lock(mutex_);
    return memories_.size();
  }
  std::size_t mappings() const {
    const std::lock_guard lock(mutex_);
    return mapped_.size();
  }
  std::atomic<int> reserved = 0;
  std::atomic<bool> refuse_imports = false;

 private:
  struct Memory {
    engine::Fd fd;
    bool shareable;
    int device;
    int holders = 1;
  };

  // The least number that is free: as a driver may, it uses a handle again as soon as nobody holds it.
  std::uint64_t keep(engine::Fd fd, bool shareable, int device) {
    const std::lock_guard lock(mutex_);
    std::uint64_t handle = 1;
    while (memories_.contains(handle)) ++handle;
    memories_.emplace(handle, Memory{std::move(fd), shareable, device});
    return handle;
  }
  void drop(std::uint64_t handle) {
    if (--memories_.at(handle).holders == 0) memories_.erase(handle);
  }
  static void put(const cuda::Chunk& chunk, int protection, int flags, int fd) {
    if (::mmap(reinterpret_cast<void*>(chunk.base), chunk.bytes, protection, flags, fd, 0) == MAP_FAILED) throw Error("cannot map");
  }

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Memory> memories_;     // by handle
  std::map<std::uint64_t, cuda::Chunk> mapped_;  // by address
};

// A segment of addresses that a program fills with chunks, as PyTorch's expandable segments are.
class HostSegment {
 public:
  HostSegment(HostVirtualMemory& memory, std::size_t places, std::uint64_t chunk = HostVirtualMemory::kChunk)
      : memory_(memory), chunk_(chunk), handles_(places), base_(memory.reserve(places * chunk)) {}
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;
  ~HostSegment() {
    for (std::size_t place = 0; place < handles_.size(); ++place) {
      if (filled(place)) empty(place);
    }
    memory_.unreserve(base_, handles_.size() * chunk_);
  }
  void fill(std::size_t place, bool shareable = true, int device = 0) {
    handles_[place] = memory_.create(chunk_, shareable, device);
    memory_.map({at(place), chunk_, handles_[place]});
    memory_.allow(at(place), chunk_);
  }
  void empty(std::size_t place) {
    memory_.unmap(at(place), chunk_);
    memory_.release(std::exchange(handles_[place], 0));
  }
  bool filled(std::size_t place) const { return handles_[place] != 0; }
  std::size_t places() const { return handles_.size(); }
  std::uint64_t at(std::size_t place) const { return base_ + place * chunk_; }

 private:
  HostVirtualMemory& memory_;
  const std::uint64_t chunk_;
  std::vector<std::uint64_t> handles_;
  const std::uint64_t base_;
};

}  // namespace railweave::test
