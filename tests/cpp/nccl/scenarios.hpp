// What scenarios share. Each runs on plain NCCL too unless it says otherwise: it is the meaning of the calls, not of the shim.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "rank.hpp"
#include "stand_in_cuda.hpp"

// A stream of the current device that ends with the scope.
class Stream {
 public:
  Stream() : stream_(stand_in::make_stream()) {}
  ~Stream() { stand_in::destroy_stream(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { stand_in::synchronize(stream_, 0); }
  // The same; ends the process where what is queued waits for what never comes.
  void synchronize_or_exit() const;

 private:
  cudaStream_t stream_;
};

void begin();
void end();
void destroy(ncclComm_t comm);

ncclComm_t connect_without_blocking(Rank& self, const std::string& name = "job");

// A hot pair and a little for everybody; ranks 0 and 1 exchange what others do not.
std::size_t skewed(int source, int destination);
// One group of such messages.
void post_skewed(Messages& messages, cudaStream_t stream);
// Three of them on a stream of their own, every byte checked.
void exchange_skewed(ncclComm_t comm);

using Scenarios = std::map<std::string, Scenario>;
Scenarios message_scenarios();  // what groups carry
Scenarios life_scenarios();     // how communicators come, change and go
Scenarios fault_scenarios();    // what goes wrong, and what is told of it
