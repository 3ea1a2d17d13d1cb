// include/railweave/cuda.h over Communicator.
#include <cuda_runtime_api.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "communicator.hpp"
#include "device.hpp"
#include "railweave/cuda.h"
#include "railweave/engine/error.hpp"
#include "refusal.hpp"
#include "settings.hpp"
#include "status.hpp"

struct railweave_cuda_communicator {
  railweave::cuda::Communicator communicator;
  const pid_t process = ::getpid();

  // What a forked child ends stays as it is: it has none of the threads, and its parent's mates would take its word for its parent's. So
  // does what is ended behind the library's handler at the end of the process, as CUDA's have taken its memory by then.
  bool is_of_this_process() const { return process == ::getpid() && !railweave::cuda::Communicator::ends_with_process(); }
};

namespace {

using namespace railweave;
using cuda::Communicator;

using capi::require;

// What CUDA refuses is not the caller's argument.
template <typename Call>
railweave_status guarded(Call&& call) noexcept {
  return capi::guarded([&] {
    try {
      call();
    } catch (const cuda::DeviceError& error) {
      throw std::runtime_error(error.what());
    }
  });
}

const char* last_error() { return capi::last_error().text.c_str(); }

railweave_status probe(int32_t device) {
  return guarded([&] {
    int count = 0;
    cuda::check(cudaGetDeviceCount(&count), "looking for GPUs");
    if (device < 0 || device >= count) throw Error("device " + std::to_string(device) + "; there are " + std::to_string(count));
    int driver = 0;
    cuda::check(cudaDriverGetVersion(&driver), "asking for the driver's version");
    if (const std::string refusal = cuda::parameters_refusal(driver); !refusal.empty()) throw Error(refusal);
    int major = 0;
    cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for a GPU's architecture");
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, device), "asking for a GPU's name");
    if (const std::string refusal = cuda::device_refusal(device, {properties.name, major}); !refusal.empty()) throw Error(refusal);
  });
}

using Told = decltype(railweave_cuda_config::log);

cuda::Remarks::Say teller(Told told, void* context) {
  if (told == nullptr) return [](const std::string&) {};
  return [told, context](const std::string& text) { told(context, text.c_str()); };
}

railweave_status create(const railweave_cuda_config* config, railweave_cuda_communicator** communicator) {
  return guarded([&] {
    require(config, "config");
    require(communicator, "communicator");
    *communicator = nullptr;
    if (config->size < offsetof(railweave_cuda_config, log))
      throw Error("config of " + std::to_string(config->size) + " bytes: of an older version");
    require(config->rendezvous, "rendezvous");
    if (config->world == 0 || config->rank >= config->world)
      throw Error("rank " + std::to_string(config->rank) + " of " + std::to_string(config->world));
    const Told log = config->size < offsetof(railweave_cuda_config, warn) ? nullptr : config->log;
    const bool can_warn = config->size >= offsetof(railweave_cuda_config, most_blocks) && config->warn != nullptr;
    const Told warn = can_warn ? config->warn : log;
    cuda::KernelBounds bounds{.channel_bytes = config->channel_bytes};
    if (config->size >= sizeof *config) bounds.most_blocks = config->most_blocks;
    const cuda::DeviceScope scope(config->device);
    std::unique_ptr<railweave_cuda_communicator> made(
        new railweave_cuda_communicator{Communicator(config->rank, config->world, config->device, cuda::settings_of(*config), bounds,
                                                     teller(log, config->log_context), teller(warn, config->log_context))});
    try {
      made->communicator.begin(config->rendezvous);
    } catch (...) {
      // To free its memory waits for kernels, of which others' may wait for what the program does next.
      const std::exception_ptr why = std::current_exception();
      guarded([&] { Communicator::give_back(config->device, std::move(made)); });
      std::rethrow_exception(why);
    }
    *communicator = made.release();
  });
}

