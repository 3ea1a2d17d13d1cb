// A communicator of the program, as the shim follows it: settled once, then served or left to NCCL for good.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "agreement.hpp"
#include "ctas.hpp"
#include "hub.hpp"
#include "metrics.hpp"
#include "nccl_abi.hpp"
#include "railweave/cuda.h"
#include "ranges.hpp"
#include "reserved_port.hpp"

namespace railweave::nccl {

// What is known of a communicator before NCCL has made it.
struct Origin {
  std::string name;               // the same on all its ranks, unique at its hub
  std::optional<HubAddress> hub;  // none: it cannot be served
  std::string no_hub;             // why
  Cause no_hub_cause = Cause::no_hub;
  bool blocking = true;
  bool one_process = false;  // it, or its parent, is ncclCommInitAll's: nobody outside reaches its hub
  Ctas ctas;                 // those of the parent, for a child
};

// A communicator that NCCL is making.
struct Birth {
  ncclComm_t* handle = nullptr;  // where NCCL writes it, from a thread of its own
  Origin origin;
  std::uint64_t number = 0;    // of its parent's
  ncclComm_t known = nullptr;  // what NCCL wrote there in the call that made it: the place may be another thing's by now

  ncclComm_t made() const noexcept { return known != nullptr ? known : __atomic_load_n(handle, __ATOMIC_ACQUIRE); }
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  enum class State {
    settling,  // NCCL is still making it, or the ranks have not agreed
    served,
    unserved,  // every call goes to NCCL
    failed     // the ranks agreed, this one could not follow: every call gives error()
  };

  Communicator(ncclComm_t handle, Origin origin);
  ~Communicator();

  // Starts a thread that waits for NCCL, asks the other ranks and creates the device side. wait_settled() waits for its end.
  void settle();
  void wait_settled();

  State state() const noexcept { return state_.load(std::memory_order_acquire); }
  ncclComm_t handle() const noexcept { return handle_; }
  bool blocking() const noexcept { return origin_.blocking; }
  const std::string& name() const noexcept { return origin_.name; }
  // False in a forked child of the one that made it. There it is not to be ended: it has none of its threads, and shares with its parent
  // what the other ranks read.
  bool is_of_this_process() const noexcept;
  // Valid when served.
  std::uint32_t rank() const noexcept { return rank_; }
  std::uint32_t world() const noexcept { return world_; }
  int device() const noexcept { return device_; }
  // nullptr once release() has freed it, which it does under enqueue_mutex(): another thread may abort while this one queues.
  railweave_cuda_communicator* device_side() const noexcept { return device_side_.load(std::memory_order_acquire); }
  const RangeDomain* ranges() const noexcept { return ranges_.get(); }

  // NCCL's own state, of the program's call. NCCL ends what another thread of its made in that call, and not for two callers at once, so
  // the threads of the shim and of the program take turns.
  ncclResult_t ask_nccl_state(ncclResult_t* error) const;
  // ncclSuccess, ncclInProgress while settling, queueing or finalizing, or what ended it.
  ncclResult_t async_error();
  // What is known to have ended it, without asking the device library; ncclSuccess: nothing.
  ncclResult_t known_error() const noexcept { return error_.load(std::memory_order_relaxed); }
  // Calls below do nothing to a communicator that is not served.
  void abort();
  // The same for one that may still be asked and have children: as NCCL, it has no error from then on, and refuses messages. The shim's
  // threads leave NCCL's handle alone from here on.
  void revoke();
  bool is_revoked() const noexcept { return revoked_.load(std::memory_order_relaxed); }
  // Whether NCCL accepts ncclCommFinalize, as far as it tells.
  bool may_be_finalized();
  // What ncclCommFinalize promises once NCCL accepts it: what was queued ends. Waits when the communicator is blocking, else
  // async_error() tells when it is over.
  void finalize();
  // Another thread of the program has ended it, and NCCL's handle with it, while this one waited in finalize().
  bool is_ended() const noexcept { return cancelled_.load() && !is_revoked(); }
  bool is_finalized() const noexcept { return finalized_.load(std::memory_order_relaxed); }
  // The shim's threads leave NCCL's handle alone from here on. Frees the device side on a thread: ranks of one process may be destroyed one
  // after another by one thread of the program, and each waits for the others.
  void release();
  // The same. What was queued on one that blocks ends before this returns for the last rank of the process, as in NCCL: that of all of
  // them.
  void destroy();

  // True: NCCL is still launching its part of a group. That comes before the group's messages, so who queues those waits for its end.
  bool nccl_is_busy();
  // In progress from here on to end_queueing(), of which the program hears as of an asynchronous error.
  void begin_queueing();
  bool is_queueing() const noexcept { return queueing_.load(std::memory_order_relaxed) != 0; }
  void end_queueing(ncclResult_t result);
  // For NCCL to be done; what it ended with. ncclInvalidUsage: the program has ended the communicator meanwhile.
  ncclResult_t wait_for_nccl();

