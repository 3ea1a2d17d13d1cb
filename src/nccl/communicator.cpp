#include "communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "allocator.hpp"
#include "background.hpp"
#include "device_library.hpp"
#include "log.hpp"
#include "real_nccl.hpp"
#include "settings.hpp"
#include "thread_own.hpp"
#include "unique_id.hpp"
#include "watch.hpp"

namespace railweave::nccl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Of a communicator, in characters: logs and pictures have it, too.
constexpr std::size_t kMostName = 256;

// NCCL takes tens of milliseconds at least to make a communicator.
constexpr auto kPoll = milliseconds(1);

// Of all communicators, so that looking one up costs nothing more where none is expected.
std::atomic<std::size_t> expected_children{0};

// Ranks of this process that were destroyed and whose last operations have not ended, by their communicator's name.
struct Draining {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, unsigned> ranks;  // guarded by mutex

  // Leaked: programs destroy communicators in their own exit handlers.
  static Draining& get() {
    static Draining* const draining = new Draining();
    return *draining;
  }
};

ncclResult_t real_async_error(ncclComm_t handle, ncclResult_t* error) {
  static const Real<ncclResult_t(ncclComm_t, ncclResult_t*)> real("ncclCommGetAsyncError");
  return real(handle, error);
}

// Empty: nothing is wrong.
std::string device_error(railweave_status status) {
  if (status == RAILWEAVE_OK) return "";
  const std::string text = device_library().api->last_error();
  return text.empty() ? "the device library gave no reason" : text;
}

// Why a round did not complete; `otherwise`: what is wrong with ranks that did not come to it.
std::string absence(const Round& round, const char* otherwise, milliseconds limit) {
  if (round.left) return round.missing + ": went away while it was set up";
  return round.missing + ": " + otherwise + " (RAILWEAVE_SHIM_WAIT_MS=" + std::to_string(limit.count()) + ")";
}

Cause cause_of(const Round& round) { return round.left ? Cause::rank_left : Cause::rank_missing; }

// A word for each, as metrics have it as a label.
const char* word_of(ncclResult_t error) {
  switch (error) {
    case ncclUnhandledCudaError: return "cuda_error";
    case ncclSystemError: return "system_error";
    case ncclInternalError: return "internal_error";
    case ncclInvalidArgument:
    case ncclInvalidUsage: return "invalid_usage";
    case ncclRemoteError: return "remote_error";
    default: return "error";
  }
}

// What the device library says of the node's NICs: those of one name are one, whoever serves it.
std::vector<NicSample> nics_of(const railweave_cuda_api& api, railweave_cuda_communicator* side, std::uint32_t rank) {
  std::vector<NicSample> samples;
  std::vector<railweave_cuda_nic> nics(api.nics(side, nullptr, 0));
  if (nics.empty()) return samples;
  nics[0].size = sizeof nics[0];
  nics.resize(std::min(nics.size(), api.nics(side, nics.data(), nics.size())));
  for (const railweave_cuda_nic& nic : nics) {
    auto at = std::find_if(samples.begin(), samples.end(), [&](const NicSample& sample) { return sample.name == nic.name; });
    if (at == samples.end()) at = samples.insert(at, {nic.name, 0, 0, false, 0, 0, {}});
    at->bytes_sent += nic.bytes_sent;
    at->bytes_per_second = std::max(at->bytes_per_second, nic.bytes_per_second);
    if (nic.owner != rank) continue;
    at->own = true;
    at->links += nic.links;
    at->links_down += nic.links_down;
    std::istringstream lines(nic.down);
    for (std::string line; std::getline(lines, line);) {
      if (std::find(at->down.begin(), at->down.end(), line) == at->down.end()) at->down.push_back(line);
    }
  }
  return samples;
}

// With which ranks messages have been exchanged; nothing where the device library is of a build that does not tell.
std::vector<PeerSample> peers_of(const railweave_cuda_api& api, railweave_cuda_communicator* side, std::uint32_t world) {
  if (api.size <= offsetof(railweave_cuda_api, peers)) return {};
  std::vector<railweave_cuda_peer> peers(world);
  peers[0].size = sizeof peers[0];
  peers.resize(std::min(peers.size(), api.peers(side, peers.data(), peers.size())));
  std::vector<PeerSample> samples;
  samples.reserve(peers.size());
  for (const railweave_cuda_peer& peer : peers) samples.push_back({peer.peer, peer.bytes_sent, peer.bytes_received});
  return samples;
}

