#include "region.hpp"

#include <unistd.h>

#include <cstring>
#include <new>
#include <string>

#include "device.hpp"
#include "nvlink.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

std::string address_of(int device) {
  char bus[16] = {};
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "asking for a GPU's PCI address");
  return bus;
}

// CUDA maps the memory of a GPU that this process does not see, but says nothing of the link to it.
void check_hidden_link(int own, const std::string& bus, const std::string& who) {
  const auto joined = joined_by_nvlink(address_of(own), bus);
  if (!joined)
    throw BootstrapError(who +
                         " is not visible to this rank, and NVML, which could tell how they are linked, does not answer "
                         "(let each rank see all GPUs of its node)");
  if (!*joined) throw BootstrapError(who + " is not linked to this rank's by NVLink, as NVML says");
}

// Packets need a link that carries 128 bytes together, and pushes are announced by atomic adds: NVLink does both, PCIe neither.
void check_link(int own, const std::string& bus, const std::string& who) {
  int other = 0, atomics = 0;
  if (cudaDeviceGetByPCIBusId(&other, bus.c_str()) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return check_hidden_link(own, bus, who);
  }
  if (other == own) return;
  check(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, own, other), "asking for the link between GPUs");
  if (atomics == 0) throw BootstrapError(who + " is not linked to this rank's by NVLink: no atomic operations between them");
}

}  // namespace

Region::Region(std::uint32_t own, std::uint32_t mates) : mate_(own), ports_(mates) {
  // A stream of its own: to wait for the device would be to wait for kernels that may wait for peers.
  const Stream stream = make_stream();
  try {
    LentMemory lent = lend(sizeof(Port) * mates, "the communicator's slots");
    ports_[own] = std::move(lent.memory);
    handle_ = lent.handle;
    check(cudaMemsetAsync(ports_[own].get(), 0, sizeof(Port) * mates, stream.get()), "clearing the communicator's slots");
    void* state = nullptr;
    check(cudaMalloc(&state, sizeof(Own)), "allocating " + std::to_string(sizeof(Own)) + " bytes on the GPU for the communicator's state");
    own_ = static_cast<Own*>(state);
    check(cudaMemsetAsync(state, 0, sizeof(Own), stream.get()), "clearing the communicator's state");
    Ledger ledger{};
    ledger.ports = local(0);
    ledger.mates = mates;
    check(cudaMemcpyAsync(&own_->ledger, &ledger, sizeof ledger, cudaMemcpyHostToDevice, stream.get()), "writing the communicator's state");
    void* host = nullptr;
    check(cudaHostAlloc(&host, sizeof(HostView), cudaHostAllocPortable | cudaHostAllocMapped), "allocating pinned host memory");
    host_ = new (host) HostView{};
    const std::size_t words = (2 * kPortWordsBytes + sizeof(MovedBytes)) * mates + sizeof(Ledger);
    check(cudaHostAlloc(&host, words, cudaHostAllocPortable), "allocating pinned host memory");
    words_ = static_cast<std::byte*>(host);
    check(cudaStreamSynchronize(stream.get()), "clearing the communicator's memory");
  } catch (...) {
    release();
    throw;
  }
}

Region::~Region() { release(); }

void Region::release() noexcept {
  cudaFree(own_);
  cudaFreeHost(host_);
  cudaFreeHost(words_);
}

// Copies need no SM, of which others' kernels may have all.
void Region::halt(cudaStream_t stream) {
  constexpr std::size_t kWord = sizeof(Count::over);
  for (std::uint32_t mate = 0; mate < ports_.size(); ++mate)
    check(
        cudaMemcpy2DAsync(&local(mate)->counts[0].over, sizeof(Count), host_->over, kWord, kWord, kCounts, cudaMemcpyHostToDevice, stream),
        "ending a communicator");
}

const Ledger& Region::copy_ledger(cudaStream_t stream) const {
  std::byte* const copy = words_ + 2 * kPortWordsBytes * ports_.size();
  check(cudaMemcpyAsync(copy, ledger(), sizeof(Ledger), cudaMemcpyDefault, stream), "reading what has ended");
  return *reinterpret_cast<const Ledger*>(copy);
}

std::span<const MovedBytes> Region::copy_moved(cudaStream_t stream) const {
  static_assert(sizeof(MovedBytes) == sizeof(Port::moved_bytes));
  std::byte* const copy = words_ + 2 * kPortWordsBytes * ports_.size() + sizeof(Ledger);
  check(cudaMemcpy2DAsync(copy, sizeof(MovedBytes), local(0)->moved_bytes, sizeof(Port), sizeof(MovedBytes), ports_.size(),
                          cudaMemcpyDefault, stream),
        "reading what has been moved");
  return {reinterpret_cast<const MovedBytes*>(copy), ports_.size()};
}

const Port* Region::copy_words(const Port* port, std::uint32_t place, cudaStream_t stream) const {
  std::byte* const copy = words_ + kPortWordsBytes * place;
  check(cudaMemcpyAsync(copy, port, kPortWordsBytes, cudaMemcpyDefault, stream), "reading the words of a port");
  return reinterpret_cast<const Port*>(copy);
}

const Port* Region::copy_words(std::uint32_t mate, cudaStream_t stream) const { return copy_words(local(mate), 2 * mate, stream); }

const Port* Region::copy_mates_words(std::uint32_t mate, cudaStream_t stream) const {
  return copy_words(remote(mate), 2 * mate + 1, stream);
}

RegionHandle Region::handle() const {
  RegionHandle handle{};
  handle.pid = static_cast<std::int32_t>(::getpid());
  check(cudaGetDevice(&handle.device), "asking for the current device");
  handle.ports = handle_;
  address_of(handle.device).copy(handle.bus, sizeof handle.bus);
  return handle;
}

void Region::map(std::uint32_t mate, const std::string& name, const RegionHandle& handle) {
  if (mate == mate_) return;
  int own = 0;
  check(cudaGetDevice(&own), "asking for the current device");
  const std::string bus(handle.bus, ::strnlen(handle.bus, sizeof handle.bus));
  const std::string who = name + "'s GPU " + bus;
  check_link(own, bus, who);
  const bool same_process = handle.pid == static_cast<std::int32_t>(::getpid());
  if (same_process && handle.device != own) {
    int reachable = 0;
    check(cudaDeviceCanAccessPeer(&reachable, own, handle.device), "asking whether GPUs reach each other");
    if (reachable == 0) throw BootstrapError(who + " cannot be reached from this rank's: no peer access");
    const cudaError_t error = cudaDeviceEnablePeerAccess(handle.device, 0);
    static_cast<void>(cudaGetLastError());
    if (error != cudaErrorPeerAccessAlreadyEnabled) check(error, "enabling peer access to " + who);
  }
  try {
    ports_[mate] = map_lent(handle.ports, same_process);
  } catch (const DeviceError& error) {
    throw BootstrapError(who + ": its memory cannot be used from this rank's: " + error.what());
  }
}

}  // namespace railweave::cuda
