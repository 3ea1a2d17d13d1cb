#include "control.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace railweave::engine {
namespace {

constexpr std::uint32_t kMagic = 0x52574346;  // "FCWR"
constexpr std::size_t kMaxEarly = 256;        // frames kept that came before their turn
constexpr std::size_t kMaxCarried = 256;      // frames kept for a mate whose mail ring is full; a dropped one is sent again, but late
// Frames of an operation that goes both ways carry acknowledgements; one of its own is only for a stream that has become silent.
constexpr std::uint64_t kAckDelayNs = 2'000'000;
constexpr std::uint64_t kResendWindow = 32;  // frames sent again that nobody has acknowledged yet

}  // namespace

ControlChannel::ControlChannel(const Cluster& cluster, NodeMemory& memory, Carrier& carrier, const ExchangeSettings& settings,
                               Handler handler)
    : cluster_(cluster),
      memory_(memory),
      carrier_(carrier),
      resend_ns_(settings.resend_ms * 1'000'000),
      ack_delay_ns_(std::min(kAckDelayNs, resend_ns_ / 4)),
      handler_(std::move(handler)),
      streams_(cluster.world) {}

void ControlChannel::send(std::uint32_t destination, FrameType type, std::span<const std::byte> payload, std::span<const std::byte> data) {
  Stream& stream = streams_[destination];
  if (stream.forgotten) return;
  FrameHeader header;
  header.magic = kMagic;
  header.type = type;
  header.source = cluster_.rank;
  header.destination = destination;
  const bool local = cluster_.local(destination);
  if (!local) header.sequence = stream.next_sequence++;
  Frame frame(sizeof header + payload.size() + data.size());
  std::byte* at = frame.content().data();
  for (const auto part : {std::as_bytes(std::span(&header, 1)), payload, data}) at = std::copy_n(part.data(), part.size(), at);
  if (local) {
    const std::uint32_t mate = cluster_.ranks[destination].local;
    if (!stream.waiting_mail.empty() || !memory_.mail(mate, frame.content())) stream.waiting_mail.push_back(std::move(frame));
    return;
  }
  if (stream.unacked.empty()) stream.sent_at = now_ns();
  stream.unacked.push_back({header.sequence, std::move(frame)});
  if (stream.waiting != 0 || !transmit(destination, stream.unacked.back().frame, stream.attempt)) ++stream.waiting;
}

// Stamps the newest acknowledgement and gives the frame to a carrier: an own link, or a mate. False: mates could carry it, but their mail
// rings are full, as they soon will not be. Where nobody can, it counts as lost.
bool ControlChannel::transmit(std::uint32_t destination, Frame& frame, std::uint32_t attempt) {
  Stream& stream = streams_[destination];
  if (frame.is_shared()) frame = Frame(std::as_const(frame).content());  // a number that is half sent must not become another
  std::memcpy(frame.content().data() + offsetof(FrameHeader, acknowledge), &stream.delivered, sizeof stream.delivered);
  stream.ack_due_at = 0;
  const auto& mates = cluster_.mates();
  const auto count = static_cast<std::uint32_t>(mates.size());
  bool full = false;
  // First choice: this rank's own NICs, then its mates', each resend one further; a mate that shows no life only where nobody else can.
  for (std::uint32_t i = 0; i < 2 * count; ++i) {
    const std::uint32_t mate = (memory_.self() + attempt + i) % count;
    if (memory_.shows_life(mate) != (i < count)) continue;
    if (mate == memory_.self()) {
      if (carrier_.carry(destination, frame, attempt / count)) return true;
      continue;
    }
    const RankInfo& info = cluster_.ranks[mates[mate]];
    for (const std::uint32_t nic : info.nics) {
      const auto& remote = cluster_.nodes[cluster_.ranks[destination].node].nics;
      const bool up = std::any_of(remote.begin(), remote.end(), [&](std::uint32_t other) {
        return (memory_.link_word(mate, cluster_.nics[nic].own_position, other) & 1) != 0;
      });
      if (up && memory_.mail(mate, frame.content())) return true;
      full = full || up;
    }
  }
  return !full;
}

void ControlChannel::receive(std::span<const std::byte> frame, std::uint64_t now) {
  FrameHeader header;
  if (frame.size() < sizeof header) return;
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != kMagic || header.source >= cluster_.world || header.destination >= cluster_.world) return;
  if (header.destination != cluster_.rank) {
    forward(header, frame);
    return;
  }
  Stream& stream = streams_[header.source];
  if (stream.forgotten) return;
  if (cluster_.local(header.source)) {
    deliver(header, frame);
    return;
  }
  if (header.acknowledge >= stream.next_sequence) return;  // acknowledges what was never sent: not one of ours
  while (!stream.unacked.empty() && stream.unacked.front().sequence <= header.acknowledge) {
    stream.unacked.pop_front();
    stream.sent_at = now;
  }
  stream.waiting = std::min(stream.waiting, stream.unacked.size());
  // Until then what is sent goes where this was answered: the first choice may be what loses frames.
  if (header.acknowledge >= stream.again_to) stream.attempt = 0;
  if (header.sequence == 0) return;
  if (stream.ack_due_at == 0) stream.ack_due_at = now + ack_delay_ns_;
  if (header.sequence <= stream.delivered) return;
  if (header.sequence != stream.delivered + 1) {
    if (stream.early.size() < kMaxEarly) stream.early.emplace(header.sequence, std::vector<std::byte>(frame.begin(), frame.end()));
    return;
  }
  ++stream.delivered;
  deliver(header, frame);
  while (!stream.early.empty() && stream.early.begin()->first <= stream.delivered + 1) {
    const auto node = stream.early.extract(stream.early.begin());
    if (node.key() <= stream.delivered) continue;
    ++stream.delivered;
    FrameHeader early;
    std::memcpy(&early, node.mapped().data(), sizeof early);
    deliver(early, node.mapped());
  }
}

