// What a block of the exchange kernel does: the source's and the destination's side of docs/cuda.md. Written once for GPU blocks
// (device_block.cuh) and for threads (tests), over a `Block` that has the loads, stores, atomics and copies:
//
//   blocks(), index()              the grid
//   relaxed(p), acquire(p), release(p, v), release_here(p, v), store(p, v), add(p, v), swap_if(p, old, new)
//                                  words; `_here`: for this GPU only, the others for all GPUs and the host
//   share(f)                       f's result, computed by one warp, at every thread of the block; inside it:
//     lead(f)                      f() by one thread
//     smallest(n, f)               least f(i) for i < n
//   one(f)                         f's result, computed by one thread, at every thread of the block
//   each(n, f)                     f(i) for i < n, and a barrier after the last
//   leader(f)                      f() by one thread
//   sync()                         barrier of the block
//   fence()                        what the block wrote before the last sync() comes before what this thread writes next, for everybody
//   copy(to, from, n)              by all threads
//   write_packets, read_packets, wipe     low-latency slots, by all threads
//   idle()                         after a turn without work; true when it is time to look at the host's words
//   now()                          ns
#pragma once

#include "operation.hpp"

#ifdef __CUDACC__
#define RAILWEAVE_ROLE __device__ __forceinline__
#else
#define RAILWEAVE_ROLE inline
#endif

namespace railweave::cuda {

// What a block does next, the most urgent first: pulls free what others wait for, so they go before pushes.
enum class Step : std::uint32_t { leave, pull_packets, pull_slot, finish, grant, push_packets, push, nothing };

struct Work {
  Step step;
  std::uint32_t message;
  std::uint32_t slot;
  std::uint32_t bytes;
  std::uint64_t offset;  // in the message
  std::uint64_t turn;    // of the slot; for packets the piece's sequence number
  std::byte* address;    // of a push into a buffer
};

RAILWEAVE_ROLE constexpr std::uint32_t packet_flag(std::uint64_t piece) { return static_cast<std::uint32_t>(piece % (1u << 31)) + 1; }

template <typename Block>
class Roles {
 public:
  RAILWEAVE_ROLE Roles(Block& block, const OperationHeader& header, const Message* messages)
      : block_(block), state_(*header.state), messages_(messages), count_(header.count), timeout_ns_(header.timeout_ns) {}

  RAILWEAVE_ROLE void run() {
    begin();
    const std::uint64_t start = block_.now();
    for (;;) {
      const Work work = block_.share([&] { return next_work(); });
      if (work.step == Step::leave) break;
      if (work.step == Step::nothing) {
        if (block_.idle()) look_at_host(start);
        continue;
      }
      perform(work);
    }
    end();
  }

 private:
  RAILWEAVE_ROLE const Message& message(std::uint32_t i) const { return messages_[i]; }
  RAILWEAVE_ROLE MessageState& state(std::uint32_t i) const { return state_.messages[i]; }

  // --- Begin and end

  // The first block that arrives numbers the messages and grants; the others wait for that block, which is running.
  RAILWEAVE_ROLE void begin() {
    const bool first = block_.one([&] {
      if (block_.add(&state_.arrived, 1u) == 0) return true;
      while (block_.acquire(&state_.ready) == 0) block_.pause();
      return false;
    });
    if (first) set_up();
    home_ = block_.share([&] { return find_home(); });
  }

