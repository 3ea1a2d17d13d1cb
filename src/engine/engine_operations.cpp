// How operations start, wait for rows, fail and end.
#include <algorithm>
#include <functional>

#include "engine.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::engine {
namespace {

// Of the time the bytes take on one rail. 2x4 lab, 400 Mbit/s, a layer such as that of benchmarks/engine/layer.py, zipf:1.0: 945 ms an
// iteration with an eighth, 928 with at most 5 ms, which is a 32nd there, 922 without.
constexpr double kRowWaitPart = 32;
constexpr double kMaxRowWaitSeconds = 10;  // the setting's own limit
constexpr double kMaxRowLifeSeconds = 60;  // of a row for which no rate is known
// How often a running operation is planned again: not between every two turns, and not so that plans, which take up to 80 ms (1,024 GPUs),
// take more than an eighth of the time.
constexpr std::uint64_t kPlanAgainNs = 20'000;
constexpr double kPlanAgainPlans = 8;

}  // namespace

std::exception_ptr to_exception(const Failure& failure) {
  if (failure.kind == FailureKind::died || failure.kind == FailureKind::left)
    return std::make_exception_ptr(RankDied(failure.rank, failure.text));
  return std::make_exception_ptr(ExchangeError(failure.text));
}

Failure sizes_differ(const MessageKey& message, std::uint32_t peer, std::uint64_t sent, std::uint64_t expected) {
  return {FailureKind::size_mismatch, peer,
          "message " + std::to_string(message.number) + " from rank " + std::to_string(message.source) + " to rank " +
              std::to_string(message.destination) + " on communicator " + std::to_string(message.communicator) + ": the sender has " +
              std::to_string(sent) + " bytes, the receiver " + std::to_string(expected) + "; expected the same"};
}

void Engine::post(const std::shared_ptr<Operation>& operation) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw ExchangeError(why_closed_);
    Numbers& numbers = numbers_[operation->communicator];
    numbers.sends.resize(cluster_.world);
    numbers.recvs.resize(cluster_.world);
    operation->serial = ++serial_;
    if (operation->collective) ++numbers.collectives;
    operation->number = numbers.collectives;
    for (SendMessage& message : operation->sends) message.key.number = ++numbers.sends[message.key.destination];
    for (RecvMessage& message : operation->recvs) message.key.number = ++numbers.recvs[message.key.source];
    operation->posted_with.resize(cluster_.world);
    std::transform(numbers.sends.begin(), numbers.sends.end(), numbers.recvs.begin(), operation->posted_with.begin(), std::plus<>());
    operation->posted_at = now_ns();
    memory_->operation_posted();
    posted_.push_back(operation);
  }
  memory_->wake(memory_->self());
}

void Engine::take_posted(std::uint64_t now) {
  {
    const std::lock_guard lock(mutex_);
    taking_.swap(posted_);
  }
  taken_ += taking_.size();
  for (const OperationPtr& operation : taking_) start(operation, now);
  taking_.clear();
}

bool Engine::involves(const Operation& operation, std::uint32_t rank, bool unfinished_only) const {
  const auto with = [&](std::uint32_t peer, bool done) { return peer == rank && !(unfinished_only && done); };
  // Nor is that unfinished which only waits for copies of this rank's own.
  const auto to = [&](const SendMessage& m) { return with(m.key.destination, m.over || (m.done == m.chunks.size() && m.copies != 0)); };
  const auto from = [&](const RecvMessage& m) { return with(m.key.source, m.over || m.here || m.arrived + m.copies == m.chunks); };
  return std::any_of(operation.sends.begin(), operation.sends.end(), to) ||
         std::any_of(operation.recvs.begin(), operation.recvs.end(), from);
}

// Something must still be sent to that rank, or come from it.
bool Engine::needs(const Operation& operation, std::uint32_t rank) const {
  const auto to = [rank](const SendMessage& message) { return message.key.destination == rank; };
  const auto from = [&](const RecvMessage& message) { return message.key.source == rank && !backend_->has_come(message.key); };
  return std::any_of(operation.sends.begin(), operation.sends.end(), to) ||
         std::any_of(operation.recvs.begin(), operation.recvs.end(), from);
}

