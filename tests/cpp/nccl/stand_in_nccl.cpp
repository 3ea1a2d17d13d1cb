// A libnccl.so.2 with NCCL's semantics over host memory: processes and threads as ranks, thread-local nested groups, operations that run in
// stream order, one at a time for each communicator, in the order of their launches. What it lacks of NCCL's functions is missing on
// purpose: it stands for an older release.
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "nccl_calls.hpp"
#include "stand_in_cuda.hpp"
#include "stand_in_mesh.hpp"

#ifndef STAND_IN_NUMBER
#define STAND_IN_NUMBER 22005
#endif

#pragma GCC visibility push(default)

using stand_in::Mesh;
using stand_in::Outcome;
using stand_in::Transfer;

struct ncclComm {
  std::string name;
  int rank = 0, world = 0, device = 0;
  bool blocking = true;
  std::atomic<ncclResult_t> error{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::atomic<bool> revoked{false};
  bool finalized = false;
  std::unique_ptr<Mesh> control, data;
  std::thread maker;           // of a non-blocking communicator, or of its group
  std::atomic<int> asking{0};  // threads that ask for its error

  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t tickets = 0, turn = 0;  // guarded by mutex
  std::uint64_t splits = 0;
  std::map<std::vector<int>, int> shrinks;
  std::vector<ncclComm*> unmade;  // children that failed, which nobody else knows
};

namespace {

struct Collective {
  const void* send;
  void* receive;
  std::size_t count;
  int type;
};

// What one group does on one communicator.
struct Work {
  ncclComm* comm;
  std::vector<cudaStream_t> streams;
  std::vector<Collective> collectives;
  std::vector<Transfer> transfers;
};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;  // of a wrong call: nothing of the group is done then
  std::vector<Work> works;
  std::vector<std::pair<ncclComm*, std::function<void()>>> makers;
  std::vector<std::function<void()>> windows;

  Work& on(ncclComm* comm, cudaStream_t stream) {
    auto at = std::find_if(works.begin(), works.end(), [&](const Work& work) { return work.comm == comm; });
    if (at == works.end()) at = works.insert(works.end(), Work{comm, {}, {}, {}});
    if (std::find(at->streams.begin(), at->streams.end(), stream) == at->streams.end()) at->streams.push_back(stream);
    return *at;
  }
};
thread_local Group group;
thread_local std::string last_error_text;

ncclResult_t refuse(ncclResult_t error, const char* text) {
  last_error_text = text;
  return error;
}

// The same for a call that may be in a group.
ncclResult_t remember(ncclResult_t error) {
  if (group.depth != 0 && error != ncclSuccess) group.error = error;
  return error;
}

std::string meeting_place(const ncclUniqueId& id) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, id.internal, sizeof magic);
  const char* directory = std::getenv("TMPDIR");
  return std::string(directory != nullptr ? directory : "/tmp") + "/sin" + std::to_string(magic);
}

std::size_t element_bytes(int type) { return railweave::nccl::datatype_bytes(type); }

template <typename T>
void sum(const std::vector<char>& all, Collective& collective, int world) {
  auto* out = static_cast<T*>(collective.receive);
  const auto* in = reinterpret_cast<const T*>(all.data());
  for (std::size_t i = 0; i < collective.count; ++i) {
    T total = 0;
    for (int rank = 0; rank < world; ++rank) total = static_cast<T>(total + in[static_cast<std::size_t>(rank) * collective.count + i]);
    out[i] = total;
  }
}

Outcome all_reduce(ncclComm& comm, Collective& collective) {
  const std::uint64_t bytes = collective.count * element_bytes(collective.type);
  std::vector<char> all(bytes * static_cast<std::uint64_t>(comm.world));
  const Outcome outcome = comm.data->all_gather(collective.send, bytes, all.data());
  if (outcome != Outcome::done) return outcome;
  if (collective.type == ncclFloat64)
    sum<double>(all, collective, comm.world);
  else
    sum<std::int32_t>(all, collective, comm.world);
  return outcome;
}

