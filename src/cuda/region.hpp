// Device memory of a rank that its mates map (ports), and what only its own kernels touch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "operation.hpp"

namespace railweave::cuda {

// What a mate needs to reach a region.
struct RegionHandle {
  std::int32_t pid;
  std::int32_t device;  // ordinal in its process
  std::uint64_t address;
  cudaIpcMemHandle_t memory;
  char bus[16];  // PCI address of its GPU
};

class Region {
 public:
  // On the current device, zeroed. Throws DeviceError.
  Region(std::uint32_t rank, std::uint32_t world);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  RegionHandle handle() const;
  // Throws BootstrapError saying why that rank's GPU cannot be reached from this one.
  void map(std::uint32_t rank, const RegionHandle& handle);

  Port* local(std::uint32_t peer) const { return ports_ + peer; }
  Port* remote(std::uint32_t peer) const { return mapped_[peer] + rank_; }
  OperationState* state() const { return &own_->state; }
  Totals* totals() const { return own_->totals; }
  Mapping* mappings(std::uint32_t peer) const { return own_->mappings + std::uint64_t{peer} * kMappings; }
  HostView& host() const { return *host_; }

 private:
  struct Own {
    OperationState state;
    Totals totals[kPaths];
    Mapping mappings[1];  // kMappings for each rank
  };

  void release() noexcept;

  const std::uint32_t rank_;
  Port* ports_ = nullptr;
  Own* own_ = nullptr;
  HostView* host_ = nullptr;
  std::vector<Port*> mapped_;  // by rank
  std::vector<bool> opened_;   // by rank: mapped_ is to be closed
};

}  // namespace railweave::cuda
