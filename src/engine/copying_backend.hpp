// The roles of a source and a destination (docs/protocol.md §5, §6) over a copier.
#pragma once

#include <vector>

#include "backend.hpp"
#include "copier.hpp"
#include "host_destination.hpp"
#include "host_source.hpp"

namespace railweave::engine {

class CopyingBackend : public Backend {
 public:
  CopyingBackend(EngineServices& services, Copier& copier)
      : copier_(copier),
        source_(services, copier),
        destination_(services, copier, [this](const Grant& grant, std::byte* buffer) { source_.on_grant(grant, buffer); }) {}

  void start(Operation& operation) override {
    destination_.receive(operation);
    source_.send_eager(operation);
  }
  void send(Operation& operation) override { source_.send(operation); }
  void on_record(const Record& record) override {
    if (record.kind == RecordKind::confirmed)
      source_.on_confirmed(record);
    else
      destination_.on_record(record);
  }
  void on_grant(const Grant& grant) override { source_.on_grant(grant, nullptr); }
  void on_eager(const MessageKey& message, std::span<const std::byte> data) override { destination_.on_eager(message, data); }
  void on_ask(const Ask& ask) override { destination_.on_ask(ask); }
  void on_credit(std::uint32_t destination, std::uint64_t taken) override { source_.on_credit(destination, taken); }
  bool has_come(const MessageKey& message) const override { return destination_.has_come(message); }
  void on_end(const Operation&) override {}
  void ask_late(std::uint64_t posted_before) override { source_.ask_late(posted_before); }
  bool advance() override {
    ended_.clear();
    copier_.take_ended(ended_);
    for (const Copier::Ended& copy : ended_) {
      if (HostSource::owns(copy.ticket))
        source_.on_copied(copy);
      else
        destination_.on_copied(copy);
    }
    return source_.advance() || !ended_.empty();
  }
  void retire_attempts() override { source_.retire_attempts(); }
  void has_all(std::uint32_t destination) override { source_.has_all(destination); }
  void drop(Operation& operation) override {
    source_.drop(operation);
    destination_.drop(operation);
  }

 private:
  Copier& copier_;
  HostSource source_;
  HostDestination destination_;
  std::vector<Copier::Ended> ended_;
};

}  // namespace railweave::engine
