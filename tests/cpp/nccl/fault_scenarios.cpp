// What goes wrong, and what is told of it.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../allocations.hpp"
#include "scenarios.hpp"

namespace {

// A receive that no send meets ends when the communicator is aborted, and the stream goes on.
void abort_receive(Rank& self) {
  ::setenv("RAILWEAVE_DRAIN_MS", "500", 1);  // what an abort waits for its unfinished operations
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  if (self.rank == 1) {
    const Stream stream;
    Messages messages(comm);
    messages.receive(0, std::size_t{100'000}, stream);
    must(ncclCommAbort(comm), "ncclCommAbort");
    stream.synchronize();
    self.say("aborted");
    return;
  }
  self.hear("aborted", 1);
  must(ncclCommAbort(comm), "ncclCommAbort");
}

// A rank dies while others wait for it: they get an asynchronous error and can abort.
void rank_dies(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  if (self.rank == 2) ::_exit(0);
  const Stream stream;
  Messages messages(comm);
  messages.receive(2, std::size_t{100'000}, stream);
  ncclResult_t error = ncclSuccess;
  while (error == ncclSuccess) {
    must(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  require(error == ncclRemoteError, "the error is ncclRemoteError, not " + std::to_string(error));
  must(ncclCommAbort(comm), "ncclCommAbort");
  stream.synchronize();
}

// Until an operation has failed as another rank died.
void wait_for_a_death(ncclComm_t comm, int dead, const Stream& stream) {
  std::vector<char> never(100'000);
  ncclResult_t error = ncclRecv(never.data(), never.size(), ncclInt8, dead, comm, stream);  // it may be known already
  while (error == ncclSuccess) {
    must(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  require(error == ncclRemoteError, "the error is ncclRemoteError, not " + std::to_string(error));
}

// `dead` is killed while its bytes move; the others go on without it, in a communicator that its end left.
void kill_and_shrink(Rank& self, ncclComm_t comm, int dead, const std::function<void(ncclComm_t)>& go_on) {
  const Stream stream;
  Messages messages(comm);
  begin();
  for (int peer = 0; peer < messages.world; ++peer) {
    messages.send(peer, std::size_t{4'000'000}, stream);
    messages.receive(peer, std::size_t{4'000'000}, stream);
  }
  end();
  if (self.rank == dead) ::kill(::getpid(), SIGKILL);
  wait_for_a_death(comm, dead, stream);
  ncclComm_t rest = nullptr;
  must(ncclCommShrink(comm, &dead, 1, &rest, nullptr, kShrinkAbort), "ncclCommShrink");
  stream.synchronize();
  go_on(rest);
  destroy(rest);
  must(ncclCommAbort(comm), "ncclCommAbort");
}

void survivors(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  kill_and_shrink(self, comm, self.world - 1, exchange_skewed);
}

// Rank 0, whose process made the unique id. The child has a child itself, and so has a communicator that rank 0 was not in.
void survivors_of_the_first(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  ncclComm_t half = nullptr, child = nullptr;
  must(ncclCommSplit(comm, self.rank / 2, self.rank, &half, nullptr), "ncclCommSplit");
  kill_and_shrink(self, comm, 0, [&](ncclComm_t rest) {
    exchange_skewed(rest);
    if (self.rank >= 2) {
      ncclComm_t quarter = nullptr;
      must(ncclCommSplit(half, 0, -self.rank, &quarter, nullptr), "ncclCommSplit");
      exchange_skewed(quarter);
      destroy(quarter);
    }
    must(ncclCommSplit(rest, 0, -self.rank, &child, nullptr), "ncclCommSplit");
    exchange_skewed(child);
    destroy(child);
  });
  must(ncclCommAbort(half), "ncclCommAbort");
}

// The last process comes in the place of rank 0, whose process made the unique id.
void replaced(Rank& self) {
  const bool comes = self.rank == self.world - 1;
  const auto grow = [&](ncclComm_t rest) {
    const ncclUniqueId id = self.unique_id("larger", 1, [rest](ncclUniqueId* made) { return ncclCommGetUniqueId(rest, made); });
    ncclComm_t all = nullptr;
    const bool knows = comes || self.rank == 1;
    must(ncclCommGrow(rest, self.world - 1, knows ? &id : nullptr, comes ? self.world - 2 : -1, &all, nullptr), "ncclCommGrow");
    exchange_skewed(all);
    destroy(all);
  };
  if (comes) return grow(nullptr);
  ncclComm_t comm = nullptr;
  must(ncclCommInitRank(&comm, self.world - 1, self.unique_id("job"), self.rank), "ncclCommInitRank");
  exchange_skewed(comm);
  kill_and_shrink(self, comm, 0, grow);
}

// Rank 0, whose process made the unique id, is in no part of the split, and its process ends.
void goes_after_split(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  ncclComm_t part = nullptr;
  must(ncclCommSplit(comm, self.rank == 0 ? kSplitNoColor : 0, self.rank, &part, nullptr), "ncclCommSplit");
  if (self.rank == 0) {
    self.hear("served", 1);
    ::_exit(0);
  }
  if (self.rank == 1) self.say("served");
  exchange_skewed(part);
  ncclComm_t child = nullptr;
  must(ncclCommSplit(part, 0, -self.rank, &child, nullptr), "ncclCommSplit");
  exchange_skewed(child);
  destroy(child);
  destroy(part);
  must(ncclCommAbort(comm), "ncclCommAbort");
}

// Wrong calls give errors, in and out of groups, and the communicator works on.
void wrong_calls(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  char byte = 0;
  require(ncclSend(&byte, 1, ncclInt8, self.world, comm, stream) == ncclInvalidArgument, "a peer out of range is refused");
  require(ncclRecv(&byte, 1, ncclInt8, -1, comm, stream) == ncclInvalidArgument, "a negative peer is refused");
  require(ncclSend(&byte, 1, 99, 0, comm, stream) == ncclInvalidArgument, "an unknown datatype is refused");
  require(*ncclGetLastError(comm) != '\0', "the last error has a text");
  begin();
  must(ncclSend(&byte, 1, ncclInt8, self.rank, comm, stream), "ncclSend");
  require(ncclGroupEnd() == ncclInvalidUsage, "a send to oneself without its receive is refused");
  require(ncclGroupEnd() == ncclInvalidUsage, "an end without a start is refused");
  exchange_skewed(comm);
  destroy(comm);
}

// Of a group with a wrong message nothing is done, not its collectives either.
void wrong_group(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  char byte = 0;
  double number = 1;
  begin();
  must(ncclAllReduce(&number, &number, 1, ncclFloat64, ncclSum, comm, stream), "ncclAllReduce");
  require(ncclSend(&byte, 1, ncclInt8, self.world, comm, stream) == ncclInvalidArgument, "a peer out of range is refused");
  require(ncclGroupEnd() == ncclInvalidArgument, "the group's end gives the error of its message");
  require(std::string(ncclGetLastError(comm)).find("peer") != std::string::npos, "the text says what is wrong");
  begin();
  begin();
  must(ncclSend(&byte, 1, ncclInt8, self.rank, comm, stream), "ncclSend");
  end();
  must(ncclAllReduce(&number, &number, 1, ncclFloat64, ncclSum, comm, stream), "ncclAllReduce");
  require(ncclGroupEnd() == ncclInvalidUsage, "the group's end gives that a message to oneself is not received");
  require(std::string(ncclGetLastError(comm)).find("send") != std::string::npos, "the text says what is wrong");
  stream.synchronize();
  require(number == 1, "nothing was added");
  must(ncclAllReduce(&number, &number, 1, ncclFloat64, ncclSum, comm, stream), "ncclAllReduce");
  stream.synchronize();
  require(number == self.world, "the next collective is the first");
  exchange_skewed(comm);
  destroy(comm);
}

// Only under the shim: NCCL's stand-in does not have that function.
void missing_function(Rank& self) {
  const auto suspend = reinterpret_cast<ncclResult_t (*)(ncclComm_t, int)>(::dlsym(RTLD_DEFAULT, "ncclCommSuspend"));
  require(suspend != nullptr, "the shim has ncclCommSuspend");
  const ncclComm_t comm = self.connect();
  for (int again = 0; again < 3; ++again)
    require(suspend(comm, 0) == ncclInvalidUsage, "a function that NCCL lacks gives ncclInvalidUsage");
  require(std::string(ncclGetLastError(comm)).find("ncclCommSuspend is not in this NCCL") != std::string::npos, "the text says so");
  destroy(comm);
}

// Only under the shim: receives that no send meets are told in each rank's log.
void stall_with(
    Rank& self, int of_each, std::size_t bytes, const std::function<void()>& meanwhile = [] {}, bool in_a_graph = false) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  Messages messages(comm);
  if (in_a_graph) stand_in::begin_capture(stream);
  begin();
  for (int peer = 0; peer < self.world; ++peer) {
    for (int k = 0; k < of_each && peer != self.rank; ++k) messages.receive(peer, bytes, stream);
  }
  end();
  if (in_a_graph) stand_in::launch(*stand_in::end_capture(stream), stream);
  meanwhile();
  std::string file = std::getenv("RAILWEAVE_LOG_FILE");
  file.replace(file.find("%p"), 2, std::to_string(::getpid()));
  const auto told = [&] {
    std::ifstream log(file);
    const std::string text{std::istreambuf_iterator<char>(log), {}};
    return text.find("stalled") != std::string::npos;
  };
  while (!told()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  self.say("told");
  for (int peer = 0; peer < self.world; ++peer) self.hear("told", peer);  // an abort ends the others' operations too
  must(ncclCommAbort(comm), "ncclCommAbort");
  stream.synchronize();
}

void stall(Rank& self) { stall_with(self, 1, 100'000); }

void long_stall(Rank& self) { stall_with(self, 3000, 5000); }

void graph_stall(Rank& self) {
  stall_with(
      self, 1, 100'000, [] {}, true);
}

// Where the device library, once it is asked, takes its time to say what a communicator has done: until the file is removed.
std::filesystem::path slow_answer_file() {
  const std::filesystem::path file = std::getenv("TMPDIR") + ("/asked." + std::to_string(::getpid()));
  ::setenv("STAND_IN_IS_ASKED", file.c_str(), 1);
  return file;
}

// The thread that asks.
pid_t asker(const std::filesystem::path& asked) {
  pid_t thread = 0;
  while (!(std::ifstream(asked) >> thread)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return thread;
}

// Only under the shim: while the device library takes its time to say what one communicator has done, another one comes and goes, and that
// one goes, too.
void slow_answer(Rank& self) {
  const std::filesystem::path asked = slow_answer_file();
  const ncclComm_t slow = self.connect("slow");
  asker(asked);
  const ncclComm_t other = self.connect("other");
  exchange_skewed(other);
  destroy(other);
  destroy(slow);
  std::filesystem::remove(asked);
}

// Only under the shim: who watches is refused memory again and again, at one place after the other, and tells of the stall then.
void watched_without_memory(Rank& self) {
  namespace allocations = railweave::testing::allocations;
  const std::filesystem::path asked = slow_answer_file();
  stall_with(self, 1, 100'000, [&] {
    const pid_t watcher = asker(asked);
    allocations::refuse(watcher, 0, 1);
    std::filesystem::remove(asked);
    constexpr int kPlaces = 30;  // more than a look has
    for (int place = 0; place < kPlaces; ++place) {
      allocations::refuse(watcher, place, 1);
      while (allocations::refused() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

// Only under the shim, in the checksum mode: the last message from rank 0 to rank 1, of a graph's third replay, comes with
// another bit.
void damaged(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);  // three messages of each pair
  const Stream stream;
  std::vector<char> data(300'001, 'd');
  if (self.rank < 2) {
    stand_in::begin_capture(stream);
    if (self.rank == 0)
      must(ncclSend(data.data(), data.size(), ncclInt8, 1, comm, stream), "ncclSend");
    else
      must(ncclRecv(data.data(), data.size(), ncclInt8, 0, comm, stream), "ncclRecv");
    const auto captured = stand_in::end_capture(stream);
    for (int replay = 0; replay < 3; ++replay) stand_in::launch(*captured, stream);
    stream.synchronize();
  }
  ncclResult_t error = ncclSuccess;
  must(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
  require(error == (self.rank == 1 ? ncclSystemError : ncclSuccess), "the receiver alone has an error, and it is ncclSystemError");
  if (self.rank == 1) {
    const std::string text = ncclGetLastError(comm);
    require(text.find("communicator ") == 0 && text.find(" (4 ranks, this is rank 1): message 5 from rank 0") != std::string::npos, text);
    self.say("found");
  } else {
    self.hear("found", 1);
  }
  must(ncclCommAbort(comm), "ncclCommAbort");
}

// Only under the shim: its metrics come to have all that METRICS_WANTED names, and for rank 1 METRICS_WANTED_1, a line each, and have
// nothing of METRICS_UNWANTED then.
void counted(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  std::string wanted = std::getenv("METRICS_WANTED");
  if (const char* more = std::getenv("METRICS_WANTED_1"); more != nullptr && self.rank == 1) wanted += std::string("\n") + more;
  const auto read = [] {
    std::string text;
    for (const auto& entry : std::filesystem::directory_iterator(std::getenv("RAILWEAVE_METRICS"))) {
      if (!entry.path().filename().string().ends_with("-" + std::to_string(::getpid()) + ".prom")) continue;
      std::ifstream file(entry.path());
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
    return text;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::istringstream lines(wanted);
  for (std::string line; std::getline(lines, line);) {
    std::string text;
    while ((text = read()).find(line) == std::string::npos) {
      require(std::chrono::steady_clock::now() < deadline, line + " does not come into\n" + text);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  const char* unwanted = std::getenv("METRICS_UNWANTED");
  require(unwanted == nullptr || read().find(unwanted) == std::string::npos, "nothing of what is not wanted");
  destroy(comm);
}

}  // namespace

Scenarios fault_scenarios() {
  return {
      {"abort_receive", abort_receive},
      {"rank_dies", rank_dies},
      {"survivors", survivors},
      {"survivors_of_the_first", survivors_of_the_first},
      {"replaced", replaced},
      {"goes_after_split", goes_after_split},
      {"wrong_calls", wrong_calls},
      {"wrong_group", wrong_group},
      {"missing_function", missing_function},
      {"stall", stall},
      {"slow_answer", slow_answer},
      {"watched_without_memory", watched_without_memory},
      {"long_stall", long_stall},
      {"graph_stall", graph_stall},
      {"damaged", damaged},
      {"counted", counted},
  };
}