// Why an operation cannot even start.
std::optional<Failure> Engine::refusal(const Operation& operation) const {
  // First, as this is the cause for which the other rank may have left.
  const auto& [receives, sends] = cancelled_early_;
  for (const SendMessage& message : operation.sends) {
    if (const auto found = sends.find(message.key); found != sends.end()) return found->second;
  }
  for (const RecvMessage& message : operation.recvs) {
    if (const auto found = receives.find(message.key); found != receives.end()) return found->second;
  }
  for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
    const Member& member = members_[rank];
    if (member.state == RankState::alive) continue;
    // A rank that is gone may have ended this operation before, if its bytes are here and it needs none. A collective that has no bytes of
    // a dead rank at all says nothing of that kind: it fails, or some ranks would never hear of the death.
    const bool took_part = involves(operation, rank, false);
    if (needs(operation, rank) || (operation.collective && !member.left && !took_part)) {
      return Failure{member.left ? FailureKind::left : FailureKind::died, rank, member.epitaph};
    }
  }
  return std::nullopt;
}

void Engine::start(const OperationPtr& operation, std::uint64_t now) {
  operations_.push_back(operation);
  operation->unfinished = operation->sends.size() + operation->recvs.size();
  OperationReport& report = operation->report;
  report.serial = operation->serial;
  report.bytes_by_nic.assign(cluster_.nodes[cluster_.node()].nics.size(), 0);
  bool far = operation->collective && cluster_.nodes.size() > 1;
  Reach large = Reach::nobody;  // of messages that wait for a grant
  std::uint64_t far_bytes = 0;
  for (SendMessage& message : operation->sends) {
    message.operation = operation.get();
    if (message.key.destination == cluster_.rank) continue;
    report.bytes_sent += message.bytes;
    const bool remote = !cluster_.local(message.key.destination);
    far = far || remote;
    if (message.bytes > settings_.eager_bytes) large = std::max(large, remote ? Reach::nodes : Reach::mates);
    if (remote) far_bytes += message.bytes;
  }
  for (RecvMessage& message : operation->recvs) {
    message.operation = operation.get();
    if (message.key.source == cluster_.rank) continue;
    report.bytes_received += message.bytes;
    const bool remote = !cluster_.local(message.key.source);
    far = far || remote;
    if (message.bytes > settings_.eager_bytes) large = std::max(large, remote ? Reach::nodes : Reach::mates);
  }
  if (const auto failure = refusal(*operation)) {
    fail(*operation, *failure);
    if (operation->unfinished == 0) operation->phase = OperationPhase::failing;
    return;
  }
  backend_->start(*operation);
  // Nobody waits for the row of a group's rank that has only small messages with him; a mate cannot know that it has none with other nodes.
  if (router_->wants_rows()) publish_row(*operation, operation->collective ? Reach::nodes : large);
  const bool plans = router_->wants_rows() ? far_bytes > settings_.chunk_bytes : far;
  if (!plans) {
    operation->phase = OperationPhase::running;
    backend_->send(*operation);
    return;
  }
  operation->phase = OperationPhase::rows;
  operation->rows_until = now + (router_->wants_rows() ? row_wait_ns(far_bytes) : 0);
}

// Waiting for a better plan must not cost more than the plan can gain: a rank on fast rails has little to wait for.
std::uint64_t Engine::row_wait_ns(std::uint64_t bytes) const {
  const double worth = router_->seconds_on_one_rail(bytes) / kRowWaitPart;
  return std::min(settings_.row_wait_us, static_cast<std::uint64_t>(std::min(worth, kMaxRowWaitSeconds) * 1e6)) * 1000;
}

// What this rank sends, by destination.
std::vector<std::uint64_t> Engine::row_of(const Operation& operation) const {
  std::vector<std::uint64_t> bytes(cluster_.world, 0);
  for (const SendMessage& message : operation.sends) bytes[message.key.destination] += message.bytes;
  return bytes;
}

