// The exchange kernel, as the host sees it.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "operation.hpp"

namespace railweave::cuda {

// Loads the kernels into the current device's context, so that no launch has to wait for that.
cudaError_t preload_kernels();

// Queues one operation; the messages are copied into the launch.
cudaError_t launch(const OperationHeader& header, std::span<const Message> messages, std::uint32_t blocks, cudaStream_t stream);

}  // namespace railweave::cuda