// What a channel of the real NCCL's kernel carries at least of a message to or from a peer, until that has all of its channels: an eighth
// of what it moves at once, 64 KiB inside a node. From 2.22.3 until before 2.29.2 that is 8 KiB for what goes by its protocol for short
// ones (its enqueue.cc; CTAs of 2.28.9 and 2.32.3 in docs/results.md).
std::uint32_t channel_bytes() {
  constexpr int kMoreChannels = 22203, kFewerChannels = 22902;
  static const Real<ncclResult_t(int*)> get("ncclGetVersion");
  int version = 0;
  const bool more = get(&version) == ncclSuccess && version >= kMoreChannels && version < kFewerChannels;
  return more ? 8u << 10 : 64u << 10;
}

const char* variable(const char* name) { return std::getenv(name); }

// By who runs the program: then it is no matter how many NCCL may have.
bool blocks_are_set() {
  const char* text = variable("RAILWEAVE_GPU_BLOCKS");
  return text != nullptr && *text != '\0';
}

// FNV-1a of 64 bits, with the offset and the prime that Fowler, Noll and Vo give.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) {
    hash ^= static_cast<std::uint8_t>(byte);
    hash *= 0x100000001b3;
  }
  return hash;
}

}  // namespace

std::mutex Communicator::handle_mutex_;

Communicator::Communicator(ncclComm_t handle, Origin origin) : handle_(handle), origin_(std::move(origin)), process_(::getpid()) {}

Communicator::~Communicator() {
  expected_children -= expected_.size();
  if (device_side_ != nullptr && is_of_this_process()) device_library().api->destroy(device_side_);
}

bool Communicator::is_of_this_process() const noexcept { return process_ == ::getpid(); }

void Communicator::settle() {
  {
    const std::lock_guard lock(mutex_);
    running_ = true;
  }
  in_background([self = shared_from_this()] { self->run(); });
}

void Communicator::wait_settled() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !running_; });
}

void Communicator::run() {
  try {
    switch (wait_until_made()) {
      case Ready::cancelled: leave_to_nccl(Cause::ended, "it was ended while it was made", false); break;
      case Ready::failed: leave_to_nccl(Cause::nccl_failed, "NCCL could not make it", false); break;
      case Ready::yes: agree();
    }
  } catch (const std::exception& error) {
    fail(ncclInternalError, error.what());
  }
  const std::lock_guard lock(mutex_);
  running_ = false;
  changed_.notify_all();
}

ncclResult_t Communicator::ask_nccl_state(ncclResult_t* error) const {
  const std::lock_guard lock(handle_mutex_);
  return real_async_error(handle_, error);
}

ncclResult_t Communicator::wait_for_nccl() {
  for (;; std::this_thread::sleep_for(kPoll)) {
    const std::lock_guard lock(handle_mutex_);
    if (cancelled_.load()) return ncclInvalidUsage;
    ncclResult_t error = ncclSuccess;
    if (const ncclResult_t asked = real_async_error(handle_, &error); asked != ncclSuccess) return asked;
    if (error != ncclInProgress) return error;
  }
}

Communicator::Ready Communicator::wait_until_made() {
  const ncclResult_t made = wait_for_nccl();
  const std::lock_guard lock(handle_mutex_);
  if (cancelled_.load()) return Ready::cancelled;
  return made == ncclSuccess && ask_nccl() ? Ready::yes : Ready::failed;
}

bool Communicator::ask_nccl() {
  static const Real<ncclResult_t(ncclComm_t, int*)> count("ncclCommCount"), user_rank("ncclCommUserRank"), device("ncclCommCuDevice");
  int world = 0, rank = 0;
  if (count(handle_, &world) != ncclSuccess || user_rank(handle_, &rank) != ncclSuccess || device(handle_, &device_) != ncclSuccess)
    return false;
  world_ = static_cast<std::uint32_t>(world);
  rank_ = static_cast<std::uint32_t>(rank);
  return world > 0 && rank >= 0 && rank < world;
}

