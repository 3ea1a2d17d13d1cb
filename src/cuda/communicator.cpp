#include "communicator.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <numeric>
#include <system_error>
#include <tuple>
#include <utility>

#include "capture.hpp"
#include "checksum.hpp"
#include "device.hpp"
#include "packet_roles.hpp"
#include "rail_prepare.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

using namespace std::chrono_literals;

// How often the threads look: while operations are under way, and else. An error is seen within that time, and what has been freed.
constexpr auto kBusyLook = 1ms, kIdleLook = 20ms;
constexpr auto kAnswerTime = 500ms;  // of a GPU, or an engine's thread, that is asked why nothing moves
constexpr std::size_t kMostPending = 4096;
constexpr std::size_t kMostMail = 8;  // of one look; a mail is some milliseconds of work

template <typename T>
T load_shared(T& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

// This process's communicators: what one's operations may have of a device follows from what all hold of it.
// Nothing of CUDA is called under its mutex while operations may be queued: that may wait for a kernel, and the kernel for a rank whose
// thread waits for the mutex.
struct Residents {
  std::mutex mutex;
  std::vector<Communicator*> all;
  std::map<int, std::uint32_t> ranks;  // by device: the most that any communicator has had on it
};
// Never destroyed: programs destroy communicators as late as when the process ends.
Residents& residents() {
  static Residents& each = *new Residents;
  return each;
}

// A program may exit in a signal's handler, on a thread that holds the mutex.
std::unique_lock<std::mutex> lock_for_a_moment(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (int look = 0; !lock && look < 100; ++look) {
    std::this_thread::sleep_for(1ms);
    lock = std::unique_lock(mutex, std::try_to_lock);
  }
  return lock;
}

// What was seen of a rank that has left has to hold for so long, as an operation's last words come one after another: a moment of a GPU
// that its processes have in turns. Not measured.
constexpr auto kLeftFor = 1s;
// And where an operation of a graph waits, of which the host does not know for whom: a minute in which nothing ended. Not measured.
constexpr auto kReplayLeftFor = 60s;

[[noreturn]] void throw_ended(Failure failure) {
  failure.text = "the communicator has ended: " + failure.text;
  throw_failure(failure);
}

// Which stream it is. A handle does not say that for ever: a stream may be destroyed with work pending, and its handle be the next one's.
// None: it cannot be told (that of the thread is another stream in each, a driver may be too old), so it is like no other.
StreamId id_of(cudaStream_t stream) {
  if (stream == cudaStreamPerThread) return std::nullopt;
  if (stream == nullptr || stream == cudaStreamLegacy) return ~std::uint64_t{0};
  unsigned long long id = 0;
  if (cudaStreamGetId(stream, &id) == cudaSuccess) return id;
  static_cast<void>(cudaGetLastError());
  return std::nullopt;
}

std::string name(Direction direction, std::uint64_t bytes, std::uint32_t peer) {
  return (direction == Direction::send ? "send of " : "receive of ") + std::to_string(bytes) + " bytes " +
         (direction == Direction::send ? "to" : "from") + " rank " + std::to_string(peer);
}

}  // namespace

Communicator::Communicator(std::uint32_t rank, std::uint32_t world, int device, const std::string& rendezvous,
                           const ExchangeSettings& settings, Remarks::Say say, Remarks::Say warn)
    : rank_(rank),
      world_(world),
      device_(device),
      settings_(settings),
      mate_of_(world, kFar),
      remarks_(std::move(say), std::move(warn)),
      mate_books_(world),
      processes_(world) {
  bring_together(rendezvous);
  start_threads();
  // Many programs end without destroying what they have made. Registered after CUDA's own handlers, so called before them; not for
  // children, which have these words of their parent's, too.
  static const pid_t process = ::getpid();
  static const int registered = std::atexit([] {
    if (::getpid() != process) return;
    const auto lock = lock_for_a_moment(residents().mutex);
    if (!lock) return;
    for (Communicator* communicator : residents().all) communicator->leave_with_process();
  });
  static_cast<void>(registered);
  const std::scoped_lock lock(residents().mutex);
  residents().all.push_back(this);
  std::uint32_t& ranks = residents().ranks[device_];
  ranks = std::max(ranks, share_.ranks);
}

