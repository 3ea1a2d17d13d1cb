// The receiving half of one of this rank's NICs, for the links of all peers (docs/protocol.md §7).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "cluster.hpp"
#include "cpu_wait.hpp"
#include "node_memory.hpp"
#include "transport.hpp"

namespace railweave::engine {

class RxPort {
 public:
  // `silence_ns`: a sender that holds something here is given up when it was not heard for that long. `ahead`: slots that each sender may
  // have for transfers that it has not offered yet. `clock`: of the thread that calls.
  RxPort(const Cluster& cluster, NodeMemory& memory, std::uint32_t own_nic, std::uint32_t nic, std::uint64_t silence_ns,
         std::uint32_t ahead, ThreadClock clock);

  // hello, offer: answers are queued.
  void on_hello(const RailHeader& frame);
  void on_offer(const RailHeader& frame);
  void on_ping(const RailHeader& frame);
  // Where that data goes, or nullptr when no transfer waits for it.
  std::byte* on_data(const RailHeader& frame, std::size_t bytes);
  void on_data_done(const RailHeader& frame, bool ok);
  // Gives slots to offers that wait for one, and gives up silent senders.
  bool advance(std::uint64_t now);
  // Any frame from that NIC.
  void hear(std::uint32_t peer_nic, std::uint64_t now);
  // The engine thread did not run for that long: frames may be waiting unread.
  void excuse(std::uint64_t ns);
  // Fences the sender's generation without being asked: it may be gone for ever, and others need the slots. `over` tells it, should it
  // live.
  void give_up(std::uint32_t peer_nic);
  // The sender's process has ended: all that it holds here is free, also what was accepted ahead. Nobody is told.
  void bury(std::uint32_t peer_nic);
  // Answers to send, by peer NIC (header.to_nic).
  std::vector<RailHeader>& answers() noexcept { return answers_; }
  bool idle() const;

 private:
  struct Incoming {
    SlotRef slot;
    RailHeader offer;
    bool writing = false;
    bool fenced = false;
    bool ahead = false;  // accepted before anything was heard of it: there is no offer yet
  };
  // Of a transfer that is over. late: it has landed, but its record waits for room in the destination's ring.
  enum class Outcome : std::uint8_t { late, landed, unwanted };
  struct Peer {
    std::uint64_t generation = 0;
    bool gone = false;  // that generation is fenced, and no newer hello has come
    std::uint64_t heard_at = 0;
    std::uint64_t base = 1;  // all transfers below are over
    std::map<std::uint64_t, Outcome> finished;
    std::map<std::uint64_t, Incoming> accepted;
    std::set<std::uint64_t> waiting;
    std::uint64_t next = 1;   // above all transfers of the generation that were heard of, or accepted ahead
    std::uint32_t ahead = 0;  // of those accepted
  };

  Peer* current(const RailHeader& frame);
  static void note(Peer& peer, const RailHeader& frame);
  bool is_over(const Peer& peer, const RailHeader& frame);
  bool claim(Peer& peer, Incoming& incoming, const RailHeader& frame);
  void accept_ahead(std::uint32_t peer_nic, Peer& peer);
  void fence(std::uint32_t peer_nic, Peer& peer);
  bool known_destination(const RailHeader& frame) const;
  bool wanted(const RailHeader& offer) const;
  void refuse(Peer& peer, const RailHeader& offer);
  bool accept(std::uint32_t peer_nic, const RailHeader& offer, bool waited);
  void answer(RailFrame kind, std::uint32_t peer_nic, std::uint64_t generation, std::uint64_t transfer, std::uint64_t base);
  static void finish(Peer& peer, std::uint64_t transfer, Outcome outcome);
  bool answer_late();

  const Cluster& cluster_;
  NodeMemory& memory_;
  std::uint32_t own_nic_, nic_;
  std::uint64_t silence_ns_, next_look_ = 0;
  std::uint32_t most_ahead_;
  ThreadClock clock_;
  std::unordered_map<std::uint32_t, Peer> peers_;
  std::deque<RailHeader> waiting_;
  struct Late {
    std::uint32_t peer_nic, reader;
    std::uint64_t announced;  // NodeMemory::announced() with its record
    std::uint64_t generation, transfer;
  };
  std::vector<Late> late_;
  std::vector<RailHeader> answers_;
  std::uint64_t received_bytes_ = 0;
};

}  // namespace railweave::engine
