// The CUDA runtime's errors as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "railweave/error.hpp"
#include "refusal.hpp"

namespace railweave::cuda {

// A CUDA call failed that should not have: out of memory, a lost device.
class DeviceError : public Error {
 public:
  using Error::Error;
};

inline std::string text_of(cudaError_t error) {
  int runtime = 0;
  if (error == cudaErrorInsufficientDriver && cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
    if (const std::string refusal = driver_refusal(runtime); !refusal.empty()) return refusal;
  }
  return cudaGetErrorString(error) + (" (CUDA error " + std::to_string(error) + ")");
}

inline void check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // not to be found again by the program
  throw DeviceError(what + ": " + text_of(error));
}

}  // namespace railweave::cuda
