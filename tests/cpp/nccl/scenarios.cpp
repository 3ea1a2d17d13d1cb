#include "scenarios.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>

void Stream::synchronize_or_exit() const {
  auto reached = std::async(std::launch::async, [this] { synchronize(); });
  if (reached.wait_for(std::chrono::seconds(60)) == std::future_status::ready) return;
  std::fputs("a stream does not go on\n", stderr);
  std::_Exit(3);
}

void begin() { must(ncclGroupStart(), "ncclGroupStart"); }

void end() { must(ncclGroupEnd(), "ncclGroupEnd"); }

void destroy(ncclComm_t comm) { must(ncclCommDestroy(comm), "ncclCommDestroy"); }

ncclComm_t connect_without_blocking(Rank& self, const std::string& name) {
  Config config;
  config.blocking = 0;
  const ncclComm_t comm = self.connect(name, &config);
  must(wait_ready(comm), "the communicator's set-up");
  return comm;
}

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

const Scenarios& scenarios() {
  static const Scenarios all = [] {
    Scenarios found = message_scenarios();
    found.merge(life_scenarios());
    found.merge(fault_scenarios());
    return found;
  }();
  return all;
}
