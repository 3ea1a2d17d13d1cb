#include "tx_link.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace railweave::engine {
namespace {

constexpr std::uint32_t kMeterTransfers = 5;   // a 16 MiB hot pair over four rails gives each link 16: two spans
constexpr std::uint64_t kMeterNs = 5'000'000;  // shorter spans measure the scheduler
// Spans that say something new are believed when there are two of them, and that much in all. What a shaper saved up while a thread was
// late, or a window that a late thread finds all at once, is some 1 ms of a rail of 8 Gbit/s, a fifth of a span there: rates of 1.16
// to 1.29 GB/s for the rail's 1.0 were believed by two spans a dozen times a second (docs/cuda-measured.md, "Over rails"). Slow rails have
// longer spans.
constexpr std::uint32_t kDoubtSpans = 2;
constexpr std::uint64_t kDoubtNs = 16'000'000;
// After a pause a shaper lets more through than its rate, and a span that begins with that says too much. Two of the lab's bursts, which
// are 1 ms of the rate: with them rails of 8 Gbit/s were now and then held for 1.25 times as fast as the others (docs/cuda-measured.md).
constexpr std::uint64_t kBurstNs = 2'000'000;
// Offers and accepts queue behind data in both directions: while a window of data is on its way, the next ones are being offered.
constexpr std::size_t kOffersPerWindow = 3;
// Not swept. A rail at a twentieth of its rate counts as whole 50 s after; one that stays slow and carries too little to be measured gets
// twice its part of an operation once in that time.
constexpr std::uint64_t kRateNs = 10'000'000'000;
// Transfers from the oldest unfinished one on, of which the receiver remembers all that have ended: one whose destination does not read has
// no answer while others go on.
constexpr std::uint64_t kMostSpread = 4096;
constexpr std::size_t kMostAhead = 4096;  // slots that a peer may say are accepted ahead; its rx_slots are fewer
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kMaxReconnectFactor = 8;  // of the reconnect time, while a link stays down

// Data under way on a link: `got` and grants of the other direction, and rows, wait behind it (setting link_window says what was measured).
constexpr std::uint64_t kWindowUs = 7'500;
constexpr std::uint64_t kLeastWindow = 2;  // one on the rail, one whose answer is on its way

}  // namespace

std::uint64_t TxSlotHolds::hold(const Record& record) {
  const std::uint64_t token = next_;
  next_ += 2;
  holds_.emplace(token, Hold{record.slot, record.turn, 0, false});
  return token;
}

void TxSlotHolds::sent(std::uint64_t token) {
  const auto entry = holds_.find(token);
  if (entry == holds_.end() || entry->second.sends == 0) return;
  --entry->second.sends;
  drop_if_over(entry);
}

void TxSlotHolds::finish(std::uint64_t token) {
  const auto entry = holds_.find(token);
  if (entry == holds_.end()) return;
  entry->second.finished = true;
  drop_if_over(entry);
}

void TxSlotHolds::drop_if_over(std::unordered_map<std::uint64_t, Hold>::iterator entry) {
  if (!entry->second.finished || entry->second.sends != 0) return;
  memory_.release(memory_.self(), Pool::tx, entry->second.slot, entry->second.turn);
  holds_.erase(entry);
}

std::optional<std::uint64_t> RateMeter::confirmed(const Sample& sample) {
  const std::uint64_t span = std::uint64_t{sample.rx_now_us - first_.rx_now_us} * 1000;
  if (stage_ != Stage::measuring) {
    if (stage_ == Stage::filling && span < kBurstNs) return std::nullopt;
    stage_ = stage_ == Stage::empty ? Stage::filling : Stage::measuring;
    first_ = sample;
    transfers_ = 0;
    return std::nullopt;
  }
  if (++transfers_ < kMeterTransfers || span < kMeterNs) return std::nullopt;
  const Sample first = std::exchange(first_, sample);
  transfers_ = 0;
  const std::uint64_t bytes = sample.link_bytes - first.link_bytes;
  // An eighth is what the rounding of rates hides.
  const bool alone =
      sample.tx_nic_bytes - first.tx_nic_bytes <= bytes + bytes / 8 && sample.rx_nic_bytes - first.rx_nic_bytes <= bytes + bytes / 8;
  if (!alone) return std::nullopt;
  // While a thread waits for a CPU the link goes on with what is under way, as long as it lasts. Where it waited for long the link is at
  // least as fast as the bytes came. The first rate says what later ones differ from.
  const std::uint64_t waited = sample.tx_wait_ns - first.tx_wait_ns + (sample.rx_wait_ns - first.rx_wait_ns);
  if (believed_ == kUnknown && waited > span / 16) return std::nullopt;
  const auto rate = [bytes](std::uint64_t ns) {
    return static_cast<std::uint64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(ns));
  };
  const std::uint64_t at_least = rate(span), at_most = waited > span / 4 ? kUnknown : rate(span - waited);
  // A thread that always had work may be what was slow. It gets time when the link is: then there are spans in which it waited.
  const std::uint64_t worked = std::max(sample.tx_work_ns - first.tx_work_ns, std::uint64_t{sample.rx_work_us - first.rx_work_us} * 1000);
  if (at_most < believed_ && worked > span - span / 4) return std::nullopt;
  return believe(at_least, at_most, span);
}