void ControlChannel::deliver(const FrameHeader& header, std::span<const std::byte> frame) {
  ByteReader payload(frame.subspan(sizeof(FrameHeader)));
  handler_(header.source, header.type, payload);
}

// This rank is only a carrier: to the mate it is for, or over a link to its node.
void ControlChannel::forward(const FrameHeader& header, std::span<const std::byte> frame) {
  if (cluster_.local(header.destination)) {
    auto& waiting = streams_[header.destination].waiting_mail;
    const bool room = waiting.empty() && memory_.mail(cluster_.ranks[header.destination].local, frame);
    if (!room && waiting.size() < kMaxCarried) waiting.emplace_back(frame);
  } else if (cluster_.local(header.source)) {
    carrier_.carry(header.destination, Frame(frame), forwarded_++);
  }
}

bool ControlChannel::flush(std::uint64_t now) {
  bool sent = false;
  for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
    Stream& stream = streams_[rank];
    while (!stream.waiting_mail.empty() && memory_.mail(cluster_.ranks[rank].local, stream.waiting_mail.front().content())) {
      stream.waiting_mail.pop_front();
      sent = true;
    }
    // What this turn has sent is younger than `now`, which was read before.
    if (!stream.unacked.empty() && (stream.resend_due || now >= stream.sent_at + resend_ns_)) {
      ++stream.attempt;
      stream.sent_at = now;
      stream.resend_due = false;
      stream.again_from = stream.unacked.front().sequence;
      stream.again_to = stream.again_from + (stream.unacked.size() - stream.waiting) - 1;
      sent = true;
    }
    sent = send_again(rank) || sent;
    while (stream.waiting != 0 && transmit(rank, stream.unacked[stream.unacked.size() - stream.waiting].frame, stream.attempt)) {
      --stream.waiting;
      sent = true;
    }
    if (stream.ack_due_at != 0 && now >= stream.ack_due_at) {
      FrameHeader header;
      header.magic = kMagic;
      header.source = cluster_.rank;
      header.destination = rank;
      Frame frame(std::as_bytes(std::span(&header, 1)));
      transmit(rank, frame, 0);
      sent = true;
    }
  }
  return sent;
}

// A window of them, and more as they are acknowledged: a link that dies under load loses thousands, and a resend time for each window would
// take seconds.
bool ControlChannel::send_again(std::uint32_t destination) {
  Stream& stream = streams_[destination];
  if (stream.unacked.empty()) return false;
  const std::uint64_t first = stream.unacked.front().sequence;
  stream.again_from = std::max(stream.again_from, first);
  const bool sends = may_send_again(stream);
  while (may_send_again(stream)) transmit(destination, stream.unacked[stream.again_from++ - first].frame, stream.attempt);
  return sends;
}

bool ControlChannel::may_send_again(const Stream& stream) {
  return stream.again_from <= stream.again_to && stream.again_from < stream.unacked.front().sequence + kResendWindow;
}

std::uint64_t ControlChannel::next_deadline() const {
  std::uint64_t deadline = std::numeric_limits<std::uint64_t>::max();
  for (const Stream& stream : streams_) {
    if (!stream.unacked.empty())
      deadline = std::min(deadline, stream.resend_due || may_send_again(stream) ? 0 : stream.sent_at + resend_ns_);
    if (stream.ack_due_at != 0) deadline = std::min(deadline, stream.ack_due_at);
  }
  return deadline;
}

void ControlChannel::links_changed() {
  for (Stream& stream : streams_) stream.resend_due = !stream.unacked.empty();
}

void ControlChannel::forget(std::uint32_t rank) {
  Stream& stream = streams_[rank];
  stream.forgotten = true;
  stream.unacked.clear();
  stream.waiting = 0;
  stream.early.clear();
  stream.waiting_mail.clear();
  stream.ack_due_at = 0;
}

bool ControlChannel::settled(std::uint32_t rank) const {
  const Stream& stream = streams_[rank];
  return stream.unacked.empty() && stream.waiting_mail.empty() && (!cluster_.local(rank) || memory_.mail_read(cluster_.ranks[rank].local));
}

}  // namespace railweave::engine
