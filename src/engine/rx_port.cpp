#include "rx_port.hpp"

#include <algorithm>

namespace railweave::engine {
namespace {

constexpr std::size_t kMaxWaiting = 4096;  // offers kept for a peer; a sender that offers more than this asks again later

}  // namespace

RxPort::RxPort(const Cluster& cluster, NodeMemory& memory, std::uint32_t own_nic, std::uint32_t nic, std::uint64_t silence_ns,
               std::uint32_t ahead, ThreadClock clock)
    : cluster_(cluster),
      memory_(memory),
      own_nic_(own_nic),
      nic_(nic),
      silence_ns_(silence_ns),
      most_ahead_(ahead),
      clock_(std::move(clock)) {}

void RxPort::answer(RailFrame kind, std::uint32_t peer_nic, std::uint64_t generation, std::uint64_t transfer, std::uint64_t base) {
  RailHeader frame;
  frame.kind = kind;
  frame.from_nic = nic_;
  frame.to_nic = peer_nic;
  frame.generation = generation;
  frame.transfer = transfer;
  frame.base = base;
  answers_.push_back(frame);
}

void RxPort::on_hello(const RailHeader& frame) {
  Peer& peer = peers_[frame.from_nic];
  if (frame.generation < peer.generation) return;
  if (frame.generation > peer.generation) {
    fence(frame.from_nic, peer);
    peer.generation = frame.generation;
    peer.gone = false;
  }
  answer(peer.gone ? RailFrame::over : RailFrame::hello_back, frame.from_nic, frame.generation, 0, 0);
}

// What has not landed is given up; a slot under a transport's write is freed when that ends.
void RxPort::fence(std::uint32_t peer_nic, Peer& peer) {
  for (auto entry = peer.accepted.begin(); entry != peer.accepted.end();) {
    if (entry->second.writing) {
      entry->second.fenced = true;
      ++entry;
    } else {
      memory_.release(memory_.self(), Pool::rx, entry->second.slot.slot, entry->second.slot.turn);
      entry = peer.accepted.erase(entry);
    }
  }
  std::erase_if(waiting_, [&](const RailHeader& offer) { return offer.from_nic == peer_nic; });
  peer.waiting.clear();
  // The numbers above that were accepted ahead are free: what the sender has not used it uses in its next generation.
  peer.next = 1;
  peer.ahead = 0;
}

void RxPort::give_up(std::uint32_t peer_nic) {
  const auto found = peers_.find(peer_nic);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  // It holds nothing; slots that were accepted ahead are for its link alone.
  if (peer.gone || (peer.accepted.size() == peer.ahead && peer.waiting.empty())) return;
  fence(peer_nic, peer);
  peer.gone = true;
  answer(RailFrame::over, peer_nic, peer.generation, 0, 0);
}

void RxPort::bury(std::uint32_t peer_nic) {
  const auto found = peers_.find(peer_nic);
  if (found == peers_.end()) return;
  fence(peer_nic, found->second);
  found->second.gone = true;
}

void RxPort::hear(std::uint32_t peer_nic, std::uint64_t now) {
  if (const auto found = peers_.find(peer_nic); found != peers_.end()) found->second.heard_at = now;
}

void RxPort::excuse(std::uint64_t ns) {
  for (auto& [nic, peer] : peers_) peer.heard_at += ns;
}

// The sender of a frame of the generation that is served. One whose generation was given up is told so as long as it does not know.
RxPort::Peer* RxPort::current(const RailHeader& frame) {
  const auto found = peers_.find(frame.from_nic);
  if (found == peers_.end() || found->second.generation != frame.generation) return nullptr;
  if (!found->second.gone) return &found->second;
  answer(RailFrame::over, frame.from_nic, frame.generation, 0, 0);
  return nullptr;
}

void RxPort::on_ping(const RailHeader& frame) {
  if (current(frame) != nullptr) answer(RailFrame::pong, frame.from_nic, frame.generation, 0, frame.base);
}

bool RxPort::known_destination(const RailHeader& frame) const {
  const MessageKey& message = frame.message;
  return message.destination < cluster_.world && cluster_.local(message.destination) && message.source < cluster_.world &&
         frame.length <= memory_.chunk_bytes();
}

void RxPort::on_offer(const RailHeader& frame) {
  Peer* const sender = known_destination(frame) ? current(frame) : nullptr;
  if (sender == nullptr) return;
  Peer& peer = *sender;
  note(peer, frame);
  if (is_over(peer, frame)) return;
  if (const auto known = peer.accepted.find(frame.transfer); known != peer.accepted.end()) {
    if (known->second.fenced || (known->second.ahead && !claim(peer, known->second, frame))) return;
    answer(RailFrame::accept, frame.from_nic, frame.generation, frame.transfer, 1);
    answers_.back().slot = known->second.slot.slot;
    answers_.back().turn = known->second.slot.turn;
    return;
  }
  if (peer.waiting.contains(frame.transfer) || peer.waiting.size() >= kMaxWaiting) return;
  if (!wanted(frame)) {
    refuse(peer, frame);
    return;
  }
  if (waiting_.empty() && accept(frame.from_nic, frame, false)) return;
  peer.waiting.insert(frame.transfer);
  waiting_.push_back(frame);
}

// What an offer or data says of the sender's numbers.
void RxPort::note(Peer& peer, const RailHeader& frame) {
  peer.next = std::max(peer.next, frame.transfer + 1);
  if (frame.base > peer.base && frame.base <= frame.transfer) {
    peer.base = frame.base;
    peer.finished.erase(peer.finished.begin(), peer.finished.lower_bound(peer.base));
  }
}

// The transfer has landed, or was not wanted: says so again. Below the base its sender has forgotten it.
bool RxPort::is_over(const Peer& peer, const RailHeader& frame) {
  if (frame.transfer < peer.base) return true;
  const auto found = peer.finished.find(frame.transfer);
  if (found == peer.finished.end()) return false;
  if (found->second != Outcome::late) {
    answer(found->second == Outcome::landed ? RailFrame::got : RailFrame::unwanted, frame.from_nic, frame.generation, frame.transfer,
           received_bytes_);
  }
  return true;
}

// What was accepted ahead is this transfer, says its offer or its data. False if nobody wants it: the slot is free then.
bool RxPort::claim(Peer& peer, Incoming& incoming, const RailHeader& frame) {
  --peer.ahead;
  incoming.ahead = false;
  incoming.offer = frame;
  if (wanted(frame)) return true;
  memory_.release(memory_.self(), Pool::rx, incoming.slot.slot, incoming.slot.turn);
  refuse(peer, frame);
  return false;
}

// A sender that has just sent something may send more: with a slot of its own it need not ask. Nobody else waits for less because of it, as
// these slots are a part of the NIC's.
void RxPort::accept_ahead(std::uint32_t peer_nic, Peer& peer) {
  if (!waiting_.empty() || peer.ahead >= most_ahead_) return;
  const auto slot = memory_.take(memory_.self(), Pool::rx, memory_.self(), own_nic_);
  if (!slot) return;
  const std::uint64_t t = peer.next++;
  ++peer.ahead;
  peer.accepted[t] = Incoming{*slot, {}, false, false, true};
  answer(RailFrame::accept, peer_nic, peer.generation, t, 0);
  answers_.back().slot = slot->slot;
  answers_.back().turn = slot->turn;
}

// Nobody reads for a destination that died or left.
bool RxPort::wanted(const RailHeader& offer) const { return memory_.reads(cluster_.ranks[offer.message.destination].local); }

void RxPort::refuse(Peer& peer, const RailHeader& offer) {
  peer.waiting.erase(offer.transfer);
  finish(peer, offer.transfer, Outcome::unwanted);
  answer(RailFrame::unwanted, offer.from_nic, offer.generation, offer.transfer, received_bytes_);
}

bool RxPort::accept(std::uint32_t peer_nic, const RailHeader& offer, bool waited) {
  const std::uint32_t reader = cluster_.ranks[offer.message.destination].local;
  const auto slot = memory_.take(memory_.self(), Pool::rx, reader, own_nic_);
  if (!slot) return false;
  Peer& peer = peers_[peer_nic];
  peer.waiting.erase(offer.transfer);
  peer.accepted[offer.transfer] = Incoming{*slot, offer, false, false, false};
  answer(RailFrame::accept, peer_nic, offer.generation, offer.transfer, waited ? 1 : 0);
  answers_.back().slot = slot->slot;
  answers_.back().turn = slot->turn;
  return true;
}

bool RxPort::advance(std::uint64_t now) {
  bool moved = !late_.empty() && answer_late();
  if (now >= next_look_) {
    next_look_ = now + silence_ns_ / 4;
    for (const auto& [nic, peer] : peers_) {
      if (now > peer.heard_at + silence_ns_) give_up(nic);
    }
  }
  while (!waiting_.empty()) {
    const RailHeader& offer = waiting_.front();
    if (!wanted(offer))
      refuse(peers_[offer.from_nic], offer);
    else if (!accept(offer.from_nic, offer, true))
      break;
    waiting_.pop_front();
    moved = true;
  }
  return moved;
}

std::byte* RxPort::on_data(const RailHeader& frame, std::size_t bytes) {
  Peer* const sender = current(frame);
  if (sender == nullptr) return nullptr;
  Peer& peer = *sender;
  note(peer, frame);
  if (is_over(peer, frame)) return nullptr;
  const auto entry = peer.accepted.find(frame.transfer);
  if (entry == peer.accepted.end()) return nullptr;
  Incoming& incoming = entry->second;
  if (incoming.writing || incoming.fenced || incoming.slot.slot != frame.slot || incoming.slot.turn != frame.turn) return nullptr;
  if (incoming.ahead && (!known_destination(frame) || !claim(peer, incoming, frame))) return nullptr;
  if (bytes != incoming.offer.length) return nullptr;
  incoming.writing = true;
  return memory_.data(memory_.self(), Pool::rx, incoming.slot.slot);
}

void RxPort::finish(Peer& peer, std::uint64_t transfer, Outcome outcome) {
  peer.accepted.erase(transfer);
  peer.finished.insert_or_assign(transfer, outcome);
}

// What has landed is final once its record is in the destination's own memory. In this process it would die with it, and the source would
// never send the chunk again.
bool RxPort::answer_late() {
  const auto waits = [this](const Late& late) { return !memory_.has_written(late.reader, late.announced); };
  const auto in_rings = std::stable_partition(late_.begin(), late_.end(), waits);
  for (auto late = in_rings; late != late_.end(); ++late) {
    const bool read = memory_.reads(late->reader);
    if (const auto known = peers_[late->peer_nic].finished.find(late->transfer); known != peers_[late->peer_nic].finished.end())
      known->second = read ? Outcome::landed : Outcome::unwanted;
    answer(read ? RailFrame::got : RailFrame::unwanted, late->peer_nic, late->generation, late->transfer, received_bytes_);
  }
  const bool moved = in_rings != late_.end();
  late_.erase(in_rings, late_.end());
  return moved;
}

void RxPort::on_data_done(const RailHeader& frame, bool ok) {
  Peer& peer = peers_[frame.from_nic];
  const auto entry = peer.accepted.find(frame.transfer);
  if (entry == peer.accepted.end()) return;
  Incoming& incoming = entry->second;
  if (!incoming.writing) return;  // a frame without a payload: on_data never gave it a place
  incoming.writing = false;
  if (incoming.fenced) {
    memory_.release(memory_.self(), Pool::rx, incoming.slot.slot, incoming.slot.turn);
    peer.accepted.erase(entry);
    return;
  }
  if (!ok) return;  // the sender asks again
  Record record;
  record.kind = RecordKind::landed;
  record.pool = Pool::rx;
  record.owner = static_cast<std::uint16_t>(memory_.self());
  record.slot = incoming.slot.slot;
  record.turn = incoming.slot.turn;
  record.message = incoming.offer.message;
  record.chunk = incoming.offer.chunk;
  record.length = incoming.offer.length;
  record.attempt = incoming.offer.attempt;
  const std::uint32_t reader = cluster_.ranks[record.message.destination].local;
  const bool read = wanted(incoming.offer);
  memory_.announce(reader, record);
  received_bytes_ += record.length;
  const std::uint64_t announced = memory_.announced(reader);
  const bool late = read && !memory_.has_written(reader, announced);
  finish(peer, frame.transfer, late ? Outcome::late : read ? Outcome::landed : Outcome::unwanted);
  if (late) {
    late_.push_back({frame.from_nic, reader, announced, frame.generation, frame.transfer});
    return;
  }
  if (!read) {
    answer(RailFrame::unwanted, frame.from_nic, frame.generation, frame.transfer, received_bytes_);
    return;
  }
  answer(RailFrame::got, frame.from_nic, frame.generation, frame.transfer, received_bytes_);
  const ThreadTimes times = clock_();
  answers_.back().turn = times.waited;
  answers_.back().length = static_cast<std::uint32_t>(times.worked / 1000);
  answers_.back().chunk = std::max(static_cast<std::uint32_t>(times.now / 1000), 1u);  // 0: not said
  accept_ahead(frame.from_nic, peer);
}

bool RxPort::idle() const {
  const auto holds_nothing = [](const auto& peer) { return peer.second.accepted.size() == peer.second.ahead; };
  return waiting_.empty() && late_.empty() && std::all_of(peers_.begin(), peers_.end(), holds_nothing);
}

}  // namespace railweave::engine