Communicator::~Communicator() {
  drain();
  {
    const std::scoped_lock lock(residents().mutex);
    std::erase(residents().all, this);
  }
  end_threads();
}

// --- Operations

Message Communicator::make_message(const Transfer& transfer) {
  if (transfer.peer >= world_)
    throw Error("peer " + std::to_string(transfer.peer) + " of a transfer; the communicator has ranks 0 to " + std::to_string(world_ - 1));
  if (transfer.data == nullptr || transfer.bytes == 0)
    throw Error(name(transfer.direction, transfer.bytes, transfer.peer) + ": expected memory and at least 1 byte");
  if (transfer.bytes > ~reinterpret_cast<std::uint64_t>(transfer.data))
    throw Error(name(transfer.direction, transfer.bytes, transfer.peer) + ": more than there are addresses");
  Message message = near(transfer.peer) ? make_near_message(transfer) : Message{};
  if (!near(transfer.peer)) message.rail = rails_->side();
  message.data = transfer.data;
  message.bytes = transfer.bytes;
  message.direction = transfer.direction;
  message.peer = transfer.peer;
  message.host = &region_->host();
  message.totals = region_->totals();
  return message;
}

Message Communicator::make_near_message(const Transfer& transfer) {
  const std::uint32_t mate = mate_of_[transfer.peer];
  Message message{};
  message.local = region_->local(mate);
  message.remote = region_->remote(mate);
  message.paths = transfer.direction == Direction::send ? indirect_->paths_to(mate) : indirect_->paths_from(mate);
  message.relay_slots = indirect_->relay_slots();
  if (transfer.direction == Direction::send) {
    message.mappings = region_->mappings(mate);
  } else if (transfer.peer == rank_) {
    // Whatever memory it is. Without that what a rank sends itself went through slots where it is virtual, as no table has its own buffers:
    // an all-to-all of 64 MiB under PyTorch's expandable segments took 1,040 us instead of 115, and NCCL 144 (2 x H100).
    message.receive = {kAbsoluteBuffer, reinterpret_cast<std::uint64_t>(transfer.data)};
  } else if (transfer.bytes > settings_.gpu_low_latency_bytes) {
    const Book::Place place = name_buffer(transfer.data, transfer.bytes);
    const BufferName& buffer = processes_[transfer.peer] ? place.remote : place.local;
    message.receive = {buffer.buffer, buffer.offset};
  }
  return message;
}

// Operations of a communicator run one after another, in the order of enqueue calls, whatever their streams. Inside one capture an edge
// says so; an event before the first and after the last one orders the graph's run among other operations. Event nodes between the
// operations would cost each of them 1 to 3 us (docs/gpu-probe.md).
void Communicator::order_before(cudaStream_t stream, StreamId id, const Capture& capture) {
  if (!capture.active) {
    if (!id || ordered_behind_ != id) check(cudaStreamWaitEvent(stream, last_.get(), cudaEventWaitDefault), "ordering an operation");
  } else if (capture.id != capture_) {
    check(cudaStreamWaitEvent(stream, last_.get(), cudaEventWaitExternal), "ordering a captured operation");
  } else if (last_stream_ != stream) {
    add_dependency(stream, captured_node_);
  }
}

void Communicator::order_after(cudaStream_t stream, StreamId id, const Capture& capture) {
  if (!capture.active) {
    check(cudaEventRecord(last_.get(), stream), "ordering an operation");
  } else {
    const cudaGraphNode_t node = newest_node(stream);
    if (capture.id != capture_) {
      check(cudaGraphAddEventRecordNode(&record_node_, capture.graph, &node, 1, last_.get()), "ordering a captured operation");
    } else {
      move_dependency(capture.graph, record_node_, captured_node_, node);
    }
    capture_ = capture.id;
    captured_node_ = node;
  }
  last_stream_ = stream;
  // A graph may be replayed between this operation and the next, on any stream. The event says so, the stream does not.
  ordered_behind_ = captured_ ? std::nullopt : id;
}

