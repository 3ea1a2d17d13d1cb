#include "host_source.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace railweave::engine {
namespace {

// Chunks pushed before the engine looks at its rings again: 8 x 128 KiB are under half a millisecond of memcpy.
constexpr int kChunksPerTurn = 8;

// With so many chunks in its slots a NIC goes on for as long as a source takes to send the next one there. None of these was swept; what
// they bring is in docs/protocol.md, "Idle ways".
constexpr std::uint32_t kBusyChunks = 4;
// What was not looked at for so many times as long as those take is not known to have stood idle.
constexpr std::uint64_t kForgetPatiences = 4;
// A look reads a flag for each slot of all mates, which others write meanwhile. Half a chunk's time apart, and no more than a second.
constexpr std::uint64_t kLooksAPatience = 2 * kBusyChunks, kMostBetweenLooksNs = 1'000'000'000;

// What a source has in slots of a link cannot move to a way that stands idle. As much as goes over the link in this time is there, at least
// so many chunks, and a window, as a slot is free again when its chunk has landed. benchmarks/engine/layer.py, zipf:1.0, 400 Mbit/s (window
// 3): 932 ms with 24 chunks, 908 with 16, 891 with 12, 873 with 8, 860 with 5, 849 with 3; bench alltoallv incast:4MiB 86.7 ms with 24,
// 86.4 with 5, 88.8 with 3. On 8 Gbit/s (32 cores; window 8) 50.6 ms with 24, 52.3 with 8, 49.5 with 5, 48.7 with 3, 3% apart.
constexpr std::uint64_t kAheadNs = 700'000;
constexpr std::uint32_t kLeastAhead = 5;

}  // namespace

HostSource::HostSource(EngineServices& services, Copier& copier)
    : services_(services),
      memory_(services.memory()),
      copier_(copier),
      eager_(services.cluster().world),
      tx_use_(memory_.mates()),
      idleness_(memory_.mates()) {}

std::uint32_t HostSource::length(const SendMessage& message, std::uint32_t chunk) const {
  const std::uint64_t at = std::uint64_t{chunk} * memory_.chunk_bytes();
  return static_cast<std::uint32_t>(std::min(memory_.chunk_bytes(), message.bytes - at));
}

std::uint32_t HostSource::link_id(std::uint32_t nic, std::uint32_t peer) const {
  return nic * static_cast<std::uint32_t>(services_.cluster().nics.size()) + peer;
}

void HostSource::send_eager(Operation& operation) {
  const Cluster& cluster = services_.cluster();
  for (SendMessage& message : operation.sends) {
    const std::uint32_t peer = message.key.destination;
    if (message.bytes > services_.eager_bytes() || peer == cluster.rank || early_.contains(message.key)) continue;
    Eager& eager = eager_[peer];
    const bool readable = message.bytes == 0 || message.readable != nullptr;
    const std::uint32_t credits = credits_of(message.bytes);
    if (!readable || eager.sent + credits - eager.taken > kEagerCredits) {
      ask(message);
      continue;
    }
    eager.sent += credits;
    services_.control().send(peer, FrameType::eager, std::as_bytes(std::span(&message.key, 1)), {message.readable, message.bytes});
    const PathKind kind = cluster.local(peer) ? PathKind::direct : PathKind::rail;
    operation.report.bytes_by_kind[static_cast<std::size_t>(kind)] += message.bytes;
    message.over = true;
    services_.message_over(operation);
  }
}

void HostSource::on_credit(std::uint32_t destination, std::uint64_t taken) {
  Eager& eager = eager_[destination];
  if (taken > eager.taken && taken <= eager.sent) eager.taken = taken;
}

void HostSource::ask(SendMessage& message) {
  message.asked = true;
  const Ask ask{message.key, message.bytes};
  services_.control().send(message.key.destination, FrameType::ask, std::as_bytes(std::span(&ask, 1)));
}

// A destination that holds the message for small grants nothing unasked: it must hear that the sizes differ.
void HostSource::ask_late(std::uint64_t posted_before) {
  for (auto& [key, message] : messages_) {
    if (!message->granted && !message->asked && message->operation->posted_at < posted_before) ask(*message);
  }
}

void HostSource::send(Operation& operation) {
  for (SendMessage& message : operation.sends) {
    if (message.over) continue;
    message.routes = &operation.routes[message.key.destination];
    messages_.emplace(message.key, &message);
    if (const auto early = early_.extract(message.key)) match(message, early.mapped().grant, early.mapped().local_buffer);
  }
}

