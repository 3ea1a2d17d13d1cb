// Device memory of a program: from cudaMalloc; as PyTorch's expandable segments make it, pieces of 20 MiB (cuMemCreate) mapped side by
// side; or of the device's pool (cudaMallocAsync), which no other process can map.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "driver_entry.hpp"

enum class DeviceMemory { plain, in_pieces, of_pool };

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // On the current device.
  DeviceBuffer(std::uint64_t bytes, DeviceMemory memory) : bytes_(std::max<std::uint64_t>(bytes, 1)), memory_(memory) {
    if (memory_ != DeviceMemory::in_pieces) {
      void* data = nullptr;
      const cudaError_t error = memory_ == DeviceMemory::plain ? cudaMalloc(&data, bytes_) : cudaMallocAsync(&data, bytes_, nullptr);
      if (error != cudaSuccess || cudaStreamSynchronize(nullptr) != cudaSuccess)
        throw std::runtime_error("allocating " + std::to_string(bytes_) + " bytes");
      base_ = reinterpret_cast<CUdeviceptr>(data);
      return;
    }
    bytes_ = (bytes_ + kPiece - 1) / kPiece * kPiece;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    require(cudaGetDevice(&properties.location.id) == cudaSuccess, "cudaGetDevice");
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    require(call<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve")(&base_, bytes_, 0, 0, 0) == CUDA_SUCCESS, "cuMemAddressReserve");
    for (std::uint64_t at = 0; at < bytes_; at += kPiece) {
      CUmemGenericAllocationHandle piece = 0;
      require(call<PFN_cuMemCreate_v10020>("cuMemCreate")(&piece, kPiece, &properties, 0) == CUDA_SUCCESS, "cuMemCreate");
      require(call<PFN_cuMemMap_v10020>("cuMemMap")(base_ + at, kPiece, 0, piece, 0) == CUDA_SUCCESS, "cuMemMap");
      call<PFN_cuMemRelease_v10020>("cuMemRelease")(piece);  // the mapping keeps it
    }
    require(call<PFN_cuMemSetAccess_v10020>("cuMemSetAccess")(base_, bytes_, &access, 1) == CUDA_SUCCESS, "cuMemSetAccess");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~DeviceBuffer() {
    if (base_ == 0) return;
    if (memory_ != DeviceMemory::in_pieces) {
      cudaFree(data());
      return;
    }
    for (std::uint64_t at = 0; at < bytes_; at += kPiece) call<PFN_cuMemUnmap_v10020>("cuMemUnmap")(base_ + at, kPiece);
    call<PFN_cuMemAddressFree_v10020>("cuMemAddressFree")(base_, bytes_);
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(base_); }

 private:
  static constexpr std::uint64_t kPiece = 20u << 20;

  static void require(bool well, const char* what) {
    if (!well) throw std::runtime_error(std::string(what) + " failed");
  }
  template <typename Function>
  static Function call(const char* name) {
    void* found = nullptr;
    constexpr unsigned kSince = 10020;
    require(railweave::cuda::find_driver_call(name, kSince, &found) == cudaSuccess && found != nullptr, name);
    return reinterpret_cast<Function>(found);
  }

  CUdeviceptr base_ = 0;
  std::uint64_t bytes_ = 0;
  DeviceMemory memory_ = DeviceMemory::plain;
};
