#include "communicator.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "../engine/cluster.hpp"
#include "../engine/wire.hpp"
#include "capture.hpp"
#include "device.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

using namespace std::chrono_literals;
using engine::Blob;

constexpr std::uint32_t kHello = 0x52574355;  // "RWCU"
// How often the watching thread looks: while operations are under way, and else. An error or a new buffer is seen within that time.
constexpr auto kBusyLook = 1ms, kIdleLook = 20ms;
constexpr std::size_t kMostPending = 4096;

int open_pidfd(std::int32_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

template <typename T>
T load_shared(T& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

struct Hello {
  std::string node;
  std::uint64_t low_latency_bytes = 0;
  RegionHandle region{};
  engine::MemoryHandle book;
};

Blob encode(const Hello& hello, std::uint32_t world) {
  engine::ByteWriter out;
  out.put(kHello).put(world).text(hello.node).put(hello.low_latency_bytes).put(hello.region).put(hello.book);
  return out.take();
}

Hello decode(const Blob& blob, std::uint32_t rank, std::uint32_t world) {
  engine::ByteReader in(blob);
  const std::string who = "rank " + std::to_string(rank);
  const auto magic = in.get<std::uint32_t>();
  const auto peer_world = in.get<std::uint32_t>();
  Hello hello;
  hello.node = in.text();
  hello.low_latency_bytes = in.get<std::uint64_t>();
  hello.region = in.get<RegionHandle>();
  hello.book = in.get<engine::MemoryHandle>();
  if (!in.ok() || magic != kHello) throw BootstrapError(who + " does not speak this version of Railweave's GPU protocol");
  if (peer_world != world)
    throw BootstrapError(who + " was started with world " + std::to_string(peer_world) + "; expected " + std::to_string(world));
  return hello;
}

std::string name(Direction direction, std::uint64_t bytes, std::uint32_t peer) {
  return (direction == Direction::send ? "send of " : "receive of ") + std::to_string(bytes) + " bytes " +
         (direction == Direction::send ? "to" : "from") + " rank " + std::to_string(peer);
}

}  // namespace

Communicator::Communicator(std::uint32_t rank, std::uint32_t world, int device, const std::string& rendezvous,
                           const ExchangeSettings& settings)
    : rank_(rank),
      world_(world),
      device_(device),
      settings_(settings),
      kernels_(preload_kernels()),
      region_(rank, world),
      mate_books_(world),
      processes_(world) {
  bring_together(rendezvous);
  watcher_ = std::jthread([this] { watch(); });
}

void Communicator::bring_together(const std::string& rendezvous_address) {
  const auto rendezvous = engine::make_rendezvous(rendezvous_address, rank_, world_, std::chrono::milliseconds(settings_.bootstrap_ms));
  const Hello mine{engine::node_identity(settings_), settings_.gpu_low_latency_bytes, region_.handle(), book_.handle()};
  const std::vector<Blob> blobs = rendezvous->all_gather("gpu-hello", encode(mine, world_));
  std::string problem;
  try {
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      const Hello theirs = decode(blobs[rank], rank, world_);
      if (theirs.node != mine.node)
        throw BootstrapError("rank " + std::to_string(rank) + " runs on another node; GPU communicators span one node so far");
      if (theirs.low_latency_bytes != mine.low_latency_bytes)
        throw BootstrapError("rank " + std::to_string(rank) + " has gpu_low_latency_bytes " + std::to_string(theirs.low_latency_bytes) +
                             "; expected " + std::to_string(mine.low_latency_bytes) + ", as all ranks must agree");
      region_.map(rank, theirs.region);
      if (rank == rank_) continue;
      mate_books_[rank] = std::make_unique<MateBook>(theirs.book, region_.mappings(rank));
      if (theirs.region.pid != mine.region.pid) {
        processes_[rank] = engine::Fd(open_pidfd(theirs.region.pid));
        if (!processes_[rank])
          throw BootstrapError("rank " + std::to_string(rank) + ": its process cannot be watched (pidfd_open: " + std::strerror(errno) +
                               ")");
      }
      mates_.push_back({rank, &mate_books_[rank]->page().life, processes_[rank].get()});
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  engine::agree(*rendezvous, "gpu-mapped", problem);
  rendezvous->finish();
}

Communicator::~Communicator() {
  drain();
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

// --- Operations

Message Communicator::make_message(const Transfer& transfer) {
  if (transfer.peer >= world_)
    throw Error("peer " + std::to_string(transfer.peer) + " of a transfer; the communicator has ranks 0 to " + std::to_string(world_ - 1));
  if (transfer.data == nullptr || transfer.bytes == 0)
    throw Error(name(transfer.direction, transfer.bytes, transfer.peer) + ": expected memory and at least 1 byte");
  Message message{};
  message.local = region_.local(transfer.peer);
  message.remote = region_.remote(transfer.peer);
  message.data = transfer.data;
  message.bytes = transfer.bytes;
  message.direction = transfer.direction;
  message.peer = transfer.peer;
  message.host = &region_.host();
  message.totals = region_.totals();
  if (transfer.direction == Direction::send) {
    message.mappings = region_.mappings(transfer.peer);
  } else if (transfer.bytes > settings_.gpu_low_latency_bytes) {
    const Book::Place place = book_.name(transfer.data, transfer.bytes);
    const BufferName& buffer = processes_[transfer.peer] ? place.remote : place.local;
    message.receive = {buffer.buffer, buffer.offset};
  }
  return message;
}

// Operations of a communicator run one after another, in the order of enqueue calls, whatever their streams. Inside one capture an edge
// says so; an event before the first and after the last one orders the graph's run among other operations. Event nodes between the
// operations would cost each of them 1 to 3 us (docs/gpu-probe.md).
void Communicator::order_before(cudaStream_t stream, const Capture& capture) {
  if (!capture.active) {
    if (!ordered_ || last_stream_ != stream) check(cudaStreamWaitEvent(stream, last_.get(), cudaEventWaitDefault), "ordering an operation");
  } else if (capture.id != capture_) {
    check(cudaStreamWaitEvent(stream, last_.get(), cudaEventWaitExternal), "ordering a captured operation");
  } else if (last_stream_ != stream) {
    add_dependency(stream, captured_node_);
  }
}

void Communicator::order_after(cudaStream_t stream, const Capture& capture) {
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
    captured_ = true;
  }
  last_stream_ = stream;
  ordered_ = !capture.active;
}

void Communicator::note(std::span<const Transfer> transfers, bool capturing) {
  if (capturing) return;
  const std::scoped_lock lock(mutex_);
  for (const Transfer& transfer : transfers) {
    if (transfer.communicator != this) continue;
    ++enqueued_;
    const Path path = transfer.bytes <= settings_.gpu_low_latency_bytes ? Path::packets : Path::granted;
    ++noted_[static_cast<std::size_t>(path)];
    pending_.push_back({transfer.direction, path, transfer.peer, transfer.bytes});
    if (pending_.size() > kMostPending) pending_.pop_front();
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

void Communicator::enqueue(std::span<const Transfer> transfers, std::span<const cudaStream_t> streams) {
  if (transfers.empty()) return;
  if (streams.empty()) throw Error("an operation without a stream");
  Communicator& first = *transfers[0].communicator;
  const DeviceScope scope(first.device_);
  std::vector<Communicator*> communicators;
  std::vector<Message> messages;
  messages.reserve(transfers.size());
  std::uint32_t world = 0;
  for (const Transfer* transfer : in_turn(transfers)) {
    Communicator& communicator = *transfer->communicator;
    if (std::find(communicators.begin(), communicators.end(), &communicator) == communicators.end()) {
      if (communicator.device_ != first.device_) throw Error("an operation on two devices; one call serves one device");
      if (const auto failure = communicator.failure()) throw ExchangeError("the communicator has ended: " + failure->text);
      communicators.push_back(&communicator);
      world = std::max(world, communicator.world_);
    }
    messages.push_back(communicator.make_message(*transfer));
  }
  const Plan plan = prepare(messages, {static_cast<std::uint32_t>(first.settings_.gpu_blocks), first.settings_.gpu_low_latency_bytes,
                                       first.kernels_.most_cluster_blocks, world});
  const OperationHeader header{first.region_.state(),
                               first.settings_.gpu_timeout_ms * 1'000'000,
                               static_cast<std::uint32_t>(messages.size()),
                               plan.packet_messages,
                               plan.packet_blocks,
                               0};

  for (const cudaStream_t other : streams.subspan(1)) {
    check(cudaEventRecord(first.join_.get(), other), "joining streams");
    check(cudaStreamWaitEvent(streams[0], first.join_.get(), 0), "joining streams");
  }
  // Joining may have brought streams[0] into a capture.
  const Capture capture = capture_of(streams[0]);
  for (Communicator* communicator : communicators) communicator->order_before(streams[0], capture);
  check(launch(header, messages, plan, first.kernels_, streams[0]), "launching an operation");
  for (Communicator* communicator : communicators) {
    communicator->order_after(streams[0], capture);
    communicator->note(transfers, capture.active);
  }
  if (streams.size() > 1) check(cudaEventRecord(first.join_.get(), streams[0]), "splitting streams");
  for (const cudaStream_t other : streams.subspan(1)) check(cudaStreamWaitEvent(other, first.join_.get(), 0), "splitting streams");
}

void Communicator::register_buffer(const void* data, std::uint64_t bytes) {
  const DeviceScope scope(device_);
  book_.name(data, bytes);
}

// --- Watching

void Communicator::watch() {
  check(cudaSetDevice(device_), "selecting a device");
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const bool busy = captured_ || enqueued_ != ended().completed;
    wake_.wait_for(lock, busy ? kBusyLook : kIdleLook);
    lock.unlock();
    try {
      look_around();
    } catch (const Error& error) {
      fail({error.what(), std::nullopt});
    }
    lock.lock();
  }
}

void Communicator::look_around() {
  MateBook::Progress progress{};
  {
    const std::scoped_lock lock(mutex_);
    progress = {enqueued_, ended().completed, captured_};
  }
  if (auto failure = find_failure(mates_)) fail(std::move(*failure));
  for (const Mate& mate : mates_) {
    if (processes_[mate.rank]) mate_books_[mate.rank]->follow(side_stream_.get(), progress);
  }
  const HostView now = view();
  switch (static_cast<KernelError>(now.error)) {
    case KernelError::none:
    case KernelError::aborted: break;
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
  }
}

// Kernels leave, mates hear of it, later calls fail. The first reason stays.
void Communicator::fail(Failure failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    tell_failure(book_.page().life, *failure_);
  }
  std::atomic_ref(region_.host().stop).store(1, std::memory_order_release);
}

HostView Communicator::view() const {
  HostView& host = region_.host();
  HostView copy{};
  copy.error = load_shared(host.error);
  copy.error_peer = load_shared(host.error_peer);
  for (int i = 0; i < 2; ++i) copy.error_bytes[i] = load_shared(host.error_bytes[i]);
  return copy;
}

Totals Communicator::ended() const {
  const Totals packets = ended(Path::packets), granted = ended(Path::granted);
  return {packets.completed + granted.completed, packets.bytes_sent + granted.bytes_sent, packets.bytes_received + granted.bytes_received};
}

Totals Communicator::ended(Path path) const {
  Totals& totals = region_.host().ended[static_cast<std::size_t>(path)];
  return {load_shared(totals.completed), load_shared(totals.bytes_sent), load_shared(totals.bytes_received)};
}

std::optional<Failure> Communicator::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

void Communicator::abort() { fail({"aborted on rank " + std::to_string(rank_), std::nullopt}); }

void Communicator::drain() {
  if (drained_) return;
  drained_ = true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(settings_.drain_ms);
  const auto wait_until = [&](auto&& done) {
    while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kBusyLook);
  };
  // The event covers captured operations as well, which have no count.
  const auto all_ended = [&] { return cudaEventQuery(last_.get()) != cudaErrorNotReady; };
  wait_until(all_ended);
  if (!all_ended()) {
    fail({"operations had not ended when the communicator was drained", std::nullopt});
    while (!all_ended()) std::this_thread::sleep_for(kBusyLook);  // kernels leave now
  }
  tell_leaving(book_.page().life);
  wait_until([&] { return std::all_of(mates_.begin(), mates_.end(), [](const Mate& mate) { return mate.pidfd < 0 || has_left(mate); }); });
}

// --- Looking at it

Counters Communicator::counters() const {
  const Totals now = ended();
  const std::scoped_lock lock(mutex_);
  return {std::max(enqueued_, now.completed), now.completed, now.bytes_sent, now.bytes_received};
}

std::string Communicator::describe() const {
  const Totals now = ended();
  const std::scoped_lock lock(mutex_);
  std::string text = "rank " + std::to_string(rank_) + " of " + std::to_string(world_) + " on device " + std::to_string(device_) + ": " +
                     std::to_string(now.completed) + " messages ended";
  if (failure_) text += "; failed: " + failure_->text;
  text += '\n';
  // Messages in packets and granted ones end each in their order.
  std::uint64_t over[kPaths] = {};
  for (const Pending& pending : pending_) ++over[static_cast<std::size_t>(pending.path)];
  for (const Path path : {Path::packets, Path::granted}) {
    const auto at = static_cast<std::size_t>(path);
    const std::uint64_t completed = ended(path).completed;
    over[at] -= std::min(over[at], noted_[at] > completed ? noted_[at] - completed : 0);
  }
  for (const Pending& pending : pending_) {
    std::uint64_t& left = over[static_cast<std::size_t>(pending.path)];
    if (left != 0) {
      --left;
      continue;
    }
    text +=
        name(pending.direction, pending.bytes, pending.peer) + (processes_[pending.peer] ? " (another process)\n" : " (this process)\n");
  }
  return text;
}

}  // namespace railweave::cuda
