#include <cstring>

#include "checker.hpp"
#include "checksum.hpp"
#include "device.hpp"
#include "device_words.cuh"

namespace railweave::cuda {
namespace {

constexpr std::uint32_t kCheckThreads = 512;

struct Launched {
  std::uint32_t count;
  CheckedMessage messages[kCheckedPerLaunch];
};
static_assert(sizeof(Launched) <= 4096, "parameters of every architecture");

class DeviceThreads : public DeviceWords {
 public:
  __device__ __forceinline__ static std::uint32_t index() { return threadIdx.x; }
  __device__ __forceinline__ static std::uint32_t count() { return kCheckThreads; }
  __device__ static std::uint64_t total(std::uint64_t value) {
    __shared__ std::uint64_t parts[kCheckThreads / 32];
    for (std::uint32_t distance = 16; distance != 0; distance /= 2)
      value += __shfl_xor_sync(~0u, static_cast<unsigned long long>(value), distance);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    std::uint64_t sum = 0;
    for (const std::uint64_t part : parts) sum += part;
    return sum;
  }
  template <typename F>
  __device__ __forceinline__ static void first(F&& f) {
    if (threadIdx.x == 0) f();
  }
  __device__ __forceinline__ static void most(std::uint64_t* word, std::uint64_t value) {
    atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
};

__global__ void __launch_bounds__(kCheckThreads) make_sums(const __grid_constant__ Launched launched) {
  DeviceThreads threads;
  ChecksumRoles<DeviceThreads>(threads, launched.messages, launched.count).make(blockIdx.x);
}

__global__ void __launch_bounds__(kCheckThreads) compare_sums(const __grid_constant__ Launched launched, CheckState* state) {
  DeviceThreads threads;
  ChecksumRoles<DeviceThreads>(threads, launched.messages, launched.count).compare(blockIdx.x, gridDim.x, *state);
}

}  // namespace

void preload_checks() {
  for (const void* kernel : {reinterpret_cast<const void*>(&make_sums), reinterpret_cast<const void*>(&compare_sums)}) {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "loading the kernels of the checksum mode");
  }
}

void launch_check(std::span<const CheckedMessage> messages, std::uint32_t blocks, CheckState* compared, cudaStream_t stream) {
  Launched launched{};
  launched.count = static_cast<std::uint32_t>(messages.size());
  std::memcpy(launched.messages, messages.data(), messages.size_bytes());
  if (compared == nullptr)
    make_sums<<<blocks, kCheckThreads, 0, stream>>>(launched);
  else
    compare_sums<<<blocks, kCheckThreads, 0, stream>>>(launched, compared);
  check(cudaGetLastError(), compared == nullptr ? "launching the sums of an operation" : "launching the comparison of an operation's sums");
}

}  // namespace railweave::cuda
