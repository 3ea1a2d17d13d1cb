// Where the ranks of a communicator find each other before anything else of Railweave runs: a thread of the process that made the unique
// id, or of one of the ranks, answers rounds of all-gather. A round is decided once, by the hub: complete (all ranks came, each gets all
// blobs) or expired.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "file_descriptor.hpp"

namespace railweave::nccl {

// Travels in unused bytes of the unique id, and in what ranks say of themselves.
struct HubAddress {
  std::uint16_t family = 0;  // AF_INET or AF_INET6; 0: none
  std::uint16_t port = 0;    // host byte order
  std::array<std::uint8_t, 16> host{};
  std::array<std::uint8_t, 16> nonce{};  // names the communicator and keeps strangers out
  std::uint32_t scope = 0;  // of a link-local IPv6 host: the interface's index, which NCCL, too, takes to be the same on all hosts
  std::uint64_t tag = 0;    // names a communicator that has grown, which meets under its parent's nonce; 0: the nonce does

  bool operator==(const HubAddress&) const = default;
};

// A communicator's name at its hub.
std::string name_of(const HubAddress& address);
// As text; IPv6 in brackets.
std::string host_of(const HubAddress& address);

class Hub {
 public:
  // A rank looks at its device between calling and saying whose it is, which may take long where a file system is slow.
  static constexpr std::chrono::milliseconds kStranger = std::chrono::minutes(5);
  // Listens on all interfaces and starts the thread. Who has not shown a known nonce after `stranger` is hung up on, or after a fifth
  // of that where such callers are most and the process has few descriptors left, so that a scanner of ports does not use them up. Throws
  // std::system_error.
  explicit Hub(std::chrono::milliseconds stranger = kStranger);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;
  std::uint16_t port() const noexcept;
  // Rounds of callers that bring another nonce are not answered; any number can be added.
  void admit(const std::array<std::uint8_t, 16>& nonce);

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

enum class RoundStatus {
  complete,  // every rank has the same blobs
  expired,   // not all ranks came in time; the hub says so to every rank that asks
  refused,   // the hub does not know this id, or ranks differ about the world
  unsent,    // the hub was not reached, so it cannot count this rank as present
  unknown    // this rank was sent in, and the answer is lost: others may have it
};

struct Round {
  RoundStatus status = RoundStatus::unsent;
  std::vector<std::string> blobs;  // by rank
  // When expired.
  std::string missing;      // for people: "rank 2"
  bool left = false;        // they had come, and went away
  std::uint32_t first = 0;  // the first of the others
};

class HubClient {
 public:
  // `cancelled` ends waits early.
  HubClient(const HubAddress& address, const std::atomic<bool>& cancelled);
  // False when the hub cannot be reached before the deadline. Throws std::system_error where this process has no socket for it.
  bool connect(std::chrono::steady_clock::time_point deadline);
  // This host's address towards the hub, which other ranks can reach too, without a port; family 0 where the socket does not say.
  HubAddress local() const;
  // The hub waits for the others for `limit` from the first that came.
  Round join(const std::string& name, std::uint32_t rank, std::uint32_t world, const std::string& blob, std::chrono::milliseconds limit);

 private:
  bool wait(short events, std::chrono::steady_clock::time_point deadline) const;
  bool send(const std::string& bytes, std::chrono::steady_clock::time_point deadline) const;
  bool receive(void* data, std::size_t bytes, std::chrono::steady_clock::time_point deadline) const;
  bool receive(std::string& text, std::chrono::steady_clock::time_point deadline) const;

  HubAddress address_;
  const std::atomic<bool>& cancelled_;
  FileDescriptor socket_;
};

}  // namespace railweave::nccl
