#include <cudaTypedefs.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "device.hpp"
#include "device_block.cuh"
#include "device_warp.cuh"
#include "driver.hpp"
#include "kernel.hpp"
#include "rail_roles.hpp"

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

// Which cluster of the grid this block is in, and which of its blocks it is. Where there are none a block is one.
__device__ __forceinline__ std::uint32_t cluster_index() {
  std::uint32_t value = blockIdx.x;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(value));
#endif
  return value;
}
__device__ __forceinline__ std::uint32_t place_in_cluster() {
  std::uint32_t value = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
#endif
  return value;
}

template <std::uint32_t Capacity, bool kPackets, bool kIndirect = false>
__global__ void __launch_bounds__(kThreads) exchange(const __grid_constant__ Parameters<Capacity> parameters) {
  wait_for_earlier_work();
  DeviceBlock<Capacity> block;
  Roles<DeviceBlock<Capacity>, kPackets, kIndirect>(block, whole_part(parameters.header, parameters.messages)).run();
}

template <std::uint32_t Capacity, bool kSplit = false>
__global__ void __launch_bounds__(kThreads) exchange_packets(const __grid_constant__ Parameters<Capacity> parameters) {
  wait_for_earlier_work();
  DeviceWarp warp(gridDim.x, blockIdx.x);
  PacketRoles<DeviceWarp, kSplit>(warp, whole_part(parameters.header, parameters.messages)).run();
}

// The same with messages in trains.
struct Trains {
  std::uint32_t count;
  Train of_pairs[kMaxPacketMessages];
};
struct TrainParameters {
  OperationHeader header;
  Trains trains;
  Message messages[kMaxMessages];
};
static_assert(sizeof(TrainParameters) <= 32764);

__device__ __forceinline__ Part in_trains(const Part& part, const Trains& trains) {
  return part_in_trains(part, trains.of_pairs, trains.count);
}

__global__ void __launch_bounds__(kThreads) exchange_packet_trains(const __grid_constant__ TrainParameters parameters) {
  wait_for_earlier_work();
  DeviceWarp warp(gridDim.x, blockIdx.x);
  const Part part = in_trains(whole_part(parameters.header, parameters.messages), parameters.trains);
  PacketRoles<DeviceWarp, true, true>(warp, part).run();
}

// Where packets have blocks of their own: the others run the roles of granted messages, and these those of `packets`.
template <std::uint32_t Capacity, bool kIndirect, typename Packets>
__device__ __forceinline__ void run_apart(const OperationHeader& header, const Message* messages, Packets&& packets) {
  const std::uint32_t own = header.packet_blocks_a_cluster, before = cluster_index() * own, place = place_in_cluster();
  if (place < own && before < header.packet_blocks) {
    DeviceWarp warp(header.packet_blocks, before + place);
    packets(warp, packet_part(header, messages));
  } else {
    DeviceBlock<Capacity> block(header.packet_blocks, min(before + own, header.packet_blocks));
    Roles<DeviceBlock<Capacity>, false, kIndirect>(block, granted_part(header, messages)).run();
  }
}

template <std::uint32_t Capacity, bool kIndirect = false>
__global__ void __launch_bounds__(kThreads) exchange_apart(const __grid_constant__ Parameters<Capacity> parameters) {
  wait_for_earlier_work();
  run_apart<Capacity, kIndirect>(parameters.header, parameters.messages,
                                 [](DeviceWarp& warp, const Part& part) { PacketRoles<DeviceWarp>(warp, part).run(); });
}

template <bool kIndirect>
__global__ void __launch_bounds__(kThreads) exchange_apart_trains(const __grid_constant__ TrainParameters parameters) {
  wait_for_earlier_work();
  run_apart<kMaxMessages, kIndirect>(parameters.header, parameters.messages, [&](DeviceWarp& warp, const Part& part) {
    PacketRoles<DeviceWarp, false, true>(warp, in_trains(part, parameters.trains)).run();
  });
}

// With messages to other nodes. One for all operations: what goes over rails takes longer than parameters and code cost.
__global__ void __launch_bounds__(kThreads) exchange_rails(const __grid_constant__ Parameters<kMaxMessages> parameters) {
  wait_for_earlier_work();
  const OperationHeader& header = parameters.header;
  DeviceBlock<kMaxMessages> block;
  RailRoles<DeviceBlock<kMaxMessages>> rails(block, rail_part(header, parameters.messages));
  Roles<DeviceBlock<kMaxMessages>, true> near(block, whole_part(header, parameters.messages));
  run_beside_rails(block, rails, near, header.count != 0);
}

// --- Operations of more messages than parameters can hold: in device memory, written there by kernels before, so that nothing on the host
// has to outlive the call or a captured graph.

struct List {
  OperationHeader header;
  const Message* messages;
  MessageState* states;
  Share* shares;  // one of a block for each message
};

