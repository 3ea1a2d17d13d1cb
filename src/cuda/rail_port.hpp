// Between the kernels of a communicator and its rank's engine (rail_backend.hpp), in pinned host memory that both map: what goes to and
// comes from ranks of other nodes. The kernel lists an operation's messages; the engine, which routes them, has it copy between the
// messages' buffers and slots. docs/cuda.md, "Several nodes".
#pragma once

#include <cstddef>
#include <cstdint>

#include "operation.hpp"

namespace railweave::cuda {

// Messages of an operation to and from other nodes: an all-to-all of 2,048 ranks. The list of 128 KiB is in pinned host memory.
inline constexpr std::uint32_t kMostListed = 4096;
// Copies that may be under way at once. A NIC's owner has 24 slots for each writer, and 64 for what arrives (docs/settings.md).
inline constexpr std::uint32_t kRailCopies = 64;
// Of an operation's small messages to other nodes, together: four of the largest (eager_bytes). What finds no place there waits for grants.
inline constexpr std::uint32_t kRailStage = 256u << 10;
inline constexpr std::uint32_t kNotStaged = ~0u;
// What a small message takes of a stage: whole vectors, as copies move them.
constexpr std::uint64_t stage_bytes(std::uint64_t bytes) { return (bytes + 15) / 16 * 16; }

// A message as its kernel lists it.
struct RailMessage {
  std::uint64_t data;  // address on the GPU
  std::uint64_t bytes;
  std::uint32_t peer;    // rank of the communicator
  std::uint32_t staged;  // sends: where its bytes stand in RailPort::sent as well, or kNotStaged
  Direction direction;
};

// What is to be copied: addresses on the GPU.
struct RailErrand {
  std::uint64_t to, from;
  std::uint32_t bytes;
};

// Copy c, counted from 1 over the communicator's life, stands at c % kRailCopies. Each of its words has 32 bits of the errand and 32 of c:
// one look, one trip over PCIe, says whether the copy is there and what it is, in whatever order the words come.
struct alignas(64) RailCopy {
  static constexpr std::uint32_t kWords = 5;
  std::uint64_t words[kWords];
};
constexpr std::uint64_t errand_word(std::uint64_t part, std::uint64_t number) { return part << 32 | static_cast<std::uint32_t>(number); }

struct RailPort {
  // The kernel writes.
  alignas(128) std::uint64_t begun;  // operations with messages to other nodes; the list below is the newest one's, written before
  std::uint64_t listed;
  // 1: a kernel was sent away, or gave up, and all of its blocks have left. It has read what it read of slots and stages, and no kernel
  // copies anything for the communicator from then on.
  std::uint64_t left;
  RailMessage messages[kMostListed];
  alignas(128) std::uint64_t made[kRailCopies];  // number of the last copy that was made at this place
  // Small messages, which engines send each other in control frames: those that go out, written before the list; and those that have
  // come, which the engine writes and has copied to where they belong.
  alignas(128) std::byte sent[kRailStage];
  alignas(128) std::byte arrived[kRailStage];
  // The engine writes.
  alignas(128) std::uint64_t ended;  // operations whose messages have all arrived, here and there
  alignas(128) RailCopy copies[kRailCopies];
};

// Device memory of the communicator, for its kernels alone.
struct RailCounts {
  std::uint64_t begun;   // operations before the one that runs
  std::uint64_t listed;  // operations that some block has listed, or is listing
  std::uint64_t taken;   // copies that blocks have taken on
};

}  // namespace railweave::cuda