void Engine::publish_row(const Operation& operation, Reach reach) {
  if (reach == Reach::nobody || cluster_.nodes.size() == 1) return;
  const std::vector<std::uint64_t> bytes = row_of(operation);
  memory_->write_row(cluster_.rank, {operation.serial, operation.communicator, operation.number, 0}, bytes, operation.posted_with);
  memory_->wake_mates();
  if (reach == Reach::mates) return;
  ByteWriter payload;
  payload.put(operation.serial).put(std::uint64_t{operation.communicator}).put(operation.number);
  for (const std::uint64_t value : bytes) payload.put(value);
  for (const std::uint64_t value : operation.posted_with) payload.put(value);
  for (std::uint32_t node = 0; node < cluster_.nodes.size(); ++node) {
    if (node == cluster_.node()) continue;
    // The rank at the same position, so that each rank of a node takes its part; the next one if that is gone.
    const auto& ranks = cluster_.nodes[node].ranks;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const std::uint32_t rank = ranks[(cluster_.self().local + i) % ranks.size()];
      if (members_[rank].state != RankState::alive) continue;
      control_->send(rank, FrameType::row, payload.bytes());
      break;
    }
  }
}

void Engine::on_row(std::uint32_t source, ByteReader& payload) {
  NodeMemory::RowTag tag;
  tag.serial = payload.get<std::uint64_t>();
  tag.communicator = payload.get<std::uint64_t>();
  tag.operation = payload.get<std::uint64_t>();
  std::vector<std::uint64_t> bytes(cluster_.world), messages(cluster_.world);
  for (std::uint64_t& value : bytes) value = payload.get<std::uint64_t>();
  for (std::uint64_t& value : messages) value = payload.get<std::uint64_t>();
  if (!payload.ok() || cluster_.local(source)) return;
  memory_->write_row(source, tag, bytes, messages);
  memory_->wake_mates();
}

// A message with it that waits for a grant.
bool Engine::trades(const Operation& operation, std::uint32_t rank) const {
  const auto with = [&](const auto& message, std::uint32_t peer) { return peer == rank && message.bytes > settings_.eager_bytes; };
  return std::any_of(operation.sends.begin(), operation.sends.end(), [&](const SendMessage& m) { return with(m, m.key.destination); }) ||
         std::any_of(operation.recvs.begin(), operation.recvs.end(), [&](const RecvMessage& m) { return with(m, m.key.source); });
}

// Of the ranks that take part, those whose newest row is of an earlier operation than this one. Groups are counted only by who takes part
// in them, so what two ranks have in common there is the messages between them, and what all have in common is the collectives.
std::uint32_t Engine::rows_missing(const Operation& operation) const {
  std::uint32_t missing = 0;
  for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
    if (rank == cluster_.rank || members_[rank].state != RankState::alive) continue;
    if (!operation.collective && !trades(operation, rank)) continue;
    const auto tag = memory_->read_row(rank, {});
    const bool late = !tag || tag->communicator != operation.communicator ||
                      (operation.collective ? tag->operation < operation.number : tag->messages < operation.posted_with[rank]);
    if (late) ++missing;
  }
  return missing;
}

void Engine::advance_rows(std::uint64_t now) {
  for (const OperationPtr& operation : operations_) {
    OperationReport& report = operation->report;
    if (operation->phase == OperationPhase::rows) {
      if (router_->wants_rows()) report.rows_missing = rows_missing(*operation);
      if (report.rows_missing == 0 || now >= operation->rows_until) start_sends(*operation, now);
    } else if (operation->phase == OperationPhase::running && router_->wants_rows() && operation->planned_epoch &&
               now >= operation->rows_until && (report.rows_missing != 0 || operation->planned_epoch != router_->epoch())) {
      plan_again(*operation, now);
    }
  }
}

// Rows that come while the operation runs: the ranks that came so late know the rows of all, and plan as if this one knew theirs. And rails
// that are found slow, lost, or come back: what was planned for a slow one would hold the operation up.
void Engine::plan_again(Operation& operation, std::uint64_t now) {
  operation.rows_until = now + kPlanAgainNs;
  const auto over = [](const SendMessage& message) { return message.over; };
  if (std::all_of(operation.sends.begin(), operation.sends.end(), over)) return;
  const std::uint64_t missing = std::min<std::uint64_t>(operation.report.rows_missing, rows_missing(operation));
  if (missing == operation.report.rows_missing && operation.planned_epoch == router_->epoch()) return;
  operation.report.rows_missing = missing;
  plan(operation, now);
  // Of many ranks, rows may come one by one.
  operation.rows_until += static_cast<std::uint64_t>(operation.report.plan_seconds * kPlanAgainPlans * 1e9);
}

