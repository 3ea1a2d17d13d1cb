// Names of PCI devices that GPU hosts carry, from the PCI ID database (pci-ids.ucw.cz); display only.
#pragma once

#include <string_view>

namespace railweave {

struct PciModel {
  unsigned vendor, device;
  std::string_view name;
  unsigned sm;  // compute capability of a GPU, 0 for others
};

inline constexpr PciModel kPciModels[] = {
    {0x10de, 0x15f9, "P100 SXM2", 60},
    {0x10de, 0x1db1, "V100 SXM2 16GB", 70},
    {0x10de, 0x1db4, "V100 PCIe 16GB", 70},
    {0x10de, 0x1db5, "V100 SXM2 32GB", 70},
    {0x10de, 0x1db6, "V100 PCIe 32GB", 70},
    {0x10de, 0x1db8, "V100 SXM3 32GB", 70},
    {0x10de, 0x20b0, "A100 SXM4 40GB", 80},
    {0x10de, 0x20b2, "A100 SXM4 80GB", 80},
    {0x10de, 0x20b5, "A100 PCIe 80GB", 80},
    {0x10de, 0x20f1, "A100 PCIe 40GB", 80},
    {0x10de, 0x2235, "A40", 86},
    {0x10de, 0x2330, "H100 SXM5 80GB", 90},
    {0x10de, 0x2331, "H100 PCIe", 90},
    {0x10de, 0x2335, "H200 SXM", 90},
    {0x10de, 0x2342, "GH200", 90},
    {0x10de, 0x2901, "B200", 100},
    {0x15b3, 0x1013, "ConnectX-4", 0},
    {0x15b3, 0x1017, "ConnectX-5", 0},
    {0x15b3, 0x1019, "ConnectX-5 Ex", 0},
    {0x15b3, 0x101b, "ConnectX-6", 0},
    {0x15b3, 0x101d, "ConnectX-6 Dx", 0},
    {0x15b3, 0x1021, "ConnectX-7", 0},
    {0x15b3, 0x1023, "ConnectX-8", 0},
    {0x15b3, 0xa2dc, "BlueField-3", 0},
    {0x1d0f, 0xefa0, "EFA", 0},
    {0x1d0f, 0xefa1, "EFA", 0},
    {0x1d0f, 0xefa2, "EFA", 0},
};

constexpr const PciModel* find_pci_model(unsigned vendor, unsigned device) noexcept {
  for (const PciModel& model : kPciModels) {
    if (model.vendor == vendor && model.device == device) return &model;
  }
  return nullptr;
}

}  // namespace railweave
