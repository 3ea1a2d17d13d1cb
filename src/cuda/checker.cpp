#include "checker.hpp"

#include <algorithm>

#include "device.hpp"

namespace railweave::cuda {
namespace {

template <typename T>
T* allocate_zeroed(std::size_t bytes, cudaStream_t stream) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "allocating " + std::to_string(bytes) + " bytes on the GPU for checksums");
  check(cudaMemsetAsync(memory, 0, bytes, stream), "clearing memory for checksums");
  return static_cast<T*>(memory);
}

}  // namespace

Checker::Checker(std::uint32_t world) {
  const Stream stream = make_stream();
  memory_.reset(allocate_zeroed<Memory>(sizeof(Memory), stream.get()));
  counts_.reset(allocate_zeroed<std::uint64_t>(sizeof(std::uint64_t) * world, stream.get()));
  check(cudaStreamSynchronize(stream.get()), "clearing memory for checksums");
  preload_checks();
}

void Checks::add_send(Checker& checker, std::uint32_t peer, const std::byte* data, std::uint64_t bytes, Sums* sums) {
  CheckedMessage m{};
  m.data = data;
  m.bytes = bytes;
  m.sums = sums;
  m.count = checker.sent(peer);
  m.peer = peer;
  sends_.push_back(m);
}

void Checks::add_receive(HostView& host, Checker& checker, std::uint32_t peer, const std::byte* data, std::uint64_t bytes, Sums* sums) {
  CheckedMessage m{};
  m.data = data;
  m.bytes = bytes;
  m.sums = sums;
  m.host = &host;
  m.peer = peer;
  receives_.push_back(m);
  state_ = checker.state();
}

void Checks::launch(std::vector<CheckedMessage>& messages, CheckState* compared, cudaStream_t stream) {
  for (std::size_t begin = 0; begin < messages.size(); begin += kCheckedPerLaunch) {
    const std::span<CheckedMessage> part =
        std::span(messages).subspan(begin, std::min<std::size_t>(kCheckedPerLaunch, messages.size() - begin));
    launch_check(part, place_checks(part), compared, stream);
  }
}

}  // namespace railweave::cuda
