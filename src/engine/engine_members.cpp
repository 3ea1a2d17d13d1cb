// Leases, leaving and death (docs/protocol.md §12).
#include <poll.h>

#include <algorithm>

#include "engine.hpp"

namespace railweave::engine {
namespace {

// After the last reason to stay: answers still on their way into sockets get out.
constexpr std::uint64_t kLingerNs = 30'000'000;
// More than this between two ticks is not silence of others, but a stop of this process.
constexpr std::uint64_t kMaxSilencePerTickNs = 1'000'000'000;
// A rank that left after us has our lease_end before it or never; it may have gone before it could acknowledge.
constexpr std::uint64_t kLeaverGraceNs = 500'000'000;

}  // namespace

void Engine::tick(std::uint64_t now) {
  memory_->renew_lease(now);
  check_pids();
  check_leases(now);
  check_nodes(now);
  check_deaths(now);
  backend_->ask_late(now - settings_.resend_ms * 1'000'000);
  last_tick_ = now;
  next_tick_ = now + settings_.heartbeat_ms * 1'000'000;
}

void Engine::check_leases(std::uint64_t now) {
  bool changed = false, news = false;
  for (const std::uint32_t rank : cluster_.mates()) {
    if (rank == cluster_.rank) continue;
    Member& member = members_[rank];
    const std::uint64_t lease = memory_->lease(cluster_.ranks[rank].local);
    if (lease == kNoLease && member.state != RankState::dead) {
      on_dead(rank, "its engine has ended by an error of its own");
      news = true;
    }
    // A mate that has left keeps its slots readable and has nothing under way.
    const bool leased = member.state == RankState::leaving || now < lease + settings_.lease_ms * 1'000'000;
    changed = changed || leased != member.leased;
    member.leased = leased;
    memory_->set_shows_life(cluster_.ranks[rank].local, leased);
  }
  if (changed) backend_->retire_attempts();
  if (changed || news) tell_deaths();  // who was to tell them may be stopped
}

// A turn reads the rails before it ticks, so what came while the thread had no CPU has been heard; a stopped process resumes in the middle.
void Engine::check_nodes(std::uint64_t now) {
  const std::uint64_t elapsed = std::min(now - last_tick_, kMaxSilencePerTickNs);
  for (std::uint32_t node = 0; node < cluster_.nodes.size(); ++node) {
    if (node == cluster_.node()) continue;
    if (cut_off(node)) {
      lose(node);
      continue;
    }
    const std::uint64_t heard = memory_->last_heard(node);
    silent_ns_[node] = heard != heard_[node] ? 0 : silent_ns_[node] + elapsed;
    heard_[node] = heard;
    if (silent_ns_[node] < settings_.death_ms * 1'000'000) continue;
    for (const std::uint32_t rank : cluster_.nodes[node].ranks) {
      on_dead(rank, "its node has not answered on any link for " + std::to_string(settings_.death_ms) + " ms");
    }
  }
}

// Whether no frame can come from a node, or get there, ever again: of each two NICs that reach each other one has lost who drove it. A rank
// that leaves drives its NICs until it goes, but nobody connects to them again.
bool Engine::cut_off(std::uint32_t node) const {
  for (const std::uint32_t nic : cluster_.nodes[cluster_.node()].nics) {
    const RankState near = members_[cluster_.nics[nic].owner].state;
    for (const std::uint32_t peer : cluster_.nodes[node].nics) {
      const RankState far = members_[cluster_.nics[peer].owner].state;
      if (near == RankState::dead || far == RankState::dead || !router_->connected(nic, peer)) continue;
      if ((near == RankState::alive && far == RankState::alive) || (link_word(nic, peer) & 1) != 0) return false;
    }
  }
  return true;
}

// Those of its ranks that have neither left nor died are left behind like this one: what they say does not get here, their end included.
void Engine::lose(std::uint32_t node) {
  for (const std::uint32_t rank : cluster_.nodes[node].ranks) {
    Member& member = members_[rank];
    if (member.state == RankState::dead || member.dies_at != 0) continue;
    if (!member.left) {
      member.left = true;
      member.epitaph =
          "rank " + std::to_string(rank) + " cannot be reached any more: no NIC on the way to its node has a process behind it";
    }
    on_dead(rank, "");
  }
}

void Engine::check_pids() {
  bool news = false;
  for (const std::uint32_t rank : cluster_.mates()) {
    Member& member = members_[rank];
    if (!member.pidfd || member.state == RankState::dead) continue;
    pollfd entry{member.pidfd.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) continue;
    // Who has left has said so to everybody, but where that is lost for longer than it may wait only its mates can tell.
    news = news || member.state == RankState::alive || closing_since_ == 0;
    on_dead(rank, "its process (pid " + std::to_string(cluster_.ranks[rank].pid) + ") has ended");
  }
  if (news) tell_deaths();
}

// What the dead rank gave to rails before may be behind as much data as they queue, and the message of its death by another rail: its
// frames are taken until they would count as lost.
void Engine::on_death_told(std::uint32_t rank, std::uint32_t traits, const std::string& how) {
  Member& member = members_[rank];
  if (member.state == RankState::dead || member.dies_at != 0) return;
  if ((traits & kHadLeft) != 0 && !member.left) take_leave(rank);
  member.dies_at = now_ns() + settings_.resend_ms * 1'000'000;
  member.ended_well = (traits & kEndedWell) != 0;
  member.told = how;
  backend_->retire_attempts();  // it relays nothing from now on
}

void Engine::check_deaths(std::uint64_t now) {
  for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
    if (members_[rank].dies_at != 0 && now >= members_[rank].dies_at) on_dead(rank, members_[rank].told);
  }
}

