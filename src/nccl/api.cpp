// The functions of NCCL that the shim takes part in. Those of messages and groups are routed; those of a communicator's life are followed
// and passed on. All others are in forwarding.cpp.
#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <system_error>

#include "communicator.hpp"
#include "device_library.hpp"
#include "group.hpp"
#include "log.hpp"
#include "nccl_abi.hpp"
#include "real_nccl.hpp"
#include "settings.hpp"
#include "unique_id.hpp"

#define RAILWEAVE_NCCL_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace railweave::nccl;

// Whether a call is none of the shim's business: it is switched off, or NCCL itself calls.
bool passes() { return !settings().shim || InsideReal::now(); }

// As NCCL reads it: 0 and 1 count more than what programs ask for.
std::optional<bool> blocking_by_variable() {
  static const std::optional<bool> value = []() -> std::optional<bool> {
    const char* text = std::getenv("NCCL_COMM_BLOCKING");
    if (text == nullptr || *text == '\0') return std::nullopt;
    const long long number = std::strtoll(text, nullptr, 0);
    if (number != 0 && number != 1) return std::nullopt;
    return number == 1;
  }();
  return value;
}

// Without a configuration a child is as its parent; one that does not say it means NCCL's default, which is to block. Asked after NCCL's
// call, as NCCL sets variables from its own files (nccl.conf) in its first one.
bool is_blocking(const void* config, bool inherited) {
  if (const std::optional<bool> by_variable = blocking_by_variable()) return *by_variable;
  const auto* head = static_cast<const ncclConfigHead*>(config);
  if (head == nullptr) return inherited;
  return head->size < offsetof(ncclConfigHead, cga_cluster_size) || head->blocking == kConfigUndefined || head->blocking != 0;
}

// The communicators of this process that may have a device side; nullptr: every call about it is NCCL's.
// The reference is good until the thread's next call.
const CommunicatorPointer& tracked(ncclComm_t handle) {
  static const CommunicatorPointer& none = *new CommunicatorPointer();  // programs call while static objects are destroyed
  return passes() ? none : Registry::get().find(handle);
}

// The same for a call that ends it: in a forked child that is NCCL's alone.
const CommunicatorPointer& tracked_to_end(ncclComm_t handle) {
  static const CommunicatorPointer& none = *new CommunicatorPointer();
  const CommunicatorPointer& communicator = tracked(handle);
  return communicator == nullptr || communicator->is_of_this_process() ? communicator : none;
}

