#include "allocator.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace railweave::nccl {
namespace {

struct Choice {
  const char* variable;
  std::string_view chooses;  // among entries between commas
};
constexpr Choice kPools[] = {
    {"PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"},
    {"PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"},  // since PyTorch 2.9
    {"TF_GPU_ALLOCATOR", "cuda_malloc_async"},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"},
};

bool names(std::string text, std::string_view choice) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  return ("," + text + ",").find("," + std::string(choice) + ",") != std::string::npos;
}

}  // namespace

std::string pool_refusal(const char* (*lookup)(const char* name)) {
  for (const Choice& each : kPools) {
    const char* text = lookup(each.variable);
    if (text == nullptr || !names(text, each.chooses)) continue;
    return std::string("its memory comes from CUDA's pools (") + each.variable + "=" + text +
           "), which other ranks cannot map: NCCL is faster there";
  }
  return "";
}

}  // namespace railweave::nccl
