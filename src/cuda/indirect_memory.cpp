#include "indirect_memory.hpp"

#include <atomic>
#include <memory>
#include <utility>

#include "device.hpp"
#include "indirect_layout.hpp"

namespace railweave::cuda {

IndirectMemory::IndirectMemory(std::uint32_t own, std::uint32_t mates, const ExchangeSettings& settings, Remarks& remarks)
    : own_(own),
      mates_(mates),
      relay_slots_(settings.gpu_relays != 0 ? cuda::relay_slots(mates) : std::uint8_t{0}),
      remarks_(remarks),
      lent_(mates),
      pinned_(mates),
      pairs_(mates) {
  try {
    if (relay_slots_ != 0) {
      const LentMemory mine = lend(lent_bytes(mates), "them");
      lent_[own_] = mine.memory;
      lent_handle_ = mine.handle;
    }
  } catch (const Error& error) {
    remarks_.once(std::string("no messages of others pass through this rank's GPU: ") + error.what());
  }
  try {
    if (settings.gpu_host_share != 0 && mates > 1) pin_own();
  } catch (const Error& error) {
    pinned_[own_] = {};
    remarks_.once(std::string("no messages reach this rank over host memory: ") + error.what());
  }
}

std::uint64_t IndirectMemory::lent_here() const { return lent_[own_] == nullptr ? 0 : lent_bytes(mates_); }

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
  handle.lent = lent_handle_;
  return handle;
}

void IndirectMemory::map(std::uint32_t mate, const std::string& name, bool same_process, const IndirectHandle& handle) {
  if (mate == own_) return;
  try {
    if (relay_slots_ != 0 && handle.lent.address != 0) lent_[mate] = map_lent(handle.lent, same_process);
  } catch (const Error& error) {
    remarks_.once("no messages pass through " + name + "'s GPU: " + error.what());
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
