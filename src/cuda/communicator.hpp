// A rank of a communicator between GPUs: its memory, that of its mates (the ranks of its node), its part in the rails, and the operations
// it queues.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "book.hpp"
#include "capture_order.hpp"
#include "checker.hpp"
#include "device.hpp"
#include "indirect_memory.hpp"
#include "kernel.hpp"
#include "liveness.hpp"
#include "mailbox.hpp"
#include "mate_book.hpp"
#include "operation.hpp"
#include "rails.hpp"
#include "railweave/engine/settings.hpp"
#include "region.hpp"
#include "room.hpp"
#include "staging.hpp"
#include "virtual_memory.hpp"

namespace railweave::cuda {

class Communicator;
struct Capture;
using StreamId = std::optional<std::uint64_t>;  // no two streams of a process share one; none: it cannot be told which stream it is

struct Transfer {
  Communicator* communicator;
  Direction direction;
  std::uint32_t peer;
  std::byte* data;
  std::uint64_t bytes;
};

struct Counters {
  std::uint64_t enqueued = 0;
  std::uint64_t completed = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_by_kind[5] = {};  // by PathKind
  bool replays = false;                 // a graph's operations are under way, and not among the enqueued yet
};

// Bytes of messages with a rank.
struct PeerUse {
  std::uint32_t peer = 0;
  std::uint64_t sent = 0, received = 0;
};

// What who makes a communicator says of its kernels, beside the settings.
struct KernelBounds {
  std::uint32_t channel_bytes = 0;  // LaunchLimits
  std::uint32_t most_blocks = 0;    // 0: as many as the settings say
};

class Communicator {
 public:
  // `say` is told, on any thread, what was decided and why, `warn` what somebody should mend.
  Communicator(std::uint32_t rank, std::uint32_t world, int device, const ExchangeSettings& settings, const KernelBounds& bounds,
               Remarks::Say say, Remarks::Say warn);
  // Brings the ranks together, with the device current. Throws BootstrapError (on every rank), SettingsError, DeviceError: then this one
  // has memory, of which freeing waits for kernels (give_back()).
  void begin(const std::string& rendezvous);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  // Queues the transfers as one operation on streams[0]. Throws Error and has queued nothing then.
  static void enqueue(std::span<const Transfer> transfers, std::span<const cudaStream_t> streams);
  // What is queued on any of the streams from now on starts after what is queued on all of them. Called as enqueue is.
  void join(std::span<const cudaStream_t> streams);

  std::optional<Failure> failure() const;
  // Ends the communicator on all ranks; on this one alone where all that it had queued has ended. Waits for no kernel.
  void abort();
  // Waits for own operations, and for no other rank: a program may have one thread finalize several ranks, or tell the others to finalize
  // when it has. They hear that this rank leaves.
  void drain();
  // Drains, waits until no mate of another process can touch this rank's memory any more, drain_ms at most, and ends its threads: only
  // memory is left then, and nothing is told any more.
  void end();
  // Gives back the memory of one that has ended, at once or, as that waits for kernels, when no operation is under way on its device.
  static void give_back(int device, std::shared_ptr<void> memory);
  // Names the buffer to the mates ahead of its first use.
  void register_buffer(const void* data, std::uint64_t bytes);
  Counters counters() const;
  // The process is about to end, and has told the mates: CUDA's own handlers take away what communicators have.
  static bool ends_with_process() noexcept;
  // As counters() found them last: the ranks with which anything has been moved, the own one among them, by number.
  std::vector<PeerUse> peers() const;
  // Of the rank's node, where it is one of several.
  std::vector<NicUse> nics() const;
  std::string describe() const;
  // From now on called for each operation once it is queued, on the thread that queues it, with explanation(); nullptr: no more.
  static void explain_to(void (*tell)(const char* text));

  std::uint32_t world() const noexcept { return world_; }
  std::uint32_t rank() const noexcept { return rank_; }
  int device() const noexcept { return device_; }

 private:
  struct Pending {
    Direction direction;
    Path path;
    std::uint32_t peer;
    std::uint64_t bytes;
    std::uint64_t operation;  // number of its enqueue call; 0: captured
    bool operator==(const Pending&) const = default;
  };

