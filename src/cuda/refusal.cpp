#include "refusal.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "operation.hpp"

namespace railweave::cuda {
namespace {

constexpr int kOldest = 7;  // Volta

constexpr int kLongParameters = 12010;  // the first drivers that launch kernels with more than 4,096 bytes of them

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

std::string too_old(int driver, int needed) {
  return "the NVIDIA driver supports CUDA " + version(driver) + ", and this build needs CUDA " + version(needed) + "; update the driver";
}

}  // namespace

std::string device_refusal(int device, const DeviceFacts& facts) {
  const std::string which = "device " + std::to_string(device);
  // "NVIDIA H200 MIG 1g.18gb"
  if (facts.name.find(" MIG ") != std::string::npos) return which + " is a MIG slice (" + facts.name + "), which no other can reach";
  if (facts.major < kOldest)
    return which + " has compute capability " + std::to_string(facts.major) + ".x; expected " + std::to_string(kOldest) + ".0 or newer";
  return "";
}

// The driver is asked itself: its version as CUDA's runtime tells it is 0 as well where the runtime could not work with it.
std::string driver_refusal(int runtime, const char* library) {
  void* const driver = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);  // stays, as CUDA's own runtime keeps it
  if (driver == nullptr) {
    const char* const error = ::dlerror();
    return std::string("no NVIDIA driver (") + (error != nullptr ? error : library) + ")";
  }
  const auto ask = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDriverGetVersion"));
  int found = 0;
  return ask != nullptr && ask(&found) == 0 ? version_refusal(found, runtime) : "";
}

std::string version_refusal(int driver, int runtime) {
  if (driver >= runtime) return "";
  // Drivers serve all of a major version from its first on, but for the parameters.
  const int first = std::max(runtime / 1000 * 1000, kLongParameters);
  return too_old(driver, driver < first ? first : runtime);
}

std::string parameters_refusal(int driver) { return driver < kLongParameters ? too_old(driver, kLongParameters) : ""; }

std::string lists_refusal(int device, bool has_pools, std::uint64_t messages) {
  if (has_pools || messages <= kMaxMessages) return "";
  return "device " + std::to_string(device) + " has no memory pools, which an operation of more than " + std::to_string(kMaxMessages) +
         " messages needs; an all-to-all has " + std::to_string(messages);
}

// As NCCL reads them: of levels only the nearest, in its new form or its old one, leaves NVLink out.
std::string no_peer_access(const char* (*lookup)(const char* name)) {
  const char* const disable = lookup("NCCL_P2P_DISABLE");
  if (disable != nullptr && std::strtol(disable, nullptr, 0) == 1) return std::string("NCCL_P2P_DISABLE=") + disable;
  const char* const level = lookup("NCCL_P2P_LEVEL");
  if (level == nullptr) return {};
  const bool number = level[0] >= '0' && level[0] <= '9';
  const bool off = number ? std::strtol(level, nullptr, 0) == 0 : std::string_view(level) == "LOC";
  return off ? std::string("NCCL_P2P_LEVEL=") + level : std::string();
}

}  // namespace railweave::cuda