void HostSource::on_grant(const Grant& grant, std::byte* local_buffer) {
  if (SendMessage* message = find(grant.message))
    match(*message, grant, local_buffer);
  else if (services_.state_of(grant.message) != MessageState::over)
    early_.emplace(grant.message, Early{grant, local_buffer});
}

void HostSource::match(SendMessage& message, const Grant& grant, std::byte* local_buffer) {
  if (message.granted) return;
  const std::uint32_t peer = message.key.destination;
  if (grant.bytes != message.bytes) {
    services_.fail(*message.operation, sizes_differ(message.key, peer, message.bytes, grant.bytes));
    return;
  }
  message.granted = true;
  if (local_buffer != nullptr) {
    message.mapped = local_buffer;
  } else if (grant.has_buffer != 0 && services_.cluster().local(peer)) {
    auto mapping = services_.map(grant.memory);
    if (mapping != nullptr && grant.offset <= mapping->bytes() && grant.bytes <= mapping->bytes() - grant.offset) {
      message.mapped = mapping->data() + grant.offset;
      message.mapping = std::move(mapping);
    }
  }
  active_.push_back(&message);
}

bool HostSource::advance() {
  bool moved = false;
  for (std::size_t i = held_.size(); i-- != 0;) {
    if (!stands_announced(*held_[i])) continue;
    finish_if_done(*held_[i]);  // takes it out
    moved = true;
  }
  int budget = kChunksPerTurn;
  for (std::size_t idle = 0; !active_.empty() && idle < active_.size() && budget > 0;) {
    turn_ = turn_ >= active_.size() ? 0 : turn_;
    SendMessage& message = *active_[turn_];
    if (push_one(message)) {
      moved = true;
      idle = 0;
      --budget;
    } else {
      ++idle;
    }
    const bool nothing_left = message.next == message.chunks.size() && message.retries.empty();
    if (nothing_left)
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(turn_));
    else
      ++turn_;
    if (nothing_left) finish_if_done(message);  // may end the operation and the message with it
  }
  return moved;
}

std::uint32_t HostSource::take_next(SendMessage& message) const {
  // A chunk may have been confirmed after its attempt was retired.
  while (!message.retries.empty() && message.chunks[message.retries.back()].state != ChunkState::todo) message.retries.pop_back();
  if (!message.retries.empty()) return message.retries.back();
  while (message.next < message.chunks.size() && message.chunks[message.next].state != ChunkState::todo) ++message.next;
  return message.next;
}

void HostSource::took(SendMessage& message, std::uint32_t chunk) {
  if (!message.retries.empty() && message.retries.back() == chunk)
    message.retries.pop_back();
  else
    message.next = chunk + 1;
  ++message.chunks[chunk].attempt;
}

bool HostSource::push_one(SendMessage& message) {
  const std::uint32_t chunk = take_next(message);
  if (chunk == message.chunks.size() || !copier_.has_room()) return false;
  if (message.mapped != nullptr) return push_mapped(message, chunk);
  return push_routed(message, chunk);
}

bool HostSource::push_mapped(SendMessage& message, std::uint32_t chunk) {
  const std::uint32_t mate = services_.cluster().ranks[message.key.destination].local;
  if (memory_.crowded(mate)) return false;
  took(message, chunk);
  message.chunks[chunk].state = ChunkState::copying;
  Record record = record_of(message, chunk);
  record.kind = RecordKind::placed;
  record.owner = static_cast<std::uint16_t>(mate);
  OperationReport& report = message.operation->report;
  if (mate != memory_.self()) {
    report.mapped_bytes += record.length;
    report.bytes_by_kind[static_cast<std::size_t>(PathKind::direct)] += record.length;
  }
  push({&message, mate, record}, message.mapped + std::uint64_t{chunk} * memory_.chunk_bytes());
  return true;
}

bool HostSource::push_routed(SendMessage& message, std::uint32_t chunk) {
  Routes& routes = *message.routes;
  const std::uint32_t bytes = length(message, chunk);
  bool live = false;
  for (std::size_t i = 0; i < routes.shares.size(); ++i) {
    const std::size_t at = (routes.cursor + i) % routes.shares.size();
    RouteShare& share = routes.shares[at];
    if (share.bytes == 0 || !try_share(message, chunk, share, live)) continue;
    share.bytes -= std::min<std::uint64_t>(share.bytes, bytes);
    share.sent += bytes;
    routes.cursor = at + 1;
    return true;
  }
  if (live) return push_to_idle(message, chunk);  // the plan's ways are only full
  const Cluster& cluster = services_.cluster();
  if (cluster.local(message.key.destination)) {
    RouteShare direct;
    direct.owner = cluster.ranks[message.key.destination].local;
    return try_share(message, chunk, direct, live);
  }
  // Nothing planned, or what was planned is gone: the best link that lives; a resent chunk turns to the next one.
  const std::vector<RouteShare> links = services_.router().links_to(message.key.destination);
  const bool resent = message.chunks[chunk].attempt != 0;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const RouteShare& share = links[resent ? (fallback_ + i) % links.size() : i];
    bool usable = false;
    if (try_share(message, chunk, share, usable)) {
      if (resent) ++fallback_;
      return true;
    }
    if (usable && !resent) return false;  // one path for what needs no plan: wait for room on it
  }
  return false;
}

