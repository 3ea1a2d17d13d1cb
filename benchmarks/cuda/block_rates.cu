// What a few blocks move between the first two GPUs: written by the source's, read by the destination's, or one half each, one way and both
// ways at once. A GPU that writes and reads, both ways half and half, has a kernel of so many blocks for each. What it found is in
// docs/gpu-probe.md.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "block_rates: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

constexpr std::uint64_t kBytes = 128u << 20, kPiece = 64u << 10;
constexpr int kRounds = 3, kThreads = 512;

__global__ void __launch_bounds__(kThreads) copy(uint4* to, const uint4* from, std::uint64_t pieces) {
  constexpr std::uint32_t kVectors = kPiece / 16, kInFlight = 8;
  static_assert(kVectors % (kInFlight * kThreads) == 0, "a piece is whole turns of a block");
  for (std::uint64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const uint4* const in = from + piece * kVectors + threadIdx.x;
    uint4* const out = to + piece * kVectors + threadIdx.x;
#pragma unroll 1
    for (std::uint32_t i = 0; i < kVectors; i += kInFlight * kThreads) {
      uint4 values[kInFlight];
#pragma unroll
      for (std::uint32_t k = 0; k < kInFlight; ++k) values[k] = __ldcg(in + i + k * kThreads);
#pragma unroll
      for (std::uint32_t k = 0; k < kInFlight; ++k) out[i + k * kThreads] = values[k];
    }
  }
}

// Whose blocks move which bytes, from which GPU to the other one.
struct Job {
  int gpu, source;
  std::uint64_t first, bytes;
};

class Gpus {
 public:
  Gpus() {
    for (int g = 0; g < 2; ++g) {
      check(cudaSetDevice(g), "a second GPU");
      check(cudaDeviceEnablePeerAccess(1 - g, 0), "peer access");
      for (auto** memory : {&in_[g], &out_[g]}) check(cudaMalloc(memory, kBytes), "memory");
      check(cudaMemset(in_[g], 17 + g, kBytes), "filling it");
      for (cudaStream_t& stream : streams_[g]) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "streams");
      for (cudaEvent_t* event : {&begin_[g], &end_[g], &side_[g]}) check(cudaEventCreate(event), "events");
    }
  }

  // GB/s to the second GPU.
  double rate(const std::vector<Job>& jobs, int blocks) {
    time(jobs, blocks);
    const double ms = time(jobs, blocks);
    std::uint64_t bytes = 0;
    for (const Job& job : jobs) bytes += job.source == 0 ? job.bytes : 0;
    return static_cast<double>(bytes) / 1e6 / ms;
  }

  bool are_right() {
    std::vector<unsigned char> came(kBytes);
    for (int g = 0; g < 2; ++g) {
      check(cudaMemcpy(came.data(), out_[g], kBytes, cudaMemcpyDeviceToHost), "what came");
      const auto expected = static_cast<unsigned char>(17 + 1 - g);
      if (std::any_of(came.begin(), came.end(), [=](unsigned char byte) { return byte != expected; })) return false;
    }
    return true;
  }

 private:
  // A GPU that reads and writes does both at once, in two streams. ms a round, of the GPU that takes longer.
  double time(const std::vector<Job>& jobs, int blocks) {
    for (int g = 0; g < 2; ++g) {
      check(cudaSetDevice(g), "a GPU");
      check(cudaDeviceSynchronize(), "waiting");
    }
    for (int g = 0; g < 2; ++g) {
      cudaSetDevice(g);
      check(cudaEventRecord(begin_[g], streams_[g][0]), "events");
      check(cudaStreamWaitEvent(streams_[g][1], begin_[g]), "events");
    }
    for (int round = 0; round < kRounds; ++round) {
      for (const Job& job : jobs) {
        cudaSetDevice(job.gpu);
        const std::uint64_t first = job.first / 16;
        copy<<<blocks, kThreads, 0, streams_[job.gpu][job.gpu == job.source ? 0 : 1]>>>(out_[1 - job.source] + first,
                                                                                        in_[job.source] + first, job.bytes / kPiece);
        check(cudaGetLastError(), "launching");
      }
    }
    float longest = 0;
    for (int g = 0; g < 2; ++g) {
      cudaSetDevice(g);
      check(cudaEventRecord(side_[g], streams_[g][1]), "events");
      check(cudaStreamWaitEvent(streams_[g][0], side_[g]), "events");
      check(cudaEventRecord(end_[g], streams_[g][0]), "events");
    }
    for (int g = 0; g < 2; ++g) {
      float ms = 0;
      check(cudaEventSynchronize(end_[g]), "copies");
      check(cudaEventElapsedTime(&ms, begin_[g], end_[g]), "times");
      longest = std::max(longest, ms);
    }
    return longest / kRounds;
  }

  uint4 *in_[2], *out_[2];
  cudaStream_t streams_[2][2];
  cudaEvent_t begin_[2], end_[2], side_[2];
};

}  // namespace

int main() {
  Gpus gpus;
  const int all_blocks[] = {1, 2, 3, 4, 5, 6, 8, 11, 16};
  std::printf("%-44s", "GB/s to the second GPU, blocks of a kernel");
  for (const int blocks : all_blocks) std::printf(" %5d", blocks);
  std::printf("\n");
  for (const bool both : {false, true}) {
    for (const char* how : {"written", "read", "half written, half read"}) {
      std::vector<Job> jobs;
      for (int source = 0; source < (both ? 2 : 1); ++source) {
        const std::uint64_t written = how[0] == 'w' ? kBytes : how[0] == 'r' ? 0 : kBytes / 2;
        if (written != 0) jobs.push_back({source, source, 0, written});
        if (written != kBytes) jobs.push_back({1 - source, source, written, kBytes - written});
      }
      std::printf("%-9s %-34s", both ? "both ways" : "one way", how);
      for (const int blocks : all_blocks) std::printf(" %5.0f", gpus.rate(jobs, blocks));
      std::printf("\n");
    }
  }
  if (gpus.are_right()) return 0;
  std::fprintf(stderr, "block_rates: wrong bytes\n");
  return 1;
}