bool accepted(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

// Whether NCCL has begun to make a child, also where it could not. Ranks name a child by how many came before it, so a call that is refused
// on one of them, which calls again, does not count; that is what NCCL counts, too, and this is the error that it refuses with. (But for
// one on a communicator that has failed already. If ranks count differently then, their child's rounds end at NCCL.)
bool begun(ncclResult_t result) { return result != ncclInvalidArgument; }

// What NCCL refuses of a shrink whoever the parent is: nothing is to be revoked for that.
bool may_shrink(const Communicator& parent, const int* excluded, int count, const ncclComm_t* child) {
  if (child == nullptr || count == 0) return false;
  return parent.state() != Communicator::State::served ||
         std::find(excluded, excluded + count, static_cast<int>(parent.rank())) == excluded + count;
}

// Follows a communicator from now on, or from the end of the open group on. `result` is what NCCL's call gave, `known` the handle if that
// call wrote it.
ncclResult_t born(ncclComm_t* handle, Origin origin, ncclResult_t result, CommunicatorPointer parent = nullptr,
                  ncclComm_t known = nullptr) {
  if (!accepted(result)) return Group::of_this_thread().fail(result);
  Group& group = Group::of_this_thread();
  group.add(GroupBirth{{handle, std::move(origin), 0, known}, std::move(parent)});
  return group.open() ? result : group.finish(result);
}

// One of a unique id. NCCL, up to 2.32, writes its handle in this call, also in a group, at whose end the program may have it elsewhere.
template <typename Make, typename Of>
ncclResult_t first_born(ncclComm_t* handle, Make&& make, Of&& origin) {
  const ncclComm_t before = handle == nullptr ? nullptr : *handle;
  const ncclResult_t result = make();
  return born(handle, origin(), result, nullptr, handle == nullptr || *handle == before ? nullptr : *handle);
}

Origin origin_of(const ncclUniqueId& id, bool blocking, const void* config = nullptr) {
  Origin origin;
  origin.blocking = blocking;
  origin.ctas = ctas_of(config, {});
  origin.hub = read_hub(id);
  if (origin.hub) {
    origin.name = name_of(*origin.hub);
    return origin;
  }
  origin.no_hub_cause = Cause::foreign_id;
  origin.no_hub = "its unique id was made without the shim, or with NCCL_COMM_ID";
  return origin;
}

Origin without_hub(std::string name, Cause cause, std::string reason) {
  Origin origin;
  origin.name = std::move(name);
  origin.no_hub_cause = cause;
  origin.no_hub = std::move(reason);
  return origin;
}

ncclResult_t refuse(ncclResult_t error, const std::string& text) {
  set_last_error(text.c_str());
  log(LogLevel::warn, text);
  return Group::of_this_thread().fail(error);
}

// Whether messages of that communicator go over Railweave; ncclSuccess: yes. ncclInProgress: they go to NCCL.
ncclResult_t check_served(const CommunicatorPointer& communicator) {
  if (communicator == nullptr || communicator->state() == Communicator::State::unserved) return ncclInProgress;
  if (communicator->state() == Communicator::State::settling)
    return refuse(ncclInvalidArgument, "a communicator is used before ncclCommGetAsyncError has said that it is ready");
  if (communicator->is_revoked()) return refuse(ncclInvalidUsage, "a message on a communicator that was revoked");
  if (communicator->is_queueing())
    return refuse(ncclInvalidArgument, "a communicator is used before ncclCommGetAsyncError has said that its last group is launched");
  const ncclResult_t error = communicator->known_error();
  return error == ncclSuccess ? error : Group::of_this_thread().fail(error);
}

struct Call {
  const char* name;
  const void* data;
  std::size_t count;
  ncclDataType_t type;
};

// The bytes of so many elements; ncclSuccess or what is wrong.
ncclResult_t check_bytes(const Call& call, std::size_t times, std::uint64_t& bytes) {
  const std::size_t element = datatype_bytes(call.type);
  if (element == 0)
    return refuse(ncclInvalidArgument, std::string(call.name) + ": datatype " + std::to_string(call.type) + "; expected 0 to 11");
  if (call.count > SIZE_MAX / element / times)
    return refuse(ncclInvalidArgument, std::string(call.name) + ": " + std::to_string(call.count) + " elements do not fit in memory");
  bytes = call.count * element;
  if (bytes != 0 && call.data == nullptr) return refuse(ncclInvalidArgument, std::string(call.name) + ": the buffer is NULL");
  return ncclSuccess;
}

void add_message(const CommunicatorPointer& communicator, railweave_cuda_kind kind, int peer, void* data, std::uint64_t bytes,
                 cudaStream_t stream) {
  Group& group = Group::of_this_thread();
  if (bytes == 0) return group.add_empty(communicator, stream);
  group.add(communicator, {communicator.get(), kind, static_cast<std::uint32_t>(peer), data, bytes, stream});
}

ncclResult_t end_unless_grouped() {
  Group& group = Group::of_this_thread();
  return group.open() ? ncclSuccess : group.finish(ncclSuccess);
}

ncclResult_t route(const CommunicatorPointer& communicator, railweave_cuda_kind kind, const Call& call, int peer, cudaStream_t stream) {
  std::uint64_t bytes = 0;
  if (const ncclResult_t error = check_bytes(call, 1, bytes); error != ncclSuccess) return error;
  if (peer < 0 || static_cast<std::uint32_t>(peer) >= communicator->world())
    return refuse(ncclInvalidArgument, std::string(call.name) + ": peer " + std::to_string(peer) + "; expected 0 to " +
                                           std::to_string(communicator->world() - 1));
  // The device library only reads what is sent.
  add_message(communicator, kind, peer, const_cast<void*>(call.data), bytes, stream);
  return end_unless_grouped();
}

ncclResult_t route_all_to_all(const CommunicatorPointer& communicator, const Call& call, void* recvbuff, cudaStream_t stream) {
  std::uint64_t bytes = 0;
  const std::uint32_t world = communicator->world();
  if (const ncclResult_t error = check_bytes(call, world, bytes); error != ncclSuccess) return error;
  if (bytes != 0 && recvbuff == nullptr) return refuse(ncclInvalidArgument, std::string(call.name) + ": the receive buffer is NULL");
  if (bytes != 0 && recvbuff == call.data) return refuse(ncclInvalidUsage, std::string(call.name) + ": it cannot work in place");
  auto* const send = static_cast<char*>(const_cast<void*>(call.data));
  auto* const receive = static_cast<char*>(recvbuff);
  for (std::uint32_t peer = 0; peer < world; ++peer) {
    add_message(communicator, RAILWEAVE_CUDA_SEND, static_cast<int>(peer), send + peer * bytes, bytes, stream);
    add_message(communicator, RAILWEAVE_CUDA_RECV, static_cast<int>(peer), receive + peer * bytes, bytes, stream);
  }
  return end_unless_grouped();
}

// NCCL launches nothing of a group with a wrong call, but knows those alone that it was given. A send without a communicator is wrong for
// it (and counts for the group in 2.13 and newer).
void fail_group_of_nccl() {
  static const Real<ncclResult_t(const void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)> send("ncclSend");
  send(nullptr, 0, 0, 0, nullptr, nullptr);
}

}  // namespace

