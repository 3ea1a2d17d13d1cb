// In the place of libcuda.so.1, for UCX's CUDA module: one device, whose memory is what tests add. It lies at addresses at which nobody may
// read or write, and only this library's copies reach it (hidden_slots.hpp). No toolkit: the few types and numbers are CUDA's.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#define STAND_IN extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotFound = 500;
constexpr int kUnifiedAddressing = 41;                                                     // of a device
constexpr int kContext = 1, kMemoryType = 2, kBufferId = 7, kIsManaged = 8, kOrdinal = 9;  // of a pointer
constexpr unsigned kDeviceMemory = 2;

struct Memory {
  const std::byte* hidden;
  std::byte* visible;
  std::size_t bytes;
  std::uint64_t id;
};
std::mutex mutex;
std::vector<Memory> memories;
std::uint64_t last_id = 0;
std::atomic<std::uint64_t> copies{0};
char context, stream;

const Memory* find(std::uint64_t address) {
  for (const Memory& memory : memories) {
    const auto base = reinterpret_cast<std::uint64_t>(memory.hidden);
    if (address >= base && address < base + memory.bytes) return &memory;
  }
  return nullptr;
}

std::byte* reach(std::uint64_t address) {
  const std::scoped_lock lock(mutex);
  const Memory* memory = find(address);
  if (memory == nullptr) return reinterpret_cast<std::byte*>(address);
  return memory->visible + (address - reinterpret_cast<std::uint64_t>(memory->hidden));
}

template <typename T>
int give(void* where, T value) {
  std::memcpy(where, &value, sizeof value);
  return kOk;
}

}  // namespace

// --- What tests call

STAND_IN void stand_in_add(const std::byte* hidden, std::byte* visible, std::size_t bytes) {
  const std::scoped_lock lock(mutex);
  memories.push_back({hidden, visible, bytes, ++last_id});
}
STAND_IN void stand_in_remove(const std::byte* hidden) {
  const std::scoped_lock lock(mutex);
  std::erase_if(memories, [hidden](const Memory& memory) { return memory.hidden == hidden; });
}
STAND_IN std::uint64_t stand_in_copies() { return copies; }

// --- What UCX calls

STAND_IN int cuCtxGetCurrent(void** current) { return give<void*>(current, &context); }
STAND_IN int cuCtxGetDevice(int* device) { return give(device, 0); }
STAND_IN int cuCtxGetId(void*, std::uint64_t* id) { return give(id, std::uint64_t{1}); }
STAND_IN int cuCtxPopCurrent_v2(void** current) { return current == nullptr ? kOk : give<void*>(current, &context); }
STAND_IN int cuDeviceGet(int* device, int ordinal) { return give(device, ordinal); }
STAND_IN int cuDeviceGetAttribute(int* value, int attribute, int) { return give(value, attribute == kUnifiedAddressing ? 1 : 0); }
STAND_IN int cuDeviceGetCount(int* count) { return give(count, 1); }
STAND_IN int cuDeviceGetName(char* name, int room, int) {
  std::strncpy(name, "stand-in", static_cast<std::size_t>(room));
  return kOk;
}
STAND_IN int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return give(flags, 0u) + give(active, 1); }
STAND_IN int cuDevicePrimaryCtxRetain(void** retained, int) { return give<void*>(retained, &context); }
STAND_IN int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return give(bytes, std::size_t{1} << 34); }
STAND_IN int cuDriverGetVersion(int* version) { return give(version, 12040); }
STAND_IN int cuEventCreate(void** event, unsigned) { return give<void*>(event, &stream); }
STAND_IN int cuGetErrorString(int, const char** text) { return give(text, "an error of the stand-in"); }
STAND_IN int cuMemAlloc_v2(std::uint64_t*, std::size_t) { return kOutOfMemory; }
STAND_IN int cuMemGetAddressRange_v2(std::uint64_t* base, std::size_t* bytes, std::uint64_t address) {
  const std::scoped_lock lock(mutex);
  const Memory* memory = find(address);
  if (memory == nullptr) return kInvalidValue;
  if (base != nullptr) give(base, reinterpret_cast<std::uint64_t>(memory->hidden));
  return bytes == nullptr ? kOk : give(bytes, memory->bytes);
}
STAND_IN int cuMemcpyAsync(std::uint64_t to, std::uint64_t from, std::size_t bytes, void*) {
  ++copies;
  std::memcpy(reach(to), reach(from), bytes);
  return kOk;
}
STAND_IN int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* in) {
  return cuMemcpyAsync(to, from, bytes, in);
}
STAND_IN int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  return cuMemcpyAsync(to, reinterpret_cast<std::uint64_t>(from), bytes, nullptr);
}
STAND_IN int cuPointerGetAttribute(void* value, int attribute, std::uint64_t address) {
  const std::scoped_lock lock(mutex);
  const Memory* memory = find(address);
  switch (attribute) {
    case kContext: return give<void*>(value, memory == nullptr ? nullptr : &context);
    case kMemoryType: return memory == nullptr ? kInvalidValue : give(value, kDeviceMemory);
    case kBufferId: return give(value, memory == nullptr ? std::uint64_t{0} : memory->id);
    case kIsManaged: return give(value, 0u);
    case kOrdinal: return give(value, 0);
    default: return kInvalidValue;
  }
}
STAND_IN int cuPointerGetAttributes(unsigned count, const int* attributes, void** values, std::uint64_t address) {
  for (unsigned i = 0; i < count; ++i) {
    if (cuPointerGetAttribute(values[i], attributes[i], address) != kOk) give(values[i], 0u);
  }
  return kOk;
}
STAND_IN int cuStreamAddCallback(void* in, void (*call)(void*, int, void*), void* data, unsigned) {
  call(in, kOk, data);  // all copies have been made
  return kOk;
}
STAND_IN int cuStreamCreate(void** created, unsigned) { return give<void*>(created, &stream); }
STAND_IN int cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* status) {
  void* const own = ::dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  *function = ::dlsym(own, name);
  if (*function == nullptr) *function = ::dlsym(own, (std::string(name) + "_v2").c_str());
  if (status != nullptr) *status = *function == nullptr ? 1 : 0;
  return *function == nullptr ? kNotFound : kOk;
}