__global__ void __launch_bounds__(kThreads) exchange_list(const __grid_constant__ List list) {
  wait_for_earlier_work();
  Part part = whole_part(list.header, list.messages);
  part.states = list.states;
  DeviceBlock<0> block(list.shares + std::uint64_t{blockIdx.x} * list.header.count);
  Roles<DeviceBlock<0>, true>(block, part).run();
}

__global__ void __launch_bounds__(kThreads) exchange_rails_list(const __grid_constant__ List list) {
  wait_for_earlier_work();
  Part part = whole_part(list.header, list.messages);
  part.states = list.states;
  DeviceBlock<0> block(list.shares + std::uint64_t{blockIdx.x} * list.header.count);
  RailRoles<DeviceBlock<0>> rails(block, rail_part(list.header, list.messages));
  Roles<DeviceBlock<0>, true> near(block, part);
  run_beside_rails(block, rails, near, list.header.count != 0);
}

struct PacketList {
  OperationHeader header;
  Trains trains;
  const Message* messages;
};

__global__ void __launch_bounds__(kThreads) exchange_packet_list(const __grid_constant__ PacketList list) {
  wait_for_earlier_work();
  DeviceWarp warp(gridDim.x, blockIdx.x);
  PacketRoles<DeviceWarp, true, true>(warp, in_trains(whole_part(list.header, list.messages), list.trains)).run();
}

struct Excerpt {
  Message* to;
  MessageState* states;  // or none
  std::uint32_t count;
  Message messages[kMaxMessages];
};
static_assert(sizeof(Excerpt) <= 32764);

__global__ void __launch_bounds__(kMaxMessages) write_list(const __grid_constant__ Excerpt excerpt) {
  if (threadIdx.x >= excerpt.count) return;
  excerpt.to[threadIdx.x] = excerpt.messages[threadIdx.x];
  if (excerpt.states != nullptr) excerpt.states[threadIdx.x] = MessageState{};
}

