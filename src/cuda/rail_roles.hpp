// What a block does for messages to and from ranks of other nodes: it lists them to the rank's engine, copies what the engine asks for, and
// leaves when the engine says that all are over. Beside the roles of roles.hpp, in the same launch, over the same `Block`.
#pragma once

#include "ending.hpp"
#include "rail_port.hpp"

namespace railweave::cuda {

// Blocks that stay for rails when they have nothing else to do, so that one copies while another waits for its next copy; more would only
// ask the host's memory for news. A block moves some 40 GB/s, a rank's two rails of 8 Gbit/s 2 GB/s each way.
inline constexpr std::uint32_t kRailBlocks = 2;
// Turns inside the node after which another block looks for copies, too: it may be the only one that runs. Not measured.
inline constexpr std::uint32_t kTurnsBetweenRails = 16;

RAILWEAVE_ROLE constexpr bool is_of(std::uint64_t errand_word, std::uint64_t copy) {
  return static_cast<std::uint32_t>(errand_word) == static_cast<std::uint32_t>(copy);
}

template <typename Block>
class RailRoles {
 public:
  RAILWEAVE_ROLE RailRoles(Block& block, const Part& part)
      : block_(block),
        state_(*part.state),
        messages_(part.messages),
        count_(part.count),
        others_(part.others),
        other_count_(part.other_count),
        timeout_ns_(part.timeout_ns) {}

  // Whichever block comes first lists the messages, once a communicator. None does for a communicator that has ended, or whose kernel
  // before this one said why it gave up, which the host may not have seen yet: copies that its engine had asked for are not for this
  // operation. False then: nothing is left to do.
  RAILWEAVE_ROLE bool begin() {
    for (std::uint32_t first = 0; first < count_; first = end_of(first)) {
      const Message& m = messages_[first];
      const Entry entry = block_.share([&] {
        Entry found = Entry::others;
        block_.lead([&] {
          if ((block_.relaxed(&m.host->stop) | block_.relaxed(&m.host->error)) != 0) {
            found = Entry::ended;
          } else {
            const std::uint64_t before = block_.relaxed(&m.rail.counts->begun);
            if (block_.swap_if(&m.rail.counts->listed, before, before + 1)) found = Entry::own;
          }
        });
        return found;
      });
      if (entry == Entry::own) list(first);
      if (entry == Entry::ended) {
        block_.leader([&] { stop_operation(block_, state_, m, KernelError::aborted); });
        stopped_ = true;
      }
    }
    start_ = block_.now();
    return !stopped_;
  }

  // One copy, if one is wanted. False when all messages are over, the operation was stopped, or others see to the rest: `idle` says that
  // the block has nothing else to do.
  RAILWEAVE_ROLE bool turn(bool idle) {
    const Errand errand = block_.share([&] { return find(); });
    if (errand.step == RailStep::over) return false;
    if (errand.step == RailStep::waiting) {
      if (idle && block_.index() >= kRailBlocks) return false;
      // Beside messages inside the node it counts for itself: of two that share the block's count each might look at the host when it is
      // the other's turn, and never.
      if (idle ? block_.idle() : ++waited_ % kTurnsBetweenLooks == 0) stopped_ = look_at_host();
      return !stopped_;
    }
    block_.copy(reinterpret_cast<std::byte*>(errand.copy.to), reinterpret_cast<const std::byte*>(errand.copy.from), errand.copy.bytes);
    block_.sync();
    block_.leader([&] { block_.release(&messages_[errand.message].rail.port->made[errand.number % kRailCopies], errand.number); });
    return true;
  }

