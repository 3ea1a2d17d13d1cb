// The engine thread.
#include "engine.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <limits>
#include <new>
#include <thread>

#include "cpu_wait.hpp"
#include "railweave/engine/error.hpp"
#include "socket_transport.hpp"

namespace railweave::engine {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
// A gap between turns beyond this was the scheduler's (or a debugger's): answers may be waiting unread, so silence is not the peer's.
constexpr std::uint64_t kStallNs = 50'000'000;
constexpr std::size_t kRecordsPerTurn = 16;         // of one mate, before the others and the rails have their turn
constexpr std::size_t kMaxMapped = 256;             // mates' buffers kept mapped
constexpr const char* kNoMemory = "out of memory";  // so short that a string of it takes none

std::uint64_t memory_of_machine() {
  struct sysinfo machine {};
  if (::sysinfo(&machine) != 0) return std::numeric_limits<std::uint64_t>::max();
  return (std::uint64_t{machine.totalram} + machine.totalswap) * machine.mem_unit;
}

}  // namespace

void Engine::run(std::future<bool> runs) {
  ::pthread_setname_np(::pthread_self(), "rw-engine");  // for top and profilers
  // Signals are the program's; a doorbell whose reader has gone must not kill it with SIGPIPE.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  if (!runs.get()) return;
  try {
    serve();
  } catch (const std::bad_alloc&) {
    break_down(kNoMemory);
  } catch (const std::exception& error) {
    break_down(error.what());
  }
}

void Engine::serve() {
  if (!memory_->moved_nic_slots(memory_->self()).empty()) slots_->enter();
  const std::uint64_t start = now_ns();
  for (std::uint32_t node = 0; node < cluster_.nodes.size(); ++node) memory_->hear(node, start);
  last_turn_ = last_tick_ = start;
  std::uint64_t idle_since = 0;
  while (!stopped_) {
    const std::uint64_t now = now_ns();
    if (now - last_turn_ > kStallNs) proxy_->excuse(now - last_turn_);
    const bool moved = turn(now);
    last_turn_ = now_ns();
    if (moved) {
      idle_since = 0;
      add_work(last_turn_ - now);
      continue;
    }
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < std::max(settings_.spin_us * 1000, backend_->spin_ns())) {
      std::this_thread::yield();
      continue;
    }
    if (sleep()) idle_since = 0;
    last_turn_ = now_ns();
  }
  put_links_down();
}

// What mates that are threads of this process go by: they see no process end.
void Engine::put_links_down() {
  for (std::uint32_t own = 0; own < cluster_.self().nics.size(); ++own) {
    for (std::uint32_t peer = 0; peer < cluster_.nics.size(); ++peer) {
      const std::uint64_t word = memory_->link_word(memory_->self(), own, peer);
      if ((word & 1) != 0) memory_->set_link_word(own, peer, ((word >> 1) + 1) << 1);
    }
  }
}

// A turn without memory may end anywhere, so there is no next one. For others this rank has died: its mates see that, and tell other nodes.
// Its program hears of it when nobody writes into its buffers any more.
void Engine::break_down(const char* why) noexcept {
  put_links_down();
  memory_->end_lease();
  Failure failure{FailureKind::closed, cluster_.rank, {}};
  // There may be no memory for a text either, or for one more copy.
  const auto tell = [&failure](const auto& teller) {
    try {
      teller();
    } catch (const std::bad_alloc&) {
      failure.text = kNoMemory;
      teller();
    }
  };
  tell([&] {
    if (failure.text.empty()) failure.text = "the engine of rank " + std::to_string(failure.rank) + " has ended: " + why;
  });
  std::vector<OperationPtr> posted;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    tell([&] { why_closed_ = failure.text; });
    posted.swap(posted_);
  }
  const auto may_be_written = [](const OperationPtr& operation) {
    return std::any_of(operation->recvs.begin(), operation->recvs.end(), [](const RecvMessage& receive) { return receive.mapped; });
  };
  if (std::any_of(operations_.begin(), operations_.end(), may_be_written))
    std::this_thread::sleep_for(std::chrono::milliseconds(settings_.drain_ms));
  tell([&] { backend_->on_break_down(failure); });
  for (const std::vector<OperationPtr>* operations : {&operations_, &taking_, &posted}) {
    for (const OperationPtr& operation : *operations) {
      if (operation->ended) continue;
      if (operation->failure.kind == FailureKind::none) tell([&] { operation->failure = failure; });
      end_for_program(*operation);
    }
  }
}