// Now and then: which owners of this node's NICs have stood idle for a while.
void HostSource::look_for_idle() {
  const Cluster& cluster = services_.cluster();
  const std::uint64_t now = now_ns();
  if (now < next_look_) return;
  any_idle_ = false;
  std::uint64_t soonest = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint32_t nic : cluster.nodes[cluster.node()].nics) {
    const std::uint32_t owner = cluster.ranks[cluster.nics[nic].owner].local;
    Idleness& idleness = idleness_[owner];
    if (idleness.seen == now) continue;  // for another NIC of the owner's
    const std::uint64_t Bps = std::max<std::uint64_t>(services_.router().planned_Bps(nic), 1);
    const std::uint64_t patience = kBusyChunks * memory_.chunk_bytes() * 1'000'000'000 / Bps;
    const std::uint32_t lacks = kBusyChunks - std::min(kBusyChunks, memory_.queued(owner));
    const bool busy = lacks == 0 && now - idleness.used > patience;
    if (busy || now - idleness.seen > kForgetPatiences * patience) idleness.since = now;
    idleness.seen = now;
    idleness.lacks = now - idleness.since < patience ? 0 : lacks;
    any_idle_ = any_idle_ || idleness.lacks != 0;
    soonest = std::min(soonest, patience / kLooksAPatience);
  }
  next_look_ = now + std::min(soonest, kMostBetweenLooksNs);
}

// A plan says how much goes which way if all ranks send at once. Where some come late, ways of theirs stand idle that others, whose own
// ways are full, can use meanwhile: docs/protocol.md, "Idle ways".
bool HostSource::push_to_idle(SendMessage& message, std::uint32_t chunk) {
  const Router& router = services_.router();
  if (!router.may_deviate() || services_.cluster().local(message.key.destination)) return false;
  look_for_idle();
  Routes& routes = *message.routes;
  const auto fullest = std::max_element(routes.shares.begin(), routes.shares.end(),
                                        [](const RouteShare& a, const RouteShare& b) { return a.bytes < b.bytes; });
  if (!any_idle_ || fullest == routes.shares.end() || fullest->bytes == 0) return false;
  const std::uint64_t least_Bps = std::max<std::uint64_t>(1, router.planned_Bps(fullest->nic, fullest->peer_nic) / 2);
  if (routes.links.empty()) routes.links = router.links_to(message.key.destination);
  for (const RouteShare& link : routes.links) {
    Idleness& idleness = idleness_[link.owner];
    bool live = false;
    if (idleness.lacks == 0 || link.kind != PathKind::rail || router.planned_Bps(link.nic, link.peer_nic) < least_Bps) continue;
    if (!try_share(message, chunk, link, live)) continue;
    --idleness.lacks;
    idleness.used = idleness.seen;
    // As if it had gone the way that was planned: a new plan takes off what went each way.
    const std::uint32_t bytes = length(message, chunk);
    fullest->bytes -= std::min<std::uint64_t>(fullest->bytes, bytes);
    fullest->sent += bytes;
    return true;
  }
  return false;
}

bool HostSource::try_share(SendMessage& message, std::uint32_t chunk, const RouteShare& share, bool& live) {
  const Cluster& cluster = services_.cluster();
  if (share.kind != PathKind::rail && share.kind != PathKind::cross_rail) {
    const std::uint32_t owner = cluster.mates()[share.owner];
    if (owner != message.key.destination && owner != cluster.rank && !services_.relays(owner)) return false;
    live = true;
    return push_to_slot(message, chunk, share);
  }
  const std::uint32_t tx_owner = cluster.nics[share.nic].owner;
  const std::uint32_t rx_owner = cluster.nics[share.peer_nic].owner;
  if ((tx_owner != cluster.rank && !services_.relays(tx_owner)) || (rx_owner != message.key.destination && !services_.relays(rx_owner)))
    return false;
  const std::uint64_t word = services_.link_word(share.nic, share.peer_nic);
  if ((word & 1) == 0) return false;
  live = true;
  return push_to_link(message, chunk, share, word);
}

