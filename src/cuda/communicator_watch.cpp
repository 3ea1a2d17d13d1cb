// What a communicator's threads do, how it ends, and what it says of itself.
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <numeric>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "communicator.hpp"
#include "communicator_parts.hpp"
#include "device.hpp"
#include "packet_roles.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

using namespace std::chrono_literals;

// How often the threads look: at something that is about to be over, while operations are under way, and else. A death is seen within that
// time, and an error of a kernel.
constexpr auto kSoonLook = 1ms, kBusyLook = 5ms, kIdleLook = 20ms;
constexpr auto kSettleAtLeast = 100ms;  // whatever is queued meanwhile
constexpr auto kAnswerTime = 500ms;     // of a GPU, or an engine's thread, that is asked why nothing moves
constexpr std::size_t kMostMail = 8;    // of one look; a mail is some milliseconds of work

// What was seen of a rank that has left has to hold for so long, as an operation's last words come one after another: a moment of a GPU
// that its processes have in turns. Not measured.
constexpr auto kLeftFor = 1s;
constexpr auto kLookForLeft = 100ms;  // each copies words from the GPU
// A kernel that begins when the ports say that all is over writes nothing, and one that waits leaves or rests. One that was writing ends
// what it had been granted: 12 GB in this time over the slowest of NVLinks (25 GB/s), so this is for kernels that have not begun.
constexpr auto kLastWrites = 500ms;
// And where an operation of a graph waits, of which the host does not know for whom: a minute in which nothing ended. Not measured.
constexpr auto kReplayLeftFor = 60s;

template <typename T>
T load_shared(T& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

}  // namespace

// --- Watching

void Communicator::start_threads() {
  try {
    mapper_ = std::jthread([this] {
      watch("rw-mapper", true, &Communicator::follow_books);
      halt_at_end();
    });
    watcher_ = std::jthread([this] { watch("rw-watcher", false, &Communicator::look_around); });
  } catch (const std::system_error& error) {
    throw BootstrapError(std::string("no thread to watch a communicator: ") + error.what() + " (limits: ulimit -u, pids.max)");
  }
}

void Communicator::end_threads() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  answered_.notify_all();
  ring(book_->page().bell);
  for (std::jthread* thread : {&watcher_, &mapper_}) {
    if (thread->joinable()) thread->join();
  }
  const std::scoped_lock lock(asking_mutex_);
  if (asked_.valid()) asked_.wait();  // no kernel holds it up any more
}

void Communicator::watch(const char* name, bool maps, void (Communicator::*look)()) {
  ::pthread_setname_np(::pthread_self(), name);  // for top and profilers
  try {
    check(cudaSetDevice(device_), "selecting a device");
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "relaxing the capture mode");
  } catch (const std::exception& error) {
    fail_by(error);
  }
  Bell& bell = book_->page().bell;
  std::uint32_t heard = rings_of(bell);
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const auto at_most = until_next_look(maps);
    lock.unlock();
    wait_for_ring(bell, heard, at_most);
    heard = rings_of(bell);
    lock.lock();
    if (ending_) break;  // as the process may be: CUDA's own handlers run then
    ++looking_;
    lock.unlock();
    try {
      (this->*look)();
    } catch (const std::exception& error) {
      fail_by(error);
    }
    lock.lock();
    --looking_;
  }
}

// Of what has been captured only the mapping thread waits for an end that nobody tells: memory is unmapped between two replays.
std::chrono::milliseconds Communicator::until_next_look(bool maps) const {
  if (failure_ || (captured_ && maps)) return kSoonLook;
  return captured_ || pending() ? kBusyLook : kIdleLook;
}

// As the mapping thread's last act, where the rank was aborted with nothing under way: a graph that is launched yet moves nothing.
void Communicator::halt_at_end() {
  if (ends_with_process() || !failure() || halting_) return;
  try {
    region_->halt(side_stream_.get());
  } catch (const std::exception&) {
    // The context is broken, and runs nothing.
  }
}

void Communicator::look_around() {
  if (auto failure = find_failure(mates_)) fail(std::move(*failure));
  let_kernels_leave();
  tell_kernels_error();
}

bool Communicator::gave_up() const { return load_shared(region_->host().error) != 0; }