std::optional<Failure> Engine::death() const {
  for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
    const Member& member = members_[rank];
    // Who had ended all its operations is no reason for others to fail.
    if (member.left || member.ended_well || (member.state != RankState::dead && member.dies_at == 0)) continue;
    return Failure{FailureKind::died, rank,
                   member.state == RankState::dead ? member.epitaph : "rank " + std::to_string(rank) + " has died: " + member.told};
  }
  return std::nullopt;
}

void Engine::on_dead(std::uint32_t rank, const std::string& how) {
  Member& member = members_[rank];
  if (member.state == RankState::dead) return;
  if (cluster_.local(rank)) {
    const std::uint32_t mate = cluster_.ranks[rank].local;
    // What it announced and wrote before is whole, and may say that it has left.
    while (drain_ring(mate, kRingRecords) || drain_mail(mate, now_ns())) {
    }
    memory_->reader_gone(mate);
    memory_->set_dead(mate);
    member.told = how;
    member.ended_well = memory_->ended_well(mate);
  } else {
    take_announced();  // it may have ended its sends: then all their chunks are there
  }
  member.state = RankState::dead;
  if (!member.left) member.epitaph = "rank " + std::to_string(rank) + " has died: " + how;
  if (member.ended_well) backend_->has_all(rank);
  control_->forget(rank);
  proxy_->abandon(rank, true);
  fail_operations_with(rank, member.left ? FailureKind::left : FailureKind::died, !member.left && !member.ended_well);
  backend_->retire_attempts();
}

// Ranks of other nodes cannot see processes here: the lowest live rank that shows life tells them all it knows, so that some hear twice. Of
// those that had left it says nothing when it closes itself: ranks mostly leave together.
void Engine::tell_deaths() {
  for (const std::uint32_t mate : cluster_.mates()) {
    if (members_[mate].state == RankState::alive && members_[mate].leased && mate < cluster_.rank) return;
  }
  for (const std::uint32_t mate : cluster_.mates()) {
    const Member& member = members_[mate];
    if (member.state != RankState::dead || (member.left && closing_since_ != 0)) continue;
    ByteWriter payload;
    payload.put(mate).put((member.ended_well ? kEndedWell : 0) | (member.left ? kHadLeft : 0)).text(member.told);
    for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
      if (!cluster_.local(rank) && members_[rank].state != RankState::dead) control_->send(rank, FrameType::dead, payload.bytes());
    }
  }
}

