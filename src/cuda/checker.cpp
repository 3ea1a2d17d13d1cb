#include "checker.hpp"

#include <algorithm>

#include "device.hpp"

namespace railweave::cuda {
namespace {

// `memory` owns it before anything else may fail.
template <typename Owner>
void allocate_zeroed(Owner& memory, std::size_t bytes, cudaStream_t stream) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "allocating " + std::to_string(bytes) + " bytes on the GPU for checksums");
  memory.reset(static_cast<typename Owner::pointer>(data));
  check(cudaMemsetAsync(data, 0, bytes, stream), "clearing memory for checksums");
}

}  // namespace

Checker::Checker(std::uint32_t world) {
  const Stream stream = make_stream();
  allocate_zeroed(memory_, sizeof(Memory), stream.get());
  allocate_zeroed(counts_, sizeof(std::uint64_t) * world, stream.get());
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
