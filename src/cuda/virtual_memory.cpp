#include "virtual_memory.hpp"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "driver.hpp"

namespace railweave::cuda {
namespace {

class DriverMemory final : public VirtualMemory {
 public:
  explicit DriverMemory(int device) : device_(device) {
    int capable = 0;
    if (calls_.attribute(&capable, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) != CUDA_SUCCESS || capable == 0)
      throw Error("the driver hands out no memory as file descriptors for device " + std::to_string(device));
  }

  std::optional<Chunk> retain(std::uint64_t address) override {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    if (calls_.range(&base, &bytes, address) != CUDA_SUCCESS) return std::nullopt;
    if (calls_.retain(&handle, reinterpret_cast<void*>(base)) != CUDA_SUCCESS) return std::nullopt;
    return Chunk{base, bytes, handle};
  }

  void release(std::uint64_t handle) noexcept override { calls_.release(handle); }

  Terms terms(std::uint64_t handle) override {
    CUmemAllocationProp properties{};
    if (const CUresult error = calls_.properties(&properties, handle); error != CUDA_SUCCESS)
      return {-1, "asking for its properties: " + text(error)};
    if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return {-1, "it is host memory"};
    const int device = properties.location.id;
    if ((properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return {device, ""};
    if ((properties.requestedHandleTypes & kFabric) != 0) return {device, "it was made to be shared by fabric handles alone"};
    return {device, "it was not made to be shared (PyTorch's expandable segments are, unless TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0)"};
  }

  bool accessible(const Chunk& chunk, int device) override {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    unsigned long long flags = 0;
    return calls_.get_access(&flags, &location, chunk.base) == CUDA_SUCCESS && flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }

  engine::Fd export_memory(std::uint64_t handle) override {
    int fd = -1;
    require(calls_.export_memory(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            "exporting GPU memory (cuMemExportToShareableHandle)");
    return engine::Fd(fd);
  }

  std::uint64_t import_memory(const engine::Fd& fd) override {
    CUmemGenericAllocationHandle handle = 0;
    void* const shared = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd.get()));
    require(calls_.import_memory(&handle, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "importing GPU memory (cuMemImportFromShareableHandle)");
    return handle;
  }

  std::uint64_t reserve(std::uint64_t bytes) override {
    CUdeviceptr base = 0;
    require(calls_.reserve(&base, bytes, 0, 0, 0), "reserving " + std::to_string(bytes) + " bytes of addresses (cuMemAddressReserve)");
    return base;
  }

  void unreserve(std::uint64_t base, std::uint64_t bytes) noexcept override { calls_.unreserve(base, bytes); }

  void map(const Chunk& chunk) override {
    require(calls_.map(chunk.base, chunk.bytes, 0, chunk.handle, 0), "mapping GPU memory (cuMemMap)");
  }

  void allow(std::uint64_t base, std::uint64_t bytes) override {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device_;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    require(calls_.set_access(base, bytes, &access, 1), "making GPU memory accessible (cuMemSetAccess)");
  }

  void unmap(std::uint64_t base, std::uint64_t bytes) noexcept override { calls_.unmap(base, bytes); }

 private:
  // CU_MEM_HANDLE_TYPE_FABRIC, which headers have since CUDA 12.3.
  static constexpr unsigned kFabric = 8;
  // All but one are of CUDA 10.2; retaining a handle came with 11.0.
  struct Calls {
    PFN_cuDeviceGetAttribute_v2000 attribute = driver_call<PFN_cuDeviceGetAttribute_v2000>("cuDeviceGetAttribute", 2000);
    PFN_cuGetErrorString_v6000 error = driver_call<PFN_cuGetErrorString_v6000>("cuGetErrorString", 6000);
    PFN_cuMemGetAddressRange_v3020 range = driver_call<PFN_cuMemGetAddressRange_v3020>("cuMemGetAddressRange", 3020);
    PFN_cuMemRetainAllocationHandle_v11000 retain =
        driver_call<PFN_cuMemRetainAllocationHandle_v11000>("cuMemRetainAllocationHandle", 11000);
    PFN_cuMemRelease_v10020 release = driver_call<PFN_cuMemRelease_v10020>("cuMemRelease", 10020);
    PFN_cuMemGetAllocationPropertiesFromHandle_v10020 properties =
        driver_call<PFN_cuMemGetAllocationPropertiesFromHandle_v10020>("cuMemGetAllocationPropertiesFromHandle", 10020);
    PFN_cuMemGetAccess_v10020 get_access = driver_call<PFN_cuMemGetAccess_v10020>("cuMemGetAccess", 10020);
    PFN_cuMemSetAccess_v10020 set_access = driver_call<PFN_cuMemSetAccess_v10020>("cuMemSetAccess", 10020);
    PFN_cuMemExportToShareableHandle_v10020 export_memory =
        driver_call<PFN_cuMemExportToShareableHandle_v10020>("cuMemExportToShareableHandle", 10020);
    PFN_cuMemImportFromShareableHandle_v10020 import_memory =
        driver_call<PFN_cuMemImportFromShareableHandle_v10020>("cuMemImportFromShareableHandle", 10020);
    PFN_cuMemAddressReserve_v10020 reserve = driver_call<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve", 10020);
    PFN_cuMemAddressFree_v10020 unreserve = driver_call<PFN_cuMemAddressFree_v10020>("cuMemAddressFree", 10020);
    PFN_cuMemMap_v10020 map = driver_call<PFN_cuMemMap_v10020>("cuMemMap", 10020);
    PFN_cuMemUnmap_v10020 unmap = driver_call<PFN_cuMemUnmap_v10020>("cuMemUnmap", 10020);
  };

  std::string text(CUresult error) const {
    const char* said = nullptr;
    calls_.error(error, &said);
    return (said == nullptr ? std::string("unknown error") : std::string(said)) + " (CUDA error " + std::to_string(error) + ")";
  }
  void require(CUresult error, const std::string& what) const {
    if (error != CUDA_SUCCESS) throw Error(what + ": " + text(error));
  }

  const int device_;
  const Calls calls_;
};

}  // namespace

std::unique_ptr<VirtualMemory> make_virtual_memory(int device) { return std::make_unique<DriverMemory>(device); }

}  // namespace railweave::cuda
