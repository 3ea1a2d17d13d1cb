// What a role of the host backend needs from an engine, without one; and copies that end when a test says so.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "copier.hpp"
#include "parts.hpp"
#include "tx_link.hpp"

namespace railweave::test {

// Of rank 0, which owns NIC 0, on a node of so many ranks. The next two ranks are on the other node, with NICs 1 and 2.
class Services final : public engine::EngineServices {
 public:
  explicit Services(std::uint32_t ranks = 1) : node_(ranks, {}) {}
  // Of rank 0 of that cluster, with a router.
  Services(const engine::Cluster& cluster, const ExchangeSettings& settings) : settings_(settings), node_(cluster, settings) {
    router_.emplace(node_.clusters[0], engine::derive_fabric(node_.clusters[0]), settings);
  }
  const engine::Cluster& cluster() const override { return node_.clusters[0]; }
  engine::NodeMemory& memory() override { return *node_.memories[0]; }
  engine::ControlChannel& control() override { return channel_; }
  const engine::Router& router() const override {
    if (!router_) std::abort();  // destinations route nothing, and sources here have a plan whose ways are never full
    return *router_;
  }
  bool relays(std::uint32_t) const override { return true; }
  bool serves(std::uint32_t) const override { return true; }
  std::uint64_t link_word(std::uint32_t nic, std::uint32_t peer) const override {
    const auto changed = words.find({nic, peer});
    return changed == words.end() ? 3 : changed->second;
  }
  std::shared_ptr<void> registered(const std::byte*, std::uint64_t, engine::MemoryHandle&, std::uint64_t&) override { return nullptr; }
  std::shared_ptr<engine::SharedMemory> map(const engine::MemoryHandle&) override { return nullptr; }
  engine::MessageState state_of(const engine::MessageKey&) const override { return state; }
  std::uint64_t eager_bytes() const override { return 1000; }
  std::uint32_t link_window(std::uint32_t nic) const override { return engine::link_window(settings_, router().nominal_Bps(nic)); }
  void message_over(engine::Operation& operation) override { --operation.unfinished; }
  void fail(engine::Operation& operation, const engine::Failure& failure) override { operation.failure = failure; }
  std::optional<engine::Failure> death() const override { return std::nullopt; }
  void post(const std::shared_ptr<engine::Operation>&) override {}

  engine::NodeMemory& memory_of(std::uint32_t mate) { return *node_.memories[mate]; }
  std::vector<engine::FrameType> sent() const { return carrier_.types; }
  engine::MessageState state = engine::MessageState::unfinished;           // of all messages
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> words;  // of links; else generation 1, up

 private:
  struct Noted final : engine::Carrier {
    bool carry(std::uint32_t, const engine::Frame& frame, std::uint32_t) override {
      engine::FrameHeader header;
      std::memcpy(&header, frame.content().data(), sizeof header);
      types.push_back(header.type);
      return true;
    }
    std::vector<engine::FrameType> types;
  };
  const ExchangeSettings settings_;
  NodeParts node_;
  std::optional<engine::Router> router_;
  Noted carrier_;
  engine::ControlChannel channel_{
      node_.clusters[0], *node_.memories[0], carrier_, {}, [](std::uint32_t, engine::FrameType, engine::ByteReader&) {}};
};

// Copies when the test says so, as a GPU does when its kernel comes to it.
class LateCopier final : public engine::Copier {
 public:
  bool has_room() const override { return true; }
  bool push(std::byte*, const std::byte*, std::uint64_t, std::uint64_t ticket) override { return note(ticket); }
  bool pull(std::byte*, const std::byte*, std::uint64_t, std::uint64_t ticket) override { return note(ticket); }
  bool put(std::byte*, std::span<const std::byte>, std::uint64_t ticket) override { return note(ticket); }
  void take_ended(std::vector<Ended>&) override {}
  std::vector<std::uint64_t> tickets;

 private:
  bool note(std::uint64_t ticket) {
    tickets.push_back(ticket);
    return false;
  }
};

}  // namespace railweave::test