cudaError_t write_out(Message* to, MessageState* states, std::span<const Message> messages, cudaStream_t stream) {
  Excerpt excerpt;
  for (std::size_t first = 0; first < messages.size(); first += kMaxMessages) {
    const auto part = messages.subspan(first, std::min<std::size_t>(kMaxMessages, messages.size() - first));
    excerpt.to = to + first;
    excerpt.states = states != nullptr ? states + first : nullptr;
    excerpt.count = static_cast<std::uint32_t>(part.size());
    std::memcpy(excerpt.messages, part.data(), part.size_bytes());
    write_list<<<1, kMaxMessages, 0, stream>>>(excerpt);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_by_driver(const CUlaunchConfig& config, const KernelTraits& traits, const void* kernel, void** arguments) {
  static const auto launch_kernel = driver_call<PFN_cuLaunchKernelEx_v11060>("cuLaunchKernelEx", 11060);
  const auto is_it = [kernel](const auto& each) { return each.first == kernel; };
  const auto found = std::find_if(traits.functions.begin(), traits.functions.end(), is_it);
  return static_cast<cudaError_t>(launch_kernel(&config, found->second, arguments, nullptr));  // errors have the runtime's numbers
}

template <typename Parameters>
cudaError_t launch_planned(void (*kernel)(Parameters), Parameters& parameters, const Plan& plan, const KernelTraits& traits,
                           cudaStream_t stream) {
  CUlaunchAttribute attributes[2]{};
  CUlaunchConfig config{};
  config.gridDimX = plan.blocks;
  config.blockDimX = kThreads;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = attributes;
  if (traits.programmatic) {
    attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[config.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (plan.cluster > 1) {
    attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[config.numAttrs++].value.clusterDim = {plan.cluster, 1, 1};
  }
  void* arguments[] = {&parameters};
  return launch_by_driver(config, traits, reinterpret_cast<const void*>(kernel), arguments);
}

template <std::uint32_t Capacity>
cudaError_t launch_sized(void (*kernel)(Parameters<Capacity>), const OperationHeader& header, std::span<const Message> messages,
                         const Plan& plan, const KernelTraits& traits, cudaStream_t stream) {
  Parameters<Capacity> parameters;
  parameters.header = header;
  std::memcpy(parameters.messages, messages.data(), messages.size_bytes());
  return launch_planned(kernel, parameters, plan, traits, stream);
}

Trains trains_of(const Plan& plan) {
  Trains trains{static_cast<std::uint32_t>(plan.trains.size()), {}};
  std::copy(plan.trains.begin(), plan.trains.end(), trains.of_pairs);
  return trains;
}

cudaError_t launch_trains(void (*kernel)(TrainParameters), const OperationHeader& header, std::span<const Message> messages,
                          const Plan& plan, const KernelTraits& traits, cudaStream_t stream) {
  TrainParameters parameters;
  parameters.header = header;
  parameters.trains = trains_of(plan);
  std::memcpy(parameters.messages, messages.data(), messages.size_bytes());
  return launch_planned(kernel, parameters, plan, traits, stream);
}

// With device memory for an operation, from the library's pool and in stream order: neither this nor giving it back waits for a kernel.
// Inside a capture the graph has the memory, and the pool says only of what kind.
template <typename Launch>
cudaError_t with_memory(std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream, Launch&& launch) {
  if (pool == nullptr) return cudaErrorNotSupported;
  void* memory = nullptr;
  const cudaError_t error = cudaMallocFromPoolAsync(&memory, bytes, pool, stream);
  if (error != cudaSuccess) return error;
  const cudaError_t launched = launch(static_cast<std::byte*>(memory));
  // The operation runs, or not, whatever becomes of its memory: an error would mean that nothing was queued.
  if (cudaFreeAsync(memory, stream) != cudaSuccess) static_cast<void>(cudaGetLastError());
  return launched;
}

cudaError_t launch_list(void (*kernel)(List), const OperationHeader& header, std::span<const Message> messages, const Plan& plan,
                        const KernelTraits& traits, cudaStream_t stream) {
  const std::size_t count = messages.size();
  const std::size_t states_at = count * sizeof(Message), shares_at = states_at + count * sizeof(MessageState);
  return with_memory(shares_at + count * plan.blocks * sizeof(Share), traits.pool, stream, [&](std::byte* bytes) {
    auto* const list = reinterpret_cast<Message*>(bytes);
    auto* const states = reinterpret_cast<MessageState*>(bytes + states_at);
    if (const cudaError_t error = write_out(list, states, messages, stream); error != cudaSuccess) return error;
    kernel<<<plan.blocks, kThreads, 0, stream>>>({header, list, states, reinterpret_cast<Share*>(bytes + shares_at)});
    return cudaGetLastError();
  });
}

cudaError_t launch_packet_list(const OperationHeader& header, std::span<const Message> messages, const Plan& plan,
                               const KernelTraits& traits, cudaStream_t stream) {
  return with_memory(messages.size_bytes(), traits.pool, stream, [&](std::byte* bytes) {
    auto* const list = reinterpret_cast<Message*>(bytes);
    if (const cudaError_t error = write_out(list, nullptr, messages, stream); error != cudaSuccess) return error;
    PacketList parameters{header, trains_of(plan), list};
    return launch_planned(&exchange_packet_list, parameters, plan, traits, stream);
  });
}

// Of all communicators on the device, as long as the process runs. From the device's own pool a stream may get what another one will have
// freed, and waits for that one's kernel then, which may wait for a rank that waits for this one. None: the device has no pools.
cudaMemPool_t pool_of(int device) {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  const std::scoped_lock lock(mutex);
  if (const auto made = pools.find(device); made != pools.end()) return made->second;
  int supported = 0;
  check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device), "asking for memory pools");
  if (supported == 0) return pools[device] = nullptr;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "making a memory pool");
  int wait = 0;
  const cudaError_t error = cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &wait);
  if (error != cudaSuccess) cudaMemPoolDestroy(pool);
  check(error, "keeping a memory pool from making streams wait for each other");
  return pools[device] = pool;
}

// Up to `most`.
template <typename Parameters>
std::uint32_t most_cluster_blocks(void (*kernel)(Parameters), std::uint32_t most) {
  for (std::uint32_t blocks = most; blocks > 1; blocks /= 2) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {blocks, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(kThreads);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess && clusters > 0) return blocks;
    static_cast<void>(cudaGetLastError());
  }
  return 1;
}

}  // namespace

