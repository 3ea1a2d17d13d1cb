#include "communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "capture.hpp"
#include "checksum.hpp"
#include "communicator_parts.hpp"
#include "deferred.hpp"
#include "device.hpp"
#include "explain.hpp"
#include "fetch_prepare.hpp"
#include "fetch_roles.hpp"
#include "partition.hpp"
#include "rail_prepare.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

constexpr std::size_t kMostPending = 4096;
constexpr std::size_t kMostCaptured = 64;  // that are told of where a replay stands still

// This process's communicators: what one's operations may have of a device follows from what all hold of it.
// Nothing of CUDA is called under its mutex while operations may be queued: that may wait for a kernel, and the kernel for a rank whose
// thread waits for the mutex.
struct Residents {
  std::mutex mutex;
  std::vector<Communicator*> all;
  std::map<int, std::uint32_t> ranks;  // by device: the most that any communicator has had on it
  // By device, taken before `mutex`. Held until an operation has been noted, and by who makes a call of CUDA's that waits for kernels of
  // the device: with nothing noted there none of ours runs or can begin, so that call does not wait for one. It may wait for another
  // library's, which holds up operations on this device alone, whose launches would wait for the call anyway.
  std::map<int, std::mutex> noting;
};
// Never destroyed: programs destroy communicators as late as when the process ends.
Residents& residents() {
  static Residents& each = *new Residents;
  return each;
}

// Never destroyed, for the same reason.
Deferred& deferred() {
  static Deferred& each = *new Deferred;
  return each;
}

std::atomic<bool> process_ends = false;

std::mutex& noting_on(int device) {
  const std::scoped_lock lock(residents().mutex);
  return residents().noting[device];
}

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

}  // namespace

Communicator::Communicator(std::uint32_t rank, std::uint32_t world, int device, const ExchangeSettings& settings,
                           const KernelBounds& bounds, Remarks::Say say, Remarks::Say warn)
    : rank_(rank),
      world_(world),
      device_(device),
      settings_(settings),
      bounds_(bounds),
      noting_(noting_on(device)),
      mate_of_(world, kFar),
      remarks_(std::move(say), std::move(warn)),
      mate_books_(world),
      processes_(world) {}

void Communicator::begin(const std::string& rendezvous) {
  bring_together(rendezvous);
  try {
    start_threads();
    become_resident();
  } catch (const std::exception& error) {
    // Mates have this rank for one of theirs by now, so what it lacks is a failure of the communicator.
    fail_by(error);
    tell_leaving(book_->page().life);
    end_threads();
    throw;
  }
  ended_ = false;
}

void Communicator::become_resident() {
  // Many programs end without destroying what they have made. Registered after CUDA's own handlers, so called before them; not for
  // children, which have these words of their parent's, too.
  static const pid_t process = ::getpid();
  static const int registered = std::atexit([] {
    if (::getpid() != process) return;
    process_ends = true;
    const auto lock = lock_for_a_moment(residents().mutex);
    if (!lock) return;
    for (Communicator* communicator : residents().all) communicator->leave_with_process();
  });
  static_cast<void>(registered);
  const std::scoped_lock lock(residents().mutex);
  std::uint32_t& ranks = residents().ranks[device_];
  ranks = std::max(ranks, share_.ranks);
  residents().all.push_back(this);
}

bool Communicator::ends_with_process() noexcept { return process_ends; }

Communicator::~Communicator() { end(); }

void Communicator::end() {
  if (std::exchange(ended_, true)) return;
  drain();
  wait_for_mates();
  {
    const std::scoped_lock noting(noting_);  // who holds it may ask those that it found
    const std::scoped_lock lock(residents().mutex);
    std::erase(residents().all, this);
  }
  end_threads();
}

void Communicator::give_back(int device, std::shared_ptr<void> memory) {
  deferred().add(device, std::move(memory));
  give_back_deferred(device);
}

// By the thread of each of the device's communicators that maps, and when one of them ends: with the last one nothing is left.
void Communicator::give_back_deferred(int device) {
  if (!deferred().has(device)) return;
  settle_on(device);
  deferred().give_back(device, [device](const std::function<void()>& call) {
    const std::scoped_lock noting(noting_on(device));
    const auto all = on_device(device);
    if (std::any_of(all.begin(), all.end(), [](const Communicator* each) { return each->runs(); })) return false;
    call();
    return true;
  });
}

// --- Operations

