// Why a device, or the driver, is not good enough. Decided from what CUDA says, without CUDA.
#pragma once

#include <cstdint>
#include <string>

namespace railweave::cuda {

// What CUDA says of a device.
struct DeviceFacts {
  std::string name;
  int major = 0;  // of its compute capability
};

// Empty: it can be served.
std::string device_refusal(int device, const DeviceFacts& facts);

// What is behind CUDA's error 35, which it gives without a driver and with an older one. `runtime`: the version that this build is of, as
// CUDA has it (12040 is 12.4). `library`: the driver's. Empty: neither is so.
std::string driver_refusal(int runtime, const char* library = "libcuda.so.1");
// The same for a driver that is there.
std::string version_refusal(int driver, int runtime);

// A driver of CUDA 12.0, with which the runtime of any CUDA 12 is content, launches no kernel with more than 4,096 bytes of parameters.
std::string parameters_refusal(int driver);

// An operation of more messages than a kernel's parameters hold has them in memory of a pool's. `messages`: of an all-to-all. Empty: it is
// not so large, or there are pools.
std::string lists_refusal(int device, bool has_pools, std::uint64_t messages);

// The variable, with its text, by which a user has switched peer access between GPUs off for NCCL; empty: none has. `lookup` gives a
// variable's text, or nullptr.
std::string no_peer_access(const char* (*lookup)(const char* name));

}  // namespace railweave::cuda