bool Engine::turn(std::uint64_t now) {
  if (is_asked_.load()) answer_asked();
  take_posted(now);
  bool moved = read_rings();  // pulls first: they free what others wait for
  moved = read_mail(now) || moved;
  moved = proxy_->advance(now) || moved;
  notice_links(now);
  advance_rows(now);
  moved = backend_->advance() || moved;
  take_posted(now);  // by the backend, just now: a turn is half of what a small message takes a thread
  moved = memory_->flush_backlog() || moved;
  moved = control_->flush(now) || moved;
  if (now >= next_tick_) tick(now);
  if (close_requested_.load()) {
    take_posted(now);  // the last, posted since this turn began: nothing is posted after the request
    advance_closing(now);
  }
  settle(now);
  proxy_->flush();
  return moved;
}

std::uint64_t Engine::next_deadline() const {
  std::uint64_t deadline = std::min({next_tick_, proxy_->next_deadline(), control_->next_deadline(), backend_->next_look(last_turn_)});
  for (const OperationPtr& operation : operations_) {
    if (operation->phase == OperationPhase::rows) deadline = std::min(deadline, operation->rows_until);
    if (operation->phase == OperationPhase::failing) deadline = std::min(deadline, operation->fail_until);
  }
  if (close_requested_.load()) deadline = std::min(deadline, last_turn_ + 5'000'000);
  return deadline;
}