Message Communicator::make_message(const Transfer& transfer) {
  if (transfer.peer >= world_)
    throw Error("peer " + std::to_string(transfer.peer) + " of a transfer; the communicator has ranks 0 to " + std::to_string(world_ - 1));
  if (transfer.data == nullptr || transfer.bytes == 0)
    throw Error(name(transfer.direction, transfer.bytes, transfer.peer) + ": expected memory and at least 1 byte");
  if (transfer.bytes > ~reinterpret_cast<std::uint64_t>(transfer.data))
    throw Error(name(transfer.direction, transfer.bytes, transfer.peer) + ": more than there are addresses");
  Message message{};
  message.data = transfer.data;
  if (near(transfer.peer))
    complete_near(message, transfer);
  else
    message.rail = rails_->side();
  message.path = path_of(transfer);
  message.bytes = transfer.bytes;
  message.direction = transfer.direction;
  message.peer = transfer.peer;
  message.host = &region_->host();
  message.ledger = region_->ledger();
  return message;
}

void Communicator::complete_near(Message& message, const Transfer& transfer) {
  const std::uint32_t mate = mate_of_[transfer.peer];
  message.local = region_->local(mate);
  message.remote = region_->remote(mate);
  message.paths = transfer.direction == Direction::send ? indirect_->paths_to(mate) : indirect_->paths_from(mate);
  message.relay_slots = indirect_->relay_slots();
  if (transfer.direction == Direction::send) return;
  if (transfer.peer == rank_) {
    // Whatever memory it is. Without that what a rank sends itself went through slots where it is virtual, as no table has its own buffers:
    // an all-to-all of 64 MiB under PyTorch's expandable segments took 1,040 us instead of 115, and NCCL 144 (2 x H100).
    message.named = {kAbsoluteBuffer, reinterpret_cast<std::uint64_t>(transfer.data)};
  } else if (path_of(transfer) == Path::granted) {
    const Book::Place place = name_buffer(transfer.data, transfer.bytes);
    message.named = name_for(transfer.peer, place);
    if (message.named.buffer != kNoBuffer || !place.on_device) return;  // a copy to pageable host memory would wait for the operation here
    std::byte* const there = staging_->place(transfer.data, transfer.bytes);
    if (there == nullptr) {
      if (staging_->full()) tell_no_room();
      return want_staging();
    }
    message.data = there;
    message.named = name_for(transfer.peer, name_buffer(there, transfer.bytes));
  }
}

void Communicator::name_to_offer(Message& message) {
  message.named = name_for(message.peer, name_buffer(message.data, message.bytes, Book::Memory::whole_allocations));
  if (message.named.buffer == kNoBuffer) message.paths &= static_cast<std::uint8_t>(~kFetched);
}

// --- Receives into memory that mates cannot map

void Communicator::want_staging() {
  if (staging_->want()) ring(book_->page().bell);
}

void Communicator::tell_no_room() {
  if (!std::exchange(told_no_room_, true))
    remarks_.once(
        "messages into receive buffers that other ranks cannot map go through slots where they do not fit into gpu_staging_bytes (" +
        std::to_string(staging_->bytes()) + "), at less than a tenth of the rate");
}

void Communicator::provide_staging() {
  const std::uint64_t bytes = staging_->bytes();
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    remarks_.once("receive buffers that other ranks cannot map are reached through slots: no " + std::to_string(bytes >> 20) +
                  " MiB of the GPU to receive into instead (gpu_staging_bytes): " + text_of(error));
    return staging_->provide(nullptr);
  }
  std::shared_ptr<std::byte> buffer(static_cast<std::byte*>(memory), [](std::byte* data) { cudaFree(data); });
  const Book::Place place = name_buffer(buffer.get(), bytes);
  if (!named_for_all(place)) {
    remarks_.once("receive buffers that other ranks cannot map are reached through slots: nor can they map memory of this library");
    staging_->provide(nullptr);
    return give_back(device_, std::move(buffer));  // to free it waits for kernels
  }
  remarks_.once("messages into receive buffers that other ranks cannot map are received into " + std::to_string(bytes >> 20) +
                " MiB of this library's (gpu_staging_bytes), and copied from there");
  staging_->provide(std::move(buffer));
}

void Communicator::copy_staged(cudaStream_t stream) const {
  for (const Staging::Copy& copy : staging_->copies())
    check(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDeviceToDevice, stream), "copying what was received");
}

// Operations of a communicator run one after another, in the order of enqueue calls, whatever their streams. Inside one capture an edge
// says so; an event before the first and after the last one orders the graph's run among other operations. Event nodes between the
// operations would cost each of them 1 to 3 us (docs/gpu-probe.md).
void Communicator::order_before(cudaStream_t stream, StreamId id, const Capture& capture) {
  if (!capture.active) {
    if (!id || ordered_behind_ != id) check(cudaStreamWaitEvent(stream, last_.get(), cudaEventWaitDefault), "ordering an operation");
  } else {
    capture_order_.before(CaptureCalls{capture.graph, last_.get()}, capture.id, stream);
  }
}