// Nobody says when a group that this rank took no part in is over. Longer than its bytes to other nodes take on one rail it does not last,
// unless it shares its rails.
std::uint64_t Engine::lifetime_ns(std::uint32_t rank, std::span<const std::uint64_t> row) const {
  std::uint64_t far = 0;
  for (std::uint32_t to = 0; to < cluster_.world; ++to) {
    if (cluster_.ranks[to].node != cluster_.ranks[rank].node) far += row[to];
  }
  return static_cast<std::uint64_t>(std::min(router_->seconds_on_one_rail(far), kMaxRowLifeSeconds) * 1e9);
}

void Engine::start_sends(Operation& operation, std::uint64_t now) {
  operation.phase = OperationPhase::running;
  if (router_->wants_rows()) {
    // Posted by the program's thread, perhaps after this turn's clock was read.
    operation.report.row_wait_seconds = static_cast<double>(now - std::min(now, operation.posted_at)) * 1e-9;
    RowHistory& history = histories_.try_emplace(operation.communicator, cluster_.world).first->second;
    history.begin_plan(row_of(operation));
    operation.repeating.assign(cluster_.world, false);
    for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
      const auto tag = memory_->read_row(rank, {});
      if (rank != cluster_.rank && tag && tag->communicator == operation.communicator)
        operation.repeating[rank] = history.repeats(rank, tag->serial);
    }
  }
  plan(operation, now);
  backend_->send(operation);
}

void Engine::plan(Operation& operation, std::uint64_t now) {
  std::vector<std::vector<std::uint64_t>> rows(cluster_.world, std::vector<std::uint64_t>(cluster_.world, 0));
  rows[cluster_.rank] = row_of(operation);
  for (std::uint32_t rank = 0; rank < cluster_.world && router_->wants_rows(); ++rank) {
    if (rank == cluster_.rank || members_[rank].state == RankState::dead) continue;
    const auto tag = memory_->read_row(rank, rows[rank]);
    // A rank of this operation whose row is late: what it sent last stands for it. Where one rank plans for both and the other for itself
    // alone, one rail gets the bytes that the other is to have.
    const bool counts =
        tag && tag->communicator == operation.communicator &&
        (operation.collective || trades(operation, rank) || operation.repeating[rank] || now < tag->at + lifetime_ns(rank, rows[rank]));
    if (!counts) rows[rank].assign(cluster_.world, 0);
  }
  const std::uint64_t before = now_ns();
  operation.planned_epoch = router_->epoch();
  try {
    std::unordered_map<std::uint32_t, Routes> routes;
    const Router::Summary summary = router_->plan(rows, routes);
    operation.report.plan_id = summary.id;
    operation.report.plan_z_seconds = summary.z_seconds;
    for (auto& [destination, planned] : routes) operation.routes[destination].follow(std::move(planned));
  } catch (const Error&) {
    // Rows that cannot be planned, or no way just now: the plan before, or links that live, will do.
  }
  operation.report.plan_seconds += static_cast<double>(now_ns() - before) * 1e-9;
}

void Engine::message_over(Operation& operation) { --operation.unfinished; }

void Engine::fail(Operation& operation, const Failure& failure) {
  if (operation.failure.kind == FailureKind::none) operation.failure = failure;
}

// Nobody may touch the buffers once the program has the error: what mates can write is called back first.
void Engine::begin_failing(Operation& operation, std::uint64_t now) {
  operation.phase = OperationPhase::failing;
  operation.fail_until = now + settings_.drain_ms * 1'000'000;
  const auto tell = [&](const MessageKey& key, std::uint32_t peer) {
    if (members_[peer].state != RankState::alive) return false;
    ByteWriter payload;
    payload.put(key).put(operation.failure.kind).put(operation.failure.rank).text(operation.failure.text);
    control_->send(peer, FrameType::cancel, payload.bytes());
    return true;
  };
  for (const SendMessage& message : operation.sends) {
    if (message.over) continue;
    if (message.key.destination == cluster_.rank)
      tell_itself(operation, message.key, false, now);
    else
      tell(message.key, message.key.destination);
  }
  for (const RecvMessage& message : operation.recvs) {
    if (message.over) continue;
    const bool writes = message.key.source == cluster_.rank ? tell_itself(operation, message.key, true, now)
                                                            : tell(message.key, message.key.source) && message.mapped;
    if (writes) operation.revoking.push_back(message.key);
  }
  backend_->drop(operation);
}

