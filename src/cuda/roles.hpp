// What a block of the exchange kernel does: the source's and the destination's side of docs/cuda.md. Written once for GPU blocks
// (device_block.cuh) and for threads (tests), over a `Block` that has the words, barriers and copies:
//
//   blocks(), index()              those that share the messages
//   kMany                          whether there may be more messages than one look should take
//   states(states), shares()       where the messages' states are, and this block's room for what it keeps of them
//   relaxed(p), acquire(p), store(p, v), release(p, v), add(p, v), take(p, bits), swap_if(p, old, new)
//   arrived(p)                     a load that the kernel's end, or an acquire later on, orders
//   announce(p, v)                 adds to a peer's word, after all that the block wrote before the last barrier
//   vacate(p, v)                   stores to a peer's word, after all that the block read before the last barrier
//   pair(p), counted(p)            both words of a Mapping, of a Count
//   share(f)                       f's result, computed by one warp, at every thread of the block; inside it:
//     lead(f)                      f() by one thread
//     smallest(n, f)               least f(i) for i < n, of 32 bits or 64
//     uniform(f)                   f's result at one thread, at all of the warp
//     gather(words, f)             the words at the addresses f(i), read side by side
//   each(n, f)                     f(i) for i < n, and a barrier after the last
//   leader(f)                      f() by one thread
//   sync()                         barrier of the block
//   fence()                        what the block wrote before the last barrier comes before what this thread writes next, for everybody
//   copy                           bytes, by all threads
//   write_bundle, read_bundle      packets, one a warp at once
//   idle()                         after a turn without work; true when it is time to look at the host's words
//   now()                          ns
//
// Latency decides what is kept where: a trip to L2 costs 0.3 us and a system-wide fence over 1 us, and an operation of NCCL 6 us. So there
// is no set-up that blocks wait for, a message is over when its words say so and not when somebody has marked it, and numbers are read
// once.
#pragma once

#include "fetch_roles.hpp"
#include "indirect_roles.hpp"
#include "packet_roles.hpp"
#include "work.hpp"

namespace railweave::cuda {

// An operation without packets is done by roles without their code: beside it an operation of 1 MiB took 4.5 us more
// (docs/cuda-measured.md). The same goes for indirect paths, which only large messages take.
template <typename Block, bool kPackets, bool kIndirect = false>
class Roles {
 public:
  static constexpr std::uint64_t kNeverGranted = ~std::uint64_t{0};  // a message's number, where the communicator has ended
  // The host says kLeave within drain_ms. Where its threads cannot, no kernel stays for ever.
  static constexpr std::uint64_t kLongestRest = 60'000'000'000;  // ns

  RAILWEAVE_ROLE Roles(Block& block, const Part& part)
      : block_(block),
        state_(*part.state),
        states_(block.states(part.states)),
        shares_(block.shares()),
        messages_(part.messages),
        count_(part.count),
        timeout_ns_(part.timeout_ns),
        patience_ns_(part.patience_ns),
        in_step_blocks_(part.in_step_blocks),
        in_step_KiB_(part.in_step_KiB),
        others_(part.others),
        other_count_(part.other_count),
        indirect_(block, part.link_MBps),
        fetch_(block) {}

  RAILWEAVE_ROLE void run() {
    begin();
    while (turn(false)) continue;
    end();
  }

  // --- Begin, turn, end

