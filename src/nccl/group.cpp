#include "group.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "device_library.hpp"
#include "log.hpp"
#include "real_nccl.hpp"

namespace railweave::nccl {
namespace {

ncclResult_t refuse(ncclResult_t error, const std::string& text) {
  set_last_error(text.c_str());
  log(LogLevel::warn, text);
  return error;
}

// One launch: everything here is connected.
class Launch {
 public:
  void add(const Message& message) {
    railweave_cuda_transfer transfer{};
    transfer.size = sizeof transfer;
    transfer.communicator = message.communicator->device_side();
    transfer.kind = static_cast<std::uint32_t>(message.kind);
    transfer.peer = message.peer;
    transfer.data = message.data;
    transfer.bytes = message.bytes;
    transfers_.push_back(transfer);
    const auto stream = static_cast<railweave_cuda_stream>(message.stream);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
    Communicator* communicator = message.communicator.get();
    if (std::find(communicators_.begin(), communicators_.end(), communicator) == communicators_.end())
      communicators_.push_back(communicator);
  }

  ncclResult_t run() {
    // In one order in all threads.
    std::sort(communicators_.begin(), communicators_.end(), std::less<>{});
    std::vector<std::unique_lock<std::mutex>> locks;
    for (Communicator* communicator : communicators_) locks.emplace_back(communicator->enqueue_mutex());
    const auto& api = *device_library().api;
    const auto status = api.enqueue(transfers_.data(), transfers_.size(), streams_.data(), streams_.size());
    if (status != RAILWEAVE_OK) return refuse(to_nccl(status), "communicator " + communicators_.front()->name() + ": " + api.last_error());
    if (logs(LogLevel::debug))
      log(LogLevel::debug, "communicator " + communicators_.front()->name() + ": " + std::to_string(transfers_.size()) + " messages on " +
                               std::to_string(streams_.size()) + " streams in one launch");
    return ncclSuccess;
  }

 private:
  std::vector<railweave_cuda_transfer> transfers_;
  std::vector<railweave_cuda_stream> streams_;
  std::vector<Communicator*> communicators_;
};

}  // namespace

Group& Group::of_this_thread() {
  static thread_local Group group;
  return group;
}

ncclResult_t Group::fail(ncclResult_t error) noexcept {
  if (open() && error_ == ncclSuccess) error_ = error;
  return error;
}

ncclResult_t Group::finish(ncclResult_t nccl) {
  const std::vector<Message> messages = std::exchange(messages_, {});
  std::vector<GroupBirth> births = std::exchange(births_, {});
  const ncclResult_t error = std::exchange(error_, ncclSuccess);
  if (nccl != ncclSuccess && nccl != ncclInProgress) return nccl;
  follow(std::move(births));
  if (error != ncclSuccess) return error;
  if (const std::string wrong = check_self_messages(messages); !wrong.empty()) return refuse(ncclInvalidUsage, wrong);
  const ncclResult_t queued = enqueue(messages);
  return queued == ncclSuccess ? nccl : queued;
}

ncclResult_t Group::finish_simulated(ncclResult_t nccl) {
  messages_.clear();
  return finish(nccl);
}

// A handle that is NULL belongs to a child that NCCL is still making (NCCL's call gives ncclSuccess all the same), or to none of this rank.
void Group::follow(std::vector<GroupBirth> births) {
  std::vector<CommunicatorPointer> born;
  for (auto& [birth, parent] : births) {
    if (const ncclComm_t handle = birth.made(); handle != nullptr) {
      born.push_back(std::make_shared<Communicator>(handle, std::move(birth.origin)));
      Registry::get().add(born.back());
      born.back()->settle();
    } else if (parent != nullptr && !parent->blocking()) {
      parent->expect(std::move(birth));
    }
  }
  for (const CommunicatorPointer& communicator : born) {
    if (communicator->blocking()) communicator->wait_settled();
  }
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
    for (const std::size_t other : {communicators.try_emplace(messages[i].communicator.get(), i).first->second,
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
      (message.kind == RAILWEAVE_CUDA_SEND ? sends : receives)[message.communicator.get()].push_back(message.bytes);
  }
  if (sends == receives) return "";
  return "a group sends to its own rank without a receive of the same size from it in the same group; such messages have to come in pairs";
}

ncclResult_t enqueue(const std::vector<Message>& messages) {
  if (messages.empty()) return ncclSuccess;
  const std::vector<std::size_t> launch_of = launches(messages);
  std::vector<Launch> list(*std::max_element(launch_of.begin(), launch_of.end()) + 1);
  for (std::size_t i = 0; i < messages.size(); ++i) list[launch_of[i]].add(messages[i]);
  for (Launch& launch : list) {
    if (const ncclResult_t result = launch.run(); result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace railweave::nccl
