// Where the slots of indirect paths lie: pinned host memory at the destination, and GPU memory that ranks lend to the pairs of their mates.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../engine/shared_memory.hpp"
#include "device.hpp"
#include "lent_memory.hpp"
#include "mate_book.hpp"
#include "port.hpp"
#include "railweave/engine/settings.hpp"
#include "region.hpp"

namespace railweave::cuda {

// What a mate needs to reach it.
struct IndirectHandle {
  LentHandle lent;
  engine::MemoryHandle host;  // none where fd is below 0
};

// Ranks are counted among those of the node, as by a Region. What is refused here, or at a mate, leaves a path out and is said once: the
// source takes the paths that it has mapped of those that a grant names, which are the ones that the destination has mapped.
class IndirectMemory {
 public:
  IndirectMemory(std::uint32_t own, std::uint32_t mates, const ExchangeSettings& settings, Remarks& remarks);

  IndirectHandle handle() const;
  void map(std::uint32_t mate, const std::string& name, bool same_process, const IndirectHandle& handle);
  // Into the ports, once all mates are mapped.
  void write_paths(const Region& region);

  // A bit each; none of the rank to itself.
  std::uint8_t paths_to(std::uint32_t mate) const { return pairs_[mate].to; }
  std::uint8_t paths_from(std::uint32_t mate) const { return pairs_[mate].from; }
  std::uint8_t relay_slots() const { return relay_slots_; }
  // Bytes of this rank's GPU that are lent to others.
  std::uint64_t lent_here() const;
  // By this rank, in operations that have ended.
  IndirectSent sent() const;

 private:
  struct Pinned {
    engine::SharedMemory memory;
    PinnedMemory pin;  // at address 0: none
  };
  struct FreePinned {
    void operator()(IndirectSent* sent) const noexcept { cudaFreeHost(sent); }
  };
  struct Pair {
    std::uint8_t to = 0, from = 0;
  };

  void pin_own();
  std::uint64_t lent_slots(std::uint32_t relay, std::uint32_t source, std::uint32_t destination) const;
  std::uint64_t host_slots(std::uint32_t source, std::uint32_t destination) const;

  const std::uint32_t own_, mates_;
  const std::uint8_t relay_slots_;
  Remarks& remarks_;
  std::vector<std::shared_ptr<void>> lent_;  // by mate, the own one too
  LentHandle lent_handle_{};                 // to the own one
  std::vector<Pinned> pinned_;               // by destination
  std::vector<Pair> pairs_;                  // by mate
  // By mate: what kernels say. Pinned; none where there are no paths.
  std::unique_ptr<IndirectSent[], FreePinned> sent_;
};

}  // namespace railweave::cuda
