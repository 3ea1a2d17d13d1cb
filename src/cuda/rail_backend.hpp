// The engine of a rank whose messages lie on a GPU: its operations are those that kernels list in the RailPort, and its copies are made by
// their blocks. Everything else (routes, relays, rails, resending, leases) is the engine's (docs/engine.md).
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "../engine/copying_backend.hpp"
#include "liveness.hpp"
#include "rail_port.hpp"

namespace railweave::cuda {

// What the communicator's other threads and its engine thread tell each other.
struct RailControl {
  std::atomic<std::uint64_t> enqueued{0};  // operations with messages to other nodes
  std::atomic<bool> captured{false};       // operations run that were not counted
  // The communicator has ended and its kernels leave: what they had been asked to copy is given up when they have.
  std::atomic<bool> stopped{false};
  // The process ends, and CUDA's handlers take the port away.
  std::atomic<bool> no_kernels{false};
  std::atomic<bool> in_turn{false};  // the engine may be looking at it
  // An operation has failed. Called on the engine thread.
  std::function<void(const engine::Failure&)> on_failure;
  // Sent and confirmed, while operations run; repeated ones included.
  std::array<std::atomic<std::uint64_t>, 5> bytes_by_kind{};
  std::vector<std::atomic<std::uint64_t>> bytes_by_nic;  // of the node, in its order; made with the backend
  std::atomic<std::uint64_t> bytes_of_ended{0};          // of all kinds, by operations that have ended
  // Of messages of those, each byte once; by rank, then by direction; made with the backend.
  std::vector<std::array<std::atomic<std::uint64_t>, 2>> bytes_by_peer;
};

// The communicator's failure where an operation over rails has failed so.
Failure failure_of(const engine::Failure& failure);

class RailBackend final : engine::Copier, public engine::CopyingBackend {
 public:
  // A mate's region, or the slots of its NICs that lie elsewhere, as the engine and as the GPU see it.
  struct Mapped {
    const std::byte* host;
    std::uint64_t bytes;
    std::uint64_t device;
    std::shared_ptr<void> keep = nullptr;  // what makes it so
  };
  // `drain_ms`: how long kernels that were sent away are waited for at most.
  RailBackend(engine::EngineServices& services, RailPort& port, std::vector<Mapped> regions, RailControl& control, std::uint64_t drain_ms);

  bool advance() override;
  void on_end(const engine::Operation& operation) override;
  void on_break_down(const engine::Failure& failure) override;
  std::uint64_t next_look(std::uint64_t now) const override;
  std::uint64_t spin_ns() const override;

 private:
  // --- Copier
  bool has_room() const override;
  bool push(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t ticket) override;
  bool pull(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t ticket) override;
  bool put(std::byte* to, std::span<const std::byte> data, std::uint64_t ticket) override;
  void take_ended(std::vector<Ended>& ended) override;

  enum class CopyKind : std::uint8_t { push, pull, put };
  struct Copy {
    std::uint64_t to = 0, from = 0, bytes = 0, ticket = 0;
    CopyKind kind = CopyKind::pull;
  };
  struct Unstaged {
    Copy copy;
    std::vector<std::byte> data;
  };
  struct Place {
    Copy copy;
    std::uint64_t number = 0;
    bool used = false;
  };

  bool expects() const;
  bool take_listed();
  std::shared_ptr<engine::Operation> read_list(std::uint64_t listed) const;
  void end_operation();
  void count_sent();
  void count_ended();
  void fail(const engine::Failure& failure);
  void give_up();
  bool copies_no_more() const;
  bool place_is_free() const { return !control_.no_kernels && !places_[(asked_ + 1) % kRailCopies].used; }
  void ask(const Copy& copy);
  bool stage(Copy copy, std::span<const std::byte> data);
  std::uint64_t on_device(const std::byte* slot) const;

  engine::EngineServices& services_;
  RailPort& port_;
  const std::vector<Mapped> regions_;
  RailControl& control_;
  const std::uint64_t drain_ns_;
  std::uint64_t stopped_at_ = 0;  // when the communicator was seen to have ended
  std::uint64_t begun_ = 0;       // operations taken from the port
  std::shared_ptr<engine::Operation> operation_;
  // What of it has been counted.
  std::array<std::uint64_t, 5> counted_by_kind_{};
  std::vector<std::uint64_t> counted_by_nic_;
  bool told_ = false;        // of a failure
  std::uint64_t asked_ = 0;  // copies
  std::uint32_t open_ = 0, open_pushes_ = 0;
  std::array<Place, kRailCopies> places_;
  std::deque<Copy> waiting_;  // pulls for which there was no place
  // Puts: what is used of RailPort::arrived, all of which is free again when none is under way; and those that had no room.
  std::uint64_t staged_ = 0;
  std::uint32_t open_puts_ = 0;
  std::deque<Unstaged> unstaged_;
};

}  // namespace railweave::cuda