railweave_status enqueue(const railweave_cuda_transfer* transfers, size_t count, const railweave_cuda_stream* streams,
                         size_t stream_count) {
  return guarded([&] {
    if (count == 0) return;
    require(transfers, "transfers");
    require(streams, "streams");
    std::vector<cuda::Transfer> list;
    list.reserve(count);
    const auto* at = reinterpret_cast<const std::byte*>(transfers);
    const size_t stride = transfers->size;
    if (stride < sizeof(railweave_cuda_transfer)) throw Error("transfer of " + std::to_string(stride) + " bytes: of an older version");
    for (size_t i = 0; i < count; ++i, at += stride) {
      const auto& transfer = *reinterpret_cast<const railweave_cuda_transfer*>(at);
      require(transfer.communicator, "communicator of a transfer");
      if (transfer.kind != RAILWEAVE_CUDA_SEND && transfer.kind != RAILWEAVE_CUDA_RECV)
        throw Error("kind " + std::to_string(transfer.kind) + " of a transfer; expected RAILWEAVE_CUDA_SEND or RAILWEAVE_CUDA_RECV");
      list.push_back({&transfer.communicator->communicator,
                      transfer.kind == RAILWEAVE_CUDA_SEND ? cuda::Direction::send : cuda::Direction::receive, transfer.peer,
                      static_cast<std::byte*>(transfer.data), transfer.bytes});
    }
    std::vector<cudaStream_t> handles;
    for (size_t i = 0; i < stream_count; ++i) handles.push_back(static_cast<cudaStream_t>(streams[i]));
    Communicator::enqueue(list, handles);
  });
}

railweave_status join(railweave_cuda_communicator* communicator, const railweave_cuda_stream* streams, size_t stream_count) {
  return guarded([&] {
    require(communicator, "communicator");
    if (stream_count == 0) return;
    require(streams, "streams");
    std::vector<cudaStream_t> handles;
    for (size_t i = 0; i < stream_count; ++i) handles.push_back(static_cast<cudaStream_t>(streams[i]));
    communicator->communicator.join(handles);
  });
}

railweave_status async_error(railweave_cuda_communicator* communicator) {
  return guarded([&] {
    require(communicator, "communicator");
    if (const auto failure = communicator->communicator.failure()) cuda::throw_failure(*failure);
  });
}

railweave_status abort_communicator(railweave_cuda_communicator* communicator) {
  return guarded([&] {
    require(communicator, "communicator");
    if (communicator->is_of_this_process()) communicator->communicator.abort();
  });
}

railweave_status drain(railweave_cuda_communicator* communicator) {
  return guarded([&] {
    require(communicator, "communicator");
    if (!communicator->is_of_this_process()) return;
    const cuda::DeviceScope scope(communicator->communicator.device());
    communicator->communicator.drain();
  });
}

void destroy(railweave_cuda_communicator* communicator) {
  if (communicator == nullptr || !communicator->is_of_this_process()) return;
  guarded([&] {
    std::shared_ptr<railweave_cuda_communicator> ending(communicator);
    const int device = ending->communicator.device();
    const cuda::DeviceScope scope(device);
    ending->communicator.end();
    Communicator::give_back(device, std::move(ending));
  });
}

railweave_status register_buffer(railweave_cuda_communicator* communicator, void* data, uint64_t bytes, void** handle) {
  return guarded([&] {
    require(communicator, "communicator");
    require(data, "data");
    require(handle, "handle");
    communicator->communicator.register_buffer(data, bytes);
    *handle = data;
  });
}

// A name needs no taking back: it is found by CUDA's id of the buffer, which ends with the buffer.
railweave_status deregister_buffer(railweave_cuda_communicator* communicator, void* handle) {
  return guarded([&] {
    require(communicator, "communicator");
    require(handle, "handle");
  });
}

