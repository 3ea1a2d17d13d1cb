// The driver's calls. It is not linked, so that the library loads where there is none.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "device_error.hpp"
#include "driver_entry.hpp"

namespace railweave::cuda {

// `since`: CUDA version that brought the call. Throws DeviceError where the driver has none.
template <typename Function>
Function driver_call(const char* name, unsigned since) {
  void* found = nullptr;
  const std::string what = std::string("asking the driver for ") + name;
  check(find_driver_call(name, since, &found), what);
  if (found == nullptr) throw DeviceError(what + ": it has no such call");
  return reinterpret_cast<Function>(found);
}

}  // namespace railweave::cuda
