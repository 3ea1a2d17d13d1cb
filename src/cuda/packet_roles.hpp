// What a warp does in an operation whose messages all travel in packets: no barriers, no claims, no trip to memory that the data do not
// need. Written once for GPU warps (device_warp.cuh) and for threads (tests), over a `Warp`:
//
//   warps(), index()               those that share the messages: all begin, as whole clusters or as room.hpp says
//   relaxed(p), store(p, v), release(p, v), counted(p)
//   Lanes<T>, at(lanes, i)         a T for each message, kept by lane i
//   each(n, f)                     f(i) for i < n
//   mask(n, f)                     bits of i < n where f(i)
//   from(i, f)                     f(), computed by lane i, at every lane
//   leader(f)                      f() by one lane
//   write(to, own, from, bytes, patient, number)   stores the packet of that number when the own port has its credit, false when it has
//                                  not; `patient`: after some more looks at it; `number` is asked for once the loads are under way
//   read(packet, flag, to, bytes, taken)  takes a packet, and calls `taken` once all its loads are over; false, and nothing taken, when
//                                  it is not all there
//   touch(port)                    reads from all over a mate's packets, and needs none of it
//   stagger(cycles)                waits so long for each warp of its block before it
//   began(count)                   adds this warp's block to the count once all of its warps have called this, without waiting for that
//   may_be_last_to_begin()         false for warps of which the next is never true
//   was_last_to_begin()            true for one warp of all, if all had called began() by the time its block was added
//   idle()                         after a turn without work; true when it is time to look at the host's words
//   now()                          ns
//
// A warp owns every n-th packet of its messages, which n warps share, from the start and waits for none alone, so whatever can be done now
// is done by somebody who is running: docs/cuda.md, "Why no operation waits for ever".
#pragma once

#include "ending.hpp"

namespace railweave::cuda {

RAILWEAVE_ROLE constexpr std::uint32_t packets_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + Packet::kData - 1) / Packet::kData);
}
// The flag of a packet's lines, and its credit.
RAILWEAVE_ROLE constexpr std::uint64_t packet_flag(std::uint64_t number) { return number + 1; }
RAILWEAVE_ROLE constexpr Credit credit_of(std::uint64_t number) { return static_cast<Credit>(packet_flag(number)); }
// A packet may be written once the one before it in its slot was taken. `credit`: what the slot has.
RAILWEAVE_ROLE constexpr bool is_credited(Credit credit, std::uint64_t number) {
  return number < kPacketSlots || static_cast<std::int32_t>(credit - credit_of(number - kPacketSlots)) >= 0;
}

// Well within the 50 ms after which links sleep (`nvidia-smi nvlink -gLowPwrInfo` of H100s), and a microsecond of it.
inline constexpr std::uint64_t kTouchEveryNs = 20'000'000;

// kSplit: the first so many warps send and the last so many receive, instead of each doing both. A warp that is about to send leaves what
// has come for it, and the credits for that, until later. kTrains: a lane looks after all messages of a pair and direction, whose packets
// are numbered through, and not after one; then none has to be split.
template <typename Warp, bool kSplit = false, bool kTrains = false>
class PacketRoles {
 public:
  RAILWEAVE_ROLE PacketRoles(Warp& warp, const Part& part)
      : warp_(warp),
        state_(*part.state),
        messages_(part.messages),
        trains_(part.trains),
        count_(part.count),
        send_warps_(kSplit ? part.send_warps : 0),
        receive_warps_(kSplit ? part.receive_warps : 0),
        warp_distance_(part.warp_distance),
        timeout_ns_(part.timeout_ns),
        others_(part.others),
        other_count_(part.other_count) {}

  RAILWEAVE_ROLE void run() {
    begin();
    if (keeps_awake()) keep_links_awake();
    if (warp_.index() + 1 == warp_.warps()) tell_begin();
    bool has_more = true, is_first = true;
    for (; has_more && !stopped_; is_first = false) {
      has_more = go_on();
      if (is_first) warp_.began(&state_.left);  // what was moved, or tried, told the counts: they have been read
    }
    end();
  }

 private:
  // All loads of this are under way at once. Receives are dealt to the warps from the other end, so that one packet each way is two warps'
  // work.
  RAILWEAVE_ROLE void begin() {
    warp_.each(count_, [&](std::uint32_t i) {
      const Message& m = head(i);
      Lane& own = lane(i);
      if (keeps_awake() && sends(m)) own.touched_at = warp_.relaxed(&m.local->touched_at);
      if (warp_.may_be_last_to_begin() && reports(i)) {
        const Message& r = reporter(i);
        own.messages = warp_.relaxed(&r.ledger->accounts[account_of(Path::packets, r.captured)].totals.completed);
      }
      const Count count = warp_.counted(&packets_moved(m));
      own.number = count.value + count.over + m.ordinal;
      own.is_over = count.over != 0;
      own.packets = kTrains ? trains_[i].packets : packets_of(m.bytes);
      const std::uint32_t warps = warps_of(m), place = sends(m) ? warp_.index() : warp_.warps() - 1 - warp_.index();
      own.next = place >= m.first_warp ? place - m.first_warp : place + warps - m.first_warp;
      if (kSplit && (place >= warps || own.next >= m.warps)) own.next = own.packets;  // others move it
      own.lacks_credit = own.next >= kPacketSlots;                                    // that comes for a packet of this message
    });
    all_sends_ = warp_.mask(count_, [&](std::uint32_t i) { return sends(head(i)); });
    // Warps that load at once have all loaded late, so credits for packets that have to wait for them would come late, too.
    const auto waits = [&](std::uint32_t i) { return sends(head(i)) && lane(i).packets > kPacketSlots && (!kSplit || is_open(i)); };
    if (warp_.mask(count_, waits) != 0) warp_.stagger(warp_distance_);
    start_ = warp_.now();
  }

