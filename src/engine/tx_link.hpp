// The sending half of a link: from one of this rank's NICs to a NIC of another node (docs/protocol.md §7).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

#include "cpu_wait.hpp"
#include "node_memory.hpp"
#include "standing.hpp"
#include "transport.hpp"

namespace railweave::engine {

struct LinkTimes {
  std::uint64_t heartbeat_ns = 0;
  std::uint64_t resend_ns = 0;
  std::uint64_t timeout_ns = 0;
  std::uint64_t reconnect_ns = 0;
};

// Transfers that may be under way at once on a link of a NIC of so many bytes/s.
std::uint32_t link_window(const ExchangeSettings& settings, std::uint64_t nominal_Bps);

// tx slots whose payload the transport may still read. A slot goes back to its writer when its transfer is over and no send is under way.
class TxSlotHolds {
 public:
  explicit TxSlotHolds(NodeMemory& memory) : memory_(memory) {}
  std::uint64_t hold(const Record& record);  // gives the token for sends of this slot
  void sending(std::uint64_t token) { ++holds_.at(token).sends; }
  void sent(std::uint64_t token);
  bool is_sending(std::uint64_t token) const { return holds_.at(token).sends != 0; }
  void finish(std::uint64_t token);
  bool empty() const noexcept { return holds_.empty(); }

 private:
  struct Hold {
    std::uint32_t slot = 0;
    std::uint64_t turn = 0;
    std::uint32_t sends = 0;
    bool finished = false;
  };
  void drop_if_over(std::unordered_map<std::uint64_t, Hold>::iterator entry);
  NodeMemory& memory_;
  std::uint64_t next_ = 2;  // even: TxSlotHolds; odd: carried frames
  std::unordered_map<std::uint64_t, Hold> holds_;
};

// Rate of a link, from spans in which data was under way all the time, no transfer waited for a slot, nothing else used its NICs, and
// neither end's thread lacked a CPU, or had too much to do (docs/protocol.md §11).
class RateMeter {
 public:
  // Counters with a confirmation. Those of this end are of the moment when it came, which is not the moment when the bytes did: several
  // confirmations wait behind data of the other direction and come at once.
  struct Sample {
    std::uint32_t rx_now_us = 0;  // when they did, by the clock of the other end; begins anew after 2^32
    std::uint64_t link_bytes = 0;
    std::uint64_t tx_nic_bytes = 0;  // all links of the tx NIC
    std::uint64_t rx_nic_bytes = 0;  // all links of the rx NIC
    std::uint64_t tx_wait_ns = 0;    // for a CPU, of the tx and rx threads
    std::uint64_t rx_wait_ns = 0;
    std::uint64_t tx_work_ns = 0;  // of the threads, in which they had something to do
    std::uint32_t rx_work_us = 0;  // begins anew after 2^32
  };
  // Gives a rate in bytes/s when there is a new one to believe.
  std::optional<std::uint64_t> confirmed(const Sample& sample);
  // The pipe ran empty, or a transfer had to wait for a slot.
  void interrupt() { stage_ = Stage::empty; }

 private:
  // Of a span in which the link carried between so many bytes/s.
  std::optional<std::uint64_t> believe(std::uint64_t at_least, std::uint64_t at_most, std::uint64_t ns);
  enum class Stage : std::uint8_t { empty, filling, measuring };
  Stage stage_ = Stage::empty;
  std::uint32_t transfers_ = 0;
  Sample first_;  // of the stage
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t believed_ = kUnknown;  // the first rate is doubted, too
  // Spans in a row that say something else, all of them something slower, or faster.
  struct Doubt {
    std::uint32_t spans = 0;
    std::uint64_t ns = 0;
    bool slower = false;
    std::uint64_t rate = 0;  // what differs least
  } doubt_;
};

class TxLink {
 public:
  struct Port {  // what the proxy gives its links
    Transport& transport;
    NodeMemory& memory;
    TxSlotHolds& holds;
    std::uint64_t& tx_bytes;                            // confirmed, of all links of the NIC
    ThreadClock clock;                                  // of the thread that calls
    const std::function<void(const Record&)>& confirm;  // the source of that `forward` record: its chunk has landed
  };
  struct Names {
    std::uint32_t own_nic = 0;  // position among this rank's NICs
    std::uint32_t nic = 0;      // global
    std::uint32_t peer = 0;     // global
  };