// One span that says something else may be wrong; several in a row are believed, as far as all of them say it.
std::optional<std::uint64_t> RateMeter::believe(std::uint64_t at_least, std::uint64_t at_most, std::uint64_t ns) {
  const bool slower = at_most < believed_ - believed_ / 8;
  const bool faster = at_least - at_least / 9 > believed_;
  if (!slower && !faster) {
    if (at_most == kUnknown) return std::nullopt;  // says nothing else, and nothing against what others said
    doubt_ = {};
    believed_ = believed_ / 4 * 3 + std::clamp(believed_, at_least, at_most) / 4;
    return believed_;
  }
  const std::uint64_t rate = slower ? at_most : at_least;
  if (doubt_.slower != slower) doubt_ = {};
  if (doubt_.spans == 0) doubt_.rate = rate;
  doubt_.slower = slower;
  doubt_.rate = slower ? std::max(doubt_.rate, rate) : std::min(doubt_.rate, rate);
  doubt_.ns += ns;
  if (++doubt_.spans < kDoubtSpans || doubt_.ns < kDoubtNs) return std::nullopt;
  believed_ = doubt_.rate;
  doubt_ = {};
  return believed_;
}

std::uint32_t link_window(const ExchangeSettings& settings, std::uint64_t nominal_Bps) {
  const std::uint64_t bytes = nominal_Bps / 1'000'000 * kWindowUs;
  const std::uint64_t chunks = std::max(kLeastWindow, (bytes + settings.chunk_bytes - 1) / settings.chunk_bytes);
  return static_cast<std::uint32_t>(std::min(settings.link_window, chunks));
}

TxLink::TxLink(Port port, Names names, const LinkTimes& times, std::uint32_t window)
    : port_(std::move(port)), names_(names), times_(times), window_(window), connect_wait_(times.reconnect_ns) {
  port_.memory.set_link_word(names_.own_nic, names_.peer, word_);
}

RailHeader TxLink::header(RailFrame kind) const {
  RailHeader header;
  header.kind = kind;
  header.from_nic = names_.nic;
  header.to_nic = names_.peer;
  header.generation = word_ >> 1;
  return header;
}

void TxLink::connect(std::span<const std::byte> address, std::uint64_t now) {
  port_.transport.connect(names_.peer, address);
  // Ends of a link must not both reconnect in step for ever: each waits longer each time, by an amount of its own.
  next_connect_ = now + connect_wait_ + connect_wait_ * ((names_.nic * 7 + names_.peer * 3) % 8) / 16;
  connect_wait_ = std::min(connect_wait_ * 2, times_.reconnect_ns * kMaxReconnectFactor);
  next_hello_ = now;
  connected_at_ = now;
  if (!port_.transport.reconnects()) next_connect_ = kNever;
}

void TxLink::forward(const Record& record) {
  if (!up() || record.word != word_) {
    port_.memory.release(port_.memory.self(), Pool::tx, record.slot, record.turn);
    return;
  }
  queue_.push_back(record);
}

void TxLink::drop(const Record& record) { port_.memory.release(port_.memory.self(), Pool::tx, record.slot, record.turn); }

void TxLink::answered(std::uint64_t now) {
  asked_since_ = 0;
  next_ping_ = now + times_.heartbeat_ns;
}

void TxLink::offer(std::uint64_t t, Transfer& transfer, std::uint64_t now) {
  RailHeader frame = header(RailFrame::offer);
  frame.transfer = t;
  frame.base = lowest_unfinished(t);
  frame.length = transfer.record.length;
  frame.message = transfer.record.message;
  frame.chunk = transfer.record.chunk;
  frame.attempt = transfer.record.attempt;
  transfer.asked_at = now;
  if (asked_since_ == 0) asked_since_ = now;
  port_.transport.send(names_.peer, frame, {}, 0);
}

std::uint64_t TxLink::lowest_unfinished(std::uint64_t t) const { return active_.empty() ? t : active_.begin()->first; }

// With a slot that was accepted ahead, or with an offer.
void TxLink::begin(const Record& record, std::uint64_t now) {
  const std::uint64_t t = next_transfer_++;
  Transfer& transfer = active_[t];
  transfer.record = record;
  transfer.token = port_.holds.hold(record);
  if (const auto slot = ahead_.extract(t)) {
    transfer.rx = slot.mapped();
    transfer.phase = Phase::accepted;
    return;
  }
  offer(t, transfer, now);
}