// --- Messages and groups ---

RAILWEAVE_NCCL_API ncclResult_t ncclGroupStart() {
  static const Real<ncclResult_t()> real("ncclGroupStart");
  const ncclResult_t result = real();
  if (!passes() && result == ncclSuccess) Group::of_this_thread().start();
  return result;
}

// NCCL's own group is ended first: its collectives are queued before the messages, as NCCL's own planner takes them first.
RAILWEAVE_NCCL_API ncclResult_t ncclGroupEnd() {
  static const Real<ncclResult_t()> real("ncclGroupEnd");
  const bool mine = !passes();
  const bool wrong = mine && Group::of_this_thread().prepare_end();
  std::string found;
  if (wrong) {
    found = last_error();
    fail_group_of_nccl();
  }
  const ncclResult_t result = real();
  if (wrong) set_last_error(found.c_str());  // and not that there is no communicator
  return mine && Group::of_this_thread().end() ? Group::of_this_thread().finish(result) : result;
}

RAILWEAVE_NCCL_API ncclResult_t ncclGroupSimulateEnd(void* info) {
  static const Real<ncclResult_t(void*)> real("ncclGroupSimulateEnd");
  const bool mine = !passes();
  const ncclResult_t result = real(info);
  return mine && Group::of_this_thread().end() ? Group::of_this_thread().finish_simulated(result) : result;
}

RAILWEAVE_NCCL_API ncclResult_t ncclSend(const void* sendbuff, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                         cudaStream_t stream) {
  static const Real<ncclResult_t(const void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)> real("ncclSend");
  const CommunicatorPointer& communicator = tracked(comm);
  const ncclResult_t served = check_served(communicator);
  if (served == ncclInProgress) {
    note_work(comm, stream);
    return real(sendbuff, count, type, peer, comm, stream);
  }
  return served != ncclSuccess ? served : route(communicator, RAILWEAVE_CUDA_SEND, {"ncclSend", sendbuff, count, type}, peer, stream);
}

RAILWEAVE_NCCL_API ncclResult_t ncclRecv(void* recvbuff, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                         cudaStream_t stream) {
  static const Real<ncclResult_t(void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)> real("ncclRecv");
  const CommunicatorPointer& communicator = tracked(comm);
  const ncclResult_t served = check_served(communicator);
  if (served == ncclInProgress) {
    note_work(comm, stream);
    return real(recvbuff, count, type, peer, comm, stream);
  }
  return served != ncclSuccess ? served : route(communicator, RAILWEAVE_CUDA_RECV, {"ncclRecv", recvbuff, count, type}, peer, stream);
}

