// Destination role of the host backend (docs/protocol.md §5).
#pragma once

#include <functional>
#include <unordered_map>

#include "backend.hpp"

namespace railweave::engine {

class HostDestination {
 public:
  // `self_grant`: how a grant reaches this rank's own source.
  HostDestination(EngineServices& services, std::function<void(const Grant&, std::byte*)> self_grant);
  void receive(Operation& operation);
  void on_record(const Record& record);
  RecvMessage* find(const MessageKey& key);
  void drop(Operation& operation);

 private:
  void grant(RecvMessage& message);
  bool mark(RecvMessage& message, std::uint32_t chunk);
  void acknowledge(RecvMessage& message);
  void after_arrival(RecvMessage& message);
  std::uint32_t length(const RecvMessage& message, std::uint32_t chunk) const;

  EngineServices& services_;
  NodeMemory& memory_;
  std::function<void(const Grant&, std::byte*)> self_grant_;
  std::unordered_map<MessageKey, RecvMessage*, MessageKeyHash> messages_;
};

}  // namespace railweave::engine
