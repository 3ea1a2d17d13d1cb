// What served communicators have done, in the text format of Prometheus: a file for each process, which `railweave top` and node_exporter's
// textfile collector read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "railweave/cuda.h"

namespace railweave::nccl {

// A NIC of the rank's node.
struct NicSample {
  std::string name;
  std::uint64_t bytes_sent = 0;        // by this rank
  std::uint64_t bytes_per_second = 0;  // 0: unknown
  bool own = false;                    // this rank serves it, and tells of its links:
  std::uint32_t links = 0, links_down = 0;
  std::vector<std::string> down;  // what is at the other end of some of those
};

// Bytes of messages with a rank.
struct PeerSample {
  std::uint32_t peer = 0;
  std::uint64_t sent = 0, received = 0;
};

struct Sample {
  std::string communicator;
  std::uint32_t rank = 0, world = 0;
  int device = 0;
  railweave_cuda_counters counters{};
  std::vector<NicSample> nics = {};
  std::vector<PeerSample> peers = {};  // with which anything has been moved, by number
};

// What became of a rank of a communicator.
struct Fate {
  std::string communicator;  // empty: it has no name
  std::uint32_t rank = 0, world = 0;
  const char* state = "";   // "served", "nccl": left to it, or "failed"
  const char* reason = "";  // why it is not served; one of few words
  std::string text;         // the same in full
};

struct Metrics {
  std::vector<Sample> samples;  // of ranks that are served
  std::vector<Fate> fates;      // of all that are settled
};

// Containers that have the host's name, as with its network, each count their processes from 1.
struct Process {
  std::string host;
  std::uint64_t pid_namespace = 0;  // its inode
  int pid = 0;
};

// What is no label, as there is no end of its values, is in comments, which Prometheus passes over: why communicators are not served.
std::string metrics_text(const Metrics& metrics, const Process& process);

// Replaces DIRECTORY/railweave-HOST-NAMESPACE-PID.prom at once, so that a reader sees a whole file; removed when the process ends in order.
// The directory is made where only it is missing. False, with errno, when the file cannot be written.
bool write_metrics(const std::string& directory, const Metrics& metrics);

}  // namespace railweave::nccl
