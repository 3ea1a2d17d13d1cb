// One operation as the kernel gets it, and its state while it runs. docs/cuda.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "port.hpp"

namespace railweave::cuda {

enum class Direction : std::uint8_t { send, receive };
enum class Path : std::uint8_t { packets, granted, rail };
inline constexpr std::uint32_t kPaths = 3;

// Where a message's data lie, as a grant or an offer says it.
struct BufferName {
  std::uint64_t buffer;
  std::uint64_t offset;
};

enum class KernelError : std::uint32_t { none = 0, aborted = 1, timed_out = 2, sizes_differ = 3, bad_record = 4, damaged = 5 };

// Each path's blocks write what has ended on it, and replays of captured operations, which the host has not counted, apart from others.
inline constexpr std::uint32_t kAccounts = 2 * kPaths;

// Messages that have ended, and their bytes.
struct Totals {
  std::uint64_t completed;
  std::uint64_t bytes_sent;
  std::uint64_t bytes_received;

  constexpr Totals& operator+=(const Totals& more) {
    completed += more.completed;
    bytes_sent += more.bytes_sent;
    bytes_received += more.bytes_received;
    return *this;
  }
};

// Of messages in packets: those of an operation are counted once all of its blocks have begun, and are the newest until another operation
// begins. Both numbers change at once.
struct alignas(32) Account {
  std::uint64_t newest;
  Totals totals;
};

// What a communicator's operations have in common, in device memory. The host copies it when it wants to know what has ended: a kernel
// that writes to host memory ends 0.6 to 0.9 us later where others are queued behind it (docs/cuda-measured.md).
struct Ledger {
  Account accounts[kAccounts];  // by account_of()
  Port* ports;                  // the rank's own, so many
  std::uint32_t mates;
};

// HostView::stop. What a kernel has granted may be written until the mates' hosts have heard that the communicator has ended, so it leaves
// its program's buffers to nobody before `kLeave`.
inline constexpr std::uint32_t kStop = 1, kLeave = 2;

// Pinned host memory of a communicator: the kernels' only words with the host.
struct HostView {
  std::uint32_t stop;   // host → kernel: give up, at kLeave at once
  std::uint32_t error;  // kernel → host: KernelError, written last
  std::uint32_t error_peer;
  std::uint32_t error_chunk;     // damaged: the first one that differs
  std::uint64_t error_bytes[2];  // sizes_differ, damaged: here, at the peer
  std::uint64_t error_message;   // damaged: number of the message from that peer
  // What the host copies to Count::over of ports.
  std::uint64_t over[kCounts] = {kNeverMoved, kNeverMoved, kNeverMoved, kNeverMoved};
  std::uint32_t rests;  // kernel → host: an operation was given up, and writes nothing more, but waits for kLeave
};

inline constexpr std::int32_t kNone = -1;

struct RailPort;
struct RailCounts;
// What a communicator's messages to and from other nodes need (rail_port.hpp).
struct RailSide {
  RailPort* port;
  RailCounts* counts;
};

struct Message {
  Port* local;   // this rank's memory for the peer; none for peers on other nodes
  Port* remote;  // the peer's memory for this rank
  std::byte* data;
  std::uint64_t bytes;
  union {
    BufferName named;  // for the grant, or the offer
    RailSide rail;     // peers on other nodes
  };
  HostView* host;
  Ledger* ledger;             // of the communicator
  std::uint32_t ordinal;      // messages (granted) or packets of this pair and direction before it in the operation; rails: `staged`
  std::uint32_t piece_bytes;  // of a push into a mapped buffer, or of what is fetched; rails: of those that report, how many messages their
                              // communicator has
  std::int32_t grant_after;   // message of this operation that must be complete before this one is granted, or kNone
  std::uint32_t peer;
  // Granted sends: blocks that begin with it, first to last - 1; 0, 0: none. Moved by warps: which has its first packet, and how many share
  // it, itself and the next ones.
  union {
    std::uint16_t first_block;
    std::uint16_t first_warp;
  };
  union {
    std::uint16_t last_block;
    std::uint16_t warps;
  };
  Direction direction;
  Path path;
  bool last_of_pair;  // of this path and direction: moves the pair's count on
  bool reports;       // first of its communicator and path in the operation: brings the totals up to date
  bool captured;      // the operation runs when its graph does
  bool begins;        // reports, and says that its communicator's newest operation is this one: in packets, if the communicator has such
  // Where the operation's kernel knows indirect paths:
  std::uint8_t paths;        // those that may be used, a bit each, and kFetched
  std::uint8_t relay_slots;  // of each path over a relay, also where there is none
  std::uint8_t host_blocks;  // sends: the last ones of its blocks, which send over the host; receives: as many as pull what comes there
  std::uint16_t host_tail;   // sends: with fewer pieces (kIndirectBytes) left, nothing goes over the host any more
  Totals operation;          // those that report: what the operation adds
};

// MessageState::granted. While it is being granted the word `placed` of its place still counts the message before it there.
inline constexpr std::uint32_t kUngranted = 0, kGranted = 1, kBeingGranted = 2;

// Of a message while its operation runs. All zero before and after.
struct MessageState {
  std::uint64_t claimed;  // bytes (packets: bundles, a bit each) that blocks have taken on; receives: that are pulled, are being pulled, or
                          // were fetched
  std::uint32_t granted;  // sends: offered
  std::uint32_t complete;  // receives: `placed` of its port is in use for a later message
  std::uint32_t answered;  // receives: what its offer was found to be
  // Receives: pieces of what was offered that blocks have taken on. Sends: pieces that blocks have, after it was not read.
  std::uint32_t pieces;
};
// MessageState::answered.
inline constexpr std::uint32_t kUnanswered = 0, kBeingAnswered = 1, kAccepted = 2, kNotAccepted = 3;

// What a block keeps of a message. What it owns nobody else moves: it is running, so it gets there.
struct Share {
  std::uint64_t number;  // of the message, or of its first packet
  std::uint64_t at;      // granted sends: the bytes from here to `end` are the block's; packets: the block's bundles, a bit each
  std::uint64_t end;
  // Granted sends, once there is work: what the grant says.
  std::uint64_t granted_bytes;
  BufferName granted;
};
// What a block of the general kernel sends at once: a packet for each of its warps, or 2, 4, ... of a message that has more of those than
// a word has bits.
inline constexpr std::uint32_t kBundlePackets = 16;
inline constexpr std::uint64_t kBundleBytes = std::uint64_t{kBundlePackets} * Packet::kData;
inline constexpr std::uint32_t kMostBundles = 64;  // of a message

// As many as fit into a kernel's parameters (32,764 bytes since CUDA 12.1); longer operations have theirs in device memory.
inline constexpr std::uint32_t kMaxMessages = 256;
// A warp of the packet kernel looks after one message, or train of them, a lane.
inline constexpr std::uint32_t kMaxPacketMessages = 32;

// Of blocks that share messages.
struct PartState {
  std::uint32_t left;  // blocks; of packets: that have begun
  std::uint32_t stopped;
  // KiB of each message of the last operation that had `in_step_blocks`, where it was balanced at all ranks; else 0.
  std::uint32_t in_step;
};
// In device memory, one for each communicator. All zero between operations but for `in_step`.
struct OperationState {
  PartState parts[kPaths];
  MessageState messages[kMaxMessages];
};

// Cycles: of 90, 180, 300 and 400 the best for 1 MiB of a pair with 16 blocks whose warps all send (docs/cuda-measured.md).
inline constexpr std::uint32_t kWarpDistance = 300;

// A block waits so long for the grant of its next send, for each 64 KiB of that, before it helps with those behind it: a third of what a
// pair of GPUs takes for them, here at 366 GB/s (patience_ns() says it by what was measured).
inline constexpr std::uint32_t kPatience_ns = 59;

// What a kernel needs beside its messages.
struct OperationHeader {
  OperationState* state;
  std::uint64_t timeout_ns;
  std::uint32_t count;
  // Where packets have blocks of their own beside granted messages: the first so many messages, and so many blocks, the first ones of
  // each cluster.
  std::uint32_t packet_messages = 0;
  std::uint32_t packet_blocks = 0;
  std::uint32_t packet_blocks_a_cluster = 0;
  std::uint32_t rails = 0;      // messages to and from other nodes, after those that are counted
  std::uint32_t link_MBps = 0;  // of the links of an emulated mesh, or 0
  // Of those that move packets: so many send, and so many others receive; 0, 0: all do both.
  std::uint32_t send_warps = 0;
  std::uint32_t receive_warps = 0;
  std::uint32_t warp_distance = kWarpDistance;  // cycles between a block's warps that begin to send what waits for credits
  std::uint32_t patience_ns = kPatience_ns;
  std::uint32_t in_step_blocks = 0, in_step_KiB = 0;  // Part
};

// Messages of a pair and direction in packets, which lie side by side in their order: where there are more messages than a warp has lanes,
// or where those of a pair wait for each other's credits.
struct Train {
  std::uint32_t first, count;  // messages of the part
  std::uint32_t packets;
  std::int32_t reporter;  // its message that reports, or kNone
  std::uint64_t bytes;    // of all
};

// Messages of an operation that the same blocks move: all of them, or those of one path.
struct Part {
  PartState* state;
  MessageState* states;
  const Message* messages;
  std::uint32_t count;
  std::uint64_t timeout_ns;
  std::uint32_t link_MBps = 0;
  std::uint32_t patience_ns = kPatience_ns;
  std::uint32_t send_warps = 0;
  std::uint32_t receive_warps = 0;
  std::uint32_t warp_distance = kWarpDistance;
  // Granted messages, one to and one from each of several peers, all of one size, so many KiB: where the last such operation found the
  // same at all ranks, the first so many blocks all begin where the first one does. 0: never.
  std::uint32_t in_step_blocks = 0, in_step_KiB = 0;
  const Train* trains = nullptr;  // then `count` is theirs
  // The operation's messages that are not of the part. It is stopped as a whole.
  const Message* others = nullptr;
  std::uint32_t other_count = 0;
};

}  // namespace railweave::cuda