// Two rounds. After the first all ranks know whether all can; after the second, whether all did. A rank that does not see the end of the
// first is missing in the second, so nobody is served; only a lost answer to the second leaves a rank in doubt, and that one fails.
void Communicator::agree() {
  if (!origin_.hub) return leave_to_nccl(origin_.no_hub_cause, origin_.no_hub, false);
  if (world_ == 1) return leave_to_nccl(Cause::one_rank, "it has one rank", false);
  const milliseconds limit(settings().shim_wait_ms);
  HubClient hub(*origin_.hub, cancelled_);
  try {
    if (!hub.connect(Clock::now() + limit))
      return leave_to_nccl(
          Cause::no_hub,
          "the process in which its ranks meet cannot be reached within " + std::to_string(limit.count()) + " ms (RAILWEAVE_SHIM_WAIT_MS)",
          true);
  } catch (const std::system_error& error) {
    return leave_to_nccl(Cause::no_hub, error.what(), true);  // this rank is missing in the first round, so no other goes another way
  }

  ReservedPort port;
  const Round first = hub.join(origin_.name + " facts", rank_, world_, encode(own_facts(hub.local(), port)), limit);
  if (first.status == RoundStatus::expired)
    return leave_to_nccl(cause_of(first), absence(first, "no shim there, or too late", limit), rank_ == first.first);
  if (first.status != RoundStatus::complete) return leave_to_nccl(Cause::no_agreement, "its ranks did not come to know each other", true);
  {
    const std::lock_guard lock(family_mutex_);
    meeting_places_ = MeetingPlaces(first.blobs);
  }
  const Verdict verdict = decide(first.blobs);
  if (!verdict.served) return leave_to_nccl(verdict.cause, verdict.reason, rank_ == 0);

  const std::string refusal = create_device_side(verdict);
  // The others may wait for this one until `limit` is over where it could not tell them, and are to hear why.
  const milliseconds patience = !refusal.empty() && is_own(rank_, refusal) ? 2 * limit : limit;
  const Round second = join_second(hub, refusal, patience);
  if (second.status == RoundStatus::expired) {
    end_device_side();
    return leave_to_nccl(cause_of(second), absence(second, "not set up", limit), rank_ == second.first);
  }
  const Verdict made = decide_made(second.blobs);
  if (second.status == RoundStatus::complete && made.served) return settled(State::served);
  if (second.status == RoundStatus::unknown && refusal.empty()) return fail(ncclSystemError, "the last answer of its other ranks was lost");
  end_device_side();
  if (second.status == RoundStatus::complete) return leave_to_nccl(made.cause, made.reason, rank_ == 0);
  if (second.status == RoundStatus::unsent)
    return leave_to_nccl(Cause::no_hub, "a rank in whose process its ranks meet cannot be reached", true);
  leave_to_nccl(Cause::rank_left, "the last answer of its other ranks was lost", true);
}

// The first round's hub may be in a process outside: the id's maker, or a rank of another part of a split. Whatever ends that from now on
// is not to end this communicator, so the second round is where one of its own ranks answers.
Round Communicator::join_second(HubClient& first, const std::string& refusal, milliseconds patience) {
  const std::string name = origin_.name + " created";
  const HubAddress place = [&] {
    const std::lock_guard lock(family_mutex_);
    return meeting_places_.without({}, *origin_.hub);
  }();
  if (place == *origin_.hub) return first.join(name, rank_, world_, refusal, patience);
  HubClient own(place, cancelled_);
  try {
    own.connect(Clock::now() + patience);
  } catch (const std::system_error& error) {
    log(LogLevel::info, label() + ": " + error.what());
  }
  return own.join(name, rank_, world_, refusal, patience);  // unsent where it was not reached
}

void Communicator::end_device_side() {
  const railweave_cuda_api& api = *device_library().api;
  if (device_side_ != nullptr) api.abort(device_side_);
  api.destroy(device_side_.exchange(nullptr));
}

