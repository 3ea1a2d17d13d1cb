// What links carry by generation, in bytes/s and one direction, line coding taken off. These are ceilings of the hardware;
// programs reach 80-95% of them (docs/fabric.md lists measured figures beside them).
#pragma once

#include <cstdint>
#include <optional>

namespace railweave {

// PCIe link of a generation (1 to 6) and width in lanes; nothing for a generation or width that does not exist.
// Transfers/s per lane 2.5, 5, 8, 16, 32, 64 G. Coding: 8b/10b (1, 2), 128b/130b (3 to 5), 236 of 256 flit bytes (6), as in
// the PCI Express base specifications. The headers of the packets come on top of that and depend on the payload size.
std::optional<std::uint64_t> pcie_Bps(unsigned generation, unsigned width) noexcept;

// `count` NVLinks of a generation (1 to 5): 20, 25, 25, 25, 50 GB/s each. From NVIDIA's data sheets, whose figures are sums
// over both directions: P100 160 GB/s over 4 links, V100 300 over 6, A100 600 over 12, H100 900 over 18, B200 1800 over 18.
std::optional<std::uint64_t> nvlink_Bps(unsigned generation, unsigned count) noexcept;

// The same by compute capability (60, 70, 80, 90, 100, ...), as topology files give it. 86 (GA102) has its own rate: 14.0625
// GB/s, from the A40's 112.5 GB/s in both directions over 4 links. Nothing where the GPU has no NVLink.
std::optional<std::uint64_t> nvlink_Bps_of_sm(unsigned sm, unsigned count) noexcept;

}  // namespace railweave
