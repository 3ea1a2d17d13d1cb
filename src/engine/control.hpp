// The control channel (docs/protocol.md §4): frames between ranks, once and in order, by whatever link lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cluster.hpp"
#include "node_memory.hpp"
#include "wire.hpp"

namespace railweave::engine {

enum class FrameType : std::uint16_t { ack_only = 0, grant, cancel, cancelled, row, link, lease_end, dead, eager, ask, credit };

struct FrameHeader {
  std::uint32_t magic = 0;
  FrameType type = FrameType::ack_only;
  std::uint16_t reserved = 0;
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint64_t sequence = 0;     // 0: inside a node, or nothing but an acknowledgement
  std::uint64_t acknowledge = 0;  // all frames up to this one have arrived
};
static_assert(sizeof(FrameHeader) == 32);

// A frame, header and all, in memory that is shared with the transports that may still read it.
class Frame {
 public:
  explicit Frame(std::size_t size) : bytes_(std::make_shared_for_overwrite<std::byte[]>(kLength + size)), size_(size) {
    const auto length = static_cast<std::uint32_t>(size);
    std::memcpy(bytes_.get(), &length, kLength);
  }
  explicit Frame(std::span<const std::byte> content) : Frame(content.size()) {
    std::memcpy(bytes_.get() + kLength, content.data(), content.size());
  }

  std::span<std::byte> content() { return {bytes_.get() + kLength, size_}; }
  std::span<const std::byte> content() const { return {bytes_.get() + kLength, size_}; }
  // As rails carry it: behind its length.
  std::span<const std::byte> carried() const { return {bytes_.get(), kLength + size_}; }
  std::shared_ptr<const std::byte[]> memory() const { return bytes_; }
  bool is_shared() const { return bytes_.use_count() > 1; }

 private:
  static constexpr std::size_t kLength = sizeof(std::uint32_t);
  std::shared_ptr<std::byte[]> bytes_;
  std::size_t size_;
};

// What the channel needs from the proxy.
class Carrier {
 public:
  virtual ~Carrier() = default;
  // Sends the frame over one of this rank's own links to the node of `destination`, if one is up; `attempt` varies the choice. It may be
  // read some time later.
  virtual bool carry(std::uint32_t destination, const Frame& frame, std::uint32_t attempt) = 0;
};

class ControlChannel {
 public:
  using Handler = std::function<void(std::uint32_t source, FrameType type, ByteReader& payload)>;

  ControlChannel(const Cluster& cluster, NodeMemory& memory, Carrier& carrier, const ExchangeSettings& settings, Handler handler);

  // The frame's payload is `payload` and then `data`.
  void send(std::uint32_t destination, FrameType type, std::span<const std::byte> payload, std::span<const std::byte> data = {});
  // A frame from a mate's mail ring or from a rail.
  void receive(std::span<const std::byte> frame, std::uint64_t now);
  // Resends, acknowledgements, mail that found no room. Gives true if it sent anything.
  bool flush(std::uint64_t now);
  // When flush() has something to do next; UINT64_MAX: never.
  std::uint64_t next_deadline() const;
  // A link went down or up: try again at once, elsewhere.
  void links_changed();
  // No frames to or from that rank any more.
  void forget(std::uint32_t rank);
  // All frames to that rank have been acknowledged (remote) or read (mate).
  bool settled(std::uint32_t rank) const;

 private:
  struct Unacked {
    std::uint64_t sequence;
    Frame frame;
  };
  struct Stream {
    std::uint64_t next_sequence = 1;
    std::deque<Unacked> unacked;
    std::size_t waiting = 0;  // the newest of them, for which the carriers had no room yet
    std::uint64_t sent_at = 0;
    std::uint32_t attempt = 0;
    std::uint64_t again_from = 1, again_to = 0;  // sequences that are still to be sent again
    std::uint64_t delivered = 0;                 // all sequences up to this one
    std::map<std::uint64_t, std::vector<std::byte>> early;
    std::uint64_t ack_due_at = 0;  // 0: nothing to acknowledge
    bool resend_due = false;
    bool forgotten = false;
    std::deque<Frame> waiting_mail;  // mates
  };

  bool send_again(std::uint32_t destination);
  static bool may_send_again(const Stream& stream);
  bool transmit(std::uint32_t destination, Frame& frame, std::uint32_t attempt);
  void forward(const FrameHeader& header, std::span<const std::byte> frame);
  void deliver(const FrameHeader& header, std::span<const std::byte> frame);

  const Cluster& cluster_;
  NodeMemory& memory_;
  Carrier& carrier_;
  std::uint64_t resend_ns_, ack_delay_ns_;
  Handler handler_;
  std::vector<Stream> streams_;  // by rank
  std::uint32_t forwarded_ = 0;
};

}  // namespace railweave::engine
