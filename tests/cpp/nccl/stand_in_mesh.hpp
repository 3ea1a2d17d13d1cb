// Connections between the ranks of a stand-in communicator: one socket a pair, over which messages go in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace stand_in {

struct Transfer {
  bool send = false;
  int peer = 0;
  char* data = nullptr;
  std::uint64_t bytes = 0;
};

enum class Outcome { done, aborted, lost, mismatch };

class Mesh {
 public:
  // Ranks meet in files whose names begin with `name`. Throws std::system_error.
  Mesh(const std::string& name, int rank, int world, const std::atomic<bool>& aborted);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(sockets_.size()); }
  // All at once; the k-th send to a peer meets its k-th receive.
  Outcome run(const std::vector<Transfer>& transfers);
  // `mine` of every rank, in order.
  Outcome all_gather(const void* mine, std::uint64_t bytes, void* all);

 private:
  int rank_;
  std::vector<int> sockets_;  // by rank; the own one is -1
  const std::atomic<bool>& aborted_;
};

}  // namespace stand_in