RAILWEAVE_NCCL_API ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                                             cudaStream_t stream) {
  static const Real<ncclResult_t(const void*, void*, std::size_t, ncclDataType_t, ncclComm_t, cudaStream_t)> real("ncclAlltoAll");
  const CommunicatorPointer& communicator = tracked(comm);
  const ncclResult_t served = check_served(communicator);
  if (served == ncclInProgress) {
    note_work(comm, stream);
    return real(sendbuff, recvbuff, count, type, comm, stream);
  }
  return served != ncclSuccess ? served : route_all_to_all(communicator, {"ncclAlltoAll", sendbuff, count, type}, recvbuff, stream);
}

RAILWEAVE_NCCL_API ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, std::size_t count, ncclDataType_t type,
                                                   ncclComm_t comm, cudaStream_t stream, const void* config) {
  static const Real<ncclResult_t(const void*, void*, std::size_t, ncclDataType_t, ncclComm_t, cudaStream_t, const void*)> real(
      "ncclAlltoAllConfig");
  const CommunicatorPointer& communicator = tracked(comm);
  const ncclResult_t served = check_served(communicator);
  if (served == ncclInProgress) {
    note_work(comm, stream);
    return real(sendbuff, recvbuff, count, type, comm, stream, config);
  }
  if (served != ncclSuccess) return served;
  // The other members tune NCCL's kernels; an event is something that the program waits for.
  const auto* head = static_cast<const ncclCollConfigHead*>(config);
  if (head != nullptr && head->size >= sizeof *head && head->launch_completion_event != nullptr)
    return refuse(ncclInvalidUsage,
                  "ncclAlltoAllConfig: launchCompletionEvent is not recorded on a served communicator; use none, or RAILWEAVE_SHIM=off");
  return route_all_to_all(communicator, {"ncclAlltoAllConfig", sendbuff, count, type}, recvbuff, stream);
}

// --- How communicators come to be ---

RAILWEAVE_NCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static const Real<ncclResult_t(ncclUniqueId*)> real("ncclGetUniqueId");
  const bool mine = !passes();
  const ncclResult_t result = real(id);
  if (!mine || result != ncclSuccess) return result;
  // With NCCL_COMM_ID each rank makes an id of its own, which would name as many hubs.
  const auto host = std::getenv("NCCL_COMM_ID") == nullptr ? nccl_host(*id) : std::nullopt;
  try {
    if (!host || !write_hub(*id, announce(*host)))
      log(LogLevel::info, "a unique id has no room for the shim; its communicator stays with NCCL");
  } catch (const std::system_error& error) {
    log(LogLevel::warn, std::string("a communicator stays with NCCL: ") + error.what());
  }
  return result;
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  static const Real<ncclResult_t(ncclComm_t*, int, ncclUniqueId, int)> real("ncclCommInitRank");
  if (passes()) return real(comm, nranks, id, rank);
  return first_born(
      comm, [&] { return real(comm, nranks, id, rank); }, [&] { return origin_of(id, is_blocking(nullptr, true)); });
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, void* config) {
  static const Real<ncclResult_t(ncclComm_t*, int, ncclUniqueId, int, void*)> real("ncclCommInitRankConfig");
  if (passes()) return real(comm, nranks, id, rank, config);
  return first_born(
      comm, [&] { return real(comm, nranks, id, rank, config); }, [&] { return origin_of(id, is_blocking(config, true), config); });
}