void Communicator::tell_kernels_error() {
  const HostView now = view();
  switch (static_cast<KernelError>(now.error)) {
    case KernelError::none: break;
    case KernelError::aborted:  // for a reason that is known already, unless it is another communicator's
      fail({"an operation that it shared with another communicator was ended with that one", std::nullopt});
      break;
    case KernelError::timed_out:
      fail({"an operation waited longer than gpu_timeout_ms (" + std::to_string(settings_.gpu_timeout_ms) + " ms) for rank " +
                std::to_string(now.error_peer),
            std::nullopt, false, now.error_peer});
      break;
    case KernelError::sizes_differ:
      fail({"a message to rank " + std::to_string(now.error_peer) + " has " + std::to_string(now.error_bytes[0]) + " bytes here and " +
                std::to_string(now.error_bytes[1]) + " there; counts of a send and its receive must be equal",
            std::nullopt});
      break;
    case KernelError::bad_record:
      fail({"rank " + std::to_string(now.error_peer) + " announced bytes outside its message", std::nullopt});
      break;
    case KernelError::damaged:
      fail({damage_text({now.error_peer, now.error_message, now.error_bytes[0], now.error_bytes[1], now.error_chunk}), std::nullopt, true});
      break;
  }
}

// On a thread of its own: a call of the driver may wait for another thread's, and who watches must hear of a death meanwhile.
void Communicator::follow_books() {
  come_to_rest();
  settle_now_and_then();
  answer_asks();
  if (auto failure = find_unmatched()) fail(std::move(*failure));
  MateBook::Progress progress{};
  std::size_t looks = 0;
  const bool retired = std::any_of(mate_books_.begin(), mate_books_.end(), [](const auto& book) { return book && book->keeps_retired(); });
  progress.settled = retired && cudaStreamQuery(side_stream_.get()) == cudaSuccess;
  if (retired) {
    const std::scoped_lock words_lock(words_mutex_);
    ask_ledger();
  }
  {
    const std::scoped_lock lock(mutex_);
    progress.enqueued = enqueued();
    progress.completed = over_;
    progress.captured = captured_;
    looks = kLooksPerMs * static_cast<std::size_t>(until_next_look(true).count());
  }
  // A graph's launch records the event, as later operations that wait for it need. So a replay that is not over by this look, of which
  // nobody tells, is seen.
  if (progress.captured)
    progress.quiet = progress.settled && progress.enqueued == progress.completed && cudaEventQuery(last_.get()) == cudaSuccess;
  std::deque<Mail> mail;
  while (mailbox_ != nullptr && mail.size() < kMostMail) {
    auto next = mailbox_->receive();
    if (!next) break;
    mail.push_back(std::move(*next));
  }
  for (const Mate& mate : mates_) {
    if (!processes_[mate.rank] && virtual_memory_ == nullptr) continue;
    std::vector<const Mail*> of_mate;
    for (const Mail& each : mail) {
      if (ExtentArrivals::sender(each) == mate.rank) of_mate.push_back(&each);
    }
    mate_books_[mate.rank]->follow(progress, of_mate, has_left(mate));
  }
  if (staging_->wanted()) provide_staging();
  const bool sent = extents_ != nullptr && extents_->deliver();
  const bool freed = book_->look_for_freed(looks);
  if (sent || freed) ring_all();  // who it is for, and this thread, which may have more to send
  if (mail.size() == kMostMail) ring(book_->page().bell);
  give_back_deferred(device_);
}

