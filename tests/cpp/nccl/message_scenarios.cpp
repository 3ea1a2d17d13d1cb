// What groups carry: sizes, types, streams, communicators, graphs.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <list>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "scenarios.hpp"

namespace {

constexpr std::size_t kShimBytes = 56;  // at the end of a unique id

// As if the id had been made without the shim.
ncclComm_t connect_without_hub(Rank& self, const std::string& name, bool blocking = true) {
  ncclUniqueId id = self.unique_id(name);
  std::fill(id.internal + kUniqueIdBytes - kShimBytes, id.internal + kUniqueIdBytes, '\0');
  ncclComm_t comm = nullptr;
  Config config;
  config.blocking = blocking ? 1 : 0;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, self.world, id, self.rank, &config);
  if (blocking || result != ncclInProgress) must(result, "ncclCommInitRankConfig");
  must(wait_ready(comm), "the communicator's set-up");
  return comm;
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

// Long enough for what does not wait for it to be seen not to.
void late() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

// A message of 0 bytes makes its stream one of its communicator's in the group, as any other does: they wait for each other before it and
// after it.
void empty_messages(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream carrying, other;
  const int next = (self.rank + 1) % self.world, before = (self.rank + self.world - 1) % self.world;
  std::array<char, 100> out{}, in{};
  const auto send = [&](std::size_t bytes, int peer, const Stream& stream) {
    must(ncclSend(out.data(), bytes, ncclInt8, peer, comm, stream), "ncclSend");
  };
  const auto receive = [&](std::size_t bytes, int peer, const Stream& stream) {
    must(ncclRecv(in.data(), bytes, ncclInt8, peer, comm, stream), "ncclRecv");
  };
  stand_in::launch(other, 0, [&] {
    late();
    out.fill('x');
  });
  begin();
  send(out.size(), next, carrying);
  receive(in.size(), before, carrying);
  send(0, next, other);
  receive(0, before, other);
  end();
  carrying.synchronize();
  require(in.back() == 'x', "messages wait for the stream of one of 0 bytes");

  in.fill(0);
  if (self.rank == 0) late();
  begin();
  for (int peer = 1; peer < self.world && self.rank == 0; ++peer) {
    send(0, peer, other);
    send(out.size(), peer, carrying);
  }
  if (self.rank != 0) {
    receive(0, 0, other);
    receive(in.size(), 0, carrying);
  }
  end();
  other.synchronize();
  require(self.rank == 0 || in.back() == 'x', "the stream of a message of 0 bytes waits for the group's others");

  std::atomic<bool> reached{false};
  stand_in::launch(other, 0, [&] {
    late();
    reached = true;
  });
  begin();
  send(0, next, other);
  receive(0, before, carrying);
  end();
  carrying.synchronize();
  require(reached, "streams of messages of 0 bytes wait for each other where there are no others");
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

// Ends a group, also one that is launched later.
void end_and_wait(ncclComm_t comm) {
  const ncclResult_t result = ncclGroupEnd();
  if (result != ncclInProgress) must(result, "ncclGroupEnd");
  must(wait_ready(comm), "the group's launch");
}

// A collective on one stream and messages on another in one group: all that is queued on either before comes before both, and all that is
// queued on either behind comes behind both.
void exchange_on_mixed_streams(const Rank& self, ncclComm_t comm) {
  const Stream reducing, carrying;
  double mine = 0, total = 0;
  std::array<char, 100> out{}, in{};
  out.fill('x');
  const auto reduce = [&] { must(ncclAllReduce(&mine, &total, 1, ncclFloat64, ncclSum, comm, reducing), "ncclAllReduce"); };
  const auto send = [&](int peer) { must(ncclSend(out.data(), out.size(), ncclInt8, peer, comm, carrying), "ncclSend"); };
  const auto receive = [&](int peer) { must(ncclRecv(in.data(), in.size(), ncclInt8, peer, comm, carrying), "ncclRecv"); };
  stand_in::launch(carrying, 0, [&] {
    late();
    mine = 1;
  });
  begin();
  reduce();
  send((self.rank + 1) % self.world);
  receive((self.rank + self.world - 1) % self.world);
  end_and_wait(comm);
  reducing.synchronize();
  require(total == self.world, "the collective waits for the messages' stream");

  // Rank 0 sends late, and not in the group.
  in.fill(0);
  begin();
  reduce();
  if (self.rank != 0) receive(0);
  end_and_wait(comm);
  if (self.rank == 0) {
    late();
    begin();
    for (int peer = 1; peer < self.world; ++peer) send(peer);
    end_and_wait(comm);
  }
  reducing.synchronize();
  require(self.rank == 0 || in.back() == 'x', "the collective's stream waits for the messages");
  carrying.synchronize();
}

void mixed_streams(Rank& self) {
  const ncclComm_t comm = self.connect();
  exchange_on_mixed_streams(self, comm);
  destroy(comm);
}

void mixed_streams_later(Rank& self) {
  const ncclComm_t comm = connect_without_blocking(self);
  exchange_on_mixed_streams(self, comm);
  destroy(comm);
}

// Messages of two communicators on streams of their own, and a collective of the first on the stream of the second: that connects them, so
// that the order in which a rank calls does not count.
void mixed_communicators(Rank& self) {
  const ncclComm_t first = self.connect("first"), second = self.connect("second");
  const Stream stream, other;
  Messages a(first), b(second);
  double mine = 1, total = 0;
  const int next = (self.rank + 1) % self.world, before = (self.rank + self.world - 1) % self.world;
  begin();
  must(ncclAllReduce(&mine, &total, 1, ncclFloat64, ncclSum, first, other), "ncclAllReduce");
  for (const bool of_first : {self.rank % 2 == 0, self.rank % 2 != 0}) {
    Messages& messages = of_first ? a : b;
    messages.send(next, std::size_t{40'000}, of_first ? stream : other);
    messages.receive(before, std::size_t{40'000}, of_first ? stream : other);
  }
  end();
  stream.synchronize_or_exit();
  other.synchronize_or_exit();
  a.check();
  b.check();
  require(total == self.world, "the reduction adds up");
  destroy(second);
  destroy(first);
}

// A group of two communicators that do not block on one stream: what NCCL has of it, the collective of the second, is launched later, and
// comes before the messages of the first on all ranks. Who asks the second alone may go on with it then.
void two_communicators_later(Rank& self) {
  const ncclComm_t first = connect_without_blocking(self, "first"), second = connect_without_blocking(self, "second");
  const Stream stream;
  Messages messages(first);
  double mine = 1, total = 0;
  const auto reduce = [&](double& from) { return ncclAllReduce(&from, &total, 1, ncclFloat64, ncclSum, second, stream); };
  for (int round = 0; round < 3; ++round) {
    begin();
    must(reduce(mine), "ncclAllReduce");
    messages.send((self.rank + 1) % self.world, std::size_t{40'000}, stream);
    messages.receive((self.rank + self.world - 1) % self.world, std::size_t{40'000}, stream);
    end_and_wait(second);
    must(reduce(total), "ncclAllReduce");
    must(wait_ready(first), "the group's launch");
  }
  stream.synchronize_or_exit();
  messages.check();
  require(total == self.world * self.world, "the reductions add up");
  destroy(second);
  destroy(first);
}

// The same with messages of the second, which is left to NCCL.
void half_served_later(Rank& self) {
  const ncclComm_t served = connect_without_blocking(self, "served"), other = connect_without_hub(self, "other", false);
  const Stream stream;
  Messages a(served), b(other);
  for (int round = 0; round < 3; ++round) {
    begin();
    for (int peer = 0; peer < self.world; ++peer) {
      b.send(peer, std::size_t{40'000}, stream);
      b.receive(peer, std::size_t{40'000}, stream);
      a.send(peer, std::size_t{40'000}, stream);
      a.receive(peer, std::size_t{40'000}, stream);
    }
    end_and_wait(other);
    must(wait_ready(served), "the group's launch");
  }
  stream.synchronize_or_exit();
  a.check();
  b.check();
  destroy(other);
  destroy(served);
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

// Only under the shim: NCCL does not check, whatever bytes come of it. Without bytes the buffers do not matter.
void all_to_all_in_place(Rank& self) {
  const ncclComm_t comm = self.connect();
  const Stream stream;
  std::vector<char> own(static_cast<std::size_t>(self.world), 'x');
  require(ncclAlltoAll(own.data(), own.data(), 1, ncclInt8, comm, stream) == ncclInvalidUsage &&
              std::string(ncclGetLastError(comm)).find("in place") != std::string::npos,
          "one in place is refused");
  must(ncclAlltoAll(own.data(), own.data(), 0, ncclInt8, comm, stream), "ncclAlltoAll without bytes");
  exchange_skewed(comm);
  destroy(comm);
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
  require(std::all_of(id.internal + kUniqueIdBytes - kShimBytes, id.internal + kUniqueIdBytes, [](char byte) { return byte == 0; }),
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

}  // namespace

Scenarios message_scenarios() {
  return {
      {"alltoallv", alltoallv},
      {"many_messages", many_messages},
      {"single_calls", single_calls},
      {"nested_groups", nested_groups},
      {"two_streams", two_streams},
      {"empty_messages", empty_messages},
      {"two_communicators", two_communicators},
      {"mixed_group", mixed_group},
      {"mixed_group_later", mixed_group_later},
      {"mixed_streams", mixed_streams},
      {"mixed_streams_later", mixed_streams_later},
      {"mixed_communicators", mixed_communicators},
      {"two_communicators_later", two_communicators_later},
      {"half_served_later", half_served_later},
      {"all_to_all", all_to_all},
      {"all_to_all_config", all_to_all_config},
      {"completion_event", completion_event},
      {"all_to_all_in_place", all_to_all_in_place},
      {"graph", graph},
      {"never_waits", never_waits},
      {"simulated", simulated},
      {"one_process", one_process},
      {"half_served", half_served},
      {"untouched", untouched},
      {"random_groups", random_groups},
  };
}
