// Source role of the host backend (docs/protocol.md §6).
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "backend.hpp"
#include "copier.hpp"

namespace railweave::engine {

class HostSource {
 public:
  HostSource(EngineServices& services, Copier& copier);
  void send(Operation& operation);
  // Messages that fit into a control frame, as far as there are credits (docs/protocol.md §6a).
  void send_eager(Operation& operation);
  void on_credit(std::uint32_t destination, std::uint64_t taken);
  void ask_late(std::uint64_t posted_before);
  void on_grant(const Grant& grant, std::byte* local_buffer);
  void on_confirmed(const Record& record);
  static bool owns(std::uint64_t ticket) { return ticket % 2 == 0; }
  void on_copied(const Copier::Ended& copy);
  bool advance();
  void retire_attempts();
  void has_all(std::uint32_t destination);
  SendMessage* find(const MessageKey& key);
  void drop(Operation& operation);

 private:
  void match(SendMessage& message, const Grant& grant, std::byte* local_buffer);
  void ask(SendMessage& message);
  bool push_one(SendMessage& message);
  bool push_mapped(SendMessage& message, std::uint32_t chunk);
  bool push_routed(SendMessage& message, std::uint32_t chunk);
  bool push_to_slot(SendMessage& message, std::uint32_t chunk, const RouteShare& share);
  void look_for_idle();
  bool push_to_idle(SendMessage& message, std::uint32_t chunk);
  bool push_to_link(SendMessage& message, std::uint32_t chunk, const RouteShare& share, std::uint64_t word);
  std::uint32_t most_ahead(const RouteShare& share) const;
  bool link_has_room(const RouteShare& share) const;
  bool try_share(SendMessage& message, std::uint32_t chunk, const RouteShare& share, bool& live);
  // What a copy announces once it has been made.
  struct Push {
    SendMessage* message;  // kept until it has ended
    std::uint32_t mate;
    Record record;
  };
  Record record_of(SendMessage& message, std::uint32_t chunk) const;
  Record record_of(SendMessage& message, std::uint32_t chunk, const SlotRef& slot) const;
  void push(const Push& push, std::byte* to);
  void pushed(const Push& push, bool made);
  std::uint32_t take_next(SendMessage& message) const;
  void took(SendMessage& message, std::uint32_t chunk);
  void finish_chunk(SendMessage& message, std::uint32_t chunk);
  void finish_if_done(SendMessage& message);
  bool stands_announced(const SendMessage& message) const;
  std::uint32_t length(const SendMessage& message, std::uint32_t chunk) const;
  std::uint32_t link_id(std::uint32_t nic, std::uint32_t peer) const;

  struct Early {
    Grant grant;
    std::byte* local_buffer = nullptr;
  };
  EngineServices& services_;
  NodeMemory& memory_;
  Copier& copier_;
  std::unordered_map<MessageKey, SendMessage*, MessageKeyHash> messages_;
  std::unordered_map<MessageKey, Early, MessageKeyHash> early_;
  struct Eager {
    std::uint64_t sent = 0, taken = 0;
  };
  std::vector<Eager> eager_;          // by destination
  std::vector<SendMessage*> active_;  // granted, with chunks to send
  std::vector<SendMessage*> held_;    // all done, but a record waits for room in the destination's ring
  std::size_t turn_ = 0;
  struct TxUse {
    std::uint32_t link = 0;
    SlotRef slot;
  };
  std::vector<std::vector<TxUse>> tx_use_;  // by owner
  struct Idleness {
    std::uint32_t lacks = 0;  // chunks that its NICs lack to be busy, if they have stood idle for a while
    // ns: since when they were idle at every look, but for what this rank sent there; the last look; when this rank sent there.
    std::uint64_t since = 0, seen = 0, used = 0;
  };
  std::vector<Idleness> idleness_;  // by owner of NICs, as of the last look
  bool any_idle_ = false;           // as of that
  std::uint64_t next_look_ = 0;     // ns
  std::size_t fallback_ = 0;
  std::unordered_map<std::uint64_t, Push> pushes_;  // by ticket: under way
  std::uint64_t next_ticket_ = 0;                   // even
};

}  // namespace railweave::engine