// A rank that has left will not queue what a message of this one still needs. What it had queued has ended, so its counts say what that
// was.
std::optional<Failure> Communicator::find_unmatched() {
  std::set<std::uint32_t> gone;
  for (const Mate& mate : mates_) {
    if (has_left_well(mate)) gone.insert(mate.rank);
  }
  if (gone.empty() || failure()) return std::nullopt;
  if (launching_ == 0 && is_over(last_.get())) {
    waits_for_left_ = std::nullopt;
    return std::nullopt;
  }
  const auto asked = std::chrono::steady_clock::now();
  if (asked - looked_for_left_ < kLookForLeft) return std::nullopt;
  looked_for_left_ = asked;
  std::vector<Pending> waiting;
  std::uint64_t completed = 0;
  const std::scoped_lock words_lock(words_mutex_);
  ask_ledger();
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) return std::nullopt;
    waiting = waiting_messages();
    completed = ended(false).completed + ended(true).completed;
  }
  // What graphs run is not known message by message, only that something does.
  const bool replay = waiting.empty() && captured_ && cudaEventQuery(last_.get()) == cudaErrorNotReady;
  std::erase_if(waiting, [first = waiting.empty() ? 0 : waiting.front().operation, &gone](const Pending& pending) {
    return pending.operation != first || gone.count(pending.peer) == 0;
  });
  const auto now = std::chrono::steady_clock::now();
  if ((waiting.empty() && !replay) || !waits_for_left_ || waits_for_left_->first != completed) {
    waits_for_left_ = std::nullopt;
    if (!waiting.empty() || replay) waits_for_left_.emplace(completed, now);
    return std::nullopt;
  }
  if (now - waits_for_left_->second < (replay ? kReplayLeftFor : kLeftFor)) return std::nullopt;
  if (replay) return Failure{"an operation of a graph waits, and rank " + std::to_string(*gone.begin()) + " has left", *gone.begin()};
  waits_for_left_->second = now;
  PortWords words;
  std::set<std::uint32_t> mates;
  for (const Pending& pending : waiting) mates.insert(mate_of_[pending.peer]);
  if (!read_words(mates, true, words)) return std::nullopt;
  for (const auto& [pending, message] : in_order(waiting)) {
    const std::uint32_t mate = mate_of_[pending.peer];
    if (!is_unmatched(message, *words.own[mate], words.ahead, *words.mates[mate])) continue;
    ask_ledger();
    const std::scoped_lock lock(mutex_);
    if (ended(false).completed + ended(true).completed != completed) return std::nullopt;
    return Failure{"a " + name(pending.direction, pending.bytes, pending.peer) + " waits, and that rank has left", pending.peer};
  }
  return std::nullopt;
}

// What was queued has ended, and no replay of what was captured is under way, as far as the event tells. Not under mutex_: the driver may
// wait for a thread that waits for a kernel, and who holds it up then must not keep a death from being heard of. That kernel may end by
// what the caller does next alone, so it is asked on a thread of its own, and is not waited for long.
bool Communicator::all_is_over() {
  if (!captured_) {
    const auto lock = lock_for_a_moment(mutex_);
    if (!lock) return false;
    if (!pending()) return true;
  }
  const auto lock = lock_for_a_moment(asking_mutex_);
  if (!lock || (asked_.valid() && asked_.wait_for(0s) != std::future_status::ready)) return false;
  try {
    asked_ = std::async(std::launch::async, [this] {
      settle();
      const DeviceScope scope(device_);
      return is_over(last_.get());
    });
    return asked_.wait_for(kAnswerTime) == std::future_status::ready && asked_.get();
  } catch (const std::exception&) {  // there is no thread for it, or the device is lost
    return false;
  }
}

// True, and mates that have nothing to do with this rank any more go on, where all that was queued has ended: nothing is queued from then
// on. Under mutex_. The watching threads end, too: what they met would be told as a failure.
bool Communicator::leave() {
  if (failure_ || pending() || gave_up()) return false;
  left_ = ending_ = true;
  answered_.notify_all();
  tell_leaving(book_->page().life);
  return true;
}

// Mates take an end with something unended for a death. It is no failure: threads of the program's that still ask for one would end it.
// Whatever has ended, nobody looks at pinned memory once this returns, as CUDA's handlers take it away: what looks just then is waited for.
void Communicator::leave_with_process() {
  const bool over = all_is_over();
  if (const auto lock = lock_for_a_moment(mutex_)) {
    if (!over || !leave()) ending_ = true;
    // Kernels that rest wait for that, and nobody else will tell them.
    if (failure_) std::atomic_ref(region_->host().stop).store(kLeave, std::memory_order_release);
    answered_.notify_all();
  }
  if (rails_ != nullptr) rails_->leave_kernels();
  const auto is_looking = [this] {
    const auto lock = lock_for_a_moment(mutex_);
    return !lock || looking_ != 0 || (rails_ != nullptr && rails_->in_turn());
  };
  for (const auto end = std::chrono::steady_clock::now() + kAnswerTime; is_looking() && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(1ms);
  lock_for_a_moment(words_mutex_);
}

// Kernels leave, mates hear of it, later calls fail. The first reason stays: who looks finds others again and again.
void Communicator::fail(Failure failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (ending_ || failure_) return;  // ending: mates hold it for one that has left, or that no failure is news of
    failed_at_ = std::chrono::steady_clock::now();
    failure_ = std::move(failure);
    tell_failure(book_->page().life, *failure_);
  }
  stop_kernels(kStop);
  ring_all();
}