// What comes behind others' operations on their stream does not run beside them. A captured operation runs at any time beside whatever
// others queue then, as they have before.
Held Communicator::held_beside(std::span<Communicator* const> own, StreamId stream, bool captured) {
  Held sum;
  for (const Communicator* other : residents().all) {
    const Claim& claim = other->claim_;
    if (claim.blocks == 0 || other->device_ != own[0]->device_ || std::find(own.begin(), own.end(), other) != own.end()) continue;
    const bool before = claim.stream && claim.stream == stream;
    if (captured ? other->failure().has_value() : before || !other->holds()) continue;
    sum.add(claim.blocks, claim.cluster, claim.ahead);
  }
  return sum;
}

bool Communicator::holds() const {
  const std::scoped_lock lock(mutex_);
  return !failure_ && (captured_ || enqueued() != ended().completed);
}

bool Communicator::runs_beside() const {
  const std::scoped_lock lock(residents().mutex);
  return std::any_of(residents().all.begin(), residents().all.end(),
                     [&](const Communicator* other) { return other != this && other->device_ == device_ && other->holds(); });
}

// Its operations run one after another, so they hold what the largest of them does.
void Communicator::hold(const Plan& plan, StreamId stream, bool captured) {
  const bool more = holds(), one_stream = !captured && (!more || claim_.stream == stream);
  if (!more) claim_ = {};
  claim_.blocks = std::max(claim_.blocks, plan.blocks);
  claim_.cluster = std::max(claim_.cluster, plan.cluster);
  claim_.ahead = std::max(claim_.ahead, plan.ahead());
  claim_.stream = one_stream ? stream : std::nullopt;
}

// Before the launch, as a mapping that leaves the table is kept for what has been counted by then. And after which nobody may take the rank
// for one that has ended everything.
void Communicator::note(std::span<const Transfer> transfers, bool captured) {
  const std::scoped_lock lock(mutex_);
  if (failure_) throw_ended(*failure_);
  if (left_) throw_ended({"the process ends", std::nullopt});
  if (captured) {
    captured_ = true;
    return;
  }
  for (const Transfer& transfer : transfers) {
    if (transfer.communicator != this) continue;
    const Path path = path_of(transfer);
    ++enqueued_by_path_[static_cast<std::size_t>(path)];
    pending_.push_back({transfer.direction, path, transfer.peer, transfer.bytes, operations_});
    if (pending_.size() > kMostPending) pending_.pop_front();
  }
  ++operations_;
}

// What was noted last has not been launched.
void Communicator::take_back(std::span<const Transfer> transfers) {
  const std::scoped_lock lock(mutex_);
  for (const Transfer& transfer : transfers) {
    if (transfer.communicator != this) continue;
    --enqueued_by_path_[static_cast<std::size_t>(path_of(transfer))];
    if (!pending_.empty()) pending_.pop_back();
  }
}

// Each rank begins with the rank after it, so that not all write to rank 0 first. Messages of a pair keep their order.
std::vector<const Transfer*> Communicator::in_turn(std::span<const Transfer> transfers) {
  std::vector<const Transfer*> order;
  order.reserve(transfers.size());
  for (const Transfer& transfer : transfers) order.push_back(&transfer);
  const auto distance = [](const Transfer* transfer) {
    const Communicator& communicator = *transfer->communicator;
    return (std::uint64_t{transfer->peer} + communicator.world_ - communicator.rank_ - 1) % communicator.world_;
  };
  std::stable_sort(order.begin(), order.end(), [&](const Transfer* a, const Transfer* b) { return distance(a) < distance(b); });
  return order;
}