std::uint64_t take_ticket(ncclComm& comm) {
  const std::lock_guard lock(comm.mutex);
  return comm.tickets++;
}

// The kernel.
void run(Work& work, std::uint64_t ticket) {
  ncclComm& comm = *work.comm;
  {
    std::unique_lock lock(comm.mutex);
    comm.changed.wait(lock, [&] { return comm.turn == ticket; });
  }
  Outcome outcome = comm.aborted.load() ? Outcome::aborted : Outcome::done;
  for (Collective& collective : work.collectives) {
    if (outcome == Outcome::done) outcome = all_reduce(comm, collective);
  }
  if (outcome == Outcome::done) outcome = comm.data->run(work.transfers);
  if (outcome == Outcome::lost) comm.error = ncclRemoteError;
  if (outcome == Outcome::mismatch) comm.error = ncclInvalidUsage;
  const std::lock_guard lock(comm.mutex);
  ++comm.turn;
  comm.changed.notify_all();
}

void launch(const Work& work) {
  const int device = work.comm->device;
  const cudaStream_t stream = work.streams[0];
  const bool captured = stand_in::capturing(stream);
  const std::uint64_t ticket = captured ? 0 : take_ticket(*work.comm);
  for (std::size_t i = 1; i < work.streams.size(); ++i) stand_in::wait_for(stream, work.streams[i], device);
  stand_in::launch(stream, device,
                   [work = Work(work), ticket, captured]() mutable { run(work, captured ? take_ticket(*work.comm) : ticket); });
  for (std::size_t i = 1; i < work.streams.size(); ++i) stand_in::wait_for(work.streams[i], stream, device);
}

// STAND_IN_LEAVES_DESCRIPTORS: so many are left to the process.
void use_up_descriptors() {
  const char* left = std::getenv("STAND_IN_LEAVES_DESCRIPTORS");
  if (left == nullptr) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 256;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<int> taken;
  for (int fd = ::dup(STDERR_FILENO); fd >= 0; fd = ::dup(STDERR_FILENO)) taken.push_back(fd);
  for (int i = std::atoi(left); i > 0; --i, taken.pop_back()) ::close(taken.back());
}

void make(ncclComm* comm) {
  try {
    comm->control = std::make_unique<Mesh>(comm->name + "c", comm->rank, comm->world, comm->aborted);
    comm->data = std::make_unique<Mesh>(comm->name + "d", comm->rank, comm->world, comm->aborted);
    use_up_descriptors();
    comm->error = ncclSuccess;
  } catch (const std::system_error& error) {
    last_error_text = error.what();
    comm->error = ncclSystemError;
  }
}

