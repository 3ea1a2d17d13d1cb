// The CUDA runtime's errors as exceptions, and scopes for a thread's current device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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

struct StreamDeleter {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<CUstream_st, StreamDeleter>;
// On the current device; waits for no other stream.
inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  return Stream(stream);
}

struct EventDeleter {
  void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, EventDeleter>;
inline Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  return Event(event);
}

// Host memory that kernels of the current device read and write at `address`, as long as `keep` lives.
struct PinnedMemory {
  std::shared_ptr<void> keep;
  std::uint64_t address = 0;
};
inline PinnedMemory pin(std::span<std::byte> memory, const std::string& what) {
  check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterMapped | cudaHostRegisterPortable),
        "pinning " + std::to_string(memory.size()) + " bytes of " + what);
  PinnedMemory pinned{std::shared_ptr<void>(memory.data(), [](void* data) {
    cudaHostUnregister(data);
    static_cast<void>(cudaGetLastError());
  })};
  void* device = nullptr;
  check(cudaHostGetDevicePointer(&device, memory.data(), 0), "mapping pinned slots for the GPU");
  pinned.address = reinterpret_cast<std::uint64_t>(device);
  return pinned;
}

// Makes a device current, and, while the scope lasts, allows this thread what a capture under way elsewhere forbids: our calls touch no
// stream that is being captured, except by queueing the operation itself.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check(cudaGetDevice(&before_), "asking for the current device");
    if (before_ != device) check(cudaSetDevice(device), "selecting device " + std::to_string(device));
    device_ = device;
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "relaxing the capture mode");
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    if (before_ != device_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  int device_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace railweave::cuda
