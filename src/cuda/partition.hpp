// Parts of a device: a program may make streams whose kernels run on some of its SMs only (green contexts, since CUDA 12.4).
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "driver_entry.hpp"
#include "room.hpp"

namespace railweave::cuda {

#if CUDART_VERSION >= 12040
// SMs of a TPC, which a part always has together: all that is known where the driver does not say how many of its SMs lie in one GPC.
inline constexpr std::uint32_t kCoscheduled = 2;

// Throws nothing: a driver without such calls has no such streams.
template <typename Function>
Function driver_call_if_any(const char* name, unsigned since) {
  void* found = nullptr;
  if (find_driver_call(name, since, &found) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  return reinterpret_cast<Function>(found);
}

// What kernels on the stream may have of the device.
inline DeviceShare share_of(cudaStream_t stream, DeviceShare device) {
  static const auto context_of = driver_call_if_any<PFN_cuStreamGetGreenCtx_v12040>("cuStreamGetGreenCtx", 12040);
  static const auto resource_of = driver_call_if_any<PFN_cuGreenCtxGetDevResource_v12040>("cuGreenCtxGetDevResource", 12040);
  CUgreenCtx context = nullptr;
  if (context_of == nullptr || resource_of == nullptr || context_of(stream, &context) != CUDA_SUCCESS || context == nullptr) return device;
  CUdevResource part{};
  if (resource_of(context, &part, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS || part.sm.smCount == 0) return device;
  std::uint32_t together = kCoscheduled;
#if CUDART_VERSION >= 13000
  together = std::max(together, part.sm.smCoscheduledAlignment);
#endif
  device.processors = std::min(device.processors, part.sm.smCount);
  device.cluster = std::min(device.cluster, std::bit_floor(together));
  return device;
}
#else
inline DeviceShare share_of(cudaStream_t, DeviceShare device) { return device; }
#endif

}  // namespace railweave::cuda