// Whatever this rank lacks is a refusal, so that all ranks hear of it. `port` is kept until the device library listens there.
Facts Communicator::own_facts(const HubAddress& address, ReservedPort& port) const {
  const DeviceLibrary& library = device_library();
  const std::string host = host_of(address);
  Facts facts;
  if (library.api == nullptr) {
    facts.refusal = library.reason;
    return facts;
  }
  facts.device_abi = library.api->version;
  try {
    if (!host.empty()) facts.stand_by = stand_by(address, *origin_.hub);
    facts.keeps_hub = origin_.hub->port == facts.stand_by.port && host_of(*origin_.hub) == host;
  } catch (const std::system_error& error) {
    log(LogLevel::info, label() + ": no children can meet in this process: " + error.what());
  }
  if (!blocks_are_set()) facts.most_blocks = most_for_messages(origin_.ctas, variable);
  facts.refusal = pool_refusal(variable);
  if (facts.refusal.empty()) facts.refusal = device_error(library.api->probe(device_));
  if (rank_ != 0 || !facts.refusal.empty()) return facts;
  try {
    port = reserve_port(host);
    facts.rendezvous = "tcp://" + host + ":" + std::to_string(port.number);
  } catch (const std::system_error& error) {
    facts.refusal = error.what();
  }
  return facts;
}

std::string Communicator::create_device_side(const Verdict& verdict) {
  const std::string limit = std::to_string(settings().shim_wait_ms);
  const railweave_setting bootstrap{"bootstrap_ms", limit.c_str()};
  railweave_cuda_config config{};
  config.size = sizeof config;
  config.rank = rank_;
  config.world = world_;
  config.device = device_;
  config.channel_bytes = blocks_are_set() ? 0 : channel_bytes();
  if (config.channel_bytes != 0)
    log(LogLevel::info, label() + ": kernels have a block for each " + std::to_string(config.channel_bytes >> 10) +
                            " KiB of a peer at most, as many as this NCCL's have channels");
  config.most_blocks = blocks_are_set() ? 0 : verdict.most_blocks;
  if (config.most_blocks != 0)
    log(LogLevel::info, label() + ": kernels have at most " + std::to_string(config.most_blocks) +
                            " blocks, as NCCL's may for messages (maxCTAs, NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS, NCCL_MAX_P2P_NCHANNELS)");
  config.rendezvous = verdict.rendezvous.c_str();
  config.settings = &bootstrap;
  config.setting_count = 1;
  config.log = [](void* context, const char* text) { log(LogLevel::info, static_cast<Communicator*>(context)->label() + ": " + text); };
  config.log_context = this;
  config.warn = [](void* context, const char* text) { log(LogLevel::warn, static_cast<Communicator*>(context)->label() + ": " + text); };
  railweave_cuda_communicator* made = nullptr;
  const auto status = device_library().api->create(&config, &made);
  if (status == RAILWEAVE_OK) device_side_ = made;
  return device_error(status);
}

std::string Communicator::label() const {
  std::string name = origin_.name.empty() ? "a communicator" : "communicator " + origin_.name;
  if (world_ == 0) return name;  // NCCL has not made it
  return name + " (" + std::to_string(world_) + " ranks, this is rank " + std::to_string(rank_) + ")";
}

void Communicator::leave_to_nccl(Cause cause, const std::string& reason, bool warn) {
  log(warn ? LogLevel::warn : LogLevel::info, label() + ": left to NCCL: " + reason);
  cause_ = cause;
  reason_ = reason;
  settled(State::unserved);
}

void Communicator::fail(ncclResult_t error, const char* reason) noexcept {
  error_ = error;
  try {
    const std::string text = label() + ": failed: " + reason;
    log(LogLevel::warn, text);
    set_last_error(text.c_str());
    reason_ = reason;
    settled(State::failed);
  } catch (const std::bad_alloc&) {
    state_.store(State::failed, std::memory_order_release);  // without a text
  }
}

void Communicator::settled(State state) {
  if (state == State::served) {
    ranges_ = std::make_unique<const RangeDomain>("Railweave " + label());
    log(LogLevel::info, label() + ": served: sends, receives and all-to-all go over Railweave on device " + std::to_string(device_));
  }
  if (state == State::served || !settings().metrics.empty()) watch(shared_from_this());
  state_.store(state, std::memory_order_release);
}

template <typename F>
railweave_status Communicator::on_device_side(F&& f) const {
  const std::shared_lock lock(device_mutex_);
  railweave_cuda_communicator* const side = device_side();
  return side == nullptr ? RAILWEAVE_OK : f(*device_library().api, side);
}