// STAND_IN_IS_QUICK: what does not block has happened before the call returns, as it may.
ncclResult_t end_makers(std::vector<std::pair<ncclComm*, std::function<void()>>> makers) {
  const bool quick = std::getenv("STAND_IN_IS_QUICK") != nullptr;
  ncclResult_t result = ncclSuccess;
  std::vector<std::thread> threads;
  for (auto& [comm, work] : makers) {
    comm->error = ncclInProgress;
    if (comm->blocking) {
      threads.emplace_back(work);
    } else {
      comm->maker = std::thread(work);
      if (quick)
        comm->maker.join();
      else
        result = ncclInProgress;
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& [comm, work] : makers) {
    if (comm->blocking && comm->error != ncclSuccess) result = comm->error;
  }
  return result;
}

// As NCCL does it: a parent that does not block gives its child's handle when that is made, and until then it is in progress, while the
// call gave ncclSuccess. STAND_IN_FAILS_CHILDREN: it is never made.
std::function<void()> hand_over_later(ncclComm* parent, ncclComm** handle, std::function<void()> work) {
  parent->error = ncclInProgress;
  ncclComm* const child = std::exchange(*handle, nullptr);
  return [parent, handle, child, work = std::move(work)] {
    work();
    const bool fails = std::getenv("STAND_IN_FAILS_CHILDREN") != nullptr;
    if (fails)
      parent->unmade.push_back(child);
    else
      __atomic_store_n(handle, child, __ATOMIC_RELEASE);
    parent->error = fails ? ncclSystemError : ncclSuccess;
  };
}

ncclResult_t begin(ncclComm* comm, std::function<void()> work) {
  if (group.depth != 0) {
    group.makers.emplace_back(comm, std::move(work));
    return ncclSuccess;
  }
  return end_makers({{comm, std::move(work)}});
}

ncclResult_t begin_child(ncclComm* parent, ncclComm** handle, std::function<void()> work) {
  ncclComm* const made = *handle;
  if (parent->blocking) return begin(made, std::move(work));
  made->blocking = false;
  const ncclResult_t result = begin(made, hand_over_later(parent, handle, std::move(work)));
  return result == ncclInProgress ? ncclSuccess : result;
}

bool blocking(const Config* config, bool inherited) {
  const char* variable = std::getenv("NCCL_COMM_BLOCKING");  // counts more, as with NCCL
  if (variable != nullptr && (*variable == '0' || *variable == '1')) return *variable == '1';
  if (config == nullptr) return inherited;
  return config->size < offsetof(Config, others) || config->blocking == kConfigUndefined || config->blocking != 0;
}

ncclComm* new_comm(const std::string& name, int rank, int world, bool blocks) {
  auto* comm = new ncclComm;
  comm->name = name;
  comm->rank = rank;
  comm->world = world;
  comm->device = stand_in::device();
  comm->blocking = blocks;
  return comm;
}

ncclResult_t launch_all(std::vector<Work> works) {
  for (const Work& work : works) launch(work);
  return ncclSuccess;
}

// As NCCL does it: a group with collectives of communicators that do not block is launched by a thread, at any time. On every second rank
// that is before the call returns. STAND_IN_LAUNCHES_LATER: one of messages alone, too, as NCCL's always is.
bool launches_later(const std::vector<Work>& works) {
  const bool messages = std::getenv("STAND_IN_LAUNCHES_LATER") != nullptr;
  return std::any_of(works.begin(), works.end(),
                     [messages](const Work& work) { return !work.comm->blocking && (messages || !work.collectives.empty()); });
}

ncclResult_t launch_later(const std::vector<Work>& works) {
  ncclComm* const first = works.front().comm;
  if (first->maker.joinable()) first->maker.join();
  for (const Work& work : works) work.comm->error = ncclInProgress;
  first->maker = std::thread([works] {
    if (works.front().comm->rank % 2 != 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    for (const Work& work : works) launch(work);
    for (const Work& work : works) work.comm->error = ncclSuccess;  // of all at once, as NCCL's communicators share their group's job
  });
  if (first->rank % 2 == 0) first->maker.join();
  return ncclInProgress;
}

// STAND_IN_IS_BUSY: everything is in progress.
ncclResult_t state_of(const ncclComm* comm) { return std::getenv("STAND_IN_IS_BUSY") != nullptr ? ncclInProgress : comm->error.load(); }

// As NCCL does it: what is in progress cannot be finalized, split or shrunk.
ncclResult_t check_ready(const ncclComm* comm) {
  const ncclResult_t error = state_of(comm);
  return error == ncclInProgress ? refuse(ncclInvalidArgument, "stand-in: comm is in progress") : error;
}

ncclResult_t launch_unless_grouped() { return group.depth != 0 ? ncclSuccess : launch_all(std::exchange(group.works, {})); }

ncclResult_t check(ncclComm* comm, int type, int peer) {
  if (comm == nullptr) return refuse(ncclInvalidArgument, "stand-in: comm is NULL");
  if (comm->revoked.load()) return refuse(ncclInvalidUsage, "stand-in: comm was revoked");
  if (comm->error != ncclSuccess) return comm->error == ncclInProgress ? ncclInvalidArgument : comm->error.load();
  if (comm->aborted.load()) return refuse(ncclInvalidUsage, "stand-in: comm was aborted");
  if (element_bytes(type) == 0) return refuse(ncclInvalidArgument, "stand-in: datatype");
  if (peer < 0 || peer >= comm->world) return refuse(ncclInvalidArgument, "stand-in: peer");
  return ncclSuccess;
}

ncclResult_t add_transfer(bool send, void* data, std::size_t count, int type, int peer, ncclComm* comm, cudaStream_t stream) {
  if (const ncclResult_t error = remember(check(comm, type, peer)); error != ncclSuccess) return error;
  group.on(comm, stream).transfers.push_back({send, peer, static_cast<char*>(data), count * element_bytes(type)});
  return launch_unless_grouped();
}

bool self_messages_pair(const std::vector<Work>& works) {
  return std::all_of(works.begin(), works.end(), [](const Work& work) {
    std::vector<std::uint64_t> sends, receives;
    for (const Transfer& transfer : work.transfers) {
      if (transfer.peer == work.comm->rank) (transfer.send ? sends : receives).push_back(transfer.bytes);
    }
    return sends == receives;
  });
}

void join_maker(ncclComm* comm) {
  if (comm->maker.joinable()) comm->maker.join();
}

// What is queued has to end, as streams refer to the communicator.
void wait_for_kernels(ncclComm* comm) {
  std::unique_lock lock(comm->mutex);
  comm->changed.wait(lock, [&] { return comm->turn == comm->tickets; });
}

// NCCL frees in some calls what its thread was for, so two threads of a program in these at once have it freed twice.
class Asking {
 public:
  explicit Asking(ncclComm* comm) : comm_(comm) {
    if (++comm_->asking == 1) return;
    std::fputs("stand-in: two threads at once in calls that end what a communicator's thread made\n", stderr);
    std::abort();
  }
  ~Asking() { --comm_->asking; }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  ncclComm* comm_;
};

ncclResult_t free_comm(ncclComm* comm) {
  join_maker(comm);
  for (ncclComm* const child : comm->unmade) free_comm(child);
  wait_for_kernels(comm);
  delete comm;
  return ncclSuccess;
}

}  // namespace

extern "C" {

// STAND_IN_VERSION: another one.
ncclResult_t ncclGetVersion(int* version) {
  const char* text = std::getenv("STAND_IN_VERSION");
  *version = text == nullptr ? STAND_IN_NUMBER : std::atoi(text);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  // As NCCL's: a magic number, the address of the root, zeros.
  std::memset(id, 0, sizeof *id);
  if (::getrandom(id->internal, 8, 0) != 8) return ncclSystemError;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(id->internal + 8, &address, sizeof address);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, Config* config) {
  if (config != nullptr && config->magic != 0xcafebeef) return refuse(ncclInvalidArgument, "stand-in: config was not initialised");
  *comm = new_comm(meeting_place(id), rank, nranks, blocking(config, true));
  return begin(*comm, [made = *comm] { make(made); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

// All ids are used there; here the ranks meet at the first.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int ids, ncclUniqueId* list, Config* config) {
  if (ids < 1 || list == nullptr) return refuse(ncclInvalidArgument, "stand-in: no unique id");
  return ncclCommInitRankConfig(comm, nranks, list[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int i = 0; i < devices; ++i) {
    stand_in::set_device(list == nullptr ? i : list[i]);
    ncclCommInitRank(comms + i, devices, id, i);
  }
  return ncclGroupEnd();
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* child, Config* config) {
  if (const ncclResult_t error = check_ready(parent); error != ncclSuccess) return error;
  const std::string base = parent->name + "s" + std::to_string(parent->splits++) + "c" + std::to_string(color);
  *child = color == kSplitNoColor ? nullptr : new_comm(base, 0, 0, blocking(config, parent->blocking));
  auto work = [parent, color, key, made = *child] {
    const int mine[2] = {color, key};
    std::vector<int> all(2 * static_cast<std::size_t>(parent->world));
    const Outcome outcome = parent->control->all_gather(mine, sizeof mine, all.data());
    if (made == nullptr) return;
    if (outcome != Outcome::done) {
      made->error = ncclSystemError;
      return;
    }
    std::set<std::pair<int, int>> members;  // key, rank in the parent
    for (int rank = 0; rank < parent->world; ++rank) {
      if (all[2 * static_cast<std::size_t>(rank)] == color) members.emplace(all[2 * static_cast<std::size_t>(rank) + 1], rank);
    }
    made->world = static_cast<int>(members.size());
    made->rank = static_cast<int>(std::distance(members.begin(), members.find({key, parent->rank})));
    make(made);
  };
  if (*child == nullptr) {
    work();
    return ncclSuccess;
  }
  return begin_child(parent, child, work);
}

ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int count, ncclComm_t* child, Config* config, int flags) {
  if (child == nullptr || count <= 0 || std::find(excluded, excluded + count, parent->rank) != excluded + count)
    return refuse(ncclInvalidArgument, "stand-in: nobody, or the rank itself, is to go");
  if ((flags & kShrinkAbort) != 0)
    parent->aborted = true;
  else if (const ncclResult_t error = check_ready(parent); error != ncclSuccess)
    return error;
  std::vector<int> gone(excluded, excluded + count);
  std::sort(gone.begin(), gone.end());
  std::string name = parent->name + "x" + std::to_string(parent->shrinks[gone]++);
  for (const int rank : gone) name += "-" + std::to_string(rank);
  const auto before = std::lower_bound(gone.begin(), gone.end(), parent->rank) - gone.begin();
  *child = new_comm(name, parent->rank - static_cast<int>(before), parent->world - count, blocking(config, parent->blocking));
  return begin_child(parent, child, [made = *child] { make(made); });
}

// Of an existing communicator, for those who come to it.
ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId* id) { return ncclGetUniqueId(id); }

// Those who are there keep their ranks and pass -1; one of them has the id, which the others get through the communicator.
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* grown, Config* config) {
  *grown = nullptr;
  const bool comes = comm == nullptr;
  if (comes ? id == nullptr || rank < 0 || rank >= nranks : nranks <= comm->world || rank != -1)
    return refuse(ncclInvalidArgument, "stand-in: no such rank of a communicator that grows");
  *grown = new_comm(comes ? meeting_place(*id) : "", comes ? rank : comm->rank, nranks, blocking(config, comes || comm->blocking));
  if (comes) return begin(*grown, [made = *grown] { make(made); });
  return begin(*grown, [comm, made = *grown, mine = id == nullptr ? ncclUniqueId{} : *id] {
    std::vector<ncclUniqueId> all(static_cast<std::size_t>(comm->world));
    const Outcome outcome = comm->control->all_gather(&mine, sizeof mine, all.data());
    const auto given =
        std::find_if(all.begin(), all.end(), [](const ncclUniqueId& each) { return meeting_place(each) != meeting_place({}); });
    if (outcome != Outcome::done || given == all.end()) {
      made->error = ncclSystemError;
      return;
    }
    made->name = meeting_place(*given);
    make(made);
  });
}

// What is in flight ends. Then the communicator may be asked, split, shrunk and destroyed, and nothing else.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  if (comm == nullptr) return ncclSuccess;
  if (flags != 0 || comm->finalized || comm->revoked.load())
    return refuse(ncclInvalidArgument, "stand-in: such a communicator cannot be revoked in such a way");
  const Asking asking(comm);
  comm->aborted = comm->revoked = true;
  join_maker(comm);
  comm->error = ncclInProgress;
  const auto quiesce = [comm] {
    wait_for_kernels(comm);
    comm->aborted = false;
    comm->error = ncclSuccess;
  };
  if (comm->blocking) {
    quiesce();
    return ncclSuccess;
  }
  comm->maker = std::thread(quiesce);
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t error = check_ready(comm); error != ncclSuccess) return error;
  if (comm->finalized || comm->revoked.load()) return refuse(ncclInvalidArgument, "stand-in: comm was finalized or revoked");
  comm->finalized = true;
  join_maker(comm);
  if (comm->blocking) {
    wait_for_kernels(comm);
    return ncclSuccess;
  }
  comm->error = ncclInProgress;
  comm->maker = std::thread([comm] {
    wait_for_kernels(comm);
    comm->error = ncclSuccess;
  });
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) { return free_comm(comm); }

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  return free_comm(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Asking asking(comm);
  *error = state_of(comm);
  if (*error == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->world;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t, void* buffer, std::size_t, void** handle) {
  *handle = buffer;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }

// NULL until it is there: at the end of an open group, or, of a communicator that does not block, when that is ready again.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t bytes, ncclWindow_t* window, int) {
  if (buffer == nullptr || bytes == 0) return refuse(ncclInvalidArgument, "stand-in: no buffer");
  *window = nullptr;
  const auto make_it = [window, buffer] { __atomic_store_n(window, reinterpret_cast<ncclWindow_t>(buffer), __ATOMIC_RELEASE); };
  if (group.depth != 0) {
    group.windows.emplace_back(make_it);
    return ncclSuccess;
  }
  if (comm->blocking) {
    make_it();
    return ncclSuccess;
  }
  join_maker(comm);
  comm->error = ncclInProgress;
  comm->maker = std::thread([comm, make_it] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    make_it();
    comm->error = ncclSuccess;
  });
  return ncclInProgress;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclSuccess; }

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return refuse(ncclInvalidUsage, "stand-in: no group is open");
  if (--group.depth != 0) return ncclSuccess;
  if (group.error != ncclSuccess) return std::exchange(group, {}).error;
  std::vector<Work> works = std::exchange(group.works, {});
  for (const auto& make_window : std::exchange(group.windows, {})) make_window();
  const ncclResult_t made = end_makers(std::exchange(group.makers, {}));
  if (made != ncclSuccess && made != ncclInProgress) return made;
  if (!self_messages_pair(works)) return refuse(ncclInvalidUsage, "stand-in: a send to oneself without its receive");
  if (launches_later(works)) return launch_later(works);
  launch_all(std::move(works));
  return made;
}