void TxLink::send_data(std::uint64_t t, Transfer& transfer, std::uint64_t now) {
  RailHeader frame = header(RailFrame::data);
  frame.transfer = t;
  frame.base = lowest_unfinished(t);
  frame.length = transfer.record.length;
  frame.slot = transfer.rx.slot;
  frame.turn = transfer.rx.turn;
  frame.message = transfer.record.message;
  frame.chunk = transfer.record.chunk;
  frame.attempt = transfer.record.attempt;
  transfer.asked_at = now;
  transfer.phase = Phase::sent;
  transfer.reoffered = false;
  if (asked_since_ == 0) asked_since_ = now;
  port_.holds.sending(transfer.token);
  const std::byte* data = port_.memory.data(port_.memory.self(), Pool::tx, transfer.record.slot, names_.own_nic);
  port_.transport.send(names_.peer, frame, {data, transfer.record.length}, transfer.token);
}

void TxLink::on_answer(const RailHeader& frame, std::uint64_t now) {
  if (abandoned_ || frame.generation != word_ >> 1) return;
  if (frame.kind == RailFrame::hello_back) {
    answered(now);
    if (up()) return;
    word_ |= 1;
    connect_wait_ = times_.reconnect_ns;
    port_.memory.set_link_word(names_.own_nic, names_.peer, word_);
    return;
  }
  if (frame.kind == RailFrame::over) {
    on_over(now);
    return;
  }
  if (!up()) return;
  answered(now);
  if (frame.kind == RailFrame::got || frame.kind == RailFrame::unwanted) {
    on_end(frame, now);
    return;
  }
  if (frame.kind != RailFrame::accept) return;
  if (frame.transfer >= next_transfer_) {
    expects_ahead_ = true;
    if (ahead_.size() < kMostAhead) ahead_.try_emplace(frame.transfer, RxSlot{frame.slot, frame.turn});
    return;
  }
  const auto found = active_.find(frame.transfer);
  if (found == active_.end()) return;
  Transfer& transfer = found->second;
  // An answer twice. That of an offer that was repeated on a slow rail says nothing of slots.
  if (transfer.phase == Phase::accepted || (transfer.phase == Phase::sent && !transfer.reoffered)) return;
  if (frame.base != 0) meter_.interrupt();  // it had to wait for a slot
  transfer.rx = {frame.slot, frame.turn};
  transfer.phase = Phase::accepted;
}

void TxLink::on_end(const RailHeader& frame, std::uint64_t now) {
  const auto found = active_.find(frame.transfer);
  if (found == active_.end()) return;
  if (frame.kind == RailFrame::got) port_.confirm(found->second.record);
  expects_ahead_ = false;  // until a slot comes behind this answer: where the receiver has none to spare, none does
  const std::uint32_t length = found->second.record.length;
  confirmed_bytes_ += length;
  port_.tx_bytes += length;
  port_.holds.finish(found->second.token);
  active_.erase(found);
  // With less under way the pipe may run empty before the next answer; small transfers cost more than their bytes. What was accepted goes
  // out in this turn. An answer that is repeated or late, or says that the chunk is not wanted, says nothing of the receiver's time.
  const bool steady = in_phase(Phase::sent) + in_phase(Phase::accepted) >= std::min(2u, window_) &&
                      length >= port_.memory.chunk_bytes() / 2 && frame.chunk != 0;
  if (!steady) return meter_.interrupt();
  const ThreadTimes own = port_.clock();
  if (const auto rate =
          meter_.confirmed({frame.chunk, confirmed_bytes_, port_.tx_bytes, frame.base, own.waited, frame.turn, own.worked, frame.length})) {
    rate_ = rate;
    rated_at_ = now;
  }
}

void TxLink::send_accepted(std::uint64_t now) {
  std::uint32_t sent = in_phase(Phase::sent);
  for (auto& [t, transfer] : active_) {
    if (sent >= window_) return;
    if (transfer.phase != Phase::accepted) continue;
    send_data(t, transfer, now);
    ++sent;
  }
}

std::uint32_t TxLink::in_phase(Phase phase) const {
  return static_cast<std::uint32_t>(
      std::count_if(active_.begin(), active_.end(), [phase](const auto& entry) { return entry.second.phase == phase; }));
}

LinkLoad TxLink::load() const {
  return {names_.nic,
          names_.peer,
          up(),
          static_cast<std::uint32_t>(queue_.size()),
          in_phase(Phase::offered),
          in_phase(Phase::accepted),
          in_phase(Phase::sent)};
}

