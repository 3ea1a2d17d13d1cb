#include <algorithm>
#include <cstring>

#include "device.hpp"
#include "device_block.cuh"
#include "device_warp.cuh"
#include "kernel.hpp"

namespace railweave::cuda {
namespace {

template <std::uint32_t Capacity>
struct Parameters {
  OperationHeader header;
  Message messages[Capacity];
};

// Most operations are small groups, and parameters cost launch time: 0.2 us for 2 KB.
constexpr std::uint32_t kFew = 4, kSome = 16;
static_assert(sizeof(Parameters<kMaxMessages>) <= 32764);

// Nothing of what earlier work wrote is touched before this.
__device__ __forceinline__ void wait_for_earlier_work() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <std::uint32_t Capacity, bool kPackets>
__global__ void __launch_bounds__(kThreads) exchange(const __grid_constant__ Parameters<Capacity> parameters) {
  wait_for_earlier_work();
  DeviceBlock<Capacity> block;
  Roles<DeviceBlock<Capacity>, kPackets>(block, parameters.header, parameters.messages).run();
}

template <std::uint32_t Capacity>
__global__ void __launch_bounds__(kThreads) exchange_packets(const __grid_constant__ Parameters<Capacity> parameters) {
  wait_for_earlier_work();
  DeviceWarp warp;
  PacketRoles<DeviceWarp>(warp, parameters.header, parameters.messages).run();
}

template <std::uint32_t Capacity>
cudaError_t launch_sized(void (*kernel)(Parameters<Capacity>), const OperationHeader& header, std::span<const Message> messages,
                         const Plan& plan, const KernelTraits& traits, cudaStream_t stream) {
  Parameters<Capacity> parameters;
  parameters.header = header;
  std::memcpy(parameters.messages, messages.data(), messages.size_bytes());
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(plan.blocks);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = attributes;
  if (traits.programmatic) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (plan.packets_only && plan.blocks > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {plan.blocks, 1, 1};
  }
  void* arguments[] = {&parameters};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
}

template <std::uint32_t Capacity>
std::uint32_t most_cluster_blocks() {
  check(cudaFuncSetAttribute(exchange_packets<Capacity>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "allowing large clusters");
  for (std::uint32_t blocks = 16; blocks > 1; blocks /= 2) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {blocks, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(kThreads);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, exchange_packets<Capacity>, &config) == cudaSuccess && clusters > 0) return blocks;
    static_cast<void>(cudaGetLastError());
  }
  return 1;
}

}  // namespace

KernelTraits preload_kernels() {
  const void* kernels[] = {reinterpret_cast<const void*>(&exchange<kFew, false>),
                           reinterpret_cast<const void*>(&exchange<kSome, false>),
                           reinterpret_cast<const void*>(&exchange<kMaxMessages, false>),
                           reinterpret_cast<const void*>(&exchange<kFew, true>),
                           reinterpret_cast<const void*>(&exchange<kSome, true>),
                           reinterpret_cast<const void*>(&exchange<kMaxMessages, true>),
                           reinterpret_cast<const void*>(&exchange_packets<kFew>),
                           reinterpret_cast<const void*>(&exchange_packets<kSome>),
                           reinterpret_cast<const void*>(&exchange_packets<kMaxPacketMessages>)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "loading the kernels");
  }
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the device's architecture");
  if (major < 9) return {};
  return {std::min({most_cluster_blocks<kFew>(), most_cluster_blocks<kSome>(), most_cluster_blocks<kMaxPacketMessages>()}), true};
}

cudaError_t launch(const OperationHeader& header, std::span<const Message> messages, const Plan& plan, const KernelTraits& traits,
                   cudaStream_t stream) {
  const auto sized = [&](auto* few, auto* some, auto* most) {
    if (messages.size() <= kFew) return launch_sized(few, header, messages, plan, traits, stream);
    if (messages.size() <= kSome) return launch_sized(some, header, messages, plan, traits, stream);
    return launch_sized(most, header, messages, plan, traits, stream);
  };
  if (plan.packets_only) return sized(&exchange_packets<kFew>, &exchange_packets<kSome>, &exchange_packets<kMaxPacketMessages>);
  if (plan.has_packets) return sized(&exchange<kFew, true>, &exchange<kSome, true>, &exchange<kMaxMessages, true>);
  return sized(&exchange<kFew, false>, &exchange<kSome, false>, &exchange<kMaxMessages, false>);
}

}  // namespace railweave::cuda
