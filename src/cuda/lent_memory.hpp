// Memory of a rank's GPU that its mates use, too.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

namespace railweave::cuda {

// What a mate needs to reach it.
struct LentHandle {
  std::uint64_t address;  // in its owner's process; 0: none is lent
  cudaIpcMemHandle_t memory;
};

struct LentMemory {
  std::shared_ptr<void> memory;
  LentHandle handle{};
};

// On the current device. Throws DeviceError, which names what it is for.
LentMemory lend(std::uint64_t bytes, const std::string& what);
// A mate's; from the same process it is used as it is, and stays until the last one has let go of it. Throws DeviceError.
std::shared_ptr<void> map_lent(const LentHandle& handle, bool same_process);

}  // namespace railweave::cuda
