// Where a program's memory comes from, as the variables of the usual frameworks say it.
#pragma once

#include <string>

namespace railweave::nccl {

// Why a process's receive buffers could not be mapped by other ranks; empty where nothing says so. CUDA's own memory pools cannot: what
// goes through slots instead has 18 GB/s of a pair, a twentieth of what NCCL has (docs/cuda-measured.md), and which way a message goes is
// settled with its communicator. `lookup` gives a variable's text, or nullptr.
std::string pool_refusal(const char* (*lookup)(const char* name));

}  // namespace railweave::nccl
