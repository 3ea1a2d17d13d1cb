// The proxy of a rank's NICs: links to the NICs of other nodes, what arrives from them, and carried control frames.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cluster.hpp"
#include "control.hpp"
#include "node_memory.hpp"
#include "rx_port.hpp"
#include "transport.hpp"
#include "tx_link.hpp"

namespace railweave::engine {

class RailProxy final : public Carrier {
 public:
  using FrameHandler = std::function<void(std::span<const std::byte> frame)>;
  using RecordHandler = std::function<void(const Record& record)>;

  // `transports`: one for each NIC this rank owns. `connected(a, b)`: whether the fabric has a way between two NICs. `nominal_Bps(a)`: what
  // a NIC can send. `on_confirmed`: a chunk of this rank's own has landed; mates find that in their rings.
  RailProxy(const Cluster& cluster, NodeMemory& memory, const ExchangeSettings& settings,
            std::vector<std::unique_ptr<Transport>> transports, const std::function<bool(std::uint32_t, std::uint32_t)>& connected,
            const std::function<std::uint64_t(std::uint32_t)>& nominal_Bps, FrameHandler on_frame, RecordHandler on_confirmed);
  ~RailProxy() override;

  // Progress of all transports and links; true if anything happened.
  bool advance(std::uint64_t now);
  void excuse(std::uint64_t ns);
  std::uint64_t next_deadline() const;
  // A record from a mate's (or this rank's) ring.
  void forward(const Record& record);
  bool carry(std::uint32_t destination, const Frame& frame, std::uint32_t attempt) override;
  // What carry() took since the last call goes out.
  void flush();
  // The NICs of a rank that has died, or is leaving: their links are not tried again once they are down, or at once.
  void abandon(std::uint32_t rank, bool at_once);

  bool all_links_up() const;
  bool idle() const;
  std::vector<int> event_fds() const;
  bool arm();

  struct Rate {
    std::uint32_t nic, peer;
    std::optional<std::uint64_t> Bps;  // none: nothing has been measured for long
  };
  std::vector<Rate> take_rates(std::uint64_t now);
  // Of all links.
  std::vector<LinkLoad> loads() const;

 private:
  class Port;
  std::uint64_t keep(std::shared_ptr<const std::byte[]> frames);
  void confirm(const Record& forwarded);
  const Cluster& cluster_;
  NodeMemory& memory_;
  TxSlotHolds holds_;
  FrameHandler on_frame_;
  RecordHandler on_confirmed_;
  const RecordHandler confirm_ = [this](const Record& forwarded) { confirm(forwarded); };
  std::vector<std::unique_ptr<Port>> ports_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const std::byte[]>> carried_;  // by token, until the transport has read them
  std::uint64_t next_carry_ = 1;
};

}  // namespace railweave::engine