// There may be no memory for the text of the error either.
void Communicator::fail_by(const std::exception& error) noexcept {
  constexpr const char* kNoMemory = "out of memory";  // so short that a string of it takes none
  try {
    fail({dynamic_cast<const std::bad_alloc*>(&error) == nullptr ? error.what() : kNoMemory, std::nullopt});
  } catch (const std::bad_alloc&) {
    fail({kNoMemory, std::nullopt});
  }
}

void Communicator::stop_kernels(std::uint32_t how) {
  std::uint32_t goes_on = 0;
  std::atomic_ref(region_->host().stop).compare_exchange_strong(goes_on, how, std::memory_order_acq_rel);
  if (rails_ != nullptr) rails_->stop();
}

// When a communicator ends with operations under way, each rank's buffers are its program's again when no mate writes into them any more.
// So each says when its kernels write nothing more, which has to be true whatever the mates do, and lets them leave when all mates have
// said it.
void Communicator::come_to_rest() {
  if (rests_ || !failure()) return;
  // What is asked of a context that is broken answers with the error, and its kernels run no more.
  const auto is_over = [](cudaError_t status) { return status != cudaErrorNotReady; };
  const cudaError_t before = cudaStreamQuery(side_stream_.get());
  const bool broken = is_over(before) && before != cudaSuccess;
  if (!halting_ && !broken) {
    region_->halt(side_stream_.get());
    halting_ = true;
  }
  if (!halted_at_ && is_over(cudaStreamQuery(side_stream_.get()))) halted_at_ = std::chrono::steady_clock::now();
  if (!halted_at_) return;
  const bool over = load_shared(region_->host().rests) != 0 || (launching_ == 0 && is_over(cudaEventQuery(last_.get())));
  if (!over && std::chrono::steady_clock::now() - *halted_at_ < kLastWrites) return;
  rests_ = true;
  tell_rest(book_->page().life);
  ring_all();
}

// A process that has died says nothing, and where another one serves its GPU (MPS) its kernel may outlive it for a moment.
void Communicator::let_kernels_leave() {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) return;
    const auto now = std::chrono::steady_clock::now();
    bool all_rest = true;
    gone_since_.resize(mates_.size());
    for (std::size_t i = 0; i < mates_.size(); ++i) {
      if (has_left(mates_[i]) && !gone_since_[i]) gone_since_[i] = now;
      all_rest = rests(mates_[i], gone_since_[i] && now - *gone_since_[i] >= kLastWrites) && all_rest;
    }
    const bool late = now - failed_at_ >= std::max(std::chrono::milliseconds(settings_.drain_ms), 2 * kLastWrites);
    if (!late && !all_rest) return;
  }
  std::atomic_ref(region_->host().stop).store(kLeave, std::memory_order_release);
}

HostView Communicator::view() const {
  HostView& host = region_->host();
  HostView copy{};
  copy.error = load_shared(host.error);
  copy.error_peer = load_shared(host.error_peer);
  copy.error_chunk = load_shared(host.error_chunk);
  copy.error_message = load_shared(host.error_message);
  for (int i = 0; i < 2; ++i) copy.error_bytes[i] = load_shared(host.error_bytes[i]);
  return copy;
}

std::uint64_t Communicator::enqueued() const { return std::accumulate(enqueued_by_path_, enqueued_by_path_ + kPaths, std::uint64_t{0}); }

// --- What has ended

bool Communicator::pending() const { return enqueued() != over_; }

Totals Communicator::ended(bool captured) const {
  Totals sum{};
  for (std::size_t path = 0; path < kPaths; ++path) sum += ended_of(known_, static_cast<Path>(path), captured);
  return sum;
}

// An operation that was given up is over, too, but has not ended; its kernel's word comes before the event.
void Communicator::know_over(std::uint64_t messages) const {
  if (gave_up()) return;
  const std::scoped_lock lock(mutex_);
  over_ = std::max(over_, messages);
}

std::optional<std::uint64_t> Communicator::to_settle() const {
  const std::scoped_lock lock(mutex_);
  if (failure_ || launching_ != 0 || !pending()) return std::nullopt;
  return enqueued();
}

void Communicator::settle() const {
  const auto messages = to_settle();
  if (!messages) return;
  const DeviceScope scope(device_);
  if (is_over(last_.get())) know_over(*messages);
}

