#include "stand_in_runtime.hpp"

#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "bell.hpp"
#include "checker.hpp"
#include "kernel.hpp"

#ifdef __SANITIZE_THREAD__
// A process that ends waits for none of a communicator's threads.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "thread:railweave::cuda::Communicator::\n";
}
#endif

namespace {

using namespace railweave::cuda;

constexpr int kProcessors = 132;

std::mutex pinned_mutex;
std::map<void*, std::size_t> pinned;  // of this process

void* map_pages(std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

bool is_refused(const char* call) {
  const char* refused = stand_in::refuses.load();
  return refused != nullptr && std::strcmp(refused, call) == 0;
}

thread_local CUcontext context = nullptr;

CUresult get_current(CUcontext* current) {
  *current = context;
  return CUDA_SUCCESS;
}
CUresult set_current(CUcontext current) {
  context = current;
  return CUDA_SUCCESS;
}
#if CUDART_VERSION >= 12040
CUresult green_context(CUstream, CUgreenCtx* green) {
  if (const auto before = stand_in::before_part.load(); before != nullptr) before();
  *green = stand_in::part_processors != 0 ? reinterpret_cast<CUgreenCtx>(std::uintptr_t{1}) : nullptr;
  return CUDA_SUCCESS;
}
CUresult part_of(CUgreenCtx, CUdevResource* part, CUdevResourceType type) {
  part->type = type;
  part->sm.smCount = stand_in::part_processors;
  return CUDA_SUCCESS;
}
#endif
CUresult attributes_of(unsigned count, CUpointer_attribute* asked, void** answers, CUdeviceptr) {
  if (stand_in::allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    switch (asked[i]) {
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr*>(answers[i]) = reinterpret_cast<CUdeviceptr>(stand_in::allocation.load());
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<std::size_t*>(answers[i]) = std::size_t{1} << 30; break;
      case CU_POINTER_ATTRIBUTE_BUFFER_ID: *static_cast<unsigned long long*>(answers[i]) = 7; break;
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *static_cast<bool*>(answers[i]) = stand_in::shareable; break;
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<CUmemorytype*>(answers[i]) = CU_MEMORYTYPE_DEVICE; break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}
CUresult refuse() { return CUDA_ERROR_INVALID_VALUE; }

template <typename T>
T some_handle() {
  static std::atomic<std::uintptr_t> last = 0;
  return reinterpret_cast<T>(++last * 16);
}

}  // namespace

namespace railweave::cuda {

void stand_in::take_pinned_memory_away() {
  const std::lock_guard lock(pinned_mutex);
  for (const auto& [data, bytes] : pinned) ::mprotect(data, bytes, PROT_NONE);
}

bool stand_in::has_context() { return context != nullptr; }

KernelTraits preload_kernels() {
  KernelTraits traits;
  traits.processors = kProcessors;
  traits.most_cluster_blocks = 8;
  return traits;
}
cudaError_t launch(const OperationHeader& header, std::span<const Message> messages, const Plan& plan, const KernelTraits&, cudaStream_t) {
  stand_in::host_view = messages[0].host;
  stand_in::blocks = plan.blocks;
  stand_in::first_message = messages[0];
  stand_in::header = header;
  return cudaSuccess;
}
void preload_checks() {}
void launch_check(std::span<const CheckedMessage>, std::uint32_t, CheckState*, cudaStream_t) {}

// In the place of bell.cpp's.
void ring(Bell& bell) noexcept { std::atomic_ref(bell.rings).fetch_add(1); }
std::uint32_t rings_of(Bell& bell) noexcept { return std::atomic_ref(bell.rings).load(); }
void wait_for_ring(Bell&, std::uint32_t, std::chrono::nanoseconds) noexcept {
  ++stand_in::held_threads;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (stand_in::holds_threads);
  --stand_in::held_threads;
}

}  // namespace railweave::cuda

extern "C" {
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int*) { return cudaErrorUnknown; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "refused by the stand-in"; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return is_refused("cudaThreadExchangeStreamCaptureMode") ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  context = reinterpret_cast<CUcontext>(std::uintptr_t{1});
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(static_cast<void*>(properties), 0, sizeof *properties);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus, int bytes, int) {
  std::strncpy(bus, "0000:1b:00.0", static_cast<std::size_t>(bytes));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char*) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
#else
cudaError_t cudaGetDriverEntryPoint(const char* name, void** found, unsigned long long, cudaDriverEntryPointQueryResult* status) {
#endif
  *found = reinterpret_cast<void*>(&refuse);
  if (std::strcmp(name, "cuPointerGetAttributes") == 0) *found = reinterpret_cast<void*>(&attributes_of);
  if (std::strcmp(name, "cuCtxGetCurrent") == 0) *found = reinterpret_cast<void*>(&get_current);
  if (std::strcmp(name, "cuCtxSetCurrent") == 0) *found = reinterpret_cast<void*>(&set_current);
#if CUDART_VERSION >= 12040
  if (std::strcmp(name, "cuStreamGetGreenCtx") == 0) *found = reinterpret_cast<void*>(&green_context);
  if (std::strcmp(name, "cuGreenCtxGetDevResource") == 0) *found = reinterpret_cast<void*>(&part_of);
#endif
  *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// --- Memory

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  *data = is_refused("cudaMalloc") ? nullptr : std::calloc(1, bytes);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  ++stand_in::allocations;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  --stand_in::allocations;
  ++stand_in::frees;
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  *data = map_pages(bytes);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(pinned_mutex);
  pinned[*data] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard lock(pinned_mutex);
  if (const auto at = pinned.find(data); at != pinned.end()) {
    ::munmap(data, at->second);
    pinned.erase(at);
  }
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                              std::size_t height, cudaMemcpyKind, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row)
    std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t) {
  if (is_refused("cudaMemsetAsync")) return cudaErrorUnknown;
  std::memset(data, value, bytes);
  return cudaSuccess;
}
// Another process finds pages of its own there: nothing reads or writes what others have.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void*) {
  std::memset(handle, 0, sizeof *handle);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t, unsigned) {
  *data = some_handle<void*>();
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) { return cudaSuccess; }

// --- Streams, events, graphs

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = some_handle<cudaStream_t>();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = reinterpret_cast<std::uintptr_t>(stream);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = some_handle<cudaEvent_t>();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  if (stand_in::record_throws.exchange(false)) throw std::bad_alloc();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  const auto query = stand_in::event_query.load();
  return query == nullptr ? cudaSuccess : query();
}
#if CUDART_VERSION >= 13000
#define EDGE_DATA const cudaGraphEdgeData*,
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData**, std::size_t* count) {
#else
#define EDGE_DATA
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*,
                                        const cudaGraphNode_t** nodes, std::size_t* count) {
#endif
  static const cudaGraphNode_t node = some_handle<cudaGraphNode_t>();
  *status = stand_in::capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 1;
  if (nodes != nullptr) *nodes = &node;
  if (count != nullptr) *count = 1;
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, EDGE_DATA std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t*, const cudaGraphNode_t*, EDGE_DATA std::size_t) {
  return cudaSuccess;
}
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t, const cudaGraphNode_t*, const cudaGraphNode_t*, EDGE_DATA std::size_t) {
  return cudaSuccess;
}
cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t, const cudaGraphNode_t*, std::size_t, cudaEvent_t) {
  *node = some_handle<cudaGraphNode_t>();
  return cudaSuccess;
}
}