ncclResult_t Communicator::async_error() {
  if (state() == State::settling || has_settling_children()) return ncclInProgress;
  if (queueing_.load() != 0) return ncclInProgress;
  if (revoked_) return ncclSuccess;
  if (const ncclResult_t error = error_.load(); error != ncclSuccess) return error;
  if (state() != State::served) return ncclSuccess;
  const auto status = on_device_side([](auto& api, auto* side) { return api.async_error(side); });
  if (status != RAILWEAVE_OK) {
    const std::string text = label() + ": " + device_error(status);
    set_last_error(text.c_str());
    if (!told_error_.exchange(true)) log(LogLevel::warn, text);
    error_ = to_nccl(status);
    return error_;
  }
  const std::lock_guard lock(mutex_);
  return draining_ ? ncclInProgress : ncclSuccess;
}

void Communicator::abort() {
  cancelled_ = true;
  if (state() != State::served) return;
  on_device_side([](auto& api, auto* side) {
    api.abort(side);
    return RAILWEAVE_OK;
  });
}

void Communicator::revoke() {
  abort();
  revoked_ = true;
  const std::lock_guard lock(handle_mutex_);  // no thread of the shim is in NCCL with it, nor will be
}

bool Communicator::nccl_is_busy() {
  ncclResult_t error = ncclSuccess;
  return ask_nccl_state(&error) == ncclSuccess && error == ncclInProgress;
}

void Communicator::begin_queueing() {
  const std::lock_guard lock(mutex_);
  ++queueing_;
}

void Communicator::end_queueing(ncclResult_t result) {
  ncclResult_t none = ncclSuccess;
  if (result != ncclSuccess) error_.compare_exchange_strong(none, result);
  const std::lock_guard lock(mutex_);
  --queueing_;
  changed_.notify_all();
}

void Communicator::drain() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queueing_ == 0; });
  }
  const auto status = device_library().api->drain(device_side_);
  if (status == RAILWEAVE_OK) return;
  try {
    log(LogLevel::warn, label() + ": " + device_error(status));
  } catch (const std::bad_alloc&) {
    // What has ended it is told by async_error(), too.
  }
}

bool Communicator::may_be_finalized() {
  ncclResult_t error = ncclSuccess;
  return !is_finalized() && !is_revoked() && ask_nccl_state(&error) == ncclSuccess && error == ncclSuccess;
}

void Communicator::finalize() {
  // One at a time: release() waits for one, and the device library is drained once.
  if (finalized_.exchange(true) || state() != State::served) return;
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_.load()) return;  // release() does not wait for what begins now
    draining_ = true;
  }
  const auto drain_it = [self = shared_from_this()] {
    self->drain();
    const std::lock_guard lock(self->mutex_);
    self->draining_ = false;
    self->changed_.notify_all();
  };
  if (origin_.blocking) return drain_it();
  in_background(drain_it);
}

void Communicator::release() { release(false); }

void Communicator::destroy() {
  const bool drains = origin_.blocking && state() == State::served && !is_finalized() && !is_revoked();
  Draining& all = Draining::get();
  if (drains) {
    const std::lock_guard lock(all.mutex);
    ++all.ranks[origin_.name];
  }
  release(drains);
  if (!origin_.blocking || Registry::get().has(origin_.name)) return;
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&] { return !all.ranks.contains(origin_.name); });
}

void Communicator::release(bool drains) {
  cancelled_ = true;
  { const std::lock_guard lock(handle_mutex_); }
  in_background([self = shared_from_this(), drains] {
    {
      std::unique_lock lock(self->mutex_);
      self->changed_.wait(lock, [&] { return !self->running_ && !self->draining_ && self->queueing_ == 0; });
    }
    if (drains) {
      self->drain();
      Draining& all = Draining::get();
      const std::lock_guard lock(all.mutex);
      if (--all.ranks[self->name()] == 0) all.ranks.erase(self->name());
      all.changed.notify_all();
    }
    railweave_cuda_communicator* device_side = nullptr;
    {
      const std::scoped_lock lock(self->device_mutex_, self->enqueue_mutex_);
      device_side = self->device_side_.exchange(nullptr);
    }
    if (device_side != nullptr) device_library().api->destroy(device_side);
  });
}

