// DeviceScope over stand-ins for the calls of CUDA's runtime and driver that it makes: which context is current to the thread, and which
// devices were ever given one.
#include "device.hpp"

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>

namespace {

// As one runtime of a process has it: the device that it selected counts where the driver has no context.
CUcontext context = nullptr;
int selected = 0;
std::set<int> started;

CUcontext primary_context(int device) { return reinterpret_cast<CUcontext>(std::uintptr_t{100} + static_cast<std::uintptr_t>(device)); }
int device_of(CUcontext of) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(of) % 100); }

CUresult get_current(CUcontext* current) {
  *current = context;
  return CUDA_SUCCESS;
}
CUresult set_current(CUcontext current) {
  context = current;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {
cudaError_t cudaSetDevice(int device) {
  started.insert(device);
  selected = device;
  context = primary_context(device);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = context == nullptr ? selected : device_of(context);
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
#else
cudaError_t cudaGetDriverEntryPoint(const char* name, void** found, unsigned long long, cudaDriverEntryPointQueryResult* status) {
#endif
  *found = std::strcmp(name, "cuCtxGetCurrent") == 0 ? reinterpret_cast<void*>(&get_current) : reinterpret_cast<void*>(&set_current);
  *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int*) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return ""; }
}

namespace {

using railweave::cuda::DeviceScope;

TEST(DeviceScope, AThreadThatHadNoContextGetsNoneBackAndNoneOnGpu0) {
  context = nullptr;
  started.clear();
  for (int again = 0; again < 2; ++again) {
    {
      const DeviceScope scope(3);
      EXPECT_EQ(context, primary_context(3));
    }
    EXPECT_EQ(context, nullptr);
  }
  EXPECT_EQ(started, std::set<int>{3});
}

TEST(DeviceScope, AContextOfAnotherDeviceIsPutBackAsItWas) {
  const auto another = reinterpret_cast<CUcontext>(std::uintptr_t{201});  // of device 1, and not its primary one
  context = another;
  {
    const DeviceScope scope(3);
    EXPECT_EQ(context, primary_context(3));
    {
      const DeviceScope inner(2);
      EXPECT_EQ(context, primary_context(2));
    }
    EXPECT_EQ(context, primary_context(3));
  }
  EXPECT_EQ(context, another);
}

TEST(DeviceScope, AContextOfTheDeviceStays) {
  const auto own = reinterpret_cast<CUcontext>(std::uintptr_t{201});
  context = own;
  {
    const DeviceScope scope(1);
    EXPECT_EQ(context, own);
  }
  EXPECT_EQ(context, own);
}

}  // namespace