// All ranks pass the same list of ids; the first one's hub is as good as any.
RAILWEAVE_NCCL_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int ids, ncclUniqueId* list,
                                                         void* config) {
  static const Real<ncclResult_t(ncclComm_t*, int, int, int, ncclUniqueId*, void*)> real("ncclCommInitRankScalable");
  if (passes() || ids < 1 || list == nullptr) return real(comm, nranks, rank, ids, list, config);
  return first_born(
      comm, [&] { return real(comm, nranks, rank, ids, list, config); },
      [&] { return origin_of(list[0], is_blocking(config, true), config); });
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list) {
  static const Real<ncclResult_t(ncclComm_t*, int, const int*)> real("ncclCommInitAll");
  const bool mine = !passes();
  const ncclResult_t result = real(comms, devices, list);
  if (!mine || !accepted(result)) return result;
  // All ranks are in this process.
  Origin origin = without_hub("", Cause::no_hub, "this process cannot make a hub");
  origin.blocking = is_blocking(nullptr, true);
  origin.one_process = true;
  try {
    HubAddress loopback;
    loopback.family = 2;  // AF_INET
    loopback.host = {127, 0, 0, 1};
    origin.hub = announce(loopback);
    origin.name = name_of(*origin.hub);
  } catch (const std::system_error& error) {
    origin.no_hub = error.what();
  }
  Group& group = Group::of_this_thread();
  for (int i = 0; i < devices; ++i) group.add(GroupBirth{{comms + i, origin}, nullptr});
  return group.open() ? result : group.finish(result);
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, void* config) {
  static const Real<ncclResult_t(ncclComm_t, int, int, ncclComm_t*, void*)> real("ncclCommSplit");
  const CommunicatorPointer parent = tracked(comm);
  const ncclResult_t result = real(comm, color, key, child, config);
  if (parent == nullptr) return result;
  if (!begun(result)) return Group::of_this_thread().fail(result);
  Origin origin = parent->split(color, is_blocking(config, parent->blocking()));
  origin.ctas = ctas_of(config, origin.ctas);
  return color == kSplitNoColor ? result : born(child, std::move(origin), result, parent);
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* child, void* config, int flags) {
  static const Real<ncclResult_t(ncclComm_t, int*, int, ncclComm_t*, void*, int)> real("ncclCommShrink");
  const CommunicatorPointer parent = tracked(comm);
  if (parent == nullptr || excluded == nullptr || count < 0) return real(comm, excluded, count, child, config, flags);
  if ((flags & kShrinkAbort) != 0 && real && parent->is_of_this_process() && may_shrink(*parent, excluded, count, child)) parent->revoke();
  const ncclResult_t result = real(comm, excluded, count, child, config, flags);
  if (!begun(result)) return Group::of_this_thread().fail(result);
  Origin origin = parent->shrink({excluded, excluded + count}, is_blocking(config, parent->blocking()));
  origin.ctas = ctas_of(config, origin.ctas);
  return born(child, std::move(origin), result, parent);
}

// Of a rank that knows the communicator, for those who come to it.
RAILWEAVE_NCCL_API ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  static const Real<ncclResult_t(ncclComm_t, ncclUniqueId*)> real("ncclCommGetUniqueId");
  const CommunicatorPointer parent = tracked(comm);
  const ncclResult_t result = real(comm, id);
  if (parent == nullptr || result != ncclSuccess) return result;
  const std::optional<HubAddress> hub = parent->larger(true).hub;
  if (hub && !write_hub(*id, *hub)) log(LogLevel::info, "a unique id has no room for the shim; the larger communicator stays with NCCL");
  return result;
}

// Who comes knows the larger communicator by its unique id, the others by the one that grows.
RAILWEAVE_NCCL_API ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* grown,
                                             void* config) {
  static const Real<ncclResult_t(ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*, void*)> real("ncclCommGrow");
  if (passes()) return real(comm, nranks, id, rank, grown, config);
  const CommunicatorPointer parent = tracked(comm);
  const ncclResult_t result = real(comm, nranks, id, rank, grown, config);
  if (comm == nullptr && id != nullptr) return born(grown, origin_of(*id, is_blocking(config, true), config), result);
  if (parent == nullptr) return result;
  if (!begun(result)) return Group::of_this_thread().fail(result);
  Origin origin = parent->larger(is_blocking(config, parent->blocking()));
  parent->has_grown();
  origin.ctas = ctas_of(config, origin.ctas);
  return born(grown, std::move(origin), result);
}

// --- Their life and end ---

RAILWEAVE_NCCL_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  static const Real<ncclResult_t(ncclComm_t, ncclResult_t*)> real("ncclCommGetAsyncError");
  const CommunicatorPointer communicator = tracked(comm);
  if (communicator == nullptr) return real(comm, error);
  const std::uint64_t expected = communicator->children_expected();
  const ncclResult_t result = communicator->ask_nccl_state(error);
  if (result != ncclSuccess) return result;
  Registry::get().follow_children();
  if (*error == ncclInProgress) return result;
  communicator->forget_children(expected);
  if (*error == ncclSuccess) *error = communicator->async_error();
  return result;
}