// True if there was work after all.
bool Engine::sleep() {
  memory_->prepare_sleep();
  // A whole turn is the one look that misses nothing any role waits for: rings, mail and its room, freed slots, link words, rows, posts.
  const bool work = turn(now_ns());
  if (!work && !stopped_ && proxy_->arm()) {
    std::vector<pollfd> fds{{memory_->wait_fd(), POLLIN, 0}};
    for (const int fd : proxy_->event_fds()) fds.push_back({fd, POLLIN, 0});
    for (const std::uint32_t rank : cluster_.mates()) {
      if (members_[rank].pidfd && members_[rank].state != RankState::dead) fds.push_back({members_[rank].pidfd.get(), POLLIN, 0});
    }
    const std::uint64_t now = now_ns();
    const std::uint64_t deadline = next_deadline();
    const std::uint64_t wait = deadline == kNever ? 1'000'000'000 : deadline > now ? deadline - now : 0;
    const timespec limit{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
    ::ppoll(fds.data(), fds.size(), &limit, nullptr);
  }
  memory_->end_sleep();
  check_pids();
  return work;
}

bool Engine::drain_ring(std::uint32_t mate, std::size_t most) {
  Record record;
  std::size_t taken = 0;
  while (taken < most && memory_->next(mate, record)) {
    ++taken;
    if (record.kind == RecordKind::forward)
      proxy_->forward(record);
    else
      backend_->on_record(record);
  }
  return taken != 0;
}

bool Engine::read_rings() {
  bool moved = false;
  for (std::uint32_t mate = 0; mate < memory_->mates(); ++mate) moved = drain_ring(mate, kRecordsPerTurn) || moved;
  return moved;
}

// A ring holds no more: all that was announced before now.
void Engine::take_announced() {
  for (std::uint32_t mate = 0; mate < memory_->mates(); ++mate) drain_ring(mate, kRingRecords);
}

bool Engine::drain_mail(std::uint32_t mate, std::uint64_t now) {
  std::vector<std::byte> frame;
  std::size_t taken = 0;
  for (; taken < kRecordsPerTurn && memory_->next_mail(mate, frame); ++taken) control_->receive(frame, now);
  return taken != 0;
}

bool Engine::read_mail(std::uint64_t now) {
  bool moved = false;
  for (std::uint32_t mate = 0; mate < memory_->mates(); ++mate) moved = drain_mail(mate, now) || moved;
  return moved;
}

void Engine::on_frame(std::uint32_t source, FrameType type, ByteReader& payload) {
  switch (type) {
    case FrameType::grant: {
      const auto grant = payload.get<Grant>();
      if (payload.ok() && grant.message.source == cluster_.rank && grant.message.destination == source) backend_->on_grant(grant);
      break;
    }
    case FrameType::eager: {
      const auto key = payload.get<MessageKey>();
      if (payload.ok() && key.source == source && key.destination == cluster_.rank) backend_->on_eager(key, payload.rest());
      break;
    }
    case FrameType::ask: {
      const auto ask = payload.get<Ask>();
      if (payload.ok() && ask.message.source == source && ask.message.destination == cluster_.rank) backend_->on_ask(ask);
      break;
    }
    case FrameType::credit: {
      const auto taken = payload.get<std::uint64_t>();
      if (payload.ok()) backend_->on_credit(source, taken);
      break;
    }
    case FrameType::cancel: on_cancel(source, payload); break;
    case FrameType::cancelled: on_cancelled(source, payload); break;
    case FrameType::row: on_row(source, payload); break;
    case FrameType::link: {
      const auto nic = payload.get<std::uint32_t>();
      const auto peer = payload.get<std::uint32_t>();
      const auto rate = payload.get<std::uint64_t>();
      const auto nics = cluster_.nics.size();
      if (payload.ok() && nic < nics && peer < nics && router_->connected(nic, peer)) router_->set_rate(nic, peer, rate);
      break;
    }
    case FrameType::lease_end: on_leaving(source); break;
    case FrameType::dead: {
      const auto rank = payload.get<std::uint32_t>();
      const auto traits = payload.get<std::uint32_t>();
      const std::string how = payload.text();
      // Only a mate of the dead can know.
      if (payload.ok() && rank < cluster_.world && !cluster_.local(rank) && cluster_.ranks[rank].node == cluster_.ranks[source].node) {
        on_death_told(rank, traits, how);
      }
      break;
    }
    case FrameType::ack_only: break;
  }
}

// Words of this node's links, and rates measured on this rank's.
void Engine::notice_links(std::uint64_t now) {
  for (const RailProxy::Rate& rate : proxy_->take_rates(now)) {
    const std::uint64_t Bps = rate.Bps ? *rate.Bps : router_->rate_to_try(rate.nic, rate.peer);
    if (!router_->set_rate(rate.nic, rate.peer, Bps)) continue;
    ByteWriter payload;
    payload.put(rate.nic).put(rate.peer).put(Bps);
    for (std::uint32_t rank = 0; rank < cluster_.world; ++rank) {
      if (rank != cluster_.rank) control_->send(rank, FrameType::link, payload.bytes());
    }
  }
  const std::uint64_t changes = memory_->link_changes();
  if (changes == seen_link_changes_) return;
  seen_link_changes_ = changes;
  links_settled_.store(proxy_->all_links_up());
  control_->links_changed();
  backend_->retire_attempts();
  // A NIC is down when all its links are; a remote one only if this node still hears others, else the fault is here.
  std::vector<bool> any_up(cluster_.nics.size(), false), any_link(cluster_.nics.size(), false);
  for (const std::uint32_t nic : cluster_.nodes[cluster_.node()].nics) {
    for (std::uint32_t peer = 0; peer < cluster_.nics.size(); ++peer) {
      if (!router_->connected(nic, peer)) continue;
      const bool up = (link_word(nic, peer) & 1) != 0;
      any_link[nic] = any_link[peer] = true;
      any_up[nic] = any_up[nic] || up;
      any_up[peer] = any_up[peer] || up;
    }
  }
  for (std::uint32_t nic = 0; nic < cluster_.nics.size(); ++nic) {
    if (any_link[nic]) router_->set_nic_down(nic, !any_up[nic]);
  }
}

void Engine::settle(std::uint64_t now) {
  for (std::size_t i = 0; i < operations_.size();) {
    const OperationPtr operation = operations_[i];
    const bool failed = operation->failure.kind != FailureKind::none;
    if (failed && operation->phase != OperationPhase::failing && operation->unfinished != 0) begin_failing(*operation, now);
    const bool revoked = operation->phase == OperationPhase::failing && !operation->copies_under_way() &&
                         (operation->revoking.empty() || now >= operation->fail_until);
    if (revoked || (operation->phase != OperationPhase::failing && operation->unfinished == 0)) {
      end(operation);
      operations_.erase(operations_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  memory_->set_ended_first(operations_.empty() ? taken_ : operations_.front()->serial - 1);
}

bool Engine::serves(std::uint32_t rank) const {
  return rank == cluster_.rank || (members_[rank].state != RankState::dead && members_[rank].dies_at == 0 && members_[rank].leased);
}

bool Engine::relays(std::uint32_t rank) const { return serves(rank) && members_[rank].state == RankState::alive; }

std::uint64_t Engine::link_word(std::uint32_t nic, std::uint32_t peer) const {
  const NicInfo& info = cluster_.nics[nic];
  return memory_->link_word(cluster_.ranks[info.owner].local, info.own_position, peer);
}

std::shared_ptr<SharedMemory> Engine::map(const MemoryHandle& handle) {
  const auto known = std::find_if(mapped_.begin(), mapped_.end(), [&](const auto& entry) { return entry.first == handle.inode; });
  if (known != mapped_.end()) return known->second;
  try {
    auto memory = std::make_shared<SharedMemory>(SharedMemory::open(handle));
    if (mapped_.size() >= kMaxMapped) mapped_.erase(mapped_.begin());
    mapped_.emplace_back(handle.inode, memory);
    return memory;
  } catch (const Error&) {
    return nullptr;  // slots serve as well
  }
}

std::shared_ptr<void> Engine::registered(const std::byte* data, std::uint64_t bytes, MemoryHandle& handle, std::uint64_t& offset) {
  const std::lock_guard lock(mutex_);
  for (const auto& weak : allocations_) {
    auto memory = weak.lock();
    if (memory == nullptr || data < memory->data() || data >= memory->data() + memory->bytes()) continue;
    offset = static_cast<std::uint64_t>(data - memory->data());
    if (bytes > memory->bytes() - offset) continue;
    handle = memory->handle();
    return memory;
  }
  return nullptr;
}

std::shared_ptr<SharedMemory> Engine::allocate(std::uint64_t bytes) {
  // The kernel would promise more, and kill whoever touches it.
  if (const std::uint64_t most = memory_of_machine(); bytes > most) {
    throw ExchangeError("a buffer of " + std::to_string(bytes) + " bytes; expected at most the " + std::to_string(most) +
                        " of this machine's memory and swap");
  }
  // Mates keep it mapped, as the next operation may use it again: without this each buffer of the past would hold its memory. A child that
  // has inherited it lets go of it alone.
  const auto done_with = [owner = ::getpid()](SharedMemory* memory) {
    if (::getpid() == owner) memory->discard();
    delete memory;
  };
  std::shared_ptr<SharedMemory> memory(new SharedMemory(SharedMemory::create("railweave-buffer", std::max<std::uint64_t>(bytes, 1))),
                                       done_with);
  const std::lock_guard lock(mutex_);
  std::erase_if(allocations_, [](const auto& weak) { return weak.expired(); });
  allocations_.push_back(memory);
  return memory;
}

std::string Engine::name_of(std::uint32_t nic) const {
  return cluster_.nics[nic].device + " of rank " + std::to_string(cluster_.nics[nic].owner);
}

// Why the two will never be connected; empty: nothing is known against it.
std::string Engine::apart(std::uint32_t nic, std::uint32_t peer) const {
  const int family = socket_family(cluster_.nics[nic].address), other = socket_family(cluster_.nics[peer].address);
  if (family == 0 || other == 0 || family == other) return {};
  return name_of(family == AF_INET6 ? nic : peer) + " has no IPv4 address, which the other has";
}

std::vector<std::string> Engine::links_down() const {
  std::vector<std::string> names;
  for (const NicLinks& links : nic_links()) {
    for (const std::string& peer : links.down) names.push_back(name_of(links.nic) + " to " + peer);
  }
  return names;
}

std::vector<NicLinks> Engine::nic_links() const {
  std::vector<NicLinks> found;
  if (cluster_.nodes.size() < 2) return found;
  for (const std::uint32_t nic : cluster_.nodes[cluster_.node()].nics) {
    NicLinks& of_nic = found.emplace_back();
    of_nic.nic = nic;
    for (std::uint32_t peer = 0; peer < cluster_.nics.size(); ++peer) {
      if (!router_->connected(nic, peer)) continue;
      ++of_nic.links;
      if ((link_word(nic, peer) & 1) != 0) continue;
      const std::string why = apart(nic, peer);
      of_nic.down.push_back(name_of(peer) + (why.empty() ? "" : " (" + why + ")"));
    }
  }
  return found;
}

std::optional<Standing> Engine::standing(std::chrono::milliseconds limit) {
  std::future<Standing> answer;
  {
    const std::lock_guard lock(mutex_);
    answer = asked_.emplace_back().get_future();
  }
  is_asked_.store(true);
  wake();
  if (answer.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

void Engine::answer_asked() {
  is_asked_.store(false);
  std::vector<std::promise<Standing>> asked;
  {
    const std::lock_guard lock(mutex_);
    asked.swap(asked_);
  }
  for (std::promise<Standing>& who : asked) who.set_value(stand());
}

Standing Engine::stand() const {
  const auto nics = static_cast<std::uint32_t>(cluster_.nics.size());
  const auto name = [this](std::uint32_t nic, std::uint32_t peer) { return name_of(nic) + " to " + name_of(peer); };
  Standing standing;
  for (const OperationPtr& operation : operations_) {
    for (const SendMessage& message : operation->sends) {
      if (message.over) continue;
      standing.messages.push_back(waiting_text(message, [&](std::uint32_t link) { return name(link / nics, link % nics); }));
    }
    for (const RecvMessage& message : operation->recvs) {
      if (!message.over) standing.messages.push_back(waiting_text(message));
    }
  }
  for (const LinkLoad& load : proxy_->loads()) {
    if (!load.idle()) standing.links.push_back(waiting_text(load, name(load.nic, load.peer), router_->rate(load.nic, load.peer)));
  }
  return standing;
}

void Engine::begin_close(bool at_once) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  if (at_once) leaves_at_once_.store(true);
  close_requested_.store(true);
  memory_->wake(memory_->self());
}

void Engine::close() {
  if (!is_of_this_process()) return;
  const std::lock_guard lock(close_mutex_);  // who comes second waits as well
  if (!thread_.joinable()) return;
  begin_close();
  thread_.join();
}

}  // namespace railweave::engine