  TxLink(Port port, Names names, const LinkTimes& times, std::uint32_t window);

  bool up() const noexcept { return (word_ & 1) != 0; }
  std::uint32_t peer() const noexcept { return names_.peer; }
  bool idle() const noexcept { return queue_.empty() && active_.empty(); }
  LinkLoad load() const;

  void connect(std::span<const std::byte> address, std::uint64_t now);
  // A `forward` record whose slot this rank's proxy now holds.
  void forward(const Record& record);
  void on_answer(const RailHeader& header, std::uint64_t now);
  void on_lost(std::uint64_t now);
  void on_hello();
  // The peer's process is gone or going: once down (or at once), the link is not tried again.
  void abandon(bool at_once);
  // Timers and window. Gives true if it sent something.
  bool advance(std::uint64_t now, std::span<const std::byte> address);
  // Data for which there are slots, oldest first, a window of it at a time: more would only queue in front of everything else that the rail
  // carries. After all small frames of the turn, which it takes along.
  void send_accepted(std::uint64_t now);
  std::uint64_t next_deadline() const;
  // The engine thread did not run for that long: answers may be waiting unread.
  void excuse(std::uint64_t ns);
  RailHeader header(RailFrame kind) const;

  // A new measured rate since the last call.
  std::optional<std::uint64_t> take_rate();
  // Whether the last rate was measured long ago; once each time that it has become so old again.
  bool is_rate_old(std::uint64_t now);

 private:
  enum class Phase : std::uint8_t { offered, accepted, sent };
  struct RxSlot {
    std::uint32_t slot = 0;
    std::uint64_t turn = 0;
  };
  struct Transfer {
    Record record;
    std::uint64_t token = 0;
    Phase phase = Phase::offered;
    bool reoffered = false;  // asked again after the data went out
    std::uint64_t asked_at = 0;
    RxSlot rx;
  };

  void begin(const Record& record, std::uint64_t now);
  std::uint64_t lowest_unfinished(std::uint64_t t) const;
  void offer(std::uint64_t t, Transfer& transfer, std::uint64_t now);
  void send_data(std::uint64_t t, Transfer& transfer, std::uint64_t now);
  void answered(std::uint64_t now);
  void raise_generation();
  void drop_transfers();
  void retry_soon();
  void go_down(std::uint64_t now);
  void on_over(std::uint64_t now);
  void drop(const Record& record);
  void on_end(const RailHeader& header, std::uint64_t now);
  std::uint32_t in_phase(Phase phase) const;
  bool may_offer_again(const Transfer& transfer) const;

  Port port_;
  Names names_;
  LinkTimes times_;
  std::uint32_t window_;
  std::uint64_t word_ = 2;  // generation 1, down
  std::uint64_t next_transfer_ = 1;
  std::deque<Record> queue_;
  std::map<std::uint64_t, Transfer> active_;
  // Slots for transfers that have not begun, by number; and whether more of them may be expected with the next `got`.
  std::map<std::uint64_t, RxSlot> ahead_;
  bool expects_ahead_ = false;
  std::uint64_t asked_since_ = 0;  // first question without an answer since; 0: none
  std::uint64_t next_ping_ = 0, pings_ = 0;
  std::uint64_t next_connect_ = 0, connect_wait_ = 0, next_hello_ = 0, connected_at_ = 0;
  std::uint64_t confirmed_bytes_ = 0;
  bool last_time_ = false, abandoned_ = false;
  RateMeter meter_;
  std::optional<std::uint64_t> rate_;
  std::uint64_t rated_at_ = 0;  // 0: never
};

}  // namespace railweave::engine
