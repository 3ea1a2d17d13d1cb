// Where the driver's calls are, asked of CUDA's runtime. Without anything else of the library, as benchmarks ask too.
#pragma once

#include <cuda_runtime_api.h>

namespace railweave::cuda {

// `since`: CUDA version that brought the call's form. None: the driver has no such call, or CUDA's error says more.
inline cudaError_t find_driver_call(const char* name, unsigned since, void** found) {
  *found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, found, since, cudaEnableDefault, &status);
#else
  // It finds the newest form that the toolkit knows. Up to 12.4 that is the one of `since` for all calls that are asked for.
  static_cast<void>(since);
  const cudaError_t error = cudaGetDriverEntryPoint(name, found, cudaEnableDefault, &status);
#endif
  if (status != cudaDriverEntryPointSuccess) *found = nullptr;
  return error;
}

}  // namespace railweave::cuda