std::vector<Transfer> Communicator::with_sums(std::span<const Transfer> transfers, Checks& checks) {
  std::vector<Transfer> result;
  result.reserve(2 * transfers.size());
  for (const Transfer& transfer : transfers) {
    if (transfer.communicator->checker_) transfer.communicator->checker_->begin();
  }
  for (const Transfer& transfer : transfers) {
    result.push_back(transfer);
    std::optional<Checker>& checker = transfer.communicator->checker_;
    if (!checker) continue;
    Sums* const sums = checker->room();
    if (transfer.direction == Direction::send)
      checks.add_send(*checker, transfer.peer, transfer.data, transfer.bytes, sums);
    else
      checks.add_receive(transfer.communicator->region_->host(), *checker, transfer.peer, transfer.data, transfer.bytes, sums);
    result.push_back({transfer.communicator, transfer.direction, transfer.peer, reinterpret_cast<std::byte*>(sums), sizeof(Sums)});
  }
  return result;
}

void Communicator::enqueue(std::span<const Transfer> asked, std::span<const cudaStream_t> streams) {
  if (asked.empty()) return;
  Checks checks;
  std::vector<Transfer> checked;
  if (std::any_of(asked.begin(), asked.end(), [](const Transfer& transfer) { return transfer.communicator->checker_.has_value(); })) {
    if (asked.size() > kMostChecked)
      throw Error("an operation of " + std::to_string(asked.size()) + " transfers; in the checksum mode at most " +
                  std::to_string(kMostChecked) + ": use smaller groups");
    checked = with_sums(asked, checks);
  }
  const std::span<const Transfer> transfers = checked.empty() ? asked : checked;
  if (streams.empty()) throw Error("an operation without a stream");
  Communicator& first = *transfers[0].communicator;
  const DeviceScope scope(first.device_);
  std::vector<Communicator*> communicators;
  std::vector<Message> messages, rails;
  messages.reserve(transfers.size());
  std::uint32_t world = 0;
  for (const Transfer* transfer : in_turn(transfers)) {
    Communicator& communicator = *transfer->communicator;
    if (std::find(communicators.begin(), communicators.end(), &communicator) == communicators.end()) {
      if (communicator.device_ != first.device_) throw Error("an operation on two devices; one call serves one device");
      if (const auto failure = communicator.failure()) throw_ended(*failure);
      communicators.push_back(&communicator);
      world = std::max(world, communicator.world_);
    }
    const Message message = communicator.make_message(*transfer);
    (communicator.near(transfer->peer) ? messages : rails).push_back(message);
  }
  if (!rails.empty() && transfers.size() > kMaxMessages)
    throw Error("an operation of " + std::to_string(transfers.size()) + " transfers, some with other nodes; expected at most " +
                std::to_string(kMaxMessages) + ": use smaller groups");
  for (const cudaStream_t other : streams.subspan(1)) {
    check(cudaEventRecord(first.join_.get(), other), "joining streams");
    check(cudaStreamWaitEvent(streams[0], first.join_.get(), 0), "joining streams");
  }
  // Joining may have brought streams[0] into a capture.
  const Capture capture = capture_of(streams[0]);
  const StreamId id = capture.active ? std::nullopt : id_of(streams[0]);

  LaunchLimits limits{static_cast<std::uint32_t>(first.settings_.gpu_blocks),
                      first.settings_.gpu_low_latency_bytes,
                      first.kernels_.most_cluster_blocks,
                      world,
                      !rails.empty(),
                      static_cast<std::uint32_t>(first.settings_.gpu_host_share),
                      static_cast<std::uint32_t>(first.settings_.gpu_emulated_mesh * 1000),
                      1,
                      1,
                      first.settings_.eager_bytes,
                      bytes_over_rails(rails)};
  Plan plan{Kernel::rails, 1};
  std::vector<std::pair<Claim, bool>> before;  // of each communicator: its claim, and whether it had captured
  std::size_t noted = 0;
  const auto take_back = [&] {
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!capture.active && i < noted) communicators[i]->take_back(transfers);
      std::tie(communicators[i]->claim_, communicators[i]->captured_) = before[i];
    }
  };
  {
    const std::scoped_lock lock(residents().mutex);  // until what this one holds is known to the others
    const Room room =
        room_beside({first.share_.processors, residents().ranks[first.device_]}, held_beside(communicators, id, capture.active));
    limits.cluster_blocks = std::min(limits.cluster_blocks, room.cluster);
    limits.needed = room.needed;
    limits.room = room.blocks;
    if (!messages.empty()) plan = prepare(messages, limits);
    if (!rails.empty()) plan = prepare_rails(rails, plan, limits);
    try {
      for (Communicator* communicator : communicators) {
        before.emplace_back(communicator->claim_, communicator->captured_);
        communicator->hold(plan, id, capture.active);  // by what there was before this operation
        communicator->note(transfers, capture.active);
        ++noted;
      }
    } catch (...) {
      take_back();
      throw;
    }
  }
  const OperationHeader header{first.region_->state(),
                               first.settings_.gpu_timeout_ms * 1'000'000,
                               static_cast<std::uint32_t>(messages.size()),
                               plan.packet_messages,
                               plan.packet_blocks,
                               static_cast<std::uint32_t>(rails.size()),
                               limits.link_MBps};
  messages.insert(messages.end(), rails.begin(), rails.end());
  for (Message& message : messages) message.captured = capture.active;
  try {
    for (Communicator* communicator : communicators) communicator->order_before(streams[0], id, capture);
    checks.launch_sums(streams[0]);
    check(launch(header, messages, plan, first.kernels_, streams[0]), "launching an operation");
  } catch (...) {
    const std::scoped_lock lock(residents().mutex);
    take_back();
    throw;
  }
  try {
    checks.launch_comparison(streams[0]);
    for (Communicator* communicator : communicators) {
      communicator->order_after(streams[0], id, capture);
      const bool far = std::any_of(transfers.begin(), transfers.end(), [communicator](const Transfer& transfer) {
        return transfer.communicator == communicator && !communicator->near(transfer.peer);
      });
      if (far) communicator->rails_->expect(capture.active);
    }
    if (streams.size() > 1) check(cudaEventRecord(first.join_.get(), streams[0]), "splitting streams");
    for (const cudaStream_t other : streams.subspan(1)) check(cudaStreamWaitEvent(other, first.join_.get(), 0), "splitting streams");
  } catch (const Error& error) {
    // It runs, but what follows it would not wait for it.
    for (Communicator* communicator : communicators)
      communicator->fail({std::string("a launched operation: ") + error.what(), std::nullopt});
    throw;
  }
}

