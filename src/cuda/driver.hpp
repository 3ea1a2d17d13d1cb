// The driver's calls. It is not linked, so that the library loads where there is none.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "device_error.hpp"

namespace railweave::cuda {

// `since`: CUDA version that brought the call. Throws DeviceError where the driver has none.
template <typename Function>
Function driver_call(const char* name, unsigned since) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  const std::string what = std::string("asking the driver for ") + name;
  check(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &status), what);
  if (found == nullptr || status != cudaDriverEntryPointSuccess) throw DeviceError(what + ": it has no such call");
  return reinterpret_cast<Function>(found);
}

}  // namespace railweave::cuda
