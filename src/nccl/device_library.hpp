// librailweave_cuda.so, loaded when the first communicator asks whether it can be served.
#pragma once

#include <string>

#include "nccl_abi.hpp"
#include "railweave/cuda.h"

namespace railweave::nccl {

struct DeviceLibrary {
  const railweave_cuda_api* api = nullptr;  // nullptr: there is none
  std::string reason;                       // why not
};

const DeviceLibrary& device_library();

// What it says of this thread's last operation, where operations are logged.
std::string& explained();

// What NCCL would have said.
ncclResult_t to_nccl(railweave_status status);

}  // namespace railweave::nccl