// The other side of a message to this rank itself, its send or its receive: whether it is in another operation, which fails as well, now.
bool Engine::tell_itself(const Operation& operation, const MessageKey& key, bool sends, std::uint64_t now) {
  Operation* const other = unfinished_with(key, sends);
  if (other == nullptr) {
    if (state_of(key, sends) == MessageState::unposted) cancelled_early_[sends ? 1 : 0][key] = operation.failure;
    return false;
  }
  if (other == &operation) return false;
  fail(*other, operation.failure);
  if (other->phase != OperationPhase::failing) begin_failing(*other, now);
  return true;
}

// The operation in which the message's send, or receive, is not over here; the backend need not know its sends yet.
Operation* Engine::unfinished_with(const MessageKey& key, bool sends) const {
  const auto is = [&key](const auto& message) { return message.key == key && !message.over; };
  for (const OperationPtr& operation : operations_) {
    const bool here = sends ? std::any_of(operation->sends.begin(), operation->sends.end(), is)
                            : std::any_of(operation->recvs.begin(), operation->recvs.end(), is);
    if (here) return operation.get();
  }
  return nullptr;
}

MessageState Engine::state_of(const MessageKey& key, bool sends) const {
  if (unfinished_with(key, sends) != nullptr) return MessageState::unfinished;
  const std::lock_guard lock(mutex_);
  const auto numbers = numbers_.find(key.communicator);
  if (numbers == numbers_.end()) return MessageState::unposted;
  const auto& counts = sends ? numbers->second.sends : numbers->second.recvs;
  const std::uint32_t peer = sends ? key.destination : key.source;
  std::uint64_t posted = peer < counts.size() ? counts[peer] : 0;
  const auto same = [&](const auto& message) {
    return message.key.communicator == key.communicator && message.key.source == key.source && message.key.destination == key.destination;
  };
  for (const OperationPtr& waiting : posted_) {  // numbered, but not seen by this thread yet
    posted -= static_cast<std::uint64_t>(sends ? std::count_if(waiting->sends.begin(), waiting->sends.end(), same)
                                               : std::count_if(waiting->recvs.begin(), waiting->recvs.end(), same));
  }
  return key.number > posted ? MessageState::unposted : MessageState::over;
}

void Engine::on_cancel(std::uint32_t source, ByteReader& payload) {
  const auto key = payload.get<MessageKey>();
  Failure failure;
  failure.kind = payload.get<FailureKind>();
  failure.rank = payload.get<std::uint32_t>();
  failure.text = payload.text();
  const bool sends = key.source == cluster_.rank && key.destination == source;
  const bool receives = key.destination == cluster_.rank && key.source == source;
  if (!payload.ok() || (!sends && !receives) || failure.kind == FailureKind::none || failure.kind > FailureKind::closed) return;
  if (Operation* operation = unfinished_with(key, sends)) {
    fail(*operation, failure);
    if (operation->phase != OperationPhase::failing) begin_failing(*operation, now_ns());
  } else {
    if (state_of(key, sends) == MessageState::unposted) cancelled_early_[sends ? 1 : 0][key] = failure;
  }
  ByteWriter answer;
  answer.put(key);
  control_->send(source, FrameType::cancelled, answer.bytes());
}

void Engine::on_cancelled(std::uint32_t source, ByteReader& payload) {
  const auto key = payload.get<MessageKey>();
  if (!payload.ok() || (key.source != source && key.destination != source)) return;
  for (const OperationPtr& operation : operations_) std::erase(operation->revoking, key);
}

void Engine::end(const OperationPtr& operation) {
  operation->phase = OperationPhase::ended;
  operation->report.seconds = static_cast<double>(now_ns() - operation->posted_at) * 1e-9;
  for (RecvMessage& message : operation->recvs) message.keep.reset();
  auto& [receives, sends] = cancelled_early_;
  for (const SendMessage& message : operation->sends) {
    sends.erase(message.key);
    if (message.key.destination != cluster_.rank) continue;
    for (const OperationPtr& other : operations_) std::erase(other->revoking, message.key);
  }
  for (const RecvMessage& message : operation->recvs) receives.erase(message.key);
  end_for_program(*operation);
  backend_->on_end(*operation);
}

void Engine::end_for_program(Operation& operation) {
  memory_->operation_ended(operation.failure.kind != FailureKind::none);
  {
    const std::lock_guard lock(operation.mutex);
    operation.ended = true;
  }
  operation.changed.notify_all();
}

}  // namespace railweave::engine
