#include "host_destination.hpp"

#include <algorithm>
#include <cstring>

namespace railweave::engine {
namespace {

bool has(const std::vector<std::uint64_t>& bits, std::uint32_t chunk) { return (bits[chunk / 64] >> (chunk % 64) & 1) != 0; }
void set(std::vector<std::uint64_t>& bits, std::uint32_t chunk) { bits[chunk / 64] |= std::uint64_t{1} << (chunk % 64); }

}  // namespace

HostDestination::HostDestination(EngineServices& services, Copier& copier, std::function<void(const Grant&, std::byte*)> self_grant)
    : services_(services),
      memory_(services.memory()),
      copier_(copier),
      self_grant_(std::move(self_grant)),
      eager_(services.cluster().world) {}

std::uint32_t HostDestination::length(const RecvMessage& message, std::uint32_t chunk) const {
  const std::uint64_t at = std::uint64_t{chunk} * memory_.chunk_bytes();
  return static_cast<std::uint32_t>(std::min(memory_.chunk_bytes(), message.bytes - at));
}

void HostDestination::receive(Operation& operation) {
  for (RecvMessage& message : operation.recvs) {
    message.bits.assign((message.chunks + 63) / 64, 0);
    message.copying = message.bits;
    messages_.emplace(message.key, &message);
    const bool own = message.key.source == services_.cluster().rank;
    if (auto kept = kept_.extract(message.key)) {
      let_go(message.key.source, kept.mapped().size());
      take(message, kept.mapped());
    } else if (asked_.erase(message.key) != 0 || own || message.bytes > services_.eager_bytes()) {
      grant(message);
    }
  }
}

// The whole message in one control frame (docs/protocol.md §6a).
void HostDestination::on_eager(const MessageKey& key, std::span<const std::byte> data) {
  Eager& eager = eager_[key.source];
  if (RecvMessage* message = find(key)) {
    give_credit(key.source, data.size());
    take(*message, data);
  } else if (services_.state_of(key) != MessageState::unposted) {
    give_credit(key.source, data.size());  // its operation has failed
  } else if (eager.kept + credits_of(data.size()) <= kEagerCredits && data.size() <= services_.eager_bytes() &&
             kept_.try_emplace(key, data.begin(), data.end()).second) {
    eager.kept += credits_of(data.size());
  }
}

void HostDestination::take(RecvMessage& message, std::span<const std::byte> data) {
  if (data.size() != message.bytes) {
    services_.fail(*message.operation, sizes_differ(message.key, message.key.source, data.size(), message.bytes));
    return;
  }
  // A message comes once, in a frame or in chunks: a source that sends both would have the first copy end an operation under the second.
  if (message.here || message.granted) return;
  message.here = true;
  ++message.copies;
  const std::uint64_t ticket = next_ticket_;
  next_ticket_ += 2;
  if (copier_.put(message.data, data, ticket))
    taken(message, true);
  else
    puts_.emplace(ticket, &message);
}

void HostDestination::taken(RecvMessage& message, bool made) {
  --message.copies;
  if (!made || message.over) return;
  message.arrived = message.chunks;
  finish(message);
}

void HostDestination::give_credit(std::uint32_t source, std::uint64_t bytes) {
  Eager& eager = eager_[source];
  eager.taken += credits_of(bytes);
  if (eager.taken - eager.told < kEagerCredits / 2) return;
  eager.told = eager.taken;
  services_.control().send(source, FrameType::credit, std::as_bytes(std::span(&eager.taken, 1)));
}

void HostDestination::on_ask(const Ask& ask) {
  if (RecvMessage* message = find(ask.message)) {
    if (!message->granted && !message->here) grant(*message);
  } else if (services_.state_of(ask.message) == MessageState::unposted) {
    asked_.insert(ask.message);
  }
}

void HostDestination::grant(RecvMessage& message) {
  Grant grant;
  grant.message = message.key;
  grant.bytes = message.bytes;
  grant.chunks = message.chunks;
  message.granted = true;
  if (message.key.source == services_.cluster().rank) {
    message.mapped = true;
    self_grant_(grant, message.data);
    return;
  }
  if (services_.cluster().local(message.key.source)) {
    message.keep = services_.registered(message.data, message.bytes, grant.memory, grant.offset);
    message.mapped = message.keep != nullptr;
    grant.has_buffer = message.mapped ? 1 : 0;
  }
  services_.control().send(message.key.source, FrameType::grant, std::as_bytes(std::span(&grant, 1)));
}

void HostDestination::on_record(const Record& record) {
  RecvMessage* message = find(record.message);
  const bool fits =
      message != nullptr && message->granted && record.chunk < message->chunks && record.length == length(*message, record.chunk);
  if (record.kind == RecordKind::placed) {
    if (fits && message->mapped && !has(message->bits, record.chunk)) arrive(*message, record.chunk);
    return;
  }
  if (!memory_.holds(record.owner, record.pool, record.slot, record.turn)) return;
  // A chunk that comes again while it is copied needs no second copy, which might be made when the buffer is the program's again.
  if (fits && !has(message->bits, record.chunk) && !has(message->copying, record.chunk))
    pull(*message, record);
  else
    memory_.release(record.owner, record.pool, record.slot, record.turn);
}

void HostDestination::pull(RecvMessage& message, const Record& record) {
  set(message.copying, record.chunk);
  ++message.copies;
  const Pull copy{&message, record};
  const std::uint64_t ticket = next_ticket_;
  next_ticket_ += 2;
  if (copier_.pull(message.data + std::uint64_t{record.chunk} * memory_.chunk_bytes(), memory_.data(record.owner, record.pool, record.slot),
                   record.length, ticket))
    pulled(copy, true);
  else
    pulls_.emplace(ticket, copy);
}

void HostDestination::on_copied(const Copier::Ended& copy) {
  if (const auto found = pulls_.extract(copy.ticket)) pulled(found.mapped(), copy.made);
  if (const auto found = puts_.extract(copy.ticket)) taken(*found.mapped(), copy.made);
}

void HostDestination::pulled(const Pull& pull, bool made) {
  RecvMessage& message = *pull.message;
  memory_.release(pull.record.owner, pull.record.pool, pull.record.slot, pull.record.turn);
  --message.copies;
  if (made && !message.over) arrive(message, pull.record.chunk);
}

void HostDestination::arrive(RecvMessage& message, std::uint32_t chunk) {
  set(message.bits, chunk);
  if (++message.arrived == message.chunks) finish(message);
}

void HostDestination::finish(RecvMessage& message) {
  message.over = true;
  messages_.erase(message.key);
  message.keep.reset();
  services_.message_over(*message.operation);
}

RecvMessage* HostDestination::find(const MessageKey& key) {
  const auto found = messages_.find(key);
  return found == messages_.end() ? nullptr : found->second;
}

void HostDestination::drop(Operation& operation) {
  for (RecvMessage& message : operation.recvs) {
    if (message.over) continue;
    message.over = true;
    if (messages_.erase(message.key) != 0) continue;
    // Refused before it was looked for: what has come for it is nobody's, and its source has the room for others.
    asked_.erase(message.key);
    if (const auto kept = kept_.extract(message.key)) let_go(message.key.source, kept.mapped().size());
  }
}

// Of a message that was kept.
void HostDestination::let_go(std::uint32_t source, std::uint64_t bytes) {
  eager_[source].kept -= credits_of(bytes);
  give_credit(source, bytes);
}

}  // namespace railweave::engine