RAILWEAVE_NCCL_API const char* ncclGetLastError(ncclComm_t comm) {
  static const auto real = reinterpret_cast<const char* (*)(ncclComm_t)>(real_symbol("ncclGetLastError"));
  const char* own = last_error();
  return *own != '\0' || real == nullptr ? own : real(comm);
}

// NCCL refuses one that is in progress, has failed or is finalized already, and that goes on as it was. So NCCL is called first, but where
// its call waits: another thread may abort the communicator while its last messages are waited for, and NCCL is not to be in it then.
RAILWEAVE_NCCL_API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  static const Real<ncclResult_t(ncclComm_t)> real("ncclCommFinalize");
  const CommunicatorPointer communicator = tracked_to_end(comm);
  if (communicator == nullptr) return real(comm);
  const bool first = communicator->blocking() && communicator->may_be_finalized();
  if (first) communicator->finalize();
  if (communicator->is_ended()) return ncclInvalidUsage;
  const ncclResult_t result = real(comm);
  if (!first && accepted(result)) communicator->finalize();
  return result;
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  static const Real<ncclResult_t(ncclComm_t)> real("ncclCommDestroy");
  if (passes()) return real(comm);
  const CommunicatorPointer communicator = Registry::get().remove(comm);
  if (communicator != nullptr) communicator->destroy();
  return real(comm);
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  static const Real<ncclResult_t(ncclComm_t)> real("ncclCommAbort");
  if (passes()) return real(comm);
  const CommunicatorPointer communicator = Registry::get().remove(comm);
  if (communicator != nullptr) {
    communicator->abort();
    communicator->release();
  }
  return real(comm);
}

// A revoked communicator carries nothing any more, but can still be asked, split, shrunk and destroyed. NCCL may wait for its kernels, and
// those for messages that were queued before them, so the device side ends first; but not for a call that NCCL refuses, which changes
// nothing. It refuses flags that it does not know, and none is known up to 2.32.
RAILWEAVE_NCCL_API ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  static const Real<ncclResult_t(ncclComm_t, int)> real("ncclCommRevoke");
  const CommunicatorPointer communicator = tracked_to_end(comm);
  const bool first = communicator != nullptr && real && flags == 0 && !communicator->is_finalized();
  if (first) communicator->revoke();
  const ncclResult_t result = real(comm, flags);
  if (communicator != nullptr && !first && accepted(result)) communicator->revoke();
  return result;
}

// --- Registered memory: NCCL's own registration stands, the device side maps the buffer too ---

RAILWEAVE_NCCL_API ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, std::size_t bytes, void** handle) {
  static const Real<ncclResult_t(ncclComm_t, void*, std::size_t, void**)> real("ncclCommRegister");
  const CommunicatorPointer communicator = tracked(comm);
  const ncclResult_t result = real(comm, buffer, bytes, handle);
  if (communicator != nullptr && result == ncclSuccess) communicator->register_buffer(*handle, buffer, bytes);
  return result;
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  static const Real<ncclResult_t(ncclComm_t, void*)> real("ncclCommDeregister");
  const CommunicatorPointer communicator = tracked(comm);
  if (communicator != nullptr) communicator->deregister_buffer(handle);
  return real(comm, handle);
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t bytes, ncclWindow_t* window, int flags) {
  static const Real<ncclResult_t(ncclComm_t, void*, std::size_t, ncclWindow_t*, int)> real("ncclCommWindowRegister");
  const CommunicatorPointer communicator = tracked(comm);
  const ncclResult_t result = real(comm, buffer, bytes, window, flags);
  // In an open group, and with a non-blocking communicator, the window comes later: then there is no hint.
  if (communicator != nullptr && result == ncclSuccess && !Group::of_this_thread().open())
    communicator->register_buffer(*window, buffer, bytes);
  return result;
}

RAILWEAVE_NCCL_API ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  static const Real<ncclResult_t(ncclComm_t, ncclWindow_t)> real("ncclCommWindowDeregister");
  const CommunicatorPointer communicator = tracked(comm);
  if (communicator != nullptr) communicator->deregister_buffer(window);
  return real(comm, window);
}