void Communicator::order_after(cudaStream_t stream, StreamId id, const Capture& capture) {
  if (!capture.active) {
    check(cudaEventRecord(last_.get(), stream), "ordering an operation");
  } else {
    capture_order_.after(CaptureCalls{capture.graph, last_.get()}, capture.id, stream);
  }
  // A graph may be replayed between this operation and the next, on any stream. The event says so, the stream does not.
  ordered_behind_ = captured_ ? std::nullopt : id;
}

// Not under a mutex: the driver may answer when a kernel has ended that waits for what another thread is about to queue.
void Communicator::settle(const std::function<bool(const Communicator&)>& which) {
  struct Other {
    const Communicator* communicator;
    std::shared_ptr<CUevent_st> last;
    std::uint64_t messages;
  };
  std::vector<Other> others;
  {
    const std::scoped_lock lock(residents().mutex);
    for (const Communicator* other : residents().all) {
      if (!which(*other)) continue;
      if (const auto messages = other->to_settle()) others.push_back({other, other->last_, *messages});
    }
  }
  std::erase_if(others, [](const Other& other) { return !is_over(other.last.get()); });
  if (others.empty()) return;
  const std::scoped_lock lock(residents().mutex);
  for (const Other& other : others) {
    const auto& all = residents().all;
    const bool stays = std::find(all.begin(), all.end(), other.communicator) != all.end() && other.communicator->last_ == other.last;
    if (stays) other.communicator->know_over(other.messages);
  }
}

void Communicator::settle_on(int device) {
  const DeviceScope scope(device);
  settle([device](const Communicator& each) { return each.device_ == device; });
}

// What comes behind others' operations on their stream does not run beside them.
bool Communicator::may_hold_beside(std::span<Communicator* const> own, StreamId stream) const {
  if (claim_.blocks == 0 || device_ != own[0]->device_ || std::find(own.begin(), own.end(), this) != own.end()) return false;
  return !claim_.stream || claim_.stream != stream;
}

// A captured operation (no stream) runs at any time beside whatever others queue then, as they have before.
Held Communicator::held_beside(std::span<Communicator* const> own, StreamId stream, bool captured) {
  Held sum;
  for (const Communicator* other : residents().all) {
    if (!other->may_hold_beside(own, stream) || (captured ? other->failure().has_value() : !other->holds())) continue;
    const Claim& claim = other->claim_;
    sum.add(claim.blocks, claim.cluster, claim.ahead);
  }
  return sum;
}

bool Communicator::holds() const {
  const std::scoped_lock lock(mutex_);
  return !failure_ && (captured_ || pending());
}

// Replays are not noted, so one may be launched right after the event was asked. To take them for under way always, as holds() does, would
// let pile up what a program destroys beside two communicators with graphs. A failed one's kernels may rest for a while before they leave.
bool Communicator::runs() const {
  bool event_tells = false;
  {
    const std::scoped_lock lock(mutex_);
    if (launching_ != 0 || (!failure_ && pending())) return true;
    event_tells = failure_ || captured_;
  }
  return event_tells && cudaEventQuery(last_.get()) == cudaErrorNotReady;  // not under mutex_: see all_is_over()
}

std::vector<const Communicator*> Communicator::on_device(int device) {
  const std::scoped_lock lock(residents().mutex);
  std::vector<const Communicator*> found;
  std::copy_if(residents().all.begin(), residents().all.end(), std::back_inserter(found),
               [device](const Communicator* each) { return each->device_ == device; });
  return found;
}

