// What programs do with NCCL's groups. Each scenario runs on plain NCCL too: it is the meaning of the calls, not of the shim.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "rank.hpp"
#include "stand_in_cuda.hpp"

namespace {

// A stream of the current device that ends with the scope.
class Stream {
 public:
  Stream() : stream_(stand_in::make_stream()) {}
  ~Stream() { stand_in::destroy_stream(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { stand_in::synchronize(stream_, 0); }

 private:
  cudaStream_t stream_;
};

void begin() { must(ncclGroupStart(), "ncclGroupStart"); }
void end() { must(ncclGroupEnd(), "ncclGroupEnd"); }
void destroy(ncclComm_t comm) { must(ncclCommDestroy(comm), "ncclCommDestroy"); }

ncclComm_t connect_without_blocking(Rank& self, const std::string& name = "job") {
  Config config;
  config.blocking = 0;
  const ncclComm_t comm = self.connect(name, &config);
  must(wait_ready(comm), "the communicator's set-up");
  return comm;
}

// As if the id had been made without the shim.
ncclComm_t connect_without_hub(Rank& self, const std::string& name) {
  ncclUniqueId id = self.unique_id(name);
  std::fill(id.internal + kUniqueIdBytes - 40, id.internal + kUniqueIdBytes, '\0');
  ncclComm_t comm = nullptr;
  must(ncclCommInitRank(&comm, self.world, id, self.rank), "ncclCommInitRank");
  return comm;
}

// A hot pair and a little for everybody; ranks 0 and 1 exchange what others do not.
std::size_t skewed(int source, int destination) {
  return source == 0 && destination == 1 ? 3'000'001 : 4096 + static_cast<std::size_t>(17 * source + destination);
}

void post_skewed(Messages& messages, cudaStream_t stream) {
  begin();
  for (int peer = 0; peer < messages.world; ++peer) {
    messages.send(peer, skewed(messages.rank, peer), stream);
    messages.receive(peer, skewed(peer, messages.rank), stream);
  }
  end();
}

void exchange_skewed(ncclComm_t comm) {
  const Stream stream;
  Messages messages(comm);
  for (int round = 0; round < 3; ++round) post_skewed(messages, stream);
  stream.synchronize();
  messages.check();
}

void alltoallv(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  destroy(comm);
}

// Several messages a pair in one group, sizes from 0, receives posted in another order than sends; elements of each type.
void many_messages(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  Messages messages(comm);
  const auto size = [](int source, int destination, int k) {
    return static_cast<std::size_t>(k == 2 ? 0 : 1000 * k + 3 * source + destination);
  };
  begin();
  for (int k = 0; k < 12; ++k) {
    for (int peer = self.world - 1; peer >= 0; --peer) messages.receive(peer, size(peer, self.rank, k), k, stream);
  }
  for (int peer = 0; peer < self.world; ++peer) {
    for (int k = 0; k < 12; ++k) messages.send(peer, size(self.rank, peer, k), k, stream);
  }
  end();
  stream.synchronize();
  messages.check();
  destroy(comm);
}

// Outside of groups, one call after the other; and a send to oneself where the receive has the same buffer.
void single_calls(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  Messages messages(comm);
  const int next = (self.rank + 1) % self.world, before = (self.rank + self.world - 1) % self.world;
  if (self.rank == 0) messages.send(next, std::size_t{100'000}, stream);
  messages.receive(before, std::size_t{100'000}, stream);
  if (self.rank != 0) messages.send(next, std::size_t{100'000}, stream);
  std::array<char, 64> own{};
  own.fill('x');
  begin();
  must(ncclSend(own.data(), own.size(), ncclInt8, self.rank, comm, stream), "ncclSend");
  must(ncclRecv(own.data(), own.size(), ncclInt8, self.rank, comm, stream), "ncclRecv");
  end();
  stream.synchronize();
  messages.check();
  require(own.front() == 'x' && own.back() == 'x', "a message to oneself in place keeps its bytes");
  destroy(comm);
}

void nested_groups(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  Messages messages(comm);
  begin();
  for (int peer = 0; peer < self.world; ++peer) {
    begin();
    messages.send(peer, std::size_t{5000}, stream);
    end();
  }
  begin();
  for (int peer = 0; peer < self.world; ++peer) messages.receive(peer, std::size_t{5000}, stream);
  end();
  end();
  stream.synchronize();
  messages.check();
  destroy(comm);
}

// Sends on one stream and receives on another in one group: neither may wait for the other's launch.
void two_streams(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream out, in;
  Messages messages(comm);
  for (int round = 0; round < 3; ++round) {
    begin();
    for (int peer = 0; peer < self.world; ++peer) {
      messages.send(peer, std::size_t{300'000}, out);
      messages.receive(peer, std::size_t{300'000}, in);
    }
    end();
  }
  out.synchronize();
  in.synchronize();
  messages.check();
  destroy(comm);
}

// One group with messages between all ranks of two communicators, in turns.
void exchange_both(const Rank& self, Messages& a, const Stream& stream, Messages& b, const Stream& other) {
  begin();
  for (int peer = 0; peer < self.world; ++peer) {
    a.send(peer, std::size_t{40'000}, stream);
    b.receive(peer, std::size_t{50'000}, other);
    a.receive(peer, std::size_t{40'000}, stream);
    b.send(peer, std::size_t{50'000}, other);
  }
  end();
}

// One group over two communicators with opposite orders of ranks.
void two_communicators(Rank& self) {
  const ncclComm_t first = self.connect("first");
  ncclComm_t second = nullptr;
  must(ncclCommSplit(first, 0, -self.rank, &second, nullptr), "ncclCommSplit");
  const Stream stream, other;
  Messages a(first), b(second);
  require(b.rank == self.world - 1 - self.rank, "keys order the ranks of a split");
  exchange_both(self, a, stream, b, other);
  stream.synchronize();
  other.synchronize();
  a.check();
  b.check();
  destroy(second);
  destroy(first);
}

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

// Collectives and messages in one group and one after another on one stream.
void mixed_group(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  Messages messages(comm);
  std::array<double, 100> mine{}, total{};
  mine.fill(self.rank + 1.0);
  for (int round = 0; round < 3; ++round) {
    begin();
    messages.send((self.rank + 1) % self.world, std::size_t{70'000}, stream);
    must(ncclAllReduce(mine.data(), total.data(), mine.size(), ncclFloat64, ncclSum, comm, stream), "ncclAllReduce");
    messages.receive((self.rank + self.world - 1) % self.world, std::size_t{70'000}, stream);
    end();
    must(ncclAllReduce(total.data(), total.data(), total.size(), ncclFloat64, ncclSum, comm, stream), "ncclAllReduce");
  }
  stream.synchronize();
  messages.check();
  require(total[99] == self.world * self.world * (self.world + 1) / 2.0, "the reductions add up");
  destroy(comm);
}

// The same where NCCL launches collectives after the group's end, and on some ranks before.
void mixed_group_later(Rank& self) {
  const ncclComm_t comm = connect_without_blocking(self);
  const Stream stream;
  Messages messages(comm);
  std::array<double, 100> mine{}, total{};
  mine.fill(self.rank + 1.0);
  for (int round = 0; round < 3; ++round) {
    begin();
    messages.send((self.rank + 1) % self.world, std::size_t{70'000}, stream);
    must(ncclAllReduce(mine.data(), total.data(), mine.size(), ncclFloat64, ncclSum, comm, stream), "ncclAllReduce");
    messages.receive((self.rank + self.world - 1) % self.world, std::size_t{70'000}, stream);
    require(ncclGroupEnd() == ncclInProgress, "the group is launched later");
    must(wait_ready(comm), "the group's launch");
  }
  stream.synchronize();
  messages.check();
  require(total[99] == self.world * (self.world + 1) / 2.0, "the reductions add up");
  destroy(comm);
}

// `call`: NCCL's, of these buffers, so many elements and that stream.
template <typename Call>
void exchange_all_to_all(const Rank& self, Call&& call) {
  const Stream stream;
  const std::size_t count = 20'000;
  std::vector<std::int32_t> send(count * static_cast<std::size_t>(self.world)), receive(send.size());
  for (std::size_t i = 0; i < send.size(); ++i) send[i] = self.rank * 1'000'000 + static_cast<int>(i);
  must(call(send.data(), receive.data(), count, ncclInt32, stream), "the call");
  stream.synchronize();
  bool right = true;
  for (std::size_t i = 0; i < receive.size(); ++i)
    right =
        right && receive[i] == static_cast<int>(i / count) * 1'000'000 + self.rank * static_cast<int>(count) + static_cast<int>(i % count);
  require(right, "every element comes from its rank and place");
}

void all_to_all(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_all_to_all(self, [comm](const void* send, void* receive, std::size_t count, int type, cudaStream_t stream) {
    return ncclAlltoAll(send, receive, count, type, comm, stream);
  });
  destroy(comm);
}

auto configured(ncclComm_t comm, const ncclCollConfigHead* config) {
  return [comm, config](const void* send, void* receive, std::size_t count, int type, cudaStream_t stream) {
    return ncclAlltoAllConfig(send, receive, count, type, comm, stream, config);
  };
}

// Without a configuration, with one, and with a shorter one of an older release: nothing past its end is read.
void all_to_all_config(Rank& self) {
  const ncclComm_t comm = self.connect();
  std::atomic<bool> event{false};
  ncclCollConfigHead config{}, shorter{};
  config.size = sizeof config;
  config.max_ctas = 4;
  shorter.size = offsetof(ncclCollConfigHead, launch_completion_event);
  shorter.launch_completion_event = &event;
  const std::array<const ncclCollConfigHead*, 3> all{nullptr, &config, &shorter};
  for (const ncclCollConfigHead* each : all) exchange_all_to_all(self, configured(comm, each));
  require(!event, "what lies behind a shorter configuration is not its event");
  destroy(comm);
}

// Only under the shim: an event is refused where Railweave serves, in groups, too, and NCCL's where it does not.
void completion_event(Rank& self) {
  const ncclComm_t served = self.connect("served"), other = connect_without_hub(self, "other");
  std::atomic<bool> event{false};
  ncclCollConfigHead config{};
  config.size = sizeof config;
  config.launch_completion_event = &event;
  char byte = 0;
  const auto refused = [&] {
    return ncclAlltoAllConfig(&byte, &byte, 0, ncclInt8, served, nullptr, &config) == ncclInvalidUsage &&
           std::string(ncclGetLastError(served)).find("launchCompletionEvent") != std::string::npos;
  };
  require(refused(), "the event is refused");
  begin();
  require(refused(), "the event is refused in a group");
  require(ncclGroupEnd() == ncclInvalidUsage, "the group's end says so, too");
  exchange_all_to_all(self, configured(served, nullptr));
  require(!event, "nothing was launched that tells of its launch");
  exchange_all_to_all(self, configured(other, &config));
  require(event, "NCCL records the event");
  destroy(other);
  destroy(served);
}

// A captured exchange, run three times, with plain ones before and after.
void graph(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  exchange_skewed(comm);
  Messages messages(comm);
  stand_in::begin_capture(stream);
  post_skewed(messages, stream);
  const auto captured = stand_in::end_capture(stream);
  for (int run = 0; run < 3; ++run) {
    messages.blank_received();
    stand_in::launch(*captured, stream);
    stream.synchronize();
    messages.check();
  }
  exchange_skewed(comm);
  destroy(comm);
}

// Calls return although the peer has not called: rank 1 receives only after rank 0 has come back from all its calls.
void never_waits(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  Messages messages(comm);
  if (self.rank == 0) {
    for (int k = 0; k < 20; ++k) messages.send(1, std::size_t{1'000'000}, stream);
    self.say("sent");
  }
  if (self.rank == 1) {
    self.hear("sent", 0);
    for (int k = 0; k < 20; ++k) messages.receive(0, std::size_t{1'000'000}, stream);
  }
  stream.synchronize();
  messages.check();
  destroy(comm);
}

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

// A rank is killed while its bytes move; the others go on without it, in a communicator that its end left.
void survivors(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_skewed(comm);
  int dead[] = {self.world - 1};
  const Stream stream;
  Messages messages(comm);
  begin();
  for (int peer = 0; peer < self.world; ++peer) {
    messages.send(peer, std::size_t{4'000'000}, stream);
    messages.receive(peer, std::size_t{4'000'000}, stream);
  }
  end();
  if (self.rank == dead[0]) ::kill(::getpid(), SIGKILL);
  std::vector<char> never(100'000);
  ncclResult_t error = ncclRecv(never.data(), never.size(), ncclInt8, dead[0], comm, stream);  // it may be known already
  while (error == ncclSuccess) {
    must(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  require(error == ncclRemoteError, "the error is ncclRemoteError, not " + std::to_string(error));
  ncclComm_t rest = nullptr;
  must(ncclCommShrink(comm, dead, 1, &rest, nullptr, kShrinkAbort), "ncclCommShrink");
  stream.synchronize();
  exchange_skewed(rest);
  destroy(rest);
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

// A simulated group moves nothing.
void simulated(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  char byte = 'a';
  begin();
  must(ncclSend(&byte, 1, ncclInt8, (self.rank + 1) % self.world, comm, stream), "ncclSend");
  must(ncclGroupSimulateEnd(nullptr), "ncclGroupSimulateEnd");
  exchange_skewed(comm);
  destroy(comm);
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

// All ranks of the communicator in this process, driven by one thread; every process has a communicator of its own.
void one_process(Rank&) {
  std::array<ncclComm_t, 3> comms{};
  must(ncclCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr), "ncclCommInitAll");
  std::list<Messages> messages;
  for (const ncclComm_t comm : comms) messages.emplace_back(comm);
  begin();
  for (Messages& mine : messages) {
    stand_in::set_device(mine.rank);
    for (int peer = 0; peer < mine.world; ++peer) {
      mine.send(peer, skewed(mine.rank, peer), nullptr);
      mine.receive(peer, skewed(peer, mine.rank), nullptr);
    }
  }
  end();
  for (Messages& mine : messages) {
    stand_in::synchronize(nullptr, mine.rank);
    mine.check();
  }
  for (const ncclComm_t comm : comms) destroy(comm);
}

// The same, each rank driven by a thread of its own, from its first exchange to its end.
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

// One group over a communicator that can be served and one whose id tells of no hub.
void half_served(Rank& self) {
  const ncclComm_t served = self.connect("served"), other = connect_without_hub(self, "other");
  const Stream stream;
  Messages a(served), b(other);
  for (int round = 0; round < 3; ++round) exchange_both(self, a, stream, b, stream);
  stream.synchronize();
  a.check();
  b.check();
  destroy(other);
  destroy(served);
}

// NCCL's id as NCCL made it, and no thread beside the program's.
void untouched(Rank& self) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator{});
  };
  std::thread([] {}).join();  // the thread sanitizer starts one of its own with the first
  const auto before = threads();
  const ncclUniqueId id = self.unique_id("job");
  require(std::all_of(id.internal + kUniqueIdBytes - 40, id.internal + kUniqueIdBytes, [](char byte) { return byte == 0; }),
          "the rest of the id is zeros");
  ncclComm_t comm = nullptr;
  must(ncclCommInitRank(&comm, self.world, id, self.rank), "ncclCommInitRank");
  exchange_skewed(comm);
  require(threads() == before, "there are " + std::to_string(threads()) + " threads, not " + std::to_string(before));
  destroy(comm);
}

// Groups of random messages, each on one of two communicators and on three streams; every pair's sizes come from one generator that both
// ends run.
void random_groups(Rank& self) {
  const ncclComm_t first = self.connect();
  ncclComm_t second = nullptr;
  must(ncclCommSplit(first, 0, self.rank, &second, nullptr), "ncclCommSplit");
  std::array<Stream, 3> streams;
  Messages messages[] = {Messages(first), Messages(second)};
  std::mt19937_64 same_everywhere(20261121);
  for (int group = 0; group < 60; ++group) {
    Messages& on = messages[same_everywhere() % 2];
    begin();
    for (int k = static_cast<int>(same_everywhere() % 12); k >= 0; --k) {
      const int source = static_cast<int>(same_everywhere() % static_cast<unsigned>(self.world));
      const int destination = static_cast<int>(same_everywhere() % static_cast<unsigned>(self.world));
      const int type = static_cast<int>(same_everywhere() % 12);
      const std::size_t most[] = {1, 4000, 70'000, 700'000};
      const std::size_t count = same_everywhere() % most[same_everywhere() % 4];
      const Stream& stream = streams[same_everywhere() % 3];
      if (source == self.rank) on.send(destination, count, type, stream);
      if (destination == self.rank) on.receive(source, count, type, stream);
    }
    end();
  }
  for (const Stream& stream : streams) stream.synchronize();
  for (const Messages& mine : messages) mine.check();
  destroy(second);
  destroy(first);
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
void stall_with(Rank& self, int of_each, std::size_t bytes) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  Messages messages(comm);
  begin();
  for (int peer = 0; peer < self.world; ++peer) {
    for (int k = 0; k < of_each && peer != self.rank; ++k) messages.receive(peer, bytes, stream);
  }
  end();
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

// Only under the shim: its metrics come to have all that METRICS_WANTED names, and for rank 1 METRICS_WANTED_1, a line each.
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
  destroy(comm);
}

}  // namespace

const std::map<std::string, Scenario>& scenarios() {
  static const std::map<std::string, Scenario> all{
      {"alltoallv", alltoallv},
      {"many_messages", many_messages},
      {"single_calls", single_calls},
      {"nested_groups", nested_groups},
      {"two_streams", two_streams},
      {"two_communicators", two_communicators},
      {"split", split},
      {"shrink", shrink},
      {"non_blocking", non_blocking},
      {"asked_all_the_time", asked_all_the_time},
      {"failed_split", failed_split},
      {"shrunk_by_abort", shrunk_by_abort},
      {"revoked", revoked},
      {"revoked_without_blocking", revoked_without_blocking},
      {"revoke_refused", revoke_refused},
      {"revoked_while_made", revoked_while_made},
      {"grown", grown},
      {"several_ids", several_ids},
      {"ended_by_a_static_object", ended_by_a_static_object},
      {"quick", quick},
      {"finalized_late", finalized_late},
      {"descriptors", descriptors},
      {"lives", lives},
      {"mixed_group", mixed_group},
      {"mixed_group_later", mixed_group_later},
      {"all_to_all", all_to_all},
      {"all_to_all_config", all_to_all_config},
      {"completion_event", completion_event},
      {"graph", graph},
      {"never_waits", never_waits},
      {"abort_receive", abort_receive},
      {"rank_dies", rank_dies},
      {"survivors", survivors},
      {"wrong_calls", wrong_calls},
      {"simulated", simulated},
      {"registered", registered},
      {"windows", windows},
      {"one_process", one_process},
      {"one_process_of_threads", one_process_of_threads},
      {"half_served", half_served},
      {"untouched", untouched},
      {"random_groups", random_groups},
      {"missing_function", missing_function},
      {"stall", stall},
      {"long_stall", long_stall},
      {"damaged", damaged},
      {"counted", counted},
  };
  return all;
}