  void become_resident();
  void set_up_device();
  void bring_together(const std::string& rendezvous);
  // `problem`: why this rank cannot take part, or nothing. What each rank says of its node.
  std::vector<NodeFacts> find_mates(engine::Rendezvous& rendezvous, const std::string& problem);
  void meet_mates(engine::Rendezvous& rendezvous);
  MailboxHandle open_virtual_memory();
  void add_mailbox(const MailboxHandle& mailbox, const Mate& mate);
  MappingTable table_of(std::uint32_t mate, bool other_process);
  bool near(std::uint32_t rank) const { return mate_of_[rank] != kFar; }
  static std::vector<const Transfer*> in_turn(std::span<const Transfer> transfers);
  Message make_message(const Transfer& transfer);
  void complete_near(Message& message, const Transfer& transfer);
  // Takes kFetched away where mates cannot map what it sends.
  void name_to_offer(Message& message);
  // All mates hear of it at once where it is new.
  Book::Place name_buffer(const void* data, std::uint64_t bytes, Book::Memory which = Book::Memory::any);
  BufferName name_for(std::uint32_t peer, const Book::Place& place) const;
  bool named_for_all(const Book::Place& place) const;
  void want_staging();
  void tell_no_room();
  void provide_staging();
  void copy_staged(cudaStream_t stream) const;
  void ring_all() const;
  const char* where(std::uint32_t rank) const;
  // With the sums of each message behind it, where its communicator is in the checksum mode.
  static std::vector<Transfer> with_sums(std::span<const Transfer> transfers, Checks& checks);
  void order_before(cudaStream_t stream, StreamId id, const Capture& capture);
  void order_after(cudaStream_t stream, StreamId id, const Capture& capture);
  // What its queued operations may hold of the device.
  struct Claim {
    std::uint32_t blocks = 0, cluster = 1, ahead = 0;
    StreamId stream;  // that they are all on, if they are
  };

  // Asks whether what some communicators have queued has ended: all of a device, or those of which held_beside() has to know.
  static void settle(const std::function<bool(const Communicator&)>& which);
  static void settle_on(int device);
  // The next two under the residents' mutex.
  static Held held_beside(std::span<Communicator* const> own, StreamId stream, bool captured);
  void hold(const Plan& plan, StreamId stream, bool captured);
  bool holds() const;
  bool may_hold_beside(std::span<Communicator* const> own, StreamId stream) const;
  // They stay as long as the device's `noting` is held. Takes the residents' mutex.
  static std::vector<const Communicator*> on_device(int device);
  // Makes a call of CUDA's that waits for kernels, if none of this library runs on the device; none begins before it has returned. False:
  // one may run, and the call was not made. `quiet`: replays of captured operations were over when they were last looked at.
  bool call_alone(bool quiet, const std::function<void()>& call);
  static void give_back_deferred(int device);
  // Whether an operation is under way, as far as the host knows: an event tells of a graph's replays, and of one that has failed.
  bool runs() const;
  void note(std::span<const Transfer> transfers, bool captured);
  void take_back(std::span<const Transfer> transfers);
  void start_threads();
  void end_threads();
  void watch(const char* name, bool maps, void (Communicator::*look)());
  std::chrono::milliseconds until_next_look(bool maps) const;  // under mutex_; of the mapping thread, or the watching one
  void look_around();
  bool gave_up() const;  // a kernel did
  void tell_kernels_error();
  void follow_books();
  // The first message of the operation that runs that waits for a rank which has left.
  std::optional<Failure> find_unmatched();
  void fail(Failure failure);
  void fail_by(const std::exception& error) noexcept;
  void stop_kernels(std::uint32_t how);  // also those that are launched later
  void come_to_rest();
  void let_kernels_leave();
  void halt_at_end();
  void wait_for_mates() const;
  bool all_is_over();
  bool leave();  // under mutex_
  void leave_with_process();
  HostView view() const;
  // --- What has ended. Kernels write it to the GPU's memory alone, see Ledger: an event tells that all is over, and a copy how much. Under
  // mutex_ but for settle() and ask_ledger(), which ask the driver.
  std::uint64_t enqueued() const;                  // messages, but those of captured operations
  bool pending() const;                            // some of them have not ended, as far as is known
  Totals ended(bool captured) const;               // as known
  void know_over(std::uint64_t messages) const;    // so many of what was queued
  std::optional<std::uint64_t> to_settle() const;  // so many if the event is over; none: that would tell nothing
  void settle() const;
  void settle_now_and_then();  // of the mapping thread
  // Brings what is known up to date if the GPU answers. Under words_mutex_.
  void ask_ledger() const;
  // The same on any thread, which waits for a moment only.
  void have_ledger_asked() const;
  void answer_asks();  // of the mapping thread
  Path path_of(const Transfer& transfer) const;
  std::vector<Pending> waiting_messages() const;  // under mutex_
  static std::vector<std::pair<Pending, Waiting>> in_order(const std::vector<Pending>& waiting);
  std::string describe(const std::vector<Pending>& waiting, const std::vector<Pending>& replayed, const engine::Standing* standing) const;
  // The own ports' words, by mate, and those of mates for this rank where they are asked for. False: the GPU does not answer.
  struct PortWords {
    std::vector<const Port*> own, mates;
    bool ahead = false;  // of the own ones
  };
  bool side_stream_answers() const;
  bool read_words(const std::set<std::uint32_t>& mates, bool theirs, PortWords& words) const;

