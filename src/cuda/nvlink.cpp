#include "nvlink.hpp"

#include <dlfcn.h>

namespace railweave::cuda {
namespace {

// NVML's interface, of which headers come with CUDA toolkits alone.
using Device = void*;
constexpr int kSuccess = 0;      // NVML_SUCCESS
constexpr int kIndexNvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
constexpr int kStatusOk = 0;     // NVML_P2P_STATUS_OK

class Library {
 public:
  explicit Library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Function>
  Function* function(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  void* handle_;
};

}  // namespace

std::optional<bool> joined_by_nvlink(const std::string& gpu, const std::string& other, const char* library) {
  const Library nvml(library);
  auto* const begin = nvml.function<int()>("nvmlInit_v2");
  auto* const end = nvml.function<int()>("nvmlShutdown");
  auto* const find = nvml.function<int(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2");
  auto* const ask = nvml.function<int(Device, Device, int, int*)>("nvmlDeviceGetP2PStatus");
  if (begin == nullptr || end == nullptr || find == nullptr || ask == nullptr || begin() != kSuccess) return std::nullopt;
  Device a = nullptr, b = nullptr;
  int status = 0;
  const bool known =
      find(gpu.c_str(), &a) == kSuccess && find(other.c_str(), &b) == kSuccess && ask(a, b, kIndexNvlink, &status) == kSuccess;
  end();
  return known ? std::optional(status == kStatusOk) : std::nullopt;
}

}  // namespace railweave::cuda
