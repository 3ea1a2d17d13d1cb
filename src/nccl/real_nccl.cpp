#include "real_nccl.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "log.hpp"
#include "settings.hpp"
#include "thread_own.hpp"

namespace railweave::nccl {

thread_local int InsideReal::depth_ = 0;

namespace {

constexpr const char* kLibrary = "libnccl.so.2";

struct Found {
  void* handle = nullptr;
  std::string origin;
};

// In drop-in mode the shim itself is called libnccl.so.2. By where it lies in memory: the path that it was loaded by is of the folder that
// the program worked in then.
bool is_own(void* handle) {
  void* symbol = ::dlsym(handle, "ncclGetVersion");
  Dl_info info{}, own{};
  return symbol != nullptr && ::dladdr(symbol, &info) != 0 && ::dladdr(reinterpret_cast<void*>(&real_symbol), &own) != 0 &&
         info.dli_fbase == own.dli_fbase;
}

// An object that the program has loaded, as the loader knows it, and the addresses from its first byte to past its last one.
struct Loaded {
  std::string path;
  std::uintptr_t begin = UINTPTR_MAX, end = 0;
};

std::vector<Loaded> loaded_objects() {
  std::vector<Loaded> result;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* list) {
        Loaded object{info->dlpi_name, UINTPTR_MAX, 0};
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          object.begin = std::min<std::uintptr_t>(object.begin, info->dlpi_addr + segment.p_vaddr);
          object.end = std::max<std::uintptr_t>(object.end, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
        }
        // The program itself has no name here; what it has in it comes before the shim, whose functions nobody calls then.
        if (!object.path.empty()) static_cast<std::vector<Loaded>*>(list)->push_back(std::move(object));
        return 0;
      },
      &result);
  return result;
}

// NCCL in a library of another name: a copy that a Python package brings, or one that a library of the program was linked with. Where it
// exports NCCL's functions its own calls of them come to the shim, which may be out of reach of RTLD_NEXT. The first one that was loaded.
Found find_loaded() {
  Found found;
  for (const Loaded& object : loaded_objects()) {
    void* const handle = ::dlopen(object.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    // The handle gives what the object's own dependencies have, too.
    const auto has = [&](const char* name) {
      const auto symbol = reinterpret_cast<std::uintptr_t>(::dlsym(handle, name));
      return symbol >= object.begin && symbol < object.end;
    };
    if (is_own(handle) || !has("ncclGetVersion") || !has("ncclCommInitRank")) {
      ::dlclose(handle);
    } else if (found.handle == nullptr) {
      found = {handle, "in " + object.path + ", which the program has loaded"};
    } else {
      log(LogLevel::warn, "NCCL is in " + object.path + ", too; its calls go to the one " + found.origin +
                              "; set RAILWEAVE_NCCL_LIBRARY to the one that is meant");
      ::dlclose(handle);
    }
  }
  return found;
}

std::vector<std::string> search_directories() {
  std::vector<std::string> result;
  if (const char* path = std::getenv("LD_LIBRARY_PATH"); path != nullptr) {
    const std::string text = path;
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find(':', at), text.size());
      if (end > at) result.push_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  for (const char* directory :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64"})
    result.emplace_back(directory);
  return result;
}

Found find_on_path() {
  if (void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL); handle != nullptr && !is_own(handle)) return {handle, "on the search path"};
  for (const std::string& directory : search_directories()) {
    const std::string path = directory + "/" + kLibrary;
    if (void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr && !is_own(handle)) return {handle, path};
  }
  return {nullptr,
          "no libnccl.so.2 other than the shim itself was found, neither loaded by the program nor on the search path; set "
          "RAILWEAVE_NCCL_LIBRARY to the real one"};
}

Found find_real() {
  if (const std::string& named = settings().nccl_library; !named.empty()) {
    const auto refused = [&](const std::string& why) {
      return Found{nullptr, "RAILWEAVE_NCCL_LIBRARY=" + named + ": " + why + "; expected the real libnccl.so.2"};
    };
    void* const handle = ::dlopen(named.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return refused(::dlerror());
    if (::dlsym(handle, "ncclGetVersion") == nullptr) return refused("is no NCCL: it has no ncclGetVersion");
    if (is_own(handle)) return refused("is the shim itself");
    return {handle, named};
  }
  // What the program has loaded, also where it is not in the global scope (Python modules).
  void* const named = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  const bool in_place = named != nullptr && is_own(named);
  if (named != nullptr && !in_place) return {named, "loaded by the program"};
  if (::dlsym(RTLD_NEXT, "ncclGetVersion") != nullptr) return {RTLD_NEXT, "next in the program's symbol scope"};
  // In NCCL's place the name stands for the next one on the path, and what is loaded may open that name, and come back here.
  if (in_place) return find_on_path();
  if (Found found = find_loaded(); found.handle != nullptr) return found;
  Found found = find_on_path();
  if (found.handle != nullptr)
    log(LogLevel::warn, "the program has loaded no NCCL that exports its functions; its calls go to the one that was found: " +
                            found.origin + ". Set RAILWEAVE_NCCL_LIBRARY if it is meant to have another one");
  return found;
}

const Found& found() {
  // Never freed, as nothing here is: programs call while static objects are destroyed.
  static const Found& result = *[] {
    const auto* const real = new Found(find_real());
    if (real->handle == nullptr)
      log(LogLevel::warn, real->origin);
    else
      log(LogLevel::info, "NCCL: " + real->origin);
    return real;
  }();
  return result;
}

std::mutex error_mutex;
std::string& error_text() {  // guarded by error_mutex
  static std::string& text = *new std::string;
  return text;
}

}  // namespace

void* real_symbol(const char* name) { return found().handle == nullptr ? nullptr : ::dlsym(found().handle, name); }

const char* real_origin() { return found().origin.c_str(); }

ncclResult_t missing(const char* name) {
  if (found().handle == nullptr) {  // said when it was looked for
    set_last_error(found().origin.c_str());
    return ncclInvalidUsage;
  }
  const std::string text = std::string(name) + " is not in this NCCL (" + found().origin + "); update NCCL or do not call it";
  set_last_error(text.c_str());
  static std::mutex told_mutex;
  static std::set<std::string>& told = *new std::set<std::string>;  // a program may try again and again
  const std::lock_guard lock(told_mutex);
  if (told.insert(text).second) log(LogLevel::warn, text);
  return ncclInvalidUsage;
}

void set_last_error(const char* text) {
  const std::lock_guard lock(error_mutex);
  error_text() = text;
}

const char* last_error() {
  const std::lock_guard lock(error_mutex);
  std::string& handed = capi::thread_own<std::string, struct Handed>();  // until the thread's next call
  handed = error_text();
  return handed.c_str();
}

void clear_last_error() { set_last_error(""); }

}  // namespace railweave::nccl