  const std::uint32_t rank_, world_;
  const int device_;
  const ExchangeSettings settings_;
  const KernelBounds bounds_;
  std::mutex& noting_;                   // of the device, see Residents
  std::uint64_t low_latency_bytes_ = 0;  // of messages in packets; the same at all ranks of the node
  KernelTraits kernels_{};
  cudaUUID_t gpu_{};
  DeviceShare share_{};
  static constexpr std::uint32_t kFar = ~0u;
  std::uint32_t nodes_ = 0;
  std::vector<std::uint32_t> mate_of_;  // by rank: its number among the ranks of this node, or kFar
  std::optional<Region> region_;        // this rank's memory and its mates'
  Remarks remarks_;
  std::optional<IndirectMemory> indirect_;
  std::unique_ptr<VirtualMemory> virtual_memory_;  // where the setting asks for it and the driver has it; with it the two below
  std::unique_ptr<Mailbox> mailbox_;
  ExtentBook* extents_ = nullptr;  // the book's
  std::optional<Book> book_;
  std::optional<Checker> checker_;  // in the checksum mode
  std::optional<Staging> staging_;
  bool told_no_room_ = false;                          // of the thread that queues
  std::vector<std::unique_ptr<MateBook>> mate_books_;  // by rank; empty for the own and far ones
  std::vector<engine::Fd> processes_;                  // by rank: pidfds; empty for ranks of this process and far ones
  std::vector<Mate> mates_;                            // the other ranks of the node
  Stream side_stream_;                                 // of the communicator's threads
  std::shared_ptr<CUevent_st> last_;                   // after the last operation
  Event join_;                                         // streams that wait for each other
  StreamId ordered_behind_;                            // what is queued on this stream comes after the last operation, without an event
  CaptureOrder<cudaStream_t, cudaGraphNode_t> capture_order_;
  std::atomic<bool> captured_ = false;
  std::atomic<std::uint32_t> launching_ = 0;  // operations that are noted, and of which the event does not tell yet
  bool ended_ = true;                         // until it has begun
  Claim claim_;                               // as long as an operation has not ended; under the residents' mutex

  mutable std::mutex mutex_;
  bool ending_ = false;
  std::uint32_t looking_ = 0;  // threads of watch() that are in a look
  std::uint64_t enqueued_by_path_[kPaths] = {};
  mutable std::uint64_t over_ = 0;                // of those that are counted
  mutable Ledger known_{};                        // a copy
  mutable std::vector<MovedBytes> moved_;         // a copy of the same moment, by mate; empty before the first
  mutable std::uint64_t asks_ = 0, answers_ = 0;  // for a newer one
  mutable bool unanswered_ = false;               // the last ask, in time
  mutable std::condition_variable answered_;
  std::uint64_t operations_ = 0;
  std::deque<Pending> pending_;             // newest last; see waiting_messages()
  std::vector<Pending> captured_messages_;  // no two alike, the first ones: of these any may be what a replay waits for
  mutable bool replays_ = false;            // one runs, as known
  std::optional<Failure> failure_;
  std::chrono::steady_clock::time_point failed_at_;
  bool left_ = false;               // with all that was queued ended
  std::unique_ptr<Rails> rails_;    // where there are far ranks
  mutable std::mutex words_mutex_;  // held by who reads words of ports, or the ledger
  // Of the mapping thread: since when the ports say that the communicator has ended, and whether mates have been told that its kernels
  // rest.
  bool halting_ = false, rests_ = false;
  std::optional<std::chrono::steady_clock::time_point> halted_at_;
  // Of the watching thread: since when a mate has left or is dead, once this rank has failed.
  std::vector<std::optional<std::chrono::steady_clock::time_point>> gone_since_;
  std::chrono::steady_clock::time_point looked_for_left_{};
  // Of the mapping thread: what could be settled at the last look, and when the event was asked.
  std::optional<std::uint64_t> queued_at_look_;
  std::chrono::steady_clock::time_point settled_at_{};
  // Of the mapping thread: since when nothing has ended while a rank that has left is waited for.
  std::optional<std::pair<std::uint64_t, std::chrono::steady_clock::time_point>> waits_for_left_;
  std::mutex asking_mutex_;
  std::future<bool> asked_;  // whether all is over
  std::jthread watcher_, mapper_;
};

}  // namespace railweave::cuda