void Communicator::register_buffer(const void* data, std::uint64_t bytes) {
  const DeviceScope scope(device_);
  name_buffer(data, bytes);
}

// New names are rare, and until mates have mapped a buffer its messages go through slots.
Book::Place Communicator::name_buffer(const void* data, std::uint64_t bytes) {
  const Book::Place place = book_->name(data, bytes);
  if (place.is_new) ring_all();
  return place;
}

void Communicator::ring_all() const {
  ring(book_->page().bell);
  for (const Mate& mate : mates_) ring(mate_books_[mate.rank]->page().bell);
}

// --- Watching

// Mates have this rank for one of theirs by now, so what it lacks is a failure of the communicator.
void Communicator::start_threads() {
  try {
    mapper_ = std::jthread([this] { watch("rw-mapper", &Communicator::follow_books); });
    watcher_ = std::jthread([this] { watch("rw-watcher", &Communicator::look_around); });
  } catch (const std::system_error& error) {
    fail({std::string("no thread to watch a communicator: ") + error.what() + " (limits: ulimit -u, pids.max)", std::nullopt});
    tell_leaving(book_->page().life);
    end_threads();
    throw BootstrapError(failure()->text);
  }
}

void Communicator::end_threads() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  ring(book_->page().bell);
  for (std::jthread* thread : {&watcher_, &mapper_}) {
    if (thread->joinable()) thread->join();
  }
}

