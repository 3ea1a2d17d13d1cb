#include "gpu_direct.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <system_error>

namespace railweave::cuda {
namespace {

// The device's place in the tree of PCI bridges, as the system names it; empty: unknown.
std::filesystem::path place_of(const std::filesystem::path& link) {
  std::error_code error;
  std::filesystem::path place = std::filesystem::canonical(link, error);
  return error ? std::filesystem::path() : place;
}

int numa_node(const std::filesystem::path& place) {
  std::ifstream file(place / "numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

// Below a host bridge ("pci0000:3a") the two ways have a bridge in common, so bytes between them do not pass the CPU.
bool share_a_switch(const std::filesystem::path& a, const std::filesystem::path& b) {
  bool below = false;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end() && *i == *j; ++i, ++j) {
    if (below) return true;
    below = i->string().starts_with("pci");
  }
  return false;
}

}  // namespace

std::string direct_objection(std::uint64_t setting, const GpuFacts& gpu, const std::string& nic, const std::filesystem::path& sys) {
  if (setting == 0) return "RAILWEAVE_GPU_DIRECT=0";
  if (setting == 3) return {};
  const auto port = nic.find(':');
  if (port == std::string::npos) return "it is no RDMA device";
  if (setting == 2) return {};
  if (!gpu.direct) return "the GPU's driver does not support GPUDirect RDMA";
  std::string bus = gpu.bus;
  std::transform(bus.begin(), bus.end(), bus.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto gpu_place = place_of(sys / "bus/pci/devices" / bus);
  const auto nic_place = place_of(sys / "class/infiniband" / nic.substr(0, port) / "device");
  if (gpu_place.empty() || nic_place.empty()) return "the system does not say how it and GPU " + gpu.bus + " are connected";
  if (share_a_switch(gpu_place, nic_place)) return {};
  if (gpu.coherent && numa_node(gpu_place) >= 0 && numa_node(gpu_place) == numa_node(nic_place)) return {};
  return "the way between it and GPU " + gpu.bus + " passes the CPU (RAILWEAVE_GPU_DIRECT=2 allows that)";
}

}  // namespace railweave::cuda
