// A GPU's memory for the slots of its rank's NICs (docs/cuda.md, "GPUDirect"). Transports read and write it, and copiers; the engine only
// passes addresses on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cluster.hpp"
#include "transport.hpp"

namespace railweave::engine {

// All of it but enter() is called while the engine is made.
class SlotMemory {
 public:
  virtual ~SlotMemory() = default;
  virtual MemoryKind kind() const = 0;
  // Why the slots of that NIC should lie in host memory; empty: they need not.
  virtual std::string objection(const std::string& device) const = 0;
  // This rank's; always the same. Throws Error.
  virtual std::span<std::byte> make(std::uint64_t bytes) = 0;
  // No NIC could use it.
  virtual void drop() = 0;
  // How mates find it.
  virtual std::vector<std::byte> handle() const = 0;
  // A mate's. Throws Error.
  virtual std::byte* map(std::uint32_t rank, const RankInfo& mate) = 0;
  // What was decided, for the log; and what somebody should mend.
  virtual void say(const std::string& text) = 0;
  virtual void warn(const std::string& text) = 0;
  // On the engine's thread, before it does anything, when slots of this rank's lie there.
  virtual void enter() const = 0;
};

}  // namespace railweave::engine