ncclResult_t ncclGroupSimulateEnd(void*) {
  group.works.clear();
  return ncclGroupEnd();
}

ncclResult_t ncclSend(const void* data, std::size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add_transfer(true, const_cast<void*>(data), count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* data, std::size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add_transfer(false, data, count, type, peer, comm, stream);
}

ncclResult_t ncclAlltoAll(const void* send, void* receive, std::size_t count, int type, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * element_bytes(type);
  ncclGroupStart();
  for (int peer = 0; peer < comm->world; ++peer) {
    ncclSend(static_cast<const char*>(send) + static_cast<std::size_t>(peer) * bytes, count, type, peer, comm, stream);
    ncclRecv(static_cast<char*>(receive) + static_cast<std::size_t>(peer) * bytes, count, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}

// The event is a std::atomic<bool> here.
ncclResult_t ncclAlltoAllConfig(const void* send, void* receive, std::size_t count, int type, ncclComm_t comm, cudaStream_t stream,
                                const ncclCollConfigHead* config) {
  const ncclResult_t result = ncclAlltoAll(send, receive, count, type, comm, stream);
  if (result != ncclSuccess || config == nullptr || config->size < sizeof *config || config->launch_completion_event == nullptr)
    return result;
  stand_in::launch(stream, comm->device, [event = static_cast<std::atomic<bool>*>(config->launch_completion_event)] { *event = true; });
  return result;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int, ncclComm_t comm, cudaStream_t stream) {
  if (const ncclResult_t error = remember(check(comm, type, 0)); error != ncclSuccess) return error;
  group.on(comm, stream).collectives.push_back({send, receive, count, type});
  return launch_unless_grouped();
}

const char* ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "no error" : "an error of the stand-in"; }

const char* ncclGetLastError(ncclComm_t) { return last_error_text.c_str(); }

}  // extern "C"