  // NVLink's links sleep one by one when nothing has crossed them for 50 ms, and the first message over each then takes 110 us more. Short
  // messages cross few of them, so one in many finds a link asleep, and after a pause many do, one after another. Reads that cross all
  // links wake them together, and now and then keep them awake. By a warp that has nothing to do in short operations, as only they matter.
  RAILWEAVE_ROLE bool keeps_awake() const { return warp_.index() == warp_.warps() / 2; }
  RAILWEAVE_ROLE void keep_links_awake() {
    std::uint32_t due = warp_.mask(count_, [&](std::uint32_t i) {
      const Message& m = head(i);
      return sends(m) && (kTrains || m.last_of_pair) && start_ - lane(i).touched_at > kTouchEveryNs;
    });
    for (; due != 0; due &= due - 1) {
      const Message& m = head(Warp::lowest(due));
      warp_.touch(*m.remote);
      warp_.leader([&] { warp_.store(&m.local->touched_at, start_); });
    }
  }

  // Moves a packet if one can be. False when all of the warp's are moved.
  RAILWEAVE_ROLE bool go_on() {
    const std::uint32_t open = warp_.mask(count_, [&](std::uint32_t i) { return is_open(i); });
    if (open == 0) return false;
    const bool alone = is_alone(open);
    const std::uint32_t ready = alone ? open : choose();
    if (ready != 0 && move(Warp::lowest(ready), alone)) return true;
    if (warp_.idle()) stopped_ = look_at_host();
    return true;
  }

  // A warp of the block that began last moves the pairs' counts and bytes and the totals on, which nobody reads any more, whether the
  // others have ended or not. To find out who ends last takes a trip to L2 that each operation would wait for: 0.4 us, and 1.3 with the
  // words to the host that followed it (docs/cuda-measured.md). The kernel's end puts all of this before the next operation.
  RAILWEAVE_ROLE void end() {
    if (warp_.was_last_to_begin()) move_counts_on();  // stopped, too: what the others have moved has its numbers
    if (stopped_) {
      warp_.each(count_, [&](std::uint32_t i) {
        if (reports(i)) give_up(warp_, reporter(i));
      });
      warp_.leader([&] {
        for (std::uint32_t i = 0; i < other_count_; ++i) {
          if (others_[i].reports) tell_aborted(warp_, others_[i]);
        }
      });
    }
  }

  RAILWEAVE_ROLE void tell_begin() {
    warp_.each(count_, [&](std::uint32_t i) {
      if (reports(i) && !lane(i).is_over) report_begin(warp_, reporter(i));
    });
  }

  RAILWEAVE_ROLE void move_counts_on() {
    warp_.each(count_, [&](std::uint32_t i) {
      const Message& m = head(i);
      const Lane& own = lane(i);
      if (own.is_over) return;
      if (kTrains || m.last_of_pair) {
        warp_.store(&packets_moved(m).value, own.number + own.packets);
        warp_.store(&m.local->newest_packets[static_cast<std::uint32_t>(m.direction)], m.ordinal + std::uint64_t{own.packets});
      }
      report_moved(warp_, m, kTrains ? trains_[i].bytes : m.bytes);
      if (reports(i)) report_ahead(warp_, reporter(i), own.messages);
    });
    warp_.leader([&] { warp_.store(&state_.left, 0u); });
  }

  struct Lane {
    std::uint64_t number;   // of the first packet of the message, or train
    std::uint32_t next;     // its packet that this warp moves next
    std::uint32_t packets;  // of it
    bool lacks_credit;      // when last tried
    bool is_over;           // its communicator
    std::uint64_t touched_at;
    std::uint64_t messages;  // of the account of one that reports, before the operation
  };

  RAILWEAVE_ROLE static Count& packets_moved(const Message& m) { return m.local->counts[count_at(Path::packets, m.direction)]; }
  RAILWEAVE_ROLE const Message& head(std::uint32_t i) const { return messages_[kTrains ? trains_[i].first : i]; }
  RAILWEAVE_ROLE bool reports(std::uint32_t i) const { return kTrains ? trains_[i].reporter != kNone : messages_[i].reports; }
  RAILWEAVE_ROLE const Message& reporter(std::uint32_t i) const { return messages_[kTrains ? trains_[i].reporter : i]; }
  // Which has packet `next` of the train.
  RAILWEAVE_ROLE const Message& message_of(const Train& train, std::uint64_t next) const {
    std::uint32_t message = train.first, end = train.first + train.count;
    while (end - message > 1) {
      const std::uint32_t middle = message + (end - message) / 2;
      (messages_[middle].ordinal <= next ? message : end) = middle;
    }
    return messages_[message];
  }

