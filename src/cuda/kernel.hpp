// The exchange kernels, as the host sees them.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <span>
#include <utility>
#include <vector>

#include "operation.hpp"
#include "prepare.hpp"

namespace railweave::cuda {

// What the current device can do with them.
struct KernelTraits {
  std::uint32_t processors = 0;           // SMs
  std::uint32_t most_cluster_blocks = 1;  // where packets have their own: blocks that begin together or not at all
  bool measured = false;                  // of the architecture whose rates are the defaults of gpu_pair_rate and gpu_block_rate: Hopper
  bool programmatic = false;              // a kernel's launch may overlap the end of the one before it
  // By kernel: what the driver launches. Through the runtime an operation takes 0.4 us more (docs/cuda-measured.md).
  std::vector<std::pair<const void*, CUfunction>> functions;
  cudaMemPool_t pool = nullptr;  // for lists of messages; none: the device has no pools
};

// Loads the kernels into the current device's context, so that no launch has to wait for that.
KernelTraits preload_kernels();

// Queues one operation; the messages are copied into the launch.
cudaError_t launch(const OperationHeader& header, std::span<const Message> messages, const Plan& plan, const KernelTraits& traits,
                   cudaStream_t stream);

}  // namespace railweave::cuda