railweave_status counters(railweave_cuda_communicator* communicator, railweave_cuda_counters* counters) {
  return guarded([&] {
    require(communicator, "communicator");
    require(counters, "counters");
    const cuda::Counters now = communicator->communicator.counters();
    railweave_cuda_counters all{};
    all.size = counters->size;
    all.enqueued = now.enqueued;
    all.completed = now.completed;
    all.bytes_sent = now.bytes_sent;
    all.bytes_received = now.bytes_received;
    std::copy(std::begin(now.bytes_by_kind), std::end(now.bytes_by_kind), all.bytes_by_kind);
    all.replays = now.replays ? 1 : 0;
    std::memcpy(counters, &all, std::min(counters->size, sizeof all));
  });
}

size_t describe(railweave_cuda_communicator* communicator, char* text, size_t bytes) {
  std::string whole;
  guarded([&] {
    require(communicator, "communicator");
    whole = communicator->communicator.describe();
  });
  if (text != nullptr && bytes != 0) {
    const size_t length = std::min(bytes - 1, whole.size());
    std::memcpy(text, whole.data(), length);
    text[length] = '\0';
  }
  return whole.size();
}

void put(char* to, size_t room, const std::string& text) {
  const size_t length = std::min(room - 1, text.size());
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

railweave_cuda_nic written(const cuda::NicUse& use) {
  railweave_cuda_nic nic{};
  put(nic.name, sizeof nic.name, use.name);
  nic.bytes_per_second = use.rate_Bps;
  nic.bytes_sent = use.sent;
  nic.owner = use.owner;
  nic.links = use.links;
  nic.links_down = static_cast<uint32_t>(use.down.size());
  std::string down;
  for (const std::string& peer : use.down) {
    if (down.size() + peer.size() + 1 >= sizeof nic.down) break;
    down += peer + '\n';
  }
  put(nic.down, sizeof nic.down, down);
  return nic;
}

size_t nics(railweave_cuda_communicator* communicator, railweave_cuda_nic* nics, size_t count) {
  size_t found = 0;
  guarded([&] {
    require(communicator, "communicator");
    const std::vector<cuda::NicUse> uses = communicator->communicator.nics();
    const size_t stride = nics == nullptr || count == 0 ? 0 : nics->size;
    for (size_t i = 0; i < std::min(count, uses.size()) && stride != 0; ++i) {
      railweave_cuda_nic nic = written(uses[i]);
      nic.size = stride;
      std::memcpy(reinterpret_cast<std::byte*>(nics) + i * stride, &nic, std::min(stride, sizeof nic));
    }
    found = uses.size();
  });
  return found;
}

size_t peers(railweave_cuda_communicator* communicator, railweave_cuda_peer* peers, size_t count) {
  size_t found = 0;
  guarded([&] {
    require(communicator, "communicator");
    const std::vector<cuda::PeerUse> uses = communicator->communicator.peers();
    const size_t stride = peers == nullptr || count == 0 ? 0 : peers->size;
    for (size_t i = 0; i < std::min(count, uses.size()) && stride != 0; ++i) {
      const railweave_cuda_peer peer{stride, uses[i].peer, 0, uses[i].sent, uses[i].received};
      std::memcpy(reinterpret_cast<std::byte*>(peers) + i * stride, &peer, std::min(stride, sizeof peer));
    }
    found = uses.size();
  });
  return found;
}

constexpr railweave_cuda_api kApi{sizeof(railweave_cuda_api),
                                  RAILWEAVE_CUDA_VERSION,
                                  0,
                                  last_error,
                                  probe,
                                  create,
                                  enqueue,
                                  async_error,
                                  abort_communicator,
                                  drain,
                                  destroy,
                                  register_buffer,
                                  deregister_buffer,
                                  counters,
                                  describe,
                                  nics,
                                  join,
                                  Communicator::explain_to,
                                  peers};

}  // namespace

extern "C" const railweave_cuda_api* railweave_cuda_entry(uint32_t version) { return version == RAILWEAVE_CUDA_VERSION ? &kApi : nullptr; }
