// A rank of a test program: NCCL calls as a user writes them, messages whose every byte is known, and files to meet other ranks by.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "nccl_calls.hpp"

// Throws std::runtime_error with NCCL's own text when the call failed.
void must(ncclResult_t result, const char* call);
void require(bool condition, const std::string& what);

class Rank {
 public:
  Rank(int number, int count, std::string directory) : rank(number), world(count), directory_(std::move(directory)) {}

  const int rank, world;
  // A communicator of all ranks; `config` as for ncclCommInitRankConfig.
  ncclComm_t connect(const std::string& name = "job", Config* config = nullptr);
  // The same on all ranks: rank `maker` calls `make`, the others read what it has written.
  ncclUniqueId unique_id(const std::string& name, int maker = 0, const std::function<ncclResult_t(ncclUniqueId*)>& make = ncclGetUniqueId);
  // Says something to the other ranks, and waits for another rank to say it.
  void say(const std::string& word);
  void hear(const std::string& word, int from);

 private:
  std::string directory_;
};

// Polls until the communicator is ready or failed.
ncclResult_t wait_ready(ncclComm_t comm);

// Messages of one rank on one communicator. The k-th message of a pair has bytes that only it has.
class Messages {
 public:
  explicit Messages(ncclComm_t comm);
  void send(int peer, std::size_t bytes, cudaStream_t stream);
  void receive(int peer, std::size_t bytes, cudaStream_t stream);
  // Elements of a type other than bytes.
  void send(int peer, std::size_t count, int type, cudaStream_t stream);
  void receive(int peer, std::size_t count, int type, cudaStream_t stream);
  // Throws naming the first byte that is wrong. Streams have to be synchronized.
  void check() const;
  // For buffers that are used again: expected bytes are those of the k-th message still; clears what was received.
  void blank_received();

  int rank = 0, world = 0;

 private:
  struct Message {
    int source, destination, number;
    std::vector<char> bytes;
  };
  ncclComm_t comm_;
  std::list<Message> sent_, received_;
  std::map<int, int> sends_, receives_;
};

char pattern(int source, int destination, int number, std::size_t at);

using Scenario = std::function<void(Rank&)>;
const std::map<std::string, Scenario>& scenarios();