void Communicator::expect(Birth child) {
  const std::lock_guard lock(family_mutex_);
  child.origin.blocking = false;
  child.number = births_++;
  expected_.push_back(std::move(child));
  ++expected_children;
}

bool Communicator::expects(ncclComm_t child) const {
  const std::lock_guard lock(family_mutex_);
  return std::any_of(expected_.begin(), expected_.end(), [&](const Birth& birth) { return birth.made() == child; });
}

void Communicator::follow_children() {
  const std::lock_guard lock(family_mutex_);
  std::erase_if(expected_, [&](Birth& birth) {
    const ncclComm_t handle = birth.made();
    if (handle == nullptr) return false;
    const auto child = std::make_shared<Communicator>(handle, std::move(birth.origin));
    Registry::get().add(child);
    child->settle();
    settling_.push_back(child);
    --expected_children;
    return true;
  });
}

void Communicator::forget_children(std::uint64_t count) {
  const std::lock_guard lock(family_mutex_);
  expected_children -= std::erase_if(expected_, [count](const Birth& birth) { return birth.number < count; });
}

std::uint64_t Communicator::children_expected() const {
  const std::lock_guard lock(family_mutex_);
  return births_;
}

bool Communicator::has_settling_children() {
  const std::lock_guard lock(family_mutex_);
  std::erase_if(settling_, [](const std::weak_ptr<Communicator>& each) {
    const auto child = each.lock();
    return child == nullptr || child->state() != State::settling;
  });
  return !settling_.empty();
}

// Under family_mutex_.
Origin Communicator::child_without(const std::vector<int>& excluded, bool blocking) const {
  Origin child = origin_;
  child.blocking = blocking;
  if (child.hub) child.hub = meeting_places_.without(excluded, *child.hub);
  return child;
}

Origin Communicator::split(int color, bool blocking) {
  const std::lock_guard lock(family_mutex_);
  Origin child = child_without({}, blocking);
  child.name += "/split" + std::to_string(splits_++) + "." + std::to_string(color);
  return child;
}

Origin Communicator::shrink(const std::vector<int>& excluded, bool blocking) {
  const std::lock_guard lock(family_mutex_);
  Origin child = child_without(excluded, blocking);
  std::vector<int> sorted = excluded;
  std::sort(sorted.begin(), sorted.end());
  // Excluded ranks do not call, so they could not keep a common count: it is kept for each set of excluded ranks.
  child.name += "/shrink" + std::to_string(shrinks_[sorted]++);
  for (const int rank : sorted) child.name += "-" + std::to_string(rank);
  // Thousands of ranks, or shrinks of shrinks: a hub takes no name of any length.
  if (child.name.size() > kMostName) child.name = child.name.substr(0, child.name.find('/')) + "/" + std::to_string(hash_of(child.name));
  return child;
}

// Those who come know the child by its unique id alone: so it is named by a number that the others can work out.
Origin Communicator::larger(bool blocking) const {
  const std::lock_guard lock(family_mutex_);
  Origin child = child_without({}, blocking);
  if (origin_.one_process) {
    child.hub.reset();
    child.no_hub_cause = Cause::foreign_id;
    child.no_hub = "it grew from one that ncclCommInitAll made, whose ranks meet inside their process";
  }
  if (!child.hub) return child;
  child.hub->tag = std::max<std::uint64_t>(hash_of(origin_.name + "/grow" + std::to_string(grows_)), 1);
  child.name = name_of(*child.hub);
  return child;
}

void Communicator::has_grown() {
  const std::lock_guard lock(family_mutex_);
  ++grows_;
}

void Communicator::register_buffer(void* nccl_handle, void* data, std::size_t bytes) {
  if (state() != State::served || nccl_handle == nullptr || data == nullptr || bytes == 0) return;
  void* handle = nullptr;
  const auto status = on_device_side([&](auto& api, auto* side) { return api.register_buffer(side, data, bytes, &handle); });
  if (status != RAILWEAVE_OK) return log(LogLevel::info, label() + ": a buffer is not mapped ahead: " + device_error(status));
  if (handle == nullptr) return;  // it has ended
  const std::lock_guard lock(buffers_mutex_);
  buffers_[nccl_handle] = handle;
}