  RAILWEAVE_ROLE void set_up() {
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      MessageState& s = state(i);
      const bool sends = m.direction == Direction::send;
      if (m.path == Path::granted) {
        // Numbers begin at 1, so that a zeroed flag names no message.
        block_.store(&s.number, block_.relaxed(sends ? &m.local->sent : &m.local->received) + m.ordinal + 1);
        if (!sends && m.grant_after == kNone) {
          block_.store(&s.granted, 1u);
          post_grant(i);
        }
      } else {
        block_.store(&s.number, block_.relaxed(sends ? &m.local->pieces_sent : &m.local->pieces_received) + m.ordinal);
      }
    });
    block_.leader([&] {
      block_.store(&state_.remaining, count_);
      block_.release_here(&state_.ready, 1u);
    });
    block_.sync();
  }

  // The send that this block begins with: blocks are given to sends by bytes.
  RAILWEAVE_ROLE std::uint32_t find_home() {
    const std::uint64_t found = block_.smallest(count_, [&](std::uint32_t i) -> std::uint64_t {
      const Message& m = message(i);
      return m.direction == Direction::send && m.first_block <= block_.index() && block_.index() < m.last_block ? i : count_;
    });
    return static_cast<std::uint32_t>(found % count_);
  }

  // The last block to leave moves the pairs' counts on, tells the host and leaves the state as it was found.
  RAILWEAVE_ROLE void end() {
    const bool last = block_.one([&] {
      block_.fence_here();
      return block_.add(&state_.left, 1u) == block_.blocks() - 1;
    });
    if (!last) return;
    const bool stopped = block_.relaxed(&state_.stopped) != 0;
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      MessageState& s = state(i);
      const bool sends = m.direction == Direction::send;
      if (!stopped) {
        if (m.last_of_pair && m.path == Path::granted) {
          block_.store(sends ? &m.local->sent : &m.local->received, s.number);
        } else if (m.last_of_pair) {
          block_.store(sends ? &m.local->pieces_sent : &m.local->pieces_received, s.number + pieces(m));
        }
        block_.add(&m.totals->completed, std::uint64_t{1});
        block_.add(sends ? &m.totals->bytes_sent : &m.totals->bytes_received, m.bytes);
      }
      s = MessageState{};  // the kernel's end orders this before the next operation
    });
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      if (!m.reports || stopped) return;
      block_.store(&m.host->bytes_sent, block_.relaxed(&m.totals->bytes_sent));
      block_.store(&m.host->bytes_received, block_.relaxed(&m.totals->bytes_received));
      block_.store(&m.host->completed, block_.relaxed(&m.totals->completed));
    });
    block_.leader([&] {
      block_.store(&state_.arrived, 0u);
      block_.store(&state_.ready, 0u);
      block_.store(&state_.stopped, 0u);
      block_.store(&state_.left, 0u);
    });
  }

  RAILWEAVE_ROLE static std::uint64_t pieces(const Message& m) { return (m.bytes + kLowLatencyBytes - 1) / kLowLatencyBytes; }

  // --- Failure

  // Now and then while nothing can be done: has the host told us to leave, or is it time to give up?
  RAILWEAVE_ROLE void look_at_host(std::uint64_t start) {
    const bool late = block_.now() - start > timeout_ns_;
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      if (!m.reports && !late) return;
      if (block_.acquire(&m.host->stop) != 0) {
        stop(m, KernelError::aborted);
      } else if (late && block_.relaxed(&state(i).complete) == 0) {
        stop(m, KernelError::timed_out);
      }
    });
  }

  RAILWEAVE_ROLE void stop(const Message& m, KernelError error) {
    if (block_.relaxed(&m.host->error) == 0) {
      block_.store(&m.host->error_peer, m.peer);
      block_.release(&m.host->error, static_cast<std::uint32_t>(error));
    }
    block_.release(&state_.stopped, 1u);
  }

  // --- What to do next: in one warp of the block

  RAILWEAVE_ROLE Work next_work() {
    Work work{};
    const std::uint64_t found = block_.smallest(count_ + 1, [&](std::uint32_t i) -> std::uint64_t {
      if (i == count_) {
        const bool over = block_.relaxed(&state_.remaining) == 0 || block_.relaxed(&state_.stopped) != 0;
        return static_cast<std::uint64_t>(over ? Step::leave : Step::nothing) << 48;
      }
      std::uint32_t slot = 0;
      const Step step = message(i).direction == Direction::send ? look_at_send(i, slot) : look_at_receive(i, slot);
      // Among equals the block's own send first, then the ones after it, so that blocks spread.
      const std::uint32_t distance = i >= home_ ? i - home_ : i + count_ - home_;
      return static_cast<std::uint64_t>(step) << 48 | static_cast<std::uint64_t>(distance) << 16 | slot;
    });
    work.step = static_cast<Step>(found >> 48);
    if (work.step == Step::leave || work.step == Step::nothing) return work;
    const std::uint32_t distance = static_cast<std::uint32_t>(found >> 16);
    work.message = distance + home_ < count_ ? distance + home_ : distance + home_ - count_;
    work.slot = static_cast<std::uint32_t>(found & 0xffff);
    // Between looking and claiming another block may have been faster: then there is nothing to do in this turn.
    bool claimed = false;
    block_.lead([&] { claimed = claim(work); });
    if (!claimed) work.step = Step::nothing;
    return work;
  }

  // Loads come before decisions: each costs a trip to L2, and together they cost one.
  RAILWEAVE_ROLE Step look_at_receive(std::uint32_t i, std::uint32_t& slot) const {
    const Message& m = message(i);
    MessageState& s = state(i);
    const std::uint64_t number = s.number;
    if (m.path == Path::low_latency) {
      const std::uint64_t claimed = block_.relaxed(&s.claimed);
      const std::uint64_t piece = number + claimed / kLowLatencyBytes;
      const std::uint64_t first = block_.relaxed(&m.local->packets[piece % kLowLatencySlots][0].words[0]);
      return claimed < m.bytes && static_cast<std::uint32_t>(first >> 32) == packet_flag(piece) ? Step::pull_packets : Step::nothing;
    }
    const bool complete = block_.relaxed(&s.complete) != 0;
    const bool granted = block_.relaxed(&s.granted) != 0;
    const bool may_grant = m.grant_after == kNone || block_.relaxed(&state(static_cast<std::uint32_t>(m.grant_after)).complete) != 0;
    const std::uint64_t placed = block_.relaxed(&m.local->placed[number % kGrants]);
    std::uint64_t filled[kSlots], pulled[kSlots], numbers[kSlots];
    for (std::uint32_t k = 0; k < kSlots; ++k) filled[k] = block_.relaxed(&m.local->filled[k]);
    for (std::uint32_t k = 0; k < kSlots; ++k) pulled[k] = block_.relaxed(&m.local->pulled[k]);
    for (std::uint32_t k = 0; k < kSlots; ++k) numbers[k] = block_.relaxed(&m.local->records[k].number);
    if (complete) return Step::nothing;
    if (!granted) return may_grant ? Step::grant : Step::nothing;
    if (placed == number) return Step::finish;
    Step step = Step::nothing;
    for (std::uint32_t k = 0; k < kSlots; ++k) {
      if (filled[k] == pulled[k] + 1 && numbers[k] == number) {
        step = Step::pull_slot;
        slot = k;
      }
    }
    return step;
  }

  RAILWEAVE_ROLE Step look_at_send(std::uint32_t i, std::uint32_t& slot) const {
    const Message& m = message(i);
    MessageState& s = state(i);
    const std::uint64_t claimed = block_.relaxed(&s.claimed);
    const std::uint64_t number = s.number;
    if (m.path == Path::low_latency) {
      const std::uint64_t piece = number + claimed / kLowLatencyBytes;
      return claimed < m.bytes && has_credit(m, piece) ? Step::push_packets : Step::nothing;
    }
    const bool granted = block_.relaxed(&m.local->grants[number % kGrants].number) == number;
    const bool slots = block_.relaxed(&s.route) == kSlotRoute;
    if (claimed >= m.bytes || !granted) return Step::nothing;
    if (!slots) return Step::push;
    std::uint64_t freed[kSlots], taken[kSlots];
    for (std::uint32_t k = 0; k < kSlots; ++k) freed[k] = block_.relaxed(&m.local->freed[k]);
    for (std::uint32_t k = 0; k < kSlots; ++k) taken[k] = block_.relaxed(&m.local->taken[k]);
    Step step = Step::nothing;
    std::uint32_t least = kSlots;
    for (std::uint32_t k = 0; k < kSlots; ++k) {
      // A block begins with the slot of its own index, so that blocks do not race for one.
      const std::uint32_t distance = (k + kSlots - block_.index() % kSlots) % kSlots;
      if (freed[k] == taken[k] && distance < least) {
        step = Step::push;
        slot = k;
        least = distance;
      }
    }
    return step;
  }

  RAILWEAVE_ROLE bool has_credit(const Message& m, std::uint64_t piece) const {
    if (piece < kLowLatencySlots) return true;
    return block_.relaxed(&m.local->credits[piece % kLowLatencySlots]) == piece - kLowLatencySlots + 1;
  }

  // --- Claims: by one thread

  RAILWEAVE_ROLE bool claim(Work& work) {
    const Message& m = message(work.message);
    MessageState& s = state(work.message);
    switch (work.step) {
      case Step::pull_packets:
      case Step::push_packets: return claim_piece(work, m, s);
      case Step::pull_slot: return claim_pull(work, m);
      case Step::push: return claim_push(work, m, s);
      case Step::grant: return block_.swap_if(&s.granted, 0u, 1u);
      default: return true;
    }
  }

  RAILWEAVE_ROLE bool claim_piece(Work& work, const Message& m, MessageState& s) {
    const std::uint64_t claimed = block_.relaxed(&s.claimed);
    if (claimed >= m.bytes) return false;
    work.turn = s.number + claimed / kLowLatencyBytes;
    work.slot = static_cast<std::uint32_t>(work.turn % kLowLatencySlots);
    if (work.step == Step::push_packets) {
      if (!has_credit(m, work.turn)) return false;
      // Reads what the destination did before it gave the credit: it has wiped or emptied the slot.
      block_.acquire(&m.local->credits[work.slot]);
    } else if (static_cast<std::uint32_t>(block_.relaxed(&m.local->packets[work.slot][0].words[0]) >> 32) != packet_flag(work.turn)) {
      return false;
    }
    const std::uint64_t left = m.bytes - claimed;
    work.bytes = static_cast<std::uint32_t>(left < kLowLatencyBytes ? left : kLowLatencyBytes);
    work.offset = claimed;
    return block_.swap_if(&s.claimed, claimed, claimed + work.bytes);
  }

  RAILWEAVE_ROLE bool claim_pull(Work& work, const Message& m) {
    const std::uint64_t filled = block_.acquire(&m.local->filled[work.slot]);
    if (filled != block_.relaxed(&m.local->pulled[work.slot]) + 1) return false;
    if (!block_.swap_if(&m.local->pulled[work.slot], filled - 1, filled)) return false;
    const SlotRecord& record = m.local->records[work.slot];
    const std::uint64_t number = block_.relaxed(&record.number);
    work.turn = filled;
    work.offset = block_.relaxed(&record.offset);
    const std::uint64_t bytes = block_.relaxed(&record.bytes);
    // Since the look the slot may have been filled with another message of the pair: that one is pulled then.
    for (std::uint32_t i = 0; i < count_ && number != state(work.message).number; ++i) {
      const Message& other = message(i);
      const bool same_pair = other.direction == Direction::receive && other.path == Path::granted && other.local == m.local;
      if (same_pair && state(i).number == number) work.message = i;
    }
    const Message& owner = message(work.message);
    if (number != state(work.message).number || bytes > kSlotBytes || work.offset > owner.bytes || bytes > owner.bytes - work.offset) {
      stop(owner, KernelError::bad_record);
      return false;
    }
    work.bytes = static_cast<std::uint32_t>(bytes);
    return true;
  }

  RAILWEAVE_ROLE bool claim_push(Work& work, const Message& m, MessageState& s) {
    Grant& grant = m.local->grants[s.number % kGrants];
    if (block_.acquire(&grant.number) != s.number) return false;
    std::uint64_t route = block_.relaxed(&s.route);
    if (route == 0) {
      // Read before any piece is claimed, so the grant cannot have been replaced: the message is not over.
      if (block_.relaxed(&grant.bytes) != m.bytes) {
        block_.store(&m.host->error_bytes[0], m.bytes);
        block_.store(&m.host->error_bytes[1], block_.relaxed(&grant.bytes));
        stop(m, KernelError::sizes_differ);
        return false;
      }
      const std::uint64_t wanted = find_route(m, grant);
      route = block_.swap_if(&s.route, std::uint64_t{0}, wanted) ? wanted : block_.relaxed(&s.route);
    }
    if (route != kSlotRoute) {
      work.offset = block_.add(&s.claimed, std::uint64_t{m.piece_bytes});
      if (work.offset >= m.bytes) return false;
      const std::uint64_t left = m.bytes - work.offset;
      work.bytes = static_cast<std::uint32_t>(left < m.piece_bytes ? left : m.piece_bytes);
      work.address = reinterpret_cast<std::byte*>(route) + work.offset;
      return true;
    }
    work.address = nullptr;
    const std::uint64_t turn = block_.relaxed(&m.local->taken[work.slot]);
    if (block_.acquire(&m.local->freed[work.slot]) != turn || !block_.swap_if(&m.local->taken[work.slot], turn, turn + 1)) return false;
    work.offset = block_.add(&s.claimed, kSlotBytes);
    if (work.offset >= m.bytes) {
      block_.store(&m.local->taken[work.slot], turn);  // nothing left to put into it
      return false;
    }
    work.turn = turn + 1;
    const std::uint64_t left = m.bytes - work.offset;
    work.bytes = static_cast<std::uint32_t>(left < kSlotBytes ? left : kSlotBytes);
    return true;
  }

  // The destination's buffer where it is mapped here, else slots.
  RAILWEAVE_ROLE std::uint64_t find_route(const Message& m, const Grant& grant) const {
    const std::uint64_t buffer = block_.relaxed(&grant.buffer);
    const std::uint64_t offset = block_.relaxed(&grant.offset);
    if (buffer == kNoBuffer) return kSlotRoute;
    if (buffer == kAbsoluteBuffer) return offset;
    const Mapping& mapping = m.send.mappings[buffer % kMappings];
    if (block_.acquire(&mapping.buffer) != buffer) return kSlotRoute;
    return block_.relaxed(&mapping.base) + offset;
  }

  // --- Doing it: by the whole block

  RAILWEAVE_ROLE void perform(const Work& work) {
    const Message& m = message(work.message);
    MessageState& s = state(work.message);
    switch (work.step) {
      case Step::pull_packets: pull_packets(work, m); break;
      case Step::pull_slot:
        block_.copy(m.data + work.offset, m.local->slots[work.slot], work.bytes);
        block_.sync();
        block_.leader([&] {
          block_.release(&m.remote->freed[work.slot], work.turn);
          moved(work);
        });
        break;
      case Step::push_packets:
        block_.write_packets(m.remote->packets[work.slot], m.data + work.offset, work.bytes, packet_flag(work.turn));
        block_.sync();
        block_.leader([&] { moved(work); });
        break;
      case Step::push: push(work, m, s); break;
      case Step::finish:
        block_.leader([&] {
          block_.acquire(&m.local->placed[s.number % kGrants]);
          complete(work.message);
        });
        break;
      case Step::grant: block_.leader([&] { post_grant(work.message); }); break;
      default: break;
    }
  }

  RAILWEAVE_ROLE void pull_packets(const Work& work, const Message& m) {
    Packet* packets = m.local->packets[work.slot];
    // The first packet is there, so the writer is in the middle of its stores: the others come without anybody's help.
    block_.read_packets(packets, m.data + work.offset, work.bytes, packet_flag(work.turn),
                        [&] { return block_.relaxed(&m.host->stop) != 0; });
    const bool wiped = (work.turn / kLowLatencySlots + 1) % kUsesBetweenWipes == 0;
    if (wiped) {
      block_.sync();
      block_.wipe(packets);
    }
    block_.sync();
    block_.leader([&] {
      // Every packet's flag has been looked at, so all loads are over; only a wipe's stores have to be ordered before the credit.
      if (wiped) block_.fence();
      block_.store(&m.remote->credits[work.slot], work.turn + 1);
      moved(work);
    });
  }

  RAILWEAVE_ROLE void push(const Work& work, const Message& m, MessageState& s) {
    if (work.address != nullptr) {
      block_.copy(work.address, m.data + work.offset, work.bytes);
      block_.sync();
      block_.leader([&] {
        block_.fence();  // before the count: whoever adds the last bytes announces everybody's
        if (block_.add(&s.moved, std::uint64_t{work.bytes}) + work.bytes != m.bytes) return;
        block_.fence();
        block_.release(&m.remote->placed[s.number % kGrants], s.number);
        complete(work.message);
      });
      return;
    }
    block_.copy(m.remote->slots[work.slot], m.data + work.offset, work.bytes);
    block_.sync();
    block_.leader([&] {
      SlotRecord& record = m.remote->records[work.slot];
      block_.store(&record.number, s.number);
      block_.store(&record.offset, work.offset);
      block_.store(&record.bytes, std::uint64_t{work.bytes});
      block_.release(&m.remote->filled[work.slot], work.turn);
      moved(work);
    });
  }

  RAILWEAVE_ROLE void post_grant(std::uint32_t i) {
    const Message& m = message(i);
    const std::uint64_t number = block_.relaxed(&state(i).number);
    Grant& grant = m.remote->grants[number % kGrants];
    block_.store(&grant.bytes, m.bytes);
    block_.store(&grant.buffer, m.receive.buffer);
    block_.store(&grant.offset, m.receive.offset);
    block_.release(&grant.number, number);
  }

  RAILWEAVE_ROLE void moved(const Work& work) {
    const std::uint64_t before = block_.add(&state(work.message).moved, std::uint64_t{work.bytes});
    if (before + work.bytes == message(work.message).bytes) complete(work.message);
  }

  RAILWEAVE_ROLE void complete(std::uint32_t i) {
    if (block_.swap_if(&state(i).complete, 0u, 1u)) block_.add(&state_.remaining, ~0u);
  }

  Block& block_;
  OperationState& state_;
  const Message* messages_;
  std::uint32_t count_;
  std::uint32_t home_ = 0;
  std::uint64_t timeout_ns_;
};

}  // namespace railweave::cuda
