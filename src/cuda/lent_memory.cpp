#include "lent_memory.hpp"

#include <map>
#include <mutex>

#include "device.hpp"

namespace railweave::cuda {
namespace {

// Lent memory of this process.
class LentHere {
 public:
  void add(const std::shared_ptr<void>& memory) {
    const std::scoped_lock lock(mutex_);
    memory_[reinterpret_cast<std::uint64_t>(memory.get())] = memory;
  }
  std::shared_ptr<void> find(std::uint64_t address) {
    const std::scoped_lock lock(mutex_);
    const auto found = memory_.find(address);
    return found == memory_.end() ? nullptr : found->second.lock();
  }
  void forget(void* memory) {
    const std::scoped_lock lock(mutex_);
    memory_.erase(reinterpret_cast<std::uint64_t>(memory));
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<void>> memory_;
};
// Never destroyed: programs destroy communicators as late as when the process ends.
LentHere& lent_here() {
  static LentHere& instance = *new LentHere;
  return instance;
}

}  // namespace

LentMemory lend(std::uint64_t bytes, const std::string& what) {
  LentHere& here = lent_here();  // made by now: who gives back must not need memory for it
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "allocating " + std::to_string(bytes) + " bytes on the GPU for " + what);
  LentMemory lent;
  lent.memory = std::shared_ptr<void>(memory, [&here](void* data) {
    here.forget(data);
    cudaFree(data);
  });
  here.add(lent.memory);
  check(cudaIpcGetMemHandle(&lent.handle.memory, memory), "exporting GPU memory to other processes");
  lent.handle.address = reinterpret_cast<std::uint64_t>(memory);
  return lent;
}

std::shared_ptr<void> map_lent(const LentHandle& handle, bool same_process) {
  if (same_process) {
    std::shared_ptr<void> memory = lent_here().find(handle.address);
    if (memory == nullptr) throw DeviceError("its owner has given it back");
    return memory;
  }
  void* base = nullptr;
  check(cudaIpcOpenMemHandle(&base, handle.memory, cudaIpcMemLazyEnablePeerAccess), "mapping another process's GPU memory");
  return {base, [](void* opened) { cudaIpcCloseMemHandle(opened); }};
}

}  // namespace railweave::cuda
