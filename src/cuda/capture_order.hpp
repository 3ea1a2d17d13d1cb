// Order of a communicator's operations inside graphs that are being captured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace railweave::cuda {

// Captures may be interleaved, with each other and with operations that are not captured: each has its own last operation.
template <typename Stream, typename Node>
class CaptureOrder {
 public:
  using Id = unsigned long long;  // no two captures of a process share it
  // Nobody says when a capture ends, so the ones used last are known. A program has one under way at a time, or one a thread.
  static constexpr std::size_t kKnown = 8;

  // Around an operation. `calls`, of CUDA's, are of that capture: wait_for_event(stream), come_after(stream, node), newest(stream),
  // record_event(node) and move(record node, from, to).
  template <typename Calls>
  void before(const Calls& calls, Id capture, Stream stream) const {
    const auto tail = find(capture);
    if (tail == tails_.end())
      calls.wait_for_event(stream);
    else if (tail->stream != stream)
      calls.come_after(stream, tail->node);
  }

  template <typename Calls>
  void after(const Calls& calls, Id capture, Stream stream) {
    const Node node = calls.newest(stream);
    const auto tail = find(capture);
    if (tail == tails_.end()) {
      tails_.push_back({capture, stream, node, calls.record_event(node)});
      if (tails_.size() > kKnown) tails_.erase(tails_.begin());
      return;
    }
    calls.move(tail->record, tail->node, node);
    const Tail moved{capture, stream, node, tail->record};
    tails_.erase(tail);
    tails_.push_back(moved);
  }

 private:
  struct Tail {
    Id capture;
    Stream stream;
    Node node;    // of the last operation
    Node record;  // records the event behind it
  };
  auto find(Id capture) const {
    return std::find_if(tails_.begin(), tails_.end(), [capture](const Tail& tail) { return tail.capture == capture; });
  }

  std::vector<Tail> tails_;  // used last behind
};

}  // namespace railweave::cuda
