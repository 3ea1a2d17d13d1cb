// Destination role of the host backend (docs/protocol.md §5).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backend.hpp"
#include "copier.hpp"

namespace railweave::engine {

class HostDestination {
 public:
  // `self_grant`: how a grant reaches this rank's own source.
  HostDestination(EngineServices& services, Copier& copier, std::function<void(const Grant&, std::byte*)> self_grant);
  void receive(Operation& operation);
  void on_record(const Record& record);
  void on_eager(const MessageKey& key, std::span<const std::byte> data);
  void on_ask(const Ask& ask);
  void on_copied(const Copier::Ended& copy);
  bool has_come(const MessageKey& key) const { return kept_.contains(key); }
  RecvMessage* find(const MessageKey& key);
  void drop(Operation& operation);

 private:
  void grant(RecvMessage& message);
  void take(RecvMessage& message, std::span<const std::byte> data);
  void taken(RecvMessage& message, bool made);
  void give_credit(std::uint32_t source, std::uint64_t bytes);
  void let_go(std::uint32_t source, std::uint64_t bytes);
  void finish(RecvMessage& message);
  struct Pull {
    RecvMessage* message;  // kept until it has ended
    Record record;
  };
  void pull(RecvMessage& message, const Record& record);
  void pulled(const Pull& pull, bool made);
  void arrive(RecvMessage& message, std::uint32_t chunk);
  std::uint32_t length(const RecvMessage& message, std::uint32_t chunk) const;

  EngineServices& services_;
  NodeMemory& memory_;
  Copier& copier_;
  std::function<void(const Grant&, std::byte*)> self_grant_;
  std::unordered_map<MessageKey, RecvMessage*, MessageKeyHash> messages_;
  // Before their receives are posted: eager messages, and asks.
  std::unordered_map<MessageKey, std::vector<std::byte>, MessageKeyHash> kept_;
  std::unordered_set<MessageKey, MessageKeyHash> asked_;
  struct Eager {
    std::uint32_t kept = 0;
    std::uint64_t taken = 0, told = 0;
  };
  std::vector<Eager> eager_;                       // by source
  std::unordered_map<std::uint64_t, Pull> pulls_;  // by ticket: under way
  std::unordered_map<std::uint64_t, RecvMessage*> puts_;
  std::uint64_t next_ticket_ = 1;  // odd
};

}  // namespace railweave::engine
