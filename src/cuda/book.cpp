#include "book.hpp"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <iterator>
#include <utility>

#include "driver.hpp"

namespace railweave::cuda {
namespace {

struct Allocation {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  std::uint64_t buffer_id = 0;
  bool on_device = false;
  bool shareable = false;  // by cudaIpcGetMemHandle, and readable by peers of this process without more ado
};

Allocation find_allocation(const void* data) {
  static const auto get_attributes = driver_call<PFN_cuPointerGetAttributes_v7000>("cuPointerGetAttributes", 7000);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  unsigned long long id = 0;
  bool shareable = false;
  CUmemorytype type{};
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                      CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* results[] = {&base, &bytes, &id, &shareable, &type};
  if (get_attributes(std::size(attributes), attributes, results, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) return {};
  const bool on_device = type == CU_MEMORYTYPE_DEVICE;
  return {base, bytes, id, on_device, shareable && on_device};
}

}  // namespace

Book::Book(Remarks& remarks)
    : remarks_(remarks),
      memory_(engine::SharedMemory::create("railweave-book", sizeof(BookPage))),
      allocations_(page(), [](std::uint64_t address) { return find_allocation(reinterpret_cast<const void*>(address)).buffer_id; }) {
  page().newest = kAbsoluteBuffer;
}

ExtentBook& Book::add_extents(VirtualMemory& memory, std::uint32_t rank, std::vector<int> reached) {
  extents_ = std::make_unique<ExtentBook>(memory, page(), rank, std::move(reached), remarks_);
  return *extents_;
}

Book::Place Book::name(const void* data, std::uint64_t bytes, Memory which) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t newest = page().newest;
  Place place = find(data, bytes, which);
  place.is_new = page().newest != newest;
  return place;
}

Book::Place Book::find(const void* data, std::uint64_t bytes, Memory which) {
  const Allocation allocation = find_allocation(data);
  const std::uint64_t address = reinterpret_cast<std::uint64_t>(data);
  const BufferName local{kAbsoluteBuffer, address};
  if (!allocation.shareable && which == Memory::whole_allocations) return {};
  if (!allocation.shareable) {
    if (extents_ == nullptr && allocation.on_device && !std::exchange(remarked_, true))
      remarks_.once(
          "a receive buffer cannot be mapped by other ranks: it was not allocated by cudaMalloc, and virtual memory (PyTorch's "
          "expandable segments) is not mapped here");
    Place place;
    place.on_device = allocation.on_device;
    if (extents_ == nullptr || !allocation.on_device) return place;
    if (const auto extent = extents_->name(address, bytes)) {
      place.remote = extent->buffer;
      place.local = extent->reached ? local : extent->buffer;
    }
    return place;
  }
  const std::uint64_t offset = address - allocation.base;
  if (address < allocation.base || offset > allocation.bytes || bytes > allocation.bytes - offset) return {};
  Place place;
  place.on_device = true;
  place.local = local;
  if (const auto known = allocations_.find(allocation.buffer_id)) {
    place.remote = {*known, offset};
    return place;
  }
  cudaIpcMemHandle_t handle;
  static_assert(sizeof handle == sizeof BookPage::Entry::handle);
  if (cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(allocation.base)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return place;
  }
  place.remote = {allocations_.list(allocation.buffer_id, allocation.base, &handle), offset};
  return place;
}

bool Book::look_for_freed(std::size_t most) {
  const bool allocations = allocations_.look_for_freed(most);
  return (extents_ != nullptr && extents_->look_for_freed(most)) || allocations;
}

}  // namespace railweave::cuda
