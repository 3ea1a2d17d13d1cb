#include "region.hpp"

#include <unistd.h>

#include <cstring>
#include <new>
#include <string>

#include "device.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

void* allocate_zeroed(std::uint64_t bytes, const std::string& what, cudaStream_t stream) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "allocating " + std::to_string(bytes) + " bytes on the GPU for " + what);
  check(cudaMemsetAsync(data, 0, bytes, stream), "clearing " + what);
  return data;
}

// Packets need a link that carries 128 bytes together, and pushes are announced by atomic adds: NVLink does both, PCIe neither. A GPU that
// this process does not see cannot be asked about.
void check_link(int own, const std::string& bus, const std::string& who) {
  int other = 0, atomics = 0;
  if (cudaDeviceGetByPCIBusId(&other, bus.c_str()) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  if (other == own) return;
  check(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, own, other), "asking for the link between GPUs");
  if (atomics == 0) throw BootstrapError(who + " is not linked to this rank's by NVLink: no atomic operations between them");
}

}  // namespace

Region::Region(std::uint32_t own, std::uint32_t mates) : mate_(own), mapped_(mates), opened_(mates) {
  // A stream of its own: to wait for the device would be to wait for kernels that may wait for peers.
  const Stream stream = make_stream();
  try {
    ports_ = static_cast<Port*>(allocate_zeroed(sizeof(Port) * mates, "the communicator's slots", stream.get()));
    own_ = static_cast<Own*>(allocate_zeroed(sizeof(Own) + sizeof(Mapping) * kMappings * mates, "the communicator's state", stream.get()));
    void* host = nullptr;
    check(cudaHostAlloc(&host, sizeof(HostView), cudaHostAllocPortable | cudaHostAllocMapped), "allocating pinned host memory");
    host_ = new (host) HostView{};
    check(cudaHostAlloc(&host, kPortWordsBytes * mates, cudaHostAllocPortable), "allocating pinned host memory");
    words_ = static_cast<std::byte*>(host);
    check(cudaStreamSynchronize(stream.get()), "clearing the communicator's memory");
  } catch (...) {
    release();
    throw;
  }
  mapped_[own] = ports_;
}

Region::~Region() { release(); }

void Region::release() noexcept {
  for (std::size_t mate = 0; mate < mapped_.size(); ++mate) {
    if (opened_[mate]) cudaIpcCloseMemHandle(mapped_[mate]);
  }
  cudaFree(ports_);
  cudaFree(own_);
  cudaFreeHost(host_);
  cudaFreeHost(words_);
}

const Port* Region::copy_words(std::uint32_t mate, cudaStream_t stream) const {
  std::byte* const copy = words_ + kPortWordsBytes * mate;
  check(cudaMemcpyAsync(copy, ports_ + mate, kPortWordsBytes, cudaMemcpyDeviceToHost, stream), "reading the words of a port");
  return reinterpret_cast<const Port*>(copy);
}

RegionHandle Region::handle() const {
  RegionHandle handle{};
  handle.pid = static_cast<std::int32_t>(::getpid());
  check(cudaGetDevice(&handle.device), "asking for the current device");
  handle.address = reinterpret_cast<std::uint64_t>(ports_);
  check(cudaIpcGetMemHandle(&handle.memory, ports_), "exporting GPU memory to other processes");
  check(cudaDeviceGetPCIBusId(handle.bus, sizeof handle.bus, handle.device), "asking for a GPU's PCI address");
  return handle;
}

void Region::map(std::uint32_t mate, const std::string& name, const RegionHandle& handle) {
  if (mate == mate_) return;
  int own = 0;
  check(cudaGetDevice(&own), "asking for the current device");
  const std::string bus(handle.bus, ::strnlen(handle.bus, sizeof handle.bus));
  const std::string who = name + "'s GPU " + bus;
  check_link(own, bus, who);
  if (handle.pid == static_cast<std::int32_t>(::getpid())) {
    if (handle.device != own) {
      int reachable = 0;
      check(cudaDeviceCanAccessPeer(&reachable, own, handle.device), "asking whether GPUs reach each other");
      if (reachable == 0) throw BootstrapError(who + " cannot be reached from this rank's: no peer access");
      const cudaError_t error = cudaDeviceEnablePeerAccess(handle.device, 0);
      static_cast<void>(cudaGetLastError());
      if (error != cudaErrorPeerAccessAlreadyEnabled) check(error, "enabling peer access to " + who);
    }
    mapped_[mate] = reinterpret_cast<Port*>(handle.address);
    return;
  }
  void* base = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&base, handle.memory, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw BootstrapError(who + ": its memory cannot be mapped from this rank's: " + cudaGetErrorString(error));
  }
  mapped_[mate] = static_cast<Port*>(base);
  opened_[mate] = true;
}

}  // namespace railweave::cuda