Record HostSource::record_of(SendMessage& message, std::uint32_t chunk) const {
  Record record;
  record.message = message.key;
  record.chunk = chunk;
  record.length = length(message, chunk);
  record.attempt = message.chunks[chunk].attempt;
  return record;
}

Record HostSource::record_of(SendMessage& message, std::uint32_t chunk, const SlotRef& slot) const {
  Record record = record_of(message, chunk);
  record.pool = slot.pool;
  record.owner = static_cast<std::uint16_t>(slot.owner);
  record.slot = slot.slot;
  record.turn = slot.turn;
  return record;
}

void HostSource::push(const Push& push, std::byte* to) {
  SendMessage& message = *push.message;
  ++message.copies;
  const std::uint64_t ticket = next_ticket_;
  next_ticket_ += 2;
  if (copier_.push(to, message.data + std::uint64_t{push.record.chunk} * memory_.chunk_bytes(), push.record.length, ticket))
    pushed(push, true);
  else
    pushes_.emplace(ticket, push);
}

void HostSource::on_copied(const Copier::Ended& copy) {
  const auto found = pushes_.extract(copy.ticket);
  if (!found) return;
  pushed(found.mapped(), copy.made);
  SendMessage& message = *found.mapped().message;
  if (!message.over) finish_if_done(message);
}

// A chunk that has been retired, or whose operation has failed, while it was copied is announced like one that was so a moment later: the
// record says which attempt it was.
void HostSource::pushed(const Push& push, bool made) {
  SendMessage& message = *push.message;
  const Record& record = push.record;
  --message.copies;
  if (made) {
    memory_.announce(push.mate, record);
    if (record.kind != RecordKind::forward) message.announced = memory_.announced(push.mate);
  } else if (record.kind != RecordKind::placed) {
    memory_.release(record.owner, record.pool, record.slot, record.turn);
  }
  if (message.chunks[record.chunk].state == ChunkState::copying) finish_chunk(message, record.chunk);
}

bool HostSource::push_to_slot(SendMessage& message, std::uint32_t chunk, const RouteShare& share) {
  const std::uint32_t reader = services_.cluster().ranks[message.key.destination].local;
  if (memory_.crowded(reader)) return false;
  const auto slot = memory_.take(share.owner, Pool::direct, reader);
  if (!slot) return false;
  took(message, chunk);
  message.chunks[chunk].state = ChunkState::copying;
  const Record record = record_of(message, chunk, *slot);
  message.operation->report.bytes_by_kind[static_cast<std::size_t>(share.kind)] += record.length;
  push({&message, reader, record}, memory_.data(slot->owner, slot->pool, slot->slot));
  return true;
}

// Chunks that this rank may have in slots of a link. Where a node has one NIC, or plans say which way all goes, nothing could move.
std::uint32_t HostSource::most_ahead(const RouteShare& share) const {
  const Cluster& cluster = services_.cluster();
  const std::uint32_t slots = memory_.slots_per_writer();
  if (cluster.nodes[cluster.node()].nics.size() == 1 || !services_.router().may_deviate()) return slots;
  const std::uint64_t chunks =
      services_.router().planned_Bps(share.nic, share.peer_nic) / 1'000 * (kAheadNs / 1'000) / 1'000 / memory_.chunk_bytes();
  const std::uint64_t least = std::max(kLeastAhead, services_.link_window(share.nic));
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(std::max(chunks, least), slots));
}

// A link alone at its owner may fill all of this rank's slots there; beside another link it gets half, so that a slow one cannot block.
bool HostSource::link_has_room(const RouteShare& share) const {
  const std::uint32_t link = link_id(share.nic, share.peer_nic);
  std::uint32_t mine = 0;
  bool others = false;
  for (const TxUse& use : tx_use_[share.owner]) {
    if (memory_.is_free(use.slot)) continue;
    if (use.link == link)
      ++mine;
    else
      others = true;
  }
  const std::uint32_t most = most_ahead(share);
  return mine < (others ? std::min(most, std::max(1u, memory_.slots_per_writer() / 2)) : most);
}