bool Communicator::call_alone(bool quiet, const std::function<void()>& call) {
  settle_on(device_);
  const std::scoped_lock noting(noting_);
  {
    const std::scoped_lock lock(mutex_);
    if (pending() || (captured_ && !quiet)) return false;
  }
  const auto others = on_device(device_);
  if (std::any_of(others.begin(), others.end(), [this](const auto* each) { return each != this && each->runs(); })) return false;
  call();
  return true;
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
    for (const Transfer& transfer : transfers) {
      if (transfer.communicator != this || captured_messages_.size() == kMostCaptured) continue;
      const Pending message{transfer.direction, path_of(transfer), transfer.peer, transfer.bytes, 0};
      if (std::find(captured_messages_.begin(), captured_messages_.end(), message) == captured_messages_.end())
        captured_messages_.push_back(message);
    }
    captured_ = true;
    ++launching_;
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
  ++launching_;
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

namespace {

// streams[0] waits for the others.
void gather(std::span<const cudaStream_t> streams, cudaEvent_t event) {
  for (const cudaStream_t other : streams.subspan(1)) {
    check(cudaEventRecord(event, other), "joining streams");
    check(cudaStreamWaitEvent(streams[0], event, 0), "joining streams");
  }
}

// The others wait for streams[0].
void spread(std::span<const cudaStream_t> streams, cudaEvent_t event) {
  if (streams.size() > 1) check(cudaEventRecord(event, streams[0]), "splitting streams");
  for (const cudaStream_t other : streams.subspan(1)) check(cudaStreamWaitEvent(other, event, 0), "splitting streams");
}

}  // namespace

void Communicator::join(std::span<const cudaStream_t> streams) {
  if (streams.size() < 2) return;
  const DeviceScope scope(device_);
  // What waits for a stream that is being captured would be captured from then on, or the capture lost: NCCL takes no such group either.
  const Capture capture = capture_of(streams[0]);
  for (const cudaStream_t stream : streams.subspan(1)) {
    const Capture other = capture_of(stream);
    if (other.active != capture.active || (capture.active && other.id != capture.id))
      throw Error("streams of a group that are not all being captured into one graph; expected all or none");
  }
  gather(streams, join_.get());
  spread(streams, join_.get());
}

namespace {

std::atomic<void (*)(const char*)> told_explanations{nullptr};

}  // namespace

void Communicator::explain_to(void (*tell)(const char* text)) { told_explanations = tell; }

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
  bool several_nodes = false;
  for (const Transfer* transfer : in_turn(transfers)) {
    Communicator& communicator = *transfer->communicator;
    if (std::find(communicators.begin(), communicators.end(), &communicator) == communicators.end()) {
      if (communicator.device_ != first.device_) throw Error("an operation on two devices; one call serves one device");
      if (const auto failure = communicator.failure()) throw_ended(*failure);
      communicator.staging_->begin();
      communicators.push_back(&communicator);
      world = std::max(world, communicator.world_);
      several_nodes = several_nodes || communicator.rails_ != nullptr;
    }
    const Message message = communicator.make_message(*transfer);
    (communicator.near(transfer->peer) ? messages : rails).push_back(message);
  }
  if (rails.size() > kMostListed)
    throw Error("an operation of " + std::to_string(rails.size()) + " transfers with other nodes; expected at most " +
                std::to_string(kMostListed) + ": use smaller groups");
  LaunchLimits limits{.blocks = static_cast<std::uint32_t>(first.settings_.gpu_blocks),
                      .world = world,
                      .beside_rails = !rails.empty(),
                      .host_share = static_cast<std::uint32_t>(first.settings_.gpu_host_share),
                      .link_MBps = static_cast<std::uint32_t>(first.settings_.gpu_emulated_mesh * 1000),
                      .staged_bytes = first.settings_.eager_bytes,
                      .rail_bytes = bytes_over_rails(rails),
                      .channel_bytes = first.bounds_.channel_bytes,
                      .several_nodes = several_nodes,
                      .pair_rate = static_cast<double>(first.settings_.gpu_pair_rate),
                      .block_rate = static_cast<double>(first.settings_.gpu_block_rate),
                      .knows_rates = (first.settings_.gpu_rates_said || first.kernels_.measured) && !first.settings_.gpu_blocks_said};
  for (const Communicator* communicator : communicators) {
    if (const std::uint32_t most = communicator->bounds_.most_blocks; most != 0) limits.room = std::min(limits.room, most);
  }
  const std::uint32_t expected_blocks = choose_fetched(messages, limits);
  for (Message& message : messages) {
    const auto has_sent_it = [&](const Communicator* each) { return &each->region_->host() == message.host; };
    if (message.direction == Direction::send && is_fetched(message))
      (*std::find_if(communicators.begin(), communicators.end(), has_sent_it))->name_to_offer(message);
  }
  gather(streams, first.join_.get());
  // Joining may have brought streams[0] into a capture.
  const Capture capture = capture_of(streams[0]);
  const StreamId id = capture.active ? std::nullopt : id_of(streams[0]);
  DeviceShare share = share_of(streams[0], first.share_);
  Plan plan{Kernel::rails, 1};
  std::vector<std::pair<Claim, bool>> before;  // of each communicator: its claim, and whether it had captured
  std::size_t noted = 0;
  struct Launching {
    const std::vector<Communicator*>& communicators;
    const std::size_t& noted;
    bool recorded = true;  // else the event does not tell of what runs, and never will
    ~Launching() {
      for (std::size_t i = 0; recorded && i < noted; ++i) --communicators[i]->launching_;
    }
  } launching{communicators, noted};
  const auto take_back = [&] {
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!capture.active && i < noted) communicators[i]->take_back(transfers);
      std::tie(communicators[i]->claim_, communicators[i]->captured_) = before[i];
    }
  };
  if (!capture.active) settle([&](const Communicator& other) { return other.may_hold_beside(communicators, id); });
  {
    const std::scoped_lock noting(first.noting_);
    const std::scoped_lock lock(residents().mutex);  // until what this one holds is known to the others
    share.ranks = residents().ranks[first.device_];
    const Room room = room_beside(share, held_beside(communicators, id, capture.active));
    limits.cluster_blocks = room.cluster;
    limits.needed = room.needed;
    limits.room = std::min(limits.room, room.blocks);
    if (expected_blocks != 0) reconsider_fetched(messages, limits, expected_blocks);
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
  const OperationHeader header{.state = first.region_->state(),
                               .timeout_ns = first.settings_.gpu_timeout_ms * 1'000'000,
                               .count = static_cast<std::uint32_t>(messages.size()),
                               .packet_messages = plan.packet_messages,
                               .packet_blocks = plan.packet_blocks,
                               .packet_blocks_a_cluster = plan.packet_blocks_a_cluster,
                               .rails = static_cast<std::uint32_t>(rails.size()),
                               .link_MBps = limits.link_MBps,
                               .send_warps = plan.send_warps,
                               .receive_warps = plan.receive_warps,
                               .warp_distance = plan.warp_distance,
                               .patience_ns = patience_ns(limits.pair_rate),
                               .in_step_blocks = plan.in_step_blocks,
                               .in_step_KiB = plan.in_step_KiB};
  messages.insert(messages.end(), rails.begin(), rails.end());
  for (Message& message : messages) message.captured = capture.active;
  const auto tell = told_explanations.load();
  std::string explained;  // made before anything is queued, as that may fail
  try {
    if (tell != nullptr) explained = explanation(plan, messages, limits);
    for (Communicator* communicator : communicators) communicator->order_before(streams[0], id, capture);
    checks.launch_sums(streams[0]);
    check(launch(header, messages, plan, first.kernels_, streams[0]), "launching an operation");
  } catch (...) {
    const std::scoped_lock lock(residents().mutex);
    take_back();
    throw;
  }
  try {
    for (const Communicator* communicator : communicators) communicator->copy_staged(streams[0]);
    checks.launch_comparison(streams[0]);
    for (Communicator* communicator : communicators) {
      communicator->order_after(streams[0], id, capture);
      const bool far = std::any_of(transfers.begin(), transfers.end(), [communicator](const Transfer& transfer) {
        return transfer.communicator == communicator && !communicator->near(transfer.peer);
      });
      if (far) communicator->rails_->expect(capture.active);
    }
    spread(streams, first.join_.get());
  } catch (const std::exception& error) {  // the host may have no memory left, too
    // It runs, but what follows it would not wait for it.
    for (Communicator* communicator : communicators) {
      if (!capture.active && cudaEventRecord(communicator->last_.get(), streams[0]) != cudaSuccess) launching.recorded = false;
      communicator->fail({std::string("a launched operation: ") + error.what(), std::nullopt});
    }
    throw;
  }
  if (tell != nullptr) tell(explained.c_str());
}

void Communicator::register_buffer(const void* data, std::uint64_t bytes) {
  const DeviceScope scope(device_);
  const Book::Place place = name_buffer(data, bytes);
  if (place.on_device && !named_for_all(place)) want_staging();
}

// New names are rare, and until mates have mapped a buffer its messages go through slots.
Book::Place Communicator::name_buffer(const void* data, std::uint64_t bytes, Book::Memory which) {
  const Book::Place place = book_->name(data, bytes, which);
  if (place.is_new) ring_all();
  return place;
}

BufferName Communicator::name_for(std::uint32_t peer, const Book::Place& place) const {
  return processes_[peer] ? place.remote : place.local;
}

bool Communicator::named_for_all(const Book::Place& place) const {
  return std::all_of(mates_.begin(), mates_.end(), [&](const Mate& mate) { return name_for(mate.rank, place).buffer != kNoBuffer; });
}

void Communicator::ring_all() const {
  ring(book_->page().bell);
  for (const Mate& mate : mates_) ring(mate_books_[mate.rank]->page().bell);
}

}  // namespace railweave::cuda
