// What CUDA gives and takes back as objects: streams, events, pinned memory; and scopes for a thread's current device.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "device_error.hpp"
#include "driver.hpp"

namespace railweave::cuda {

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

// What was queued before it was recorded last.
inline bool is_over(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) static_cast<void>(cudaGetLastError());  // a launch would tell of it
  return status == cudaSuccess;
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
//
// What it puts back is the driver's context, which all copies of the runtime in a process share: none where there was none. To select what
// this copy calls the current device then, GPU 0 on a new thread, would give each rank of a node a context there (since CUDA 12), and make
// it the current device of a program whose own copy has selected another and not used it yet.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    // Fails where the driver has not been started on: nothing is current then.
    if (contexts().get(&before_) != CUDA_SUCCESS) before_ = nullptr;
    int current = 0;
    if (before_ != nullptr) check(cudaGetDevice(&current), "asking for the current device");
    if (before_ == nullptr || current != device) {
      check(cudaSetDevice(device), "selecting device " + std::to_string(device));
      selected_ = true;
    }
    const cudaError_t relaxed = cudaThreadExchangeStreamCaptureMode(&mode_);
    if (relaxed != cudaSuccess && selected_) contexts().set(before_);  // nobody else will
    check(relaxed, "relaxing the capture mode");
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    if (selected_) contexts().set(before_);
  }

 private:
  struct Contexts {
    PFN_cuCtxGetCurrent_v4000 get = driver_call<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent", 4000);
    PFN_cuCtxSetCurrent_v4000 set = driver_call<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent", 4000);
  };
  static const Contexts& contexts() {
    static const Contexts calls;
    return calls;
  }

  CUcontext before_ = nullptr;
  bool selected_ = false;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace railweave::cuda