void Engine::on_leaving(std::uint32_t rank) {
  Member& member = members_[rank];
  if (member.state != RankState::alive) return;
  if (cluster_.local(rank)) {
    const std::uint32_t mate = cluster_.ranks[rank].local;
    while (drain_ring(mate, kRingRecords)) {
    }
    memory_->reader_gone(mate);  // its operations are over: nothing is for it any more
  } else {
    take_announced();  // its sends are over: all their chunks are there
  }
  member.state = RankState::leaving;
  take_leave(rank);
  proxy_->abandon(rank, false);
  backend_->has_all(rank);  // its receives are over, too, and it has cancelled those that failed
  fail_operations_with(rank, FailureKind::left, false);
}

void Engine::take_leave(std::uint32_t rank) {
  Member& member = members_[rank];
  member.left = true;
  member.left_first = leaving_since_ == 0;
  member.epitaph = "rank " + std::to_string(rank) + " has left: it has closed its exchange";
}

void Engine::fail_operations_with(std::uint32_t rank, FailureKind kind, bool collectives) {
  for (const OperationPtr& operation : operations_) {
    // Whoever is gone will not answer, and will not write either.
    std::erase_if(operation->revoking, [rank](const MessageKey& key) { return key.source == rank; });
    if (operation->unfinished == 0 || operation->phase == OperationPhase::failing) continue;
    if ((collectives && operation->collective) || involves(*operation, rank, true)) fail(*operation, {kind, rank, members_[rank].epitaph});
  }
}

void Engine::advance_closing(std::uint64_t now) {
  const std::uint64_t drain = settings_.drain_ms * 1'000'000;
  if (closing_since_ == 0) {
    closing_since_ = carried_at_ = now;
    for (std::uint32_t mate = 0; mate < memory_->mates(); ++mate) posted_before_.push_back(memory_->posted(mate));
  }
  if (!proxy_->idle()) carried_at_ = now;
  if (leaving_since_ == 0) {
    if (!operations_.empty() && now - closing_since_ < drain) return;
    for (const OperationPtr& operation : operations_) {
      fail(*operation, {FailureKind::closed, cluster_.rank,
                        "rank " + std::to_string(cluster_.rank) + " closed its exchange with this operation unfinished after " +
                            std::to_string(settings_.drain_ms) + " ms"});
    }
    settle(now);
    if (!operations_.empty() && now - closing_since_ < 2 * drain) return;
    if (is_needed(now)) return;
    check_pids();  // others hear of a death before they hear that ranks leave because of it
    leaving_since_ = now;
    memory_->set_leaving();
    for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
      if (rank != cluster_.rank) control_->send(rank, FrameType::lease_end, {});
    }
  }
  if (!may_exit(now)) {
    may_exit_since_ = 0;
    return;
  }
  if (may_exit_since_ == 0) may_exit_since_ = now;
  stopped_ = cluster_.nodes.size() == 1 || now - may_exit_since_ >= kLingerNs;
}

// For mates on whose way to another node there may be no other NICs than this rank's: until what they had posted when it began to close has
// ended. Ranks of other nodes have mates there that see it likewise, and one such NIC at either end is a way. What a mate waits for may be
// something else, so where these NICs carry nothing it is not waited for longer than drain_ms.
bool Engine::is_needed(std::uint64_t now) const {
  if (cluster_.nodes.size() == 1 || cluster_.self().nics.empty() || leaves_at_once_.load()) return false;
  if (now - carried_at_ >= settings_.drain_ms * 1'000'000) return false;
  for (std::uint32_t mate = 0; mate < memory_->mates(); ++mate) {
    if (mate == memory_->self() || members_[cluster_.mates()[mate]].state != RankState::alive) continue;
    if (!memory_->ended_first(mate, posted_before_[mate])) return true;
  }
  return false;
}

bool Engine::may_exit(std::uint64_t now) {
  if (now - leaving_since_ >= settings_.drain_ms * 1'000'000) return true;
  if (!proxy_->idle() || !memory_->all_announced()) return false;
  for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
    const Member& member = members_[rank];
    if (rank == cluster_.rank || member.state == RankState::dead || control_->settled(rank)) continue;
    if (member.state == RankState::leaving && (member.left_first || now - leaving_since_ >= kLeaverGraceNs)) continue;
    return false;
  }
  return true;
}

}  // namespace railweave::engine
