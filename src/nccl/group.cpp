#include "group.hpp"

#include <algorithm>
#include <map>
#include <new>
#include <numeric>
#include <set>
#include <utility>

#include "background.hpp"
#include "device_library.hpp"
#include "log.hpp"
#include "real_nccl.hpp"
#include "thread_own.hpp"

namespace railweave::nccl {
namespace {

ncclResult_t refuse(ncclResult_t error, const std::string& text) {
  set_last_error(text.c_str());
  log(LogLevel::warn, text);
  return error;
}

RangeFacts facts(const std::vector<railweave_cuda_transfer>& transfers, const railweave_cuda_communicator* communicator) {
  RangeFacts result;
  std::set<std::uint32_t> peers;
  for (const railweave_cuda_transfer& transfer : transfers) {
    if (transfer.communicator != communicator) continue;
    (transfer.kind == RAILWEAVE_CUDA_SEND ? result.bytes_sent : result.bytes_received) += transfer.bytes;
    ++result.messages;
    peers.insert(transfer.peer);
  }
  result.peers = static_cast<std::uint32_t>(peers.size());
  return result;
}

}  // namespace

void Launch::add(const Message& message) {
  railweave_cuda_transfer transfer{};
  transfer.size = sizeof transfer;
  transfer.communicator = message.communicator->device_side();
  transfer.kind = static_cast<std::uint32_t>(message.kind);
  transfer.peer = message.peer;
  transfer.data = message.data;
  transfer.bytes = message.bytes;
  transfers_.push_back(transfer);
  add_empty(message);
}

void Launch::add_empty(const Message& message) {
  const auto stream = static_cast<railweave_cuda_stream>(message.stream);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  if (std::find(communicators_.begin(), communicators_.end(), message.communicator) == communicators_.end())
    communicators_.push_back(message.communicator);
}

ncclResult_t Launch::run() {
  if (transfers_.empty() && streams_.size() < 2) return ncclSuccess;
  // In one order in all threads.
  std::sort(communicators_.begin(), communicators_.end(), std::less<>{});
  for (Communicator* communicator : communicators_) locks_.emplace_back(communicator->enqueue_mutex());
  const auto ended = std::find_if(communicators_.begin(), communicators_.end(),
                                  [](const Communicator* communicator) { return communicator->device_side() == nullptr; });
  if (ended != communicators_.end()) {
    locks_.clear();
    return refuse(ncclInvalidUsage, "communicator " + (*ended)->name() + " was ended while a group of its messages was open");
  }
  for (const Communicator* communicator : communicators_) {
    if (communicator->ranges()->listens()) communicator->ranges()->push(facts(transfers_, communicator->device_side()));
  }
  const auto& api = *device_library().api;
  const auto status = transfers_.empty() ? api.join(communicators_.front()->device_side(), streams_.data(), streams_.size())
                                         : api.enqueue(transfers_.data(), transfers_.size(), streams_.data(), streams_.size());
  for (const Communicator* communicator : communicators_) {
    if (communicator->ranges()->listens()) communicator->ranges()->pop();
  }
  locks_.clear();
  if (status != RAILWEAVE_OK) return refuse(to_nccl(status), "communicator " + communicators_.front()->name() + ": " + api.last_error());
  if (logs(LogLevel::debug)) log(LogLevel::debug, text());
  return ncclSuccess;
}

std::string Launch::text() const {
  std::string names;
  for (const Communicator* communicator : communicators_) names += (names.empty() ? "communicator " : " and ") + communicator->name();
  const std::string streams = std::to_string(streams_.size()) + (streams_.size() == 1 ? " stream" : " streams");
  if (transfers_.empty()) return names + ": no bytes; " + streams + (streams_.size() == 1 ? "" : " wait for each other");
  const std::string messages = std::to_string(transfers_.size()) + (transfers_.size() == 1 ? " message" : " messages");
  return names + ": " + messages + " on " + streams + " in one launch: " + explained();
}

void Launch::clear() noexcept {
  transfers_.clear();
  streams_.clear();
  communicators_.clear();
}

void Batch::clear() noexcept {
  messages.clear();
  empty.clear();
  communicators.clear();
  has_self_messages = false;
}

namespace {

// One launch for what is connected; `launch` is used where that is all.
ncclResult_t enqueue(const Batch& batch, Launch& launch) {
  if (batch.communicators.empty()) return ncclSuccess;
  if (batch.communicators.size() == 1) {
    launch.clear();
    for (const Message& message : batch.messages) launch.add(message);
    for (const Message& message : batch.empty) launch.add_empty(message);
    return launch.run();
  }
  std::vector<Message> all = batch.messages;
  all.insert(all.end(), batch.empty.begin(), batch.empty.end());
  const std::vector<std::size_t> launch_of = launches(all);
  std::vector<Launch> list(*std::max_element(launch_of.begin(), launch_of.end()) + 1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].bytes != 0)
      list[launch_of[i]].add(all[i]);
    else
      list[launch_of[i]].add_empty(all[i]);
  }
  for (Launch& each : list) {
    if (const ncclResult_t result = each.run(); result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace

Group& Group::of_this_thread() { return capi::thread_own<Group>(); }

ncclResult_t Group::fail(ncclResult_t error) noexcept {
  if (open() && error_ == ncclSuccess) error_ = error;
  return error;
}

void Group::add(const CommunicatorPointer& communicator, const Message& message) {
  auto& known = batch_.communicators;
  if (std::find(known.rbegin(), known.rend(), communicator) == known.rend()) known.push_back(communicator);
  batch_.has_self_messages = batch_.has_self_messages || message.peer == communicator->rank();
  batch_.messages.push_back(message);
}

void Group::add_empty(const CommunicatorPointer& communicator, cudaStream_t stream) {
  auto& empty = batch_.empty;
  // Most often the stream that the last one had, too.
  if (!empty.empty() && empty.back().communicator == communicator.get() && empty.back().stream == stream) return;
  auto& known = batch_.communicators;
  if (std::find(known.rbegin(), known.rend(), communicator) == known.rend()) known.push_back(communicator);
  empty.push_back({communicator.get(), RAILWEAVE_CUDA_SEND, 0, nullptr, 0, stream});
}

void Group::check() {
  if (!std::exchange(batch_.has_self_messages, false) || error_ != ncclSuccess) return;
  if (const std::string wrong = check_self_messages(batch_.messages); !wrong.empty()) error_ = refuse(ncclInvalidUsage, wrong);
}

void Group::note(ncclComm_t handle, cudaStream_t stream) {
  const auto is_there = [&](const Work& each) { return each.handle == handle && each.stream == stream; };
  if (std::none_of(work_.rbegin(), work_.rend(), is_there)) work_.push_back({handle, stream, Registry::get().find(handle)});
}

void note_work(void* communicator, void* stream) {
  Group& group = Group::of_this_thread();
  if (group.open() && !InsideReal::now()) group.note(static_cast<ncclComm_t>(communicator), static_cast<cudaStream_t>(stream));
}

bool Group::prepare_end() {
  if (depth_ != 1) return false;
  check();
  if (error_ == ncclSuccess) error_ = join_streams();
  return error_ != ncclSuccess;
}

// All streams that a communicator has in a group wait for each other before its kernels in NCCL, and follow them. NCCL knows only those of
// its own part, so they are joined with the messages' before it queues anything; and the messages' launch, which comes behind, has them
// all.
ncclResult_t Group::join_streams() {
  const auto has_messages = [&](const Work& work) {
    return work.communicator != nullptr &&
           std::find(batch_.communicators.begin(), batch_.communicators.end(), work.communicator) != batch_.communicators.end();
  };
  for (const Work& work : work_) {
    if (has_messages(work)) add_empty(work.communicator, work.stream);
  }
  for (const CommunicatorPointer& communicator : batch_.communicators) {
    if (std::none_of(work_.begin(), work_.end(), [&](const Work& work) { return work.communicator == communicator; })) continue;
    launch_.clear();
    for (const std::vector<Message>* list : {&batch_.messages, &batch_.empty}) {
      for (const Message& message : *list) {
        if (message.communicator == communicator.get()) launch_.add_empty(message);
      }
    }
    if (const ncclResult_t result = launch_.run(); result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

ncclResult_t Group::finish(ncclResult_t nccl) {
  check();
  ncclResult_t queued = std::exchange(error_, ncclSuccess);
  ncclResult_t result = nccl;
  if (nccl == ncclSuccess || nccl == ncclInProgress) {
    if (!births_.empty() && follow(std::exchange(births_, {}))) result = ncclInProgress;
    if (queued == ncclSuccess && !(nccl == ncclInProgress && queue_later())) queued = enqueue(batch_, launch_);
  }
  if (queued != ncclSuccess) result = queued;
  births_.clear();
  batch_.clear();
  work_.clear();
  return result;
}

ncclResult_t Group::finish_simulated(ncclResult_t nccl) {
  batch_.clear();
  return finish(nccl);
}

// NCCL launches its part of a group, of communicators that do not block, from a thread of its own, and that part comes before the messages
// on each rank: of all its communicators, as they may have streams in common with the messages. Waiting for that here could be waiting for
// a rank that this thread drives, too.
bool Group::queue_later() {
  // One that blocks is not asked for its state by its program. NCCL has no such beside others in a group.
  std::vector<CommunicatorPointer> later;
  const auto add = [&](const CommunicatorPointer& each) {
    if (each != nullptr && !each->blocking() && std::find(later.begin(), later.end(), each) == later.end()) later.push_back(each);
  };
  for (const CommunicatorPointer& communicator : batch_.communicators) add(communicator);
  const std::size_t with_messages = later.size();
  if (with_messages == 0) return false;
  for (const Work& work : work_) add(work.communicator);
  if (std::none_of(later.begin(), later.end(), [](const CommunicatorPointer& each) { return each->nccl_is_busy(); })) return false;
  // NCCL has none of them ready before the whole group is launched, so the others are in progress, too.
  for (const CommunicatorPointer& communicator : later) communicator->begin_queueing();
  in_background([batch = std::exchange(batch_, {}), later, with_messages] {
    ncclResult_t result = ncclSuccess;
    for (const CommunicatorPointer& communicator : later) {
      if (result == ncclSuccess) result = communicator->wait_for_nccl();
    }
    try {
      Launch launch;
      if (result == ncclSuccess) result = enqueue(batch, launch);
    } catch (const std::bad_alloc&) {
      result = ncclSystemError;
    }
    for (std::size_t i = 0; i < later.size(); ++i) later[i]->end_queueing(i < with_messages ? result : ncclSuccess);
  });
  return true;
}

// A child of a parent that does not block is followed through it, also where NCCL has made it already: the program asks the parent whether
// it may be used (NCCL's call gives ncclSuccess in any case). Else a handle that is NULL is of no communicator of this rank.
bool Group::follow(std::vector<GroupBirth>&& births) {
  std::vector<CommunicatorPointer> born;
  for (auto& [birth, parent] : births) {
    if (parent != nullptr && !parent->blocking()) {
      parent->expect(std::move(birth));
      parent->follow_children();
    } else if (const ncclComm_t handle = birth.made(); handle != nullptr) {
      born.push_back(std::make_shared<Communicator>(handle, std::move(birth.origin)));
      Registry::get().add(born.back());
      born.back()->settle();
    }
  }
  bool settling = false;
  for (const CommunicatorPointer& communicator : born) {
    if (communicator->blocking()) communicator->wait_settled();
    settling = settling || communicator->state() == Communicator::State::settling;
  }
  return settling;
}

std::vector<std::size_t> launches(const std::vector<Message>& messages) {
  // Each message is joined to the first one with its communicator and the first one with its stream.
  std::vector<std::size_t> parent(messages.size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](std::size_t at) {
    while (parent[at] != at) at = parent[at] = parent[parent[at]];
    return at;
  };
  std::map<const void*, std::size_t> communicators;
  std::map<std::pair<int, const void*>, std::size_t> streams;  // the default stream has one handle on all devices
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (const std::size_t other : {communicators.try_emplace(messages[i].communicator, i).first->second,
                                    streams.try_emplace({messages[i].communicator->device(), messages[i].stream}, i).first->second}) {
      const std::size_t a = root(i), b = root(other);
      parent[std::max(a, b)] = std::min(a, b);
    }
  }
  std::vector<std::size_t> result(messages.size());
  std::map<std::size_t, std::size_t> numbers;
  for (std::size_t i = 0; i < messages.size(); ++i) result[i] = numbers.try_emplace(root(i), numbers.size()).first->second;
  return result;
}

std::string check_self_messages(const std::vector<Message>& messages) {
  std::map<const Communicator*, std::vector<std::uint64_t>> sends, receives;
  for (const Message& message : messages) {
    if (message.peer == message.communicator->rank())
      (message.kind == RAILWEAVE_CUDA_SEND ? sends : receives)[message.communicator].push_back(message.bytes);
  }
  if (sends == receives) return "";
  return "a group sends to its own rank without a receive of the same size from it in the same group; such messages have to come in pairs";
}

}  // namespace railweave::nccl
