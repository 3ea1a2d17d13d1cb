#include "gpu_slots.hpp"

#include <unistd.h>

#include <array>
#include <cstring>

#include "device.hpp"

namespace railweave::cuda {

GpuSlots::GpuSlots(std::uint64_t setting, Remarks& remarks) : setting_(setting), remarks_(remarks) {
  check(cudaGetDevice(&device_), "asking for the current device");
  std::array<char, 16> bus{};
  check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device_), "asking for a GPU's PCI address");
  facts_.bus = bus.data();
  int direct = 0, coherent = 0;
  check(cudaDeviceGetAttribute(&direct, cudaDevAttrGPUDirectRDMASupported, device_), "asking for GPUDirect RDMA");
  check(cudaDeviceGetAttribute(&coherent, cudaDevAttrPageableMemoryAccessUsesHostPageTables, device_), "asking for the link to the CPU");
  facts_.direct = direct != 0;
  facts_.coherent = coherent != 0;
}

std::span<std::byte> GpuSlots::make(std::uint64_t bytes) {
  if (own_.memory == nullptr) own_ = lend(bytes, "slots of NICs");
  return {static_cast<std::byte*>(own_.memory.get()), bytes};
}

std::vector<std::byte> GpuSlots::handle() const {
  const auto* first = reinterpret_cast<const std::byte*>(&own_.handle);
  return {first, first + sizeof own_.handle};
}

std::byte* GpuSlots::map(std::uint32_t rank, const engine::RankInfo& mate) {
  LentHandle handle{};
  if (mate.slot_memory.size() != sizeof handle) throw Error("its handle is damaged");
  std::memcpy(&handle, mate.slot_memory.data(), sizeof handle);
  mates_[rank] = map_lent(handle, mate.pid == static_cast<std::int32_t>(::getpid()));
  return static_cast<std::byte*>(mates_[rank].get());
}

// For UCX over TCP, which copies by CUDA's calls. What is refused here it is refused, too, and says so.
void GpuSlots::enter() const {
  cudaSetDevice(device_);
  static_cast<void>(cudaGetLastError());
}

}  // namespace railweave::cuda