// A program that queues one operation after another is not disturbed in that: the driver serves one thread at a time.
void Communicator::settle_now_and_then() {
  const auto messages = to_settle();
  const auto now = std::chrono::steady_clock::now();
  const bool stands_still = messages == queued_at_look_;
  queued_at_look_ = messages;
  if (!messages || (!stands_still && now - settled_at_ < kSettleAtLeast)) return;
  settled_at_ = now;
  settle();
}

void Communicator::ask_ledger() const {
  try {
    const DeviceScope scope(device_);
    const auto counted = [this]() -> std::optional<std::uint64_t> {
      const std::scoped_lock lock(mutex_);
      return launching_ == 0 ? std::optional(enqueued()) : std::nullopt;
    };
    const auto before = counted();
    const bool event_over = is_over(last_.get());
    const bool over = before && event_over;
    const Ledger& copy = region_->copy_ledger(side_stream_.get());
    const std::span moved = region_->copy_moved(side_stream_.get());
    if (!side_stream_answers()) return;
    // Replays are not counted: one may have begun and be in the copy.
    const bool all_over = over && !gave_up() && counted() == before && (!captured_ || is_over(last_.get()));
    const std::scoped_lock lock(mutex_);
    known_ = copy;
    moved_.assign(moved.begin(), moved.end());
    if (all_over) forget_newest(known_);  // nothing begins that would say so
    over_ = std::max(over_, ended(false).completed);
    replays_ = captured_ && !event_over && !pending();
  } catch (const DeviceError&) {  // the context is broken: what was known stays
  }
}

// Copying works while kernels wait for their peers. A GPU that does not answer is not waited for.
bool Communicator::side_stream_answers() const {
  constexpr int kQuickLooks = 20;  // of some microseconds
  const auto deadline = std::chrono::steady_clock::now() + kAnswerTime;
  cudaError_t status = cudaErrorNotReady;
  for (int looks = 0; (status = cudaStreamQuery(side_stream_.get())) == cudaErrorNotReady; ++looks) {
    if (looks < kQuickLooks) continue;
    if (std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(kSoonLook);
  }
  return status == cudaSuccess;
}

std::optional<Failure> Communicator::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

// PyTorch aborts what a program has not destroyed when it ends.
void Communicator::abort() {
  const Failure failure{"aborted on rank " + std::to_string(rank_), std::nullopt};
  bool left = all_is_over();
  if (left) have_ledger_asked();  // for the last time
  {
    const std::scoped_lock lock(mutex_);
    left = left && leave();
    if (left) failure_ = failure;
  }
  if (!left) return fail(failure);
  ring(book_->page().bell);
  stop_kernels(kLeave);  // a graph that is launched yet: nobody would tell it later
}

void Communicator::drain() {
  // What was queued ends, however late its peers come: no bound but that of every operation, gpu_timeout_ms. The event covers captured
  // operations as well, which have no count.
  while (cudaEventQuery(last_.get()) == cudaErrorNotReady) std::this_thread::sleep_for(kSoonLook);
  tell_kernels_error();  // mates go by the counts of a rank that has left well
  tell_leaving(book_->page().life);
  if (rails_ != nullptr) rails_->begin_close();
}

// Mates of this process may be ended by the same thread, one after the other, so they are not waited for: what they have mapped stays until
// the last of them has ended.
void Communicator::wait_for_mates() const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(settings_.drain_ms);
  const auto left = [](const Mate& mate) { return mate.pidfd < 0 || has_left(mate); };
  while (!std::all_of(mates_.begin(), mates_.end(), left) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(kSoonLook);
  if (rails_ != nullptr) rails_->close();
}

// --- Looking at it

// By the mapping thread, as the driver may be held up by an operation that waits: who asks may hold what its abort needs.
void Communicator::have_ledger_asked() const {
  std::unique_lock lock(mutex_);
  if (ending_ || unanswered_) return;
  const std::uint64_t ask = ++asks_;
  lock.unlock();
  ring(book_->page().bell);
  lock.lock();
  unanswered_ = !answered_.wait_for(lock, kAnswerTime, [&] { return ending_ || answers_ >= ask; });
}

void Communicator::answer_asks() {
  std::uint64_t asks = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (asks_ == answers_) return;
    asks = asks_;
  }
  {
    const std::scoped_lock words_lock(words_mutex_);
    ask_ledger();
  }
  {
    const std::scoped_lock lock(mutex_);
    answers_ = asks;
    unanswered_ = false;
  }
  answered_.notify_all();
}

