// The checksum mode's device memory of a communicator, and its launches around an operation. docs/cuda.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checksum.hpp"

namespace railweave::cuda {

inline constexpr std::uint32_t kCheckedPerLaunch = 64;
// Messages of an operation: 512 KiB of sums for each communicator.
inline constexpr std::uint32_t kMostChecked = 1024;

// Loads the kernels into the current device's context.
void preload_checks();
// At most kCheckedPerLaunch messages, and as many blocks as place_checks() said. With `compared` it compares, else it makes sums.
void launch_check(std::span<const CheckedMessage> messages, std::uint32_t blocks, CheckState* compared, cudaStream_t stream);

class Checker {
 public:
  // On the current device. Throws DeviceError.
  explicit Checker(std::uint32_t world);

  // Begins a new operation: its messages use the same memory as those of the one before, which is over when its kernels run.
  void begin() noexcept { used_ = 0; }
  // Room for a message's sums, in device memory; an operation has kMostChecked of them at most.
  Sums* room() noexcept { return memory_.get()->sums + used_++; }
  std::uint64_t* sent(std::uint32_t peer) const noexcept { return counts_.get() + peer; }
  CheckState* state() const noexcept { return &memory_.get()->state; }

 private:
  struct Memory {
    CheckState state;
    Sums sums[kMostChecked];
  };
  struct Free {
    void operator()(void* memory) const noexcept { cudaFree(memory); }
  };
  std::unique_ptr<Memory, Free> memory_;
  std::unique_ptr<std::uint64_t, Free> counts_;  // by rank
  std::uint32_t used_ = 0;
};

// Those of one operation, on whatever communicators.
class Checks {
 public:
  void add_send(Checker& checker, std::uint32_t peer, const std::byte* data, std::uint64_t bytes, Sums* sums);
  void add_receive(HostView& host, Checker& checker, std::uint32_t peer, const std::byte* data, std::uint64_t bytes, Sums* sums);
  void launch_sums(cudaStream_t stream) { launch(sends_, nullptr, stream); }
  void launch_comparison(cudaStream_t stream) { launch(receives_, state_, stream); }

 private:
  static void launch(std::vector<CheckedMessage>& messages, CheckState* compared, cudaStream_t stream);

  std::vector<CheckedMessage> sends_, receives_;
  CheckState* state_ = nullptr;  // of one of the communicators: the others' operations wait for this one, too
};

}  // namespace railweave::cuda