void Communicator::deregister_buffer(void* nccl_handle) {
  void* handle = nullptr;
  {
    const std::lock_guard lock(buffers_mutex_);
    const auto at = buffers_.find(nccl_handle);
    if (at == buffers_.end()) return;
    handle = at->second;
    buffers_.erase(at);
  }
  const auto status = on_device_side([&](auto& api, auto* side) { return api.deregister_buffer(side, handle); });
  if (status != RAILWEAVE_OK) log(LogLevel::warn, label() + ": " + device_error(status));
}

std::string Communicator::describe() const {
  const std::shared_lock lock(device_mutex_);
  if (device_side_ == nullptr) return label() + " has ended";
  std::string text(64u << 10, '\0');
  std::size_t length = device_library().api->describe(device_side_, text.data(), text.size());
  if (length >= text.size()) {
    text.resize(length + 1);
    length = device_library().api->describe(device_side_, text.data(), text.size());
  }
  text.resize(std::min(length, text.size() - 1));
  return label() + " waits:\n" + text;
}

std::optional<Sample> Communicator::sample() const {
  const std::shared_lock lock(device_mutex_);
  if (state() != State::served || device_side_ == nullptr) return std::nullopt;
  Sample sample{origin_.name, rank_, world_, device_, {}};
  sample.counters.size = sizeof sample.counters;
  if (device_library().api->counters(device_side_, &sample.counters) != RAILWEAVE_OK) return std::nullopt;
  sample.nics = nics_of(*device_library().api, device_side_, rank_);
  sample.peers = peers_of(*device_library().api, device_side_, world_);
  return sample;
}

std::optional<Fate> Communicator::fate() const {
  const State state = this->state();
  if (state == State::settling || cancelled_.load()) return std::nullopt;
  Fate fate{origin_.name, rank_, world_, "served", "", ""};
  if (const ncclResult_t error = known_error(); error != ncclSuccess) {
    fate.state = "failed";
    fate.reason = word_of(error);
    if (state == State::failed) fate.text = reason_;
  } else if (state == State::unserved) {
    fate.state = "nccl";
    fate.reason = word_of(cause_);
    fate.text = reason_;
  }
  return fate;
}

Registry& Registry::get() {
  static Registry* const registry = new Registry();  // programs destroy communicators in their own exit handlers
  return *registry;
}

void Registry::add(CommunicatorPointer communicator) {
  const std::lock_guard lock(mutex_);
  const ncclComm_t handle = communicator->handle();
  entries_[handle] = std::move(communicator);
  changes_.fetch_add(1, std::memory_order_release);
}

const CommunicatorPointer& Registry::find(ncclComm_t handle) {
  struct Remembered {
    std::uint64_t changes = 0;
    ncclComm_t handle = nullptr;
    CommunicatorPointer communicator;
  };
  auto& last = capi::thread_own<Remembered>();
  const std::uint64_t changes = changes_.load(std::memory_order_acquire);
  if (last.changes != changes || last.handle != handle) {
    last = {changes, handle, look_up(handle)};
    if (last.communicator == nullptr) last.changes = 0;  // may be followed from the next call on
  }
  return last.communicator;
}

CommunicatorPointer Registry::look_up(ncclComm_t handle) {
  std::unique_lock lock(mutex_);
  if (const auto at = entries_.find(handle); at != entries_.end()) return at->second;
  if (expected_children == 0 || handle == nullptr) return nullptr;
  const auto entries = entries_;
  lock.unlock();
  for (const auto& [_, parent] : entries) {
    if (parent->expects(handle)) parent->follow_children();
  }
  lock.lock();
  const auto at = entries_.find(handle);
  return at == entries_.end() ? nullptr : at->second;
}

bool Registry::has(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.second->name() == name; });
}

void Registry::follow_children() {
  if (expected_children == 0) return;
  std::unique_lock lock(mutex_);
  const auto entries = entries_;
  lock.unlock();
  for (const auto& [_, parent] : entries) parent->follow_children();
}

CommunicatorPointer Registry::remove(ncclComm_t handle) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(handle);
  if (at == entries_.end() || !at->second->is_of_this_process()) return nullptr;
  CommunicatorPointer communicator = at->second;
  entries_.erase(at);
  changes_.fetch_add(1, std::memory_order_release);
  return communicator;
}

}  // namespace railweave::nccl