Counters Communicator::counters() const {
  have_ledger_asked();
  const std::scoped_lock lock(mutex_);
  const Totals replays = ended(true);
  Totals now = ended(false);
  now += replays;
  Counters counters{enqueued() + replays.completed, now.completed, now.bytes_sent, now.bytes_received, {}, replays_};
  for (const PathKind kind : {PathKind::rail, PathKind::cross_rail})
    counters.bytes_by_kind[static_cast<std::size_t>(kind)] = rails_ == nullptr ? 0 : rails_->bytes_sent(kind);
  const IndirectSent indirect = ends_with_process() ? IndirectSent{} : indirect_->sent();
  counters.bytes_by_kind[static_cast<std::size_t>(PathKind::host)] = indirect.over_host;
  counters.bytes_by_kind[static_cast<std::size_t>(PathKind::relay)] = indirect.over_relays;
  const std::uint64_t others = (rails_ == nullptr ? 0 : rails_->bytes_of_ended()) + indirect.over_host + indirect.over_relays;
  counters.bytes_by_kind[static_cast<std::size_t>(PathKind::direct)] = now.bytes_sent - std::min(others, now.bytes_sent);
  return counters;
}

std::vector<PeerUse> Communicator::peers() const {
  constexpr auto kSend = static_cast<std::size_t>(Direction::send), kReceive = static_cast<std::size_t>(Direction::receive);
  std::vector<MovedBytes> near_ones(mates_.size() + 1);
  {
    const std::scoped_lock lock(mutex_);
    std::copy(moved_.begin(), moved_.end(), near_ones.begin());
  }
  std::vector<PeerUse> uses;
  for (std::uint32_t rank = 0; rank < world_; ++rank) {
    const MovedBytes moved = near(rank) ? near_ones[mate_of_[rank]] : rails_->bytes_moved(rank);
    const PeerUse use{rank, moved[kSend], moved[kReceive]};
    if (use.sent + use.received != 0) uses.push_back(use);
  }
  return uses;
}

std::vector<NicUse> Communicator::nics() const { return rails_ == nullptr ? std::vector<NicUse>{} : rails_->nics(); }

Path Communicator::path_of(const Transfer& transfer) const {
  if (!near(transfer.peer)) return Path::rail;
  return cuda::path_of(transfer.bytes, low_latency_bytes_);
}

// The newest of each path, as many as have not ended, oldest first: an operation's paths end each for itself.
std::vector<Communicator::Pending> Communicator::waiting_messages() const {
  if (!pending()) return {};
  std::uint64_t left[kPaths];
  for (std::size_t path = 0; path < kPaths; ++path) {
    const std::uint64_t completed = ended_of(known_, static_cast<Path>(path), false).completed;
    left[path] = enqueued_by_path_[path] > completed ? enqueued_by_path_[path] - completed : 0;
  }
  std::vector<Pending> waiting;
  for (auto pending = pending_.rbegin(); pending != pending_.rend(); ++pending) {
    std::uint64_t& of_path = left[static_cast<std::size_t>(pending->path)];
    if (of_path == 0) continue;
    --of_path;
    waiting.push_back(*pending);
  }
  std::reverse(waiting.begin(), waiting.end());
  // The event may have told of more than the ledger's last copy has.
  const std::uint64_t most = enqueued() - over_;
  if (waiting.size() > most) waiting.erase(waiting.begin(), waiting.end() - static_cast<std::ptrdiff_t>(most));
  return waiting;
}

bool Communicator::read_words(const std::set<std::uint32_t>& mates, bool theirs, PortWords& words) const {
  const DeviceScope scope(device_);
  words.own.resize(mates_.size() + 1);
  words.mates.resize(mates_.size() + 1);
  for (const std::uint32_t mate : mates) {
    words.own[mate] = region_->copy_words(mate, side_stream_.get());
    if (theirs) words.mates[mate] = region_->copy_mates_words(mate, side_stream_.get());
  }
  const Ledger& ledger = region_->copy_ledger(side_stream_.get());
  if (!side_stream_answers()) return false;
  words.ahead = is_ahead(ledger);
  return true;
}

