#include "indirect_memory.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "device.hpp"
#include "indirect_layout.hpp"

namespace railweave::cuda {
namespace {

// Lent memory of this process, which other ranks in it use as it is: it stays until the last one has let go of it.
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

IndirectMemory::IndirectMemory(std::uint32_t own, std::uint32_t mates, const ExchangeSettings& settings, Remarks& remarks)
    : own_(own),
      mates_(mates),
      relay_slots_(settings.gpu_relays != 0 ? cuda::relay_slots(mates) : std::uint8_t{0}),
      remarks_(remarks),
      lent_(mates),
      pinned_(mates),
      pairs_(mates) {
  try {
    if (relay_slots_ != 0) lend();
  } catch (const Error& error) {
    lent_[own_].reset();
    remarks_.once(std::string("no messages of others pass through this rank's GPU: ") + error.what());
  }
  try {
    if (settings.gpu_host_share != 0 && mates > 1) pin_own();
  } catch (const Error& error) {
    pinned_[own_] = {};
    remarks_.once(std::string("no messages reach this rank over host memory: ") + error.what());
  }
}

void IndirectMemory::lend() {
  void* memory = nullptr;
  const std::uint64_t bytes = lent_bytes(mates_);
  check(cudaMalloc(&memory, bytes), "allocating " + std::to_string(bytes) + " bytes on the GPU for them");
  lent_[own_] = std::shared_ptr<void>(memory, [](void* lent) {
    lent_here().forget(lent);
    cudaFree(lent);
  });
  lent_here().add(lent_[own_]);
  check(cudaIpcGetMemHandle(&lent_handle_, memory), "exporting GPU memory to other processes");
}

// Before mates have it, so that it is memory of this process's NUMA node.
void IndirectMemory::pin_own() {
  Pinned& own = pinned_[own_];
  own.memory = engine::SharedMemory::create("railweave-host-path", host_bytes(mates_));
  own.pin = pin({own.memory.data(), own.memory.bytes()}, "slots");
}

IndirectHandle IndirectMemory::handle() const {
  IndirectHandle handle{};
  handle.host.fd = -1;
  if (pinned_[own_].pin.address != 0) handle.host = pinned_[own_].memory.handle();
  handle.memory = lent_handle_;
  handle.address = reinterpret_cast<std::uint64_t>(lent_[own_].get());
  return handle;
}

void IndirectMemory::map(std::uint32_t mate, const std::string& name, bool same_process, const IndirectHandle& handle) {
  if (mate == own_) return;
  if (relay_slots_ != 0 && handle.address != 0) {
    if (same_process) {
      lent_[mate] = lent_here().find(handle.address);
    } else {
      void* base = nullptr;
      const cudaError_t error = cudaIpcOpenMemHandle(&base, handle.memory, cudaIpcMemLazyEnablePeerAccess);
      static_cast<void>(cudaGetLastError());
      if (error == cudaSuccess)
        lent_[mate] = std::shared_ptr<void>(base, [](void* opened) { cudaIpcCloseMemHandle(opened); });
      else
        remarks_.once("no messages pass through " + name + "'s GPU: its memory cannot be mapped: " + cudaGetErrorString(error));
    }
  }
  if (pinned_[own_].pin.address == 0 || handle.host.fd < 0) return;
  try {
    Pinned& there = pinned_[mate];
    there.memory = engine::SharedMemory::open(handle.host);
    const std::uint64_t offset = host_offset(own_, mate);
    if (there.memory.bytes() < offset + kHostBytes) throw Error("it is " + std::to_string(there.memory.bytes()) + " bytes");
    there.pin = pin({there.memory.data() + offset, kHostBytes}, "slots");
  } catch (const Error& error) {
    pinned_[mate] = {};
    remarks_.once("no messages reach " + name + " over host memory: " + error.what());
  }
}

std::uint64_t IndirectMemory::lent_slots(std::uint32_t relay, std::uint32_t source, std::uint32_t destination) const {
  if (lent_[relay] == nullptr) return 0;
  return reinterpret_cast<std::uint64_t>(lent_[relay].get()) + lent_offset(mates_, relay, source, destination);
}

// The destination has slots for each source, which has mapped its own ones only.
std::uint64_t IndirectMemory::host_slots(std::uint32_t source, std::uint32_t destination) const {
  const std::uint64_t address = pinned_[destination].pin.address;
  return address == 0 || destination != own_ ? address : address + host_offset(source, destination);
}

void IndirectMemory::write_paths(const Region& region) {
  if (relay_slots_ == 0 && pinned_[own_].pin.address == 0) return;
  const Stream stream = make_stream();
  void* counts = nullptr;
  check(cudaHostAlloc(&counts, mates_ * sizeof(IndirectSent), cudaHostAllocPortable | cudaHostAllocMapped),
        "allocating pinned host memory");
  std::uninitialized_value_construct_n(static_cast<IndirectSent*>(counts), mates_);
  sent_.reset(static_cast<IndirectSent*>(counts));
  std::vector<std::uint64_t> sent_at(mates_);
  // Of IndirectPath, from `to` on.
  struct Addresses {
    std::uint64_t to, from, link_to, link_in;
  };
  static_assert(sizeof(Addresses) == sizeof(IndirectPath) - offsetof(IndirectPath, to));
  std::vector<Addresses> written(std::size_t{mates_} * kIndirectPaths);
  const auto write = [&](std::uint32_t mate, std::uint32_t path, const Addresses& addresses) {
    if (addresses.to != 0) pairs_[mate].to |= static_cast<std::uint8_t>(1u << path);
    if (addresses.from != 0) pairs_[mate].from |= static_cast<std::uint8_t>(1u << path);
    Addresses& copy = written[std::size_t{mate} * kIndirectPaths + path];
    copy = addresses;
    check(cudaMemcpyAsync(&region.local(mate)->indirect[path].to, &copy, sizeof copy, cudaMemcpyHostToDevice, stream.get()),
          "writing the paths of a pair");
  };
  for (std::uint32_t mate = 0; mate < mates_; ++mate) {
    if (mate == own_) continue;
    sent_at[mate] = reinterpret_cast<std::uint64_t>(&sent_[mate]);
    check(cudaMemcpyAsync(&region.local(mate)->sent_at, &sent_at[mate], sizeof sent_at[mate], cudaMemcpyHostToDevice, stream.get()),
          "writing where a pair counts");
    write(mate, kHostPath, {host_slots(own_, mate), host_slots(mate, own_), 0, 0});
    std::uint32_t path = kFirstRelay;
    for (std::uint32_t relay = 0; relay < mates_ && relay_slots_ != 0; ++relay) {
      if (relay == own_ || relay == mate) continue;
      write(mate, path++,
            {lent_slots(relay, own_, mate), lent_slots(relay, mate, own_), reinterpret_cast<std::uint64_t>(&region.local(relay)->link_free),
             reinterpret_cast<std::uint64_t>(&region.remote(relay)->link_free)});
    }
  }
  check(cudaStreamSynchronize(stream.get()), "writing the paths of pairs");
}

IndirectSent IndirectMemory::sent() const {
  IndirectSent sum{};
  for (std::uint32_t mate = 0; mate < mates_ && sent_ != nullptr; ++mate) {
    sum.over_host += std::atomic_ref(sent_[mate].over_host).load(std::memory_order_relaxed);
    sum.over_relays += std::atomic_ref(sent_[mate].over_relays).load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace railweave::cuda
