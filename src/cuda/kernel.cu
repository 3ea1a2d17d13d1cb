#include <cstring>

#include "device_block.cuh"
#include "kernel.hpp"

namespace railweave::cuda {
namespace {

template <std::uint32_t Capacity>
struct Parameters {
  OperationHeader header;
  Message messages[Capacity];
};

// Most operations are small groups, and parameters cost launch time by the byte.
constexpr std::uint32_t kSmall = 16;
static_assert(sizeof(Parameters<kMaxMessages>) <= 32764);

template <std::uint32_t Capacity>
__global__ void __launch_bounds__(kThreads) exchange(const __grid_constant__ Parameters<Capacity> parameters) {
  DeviceBlock block;
  Roles<DeviceBlock>(block, parameters.header, parameters.messages).run();
}

template <std::uint32_t Capacity>
cudaError_t launch_sized(const OperationHeader& header, std::span<const Message> messages, std::uint32_t blocks, cudaStream_t stream) {
  Parameters<Capacity> parameters;
  parameters.header = header;
  std::memcpy(parameters.messages, messages.data(), messages.size_bytes());
  void* arguments[] = {&parameters};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&exchange<Capacity>), dim3(blocks), dim3(kThreads), arguments, 0, stream);
}

}  // namespace

cudaError_t preload_kernels() {
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, &exchange<kSmall>); error != cudaSuccess) return error;
  return cudaFuncGetAttributes(&attributes, &exchange<kMaxMessages>);
}

cudaError_t launch(const OperationHeader& header, std::span<const Message> messages, std::uint32_t blocks, cudaStream_t stream) {
  if (messages.size() <= kSmall) return launch_sized<kSmall>(header, messages, blocks, stream);
  return launch_sized<kMaxMessages>(header, messages, blocks, stream);
}

}  // namespace railweave::cuda