KernelTraits preload_kernels() {
  const void* kernels[] = {reinterpret_cast<const void*>(&exchange<kFew, false>),
                           reinterpret_cast<const void*>(&exchange<kSome, false>),
                           reinterpret_cast<const void*>(&exchange<kMaxMessages, false>),
                           reinterpret_cast<const void*>(&exchange<kMaxMessages, true>),
                           reinterpret_cast<const void*>(&exchange<kSome, false, true>),
                           reinterpret_cast<const void*>(&exchange<kMaxMessages, false, true>),
                           reinterpret_cast<const void*>(&exchange_apart<kSome>),
                           reinterpret_cast<const void*>(&exchange_apart<kMaxMessages>),
                           reinterpret_cast<const void*>(&exchange_apart<kSome, true>),
                           reinterpret_cast<const void*>(&exchange_apart<kMaxMessages, true>),
                           reinterpret_cast<const void*>(&exchange_rails),
                           reinterpret_cast<const void*>(&exchange_list),
                           reinterpret_cast<const void*>(&exchange_rails_list),
                           reinterpret_cast<const void*>(&write_list),
                           reinterpret_cast<const void*>(&exchange_packets<kFew>),
                           reinterpret_cast<const void*>(&exchange_packets<kSome>),
                           reinterpret_cast<const void*>(&exchange_packets<kMaxPacketMessages>),
                           reinterpret_cast<const void*>(&exchange_packets<kFew, true>),
                           reinterpret_cast<const void*>(&exchange_packets<kSome, true>),
                           reinterpret_cast<const void*>(&exchange_packets<kMaxPacketMessages, true>),
                           reinterpret_cast<const void*>(&exchange_packet_trains),
                           reinterpret_cast<const void*>(&exchange_apart_trains<false>),
                           reinterpret_cast<const void*>(&exchange_apart_trains<true>),
                           reinterpret_cast<const void*>(&exchange_packet_list)};
  KernelTraits traits;
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "loading the kernels");
    CUfunction function = nullptr;
    check(cudaGetFuncBySymbol(&function, kernel), "loading the kernels");
    traits.functions.emplace_back(kernel, function);
  }
  int device = 0, major = 0, processors = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the device's architecture");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for the device's processors");
  traits.processors = static_cast<std::uint32_t>(processors);
  traits.pool = pool_of(device);
  traits.measured = major == 9;
  if (major < 9) return traits;
  constexpr std::uint32_t kMost = 8;  // room_beside() allows no more
  // Each has the same threads and registers, but not the same shared memory.
  traits.most_cluster_blocks = kMost;
  const auto bound = [&traits](auto*... kernels) {
    ((traits.most_cluster_blocks = most_cluster_blocks(kernels, traits.most_cluster_blocks)), ...);
  };
  bound(&exchange_packets<kFew>, &exchange_packets<kSome>, &exchange_packets<kMaxPacketMessages>, &exchange_packets<kFew, true>,
        &exchange_packets<kSome, true>, &exchange_packets<kMaxPacketMessages, true>, &exchange_packet_trains, &exchange_packet_list,
        &exchange_apart<kSome>, &exchange_apart<kMaxMessages>, &exchange_apart<kSome, true>, &exchange_apart<kMaxMessages, true>,
        &exchange_apart_trains<false>, &exchange_apart_trains<true>);
  traits.programmatic = true;
  return traits;
}

cudaError_t launch(const OperationHeader& header, std::span<const Message> messages, const Plan& plan, const KernelTraits& traits,
                   cudaStream_t stream) {
  const auto sized = [&](auto* few, auto* some, auto* most) {
    if (messages.size() <= kFew) return launch_sized(few, header, messages, plan, traits, stream);
    if (messages.size() <= kSome) return launch_sized(some, header, messages, plan, traits, stream);
    return launch_sized(most, header, messages, plan, traits, stream);
  };
  switch (plan.kernel) {
    case Kernel::packets: {
      if (!plan.trains.empty()) {
        if (messages.size() > kMaxMessages) return launch_packet_list(header, messages, plan, traits, stream);
        return launch_trains(&exchange_packet_trains, header, messages, plan, traits, stream);
      }
      if (plan.send_warps + plan.receive_warps == 0)
        return sized(&exchange_packets<kFew>, &exchange_packets<kSome>, &exchange_packets<kMaxPacketMessages>);
      return sized(&exchange_packets<kFew, true>, &exchange_packets<kSome, true>, &exchange_packets<kMaxPacketMessages, true>);
    }
    case Kernel::granted: return sized(&exchange<kFew, false>, &exchange<kSome, false>, &exchange<kMaxMessages, false>);
    case Kernel::indirect: return sized(&exchange<kSome, false, true>, &exchange<kSome, false, true>, &exchange<kMaxMessages, false, true>);
    case Kernel::apart_indirect:
      if (!plan.trains.empty()) return launch_trains(&exchange_apart_trains<true>, header, messages, plan, traits, stream);
      return sized(&exchange_apart<kSome, true>, &exchange_apart<kSome, true>, &exchange_apart<kMaxMessages, true>);
    case Kernel::apart:
      if (!plan.trains.empty()) return launch_trains(&exchange_apart_trains<false>, header, messages, plan, traits, stream);
      return sized(&exchange_apart<kSome>, &exchange_apart<kSome>, &exchange_apart<kMaxMessages>);
    case Kernel::rails:
      if (messages.size() > kMaxMessages) return launch_list(&exchange_rails_list, header, messages, plan, traits, stream);
      return launch_sized(&exchange_rails, header, messages, plan, traits, stream);
    case Kernel::any: break;
  }
  if (messages.size() > kMaxMessages) return launch_list(&exchange_list, header, messages, plan, traits, stream);
  return launch_sized(&exchange<kMaxMessages, true>, header, messages, plan, traits, stream);
}

}  // namespace railweave::cuda
