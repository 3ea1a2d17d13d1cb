// host_cost [SHIM ...]: what the NCCL shim adds to a group of sends and receives on the host. NCCL is the stand-in of the tests and the
// device library queues nothing, so that only the shim is left. Several builds of the shim are measured in turns. Nanoseconds a group,
// medians of rounds with their smallest and largest, and allocations a group.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../src/nccl/nccl_abi.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};

constexpr int kWorld = 8;
constexpr int kGroups = 5000, kRounds = 21;

struct Shim {
  explicit Shim(const std::string& file) : path(file), library(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library == nullptr) throw std::runtime_error(::dlerror());
    load(group_start, "ncclGroupStart");
    load(group_end, "ncclGroupEnd");
    load(send, "ncclSend");
    load(receive, "ncclRecv");
    ncclResult_t (*init_all)(ncclComm_t*, int, const int*) = nullptr;
    load(init_all, "ncclCommInitAll");
    if (init_all(comms, kWorld, nullptr) != ncclSuccess) throw std::runtime_error(file + ": ncclCommInitAll failed");
  }

  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(path + " has no " + name);
  }

  std::string path;
  void* library;
  ncclComm_t comms[kWorld] = {};
  ncclResult_t (*group_start)() = nullptr;
  ncclResult_t (*group_end)() = nullptr;
  ncclResult_t (*send)(const void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) = nullptr;
  ncclResult_t (*receive)(void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) = nullptr;
};

struct Case {
  const char* name;
  int peers;  // sends to and receives from so many; 0: a send outside of a group
  std::size_t bytes;
};
constexpr Case kCases[] = {{"send alone", 0, 1024},     {"group, 1 peer", 1, 1024},        {"group, 3 peers", 3, 1024},
                           {"group, 7 peers", 7, 1024}, {"group, 7 peers, 0 bytes", 7, 0}, {"empty group", -1, 0}};

void call(const Shim& shim, const Case& what, char* buffer) {
  if (what.peers == 0) {
    shim.send(buffer, what.bytes, 0, 1, shim.comms[0], nullptr);
    return;
  }
  shim.group_start();
  for (int peer = 1; peer <= what.peers; ++peer) {
    shim.send(buffer, what.bytes, 0, peer, shim.comms[0], nullptr);
    shim.receive(buffer, what.bytes, 0, peer, shim.comms[0], nullptr);
  }
  if (shim.group_end() != ncclSuccess) throw std::runtime_error(shim.path + ": ncclGroupEnd failed");
}

struct Round {
  double nanoseconds;
  double allocated;
};

Round measure(const Shim& shim, const Case& what, char* buffer) {
  const std::uint64_t before = allocations.load();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kGroups; ++i) call(shim, what, buffer);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return {took.count() / kGroups, static_cast<double>(allocations.load() - before) / kGroups};
}

}  // namespace

// Not inlined, so that the compiler does not see a free() of what another operator new gave.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main(int count, char** words) {
  ::setenv("RAILWEAVE_NCCL_LIBRARY", NCCL, 1);
  ::setenv("RAILWEAVE_CUDA_LIBRARY", DEVICE_LIBRARY, 1);
  try {
    std::vector<Shim> shims;
    for (int i = 1; i < count; ++i) shims.emplace_back(words[i]);
    if (shims.empty()) shims.emplace_back(SHIM);
    char buffer[1024] = {};
    std::printf("%-26s %-60s %9s %9s %9s %12s\n", "group", "shim", "median ns", "least", "most", "allocations");
    for (const Case& what : kCases) {
      std::vector<std::vector<Round>> rounds(shims.size());
      for (int round = 0; round <= kRounds; ++round) {
        for (std::size_t i = 0; i < shims.size(); ++i) {
          const std::size_t which = (i + static_cast<std::size_t>(round)) % shims.size();
          const Round measured = measure(shims[which], what, buffer);
          if (round > 0) rounds[which].push_back(measured);
        }
      }
      for (std::size_t i = 0; i < shims.size(); ++i) {
        std::sort(rounds[i].begin(), rounds[i].end(), [](const Round& a, const Round& b) { return a.nanoseconds < b.nanoseconds; });
        std::printf("%-26s %-60s %9.0f %9.0f %9.0f %12.2f\n", what.name, shims[i].path.c_str(), rounds[i][kRounds / 2].nanoseconds,
                    rounds[i].front().nanoseconds, rounds[i].back().nanoseconds, rounds[i][kRounds / 2].allocated);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "host_cost: %s\n", error.what());
    return 1;
  }
  std::fflush(nullptr);
  ::_Exit(0);  // the communicators of several shims are of no use to anybody any more
}