void Communicator::watch(const char* name, void (Communicator::*look)()) {
  ::pthread_setname_np(::pthread_self(), name);  // for top and profilers
  try {
    check(cudaSetDevice(device_), "selecting a device");
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "relaxing the capture mode");
  } catch (const Error& error) {
    fail({error.what(), std::nullopt});
  }
  Bell& bell = book_->page().bell;
  std::uint32_t heard = rings_of(bell);
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const bool busy = captured_ || enqueued() != ended().completed;
    lock.unlock();
    wait_for_ring(bell, heard, busy ? kBusyLook : kIdleLook);
    heard = rings_of(bell);
    try {
      (this->*look)();
    } catch (const std::exception& error) {
      fail({error.what(), std::nullopt});
    }
    lock.lock();
  }
}

void Communicator::look_around() {
  if (auto failure = find_failure(mates_)) fail(std::move(*failure));
  if (auto failure = find_unmatched()) fail(std::move(*failure));
  const HostView now = view();
  switch (static_cast<KernelError>(now.error)) {
    case KernelError::none: break;
    case KernelError::aborted:  // for a reason that is known already, unless it is another communicator's
      fail({"an operation that it shared with another communicator was ended with that one", std::nullopt});
      break;
    case KernelError::timed_out:
      fail({"an operation waited longer than gpu_timeout_ms (" + std::to_string(settings_.gpu_timeout_ms) + " ms) for rank " +
                std::to_string(now.error_peer),
            std::nullopt});
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
  MateBook::Progress progress{};
  const bool retired = std::any_of(mate_books_.begin(), mate_books_.end(), [](const auto& book) { return book && book->keeps_retired(); });
  progress.settled = retired && cudaStreamQuery(side_stream_.get()) == cudaSuccess;
  {
    const std::scoped_lock lock(mutex_);
    progress.enqueued = enqueued();
    progress.completed = ended().completed;
    progress.captured = captured_;
  }
  // A graph's launch records the event, as later operations that wait for it need. So a replay that is not over by this look, of which
  // nobody tells, is seen.
  if (progress.captured)
    progress.quiet = progress.settled && progress.enqueued == progress.completed && cudaEventQuery(last_.get()) == cudaSuccess;
  progress.idle = retired && (progress.captured ? progress.quiet : progress.enqueued == progress.completed) && !runs_beside();
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
    mate_books_[mate.rank]->follow(progress, of_mate);
  }
  const bool sent = extents_ != nullptr && extents_->deliver();
  const bool busy = progress.captured || progress.enqueued != progress.completed;
  const bool freed = book_->look_for_freed(busy ? kLooksWhileBusy : kLooksWhileIdle);
  if (sent || freed) ring_all();  // who it is for, and this thread, which may have more to send
  if (mail.size() == kMostMail) ring(book_->page().bell);
}

// A rank that has left will not queue what a message of this one still needs. What it had queued has ended, so its counts say what that
// was.
std::optional<Failure> Communicator::find_unmatched() {
  std::set<std::uint32_t> gone;
  for (const Mate& mate : mates_) {
    if (has_left_well(mate)) gone.insert(mate.rank);
  }
  if (gone.empty()) return std::nullopt;
  std::vector<Pending> waiting;
  std::uint64_t completed = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) return std::nullopt;
    waiting = waiting_messages();
    completed = ended().completed + replayed().completed;
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
  const std::scoped_lock words_lock(words_mutex_);
  PortWords words;
  std::set<std::uint32_t> mates;
  for (const Pending& pending : waiting) mates.insert(mate_of_[pending.peer]);
  if (!read_words(mates, true, words)) return std::nullopt;
  for (const auto& [pending, message] : in_order(waiting)) {
    const std::uint32_t mate = mate_of_[pending.peer];
    if (!is_unmatched(message, *words.own[mate], *words.mates[mate])) continue;
    const std::scoped_lock lock(mutex_);
    if (ended().completed + replayed().completed != completed) return std::nullopt;
    return Failure{"a " + name(pending.direction, pending.bytes, pending.peer) + " waits, and that rank has left", pending.peer};
  }
  return std::nullopt;
}

