// Which accesses over NVLink wait for a link that sleeps, and for how long links stay awake: between the first two GPUs, one line of 128
// bytes after another, each waited for. What it found is in docs/cuda-measured.md, "Links that sleep".
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t kLines = 128, kWordsOfLine = 16, kSlowNs = 30'000;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "link_sleep: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

__device__ std::uint64_t now() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}
__device__ void access(volatile std::uint64_t* word, bool write) {
  if (write) {
    *word = 1;
  } else {
    static_cast<void>(*word);
  }
  __threadfence_system();
}

__global__ void one_by_one(volatile std::uint64_t* lines, bool write, std::uint64_t* took) {
  for (std::uint32_t i = 0; i < kLines; ++i) {
    const std::uint64_t begin = now();
    access(lines + kWordsOfLine * i, write);
    took[i] = now() - begin;
  }
}
__global__ void together(volatile std::uint64_t* lines, bool write, std::uint64_t* took) {
  const std::uint64_t begin = now();
  access(lines + kWordsOfLine * threadIdx.x, write);
  __syncthreads();
  if (threadIdx.x == 0) *took = now() - begin;
}

class Links {
 public:
  Links() {
    check(cudaSetDevice(1), "the second GPU");
    check(cudaMalloc(&lines_, 8 * kWordsOfLine * kLines), "memory of the second GPU");
    check(cudaMemset(lines_, 0, 8 * kWordsOfLine * kLines), "clearing it");
    check(cudaDeviceSynchronize(), "clearing it");
    check(cudaSetDevice(0), "the first GPU");
    check(cudaDeviceEnablePeerAccess(1, 0), "peer access");
    check(cudaMalloc(&took_, 8 * kLines), "memory for times");
    each("", false);  // loads the kernels
  }

  void each(const std::string& what, bool write) {
    one_by_one<<<1, 1>>>(lines_, write, took_);
    std::vector<std::uint64_t> took(kLines);
    check(cudaMemcpy(took.data(), took_, 8 * kLines, cudaMemcpyDeviceToHost), "accesses");
    if (what.empty()) return;
    std::uint32_t slow = 0;
    std::string places;
    for (std::uint32_t i = 0; i < kLines; ++i) {
      if (took[i] <= kSlowNs) continue;
      ++slow;
      places += " " + std::to_string(i) + ":" + std::to_string(took[i] / 1000);
    }
    std::printf("%-36s %2u of %u lines took longer than %u us (line:us)%s\n", what.c_str(), slow, kLines, kSlowNs / 1000, places.c_str());
  }
  void all(const std::string& what, bool write) {
    together<<<1, kLines>>>(lines_, write, took_);
    std::uint64_t took = 0;
    check(cudaMemcpy(&took, took_, 8, cudaMemcpyDeviceToHost), "accesses at once");
    std::printf("%-36s %.1f us\n", what.c_str(), static_cast<double>(took) / 1000);
  }

 private:
  std::uint64_t *lines_ = nullptr, *took_ = nullptr;
};

}  // namespace

int main() {
  Links links;
  constexpr useconds_t kAsleepUs = 300'000;
  for (const bool write : {true, false}) {
    const std::string kind = write ? "writes" : "reads";
    ::usleep(kAsleepUs);
    links.each("asleep, " + kind, write);
    links.each("behind them, writes", true);
    links.each("and reads", false);
    ::usleep(kAsleepUs);
    links.all("asleep, all " + kind + " at once", write);
    links.each("behind them, writes", true);
    links.each("and reads", false);
  }
  for (const useconds_t ms : {1, 5, 10, 20, 30, 40, 45, 55, 60, 100}) {
    ::usleep(ms * 1000);
    links.each("after " + std::to_string(ms) + " ms, writes", true);
  }
  return 0;
}