  // Each block reads the pairs' counts, which stand still while the operation runs. The first block at a receive grants it, before anything
  // else: the source waits for that. Then blocks take their first pieces. All trips to L2 of the first are under way at once.
  RAILWEAVE_ROLE void begin() {
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      Share& own = share(i);
      own.at = own.end = 0;
      const Count count = block_.counted(&moved(m));
      if (in_packets(m)) {
        own.number = count.value + count.over + m.ordinal;
        const std::uint64_t mine = bundles_of(m, block_.index() + i, block_.blocks());  // each message's from another block on
        own.at = mine & ~block_.take(&state(i).claimed, mine);
      } else {
        const bool grants = !sends(m) && m.grant_after == kNone && block_.swap_if(&state(i).granted, kUngranted, kGranted);
        const bool offers = offers_end(m) && block_.swap_if(&state(i).granted, kUngranted, kGranted);
        // Numbers begin at 1, so that a zeroed flag names no message.
        own.number = count.over != 0 ? kNeverGranted : count.value + m.ordinal + 1;
        if (grants && count.over == 0) post_grant(m, own.number);
        if (offers && count.over == 0) fetch_.offer(m, own.number);
      }
      if (m.begins && block_.index() == 0 && count.over == 0) report_begin(block_, m);
    });
    // The send that this block begins with (prepare.cpp).
    const std::uint32_t home = block_.share([&] {
      std::uint32_t place = block_.index();
      if constexpr (kMayBeInStep) {
        if (place < in_step_blocks_ && block_.relaxed(&state_.in_step) == in_step_KiB_) place = 0;
      }
      const std::uint32_t found = block_.smallest(count_, [&](std::uint32_t i) -> std::uint32_t {
        const Message& m = message(i);
        return sends(m) && m.first_block <= place && place < m.last_block ? i : count_;
      });
      block_.lead([&] {
        if (found == count_ || in_packets(message(found))) return;
        const Message& m = message(found);
        own_piece(m, share(found), block_.add(&state(found).claimed, std::uint64_t{m.piece_bytes}), first_bytes(m));
      });
      return found;
    });
    home_ = home % count_;
    if constexpr (kIndirect) {
      has_home_ = home != count_;
      first_path_ = block_.index();
    }
    if constexpr (Block::kMany) window_ = home_ - home_ % kWindow;
    start_ = block_.now();
  }

  // One thing that can be done now; a short one if the block has something else to do. False when all is over or the operation was stopped.
  RAILWEAVE_ROLE bool turn(bool briefly) {
    const Work work = block_.share([&] { return next_work(); });
    if (work.step == Step::over) return false;
    if constexpr (kIndirect) {
      // A piece that has come, but whose link is not free yet, keeps the block from pushing every other turn only, and from other paths
      // never: blocks begin with different ones, and go on with the one after the last.
      passed_over_ = has_home_ && work.step == Step::waiting && work.slot >= kFirstIndirect;
      if (work.slot >= kFirstIndirect) first_path_ = work.slot - kFirstIndirect + 1;
    }
    if (work.step == Step::waiting) {
      if (block_.idle()) stopped_ = look_at_host();
    } else {
      perform(work, briefly);
    }
    return !stopped_;
  }

  // The last block to leave moves the pairs' counts and bytes and the totals on, and leaves all states as they were found. The kernel's end
  // puts that before the next operation.
  RAILWEAVE_ROLE void end() {
    bool stopped = stopped_;
    if (block_.blocks() > 1) {
      const std::uint32_t left = block_.share([&] {
        const std::uint32_t own = stopped_ ? kLeftStopped : kLeft;
        std::uint32_t before = 0;
        block_.lead([&] { before = block_.add(&state_.left, own); });
        return before + own;
      });
      if (blocks_left(left) != block_.blocks()) return;
      stopped = any_stopped(left);
    }
    if (stopped) outlast_grants();
    if constexpr (kMayBeInStep) {
      if (in_step_blocks_ != 0 && !stopped) note_balance();
    }
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      const Share& own = share(i);
      state(i) = MessageState{};
      if (stopped || is_never(i)) return;
      if (!in_packets(m)) {
        if (!sends(m)) block_.store(&m.local->placed[own.number % kGrants], std::uint64_t{0});
        if (m.last_of_pair) block_.store(&moved(m).value, own.number);
        if constexpr (kIndirect) {
          if (offers_end(m)) block_.store(&m.local->fetched, std::uint64_t{0});
          if (m.last_of_pair && sends(m)) indirect_.report(m);
        }
      } else if (m.last_of_pair) {
        block_.store(&moved(m).value, own.number + packets_of(m.bytes));
      }
      report_moved(block_, m, m.bytes);
      if (m.reports) report(block_, m);
    });
    block_.leader([&] {
      block_.store(&state_.left, 0u);
      block_.store(&state_.stopped, 0u);
    });
  }

 private:
  using Indirect = IndirectRoles<Block>;
  using End = typename FetchRoles<Block>::End;
  static constexpr bool kMayBeInStep = !kPackets && !kIndirect;

  RAILWEAVE_ROLE static bool in_packets(const Message& m) { return kPackets && m.path == Path::packets; }
  RAILWEAVE_ROLE static Count& moved(const Message& m) {
    return m.local->counts[count_at(in_packets(m) ? Path::packets : Path::granted, m.direction)];
  }
  RAILWEAVE_ROLE const Message& message(std::uint32_t i) const { return messages_[i]; }
  RAILWEAVE_ROLE MessageState& state(std::uint32_t i) const { return states_[i]; }
  RAILWEAVE_ROLE Share& share(std::uint32_t i) const { return shares_[i]; }
  RAILWEAVE_ROLE void stop(const Message& m, KernelError error) { stop_operation(block_, state_, m, error); }

  // Whether all ranks' operations were balanced, as this one's was, for the next such operation. A mate that is further on may have taken
  // a grant's place again: then this is of a later operation, and no worse a guess. What a share has of a grant is not needed any more. Not
  // by smallest(): with that once more in the kernel, nvcc 13.0 had each turn's shuffles, of 64 bits then, in code for warps that have
  // diverged (docs/cuda-measured.md).
  RAILWEAVE_ROLE void note_balance() {
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      if (sends(m)) share(i).granted_bytes = block_.relaxed(&m.local->grants[share(i).number % kGrants].words[Grant::kPaths]) & kBalanced;
    });
    block_.leader([&] {
      bool all = true;
      for (std::uint32_t i = 0; i < count_; ++i) all = all && (!sends(message(i)) || share(i).granted_bytes != 0);
      block_.store(&state_.in_step, all ? in_step_KiB_ : 0u);
    });
  }

  RAILWEAVE_ROLE static bool offers_end(const Message& m) { return kIndirect && sends(m) && is_fetched(m); }
  // Of a granted send: what blocks claim first.
  RAILWEAVE_ROLE static std::uint64_t first_bytes(const Message& m) {
    if constexpr (kIndirect) return pushed_bytes(m);
    return m.bytes;
  }

  // --- Failure

  // Now and then while nothing can be done: has the host told us to leave, is it time to give up, or has another block found a reason?
  RAILWEAVE_ROLE bool look_at_host() {
    const bool late = block_.now() - start_ > timeout_ns_;
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      if (m.reports && block_.relaxed(&m.host->stop) != 0) {
        stop(m, KernelError::aborted);
      } else if (late && is_waiting(i)) {
        stop(m, KernelError::timed_out);
      }
    });
    return block_.share([&] { return block_.relaxed(&state_.stopped) != 0; });
  }

  // The stream goes on when this kernel ends, and the buffers are the program's again. A mate that has a grant may still be writing, or one
  // that has an offer reading, or a kernel of its that has not begun may come to: not once its host has heard of the end, for which this
  // rank's waits. All other blocks have left, so this operation itself writes nothing more.
  RAILWEAVE_ROLE void outlast_grants() {
    block_.each(count_, [&](std::uint32_t i) {
      const Message& m = message(i);
      if (!m.reports) return;
      give_up(block_, m);
      block_.store(&m.host->rests, 1u);
    });
    block_.each(other_count_, [&](std::uint32_t i) {
      if (others_[i].reports) tell_aborted(block_, others_[i]);
    });
    block_.leader([&] {
      const std::uint64_t since = block_.now();
      for (std::uint32_t i = 0; i < count_; ++i) {
        while (is_exposed(i) && block_.now() - since < kLongestRest) block_.idle();
      }
    });
    block_.sync();
  }

  RAILWEAVE_ROLE bool is_exposed(std::uint32_t i) const {
    const Message& m = message(i);
    if (in_packets(m) || m.local == m.remote || block_.relaxed(&state(i).granted) != kGranted) return false;
    if (block_.relaxed(&m.host->stop) == kLeave) return false;
    if (!sends(m)) return is_never(i) || !place_is_free(i);
    if constexpr (kIndirect) return is_never(i) || fetch_.may_be_read(m, share(i).number);
    return false;
  }

  // As far as this block knows: another one that began just before may have granted it, or sent it.
  RAILWEAVE_ROLE bool is_never(std::uint32_t i) const { return !in_packets(message(i)) && share(i).number == kNeverGranted; }

  RAILWEAVE_ROLE bool is_waiting(std::uint32_t i) {
    std::uint32_t slot = 0;
    return look(i, slot) != Step::over;
  }

  // --- What to do next: in one warp of the block

  // Messages at which a block looks before it does something.
  static constexpr std::uint32_t kWindow = 256;
  using Finding = cuda::Finding<Block::kMany>;
  using Found = typename Finding::Word;

  RAILWEAVE_ROLE Found most_urgent(std::uint32_t first, std::uint32_t count) {
    return block_.smallest(count, [&](std::uint32_t k) -> Found {
      const std::uint32_t i = first + k;
      std::uint32_t slot = 0;
      Step step = look(i, slot);
      // Among equals the block's own send first, then the ones after it, so that blocks spread.
      const std::uint32_t distance = i >= home_ ? i - home_ : i + count_ - home_;
      if (step == Step::own_more && slot == kNotYet && distance < given_up_) step = Step::waiting;
      return Finding::word(step, distance, slot);
    });
  }

  // Window by window until there is something to do. What a window has is finite, so each gets its turn.
  RAILWEAVE_ROLE Found most_urgent_of_many() {
    Found found = ~Found{0};
    for (std::uint32_t seen = 0; seen < count_;) {
      const std::uint32_t count = count_ - window_ < kWindow ? count_ - window_ : kWindow;
      const Found here = most_urgent(window_, count);
      if (here < found) found = here;
      if (Finding::step(found) < Step::waiting && !Finding::is_not_yet(found)) break;
      seen += count;
      window_ = window_ + count == count_ ? 0 : window_ + count;
    }
    return found;
  }

  RAILWEAVE_ROLE Work next_work() {
    Found found;
    if constexpr (Block::kMany) {
      found = most_urgent_of_many();
    } else {
      found = most_urgent(0, count_);
    }
    Work work{};
    work.step = Finding::step(found);
    if (work.step == Step::waiting || work.step == Step::over) return work;
    const std::uint32_t distance = Finding::distance(found);
    work.message = distance + home_ < count_ ? distance + home_ : distance + home_ - count_;
    work.slot = Finding::slot(found);
    if (Finding::is_not_yet(found)) wait_for(message(work.message), distance);
    // Between looking and claiming another block may have been faster: then there is nothing to do in this turn.
    bool claimed = false;
    block_.lead([&] { claimed = claim(work); });
    if (!claimed) work.step = Step::waiting;
    return work;
  }

  // Loads come before decisions, and of granted messages each load is one for sends and receives, from different addresses: a trip to L2 is
  // what a look costs, and lanes of a warp that take different branches make theirs one after another.
  RAILWEAVE_ROLE Step look(std::uint32_t i, std::uint32_t& slot) const {
    return in_packets(message(i)) ? look_at_packets(i, slot) : look_at_granted(i, slot);
  }

  // The block's bundles in order, then those of blocks that have not begun. A bundle is moved when all its packets can be: their writers,
  // or the readers of those before them, do not wait for this block.
  RAILWEAVE_ROLE Step look_at_packets(std::uint32_t i, std::uint32_t& slot) const {
    const Message& m = message(i);
    const Share& own = share(i);
    const std::uint64_t unclaimed = all_bundles(m) & ~block_.relaxed(&state(i).claimed);
    if (own.at == 0) {
      if (unclaimed == 0) return Step::over;
      slot = lowest(unclaimed);
      return Step::own_bundle;
    }
    slot = lowest(own.at);
    const std::uint64_t begin = std::uint64_t{slot} * bundle_packets(m);
    const std::uint64_t end = begin + bundle_packets(m) < packets_of(m.bytes) ? begin + bundle_packets(m) : packets_of(m.bytes);
    bool ready = true;
    for (std::uint64_t first = begin; first < end; first += kBundlePackets) {
      std::uint64_t values[kBundlePackets];
      for (std::uint64_t k = 0; k < kBundlePackets; ++k) {
        const std::uint64_t place = (own.number + (first + k < end ? first + k : first)) % kPacketSlots;
        values[k] = sends(m) ? block_.relaxed(&m.local->credits[place]) : block_.relaxed(&m.local->packets[place].lines[0].flag);
      }
      for (std::uint64_t k = 0; k < kBundlePackets; ++k) {
        const std::uint64_t number = own.number + (first + k < end ? first + k : first);
        ready = ready && (sends(m) ? is_credited(static_cast<Credit>(values[k]), number) : values[k] == packet_flag(number));
      }
    }
    if (ready) return sends(m) ? Step::push_packets : Step::pull_packets;
    // Its credits, or its packets, may be waiting for a lower bundle, of a block that has not begun.
    const std::uint64_t lower = unclaimed & ((std::uint64_t{1} << slot) - 1);
    if (lower == 0) return Step::waiting;
    slot = lowest(lower);
    return Step::own_bundle;
  }

  // What a look at a granted message loads.
  struct Glance {
    std::uint64_t claimed;
    std::uint64_t words[Grant::kWords];  // sends: the grant; receives: bytes placed
    std::uint64_t theirs[kSlots];        // sends: freed; receives: filled
    std::uint64_t ours[kSlots];          // sends: taken; receives: pulled
    std::uint32_t complete;
    std::uint32_t granted;
  };

  RAILWEAVE_ROLE Step look_at_granted(std::uint32_t i, std::uint32_t& slot) const {
    const Message& m = message(i);
    MessageState& s = state(i);
    Share& own = share(i);
    const std::uint64_t place = own.number % kGrants;
    const std::uint64_t* words = sends(m) ? m.local->grants[place].words : &m.local->placed[place];
    const std::uint32_t stride = sends(m) ? 1 : 0;
    const std::uint64_t* theirs = sends(m) ? m.local->freed : m.local->filled;
    const std::uint64_t* ours = sends(m) ? m.local->taken : m.local->pulled;
    Glance glance;
    glance.complete = block_.relaxed(&s.complete);
    glance.granted = block_.relaxed(&s.granted);
    // In the place of an earlier message: its count of bytes must not be taken for this one's.
    if (m.grant_after != kNone) glance.granted = block_.acquire(&s.granted);
    glance.claimed = block_.relaxed(&s.claimed);
    for (std::uint32_t k = 0; k < Grant::kWords; ++k) glance.words[k] = block_.arrived(words + k * stride);
    for (std::uint32_t k = 0; k < kSlots; ++k) glance.theirs[k] = block_.relaxed(theirs + k);
    for (std::uint32_t k = 0; k < kSlots; ++k) glance.ours[k] = block_.relaxed(ours + k);
    if constexpr (kIndirect) {
      if (offers_end(m)) return judge_offered(m, s, own, glance, slot);
    }
    if (sends(m)) return judge_send(m, own, glance, slot);
    if (own.number == kNeverGranted) return Step::waiting;  // what has come in its place is another one's
    const Step step = judge_receive(m, glance, slot);
    if constexpr (kIndirect) {
      if (step != Step::waiting || glance.granted != kGranted) return step;
      if (is_fetched(m) && fetch_.has_piece(m, s, own.number)) return Step::fetch;
      if (passed_over_) return step;
      const std::uint32_t path = indirect_.find_piece(m, first_path_);
      if (path == Indirect::kStraight) return step;
      slot = kFirstIndirect + path;
      return Step::pull_slot;
    }
    return step;
  }

  RAILWEAVE_ROLE Step judge_receive(const Message& m, const Glance& glance, std::uint32_t& slot) const {
    if (glance.complete != 0) return Step::over;
    if (glance.granted == kUngranted) return place_is_free(static_cast<std::uint32_t>(m.grant_after)) ? Step::grant : Step::waiting;
    if (glance.granted == kBeingGranted) return Step::waiting;
    if (glance.words[0] + glance.claimed >= m.bytes) return Step::over;
    slot = nearest_slot(glance, 1);  // filled for this message, or for another of the pair: claim_pull() finds out
    return slot == kSlots ? Step::waiting : Step::pull_slot;
  }

  RAILWEAVE_ROLE Step judge_send(const Message& m, Share& own, const Glance& glance, std::uint32_t& slot) const {
    if (own.at == own.end && glance.claimed >= m.bytes) return Step::over;
    if (!is_granted(own, glance)) return await_grant(m, slot);
    if (own.at == own.end) return Step::own_more;
    return push_own(own, glance, slot);
  }

  RAILWEAVE_ROLE static bool is_granted(const Share& own, const Glance& glance) {
    bool granted = true;
    for (const std::uint64_t word : glance.words) granted = granted && word >> 32 == (own.number & 0xffffffff);
    return granted;
  }
  RAILWEAVE_ROLE Step push_own(Share& own, const Glance& glance, std::uint32_t& slot) const {
    own.granted_bytes = (glance.words[0] & 0xffffffff) | glance.words[1] << 32;
    own.granted = {glance.words[2] & 0xffffffff, (glance.words[3] & 0xffffffff) | glance.words[4] << 32};
    slot = nearest_slot(glance, 0);  // needed only where the buffer is not mapped
    return Step::push;
  }

  // Its end is claimed only once it is known that the destination does not read it. Whether it is over does not depend on the grant: once
  // it is, the grant's place may be a later message's.
  RAILWEAVE_ROLE Step judge_offered(const Message& m, const MessageState& s, Share& own, const Glance& glance, std::uint32_t& slot) const {
    const bool end_is_left = own.at == own.end && glance.claimed >= pushed_bytes(m);
    if (end_is_left) {
      const bool all_claimed = pushed_bytes(m) + block_.relaxed(&s.pieces) * std::uint64_t{m.piece_bytes} >= m.bytes;
      if (all_claimed || fetch_.end_of(m, kFetched) == End::was_read) return Step::over;
    }
    if (!is_granted(own, glance)) return await_grant(m, slot);
    if (own.at != own.end) return push_own(own, glance, slot);
    slot = end_is_left ? kOffered : 0;
    const bool may_be_read = end_is_left && fetch_.end_of(m, glance.words[Grant::kPaths]) != End::is_pushed;
    return may_be_read ? Step::waiting : Step::own_more;
  }

  // A slot of which the peer's count is so much ahead of the own one, or kSlots. Each block begins with the slot of its own index, or all
  // would be after the same one: of those that lose a race for it, each loses a turn, longer than a slot takes to copy.
  RAILWEAVE_ROLE std::uint32_t nearest_slot(const Glance& glance, std::uint64_t ahead) const {
    std::uint32_t slot = kSlots, least = kSlots;
    for (std::uint32_t k = 0; k < kSlots; ++k) {
      const std::uint32_t distance = (k + kSlots - block_.index() % kSlots) % kSlots;
      if (glance.theirs[k] != glance.ours[k] + ahead || distance >= least) continue;
      slot = k;
      least = distance;
    }
    return slot;
  }

  // Whether that message is over, so that its place in the port can be used for another.
  RAILWEAVE_ROLE bool place_is_free(std::uint32_t i) const {
    const Message& m = message(i);
    MessageState& s = state(i);
    if (block_.relaxed(&s.complete) != 0) return true;
    if (block_.acquire(&s.granted) != kGranted) return false;
    return block_.arrived(&m.local->placed[share(i).number % kGrants]) + block_.relaxed(&s.claimed) >= m.bytes;
  }

  RAILWEAVE_ROLE static std::uint32_t lowest(std::uint64_t bits) { return static_cast<std::uint32_t>(Block::count_zeros_below(bits)); }

  // --- Claims: by one thread

  RAILWEAVE_ROLE bool claim(Work& work) {
    const Message& m = message(work.message);
    MessageState& s = state(work.message);
    Share& own = share(work.message);
    switch (work.step) {
      case Step::pull_packets:
      case Step::push_packets: return claim_bundle(work, m, own);
      case Step::pull_slot: return claim_pull(work, m);
      case Step::push: return claim_push(work, m, own);
      case Step::fetch: return claim_fetch(work, m, s);
      case Step::grant: return block_.swap_if(&s.granted, kUngranted, kBeingGranted);
      case Step::own_bundle: {
        const std::uint64_t bit = std::uint64_t{1} << work.slot;
        own.at |= bit & ~block_.take(&s.claimed, bit);
        return true;
      }
      case Step::own_more: {
        if (work.slot == kNotYet) return false;
        const bool offered = offers_end(m) && work.slot == kOffered;
        own_piece(m, own, claim_next(m, s, offered), offered ? m.bytes : first_bytes(m));
        return true;
      }
      default: return false;
    }
  }

  // Where the next piece of a granted send begins: of its end, where that was offered, or before it.
  RAILWEAVE_ROLE std::uint64_t claim_next(const Message& m, MessageState& s, bool offered) {
    if constexpr (kIndirect) {
      if (offered) return pushed_bytes(m) + block_.add(&s.pieces, 1u) * std::uint64_t{m.piece_bytes};
    }
    return block_.add(&s.claimed, std::uint64_t{m.piece_bytes});
  }

  RAILWEAVE_ROLE bool claim_fetch(Work& work, const Message& m, MessageState& s) {
    if constexpr (kIndirect) {
      fetch_.answer(m, s, [&](std::uint64_t buffer, std::uint64_t offset) { return find_buffer(m, buffer, offset); });
      if (block_.acquire(&s.answered) != kAccepted) return false;
      work.offset = fetch_.take(m, s);
    }
    return work.offset < m.bytes;
  }

  RAILWEAVE_ROLE bool claim_bundle(Work& work, const Message& m, Share& own) {
    own.at &= ~(std::uint64_t{1} << work.slot);
    const std::uint64_t packets = bundle_packets(m), bytes = packets * Packet::kData;
    work.offset = work.slot * bytes;
    work.bytes = static_cast<std::uint32_t>(m.bytes - work.offset < bytes ? m.bytes - work.offset : bytes);
    work.turn = own.number + work.slot * packets;
    return true;
  }

  RAILWEAVE_ROLE bool claim_pull(Work& work, const Message& m) {
    if constexpr (kIndirect) {
      if (work.slot >= kFirstIndirect) {
        SlotRecord record;
        return indirect_.take_piece(m, work.slot - kFirstIndirect, work.turn, record) && accept(work, record, kIndirectBytes);
      }
    }
    const std::uint64_t filled = block_.acquire(&m.local->filled[work.slot]);
    // The record, too, before it is certain that it is this block's, so that one trip serves both: it stands still until the slot is freed.
    const SlotRecord record = read_record(block_, m.local->records[work.slot]);
    work.turn = filled;
    return block_.swap_if(&m.local->pulled[work.slot], filled - 1, filled) && accept(work, record, kSlotBytes);
  }

  // Which message of the pair the record names: the one that was looked at, or another. Not where it names bytes outside of it.
  RAILWEAVE_ROLE bool accept(Work& work, const SlotRecord& record, std::uint64_t most) {
    const Message& m = message(work.message);
    const std::uint64_t number = record.number, bytes = record.bytes;
    work.offset = record.offset;
    for (std::uint32_t i = 0; i < count_ && number != share(work.message).number; ++i) {
      const Message& other = message(i);
      const bool same_pair = other.direction == Direction::receive && other.path == Path::granted && other.local == m.local;
      if (same_pair && share(i).number == number) work.message = i;
    }
    const Message& owner = message(work.message);
    if (number != share(work.message).number || bytes > most || work.offset > owner.bytes || bytes > owner.bytes - work.offset) {
      stop(owner, KernelError::bad_record);
      return false;
    }
    work.bytes = static_cast<std::uint32_t>(bytes);
    return true;
  }

  RAILWEAVE_ROLE bool claim_push(Work& work, const Message& m, Share& own) {
    if (own.number == kNeverGranted) return false;  // a grant of message 2^32 - 1 has the same tag
    if (own.granted_bytes != m.bytes) {
      block_.store(&m.host->error_bytes[0], m.bytes);
      block_.store(&m.host->error_bytes[1], own.granted_bytes);
      stop(m, KernelError::sizes_differ);
      return false;
    }
    work.base = find_buffer(m, own.granted.buffer, own.granted.offset);
    work.offset = own.at;
    std::uint64_t bytes = own.end - own.at;
    if constexpr (kIndirect) {
      const std::uint32_t path = indirect_.path_of(m, own.number, block_.relaxed(&state(work.message).claimed));
      if (path != Indirect::kStraight) {
        Piece piece{path};
        if (!indirect_.take_slot(m, own, piece)) return false;
        work.slot = kFirstIndirect + path;
        work.turn = piece.number;
        work.offset = piece.offset;
        work.bytes = piece.bytes;
        return true;
      }
      if (!indirect_.straight_is_free(m)) return false;
    }
    if (work.base == nullptr) {
      if (work.slot == kSlots) return false;
      const std::uint64_t freed = block_.acquire(&m.local->freed[work.slot]);
      if (!block_.swap_if(&m.local->taken[work.slot], freed, freed + 1)) return false;
      work.turn = freed + 1;
      if (bytes > kSlotBytes) bytes = kSlotBytes;
    }
    if constexpr (kIndirect) indirect_.use_straight(m, bytes);
    own.at += bytes;
    work.bytes = static_cast<std::uint32_t>(bytes);
    return true;
  }

  // The peer's buffer where it is mapped here, else null. Blocks may differ about a mapping that is just being made: a message may
  // go partly through slots.
  RAILWEAVE_ROLE std::byte* find_buffer(const Message& m, std::uint64_t buffer, std::uint64_t offset) const {
    if (buffer == kNoBuffer) return nullptr;
    if (buffer == kAbsoluteBuffer) return reinterpret_cast<std::byte*>(offset);
    const Mapping mapping = block_.pair(&m.local->mappings[buffer % kMappings]);
    return mapping.buffer == buffer ? reinterpret_cast<std::byte*>(mapping.base + offset) : nullptr;
  }

  // --- Doing it: by the whole block

  RAILWEAVE_ROLE void perform(const Work& work, bool briefly) {
    const Message& m = message(work.message);
    switch (work.step) {
      case Step::pull_packets:
        // The first line of each packet is there, so their writers are in the middle of their stores: the others come without anybody's
        // help.
        if constexpr (kPackets) block_.read_bundle(*m.local, *m.remote, work.turn, m.data + work.offset, work.bytes, &m.host->stop);
        break;
      case Step::pull_slot:
        if constexpr (kIndirect) {
          if (work.slot >= kFirstIndirect) {
            indirect_.empty_slot(m, work.slot - kFirstIndirect, work.turn, work.offset, work.bytes);
            block_.leader([&] { block_.add(&state(work.message).claimed, std::uint64_t{work.bytes}); });
            break;
          }
        }
        block_.copy(m.data + work.offset, m.local->slots[work.slot], work.bytes);
        block_.sync();
        block_.leader([&] {
          block_.vacate(&m.remote->freed[work.slot], work.turn);
          block_.add(&state(work.message).claimed, std::uint64_t{work.bytes});
        });
        break;
      case Step::push_packets:
        if constexpr (kPackets) block_.write_bundle(*m.remote, work.turn, m.data + work.offset, work.bytes);
        break;
      case Step::push:
        if constexpr (kIndirect) {
          if (work.slot >= kFirstIndirect) {
            const Piece piece{work.slot - kFirstIndirect, work.bytes, work.offset, work.turn};
            indirect_.push(m, share(work.message), &state(work.message).claimed, piece, briefly ? 1 : kIndirectInARow);
            break;
          }
          briefly = briefly || indirect_.paced();  // each piece waits for its link
        }
        if (work.base != nullptr) {
          push_to_buffer(work, m, briefly || helps_early(work.message));
        } else {
          push_to_slot(work, m);
        }
        break;
      case Step::fetch:
        if constexpr (kIndirect) fetch_.fetch(m, state(work.message), work.offset, briefly ? 1 : kFetchesInARow, kRowBytes);
        break;
      case Step::grant: block_.leader([&] { grant_again(work.message); }); break;
      default: break;
    }
  }

  // A block waits for the grant of a send whose turn has come, a third of what that takes at full rate, before it helps with those behind
  // it. Ranks begin one after another: who goes elsewhere at once probably meets another rank's blocks there, and all stay out of step.
  // Balanced 16 MiB between four GPUs took 156 us instead of 178 so, 64 MiB 567 instead of 600, and where not only the first send was
  // waited for a hot pair of 16 MiB with 1/16 between all others 60.6 instead of 63.2 (4 x H100); where that counted from each send's turn
  // and not from the operation's begin one of 64 MiB with half 384 instead of 398 (4 x H200, docs/cuda-measured.md). No longer than for 64
  // MiB: a mate that is later has another reason. Beside the one that it begins with for the first to each peer alone, as others are
  // granted with that, or once earlier ones are over; where there are indirect paths, whose sends are divided and not taken in turn, for
  // none. What may be fetched waits for that as well.
  static constexpr std::uint64_t kMostPatience = 64u << 20;  // bytes

  RAILWEAVE_ROLE Step await_grant(const Message& m, std::uint32_t& slot) const {
    if ((kIndirect || m.ordinal != 0) && &m != &message(home_)) return Step::waiting;
    slot = kNotYet;
    return Step::own_more;
  }

  // Once for each send: one that was given up is taken when it has been granted. The turn of the one that a block begins with, the only one
  // where there are indirect paths, comes with its begin.
  RAILWEAVE_ROLE void wait_for(const Message& m, std::uint32_t distance) {
    const std::uint64_t bytes = m.bytes < kMostPatience ? m.bytes : kMostPatience;
    const std::uint64_t now = block_.now();
    if (!kIndirect && awaited_ != distance) awaited_since_ = now;
    awaited_ = distance;
    if (now - (kIndirect ? start_ : awaited_since_) >= bytes * patience_ns_ >> 16) given_up_ = distance + 1;
  }

  // With rows of 2 MiB, all blocks of a rank were stuck for 400 us where they had been granted first, at 5 GB/s each, while its other
  // destinations waited.
  RAILWEAVE_ROLE bool helps_early(std::uint32_t i) const { return i != home_ && share(home_).at != share(home_).end; }

  // Several pieces in a row, each taken while the one before is under way, and announced together. Then the block looks for what is more
  // urgent. Bytes that wait for their announcement from one turn to the next would cost 48 bytes of stack. A fence takes long while the
  // links are full, and all blocks come to the ends of their rows together: with 8 pieces a row instead of 32 a pair both ways of 64 MiB
  // took 207 us instead of 194 (4 x H100). Over indirect paths, whose pieces wait for slots, 8. No longer than about 8 MiB, which take a
  // block 180 us: pieces of few blocks are large.
  static constexpr std::uint32_t kInARow = 32, kIndirectInARow = 8, kFetchesInARow = 8;
  static constexpr std::uint64_t kRowBytes = 8u << 20;

  RAILWEAVE_ROLE void push_to_buffer(const Work& work, const Message& m, bool briefly) {
    std::uint64_t offset = work.offset;
    std::uint32_t bytes = work.bytes;
    std::uint64_t pushed = 0;
    const bool offered = offers_end(m) && offset >= first_bytes(m);
    const std::uint64_t end = offered ? m.bytes : first_bytes(m);
    for (std::uint32_t k = briefly ? kInARow : 1;; ++k) {
      std::uint64_t next = end;
      if (k < kInARow && pushed < kRowBytes && end - offset > bytes) {
        block_.leader([&] { next = claim_next(m, state(work.message), offered); });
      }
      block_.copy(work.base + offset, m.data + offset, bytes);
      pushed += bytes;
      offset = block_.share([&] { return next; });
      if (offset >= end) break;
      bytes = static_cast<std::uint32_t>(end - offset < m.piece_bytes ? end - offset : m.piece_bytes);
    }
    block_.leader([&] { block_.announce(&m.remote->placed[share(work.message).number % kGrants], pushed); });
  }

  RAILWEAVE_ROLE void push_to_slot(const Work& work, const Message& m) {
    block_.copy(m.remote->slots[work.slot], m.data + work.offset, work.bytes);
    block_.sync();
    block_.leader([&] {
      SlotRecord& record = m.remote->records[work.slot];
      block_.store(&record.number, share(work.message).number);
      block_.store(&record.offset, work.offset);
      block_.store(&record.bytes, std::uint64_t{work.bytes});
      block_.release(&m.remote->filled[work.slot], work.turn);
    });
  }

  // Pieces come over the indirect paths that it names, and offers are looked at where it says so; only a kernel that knows them does.
  RAILWEAVE_ROLE void post_grant(const Message& m, std::uint64_t number) {
    std::uint64_t paths = 0;
    if constexpr (kIndirect) paths = m.paths;
    if constexpr (kMayBeInStep) paths = in_step_blocks_ != 0 ? kBalanced : 0;
    const std::uint64_t payload[Grant::kWords] = {m.bytes, m.bytes >> 32, m.named.buffer, m.named.offset, m.named.offset >> 32, paths};
    Grant& grant = m.remote->grants[number % kGrants];
    for (std::uint32_t k = 0; k < Grant::kWords; ++k) block_.store(&grant.words[k], (payload[k] & 0xffffffff) | number << 32);
  }

  // Takes the place of a message of this operation that is over: its count of placed bytes begins again before the source hears of it.
  RAILWEAVE_ROLE void grant_again(std::uint32_t i) {
    const Message& m = message(i);
    block_.release(&state(static_cast<std::uint32_t>(m.grant_after)).complete, 1u);
    block_.fence();
    block_.store(&m.local->placed[share(i).number % kGrants], std::uint64_t{0});
    block_.fence();
    block_.store(&state(i).granted, kGranted);
    post_grant(m, share(i).number);
  }

  Block& block_;
  PartState& state_;
  MessageState* states_;
  Share* shares_;
  const Message* messages_;
  std::uint32_t count_;
  std::uint32_t home_ = 0;
  std::uint32_t window_ = 0;
  std::uint64_t timeout_ns_;
  std::uint32_t patience_ns_, in_step_blocks_, in_step_KiB_;
  const Message* others_;
  std::uint32_t other_count_;
  std::uint32_t awaited_ = ~0u, given_up_ = 0;  // distances from home_: of the send that was waited for last; nearer ones are not
  std::uint64_t awaited_since_ = 0, start_ = 0;
  bool stopped_ = false;
  std::uint32_t first_path_ = 0;
  bool has_home_ = false;
  bool passed_over_ = false;
  Indirect indirect_;
  FetchRoles<Block> fetch_;
};

}  // namespace railweave::cuda
