// Which NICs read and write a GPU's memory themselves (docs/cuda.md, "GPUDirect").
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace railweave::cuda {

struct GpuFacts {
  std::string bus;        // PCI address
  bool direct = false;    // the driver supports GPUDirect RDMA there
  bool coherent = false;  // linked to its CPU by more than PCIe (Grace's C2C)
};

// Why the slots of a NIC ("mlx5_0:1", "eth0") should lie in host memory, by the setting gpu_direct and what the system says of the way
// between the two; empty: they need not.
std::string direct_objection(std::uint64_t setting, const GpuFacts& gpu, const std::string& nic, const std::filesystem::path& sys = "/sys");

}  // namespace railweave::cuda