  // The last block to leave moves the communicators' counts and totals on; and tells the engines, if they wait for the copies of a kernel
  // that was sent away.
  RAILWEAVE_ROLE void end() {
    const std::uint32_t left = block_.share([&] {
      const std::uint32_t own = stopped_ ? kLeftStopped : kLeft;
      std::uint32_t before = 0;
      block_.lead([&] { before = block_.add(&state_.left, own); });
      return before + own;
    });
    if (blocks_left(left) != block_.blocks()) return;
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = messages_[i];
      if (!m.reports) return;
      if (any_stopped(left)) {
        block_.vacate(&m.rail.port->left, std::uint64_t{1});
        return give_up(block_, m);
      }
      block_.store(&m.rail.counts->begun, number_of(m));
      report(block_, m);
    });
    if (any_stopped(left)) {
      block_.each(other_count_, [&](std::uint32_t i) {
        if (others_[i].reports) tell_aborted(block_, others_[i]);
      });
    }
    block_.leader([&] {
      block_.store(&state_.left, 0u);
      block_.store(&state_.stopped, 0u);
    });
  }

 private:
  static constexpr std::uint32_t kTurnsBetweenLooks = 512;

  enum class Entry : std::uint32_t { own, others, ended };
  // The most urgent first.
  enum class RailStep : std::uint32_t { copy, waiting, over };
  struct Errand {
    RailStep step;
    std::uint32_t message;
    std::uint64_t number;
    RailErrand copy;
  };

  // Messages of a communicator stand together.
  RAILWEAVE_ROLE std::uint32_t end_of(std::uint32_t first) const { return first + messages_[first].piece_bytes; }
  // Of this operation, on the message's communicator. The count stands still while the operation runs.
  RAILWEAVE_ROLE std::uint64_t number_of(const Message& m) const { return block_.relaxed(&m.rail.counts->begun) + 1; }
  // Nothing that a block reads depends on it: what came for the messages was written by blocks of this kernel.
  RAILWEAVE_ROLE bool is_over(const Message& m) const { return block_.arrived(&m.rail.port->ended) >= number_of(m); }

  RAILWEAVE_ROLE void list(std::uint32_t first) {
    RailPort& port = *messages_[first].rail.port;
    const std::uint32_t listed = end_of(first) - first;
    block_.each(listed, [&](std::uint32_t i) {
      const Message& m = messages_[first + i];
      RailMessage& place = port.messages[i];
      place.data = reinterpret_cast<std::uint64_t>(m.data);
      place.bytes = m.bytes;
      place.peer = m.peer;
      place.staged = m.ordinal;
      place.direction = m.direction;
    });
    for (std::uint32_t i = 0; i < listed; ++i) {
      const Message& m = messages_[first + i];
      if (m.ordinal != kNotStaged) block_.copy(port.sent + m.ordinal, m.data, static_cast<std::uint32_t>(m.bytes));
    }
    block_.sync();
    block_.leader([&] {
      report_begin(block_, messages_[first]);
      block_.store(&port.listed, std::uint64_t{listed});
      block_.release(&port.begun, number_of(messages_[first]));
    });
  }

  // By one warp. Copies are taken in the engine's order.
  RAILWEAVE_ROLE Errand find() const {
    Errand errand{RailStep::over, 0, 0, {}};
    for (std::uint32_t first = 0;;) {
      look(first, errand);
      if (errand.step == RailStep::copy || (first = end_of(first)) >= count_) break;
    }
    if (errand.step == RailStep::copy) {
      bool taken = false;
      block_.lead([&] { taken = block_.swap_if(&messages_[errand.message].rail.counts->taken, errand.number - 1, errand.number); });
      if (!taken) errand.step = RailStep::waiting;
    }
    return errand;
  }

  // What there is for a communicator, if that is more urgent than `errand`.
  RAILWEAVE_ROLE void look(std::uint32_t first, Errand& errand) const {
    constexpr std::uint32_t kCopy = RailCopy::kWords, kHalf = 32;
    const Message& m = messages_[first];
    // One value for the warp, as another block may take a copy at the same time.
    const std::uint64_t next = block_.uniform([&] { return block_.relaxed(&m.rail.counts->taken); }) + 1, own = number_of(m);
    const RailPort& port = *m.rail.port;
    const RailCopy& place = port.copies[next % kRailCopies];
    std::uint64_t words[kCopy + 1];
    block_.gather(words, [&](std::uint32_t i) { return i < kCopy ? &place.words[i] : &port.ended; });
    bool there = true;
    for (std::uint32_t i = 0; i < kCopy; ++i) there = there && is_of(words[i], next);
    if (there) {
      const auto address = [&](std::uint32_t i) { return words[i] >> kHalf | words[i + 1] >> kHalf << kHalf; };
      errand = {RailStep::copy, first, next, {address(0), address(2), static_cast<std::uint32_t>(words[4] >> kHalf)}};
    } else if (words[kCopy] < own) {
      errand.step = RailStep::waiting;
    }
  }

  // Now and then while nothing can be done.
  RAILWEAVE_ROLE bool look_at_host() {
    const bool late = block_.now() - start_ > timeout_ns_;
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = messages_[i];
      if (!m.reports) return;
      if (block_.relaxed(&m.host->stop) != 0) {
        stop_operation(block_, state_, m, KernelError::aborted);
      } else if (late && !is_over(m)) {
        stop_operation(block_, state_, m, KernelError::timed_out);
      }
    });
    return block_.share([&] { return block_.relaxed(&state_.stopped) != 0; });
  }

  Block& block_;
  PartState& state_;
  const Message* messages_;
  std::uint32_t count_;
  const Message* others_;
  std::uint32_t other_count_;
  std::uint32_t waited_ = 0;
  bool stopped_ = false;
  std::uint64_t timeout_ns_;
  std::uint64_t start_ = 0;
};

// An operation with messages to other nodes, and perhaps others. A block does what it can for the one kind and for the other, in turn, and
// waits in neither; what goes over rails is slower, so few blocks look after that at every turn.
template <typename Block, typename Near>
RAILWEAVE_ROLE void run_beside_rails(Block& block, RailRoles<Block>& rails, Near& near, bool has_near) {
  bool rails_left = rails.begin(), near_left = has_near;
  if (!rails_left) rails.end();
  if (near_left) near.begin();
  for (std::uint32_t turns = 0; rails_left || near_left; ++turns) {
    if (near_left) {
      near_left = near.turn(rails_left && block.index() < kRailBlocks);
      if (!near_left) near.end();
    }
    if (!rails_left || (near_left && block.index() >= kRailBlocks && turns % kTurnsBetweenRails != 0)) continue;
    rails_left = rails.turn(!near_left);
    if (!rails_left) rails.end();
  }
}

}  // namespace railweave::cuda
