// NVTX ranges: what a profiler shows of Railweave on the host. Each served communicator is a domain of its own; queueing an operation is a
// range in the domains of its communicators.
#pragma once

#include <cstdint>
#include <string>

namespace railweave::nccl {

// A communicator's part of an operation. The layout is told to the profiler (ranges.cpp).
struct RangeFacts {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint32_t messages = 0;
  std::uint32_t peers = 0;
};

class RangeDomain {
 public:
  // Where no profiler is attached (NVTX_INJECTION64_PATH and the like), or the build had no NVTX headers, nothing is made and listens() is
  // false.
  explicit RangeDomain(const std::string& name);
  ~RangeDomain();
  RangeDomain(const RangeDomain&) = delete;
  RangeDomain& operator=(const RangeDomain&) = delete;

  bool listens() const noexcept { return domain_ != nullptr; }
  // Begins a range of this thread; ranges of a domain nest.
  void push(const RangeFacts& facts) const;
  void pop() const;

 private:
  void* domain_ = nullptr;    // nvtxDomainHandle_t
  void* name_ = nullptr;      // nvtxStringHandle_t
  std::uint64_t schema_ = 0;  // of RangeFacts; 0: the profiler reads no structures and gets bytes_sent alone
};

}  // namespace railweave::nccl
