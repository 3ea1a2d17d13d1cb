#include "book.hpp"

#include <cuda.h>

#include "device.hpp"

namespace railweave::cuda {
namespace {

using GetAttributes = CUresult (*)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);

// The driver is not linked, so that the library loads where there is none.
GetAttributes driver_attributes() {
  static const GetAttributes function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    constexpr unsigned kSince = 7000;  // CUDA version that brought the call
    check(cudaGetDriverEntryPointByVersion("cuPointerGetAttributes", &found, kSince, cudaEnableDefault, &status),
          "asking the driver for cuPointerGetAttributes");
    return reinterpret_cast<GetAttributes>(found);
  }();
  return function;
}

struct Allocation {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  std::uint64_t buffer_id = 0;
  bool shareable = false;  // by cudaIpcGetMemHandle, and readable by peers of this process without more ado
};

Allocation find_allocation(const void* data) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  unsigned long long id = 0;
  bool shareable = false;
  CUmemorytype type{};
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                      CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* results[] = {&base, &bytes, &id, &shareable, &type};
  if (driver_attributes()(std::size(attributes), attributes, results, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) return {};
  return {base, bytes, id, shareable && type == CU_MEMORYTYPE_DEVICE};
}

}  // namespace

Book::Book() : memory_(engine::SharedMemory::create("railweave-book", sizeof(BookPage))) { page().newest = kAbsoluteBuffer; }

Book::Place Book::name(const void* data, std::uint64_t bytes) {
  const Allocation allocation = find_allocation(data);
  const std::uint64_t address = reinterpret_cast<std::uint64_t>(data);
  const bool inside = address >= allocation.base && address + bytes <= allocation.base + allocation.bytes;
  if (!allocation.shareable || !inside) return {};
  const BufferName local{kAbsoluteBuffer, address};
  const std::uint64_t offset = address - allocation.base;
  const auto known = names_.find(allocation.buffer_id);
  // Entries are reused in turn; a name whose entry is gone is given anew.
  if (known != names_.end() && known->second + kMappings > page().newest) return {{known->second, offset}, local};
  cudaIpcMemHandle_t handle;
  if (cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(allocation.base)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {{}, local};
  }
  const std::uint64_t number = page().newest + 1;
  BookPage::Entry& entry = page().entries[number % kMappings];
  std::erase_if(names_, [&](const auto& name) { return name.second + kMappings <= number; });
  std::atomic_ref(entry.buffer).store(0);
  entry.handle = handle;
  std::atomic_ref(entry.buffer).store(number);
  std::atomic_ref(page().newest).store(number);
  names_[allocation.buffer_id] = number;
  return {{number, offset}, local};
}

MateBook::MateBook(const engine::MemoryHandle& handle, Mapping* table) : memory_(engine::SharedMemory::open(handle)), table_(table) {}

MateBook::~MateBook() {
  for (const Retired& retired : retired_) cudaIpcCloseMemHandle(retired.base);
  for (const Mapped& mapped : mapped_) {
    if (mapped.base != nullptr) cudaIpcCloseMemHandle(mapped.base);
  }
}

void MateBook::follow(cudaStream_t stream, const Progress& progress) {
  const std::uint64_t newest = std::atomic_ref(page().newest).load();
  if (newest - seen_ > kMappings) seen_ = newest - kMappings;
  while (seen_ < newest) map(++seen_, stream, progress);
  if (progress.captured) return;
  std::erase_if(retired_, [&](const Retired& retired) {
    if (progress.completed < retired.enqueued) return false;
    cudaIpcCloseMemHandle(retired.base);
    return true;
  });
}

// A mapping that is refused leaves the table without the buffer: its data go through slots.
void MateBook::map(std::uint64_t number, cudaStream_t stream, const Progress& progress) {
  const std::uint32_t index = number % kMappings;
  BookPage::Entry& entry = page().entries[index];
  const cudaIpcMemHandle_t handle = entry.handle;
  if (std::atomic_ref(entry.buffer).load() != number) return;  // replaced meanwhile by a newer one, which follows
  Mapped& mapped = mapped_[index];
  if (mapped.base != nullptr) {
    write_table(index, {0, 0}, stream);
    retired_.push_back({mapped.base, progress.enqueued});
  }
  mapped = {number, nullptr};
  if (cudaIpcOpenMemHandle(&mapped.base, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    mapped.base = nullptr;
    return;
  }
  write_table(index, {number, reinterpret_cast<std::uint64_t>(mapped.base)}, stream);
}

// The name goes last: a kernel that reads it finds the base.
void MateBook::write_table(std::uint32_t index, Mapping mapping, cudaStream_t stream) {
  const std::uint64_t none = 0;
  check(cudaMemcpyAsync(&table_[index].buffer, &none, sizeof none, cudaMemcpyHostToDevice, stream), "taking a mapping out of use");
  check(cudaMemcpyAsync(&table_[index].base, &mapping.base, sizeof mapping.base, cudaMemcpyHostToDevice, stream), "writing a mapping");
  check(cudaMemcpyAsync(&table_[index].buffer, &mapping.buffer, sizeof mapping.buffer, cudaMemcpyHostToDevice, stream),
        "putting a mapping into use");
}

}  // namespace railweave::cuda
