// Import of NCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): one host.
#pragma once

#include <string>
#include <string_view>

#include "railweave/fabric/node_template.hpp"

namespace railweave {

// Reads what NCCL's own parser accepts, and ignores what it ignores. Devices come from `gpu` and `nic` elements or, in files
// written by hand for cloud machines, from their PCI class alone. GPUs are numbered by `dev` where all have it, else by bus
// id, as CUDA does; NICs likewise. Where the file leaves a rate open, NCCL's default is taken and the edge's source says so
// (docs/fabric.md, "NCCL topology files"). Throws ParseError with line, column and path ("/system/cpu[2]/pci[1]").
// `described_by` is what the sources of its figures begin with.
NodeTemplate parse_nccl_topology(std::string_view text, const std::string& source, const std::string& described_by = "topology file");

}  // namespace railweave
