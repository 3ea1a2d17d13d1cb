#include "rail_backend.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "../engine/shared_memory.hpp"
#include "railweave/error.hpp"

namespace railweave::cuda {
namespace {

using engine::load_flag;
using engine::store_flag;

// How long the engine thread sleeps at most while a kernel may have something to say, as a GPU cannot wake it: a copy of a chunk of 128 KiB
// takes a block about 4 us, and 24 of them may be under way to a NIC. Not measured.
constexpr std::uint64_t kNapNs = 10'000;
// And how long it looks again and again first, as NCCL's threads do: while bytes move on a rail of 8 Gbit/s, a chunk of 128 KiB takes 131
// us. 2 x H200, 2x2 lab: a message of 16 KiB, then granted, took 157 us with 5 us, 96 us with 300 us.
constexpr std::uint64_t kSpinNs = 200'000;
// Of the places: the others are for pulls.
constexpr std::uint32_t kMostPushes = kRailCopies / 2;

}  // namespace

Failure failure_of(const engine::Failure& failure) {
  Failure result{failure.text, std::nullopt};
  if (failure.kind == engine::FailureKind::died) result.dead_rank = failure.rank;
  if (failure.kind == engine::FailureKind::left) result.lost_rank = failure.rank;
  return result;
}

RailBackend::RailBackend(engine::EngineServices& services, RailPort& port, std::vector<Mapped> regions, RailControl& control,
                         std::uint64_t drain_ms)
    : CopyingBackend(services, static_cast<Copier&>(*this)),
      services_(services),
      port_(port),
      regions_(std::move(regions)),
      control_(control),
      drain_ns_(drain_ms * 1'000'000) {
  const engine::Cluster& cluster = services.cluster();
  counted_by_nic_.resize(cluster.nodes[cluster.node()].nics.size());
  control_.bytes_by_nic = std::vector<std::atomic<std::uint64_t>>(counted_by_nic_.size());
  control_.bytes_by_peer = std::vector<std::array<std::atomic<std::uint64_t>, 2>>(cluster.world);
}

bool RailBackend::advance() {
  thread_local const int slack = ::prctl(PR_SET_TIMERSLACK, 1'000);  // ns: naps are that short
  static_cast<void>(slack);
  struct Turn {
    std::atomic<bool>& in_turn;
    explicit Turn(std::atomic<bool>& flag) : in_turn(flag) { in_turn = true; }
    ~Turn() { in_turn = false; }
  } const turn(control_.in_turn);
  if (control_.no_kernels) return false;
  bool moved = false;
  if (stopped_at_ == 0 && control_.stopped.load(std::memory_order_acquire)) stopped_at_ = engine::now_ns();
  if (stopped_at_ != 0)
    give_up();
  else
    moved = take_listed();
  moved = CopyingBackend::advance() || moved;
  if (operation_ != nullptr) end_operation();
  return moved;
}

std::uint64_t RailBackend::next_look(std::uint64_t now) const {
  if (control_.no_kernels) return std::numeric_limits<std::uint64_t>::max();
  // Once it has ended, the last word of its kernel.
  if (stopped_at_ != 0) return open_ != 0 ? now + kNapNs : std::numeric_limits<std::uint64_t>::max();
  return expects() ? now + kNapNs : std::numeric_limits<std::uint64_t>::max();
}

std::uint64_t RailBackend::spin_ns() const { return !control_.stopped.load(std::memory_order_acquire) && expects() ? kSpinNs : 0; }

// A kernel that was sent away finishes the copies that its blocks had taken on: until it has left they read slots. One that cannot leave
// any more, as its GPU has failed, is not waited for longer than anybody else.
bool RailBackend::copies_no_more() const {
  return stopped_at_ != 0 && (load_flag(port_.left) != 0 || engine::now_ns() - stopped_at_ >= drain_ns_);
}

bool RailBackend::expects() const {
  return !control_.no_kernels && (operation_ != nullptr || control_.captured.load() || begun_ < control_.enqueued.load());
}

// --- Operations. The kernels of a communicator run one after another, and none ends before the engine has said that its operation has: so
// there is one at a time, and its list stands still.

bool RailBackend::take_listed() {
  if (operation_ != nullptr || load_flag(port_.begun) == begun_) return false;
  ++begun_;
  operation_ = read_list(load_flag(port_.listed));
  if (operation_ == nullptr) {
    fail({engine::FailureKind::closed, services_.cluster().rank, "a kernel listed messages that cannot be"});
    return true;
  }
  try {
    services_.post(operation_);
  } catch (const Error& error) {
    operation_.reset();
    fail({engine::FailureKind::closed, services_.cluster().rank, error.what()});
  }
  return true;
}

std::shared_ptr<engine::Operation> RailBackend::read_list(std::uint64_t listed) const {
  const engine::Cluster& cluster = services_.cluster();
  const std::uint64_t chunk_bytes = services_.memory().chunk_bytes();
  auto operation = std::make_shared<engine::Operation>();
  if (listed == 0 || listed > kMostListed) return nullptr;
  for (std::uint64_t i = 0; i < listed; ++i) {
    const RailMessage& message = port_.messages[i];
    const std::uint64_t chunks = message.bytes / chunk_bytes + (message.bytes % chunk_bytes != 0 ? 1 : 0);
    if (message.peer >= cluster.world || cluster.local(message.peer) || chunks == 0 || chunks > std::numeric_limits<std::uint32_t>::max())
      return nullptr;
    auto* const data = reinterpret_cast<std::byte*>(message.data);
    if (message.direction == Direction::send) {
      engine::SendMessage& send = operation->sends.emplace_back();
      send.key = {0, cluster.rank, message.peer, 0, 0};
      send.data = data;
      if (message.staged != kNotStaged) {
        if (message.staged > kRailStage || message.bytes > kRailStage - message.staged) return nullptr;
        send.readable = port_.sent + message.staged;
      }
      send.bytes = message.bytes;
      send.chunks.resize(chunks);
    } else {
      engine::RecvMessage& receive = operation->recvs.emplace_back();
      receive.key = {0, message.peer, cluster.rank, 0, 0};
      receive.data = data;
      receive.bytes = message.bytes;
      receive.chunks = static_cast<std::uint32_t>(chunks);
    }
  }
  return operation;
}

// In the turn in which it is over: the kernel waits for this word.
void RailBackend::on_end(const engine::Operation& operation) {
  if (operation_.get() == &operation && !control_.no_kernels) end_operation();
}

void RailBackend::end_operation() {
  if (operation_->failure.kind != engine::FailureKind::none) fail(operation_->failure);
  count_sent();
  if (operation_->phase != engine::OperationPhase::ended) return;
  control_.bytes_of_ended += std::accumulate(counted_by_kind_.begin(), counted_by_kind_.end(), std::uint64_t{0});
  counted_by_kind_ = {};
  std::fill(counted_by_nic_.begin(), counted_by_nic_.end(), 0);
  if (operation_->failure.kind == engine::FailureKind::none) {
    count_ended();
    store_flag(port_.ended, begun_);
  }
  operation_.reset();
}

void RailBackend::count_ended() {
  const auto at = [this](std::uint32_t peer, Direction direction) -> auto& {
    return control_.bytes_by_peer[peer][static_cast<std::size_t>(direction)];
  };
  for (const engine::SendMessage& send : operation_->sends) at(send.key.destination, Direction::send) += send.bytes;
  for (const engine::RecvMessage& receive : operation_->recvs) at(receive.key.source, Direction::receive) += receive.bytes;
}

// In each turn: a long operation moves, and shows in `railweave top`, before it is over.
void RailBackend::count_sent() {
  for (std::size_t kind = 0; kind < counted_by_kind_.size(); ++kind) {
    const std::uint64_t sent = operation_->report.bytes_by_kind[kind];
    if (sent == counted_by_kind_[kind]) continue;
    control_.bytes_by_kind[kind] += sent - std::exchange(counted_by_kind_[kind], sent);
  }
  const std::vector<std::uint64_t>& by_nic = operation_->report.bytes_by_nic;  // empty where it failed before it began
  for (std::size_t nic = 0; nic < by_nic.size(); ++nic) {
    if (by_nic[nic] == counted_by_nic_[nic]) continue;
    control_.bytes_by_nic[nic] += by_nic[nic] - std::exchange(counted_by_nic_[nic], by_nic[nic]);
  }
}

// The kernel does not leave by itself: the communicator sends it away.
void RailBackend::fail(const engine::Failure& failure) {
  if (told_) return;
  told_ = true;
  // When a rank dies, others leave because of it, and may be heard of earlier.
  control_.on_failure(services_.death().value_or(failure));
}

void RailBackend::on_break_down(const engine::Failure& failure) {
  if (!told_) control_.on_failure(failure);
}

void RailBackend::give_up() {
  told_ = true;
  if (operation_ == nullptr || operation_->failure.kind != engine::FailureKind::none) return;
  const std::uint32_t rank = services_.cluster().rank;
  services_.fail(*operation_, {engine::FailureKind::closed, rank, "rank " + std::to_string(rank) + "'s communicator has ended"});
}

// --- Copies

bool RailBackend::has_room() const {
  return open_pushes_ < kMostPushes && place_is_free() && waiting_.empty() && !control_.stopped.load(std::memory_order_relaxed);
}

bool RailBackend::push(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t ticket) {
  ask({on_device(to), reinterpret_cast<std::uint64_t>(from), bytes, ticket, CopyKind::push});
  return false;
}

bool RailBackend::pull(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t ticket) {
  const Copy copy{reinterpret_cast<std::uint64_t>(to), on_device(from), bytes, ticket, CopyKind::pull};
  if (place_is_free() && waiting_.empty())
    ask(copy);
  else
    waiting_.push_back(copy);
  return false;
}

bool RailBackend::put(std::byte* to, std::span<const std::byte> data, std::uint64_t ticket) {
  const Copy copy{reinterpret_cast<std::uint64_t>(to), 0, data.size(), ticket, CopyKind::put};
  if (!unstaged_.empty() || !stage(copy, data)) unstaged_.push_back({copy, {data.begin(), data.end()}});
  return false;
}

bool RailBackend::stage(Copy copy, std::span<const std::byte> data) {
  if (open_puts_ == 0) staged_ = 0;
  if (!place_is_free() || !waiting_.empty() || data.size() > kRailStage - staged_) return false;
  std::memcpy(port_.arrived + staged_, data.data(), data.size());
  copy.from = reinterpret_cast<std::uint64_t>(port_.arrived + staged_);
  staged_ += stage_bytes(data.size());
  ++open_puts_;
  ask(copy);
  return true;
}

void RailBackend::ask(const Copy& copy) {
  const std::uint64_t number = ++asked_;
  places_[number % kRailCopies] = {copy, number, true};
  ++open_;
  if (copy.kind == CopyKind::push) ++open_pushes_;
  RailCopy& place = port_.copies[number % kRailCopies];
  const std::uint64_t parts[RailCopy::kWords] = {copy.to, copy.to >> 32, copy.from, copy.from >> 32, copy.bytes};
  for (std::uint32_t i = 0; i < RailCopy::kWords; ++i) store_flag(place.words[i], errand_word(parts[i], number));
}

void RailBackend::take_ended(std::vector<Ended>& ended) {
  const bool stopped = stopped_at_ != 0, given_up = open_ != 0 && copies_no_more();
  for (std::size_t i = 0; open_ != 0 && i < places_.size(); ++i) {
    Place& place = places_[i];
    if (!place.used) continue;
    const bool made = load_flag(port_.made[i]) == place.number;
    if (!made && !given_up) continue;
    place.used = false;
    --open_;
    if (place.copy.kind == CopyKind::push) --open_pushes_;
    if (place.copy.kind == CopyKind::put) --open_puts_;
    ended.push_back({place.copy.ticket, made});
  }
  // Of these no kernel knows.
  for (; !waiting_.empty() && (stopped || place_is_free()); waiting_.pop_front()) {
    if (stopped)
      ended.push_back({waiting_.front().ticket, false});
    else
      ask(waiting_.front());
  }
  for (; !unstaged_.empty() && (stopped || stage(unstaged_.front().copy, unstaged_.front().data)); unstaged_.pop_front()) {
    if (stopped) ended.push_back({unstaged_.front().copy.ticket, false});
  }
}

std::uint64_t RailBackend::on_device(const std::byte* slot) const {
  for (const Mapped& region : regions_) {
    if (slot >= region.host && slot < region.host + region.bytes) return region.device + static_cast<std::uint64_t>(slot - region.host);
  }
  std::abort();  // the engine's own slots lie in the memory of its node
}

}  // namespace railweave::cuda