// Each message with what is under way of its pair before it.
std::vector<std::pair<Communicator::Pending, Waiting>> Communicator::in_order(const std::vector<Pending>& waiting) {
  std::map<std::tuple<std::uint32_t, Direction, Path>, std::uint64_t> before;
  std::vector<std::pair<Pending, Waiting>> order;
  for (const Pending& pending : waiting) {
    std::uint64_t& earlier = before[{pending.peer, pending.direction, pending.path}];
    order.push_back({pending, {pending.direction, pending.path, pending.peer, pending.bytes, earlier}});
    earlier += pending.path == Path::packets ? packets_of(pending.bytes) : 1;
  }
  return order;
}

std::string Communicator::describe() const {
  const std::scoped_lock words_lock(words_mutex_);
  if (ends_with_process()) return "";
  std::vector<Pending> waiting, replayed;
  std::string text;
  ask_ledger();
  {
    const std::scoped_lock lock(mutex_);
    text = "rank " + std::to_string(rank_) + " of " + std::to_string(world_) + " on device " + std::to_string(device_) + ": " +
           std::to_string(ended(false).completed + ended(true).completed) + " messages ended";
    if (failure_) text += "; failed: " + failure_->text;
    text += '\n';
    waiting = waiting_messages();
    if (replays_ || !waiting.empty()) replayed = captured_messages_;
  }
  if (rails_ == nullptr) return text + describe(waiting, replayed, nullptr);
  const auto standing = rails_->standing(kAnswerTime);
  text += describe(waiting, replayed, standing ? &*standing : nullptr);
  if (standing) {
    for (const std::string& link : standing->links) text += link + '\n';
  } else {
    text += "the thread that serves rails does not answer\n";
  }
  for (const std::string& link : rails_->links_down()) text += "link down: " + link + '\n';
  return text;
}

// Of those that wait for operations before theirs alone; a program may have queued thousands.
constexpr std::size_t kQueuedTold = 16;

// `replayed`: what a replay may wait for. `standing`: of messages over rails.
std::string Communicator::describe(const std::vector<Pending>& waiting, const std::vector<Pending>& replayed,
                                   const engine::Standing* standing) const {
  std::string text;
  if (waiting.empty() && replayed.empty()) return text;
  std::set<std::uint32_t> mates;
  for (const auto* messages : {&waiting, &replayed}) {
    for (const Pending& pending : *messages) {
      if (near(pending.peer)) mates.insert(mate_of_[pending.peer]);
    }
  }
  PortWords words;
  bool readable = false;
  try {
    readable = read_words(mates, false, words);
  } catch (const DeviceError& error) {
    text += std::string("the GPU cannot be asked: ") + error.what() + '\n';
  }
  const auto tell = [&](const Pending& pending, const Waiting* message) {
    if (message == nullptr)
      text += name(pending.direction, pending.bytes, pending.peer) + ": queued behind";
    else if (pending.path == Path::rail && standing != nullptr && !standing->messages.empty())
      return;  // told below
    else if (pending.path == Path::rail)
      text += name(pending.direction, pending.bytes, pending.peer) + ": over rails" +
              (standing == nullptr ? "" : "; its kernel has not listed it, or it has ended");
    else if (readable)
      text += waiting_text(*message, *words.own[mate_of_[pending.peer]], words.ahead);
    else
      text += name(pending.direction, pending.bytes, pending.peer) + ": the GPU does not answer";
    text += std::string(" (") + where(pending.peer) + ")\n";
  };
  std::size_t queued = 0;
  for (const auto& [pending, message] : in_order(waiting)) {
    const bool behind = pending.operation != waiting.front().operation;
    if (!behind || ++queued <= kQueuedTold) tell(pending, behind ? nullptr : &message);
  }
  if (queued > kQueuedTold) text += std::to_string(queued - kQueuedTold) + " more messages: queued behind\n";
  if (!replayed.empty()) {
    text += waiting.empty() ? "an operation of a graph is under way, and it is not known which. What it waits for"
                            : "operations of graphs may be under way before these. What they wait for";
    text += " is among what was captured:\n";
  }
  for (const Pending& pending : replayed) {
    const Waiting message{pending.direction, pending.path, pending.peer, pending.bytes, 0};
    tell(pending, &message);
  }
  if (standing == nullptr) return text;
  for (const std::string& message : standing->messages) text += message + " (another node)\n";
  return text;
}

const char* Communicator::where(std::uint32_t rank) const {
  if (!near(rank)) return "another node";
  return processes_[rank] ? "another process" : "this process";
}

}  // namespace railweave::cuda
