// A NIC as the proxy sees it: small headers and payloads to the NICs of other nodes. Implementations: sockets, UCX, and a wrapper that
// injects faults. One thread uses a transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "layout.hpp"

namespace railweave::engine {

enum class RailFrame : std::uint32_t { hello = 1, hello_back, offer, accept, data, got, ping, pong, carry, over, unwanted };

// What the network library is told of the memory that payloads lie in.
enum class MemoryKind : std::uint8_t { host, cuda };

// What goes in front of every payload between two NICs (docs/protocol.md §7).
struct RailHeader {
  RailFrame kind = RailFrame::ping;
  std::uint32_t from_nic = 0;
  std::uint32_t to_nic = 0;
  std::uint32_t length = 0;  // of the payload (data, carry) or of the chunk (offer); got: how long the rx thread has had work, in us
  std::uint64_t generation = 0;
  std::uint64_t transfer = 0;
  std::uint64_t base = 0;  // offer, data: lowest unfinished transfer; ping, pong: number; got: bytes the rx NIC has received
  std::uint64_t turn = 0;  // accept, data: of the slot; got: how long the rx thread has waited for a CPU, in ns
  std::uint32_t slot = 0;
  std::uint32_t chunk = 0;  // got: when the rx thread had it, in us, by its own clock; 0: not said
  std::uint32_t attempt = 0;
  std::uint32_t endpoint = 0;  // which of the sender's endpoints to that peer; a transport sets and reads it
  MessageKey message;
};
static_assert(sizeof(RailHeader) == 88);

class TransportListener {
 public:
  virtual ~TransportListener() = default;
  // A payload of `data` is coming: where it shall be written, or nullptr to throw it away. Not called for empty payloads.
  virtual std::byte* on_incoming(const RailHeader& header, std::size_t bytes) = 0;
  // A header with its whole payload has arrived (`ok`), or its payload will never be complete and `where` is no longer written.
  virtual void on_delivered(const RailHeader& header, std::byte* where, std::size_t bytes, bool ok) = 0;
  // A `carry` with its payload, which stays there until this returns.
  virtual void on_carried(const RailHeader& header, std::span<const std::byte> frames) = 0;
  // The transport no longer reads the payload of send(..., token). May call nothing of the transport.
  virtual void on_sent(std::uint64_t token) = 0;
  // The connection is broken, or the peer has a fresh one; nothing sent on it since the last answer can be relied on.
  virtual void on_peer_lost(std::uint32_t peer_nic) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // What peers need to connect to this NIC.
  virtual std::vector<std::byte> address() const = 0;
  virtual void set_listener(TransportListener* listener) = 0;
  // Whether NICs with memory of that kind can be peers, wherever this one's payloads lie.
  virtual bool knows(MemoryKind kind) const = 0;
  // Payloads of `data` frames may lie there as well, where no CPU looks. Before address(). Throws TransportError where the NIC does not
  // reach it.
  virtual void use_memory(std::span<std::byte> memory, MemoryKind kind) = 0;
  // A fresh connection to a peer NIC; a previous one is closed first, which ends its sends.
  virtual void connect(std::uint32_t peer_nic, std::span<const std::byte> address) = 0;
  virtual void disconnect(std::uint32_t peer_nic) = 0;
  // Whether connect() may be tried again after a connection was lost.
  virtual bool reconnects() const = 0;
  // Copies the header; the payload must stay until on_sent(token), which is called exactly once (maybe from inside send) if token is not 0.
  // A header without a payload may wait for the next one that has a payload, and goes out with it, or for flush(); it may overtake payloads
  // that the transport still reads.
  virtual void send(std::uint32_t peer_nic, const RailHeader& header, std::span<const std::byte> payload, std::uint64_t token) = 0;
  virtual void flush() = 0;
  // Moves things along; true if anything happened.
  virtual bool progress() = 0;
  // For sleeping: arm() is true when `event_fd` will become readable on the next event.
  virtual int event_fd() const = 0;
  virtual bool arm() = 0;
};

}  // namespace railweave::engine
