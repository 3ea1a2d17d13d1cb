// Groups: what a thread collects between ncclGroupStart and ncclGroupEnd.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "communicator.hpp"
#include "nccl_abi.hpp"
#include "railweave/cuda.h"

namespace railweave::nccl {

struct Message {
  Communicator* communicator = nullptr;
  railweave_cuda_kind kind = RAILWEAVE_CUDA_SEND;
  std::uint32_t peer = 0;
  void* data = nullptr;
  std::uint64_t bytes = 0;  // 0: it moves nothing, but its stream is one of its communicator's in the group
  cudaStream_t stream = nullptr;
};

// A communicator that NCCL makes when the group ends, or later for a parent that does not block.
struct GroupBirth {
  Birth birth;
  CommunicatorPointer parent;  // nullptr: it has none
};

// What NCCL itself is given in a group.
struct Work {
  ncclComm_t handle = nullptr;
  cudaStream_t stream = nullptr;
  CommunicatorPointer communicator;  // nullptr: the shim has no part in it
};

// The messages of a group.
struct Batch {
  std::vector<Message> messages;
  std::vector<Message> empty;                      // those of 0 bytes
  std::vector<CommunicatorPointer> communicators;  // of all these, each once; they live until the messages are queued
  bool has_self_messages = false;                  // that have not been checked

  void clear() noexcept;
};

// What is queued at once: everything here is connected.
class Launch {
 public:
  void add(const Message& message);
  // The same for one of 0 bytes.
  void add_empty(const Message& message);
  ncclResult_t run();
  // Keeps its memory.
  void clear() noexcept;

 private:
  std::string text() const;

  std::vector<railweave_cuda_transfer> transfers_;
  std::vector<railweave_cuda_stream> streams_;
  std::vector<Communicator*> communicators_;
  std::vector<std::unique_lock<std::mutex>> locks_;
};

// Queueing costs the host time that small exchanges are made of, so a group that is all of one communicator allocates nothing once its
// thread has queued one as large (docs/nccl.md).
class Group {
 public:
  static Group& of_this_thread();

  bool open() const noexcept { return depth_ != 0; }
  void start() noexcept { ++depth_; }
  // True when that was the outermost end.
  bool end() noexcept { return depth_ != 0 && --depth_ == 0; }

  // Remembered until the end, which gives the first of them.
  ncclResult_t fail(ncclResult_t error) noexcept;
  void add(const CommunicatorPointer& communicator, const Message& message);
  // A message of 0 bytes.
  void add_empty(const CommunicatorPointer& communicator, cudaStream_t stream);
  void add(GroupBirth birth) { births_.push_back(std::move(birth)); }

  // NCCL is given work on the stream, by the group's owner.
  void note(ncclComm_t handle, cudaStream_t stream);

  // Before NCCL's own end of the group. True: it is the outermost end, and gives an error of the shim's, whatever NCCL makes of its own
  // part.
  bool prepare_end();
  // After NCCL's own end of the group: follows the new communicators, queues the messages. `nccl` is what NCCL's end gave.
  ncclResult_t finish(ncclResult_t nccl);
  // Forgets the messages; the communicators are followed.
  ncclResult_t finish_simulated(ncclResult_t nccl);

 private:
  // That messages to oneself come in pairs.
  void check();
  // NCCL's streams of a communicator that has messages, too, and theirs wait for each other.
  ncclResult_t join_streams();
  // True: one that does not block is not settled yet, so the program has to ask for it, whatever NCCL's call gave.
  static bool follow(std::vector<GroupBirth>&& births);
  // True: on a thread of its own, as NCCL is still launching its part of the group.
  bool queue_later();

  unsigned depth_ = 0;
  ncclResult_t error_ = ncclSuccess;
  Batch batch_;
  std::vector<Work> work_;  // each communicator and stream once
  Launch launch_;           // of a group of one communicator
  std::vector<GroupBirth> births_;
};

// In front of each call that gives NCCL work on a stream of a communicator. Outside of groups it costs the look whether one is open.
void note_work(void* communicator, void* stream);

// Messages whose communicators or streams are connected have to be one launch: NCCL lets no message of a group wait for another one, and
// two launches may run one after the other. Index of the launch of each message, from 0, in the order of their first messages.
std::vector<std::size_t> launches(const std::vector<Message>& messages);

// Messages to oneself: as many sends as receives on each communicator, with equal sizes in order. Else what is wrong, for the error text.
std::string check_self_messages(const std::vector<Message>& messages);

}  // namespace railweave::nccl