  RAILWEAVE_ROLE bool is_split() const { return kSplit && (!kTrains || (send_warps_ | receive_warps_) != 0); }
  // That move messages of its direction.
  RAILWEAVE_ROLE std::uint32_t warps_of(const Message& m) const {
    if (!is_split()) return warp_.warps();
    return sends(m) ? send_warps_ : receive_warps_;
  }
  RAILWEAVE_ROLE Lane& lane(std::uint32_t i) { return warp_.at(lanes_, i); }
  RAILWEAVE_ROLE bool is_open(std::uint32_t i) { return lane(i).next < lane(i).packets; }
  // All that is left: the attempt itself tells whether its packet can be moved.
  RAILWEAVE_ROLE static bool is_alone(std::uint32_t open) { return (open & (open - 1)) == 0; }

  // Messages of which a packet can probably be moved; sends alone if there are any. A look is a trip to L2, so there is none where the
  // attempt itself tells: for sends that have not missed a credit yet, which are most.
  RAILWEAVE_ROLE std::uint32_t choose() {
    const std::uint32_t untried = warp_.mask(count_, [&](std::uint32_t i) { return is_open(i) && !lane(i).lacks_credit; }) & all_sends_;
    if (untried != 0) return untried;
    const std::uint32_t ready = warp_.mask(count_, [&](std::uint32_t i) { return is_open(i) && is_ready(i); });
    return (ready & all_sends_) != 0 ? ready & all_sends_ : ready;
  }

  RAILWEAVE_ROLE bool is_ready(std::uint32_t i) {
    const Message& m = head(i);
    const std::uint64_t number = lane(i).number + lane(i).next;
    const std::uint32_t slot = number % kPacketSlots;
    if (sends(m)) return is_credited(warp_.relaxed(&m.local->credits[slot]), number);
    return warp_.relaxed(&m.local->packets[slot].lines[0].flag) == packet_flag(number);
  }

  // `alone`: nothing else can be moved meanwhile, so a packet that lacks its credit is kept at hand.
  RAILWEAVE_ROLE bool move(std::uint32_t i, bool alone) {
    const std::uint64_t next = warp_.from(i, [&] { return std::uint64_t{lane(i).next}; });
    const Message& m = kTrains ? message_of(trains_[i], next) : messages_[i];
    const std::uint64_t place = kTrains ? next - m.ordinal : next;  // the first one of a train is the first one of its pair
    // Asked for as late as can be: the first time it is still on its way, and what is to be sent need not wait for it.
    const auto number_of = [&] { return warp_.from(i, [&] { return lane(i).number; }) + next; };
    std::byte* data = m.data + place * Packet::kData;
    const std::uint64_t left = m.bytes - place * Packet::kData;
    const std::uint32_t bytes = left < Packet::kData ? static_cast<std::uint32_t>(left) : Packet::kData;
    bool moved = false;
    if (sends(m)) {
      moved = warp_.write(*m.remote, *m.local, data, bytes, alone, number_of);
    } else {
      const std::uint64_t number = number_of();
      const std::uint32_t slot = number % kPacketSlots;
      const auto taken = [&] { warp_.leader([&] { warp_.store(&m.remote->credits[slot], credit_of(number)); }); };
      moved = warp_.read(m.local->packets[slot], packet_flag(number), data, bytes, taken);
    }
    warp_.each(count_, [&](std::uint32_t k) {
      if (k != i) return;
      if (moved) lane(k).next += kSplit ? head(i).warps : warps_of(m);
      lane(k).lacks_credit = sends(m) && !moved;
    });
    return moved;
  }

  // Now and then while nothing can be done. Each warp finds by itself why to stop, as all have all reporters.
  RAILWEAVE_ROLE bool look_at_host() {
    const bool late = warp_.now() - start_ > timeout_ns_;
    return warp_.mask(count_, [&](std::uint32_t i) {
      const bool stop = reports(i) && warp_.relaxed(&reporter(i).host->stop) != 0;
      if (stop)
        tell_error(warp_, reporter(i), KernelError::aborted);
      else if (late && is_open(i))
        tell_error(warp_, head(i), KernelError::timed_out);
      return stop || (late && is_open(i));
    }) != 0;
  }

  Warp& warp_;
  PartState& state_;
  const Message* messages_;
  const Train* trains_;
  std::uint32_t count_;                       // messages, or trains
  std::uint32_t send_warps_, receive_warps_;  // where they are split
  std::uint32_t warp_distance_;
  std::uint32_t all_sends_ = 0;
  std::uint64_t timeout_ns_;
  const Message* others_;
  std::uint32_t other_count_;
  std::uint64_t start_ = 0;
  bool stopped_ = false;
  typename Warp::template Lanes<Lane> lanes_;
};

}  // namespace railweave::cuda