bool HostSource::push_to_link(SendMessage& message, std::uint32_t chunk, const RouteShare& share, std::uint64_t word) {
  const std::uint32_t link = link_id(share.nic, share.peer_nic);
  if (memory_.crowded(share.owner) || !link_has_room(share)) return false;
  const auto slot = memory_.take(share.owner, Pool::tx, share.owner);
  if (!slot) return false;
  std::erase_if(tx_use_[share.owner], [this](const TxUse& use) { return memory_.is_free(use.slot); });
  tx_use_[share.owner].push_back({link, *slot});
  took(message, chunk);
  Record record = record_of(message, chunk, *slot);
  record.kind = RecordKind::forward;
  record.link = link;
  record.word = word;
  SendChunk& state = message.chunks[chunk];
  state.state = ChunkState::out;
  state.link = link;
  state.word = word;
  ++message.out;
  OperationReport& report = message.operation->report;
  report.bytes_by_kind[static_cast<std::size_t>(share.kind)] += record.length;
  const NicInfo& nic = services_.cluster().nics[share.nic];
  report.bytes_by_nic[nic.position] += record.length;
  push({&message, share.owner, record}, memory_.data(slot->owner, slot->pool, slot->slot, nic.own_position));
  return true;
}

void HostSource::finish_chunk(SendMessage& message, std::uint32_t chunk) {
  SendChunk& state = message.chunks[chunk];
  if (state.state == ChunkState::done) return;
  if (state.state == ChunkState::out) --message.out;
  state.state = ChunkState::done;
  ++message.done;
}

// The program may end its process when its operation has ended: the destination finds the records then, or never.
bool HostSource::stands_announced(const SendMessage& message) const {
  return message.announced == 0 || memory_.has_written(services_.cluster().ranks[message.key.destination].local, message.announced);
}

void HostSource::finish_if_done(SendMessage& message) {
  if (message.over || message.done != message.chunks.size() || message.copies != 0) return;
  if (!stands_announced(message)) {
    if (std::find(held_.begin(), held_.end(), &message) == held_.end()) held_.push_back(&message);
    return;
  }
  message.over = true;
  messages_.erase(message.key);
  std::erase(active_, &message);
  std::erase(held_, &message);
  message.mapping.reset();
  services_.message_over(*message.operation);
}

// Of any attempt that has been made, also one that was retired: what has landed is the destination's.
void HostSource::on_confirmed(const Record& record) {
  SendMessage* message = find(record.message);
  if (message == nullptr || record.chunk >= message->chunks.size()) return;
  if (record.attempt == 0 || record.attempt > message->chunks[record.chunk].attempt) return;
  finish_chunk(*message, record.chunk);
  finish_if_done(*message);
}

void HostSource::retire_attempts() {
  const Cluster& cluster = services_.cluster();
  const auto nics = static_cast<std::uint32_t>(cluster.nics.size());
  for (auto& [key, message] : messages_) {
    if (message->out == 0) continue;
    const bool was_active = std::find(active_.begin(), active_.end(), message) != active_.end();
    for (std::uint32_t chunk = 0; chunk < message->chunks.size(); ++chunk) {
      SendChunk& state = message->chunks[chunk];
      if (state.state != ChunkState::out) continue;
      const std::uint32_t nic = state.link / nics, peer = state.link % nics;
      const bool trusted = services_.link_word(nic, peer) == state.word && services_.serves(cluster.nics[nic].owner) &&
                           services_.serves(cluster.nics[peer].owner);
      if (trusted) continue;
      state.state = ChunkState::todo;
      --message->out;
      message->retries.push_back(chunk);
      ++message->operation->report.resent_chunks;
    }
    if (!was_active && !message->retries.empty()) active_.push_back(message);
  }
}

void HostSource::has_all(std::uint32_t destination) {
  std::vector<SendMessage*> arrived;
  for (const auto& [key, message] : messages_) {
    if (key.destination == destination && message->granted) arrived.push_back(message);
  }
  for (SendMessage* message : arrived) {
    for (std::uint32_t chunk = 0; chunk < message->chunks.size(); ++chunk) finish_chunk(*message, chunk);
    finish_if_done(*message);
  }
}

SendMessage* HostSource::find(const MessageKey& key) {
  const auto found = messages_.find(key);
  return found == messages_.end() ? nullptr : found->second;
}

void HostSource::drop(Operation& operation) {
  for (SendMessage& message : operation.sends) {
    if (message.over) continue;
    message.over = true;
    messages_.erase(message.key);
    early_.erase(message.key);
    std::erase(active_, &message);
    std::erase(held_, &message);
    message.mapping.reset();
  }
  // What its receives granted to sends of this rank that have not been posted.
  for (const RecvMessage& message : operation.recvs) early_.erase(message.key);
}

}  // namespace railweave::engine