  // A child whose handle NCCL writes later: at the latest when this one, which does not block, is ready again. It counts as one that does
  // not block either, whatever its configuration says.
  void expect(Birth child);
  bool expects(ncclComm_t child) const;
  // Follows the expected children that NCCL has made. This one is in progress until they are settled.
  void follow_children();
  // NCCL is done with the first `count` children that were expected: where it failed, the handle's place is the program's again.
  void forget_children(std::uint64_t count);
  std::uint64_t children_expected() const;

  // The origin of a child; each rank of the parent calls it in the same order.
  Origin split(int color, bool blocking);
  Origin shrink(const std::vector<int>& excluded, bool blocking);
  // Of the communicator that is this one and who comes to it; has_grown() counts it.
  Origin larger(bool blocking) const;
  void has_grown();

  // Memory that the program registered with NCCL, by NCCL's handle: mapped ahead of its use, where served.
  void register_buffer(void* nccl_handle, void* data, std::size_t bytes);
  void deregister_buffer(void* nccl_handle);

  // A line about who waits for what, for the log.
  std::string describe() const;
  // Nothing unless it is served.
  std::optional<Sample> sample() const;
  // Nothing while it is settling, and once the program ends it.
  std::optional<Fate> fate() const;

  std::mutex& enqueue_mutex() noexcept { return enqueue_mutex_; }

 private:
  enum class Ready { yes, failed, cancelled };
  void run();
  Ready wait_until_made();
  bool ask_nccl();
  void agree();
  void end_device_side();
  Facts own_facts(const HubAddress& address, ReservedPort& port) const;
  Round join_second(HubClient& first, const std::string& refusal, std::chrono::milliseconds patience);
  Origin child_without(const std::vector<int>& excluded, bool blocking) const;
  std::string create_device_side(const Verdict& verdict);
  void leave_to_nccl(Cause cause, const std::string& reason, bool warn);
  void fail(ncclResult_t error, const char* reason) noexcept;
  void settled(State state);
  std::string label() const;
  void drain();
  void release(bool drains);
  bool has_settling_children();

  // What `f` makes of the library and the device side. Nothing is to be done where another thread of the program ends the communicator.
  template <typename F>
  railweave_status on_device_side(F&& f) const;

  const ncclComm_t handle_;
  const Origin origin_;
  const pid_t process_;
  std::uint32_t rank_ = 0, world_ = 0;
  int device_ = 0;
  std::atomic<railweave_cuda_communicator*> device_side_{nullptr};
  std::unique_ptr<const RangeDomain> ranges_;
  Cause cause_ = Cause::refused;  // this and the next are written before state_: why it is not served
  std::string reason_;
  std::atomic<State> state_{State::settling};
  std::atomic<ncclResult_t> error_{ncclSuccess};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> told_error_{false};
  std::atomic<bool> revoked_{false};
  std::atomic<bool> finalized_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false;               // guarded by mutex_: the settling thread
  bool draining_ = false;              // guarded by mutex_
  std::atomic<unsigned> queueing_{0};  // changed under mutex_: groups whose messages wait for NCCL's part
  // Held while a thread of the shim uses handle_, and by who asks for NCCL's state. One for all: a group's communicators share what that
  // ends.
  static std::mutex handle_mutex_;
  std::mutex enqueue_mutex_;
  mutable std::shared_mutex device_mutex_;  // held by who uses the device side beside the program's sends and receives, and to free it

  std::mutex buffers_mutex_;
  std::map<void*, void*> buffers_;  // guarded by buffers_mutex_: NCCL's handle, the device library's

  mutable std::mutex family_mutex_;
  std::uint64_t splits_ = 0;                           // guarded by family_mutex_
  std::map<std::vector<int>, std::uint64_t> shrinks_;  // guarded by family_mutex_
  std::uint64_t grows_ = 0;                            // guarded by family_mutex_
  MeetingPlaces meeting_places_;                       // guarded by family_mutex_
  std::vector<Birth> expected_;                        // guarded by family_mutex_
  std::uint64_t births_ = 0;                           // guarded by family_mutex_: children that were ever expected
  std::vector<std::weak_ptr<Communicator>> settling_;  // guarded by family_mutex_: children
};

using CommunicatorPointer = std::shared_ptr<Communicator>;

// The communicators of this process by NCCL's handle.
class Registry {
 public:
  static Registry& get();
  void add(CommunicatorPointer communicator);
  // A child that is expected is followed now. nullptr: the shim has no part in it. The reference is good until the thread's next call.
  // Each thread remembers the last one that it found, so that a group's messages take no lock.
  const CommunicatorPointer& find(ncclComm_t handle);
  // Of all of them: each parent is in progress until its child is settled, and ranks that this thread drives, or other ranks, may wait for
  // the child of one that the program asks only after this one.
  void follow_children();
  // nullptr, too, in a forked child, where it stays.
  CommunicatorPointer remove(ncclComm_t handle);
  // Whether a rank of the communicator of that name is here.
  bool has(const std::string& name);

 private:
  CommunicatorPointer look_up(ncclComm_t handle);

  std::mutex mutex_;
  std::map<ncclComm_t, CommunicatorPointer> entries_;  // guarded by mutex_
  std::atomic<std::uint64_t> changes_{1};              // of entries_: what threads remember is good for one value
};

}  // namespace railweave::nccl
