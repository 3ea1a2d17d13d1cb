// Device memory of a rank that its mates map (ports), and what only its own kernels touch.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lent_memory.hpp"
#include "operation.hpp"
#include "waiting.hpp"

namespace railweave::cuda {

using MovedBytes = std::array<std::uint64_t, 2>;  // of a pair, by Direction

// What a mate needs to reach a region.
struct RegionHandle {
  std::int32_t pid;
  std::int32_t device;  // ordinal in its process
  LentHandle ports;
  char bus[16];  // PCI address of its GPU
};

class Region {
 public:
  // On the current device, zeroed. Ranks are counted among those of the node here and below: `own` of `mates`. Throws DeviceError.
  Region(std::uint32_t own, std::uint32_t mates);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  RegionHandle handle() const;
  // `name`: the mate's in errors. Throws BootstrapError saying why that rank's GPU cannot be reached from this one.
  void map(std::uint32_t mate, const std::string& name, const RegionHandle& handle);

  Port* local(std::uint32_t mate) const { return ports(mate_) + mate; }
  Port* remote(std::uint32_t mate) const { return ports(mate) + mate_; }
  OperationState* state() const { return &own_->state; }
  Ledger* ledger() const { return &own_->ledger; }
  HostView& host() const { return *host_; }
  // No operation that begins when this has been done on the stream moves anything any more.
  void halt(cudaStream_t stream);
  // Copies the ledger on the stream, into memory of the host that the next call reuses.
  const Ledger& copy_ledger(cudaStream_t stream) const;
  // The same with Port::moved_bytes of the own ports, by mate.
  std::span<const MovedBytes> copy_moved(cudaStream_t stream) const;
  // Copy the words of the own port for that mate, or of the mate's for this rank, on the stream, into memory of the host that the next call
  // for it reuses.
  const Port* copy_words(std::uint32_t mate, cudaStream_t stream) const;
  const Port* copy_mates_words(std::uint32_t mate, cudaStream_t stream) const;

 private:
  struct Own {
    OperationState state;
    Ledger ledger;
  };

  Port* ports(std::uint32_t mate) const { return static_cast<Port*>(ports_[mate].get()); }
  const Port* copy_words(const Port* port, std::uint32_t place, cudaStream_t stream) const;
  void release() noexcept;

  const std::uint32_t mate_;  // its own number
  Own* own_ = nullptr;
  HostView* host_ = nullptr;
  // Pinned: kPortWordsBytes for the own port and the mate's, of each mate; the ledger, which has to be aligned; and MovedBytes of each
  // mate.
  std::byte* words_ = nullptr;
  // By mate, the own ones too, which mates of this process keep as long as they need: a kernel of theirs may still say that it has taken
  // what this rank sent when this rank has long left.
  std::vector<std::shared_ptr<void>> ports_;
  LentHandle handle_{};  // to the own ones
};

}  // namespace railweave::cuda
