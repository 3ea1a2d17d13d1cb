// What the exchange needs of a driver's virtual memory: memory that programs create in pieces and map to addresses of their choice
// (cuMemCreate, cuMemMap; so do PyTorch's expandable segments and ncclMemAlloc).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "../engine/shared_memory.hpp"

namespace railweave::cuda {

// A piece of memory, mapped as a whole.
struct Chunk {
  std::uint64_t base;
  std::uint64_t bytes;
  std::uint64_t handle;
};

// Of a chunk's memory.
struct Terms {
  int device = -1;      // whose memory it is
  std::string refusal;  // why other processes cannot have it as a file descriptor; empty where they can
};

// Calls may run beside each other. Those that fail throw Error with what the driver said.
class VirtualMemory {
 public:
  virtual ~VirtualMemory() = default;

  // The mapping that `address` lies in, its handle retained; nothing where there is none. A handle that is retained names no other memory.
  virtual std::optional<Chunk> retain(std::uint64_t address) = 0;
  virtual void release(std::uint64_t handle) noexcept = 0;
  virtual Terms terms(std::uint64_t handle) = 0;
  virtual bool accessible(const Chunk& chunk, int device) = 0;

  virtual engine::Fd export_memory(std::uint64_t handle) = 0;
  // A handle to be released.
  virtual std::uint64_t import_memory(const engine::Fd& fd) = 0;
  virtual std::uint64_t reserve(std::uint64_t bytes) = 0;
  virtual void unreserve(std::uint64_t base, std::uint64_t bytes) noexcept = 0;
  virtual void map(const Chunk& chunk) = 0;
  // Makes mapped addresses readable and writable to the own device.
  virtual void allow(std::uint64_t base, std::uint64_t bytes) = 0;
  virtual void unmap(std::uint64_t base, std::uint64_t bytes) noexcept = 0;
};

// The driver's, for mappings that `device` uses. Throws Error where it has none (before CUDA 11).
std::unique_ptr<VirtualMemory> make_virtual_memory(int device);

}  // namespace railweave::cuda