// What has nothing to do here.
#define STAND_IN_SUCCEEDS(name) \
  STAND_IN int name() { return kOk; }
STAND_IN_SUCCEEDS(cuCtxPushCurrent_v2)
STAND_IN_SUCCEEDS(cuDevicePrimaryCtxRelease_v2)
STAND_IN_SUCCEEDS(cuDeviceGetUuid_v2)
STAND_IN_SUCCEEDS(cuEventDestroy_v2)
STAND_IN_SUCCEEDS(cuEventQuery)
STAND_IN_SUCCEEDS(cuEventRecord)
STAND_IN_SUCCEEDS(cuInit)
STAND_IN_SUCCEEDS(cuMemHostRegister_v2)
STAND_IN_SUCCEEDS(cuMemHostUnregister)
STAND_IN_SUCCEEDS(cuPointerSetAttribute)
STAND_IN_SUCCEEDS(cuStreamDestroy_v2)
STAND_IN_SUCCEEDS(cuStreamSynchronize)
// What the device does not have: memory of UCX's own, virtual memory, pools, other processes.
#define STAND_IN_REFUSES(name) \
  STAND_IN int name() { return kInvalidValue; }
STAND_IN_REFUSES(cuIpcCloseMemHandle)
STAND_IN_REFUSES(cuIpcGetMemHandle)
STAND_IN_REFUSES(cuIpcOpenMemHandle_v2)
STAND_IN_REFUSES(cuMemAddressFree)
STAND_IN_REFUSES(cuMemAddressReserve)
STAND_IN_REFUSES(cuMemAllocManaged)
STAND_IN_REFUSES(cuMemCreate)
STAND_IN_REFUSES(cuMemExportToShareableHandle)
STAND_IN_REFUSES(cuMemFree_v2)
STAND_IN_REFUSES(cuMemGetAllocationGranularity)
STAND_IN_REFUSES(cuMemGetAllocationPropertiesFromHandle)
STAND_IN_REFUSES(cuMemImportFromShareableHandle)
STAND_IN_REFUSES(cuMemMap)
STAND_IN_REFUSES(cuMemPoolDestroy)
STAND_IN_REFUSES(cuMemPoolExportPointer)
STAND_IN_REFUSES(cuMemPoolExportToShareableHandle)
STAND_IN_REFUSES(cuMemPoolImportFromShareableHandle)
STAND_IN_REFUSES(cuMemPoolImportPointer)
STAND_IN_REFUSES(cuMemPoolSetAccess)
STAND_IN_REFUSES(cuMemRangeGetAttribute)
STAND_IN_REFUSES(cuMemRelease)
STAND_IN_REFUSES(cuMemRetainAllocationHandle)
STAND_IN_REFUSES(cuMemSetAccess)
STAND_IN_REFUSES(cuMemUnmap)
