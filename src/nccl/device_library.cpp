#include "device_library.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "log.hpp"
#include "settings.hpp"
#include "thread_own.hpp"

namespace railweave::nccl {
namespace {

constexpr const char* kName = "librailweave_cuda.so";

// Beside the shim, as it was loaded and where that leads: in NCCL's place it is a link in a folder of its own.
std::vector<std::string> places() {
  std::vector<std::string> result;
  if (const std::string& named = settings().cuda_library; !named.empty()) {
    result.push_back(named);
    return result;
  }
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&device_library), &info) != 0 && info.dli_fname != nullptr) {
    const std::filesystem::path shim = info.dli_fname;
    std::error_code unreadable;
    for (const std::filesystem::path& each : {shim, std::filesystem::canonical(shim, unreadable)})
      if (each.has_parent_path()) result.push_back(each.parent_path() / kName);
  }
  result.emplace_back(kName);
  return result;
}

DeviceLibrary load() {
  std::string error, path;
  void* handle = nullptr;
  for (const std::string& place : places()) {
    path = place;
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    error = ::dlerror();
  }
  if (handle == nullptr) return {nullptr, "no device library: " + error + "; build one (make cuda) and set RAILWEAVE_CUDA_LIBRARY to it"};
  const auto entry = reinterpret_cast<railweave_cuda_entry_function>(::dlsym(handle, "railweave_cuda_entry"));
  const railweave_cuda_api* api = entry == nullptr ? nullptr : entry(RAILWEAVE_CUDA_VERSION);
  // explain came last of what there has to be.
  if (api == nullptr || api->size <= offsetof(railweave_cuda_api, explain) || api->version != RAILWEAVE_CUDA_VERSION)
    return {nullptr, path + " does not have version " + std::to_string(RAILWEAVE_CUDA_VERSION) +
                         " of the device interface; install one build of both"};
  if (logs(LogLevel::debug)) api->explain([](const char* text) { explained() = text; });
  return {api, ""};
}

}  // namespace

std::string& explained() { return capi::thread_own<std::string, DeviceLibrary>(); }

const DeviceLibrary& device_library() {
  // Never unloaded: streams may hold its kernels and callbacks until the process ends, and threads of the shim go on until then.
  static const DeviceLibrary& library = *new DeviceLibrary(load());
  return library;
}

ncclResult_t to_nccl(railweave_status status) {
  switch (status) {
    case RAILWEAVE_OK: return ncclSuccess;
    case RAILWEAVE_ERROR_ARGUMENT:
    case RAILWEAVE_ERROR_SETTINGS: return ncclInvalidArgument;
    case RAILWEAVE_ERROR_BOOTSTRAP:
    case RAILWEAVE_ERROR_TRANSPORT: return ncclSystemError;
    case RAILWEAVE_ERROR_RANK_DIED: return ncclRemoteError;
    case RAILWEAVE_ERROR_EXCHANGE: return ncclInvalidUsage;
    case RAILWEAVE_ERROR_INTERNAL: break;
  }
  return ncclInternalError;
}

}  // namespace railweave::nccl
