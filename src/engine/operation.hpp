// Operations and their messages, as the engine keeps them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "railweave/engine/report.hpp"

namespace railweave::engine {

struct MessageKeyHash {
  std::size_t operator()(const MessageKey& key) const noexcept {
    std::uint64_t hash = (std::uint64_t{key.source} << 32) | key.destination;
    hash = (hash ^ key.communicator) * 0x9E3779B97F4A7C15ull;
    return static_cast<std::size_t>((hash ^ (hash >> 29) ^ key.number) * 0xBF58476D1CE4E5B9ull);
  }
};

enum class FailureKind : std::uint32_t { none = 0, died, left, size_mismatch, closed };

// Why a message or operation failed.
struct Failure {
  FailureKind kind = FailureKind::none;
  std::uint32_t rank = 0;
  std::string text;
};
std::exception_ptr to_exception(const Failure& failure);
Failure sizes_differ(const MessageKey& message, std::uint32_t peer, std::uint64_t sent, std::uint64_t expected);

struct Operation;
struct Routes;

// copying: into memory of this node, which needs no confirmation. out: over a link, or being copied to its slot.
enum class ChunkState : std::uint8_t { todo, copying, out, done };

struct SendChunk {
  ChunkState state = ChunkState::todo;
  std::uint32_t attempt = 0;
  std::uint32_t link = 0;  // while out
  std::uint64_t word = 0;  // the link's word that the attempt counts on
};

struct SendMessage {
  MessageKey key;
  const std::byte* data = nullptr;
  const std::byte* readable = nullptr;  // the same bytes where the engine's thread can read them, if anywhere
  std::uint64_t bytes = 0;
  std::vector<SendChunk> chunks;
  std::uint32_t next = 0;              // first chunk never sent
  std::vector<std::uint32_t> retries;  // retired attempts
  std::uint32_t out = 0, done = 0;
  std::uint32_t copies = 0;  // under way
  bool granted = false;
  bool asked = false;           // for a grant
  std::uint64_t announced = 0;  // NodeMemory::announced() of a destination on this node, with the last chunk's record
  std::byte* mapped = nullptr;  // the destination's buffer, where this rank may write it
  std::shared_ptr<void> mapping;
  Routes* routes = nullptr;
  Operation* operation = nullptr;
  bool over = false;
};

struct RecvMessage {
  MessageKey key;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t chunks = 0;
  std::vector<std::uint64_t> bits;     // of chunks that have arrived
  std::vector<std::uint64_t> copying;  // of chunks that are being copied out of slots
  std::uint32_t arrived = 0;
  std::uint32_t copies = 0;  // under way
  bool granted = false;
  bool mapped = false;         // the source may write the buffer
  bool here = false;           // came whole, in a control frame: its source owes nothing, also while it is copied into the buffer
  std::shared_ptr<void> keep;  // registered memory that holds the buffer
  Operation* operation = nullptr;
  bool over = false;
};

// One way to a destination, with what the plan gave it.
struct RouteShare {
  PathKind kind = PathKind::direct;
  std::uint32_t owner = 0;  // local index: whose slots take the first hop
  std::uint32_t nic = 0;    // rail kinds: global ids
  std::uint32_t peer_nic = 0;
  std::uint64_t bytes = 0;  // not yet sent
  std::uint64_t sent = 0;

  bool same_way(const RouteShare& other) const {
    return kind == other.kind && owner == other.owner && nic == other.nic && peer_nic == other.peer_nic;
  }
};

struct Routes {
  std::vector<RouteShare> shares;
  std::size_t cursor = 0;
  std::vector<RouteShare> links = {};  // all that there are, once they were asked for

  // A plan for all bytes of the operation: what has been sent each way is taken off.
  void follow(Routes planned) {
    for (const RouteShare& share : shares) {
      auto way = std::find_if(planned.shares.begin(), planned.shares.end(), [&](const RouteShare& p) { return p.same_way(share); });
      if (way == planned.shares.end()) {
        planned.shares.push_back(share);
        planned.shares.back().bytes = 0;
        continue;
      }
      way->bytes -= std::min(way->bytes, share.sent);
      way->sent = share.sent;
    }
    *this = std::move(planned);
  }
};

enum class OperationPhase : std::uint8_t { posted, rows, running, failing, ended };

struct Operation {
  std::uint32_t communicator = 0;
  std::int32_t process = 0;                // whose program posted it
  std::uint64_t serial = 0;                // on this exchange
  std::uint64_t number = 0;                // of the newest collective on the communicator, itself included
  std::vector<std::uint64_t> posted_with;  // messages with each rank on the communicator so far, its own included
  bool collective = false;
  std::vector<SendMessage> sends;
  std::vector<RecvMessage> recvs;
  std::unordered_map<std::uint32_t, Routes> routes;  // by destination
  std::vector<bool> repeating;                       // by rank: does the same again and again (RowHistory), as of the first plan

  bool copies_under_way() const {
    const auto any = [](const auto& messages) {
      return std::any_of(messages.begin(), messages.end(), [](const auto& message) { return message.copies != 0; });
    };
    return any(sends) || any(recvs);
  }

  // Engine thread.
  OperationPhase phase = OperationPhase::posted;
  std::size_t unfinished = 0;  // messages
  std::uint64_t posted_at = 0, fail_until = 0;
  std::uint64_t rows_until = 0;                // waits for rows until then; running: is not planned again before
  std::optional<std::uint64_t> planned_epoch;  // of the links; none: it has no plan
  std::vector<MessageKey> revoking;            // mapped buffers whose writers have not answered
  Failure failure;
  OperationReport report;

  // Between engine and program.
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
};

}  // namespace railweave::engine
