// Turns the messages of an operation into what the kernel needs: which path each takes, how it is numbered, which blocks begin with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "operation.hpp"

namespace railweave::cuda {

// Of a message to or from a rank of the node: by its size alone, so that both ends agree, and by the limit of its communicator.
constexpr Path path_of(std::uint64_t bytes, std::uint64_t low_latency_bytes) {
  return bytes <= low_latency_bytes ? Path::packets : Path::granted;
}

// What one block of H100 or H200 writes alone, in bytes a microsecond.
inline constexpr double kHopperBlockRate = 38.6e3;

struct LaunchLimits {
  std::uint32_t blocks = 16;         // more for an operation with many peers: most_blocks()
  std::uint32_t cluster_blocks = 1;  // as many blocks begin together or not at all on this device
  std::uint32_t world = 2;           // ranks of the communicator, of the largest where there are several
  bool beside_rails = false;         // with messages to other nodes, whose kernel has the general roles for the others
  std::uint32_t host_share = 0;      // thousandths of a lone pair's bytes that the path over the host carries; 0: none goes there
  std::uint32_t link_MBps = 0;       // of the links of an emulated mesh; 0: links are what they are
  std::uint32_t room = ~0u;          // never more blocks, whatever else is said here: room_beside()
  std::uint32_t needed = 1;          // blocks in clusters of `cluster_blocks` or fewer, or single ones, that all begin, if not together
  std::uint64_t staged_bytes = 0;    // a message to another node of at most that many waits for no grant where there is room
  std::uint64_t rail_bytes = 0;      // beside rails: bytes_over_rails() of the messages to and from other nodes
  // Of a peer's: a block for each so many, and one for each rank without messages (channels_of_nccl(); from 256 KiB on at least 64 KiB each
  // between more than two GPUs). With `several_nodes` one for each other rank as well, and one more. 0: as many as help.
  std::uint32_t channel_bytes = 0;
  bool several_nodes = false;  // of the communicator, or of any where there are several
  // What was measured of this machine (gpu_pair_rate, gpu_block_rate): bytes a microsecond that a GPU writes to another, and one block
  // alone.
  double pair_rate = 366e3, block_rate = kHopperBlockRate;
  bool knows_rates = false;  // else these are another machine's, or `blocks` was asked for, and no operation has fewer for them

  // How fast a block moves packets, pushes beside them and pulls, by what one of H100 or H200 was seen to. Never faster: calibrations of
  // H200, where it was seen as well, say up to 43.4 GB/s a block, by eight blocks.
  double block_speed() const { return std::min(1.0, block_rate / kHopperBlockRate); }
};

// Of OperationHeader, where a pair of GPUs moves so many bytes a microsecond: a third of what that takes for 64 KiB. With 1 us no block
// waits longer than 1 ms for a send.
inline std::uint32_t patience_ns(double pair_rate) {
  return static_cast<std::uint32_t>(std::clamp((64u << 10) / pair_rate * 1000 / 3, 1.0, 1e3));
}

// Which kernel it takes: whose roles move the messages.
enum class Kernel : std::uint8_t {
  packets,         // packet_roles.hpp alone
  granted,         // roles.hpp without packets
  indirect,        // the same with indirect paths
  apart,           // packet_roles.hpp and roles.hpp, by blocks of their own
  apart_indirect,  // the same with indirect paths
  any,             // roles.hpp with packets: where few single blocks surely begin, and for more messages than the others take
  rails,           // rail_roles.hpp beside roles.hpp with packets
};

// How an operation is launched.
struct Plan {
  Kernel kernel = Kernel::any;
  std::uint32_t blocks = 0;
  std::uint32_t packet_blocks = 0;            // apart: so many of them, the first ones of each cluster until there are no more
  std::uint32_t packet_blocks_a_cluster = 0;  // apart
  std::uint32_t packet_messages = 0;          // apart: the first of the messages
  std::uint32_t cluster = 1;                  // blocks that begin together or not at all; the grid is made of whole ones
  // Packets: the first warps send, so many, and the last ones receive, so many; 0, 0: all do both.
  std::uint32_t send_warps = 0;
  std::uint32_t receive_warps = 0;
  std::uint32_t warp_distance = kWarpDistance;        // OperationHeader
  std::vector<Train> trains = {};                     // of messages in packets that are not a lane each
  bool fills_link = false;                            // with fewer blocks than there might be
  std::uint32_t in_step_blocks = 0, in_step_KiB = 0;  // Part

  // Blocks that may run while a cluster without which the operation cannot end has not begun.
  std::uint32_t ahead() const {
    const bool all_needed = cluster > 1 && (kernel == Kernel::packets || packet_blocks > packet_blocks_a_cluster);
    return all_needed ? blocks - cluster : 0;
  }
};

// Blocks of a cluster of an operation apart, at most.
inline constexpr std::uint32_t kMostApartCluster = 8;

// Blocks that an operation of these messages may have: no more than NCCL's kernel, as far as `limits` says what that has.
std::uint32_t most_blocks(std::span<const Message> messages, const LaunchLimits& limits);

// Fills ordinal, piece_bytes, grant_after, first_block, last_block, first_warp, warps, last_of_pair, reports and operation of messages that
// have all else (`paths` and `relay_slots`: those that there are), takes away the paths that they are not to use, and brings those in
// packets to the front where the plan says so. Messages of a pair keep their order.
Plan prepare(std::span<Message> messages, const LaunchLimits& limits);

}  // namespace railweave::cuda
