// How communicators come, change and go.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "scenarios.hpp"

namespace {

void split(Rank& self) {
  const ncclComm_t comm = self.connect();
  for (int round = 0; round < 2; ++round) {
    ncclComm_t half = nullptr;
    must(ncclCommSplit(comm, self.rank % 2, self.rank, &half, nullptr), "ncclCommSplit");
    exchange_skewed(half);
    destroy(half);
  }
  ncclComm_t some = nullptr;
  must(ncclCommSplit(comm, self.rank == 0 ? kSplitNoColor : 7, 0, &some, nullptr), "ncclCommSplit");
  require((some == nullptr) == (self.rank == 0), "a rank without colour is in no child");
  if (some != nullptr) {
    exchange_skewed(some);
    destroy(some);
  }
  exchange_skewed(comm);
  destroy(comm);
}

// Refused on one rank alone, as there something is in progress, and asked for again.
void child_refused(Rank& self) {
  const ncclComm_t comm = self.connect();
  ncclComm_t child = nullptr, rest = nullptr;
  int gone[] = {0};
  if (self.rank == 1) {
    ::setenv("STAND_IN_IS_BUSY", "1", 1);
    require(ncclCommSplit(comm, 0, 0, &child, nullptr) == ncclInvalidArgument, "one that is in progress is not split");
    require(ncclCommSplit(comm, kSplitNoColor, 0, &child, nullptr) == ncclInvalidArgument, "not without colour either");
    require(ncclCommShrink(comm, gone, 1, &rest, nullptr, 0) == ncclInvalidArgument, "it is not shrunk");
    ::unsetenv("STAND_IN_IS_BUSY");
  }
  must(ncclCommSplit(comm, 0, -self.rank, &child, nullptr), "ncclCommSplit");
  exchange_skewed(child);
  destroy(child);
  if (self.rank != gone[0]) {
    must(ncclCommShrink(comm, gone, 1, &rest, nullptr, 0), "ncclCommShrink");
    exchange_skewed(rest);
    destroy(rest);
  }
  // Wrong arguments abort nothing.
  int own[] = {self.rank};
  require(ncclCommShrink(comm, own, 1, &rest, nullptr, kShrinkAbort) == ncclInvalidArgument, "who goes does not call");
  require(ncclCommShrink(comm, gone, 0, &rest, nullptr, kShrinkAbort) == ncclInvalidArgument, "somebody has to go");
  exchange_skewed(comm);
  destroy(comm);
}

void shrink(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  int gone[] = {1};
  if (self.rank != 1) {
    ncclComm_t rest = nullptr;
    must(ncclCommShrink(comm, gone, 1, &rest, nullptr, 0), "ncclCommShrink");
    exchange_skewed(rest);
    destroy(rest);
  }
  destroy(comm);
}

void non_blocking(Rank& self) {
  const ncclComm_t comm = connect_without_blocking(self);
  exchange_skewed(comm);
  ncclComm_t child = nullptr;
  must(ncclCommSplit(comm, 0, self.rank, &child, nullptr), "ncclCommSplit");
  must(wait_ready(comm), "the split");
  require(child != nullptr, "a parent that is ready has its children's handles written");
  exchange_skewed(child);
  ncclComm_t rest = nullptr;
  int gone[] = {self.world - 1};
  if (self.rank != gone[0]) {
    must(ncclCommShrink(comm, gone, 1, &rest, nullptr, 0), "ncclCommShrink");
    // PyTorch looks at the handle until it is there, and asks the child, never its parent.
    while (__atomic_load_n(&rest, __ATOMIC_ACQUIRE) == nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    must(wait_ready(rest), "the smaller communicator's set-up");
    exchange_skewed(rest);
    destroy(rest);
  }
  destroy(child);
  destroy(comm);
}

// Children of two parents in one group, which ranks ask for in different orders: a parent is in progress until its child may be used, for
// which other ranks ask only after the other parent.
void splits_of_two(Rank& self) {
  const std::array parents{connect_without_blocking(self, "one"), connect_without_blocking(self, "other")};
  std::array<ncclComm_t, 2> children{};
  begin();
  for (std::size_t i = 0; i < parents.size(); ++i) must(ncclCommSplit(parents[i], 0, self.rank, &children[i], nullptr), "ncclCommSplit");
  const ncclResult_t result = ncclGroupEnd();
  require(result == ncclSuccess || result == ncclInProgress, "ncclGroupEnd gives " + std::to_string(result));
  const std::size_t first = self.rank % 2 == 0 ? 0 : 1;
  for (const std::size_t i : {first, 1 - first}) must(wait_ready(parents[i]), "a split");
  for (std::size_t i = 0; i < parents.size(); ++i) {
    exchange_skewed(children[i]);
    destroy(children[i]);
    destroy(parents[i]);
  }
}

// The place that a handle is written to is another thing's by the end of the group.
void handed_on(Rank& self) {
  const ncclUniqueId id = self.unique_id("job");
  ncclComm_t place = nullptr;
  begin();
  must(ncclCommInitRank(&place, self.world, id, self.rank), "ncclCommInitRank");
  const ncclComm_t comm = std::exchange(place, nullptr);
  require(comm != nullptr, "the handle is there when the call returns");
  end();
  exchange_skewed(comm);
  destroy(comm);
}

// Told to block by a variable, it asks for nothing: what it makes is there when the call returns.
void blocking_by_variable(Rank& self) {
  ::setenv("NCCL_COMM_BLOCKING", "1", 1);
  Config config;
  config.blocking = 0;
  ncclComm_t comm = nullptr, child = nullptr;
  must(ncclCommInitRankConfig(&comm, self.world, self.unique_id("job"), self.rank, &config), "ncclCommInitRankConfig");
  exchange_skewed(comm);
  must(ncclCommSplit(comm, 0, self.rank, &child, &config), "ncclCommSplit");
  exchange_skewed(child);
  destroy(child);
  destroy(comm);
}

// A program that asks all the time, also while NCCL's threads end.
void asked_all_the_time(Rank& self) {
  Config config;
  config.blocking = 0;
  for (int life = 0; life < 3; ++life) {
    const ncclComm_t comm = self.connect("life" + std::to_string(life), &config);
    ncclResult_t error = ncclInProgress;
    while (error == ncclInProgress) must(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
    must(error, "the communicator's set-up");
    exchange_skewed(comm);
    destroy(comm);
  }
}

// A child that NCCL could not make: where its handle would have come the program has something else.
void failed_split(Rank& self) {
  const ncclComm_t comm = connect_without_blocking(self);
  ::setenv("STAND_IN_FAILS_CHILDREN", "1", 1);
  ncclComm_t place = nullptr;
  must(ncclCommSplit(comm, 0, self.rank, &place, nullptr), "ncclCommSplit");
  require(wait_ready(comm) == ncclSystemError && place == nullptr, "the split fails");
  __atomic_store_n(&place, reinterpret_cast<ncclComm_t>(std::uintptr_t{64}), __ATOMIC_RELEASE);
  for (int again = 0; again < 3; ++again) {
    require(wait_ready(comm) == ncclSystemError, "the parent's error stays");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  must(ncclCommAbort(comm), "ncclCommAbort");
}

// Made smaller by an abort: its parent has no error then, but carries nothing any more.
void shrunk_by_abort(Rank& self) {
  const ncclComm_t comm = connect_without_blocking(self);
  exchange_skewed(comm);
  int gone[] = {self.world - 1};
  if (self.rank != gone[0]) {
    ncclComm_t rest = nullptr;
    must(ncclCommShrink(comm, gone, 1, &rest, nullptr, kShrinkAbort), "ncclCommShrink");
    must(wait_ready(comm), "the parent after it");
    require(rest != nullptr, "a parent that is ready has its children's handles written");
    exchange_skewed(rest);
    char byte = 0;
    require(ncclSend(&byte, 1, ncclInt8, 0, comm, nullptr) != ncclSuccess, "the parent carries no message any more");
    must(wait_ready(comm), "the parent after a message that was refused");
    destroy(rest);
  }
  must(ncclCommAbort(comm), "ncclCommAbort");
}

void revoke(ncclComm_t comm) {
  const ncclResult_t result = ncclCommRevoke(comm, 0);
  require(result == ncclSuccess || result == ncclInProgress, "ncclCommRevoke gives " + std::to_string(result));
  must(wait_ready(comm), "a communicator that was revoked");
}

// Everything in flight ends, a collective behind a message, too. Nothing is carried afterwards, but children can be made.
void revoke_and_go_on(const Rank& self, ncclComm_t comm) {
  exchange_skewed(comm);
  const Stream stream;
  std::vector<char> never(100'000);
  double number = 1;
  must(ncclRecv(never.data(), never.size(), ncclInt8, (self.rank + 1) % self.world, comm, stream), "ncclRecv");
  must(ncclAllReduce(&number, &number, 1, ncclFloat64, ncclSum, comm, stream), "ncclAllReduce");
  revoke(comm);
  stream.synchronize();
  char byte = 0;
  require(ncclSend(&byte, 1, ncclInt8, 0, comm, stream) == ncclInvalidUsage, "it sends nothing any more");
  require(std::string(ncclGetLastError(comm)).find("was revoked") != std::string::npos, "the text says so");
  require(ncclRecv(&byte, 1, ncclInt8, 0, comm, stream) == ncclInvalidUsage, "it receives nothing any more");
  require(ncclAllReduce(&number, &number, 1, ncclFloat64, ncclSum, comm, stream) == ncclInvalidUsage, "it has no collectives any more");
  require(ncclCommRevoke(comm, 0) == ncclInvalidArgument, "it is revoked once");
  must(wait_ready(comm), "one that has refused messages");
  ncclComm_t child = nullptr, rest = nullptr;
  must(ncclCommSplit(comm, 0, -self.rank, &child, nullptr), "ncclCommSplit");
  must(wait_ready(comm), "the split");
  exchange_skewed(child);
  int gone[] = {1};
  if (self.rank != gone[0]) {
    must(ncclCommShrink(comm, gone, 1, &rest, nullptr, 0), "ncclCommShrink");
    must(wait_ready(comm), "the smaller communicator's set-up");
    exchange_skewed(rest);
    destroy(rest);
  }
  destroy(child);
  require(ncclCommFinalize(comm) == ncclInvalidArgument, "it cannot be finalized");
  destroy(comm);
}

void revoked(Rank& self) {
  ::setenv("RAILWEAVE_DRAIN_MS", "500", 1);  // what an abort waits for its unfinished operations
  revoke_and_go_on(self, self.connect());
}

void revoked_without_blocking(Rank& self) {
  ::setenv("RAILWEAVE_DRAIN_MS", "500", 1);
  revoke_and_go_on(self, connect_without_blocking(self));
}

// Rank 0 sends late, so that messages are on their way when the communicator is finalized.
void finalize_before_they_end(const Rank& self, ncclComm_t comm, Messages& messages, const Stream& stream) {
  if (self.rank == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (int peer = 1; peer < self.world; ++peer) messages.send(peer, std::size_t{100'000}, stream);
  } else {
    messages.receive(0, std::size_t{100'000}, stream);
  }
  const ncclResult_t result = ncclCommFinalize(comm);
  require(result == ncclSuccess || result == ncclInProgress, "ncclCommFinalize gives " + std::to_string(result));
}

// What NCCL refuses changes nothing: flags that it does not know, and one that is being finalized.
void revoke_refused(Rank& self) {
  const ncclComm_t comm = connect_without_blocking(self);
  require(ncclCommRevoke(comm, 7) == ncclInvalidArgument, "unknown flags are refused");
  exchange_skewed(comm);
  const Stream stream;
  Messages messages(comm);
  finalize_before_they_end(self, comm, messages, stream);
  require(ncclCommRevoke(comm, 0) == ncclInvalidArgument, "one that is finalized cannot be revoked");
  destroy(comm);
  stream.synchronize();
  messages.check();
}

// Revoked before it is there.
void revoked_while_made(Rank& self) {
  Config config;
  config.blocking = 0;
  for (int life = 0; life < 8; ++life) {
    const ncclComm_t comm = self.connect("life" + std::to_string(life), &config);
    std::this_thread::sleep_for(std::chrono::milliseconds(life));
    revoke(comm);
    char byte = 0;
    require(ncclSend(&byte, 1, ncclInt8, self.rank, comm, nullptr) == ncclInvalidUsage, "it carries no message");
    destroy(comm);
  }
}

// Ranks come to a communicator that goes on beside the one of all; each kind of rank has its own form of the call.
void grown(Rank& self) {
  const bool comes = self.rank == self.world - 1;
  ncclComm_t comm = nullptr;
  if (!comes) {
    must(ncclCommInitRank(&comm, self.world - 1, self.unique_id("job"), self.rank), "ncclCommInitRank");
    exchange_skewed(comm);
  }
  for (const bool blocks : {true, false}) {
    Config config;
    config.blocking = blocks ? 1 : 0;
    const ncclUniqueId id =
        self.unique_id(blocks ? "grown" : "grown later", 0, [comm](ncclUniqueId* made) { return ncclCommGetUniqueId(comm, made); });
    ncclComm_t all = nullptr, child = nullptr;
    const ncclResult_t result =
        ncclCommGrow(comm, self.world, comes || self.rank == 0 ? &id : nullptr, comes ? self.rank : -1, &all, &config);
    require(result == ncclSuccess || (!blocks && result == ncclInProgress), "ncclCommGrow gives " + std::to_string(result));
    must(wait_ready(all), "the larger communicator's set-up");
    exchange_skewed(all);
    must(ncclCommSplit(all, 0, -self.rank, &child, nullptr), "ncclCommSplit");
    must(wait_ready(all), "the split");
    exchange_skewed(child);
    destroy(child);
    destroy(all);
  }
  if (comes) return;
  ncclComm_t none = nullptr;
  require(ncclCommGrow(comm, self.world - 1, nullptr, -1, &none, nullptr) == ncclInvalidArgument, "it has to become larger");
  exchange_skewed(comm);
  destroy(comm);
}

// A configuration that leaves processors to computing, on one rank more than on the others; children with none and with one of their own.
void bounded_ctas(Rank& self) {
  constexpr int kMaxCtas = 2;  // of Config::others
  Config config;
  config.others[kMaxCtas] = self.rank == 1 ? 6 : 12;
  const ncclComm_t comm = self.connect("job", &config);
  exchange_skewed(comm);
  config.others[kMaxCtas] = 3;
  for (Config* const own : {static_cast<Config*>(nullptr), &config}) {
    ncclComm_t child = nullptr;
    must(ncclCommSplit(comm, 0, self.rank, &child, own), "ncclCommSplit");
    exchange_skewed(child);
    destroy(child);
  }
  const ncclComm_t other = self.connect("other");
  exchange_skewed(other);
  destroy(other);
  destroy(comm);
}

// Several unique ids, of several ranks; with and without a configuration.
void several_ids(Rank& self) {
  const auto list = [&](const std::string& name) {
    return std::array{self.unique_id(name + " of 1", 1), self.unique_id(name + " of 0", 0)};
  };
  const auto connect = [&](auto ids, Config* config) {
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRankScalable(&comm, self.world, self.rank, static_cast<int>(ids.size()), ids.data(), config);
    require(result == ncclSuccess || (config != nullptr && result == ncclInProgress),
            "ncclCommInitRankScalable gives " + std::to_string(result));
    must(wait_ready(comm), "the communicator's set-up");
    exchange_skewed(comm);
    destroy(comm);
  };
  Config config;
  config.blocking = 0;
  connect(list("first"), nullptr);
  connect(list("second"), &config);
}

// Forked children, as of Python's multiprocessing, that end what they have of their parent's: the parent goes on with it.
void ended_by_a_child(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  const auto revoke = [](ncclComm_t revoked) { return ncclCommRevoke(revoked, 0); };
  using End = ncclResult_t (*)(ncclComm_t);
  for (const End end : {End{ncclCommFinalize}, End{ncclCommDestroy}, End{ncclCommAbort}, End{revoke}}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      ::_exit(end(comm) == ncclSuccess ? 0 : 1);
    }
    int status = -1;
    const pid_t ended = ::waitpid(child, &status, 0);
    require(ended == child && status == 0, "a child ends as it should: status " + std::to_string(status));
  }
  exchange_skewed(comm);
  destroy(comm);
}

// Communicators that a static object ends, when the main thread's own objects are gone.
struct LateEnd {
  std::vector<ncclComm_t> communicators;
  ~LateEnd() {
    for (int again = 0; again < 2; ++again) {
      for (const ncclComm_t comm : communicators) {
        ncclResult_t error = ncclSuccess;
        if (ncclCommGetAsyncError(comm, &error) != ncclSuccess || error != ncclSuccess) std::_Exit(1);
      }
    }
    for (const ncclComm_t comm : communicators) {
      if (ncclCommFinalize(comm) != ncclSuccess) std::_Exit(1);
    }
    for (const ncclComm_t comm : communicators) {
      if (ncclCommDestroy(comm) != ncclSuccess) std::_Exit(1);
    }
  }
};

void ended_by_a_static_object(Rank& self) {
  static LateEnd late;
  late.communicators = {self.connect("first"), self.connect("second")};
  for (const ncclComm_t comm : late.communicators) exchange_skewed(comm);
}

// An NCCL that is done before its calls return, and a program that asks only where it has to: for a communicator whose call gave
// ncclInProgress, and for a split's parent.
void quick(Rank& self) {
  ::setenv("STAND_IN_IS_QUICK", "1", 1);
  Config config;
  config.blocking = 0;
  ncclComm_t comm = nullptr, child = nullptr;
  ncclResult_t result = ncclCommInitRankConfig(&comm, self.world, self.unique_id("job"), self.rank, &config);
  if (result == ncclInProgress) result = wait_ready(comm);
  must(result, "ncclCommInitRankConfig");
  exchange_skewed(comm);
  must(ncclCommSplit(comm, 0, self.rank, &child, nullptr), "ncclCommSplit");
  must(wait_ready(comm), "the split");
  exchange_skewed(child);
  destroy(child);
  destroy(comm);
}

// Destroyed while the last messages are on their way: they are over when the call returns.
void destroyed_with_messages(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  const Stream stream;
  Messages messages(comm);
  stand_in::launch(stream, 0, [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  post_skewed(messages, stream);
  destroy(comm);
  messages.check();
}

// The same by one thread that has three ranks: for the last one's call all of them are over.
void destroyed_in_turn(Rank&) {
  std::array<ncclComm_t, 3> comms{};
  must(ncclCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr), "ncclCommInitAll");
  std::list<Messages> messages;
  std::list<Stream> streams;
  begin();
  for (const ncclComm_t comm : comms) {
    stand_in::set_device(static_cast<int>(messages.size()));
    Messages& each = messages.emplace_back(comm);
    const Stream& stream = streams.emplace_back();
    stand_in::launch(stream, 0, [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
    post_skewed(each, stream);
  }
  end();
  for (const ncclComm_t comm : comms) destroy(comm);
  for (const Messages& each : messages) each.check();
}

// Finalized while the last messages are on their way, and destroyed without a look at how far that is.
void finalized_late(Rank& self) {
  const ncclComm_t comm = connect_without_blocking(self);
  const Stream stream;
  Messages messages(comm);
  finalize_before_they_end(self, comm, messages, stream);
  destroy(comm);
  stream.synchronize();
  messages.check();
}

// Twice, with the last messages on their way: NCCL refuses the second time, and that changes nothing.
void finalized_twice(Rank& self) {
  const ncclComm_t comm = connect_without_blocking(self);
  const Stream stream;
  Messages messages(comm);
  const auto finalize_twice = [&] {
    const ncclResult_t result = ncclCommFinalize(comm);
    require(result == ncclSuccess || result == ncclInProgress, "ncclCommFinalize gives " + std::to_string(result));
    require(ncclCommFinalize(comm) == ncclInvalidArgument, "it is finalized once");
  };
  if (self.rank == 0) {
    for (int peer = 1; peer < self.world; ++peer) self.hear("finalized", peer);
    for (int peer = 1; peer < self.world; ++peer) messages.send(peer, std::size_t{100'000}, stream);
    finalize_twice();
  } else {
    messages.receive(0, std::size_t{100'000}, stream);
    finalize_twice();
    self.say("finalized");
  }
  must(wait_ready(comm), "the finalization");
  destroy(comm);
  stream.synchronize();
  messages.check();
}

// Refused while NCCL has something else in progress: the communicator goes on, and is finalized later.
void finalize_refused(Rank& self) {
  for (const ncclComm_t comm : {self.connect("blocks"), connect_without_blocking(self, "does not")}) {
    exchange_skewed(comm);
    ::setenv("STAND_IN_IS_BUSY", "1", 1);
    require(ncclCommFinalize(comm) == ncclInvalidArgument, "one that is in progress is not finalized");
    ::unsetenv("STAND_IN_IS_BUSY");
    exchange_skewed(comm);
    const ncclResult_t result = ncclCommFinalize(comm);
    require(result == ncclSuccess || result == ncclInProgress, "ncclCommFinalize gives " + std::to_string(result));
    must(wait_ready(comm), "the finalization");
    destroy(comm);
  }
}

// Another thread aborts it while the ends of all ranks wait for messages that do not come. Only under the shim: NCCL's stand-in waits for
// ever.
void finalized_and_aborted(Rank& self) {
  ::setenv("RAILWEAVE_DRAIN_MS", "500", 1);  // what an abort waits for its unfinished operations
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  const Stream stream;
  std::vector<char> never(100'000);
  must(ncclRecv(never.data(), never.size(), ncclInt8, (self.rank + 1) % self.world, comm, stream), "ncclRecv");
  auto aborted = std::async(std::launch::async, [&self, comm] {
    for (ncclResult_t state = ncclSuccess; state != ncclInProgress;) must(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    self.say("finalizes");
    for (int peer = 0; peer < self.world; ++peer) self.hear("finalizes", peer);
    return ncclCommAbort(comm);
  });
  require(ncclCommFinalize(comm) == ncclInvalidUsage, "there is nothing more to finalize");
  must(aborted.get(), "ncclCommAbort");
  stream.synchronize();
}

// A program that has been started by relative paths, and works in another folder by its first call.
void elsewhere(Rank& self) {
  std::filesystem::current_path("/");
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  destroy(comm);
}

// Communicators and their children come and go; what the process holds does not grow with them.
void lives(Rank& self) {
  const auto live = [&](int number) {
    const ncclComm_t comm = self.connect("life" + std::to_string(number));
    exchange_skewed(comm);
    ncclComm_t half = nullptr;
    must(ncclCommSplit(comm, self.rank % 2, self.rank, &half, nullptr), "ncclCommSplit");
    exchange_skewed(half);
    destroy(half);
    destroy(comm);
  };
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{});
  };
  using Held = std::array<std::ptrdiff_t, 3>;
  const auto held = [&]() -> Held {
    std::ifstream maps("/proc/self/maps");
    std::ptrdiff_t shared = 0;
    for (std::string line; std::getline(maps, line);) shared += line.substr(line.find(' ')).starts_with(" rw-s") ? 1 : 0;
    return {entries("/proc/self/fd"), entries("/proc/self/task"), shared};
  };
  // What has just been destroyed is freed in the background.
  const auto settled = [&] {
    Held last = held();
    for (int same = 0; same < 5;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const Held now = held();
      same = now == last ? same + 1 : 0;
      last = now;
    }
    return last;
  };
  const auto text = [](const Held& of) {
    return std::to_string(of[0]) + " descriptors, " + std::to_string(of[1]) + " threads, " + std::to_string(of[2]) + " shared mappings";
  };
  live(0);
  const Held first = settled();
  constexpr int kLives = 12;
  for (int number = 1; number <= kLives; ++number) live(number);
  // Less than one of anything for each, as soon as all that has been destroyed is freed.
  const auto freed = [&](const Held& last) {
    return std::equal(last.begin(), last.end(), first.begin(), [](auto now, auto before) { return now < before + kLives; });
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Held last = settled();
  while (!freed(last) && std::chrono::steady_clock::now() < deadline) last = settled();
  require(freed(last), "at first " + text(first) + ", at last " + text(last));
}

// The process that has rank 0, and not the hub, has no more descriptors once NCCL has made the second communicator there.
void descriptors(Rank& self) {
  const ncclComm_t first = self.connect("first");
  exchange_skewed(first);
  const ncclUniqueId id = self.unique_id("second");
  if (self.rank == self.world - 1) ::setenv("STAND_IN_LEAVES_DESCRIPTORS", std::getenv("DESCRIPTORS_LEFT"), 1);
  ncclComm_t second = nullptr;
  must(ncclCommInitRank(&second, self.world, id, (self.rank + 1) % self.world), "ncclCommInitRank");
  exchange_skewed(second);
  exchange_skewed(first);
  destroy(second);
  destroy(first);
}

void registered(Rank& self) {
  const ncclComm_t comm = self.connect();
  std::vector<char> buffer(100'000);
  void* handle = nullptr;
  must(ncclCommRegister(comm, buffer.data(), buffer.size(), &handle), "ncclCommRegister");
  exchange_skewed(comm);
  must(ncclCommDeregister(comm, handle), "ncclCommDeregister");
  must(ncclCommFinalize(comm), "ncclCommFinalize");
  destroy(comm);
}

// Windows: there when the call returns, when the group ends, or when a communicator that does not block is ready.
void windows(Rank& self) {
  const ncclComm_t comm = self.connect();
  std::vector<char> buffer(100'000), second(200'000), third(300'000);
  std::array<ncclWindow_t, 3> made{};
  must(ncclCommWindowRegister(comm, buffer.data(), buffer.size(), &made[0], 0), "ncclCommWindowRegister");
  require(made[0] != nullptr, "the window is there");
  begin();
  must(ncclCommWindowRegister(comm, second.data(), second.size(), &made[1], 0), "ncclCommWindowRegister in a group");
  end();
  require(made[1] != nullptr, "the group's window is there");
  const ncclComm_t later = connect_without_blocking(self, "later");
  require(ncclCommWindowRegister(later, third.data(), third.size(), &made[2], 0) == ncclInProgress, "the window comes later");
  must(wait_ready(later), "the window");
  require(made[2] != nullptr, "the window that came later is there");
  exchange_skewed(comm);
  exchange_skewed(later);
  must(ncclCommWindowDeregister(later, made[2]), "ncclCommWindowDeregister");
  for (const ncclWindow_t window : {made[0], made[1]}) must(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
  require(ncclCommWindowRegister(comm, nullptr, 1, &made[0], 0) == ncclInvalidArgument, "a window needs a buffer");
  destroy(later);
  destroy(comm);
}

// Told not to block by a variable, the communicators of a process come later.
void one_process_without_blocking(Rank&) {
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);
  std::array<ncclComm_t, 3> comms{};
  const ncclResult_t result = ncclCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr);
  require(result == ncclSuccess || result == ncclInProgress, "ncclCommInitAll gives " + std::to_string(result));
  for (const ncclComm_t comm : comms) must(wait_ready(comm), "a communicator's set-up");
  std::vector<std::future<void>> ranks;
  for (std::size_t rank = 0; rank < comms.size(); ++rank) {
    ranks.push_back(std::async(std::launch::async, [comm = comms[rank], rank] {
      stand_in::set_device(static_cast<int>(rank));
      exchange_skewed(comm);
      destroy(comm);
    }));
  }
  for (std::future<void>& rank : ranks) rank.get();
}

// One thread splits all ranks of a communicator in a group, and asks one parent after another whether its child may be used.
void one_process_that_splits(Rank&) {
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);
  std::array<ncclComm_t, 3> comms{}, children{};
  const auto accepted = [](ncclResult_t result) { require(result == ncclSuccess || result == ncclInProgress, std::to_string(result)); };
  accepted(ncclCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr));
  for (const ncclComm_t comm : comms) must(wait_ready(comm), "a communicator's set-up");
  begin();
  for (std::size_t rank = 0; rank < comms.size(); ++rank)
    must(ncclCommSplit(comms[rank], 0, static_cast<int>(rank), &children[rank], nullptr), "ncclCommSplit");
  accepted(ncclGroupEnd());
  for (const ncclComm_t comm : comms) must(wait_ready(comm), "a split");
  std::vector<std::future<void>> ranks;
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    ranks.push_back(std::async(std::launch::async, [child = children[rank], parent = comms[rank], rank] {
      stand_in::set_device(static_cast<int>(rank));
      exchange_skewed(child);
      destroy(child);
      destroy(parent);
    }));
  }
  for (std::future<void>& rank : ranks) rank.get();
}

// Each rank driven by a thread of its own, from its first exchange to its end.
void one_process_of_threads(Rank&) {
  std::array<ncclComm_t, 3> comms{};
  must(ncclCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr), "ncclCommInitAll");
  std::vector<std::future<void>> ranks;
  for (const ncclComm_t comm : comms) {
    ranks.push_back(std::async(std::launch::async, [comm] {
      int rank = 0;
      must(ncclCommUserRank(comm, &rank), "ncclCommUserRank");
      stand_in::set_device(rank);
      exchange_skewed(comm);
      ncclComm_t child = nullptr;
      must(ncclCommSplit(comm, 0, -rank, &child, nullptr), "ncclCommSplit");
      exchange_skewed(child);
      exchange_skewed(comm);
      destroy(child);
      destroy(comm);
    }));
  }
  for (std::future<void>& rank : ranks) rank.get();
}

}  // namespace

Scenarios life_scenarios() {
  return {
      {"split", split},
      {"child_refused", child_refused},
      {"shrink", shrink},
      {"non_blocking", non_blocking},
      {"splits_of_two", splits_of_two},
      {"handed_on", handed_on},
      {"blocking_by_variable", blocking_by_variable},
      {"asked_all_the_time", asked_all_the_time},
      {"failed_split", failed_split},
      {"shrunk_by_abort", shrunk_by_abort},
      {"revoked", revoked},
      {"revoked_without_blocking", revoked_without_blocking},
      {"revoke_refused", revoke_refused},
      {"revoked_while_made", revoked_while_made},
      {"grown", grown},
      {"bounded_ctas", bounded_ctas},
      {"several_ids", several_ids},
      {"ended_by_a_child", ended_by_a_child},
      {"ended_by_a_static_object", ended_by_a_static_object},
      {"quick", quick},
      {"destroyed_with_messages", destroyed_with_messages},
      {"destroyed_in_turn", destroyed_in_turn},
      {"finalized_late", finalized_late},
      {"finalized_twice", finalized_twice},
      {"finalize_refused", finalize_refused},
      {"finalized_and_aborted", finalized_and_aborted},
      {"elsewhere", elsewhere},
      {"descriptors", descriptors},
      {"lives", lives},
      {"registered", registered},
      {"windows", windows},
      {"one_process_without_blocking", one_process_without_blocking},
      {"one_process_that_splits", one_process_that_splits},
      {"one_process_of_threads", one_process_of_threads},
  };
}
