// What served communicators have done, in the text format of Prometheus: a file for each process, which `railweave top` and node_exporter's
// textfile collector read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "railweave/cuda.h"

namespace railweave::nccl {

struct Sample {
  std::string communicator;
  std::uint32_t rank = 0, world = 0;
  int device = 0;
  railweave_cuda_counters counters{};
};

std::string metrics_text(std::span<const Sample> samples, const std::string& host, int pid);

// Replaces DIRECTORY/railweave-HOST-PID.prom at once, so that a reader sees a whole file; removed when the process ends in order. The
// directory is made where only it is missing. False, with errno, when the file cannot be written.
bool write_metrics(const std::string& directory, std::span<const Sample> samples);

}  // namespace railweave::nccl