// True, and mates that have nothing to do with this rank any more go on, where all that was queued has ended: nothing is queued from then
// on. Under mutex_. The watching threads end, too: what they met would be told as a failure.
bool Communicator::leave() {
  if (failure_ || enqueued() != ended().completed || (captured_ && cudaEventQuery(last_.get()) != cudaSuccess)) return false;
  left_ = ending_ = true;
  tell_leaving(book_->page().life);
  return true;
}

// Mates take an end with something unended for a death. It is no failure: threads of the program's that still ask for one would end it.
void Communicator::leave_with_process() {
  if (const auto lock = lock_for_a_moment(mutex_)) leave();
}

// Kernels leave, mates hear of it, later calls fail. The first reason stays.
void Communicator::fail(Failure failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (ending_) return;  // mates hold it for one that has left, or that no failure is news of
    if (!failure_) failure_ = std::move(failure);
    tell_failure(book_->page().life, *failure_);
  }
  stop_kernels();
}

void Communicator::stop_kernels() {
  std::atomic_ref(region_->host().stop).store(1, std::memory_order_release);
  if (rails_ != nullptr) rails_->stop();
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

Totals Communicator::ended() const {
  Totals sum{};
  for (std::size_t path = 0; path < kPaths; ++path) sum += ended(static_cast<Path>(path), false);
  return sum;
}

Totals Communicator::replayed() const {
  Totals sum{};
  for (std::size_t path = 0; path < kPaths; ++path) sum += ended(static_cast<Path>(path), true);
  return sum;
}

Totals Communicator::ended(Path path, bool captured) const {
  Totals& totals = region_->host().ended[account_of(path, captured)];
  return {load_shared(totals.completed), load_shared(totals.bytes_sent), load_shared(totals.bytes_received)};
}

std::optional<Failure> Communicator::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

// PyTorch aborts what a program has not destroyed when it ends.
void Communicator::abort() {
  const Failure failure{"aborted on rank " + std::to_string(rank_), std::nullopt};
  bool left = false;
  {
    const std::scoped_lock lock(mutex_);
    left = leave();
    if (left) failure_ = failure;
  }
  if (!left) return fail(failure);
  ring(book_->page().bell);
  stop_kernels();
}

void Communicator::drain() {
  if (drained_) return;
  drained_ = true;
  // What was queued ends, however late its peers come: no bound but that of every operation, gpu_timeout_ms. The event covers captured
  // operations as well, which have no count.
  while (cudaEventQuery(last_.get()) == cudaErrorNotReady) std::this_thread::sleep_for(kBusyLook);
  tell_leaving(book_->page().life);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(settings_.drain_ms);
  const auto left = [](const Mate& mate) { return mate.pidfd < 0 || has_left(mate); };
  while (!std::all_of(mates_.begin(), mates_.end(), left) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(kBusyLook);
  if (rails_ != nullptr) rails_->close();
}

// --- Looking at it

Counters Communicator::counters() const {
  const Totals replays = replayed();
  Totals now = ended();
  now += replays;
  const std::scoped_lock lock(mutex_);
  Counters counters{enqueued() + replays.completed, now.completed, now.bytes_sent, now.bytes_received, {}};
  std::uint64_t far = 0;
  for (const PathKind kind : {PathKind::rail, PathKind::cross_rail}) {
    const std::uint64_t bytes = rails_ == nullptr ? 0 : rails_->bytes_sent(kind);
    counters.bytes_by_kind[static_cast<std::size_t>(kind)] = bytes;
    far += bytes;
  }
  const IndirectSent indirect = indirect_->sent();
  counters.bytes_by_kind[static_cast<std::size_t>(PathKind::host)] = indirect.over_host;
  counters.bytes_by_kind[static_cast<std::size_t>(PathKind::relay)] = indirect.over_relays;
  const std::uint64_t others = far + indirect.over_host + indirect.over_relays;
  counters.bytes_by_kind[static_cast<std::size_t>(PathKind::direct)] = now.bytes_sent - std::min(others, now.bytes_sent);
  return counters;
}

std::vector<NicUse> Communicator::nics() const { return rails_ == nullptr ? std::vector<NicUse>{} : rails_->nics(); }

Path Communicator::path_of(const Transfer& transfer) const {
  if (!near(transfer.peer)) return Path::rail;
  return transfer.bytes <= settings_.gpu_low_latency_bytes ? Path::packets : Path::granted;
}

// The newest of each path, as many as have not ended, oldest first: an operation's paths end each for itself.
std::vector<Communicator::Pending> Communicator::waiting_messages() const {
  std::uint64_t left[kPaths];
  for (std::size_t path = 0; path < kPaths; ++path) {
    const std::uint64_t completed = ended(static_cast<Path>(path), false).completed;
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
  return waiting;
}

// Copying works while kernels wait for their peers. A GPU that does not answer is not waited for.
bool Communicator::read_words(const std::set<std::uint32_t>& mates, bool theirs, PortWords& words) const {
  const DeviceScope scope(device_);
  words.own.resize(mates_.size() + 1);
  words.mates.resize(mates_.size() + 1);
  for (const std::uint32_t mate : mates) {
    words.own[mate] = region_->copy_words(mate, side_stream_.get());
    if (theirs) words.mates[mate] = region_->copy_mates_words(mate, side_stream_.get());
  }
  const auto deadline = std::chrono::steady_clock::now() + kAnswerTime;
  cudaError_t status = cudaErrorNotReady;
  while ((status = cudaStreamQuery(side_stream_.get())) == cudaErrorNotReady && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(kBusyLook);
  return status == cudaSuccess;
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
  std::vector<Pending> waiting;
  std::string text;
  {
    const std::scoped_lock lock(mutex_);
    text = "rank " + std::to_string(rank_) + " of " + std::to_string(world_) + " on device " + std::to_string(device_) + ": " +
           std::to_string(ended().completed + replayed().completed) + " messages ended";
    if (failure_) text += "; failed: " + failure_->text;
    text += '\n';
    waiting = waiting_messages();
  }
  if (rails_ == nullptr) return text + describe(waiting, nullptr);
  const auto standing = rails_->standing(kAnswerTime);
  text += describe(waiting, standing ? &*standing : nullptr);
  if (standing) {
    for (const std::string& link : standing->links) text += link + '\n';
  } else {
    text += "the thread that serves rails does not answer\n";
  }
  for (const std::string& link : rails_->links_down()) text += "link down: " + link + '\n';
  return text;
}

// `standing`: of messages over rails.
std::string Communicator::describe(const std::vector<Pending>& waiting, const engine::Standing* standing) const {
  std::string text;
  if (waiting.empty()) return text;
  std::set<std::uint32_t> mates;
  for (const Pending& pending : waiting) {
    if (near(pending.peer)) mates.insert(mate_of_[pending.peer]);
  }
  PortWords words;
  bool readable = false;
  try {
    readable = read_words(mates, false, words);
  } catch (const DeviceError& error) {
    text += std::string("the GPU cannot be asked: ") + error.what() + '\n';
  }
  for (const auto& [pending, message] : in_order(waiting)) {
    if (pending.operation != waiting.front().operation)
      text += name(pending.direction, pending.bytes, pending.peer) + ": queued behind";
    else if (pending.path == Path::rail && standing != nullptr && !standing->messages.empty())
      continue;  // told below
    else if (pending.path == Path::rail)
      text += name(pending.direction, pending.bytes, pending.peer) + ": over rails" +
              (standing == nullptr ? "" : "; its kernel has not listed it, or it has ended");
    else if (readable)
      text += waiting_text(message, *words.own[mate_of_[pending.peer]]);
    else
      text += name(pending.direction, pending.bytes, pending.peer) + ": the GPU does not answer";
    text += std::string(" (") + where(pending.peer) + ")\n";
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