void TxLink::raise_generation() {
  word_ = ((word_ >> 1) + 1) << 1;
  port_.memory.set_link_word(names_.own_nic, names_.peer, word_);
}

void TxLink::drop_transfers() {
  asked_since_ = 0;
  meter_.interrupt();
  for (const Record& record : queue_) drop(record);
  queue_.clear();
  for (const auto& [t, transfer] : active_) port_.holds.finish(transfer.token);
  active_.clear();
  ahead_.clear();
  expects_ahead_ = false;
}

// The receiver has given this generation up. Also when the link is down: a hello_back that was overtaken must not bring it up in a
// generation that nobody answers. The connection is good, so it stays and lets go of the slots by itself.
void TxLink::on_over(std::uint64_t now) {
  raise_generation();
  drop_transfers();
  next_hello_ = now;
  if (next_connect_ != kNever) next_connect_ = now + connect_wait_;
  abandoned_ = last_time_;
}

void TxLink::go_down(std::uint64_t now) {
  if (up()) raise_generation();
  port_.transport.disconnect(names_.peer);  // makes the transport let go of the slots
  drop_transfers();
  next_connect_ = now;
  abandoned_ = last_time_ || !port_.transport.reconnects();
}

void TxLink::on_lost(std::uint64_t now) {
  if (up())
    go_down(now);
  else
    retry_soon();
}

// The peer reaches this end; if it is waiting to try again, now is the time.
void TxLink::on_hello() {
  if (!up()) retry_soon();
}

// A connection that is being tried gets its time, and more each time: both ends lose what they had when one starts anew.
void TxLink::retry_soon() {
  if (port_.transport.reconnects()) next_connect_ = std::min(next_connect_, connected_at_ + connect_wait_ / 4);
}

void TxLink::abandon(bool at_once) {
  last_time_ = true;
  if (at_once || !up()) go_down(0);
}

void TxLink::excuse(std::uint64_t ns) {
  connected_at_ += ns;
  if (next_connect_ != kNever) next_connect_ += ns;
  if (asked_since_ != 0) asked_since_ += ns;
}

bool TxLink::advance(std::uint64_t now, std::span<const std::byte> address) {
  if (abandoned_) return false;
  if (!up()) {
    if (now >= next_connect_) connect(address, now);
    if (now < next_hello_) return false;
    port_.transport.send(names_.peer, header(RailFrame::hello), {}, 0);
    next_hello_ = now + times_.resend_ns / 2;
    return true;
  }
  if (asked_since_ != 0 && now - asked_since_ > times_.timeout_ns) {
    go_down(now);
    return true;
  }
  bool sent = false;
  for (auto& [t, transfer] : active_) {
    if (!may_offer_again(transfer) || now - transfer.asked_at < times_.resend_ns) continue;
    // Also when data was sent: an offer is small, and `got` or `accept` says whether the data came.
    transfer.reoffered = true;
    offer(t, transfer, now);
    sent = true;
  }
  for (std::uint32_t ready = queue_.empty() ? 0 : in_phase(Phase::sent) + in_phase(Phase::accepted);
       !queue_.empty() && active_.size() < kOffersPerWindow * window_ && next_transfer_ - lowest_unfinished(next_transfer_) < kMostSpread;
       ++ready) {
    // The window is full, and with its next answer a slot comes, too: nothing need be asked.
    if (expects_ahead_ && ready >= window_ && !ahead_.contains(next_transfer_)) break;
    begin(queue_.front(), now);
    queue_.pop_front();
    sent = true;
  }
  if (now >= next_ping_) {
    RailHeader ping = header(RailFrame::ping);
    ping.base = ++pings_;
    if (asked_since_ == 0) asked_since_ = now;
    next_ping_ = now + times_.heartbeat_ns;
    port_.transport.send(names_.peer, ping, {}, 0);
    sent = true;
  }
  return sent;
}

// An `accept` to an offer that overtakes its data would say that the data was lost.
bool TxLink::may_offer_again(const Transfer& transfer) const {
  return transfer.phase != Phase::accepted && !port_.holds.is_sending(transfer.token);
}

std::uint64_t TxLink::next_deadline() const {
  if (abandoned_) return kNever;
  if (!up()) return std::min(next_connect_, next_hello_);
  std::uint64_t deadline = next_ping_;
  for (const auto& [t, transfer] : active_) {
    if (may_offer_again(transfer)) deadline = std::min(deadline, transfer.asked_at + times_.resend_ns);
  }
  return deadline;
}

std::optional<std::uint64_t> TxLink::take_rate() {
  const auto rate = rate_;
  rate_.reset();
  return rate;
}

bool TxLink::is_rate_old(std::uint64_t now) {
  if (rated_at_ == 0 || now < rated_at_ + kRateNs) return false;
  rated_at_ = now;
  return true;
}

}  // namespace railweave::engine
