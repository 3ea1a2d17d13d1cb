// A transport that loses, doubles, delays and reorders what goes through it, or is dead for a while: every frame kind of a rail.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <random>

#include "shared_memory.hpp"
#include "transport.hpp"

namespace railweave::test {

struct FaultPolicy {
  std::uint64_t seed = 1;
  unsigned drop_permille = 0;
  unsigned duplicate_permille = 0;
  unsigned delay_permille = 0;  // held back, so that later frames overtake it
  std::uint64_t delay_ns = 3'000'000;
  bool ucx = false;                  // below is UCX, not sockets
  bool outlives_disconnect = false;  // the connection stays open: only who says nothing more is silent
};

// Shared by the wrappers of a job: lets a test pull the plug of a rail. A dead NIC sends nothing and hears nothing.
class RailSwitch {
 public:
  explicit RailSwitch(std::uint32_t nics) : dead_(nics) {}
  void set_dead(std::uint32_t nic, bool dead) { dead_[nic].store(dead); }
  bool dead(std::uint32_t nic) const { return dead_[nic].load(); }

 private:
  std::vector<std::atomic<bool>> dead_;
};

class FaultTransport : public engine::Transport, engine::TransportListener {
 public:
  FaultTransport(std::unique_ptr<engine::Transport> inner, const FaultPolicy& policy, std::shared_ptr<const RailSwitch> rails,
                 std::uint32_t nic)
      : inner_(std::move(inner)), policy_(policy), rails_(std::move(rails)), nic_(nic), random_(policy.seed * 1000 + nic) {}

  std::vector<std::byte> address() const override { return inner_->address(); }
  void set_listener(engine::TransportListener* listener) override {
    listener_ = listener;
    inner_->set_listener(listener == nullptr ? nullptr : this);
  }
  bool knows(engine::MemoryKind kind) const override { return inner_->knows(kind); }
  void use_memory(std::span<std::byte> memory, engine::MemoryKind kind) override { inner_->use_memory(memory, kind); }
  void connect(std::uint32_t peer, std::span<const std::byte> address) override { inner_->connect(peer, address); }
  bool reconnects() const override { return inner_->reconnects(); }
  void disconnect(std::uint32_t peer) override {
    if (!policy_.outlives_disconnect) inner_->disconnect(peer);
    std::deque<Held> held;
    held.swap(held_);
    for (Held& frame : held) {
      if (frame.peer != peer)
        held_.push_back(std::move(frame));
      else if (frame.token != 0)
        listener_->on_sent(frame.token);
    }
  }

  void send(std::uint32_t peer, const engine::RailHeader& header, std::span<const std::byte> payload, std::uint64_t token) override {
    if (rails_->dead(nic_) || hit(policy_.drop_permille)) {
      if (token != 0) listener_->on_sent(token);
      return;
    }
    if (hit(policy_.duplicate_permille)) held_.push_back({peer, header, {payload.begin(), payload.end()}, 0, due()});
    if (hit(policy_.delay_permille)) {
      // The copy lets go of the slot at once: the late frame is one that a NIC still had when its slot was used again.
      held_.push_back({peer, header, {payload.begin(), payload.end()}, 0, due()});
      if (token != 0) listener_->on_sent(token);
      return;
    }
    inner_->send(peer, header, payload, token);
  }

  void flush() override { inner_->flush(); }
  bool progress() override {
    bool moved = inner_->progress();
    const std::uint64_t now = engine::now_ns();
    while (!held_.empty() && held_.front().due <= now) {
      in_flight_.push_back(std::move(held_.front()));
      held_.pop_front();
      Held& frame = in_flight_.back();
      frame.token = next_token_;
      next_token_ += 2;
      inner_->send(frame.peer, frame.header, frame.payload, kOwnToken | frame.token);
      moved = true;
    }
    return moved;
  }
  int event_fd() const override { return inner_->event_fd(); }
  bool arm() override { return held_.empty() && inner_->arm(); }

  std::byte* on_incoming(const engine::RailHeader& header, std::size_t bytes) override {
    return rails_->dead(nic_) ? nullptr : listener_->on_incoming(header, bytes);
  }
  void on_delivered(const engine::RailHeader& header, std::byte* where, std::size_t bytes, bool ok) override {
    if (!rails_->dead(nic_) || bytes != 0) listener_->on_delivered(header, where, bytes, ok);
  }
  void on_carried(const engine::RailHeader& header, std::span<const std::byte> frames) override {
    if (!rails_->dead(nic_)) listener_->on_carried(header, frames);
  }
  void on_sent(std::uint64_t token) override {
    if ((token & kOwnToken) == 0) {
      listener_->on_sent(token);
      return;
    }
    std::erase_if(in_flight_, [token](const Held& frame) { return frame.token == (token & ~kOwnToken); });
  }
  void on_peer_lost(std::uint32_t peer) override { listener_->on_peer_lost(peer); }

 private:
  static constexpr std::uint64_t kOwnToken = std::uint64_t{1} << 63;
  struct Held {
    std::uint32_t peer;
    engine::RailHeader header;
    std::vector<std::byte> payload;
    std::uint64_t token;
    std::uint64_t due;
  };
  bool hit(unsigned permille) { return permille != 0 && random_() % 1000 < permille; }
  std::uint64_t due() { return engine::now_ns() + policy_.delay_ns; }

  std::unique_ptr<engine::Transport> inner_;
  FaultPolicy policy_;
  std::shared_ptr<const RailSwitch> rails_;
  std::uint32_t nic_;
  std::mt19937_64 random_;
  engine::TransportListener* listener_ = nullptr;
  std::deque<Held> held_;
  std::deque<Held> in_flight_;
  std::uint64_t next_token_ = 1;
};

}  // namespace railweave::test
