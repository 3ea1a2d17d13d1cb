// Railweave's GPU exchange beside NCCL's send/recv groups: one process a GPU, the same buffers, in turns, device time over queued
// operations, every byte checked.
// Options: gpu_exchange_options.cpp, or --help.
//
// Each line: pattern, bytes of the busiest pair, then for each system the median time of an operation over the rounds (the slowest rank's,
// in us), the least and the largest, and the busiest rank's GB/s. With --waited an operation's time is from when the last rank calls until
// the last one has seen its end; behind it stand the median and the 99th percentile of all rounds' operations, and what the call took on
// the slowest rank.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "device_buffer.hpp"
#include "gpu_exchange_options.hpp"
#include "railweave/cuda.h"
#include "traffic_patterns.hpp"

namespace {

constexpr std::uint32_t kMostRanks = 8, kCalls = 100;

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "gpu_exchange: %s\n", text.c_str());
  std::fflush(stdout);  // what it found before
  std::_Exit(1);
}
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) die(std::string(what) + ": " + cudaGetErrorString(error));
}

// The part of nccl.h that is needed here; any NCCL 2 has it.
struct UniqueId {
  char bytes[128];
};
struct Nccl {
  void* library = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*comm_init_rank)(void**, int, UniqueId, int) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*recv)(void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*get_version)(int*) = nullptr;

  explicit Nccl(const std::string& path) {
    if (path.empty()) return;
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) die(::dlerror());
    find("ncclGetUniqueId", get_unique_id);
    find("ncclCommInitRank", comm_init_rank);
    find("ncclGroupStart", group_start);
    find("ncclGroupEnd", group_end);
    find("ncclSend", send);
    find("ncclRecv", recv);
    find("ncclGetVersion", get_version);
  }
  template <typename F>
  void find(const char* name, F& function) {
    function = reinterpret_cast<F>(::dlsym(library, name));
    if (function == nullptr) die(std::string("no ") + name);
  }
};

// What the processes share.
struct Shared {
  pthread_barrier_t barrier;
  UniqueId id;
  float seconds[kMostRanks];
  std::uint64_t wrong[kMostRanks];
  std::atomic<std::uint32_t> arrived;
  double called[kMostRanks][kCalls], returned[kMostRanks][kCalls], ended[kMostRanks][kCalls];
};

std::uint8_t expected(std::uint32_t source, std::uint32_t destination, std::uint64_t at) {
  return static_cast<std::uint8_t>(at * 31 + (at >> 8) * 7 + (at >> 16) + source * 101 + destination * 53);
}

class Rank {
 public:
  Rank(std::uint32_t rank, std::uint32_t world, const Options& options, Shared& shared, const std::string& rendezvous)
      : rank_(rank), world_(world), options_(options), shared_(shared), rendezvous_(rendezvous), nccl_(options.nccl) {
    int gpus = 0;
    check(cudaGetDeviceCount(&gpus), "GPUs");
    device_ = static_cast<int>(rank) % gpus;
    check(cudaSetDevice(device_), "cudaSetDevice");
    if (world > static_cast<std::uint32_t>(gpus) && nccl_.library != nullptr) ::setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&start_), "event");
    check(cudaEventCreate(&stop_), "event");
    void* library = ::dlopen(options.railweave.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) die(::dlerror());
    const auto entry = reinterpret_cast<railweave_cuda_entry_function>(::dlsym(library, "railweave_cuda_entry"));
    api_ = entry == nullptr ? nullptr : entry(RAILWEAVE_CUDA_VERSION);
    if (api_ == nullptr) die("no railweave_cuda_entry for this version");
    const std::size_t before = holdings().device_bytes;
    create();
    if (const std::size_t now = holdings().device_bytes; rank == 0)
      std::printf("a communicator of %u ranks takes %.1f MiB of the device\n", world, static_cast<double>(now - before) / (1 << 20));
    if (nccl_.library == nullptr) return;
    if (rank == 0 && nccl_.get_unique_id(&shared.id) != 0) die("ncclGetUniqueId");
    barrier();
    if (nccl_.comm_init_rank(&nccl_communicator_, static_cast<int>(world), shared.id, static_cast<int>(rank)) != 0) die("ncclCommInitRank");
  }

  void run() {
    int version = 0;
    if (nccl_.library != nullptr) nccl_.get_version(&version);
    if (rank_ == 0)
      std::printf("%u ranks, NCCL %d, %u rounds, %s\n", world_, version, options_.rounds,
                  options_.waited  ? "calls waited for"
                  : options_.graph ? "graph replays"
                                   : "queued calls");
    if (options_.checks != 0) check_random();
    if (options_.lives != 0) check_lives();
    if (options_.fresh != 0) time_fresh_buffers();
    for (const std::uint64_t size : options_.sizes) {
      for (const Pattern& pattern : traffic_patterns(world_, size)) {
        const auto wanted = std::find(options_.patterns.begin(), options_.patterns.end(), pattern.option);
        if (options_.patterns.empty() || wanted != options_.patterns.end()) measure(pattern, size);
      }
    }
    check(cudaStreamSynchronize(stream_), "end");
    if (options_.death) {
      check_death();
      return;
    }
    api_->destroy(communicator_);
    barrier();
  }

 private:
  enum class System { nccl, railweave };
  struct Flow {
    bool send;
    std::uint32_t peer;
    std::byte* data;
    std::uint64_t bytes;
  };

  void create() {
    const std::string nodes = std::to_string(options_.nodes), node = "node" + std::to_string(rank_ * options_.nodes / world_);
    std::vector<railweave_setting> settings{{"gpu_timeout_ms", "20000"}};
    if (options_.nodes > 1) settings.insert(settings.end(), {{"gpu_nodes", nodes.c_str()}, {"node_id", node.c_str()}, {"nics", "lo"}});
    const auto log = [](void*, const char* text) { std::fprintf(stderr, "gpu_exchange: %s\n", text); };
    const railweave_cuda_config config{sizeof config,   rank_,           world_, device_, 0,       rendezvous_.c_str(),
                                       settings.data(), settings.size(), log,    nullptr, nullptr, 0};
    require(api_->create(&config, &communicator_));
  }
  void require(railweave_status status) {
    if (status != RAILWEAVE_OK) die("rank " + std::to_string(rank_) + ": " + api_->last_error());
  }
  void barrier() { ::pthread_barrier_wait(&shared_.barrier); }

  void reserve(std::uint64_t bytes) {
    if (bytes <= capacity_) return;
    check(cudaStreamSynchronize(stream_), "synchronize");
    for (auto [buffer, data] : {std::pair(&send_buffer_, &send_), std::pair(&receive_buffer_, &receive_)}) {
      *buffer = DeviceBuffer();
      *buffer = DeviceBuffer(bytes + options_.offset, options_.of_pool     ? DeviceMemory::of_pool
                                                      : options_.in_pieces ? DeviceMemory::in_pieces
                                                                           : DeviceMemory::plain);
      *data = buffer->data() + (rank_ % 2 == 0 ? options_.offset : 0);
    }
    capacity_ = bytes;
  }

  void post(System system, const std::vector<Flow>& flows) {
    if (system == System::nccl) {
      nccl_.group_start();
      for (const Flow& flow : flows) {
        const int error = flow.send ? nccl_.send(flow.data, flow.bytes, 0, static_cast<int>(flow.peer), nccl_communicator_, stream_)
                                    : nccl_.recv(flow.data, flow.bytes, 0, static_cast<int>(flow.peer), nccl_communicator_, stream_);
        if (error != 0) die("NCCL error " + std::to_string(error));
      }
      if (nccl_.group_end() != 0) die("ncclGroupEnd");
      return;
    }
    transfers_.clear();
    for (const Flow& flow : flows) {
      if (flow.bytes == 0) continue;
      transfers_.push_back({sizeof(railweave_cuda_transfer), communicator_,
                            static_cast<std::uint32_t>(flow.send ? RAILWEAVE_CUDA_SEND : RAILWEAVE_CUDA_RECV), flow.peer, flow.data,
                            flow.bytes});
    }
    railweave_cuda_stream stream = stream_;
    require(api_->enqueue(transfers_.data(), transfers_.size(), &stream, 1));
  }

  std::vector<Flow> flows_of(const Matrix& m) {
    std::vector<Flow> flows;
    std::uint64_t out = 0, in = 0;
    for (std::uint32_t peer = 0; peer < world_; ++peer) {
      add_parts(flows, true, peer, send_ + out, m[rank_][peer]);
      add_parts(flows, false, peer, receive_ + in, m[peer][rank_]);
      out += m[rank_][peer];
      in += m[peer][rank_];
    }
    return flows;
  }
  // The first of n has 1 part of 1 + ... + n, the last one n.
  void add_parts(std::vector<Flow>& flows, bool send, std::uint32_t peer, std::byte* data, std::uint64_t bytes) const {
    const std::uint64_t n = options_.parts, all = n * (n + 1) / 2;
    for (std::uint64_t k = 1, at = 0; k <= n; ++k) {
      const std::uint64_t end = k == n ? bytes : bytes * (k * (k + 1) / 2) / all / 16 * 16;
      flows.push_back({send, peer, data + at, end - at});
      at = end;
    }
  }

  float timed(System system, const std::vector<Flow>& flows, std::uint32_t operations) {
    cudaGraphExec_t graph = nullptr;
    std::uint32_t launches = operations;
    if (options_.graph) {
      cudaGraph_t captured = nullptr;
      constexpr std::uint32_t kNodes = 10;
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
      for (std::uint32_t i = 0; i < kNodes; ++i) post(system, flows);
      check(cudaStreamEndCapture(stream_, &captured), "end capture");
      check(cudaGraphInstantiate(&graph, captured, 0), "instantiate");
      check(cudaGraphDestroy(captured), "destroy graph");
      launches = std::max(1u, operations / kNodes);
      operations = launches * kNodes;
    }
    const auto queue = [&](std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        if (graph != nullptr) {
          check(cudaGraphLaunch(graph, stream_), "graph launch");
        } else {
          post(system, flows);
        }
      }
    };
    queue(graph != nullptr ? 1 : 3);
    check(cudaStreamSynchronize(stream_), "warm-up");
    barrier();
    check(cudaEventRecord(start_, stream_), "record");
    queue(launches);
    check(cudaEventRecord(stop_, stream_), "record");
    check(cudaEventSynchronize(stop_), "operations");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_, stop_), "elapsed");
    if (graph != nullptr) check(cudaGraphExecDestroy(graph), "destroy graph");
    shared_.seconds[rank_] = ms / 1000 / static_cast<float>(operations);
    barrier();
    const float slowest = *std::max_element(shared_.seconds, shared_.seconds + world_);
    barrier();
    return slowest;
  }

  // Seconds of each operation, and of the calls that queue them.
  struct Waited {
    std::vector<double> whole, calls;
  };
  static float at(std::vector<double>& times, double part) {
    std::sort(times.begin(), times.end());
    return static_cast<float>(times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))]);
  }
  float timed_waited(System system, const std::vector<Flow>& flows, std::uint32_t operations, Waited& waited) {
    const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
    for (std::uint32_t i = 0; i < operations; ++i) {
      post(system == System::nccl ? System::railweave : System::nccl, flows);
      check(cudaStreamSynchronize(stream_), "an operation between");
      // Not barrier(), from which ranks wake up some 50 us apart.
      shared_.arrived.fetch_add(1);
      ++meetings_;
      while (shared_.arrived.load() < meetings_ * world_) {
      }
      shared_.called[rank_][i] = now();
      post(system, flows);
      shared_.returned[rank_][i] = now();
      check(cudaStreamSynchronize(stream_), "an operation that is waited for");
      shared_.ended[rank_][i] = now();
    }
    barrier();
    std::vector<double> whole;
    for (std::uint32_t i = 0; i < operations; ++i) {
      double called = 0, ended = 0, longest = 0;
      for (std::uint32_t rank = 0; rank < world_; ++rank) {
        called = std::max(called, shared_.called[rank][i]);
        ended = std::max(ended, shared_.ended[rank][i]);
        longest = std::max(longest, shared_.returned[rank][i] - shared_.called[rank][i]);
      }
      whole.push_back(ended - called);
      waited.calls.push_back(longest);
    }
    barrier();
    waited.whole.insert(waited.whole.end(), whole.begin(), whole.end());
    return at(whole, 0.5);
  }

  void fill(const Matrix& m) {
    std::uint64_t out = 0;
    std::vector<std::uint8_t> bytes;
    for (std::uint32_t peer = 0; peer < world_; ++peer) {
      bytes.resize(m[rank_][peer]);
      for (std::uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = expected(rank_, peer, i);
      check(cudaMemcpy(send_ + out, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "fill");
      out += bytes.size();
    }
  }
  std::uint64_t wrong_bytes(const Matrix& m) {
    std::uint64_t in = 0, wrong = 0;
    std::vector<std::uint8_t> bytes;
    for (std::uint32_t peer = 0; peer < world_; ++peer) {
      bytes.resize(m[peer][rank_]);
      check(cudaMemcpy(bytes.data(), receive_ + in, bytes.size(), cudaMemcpyDeviceToHost), "read back");
      for (std::uint64_t i = 0; i < bytes.size(); ++i) wrong += bytes[i] != expected(peer, rank_, i);
      in += bytes.size();
    }
    return wrong;
  }

  void measure(const Pattern& pattern, std::uint64_t size) {
    std::uint64_t room = 1;
    for (std::uint32_t i = 0; i < world_; ++i) {
      std::uint64_t out = 0, in = 0;
      for (std::uint32_t j = 0; j < world_; ++j) {
        out += pattern.bytes[i][j];
        in += pattern.bytes[j][i];
      }
      room = std::max({room, out, in});
    }
    reserve(room);
    fill(pattern.bytes);
    const std::vector<Flow> flows = flows_of(pattern.bytes);
    const std::uint32_t operations = size <= 4u << 20 ? kCalls : 50;
    std::vector<float> times[2];
    Waited waited[2];
    std::uint64_t wrong[2] = {};
    // NCCL connects, and Railweave maps buffers, at their first use; mappings are made beside the operations.
    for (const System system : {System::nccl, System::railweave}) {
      check(cudaMemset(receive_, 0xa5, room), "poison");
      barrier();
      post(system, flows);
      check(cudaStreamSynchronize(stream_), "first operation");
      wrong[static_cast<int>(system)] = wrong_bytes(pattern.bytes);
    }
    ::usleep(5000);
    for (std::uint32_t round = 0; round < options_.rounds; ++round) {
      for (const System system : {System::nccl, System::railweave}) {
        const int s = static_cast<int>(system);
        times[s].push_back(options_.waited ? timed_waited(system, flows, operations, waited[s]) : timed(system, flows, operations));
      }
    }
    check(cudaMemset(receive_, 0xa5, room), "poison");
    barrier();
    post(System::railweave, flows);
    check(cudaStreamSynchronize(stream_), "last operation");
    wrong[1] += wrong_bytes(pattern.bytes);
    shared_.wrong[rank_] = wrong[0] + wrong[1];
    require(api_->async_error(communicator_));
    barrier();
    if (rank_ != 0) return;
    std::uint64_t all_wrong = 0;
    for (std::uint32_t i = 0; i < world_; ++i) all_wrong += shared_.wrong[i];
    std::printf("%-16s %10lu", pattern.name, size);
    float medians[2];
    for (int s = 0; s < 2; ++s) {
      std::sort(times[s].begin(), times[s].end());
      medians[s] = times[s][times[s].size() / 2];
      std::printf("  %s %9.2f us [%9.2f %9.2f] %6.1f GB/s", s == 0 ? "nccl" : "railweave", 1e6 * static_cast<double>(medians[s]),
                  1e6 * static_cast<double>(times[s].front()), 1e6 * static_cast<double>(times[s].back()),
                  static_cast<double>(busiest(pattern.bytes)) / static_cast<double>(medians[s]) / 1e9);
      if (!options_.waited) continue;
      std::printf(" (p50 %.2f, p99 %.2f, call %.2f us)", 1e6 * static_cast<double>(at(waited[s].whole, 0.5)),
                  1e6 * static_cast<double>(at(waited[s].whole, 0.99)), 1e6 * static_cast<double>(at(waited[s].calls, 0.5)));
    }
    if (options_.waited)
      std::printf("  p50 %.2fx p99 %.2fx", static_cast<double>(at(waited[0].whole, 0.5) / at(waited[1].whole, 0.5)),
                  static_cast<double>(at(waited[0].whole, 0.99) / at(waited[1].whole, 0.99)));
    std::printf("  ratio %.2f%s\n", static_cast<double>(medians[0] / medians[1]), all_wrong == 0 ? "" : "  WRONG BYTES");
    std::fflush(stdout);
    if (all_wrong != 0) die(std::to_string(all_wrong) + " wrong bytes");
  }

  // The last rank dies while the others wait for it: their operations end and say which rank it was.
  void check_death() {
    reserve(1u << 20);
    barrier();
    const std::uint32_t victim = world_ - 1;
    if (rank_ == victim) ::raise(SIGKILL);
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    post(System::railweave, {{false, victim, receive_, 1u << 20}, {true, victim, send_, 1u << 20}});
    check(cudaStreamSynchronize(stream_), "an operation with a dead rank");
    const auto ended = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    const railweave_status status = api_->async_error(communicator_);
    std::printf("rank %u: ended after %.1f ms with status %d: %s\n", rank_, ended, static_cast<int>(status), api_->last_error());
    if (status != RAILWEAVE_ERROR_RANK_DIED) die("expected RAILWEAVE_ERROR_RANK_DIED");
    api_->destroy(communicator_);
  }

  // The copy to pageable memory behind an operation, as programs make it, waits within a call that keeps the context's lock. Nothing may
  // mind that but UCX over TCP, which wants the lock on the engine's thread before it moves bytes of slots on a GPU (docs/cuda.md,
  // GPUDirect).
  static bool slots_on_gpu_over_tcp() {
    const char* setting = std::getenv("RAILWEAVE_GPU_DIRECT");
    return setting != nullptr && std::string_view(setting) == "3";
  }
  void wait_for_stream() {
    cudaError_t state = cudaErrorNotReady;
    for (; state == cudaErrorNotReady; state = cudaStreamQuery(stream_)) std::this_thread::yield();
    check(state, "random operation");
  }

  // Random groups: several messages a pair, any size and alignment, the own rank too.
  void check_random() {
    const std::uint64_t room = (options_.large ? 256u : 96u) << 20;
    reserve(room);
    std::mt19937_64 random(7);
    std::vector<std::uint8_t> host(room), result(room);
    std::mt19937_64 noise(rank_ + 1);
    for (std::uint64_t i = 0; i < room; i += 8) {
      const std::uint64_t word = noise();
      std::memcpy(&host[i], &word, 8);
    }
    // Every rank knows every rank's bytes, so that what came can be compared.
    std::vector<std::vector<std::uint8_t>> all(world_, std::vector<std::uint8_t>(room));
    for (std::uint32_t r = 0; r < world_; ++r) {
      std::mt19937_64 other(r + 1);
      for (std::uint64_t i = 0; i < room; i += 8) {
        const std::uint64_t word = other();
        std::memcpy(&all[r][i], &word, 8);
      }
    }
    check(cudaMemcpy(send_, host.data(), room, cudaMemcpyHostToDevice), "fill");
    barrier();  // in one process an allocation may wait for every device
    Holdings before{};
    std::uint64_t wrong = 0, messages = 0;
    for (std::uint32_t step = 0; step < options_.checks; ++step) {
      // Connections and memory that are made when they are first needed are there after some operations.
      if (step == options_.checks / 4) before = holdings();
      struct Came {
        std::uint32_t source;
        std::uint64_t from, to, bytes;
      };
      std::vector<Flow> flows;
      std::vector<Came> came;
      std::vector<std::uint64_t> out(world_), in(world_);
      // Now and then more messages than kernel parameters hold; over several nodes there may be 4,096 of a rank.
      const bool many = !options_.large && step % 50 == 49;
      const std::uint32_t count = many ? 5000 : 1 + static_cast<std::uint32_t>(random() % (options_.large ? 4 : 24));
      for (std::uint32_t i = 0; i < count; ++i) {
        const auto source = static_cast<std::uint32_t>(random() % world_), destination = static_cast<std::uint32_t>(random() % world_);
        constexpr std::uint64_t kLimits[] = {17, 9000, 33'000, 70'000, 300'000, 2'500'000};
        // Beside packets now and then one that waits for a grant, in operations of many messages, too.
        const bool granted = step % 100 == 99 ? i % 1000 == 500 : step % 5 == 4 && i == 0;
        const std::uint64_t limit = options_.large ? 60'000'000 : granted ? 9'000'000 : kLimits[random() % (many ? 3 : std::size(kLimits))];
        const std::uint64_t bytes = 1 + random() % limit;
        const std::uint64_t from = out[source] + random() % 33, to = in[destination] + random() % 33;
        out[source] = from + bytes;
        in[destination] = to + bytes;
        if (source == rank_) flows.push_back({true, destination, send_ + from, bytes});
        if (destination == rank_) {
          flows.push_back({false, source, receive_ + to, bytes});
          came.push_back({source, from, to, bytes});
        }
      }
      if (flows.empty()) continue;
      check(cudaMemsetAsync(receive_, 0xa5, in[rank_], stream_), "poison");
      post(System::railweave, flows);
      if (slots_on_gpu_over_tcp()) wait_for_stream();
      check(cudaMemcpyAsync(result.data(), receive_, in[rank_], cudaMemcpyDeviceToHost, stream_), "read back");
      check(cudaStreamSynchronize(stream_), "random operation");
      require(api_->async_error(communicator_));
      messages += came.size();
      for (const Came& c : came) wrong += std::memcmp(&result[c.to], &all[c.source][c.from], c.bytes) != 0;
    }
    shared_.wrong[rank_] = wrong;
    barrier();
    std::printf("rank %u: %u random operations, %lu messages received, %lu wrong\n", rank_, options_.checks, messages, wrong);
    if (wrong != 0) die("wrong bytes");
    compare("random operations", before);
  }

  // What a process holds that could leak.
  struct Holdings {
    std::size_t device_bytes, descriptors, shared_memory, mappings;
  };
  Holdings holdings() {
    const auto count = [](const char* folder) {
      return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{}));
    };
    std::size_t free = 0, total = 0, lines = 0;
    cudaMemPool_t pool = nullptr;  // what it keeps is not lost
    check(cudaDeviceGetDefaultMemPool(&pool, device_), "the device's pool");
    check(cudaMemPoolTrimTo(pool, 0), "trimming the device's pool");
    barrier();
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    std::FILE* maps = std::fopen("/proc/self/maps", "r");
    for (int c = 0; maps != nullptr && (c = std::fgetc(maps)) != EOF;) lines += c == '\n';
    if (maps != nullptr) std::fclose(maps);
    const Holdings now{total - free, count("/proc/self/fd"), count("/dev/shm"), lines};
    barrier();
    return now;
  }
  // Mappings are made beside the operations: descriptors on their way to a mate get a while to arrive.
  void compare(const char* what, const Holdings& before) {
    const auto more = [&](const Holdings& now) {
      return now.device_bytes > before.device_bytes || now.descriptors > before.descriptors || now.shared_memory > before.shared_memory;
    };
    Holdings now = holdings();
    for (std::uint32_t look = 0; look < 20; ++look) {  // as often on each rank, as holdings() meets the others
      ::usleep(50'000);
      const Holdings later = holdings();
      if (more(now)) now = later;
    }
    std::printf("rank %u after %s: device memory %zu -> %zu bytes, descriptors %zu -> %zu, /dev/shm %zu -> %zu, mappings %zu -> %zu\n",
                rank_, what, before.device_bytes, now.device_bytes, before.descriptors, now.descriptors, before.shared_memory,
                now.shared_memory, before.mappings, now.mappings);
    if (more(now)) die("something leaks");
  }

  // The first two lives settle what the driver keeps.
  void check_lives() {
    reserve(4u << 20);
    Holdings before{};
    for (std::uint32_t life = 0; life < options_.lives + 2; ++life) {
      if (life == 2) before = holdings();
      api_->destroy(communicator_);
      barrier();
      create();
      const std::uint32_t peer = (rank_ + 1) % world_, from = (rank_ + world_ - 1) % world_;
      for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{300'000}, std::uint64_t{4} << 20})
        post(System::railweave, {{true, peer, send_, bytes}, {false, from, receive_, bytes}});
      check(cudaStreamSynchronize(stream_), "operations of a life");
      require(api_->async_error(communicator_));
    }
    compare("lives", before);
  }

  // For how long messages into a new buffer go through slots, until the sender has mapped it. Operations of 16 MiB one after another,
  // each waited for: one that takes less than half as long as the first goes straight there.
  void time_fresh_buffers() {
    constexpr std::uint64_t kBytes = 16u << 20;
    constexpr std::uint32_t kMostOperations = 1000;
    using Clock = std::chrono::steady_clock;
    std::vector<double> times;
    for (std::uint32_t buffer = 0; buffer < options_.fresh; ++buffer) {
      capacity_ = 0;
      reserve(kBytes);
      ::usleep(30'000 + buffer * 7919 % 40'000);  // at any time of what looks for new buffers now and then
      barrier();
      const auto begin = Clock::now();
      std::vector<Flow> flows;
      if (rank_ == 0) flows.push_back({true, 1, send_, kBytes});
      if (rank_ == 1) flows.push_back({false, 0, receive_, kBytes});
      float first = 0, last = 0;
      for (std::uint32_t operation = 0; operation < kMostOperations && (operation < 2 || last > first / 2); ++operation) {
        check(cudaEventRecord(start_, stream_), "record");
        if (!flows.empty()) post(System::railweave, flows);
        check(cudaEventRecord(stop_, stream_), "record");
        check(cudaEventSynchronize(stop_), "an operation into a new buffer");
        check(cudaEventElapsedTime(&shared_.seconds[rank_], start_, stop_), "elapsed");
        barrier();
        last = shared_.seconds[0];
        if (operation == 0) first = last;
        barrier();
      }
      require(api_->async_error(communicator_));
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    if (rank_ == 0)
      std::printf("new buffers are reached through slots for %.1f ms [%.1f to %.1f], %u of them\n", times[times.size() / 2], times.front(),
                  times.back(), options_.fresh);
    barrier();
  }

  std::uint32_t rank_, world_;
  int device_ = 0;
  const Options& options_;
  Shared& shared_;
  std::string rendezvous_;
  Nccl nccl_;
  const railweave_cuda_api* api_ = nullptr;
  railweave_cuda_communicator* communicator_ = nullptr;
  void* nccl_communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  DeviceBuffer send_buffer_, receive_buffer_;
  std::byte *send_ = nullptr, *receive_ = nullptr;
  std::uint64_t capacity_ = 0;
  std::uint32_t meetings_ = 0;
  std::vector<railweave_cuda_transfer> transfers_;
};

std::uint32_t count_gpus() {
  // In a process of its own: after a fork CUDA may not be used by both.
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    std::_Exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return static_cast<std::uint32_t>(WEXITSTATUS(status));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    options = parse(argc, argv);
  } catch (const std::invalid_argument& error) {
    die(std::string(error.what()) + "; --help says which options there are");
  }
  if (options.help) {
    std::fputs(usage(), stdout);
    return 0;
  }
  const std::uint32_t gpus = count_gpus(), world = options.ranks == 0 ? std::min(gpus, kMostRanks) : options.ranks;
  if (gpus == 0) die("no GPU");
  if (world < 2 || world > kMostRanks) die("expected 2 to " + std::to_string(kMostRanks) + " ranks (--ranks; by default one a GPU)");
  if (options.threads && world > gpus && !options.nccl.empty()) die("--threads: NCCL takes no ranks of a process that share GPUs");
  if (options.nodes == 0 || world % options.nodes != 0) die("--nodes: expected one that divides the ranks");
  for (const std::string& pattern : options.patterns) {
    const std::vector<Pattern> known = traffic_patterns(world, 0);
    if (std::none_of(known.begin(), known.end(), [&](const Pattern& each) { return pattern == each.option; }))
      die("--patterns " + pattern + ": from three ranks on");
  }
  auto* shared = static_cast<Shared*>(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&shared->barrier, &attributes, world);
  const std::string rendezvous = "tcp://127.0.0.1:" + std::to_string(20000 + ::getpid() % 20000);
  if (options.threads) {
    std::vector<std::jthread> ranks;
    for (std::uint32_t rank = 0; rank < world; ++rank)
      ranks.emplace_back([&, rank] { Rank(rank, world, options, *shared, rendezvous).run(); });
    return 0;
  }
  std::vector<pid_t> children;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      Rank(rank, world, options, *shared, rendezvous).run();
      std::fflush(stdout);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  // The first rank that fails ends the others: they would wait for it.
  for (std::size_t left = children.size(); left > 0; --left) {
    int status = 0;
    ::wait(&status);
    const bool killed = options.death && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!killed && WIFSIGNALED(status)) std::fprintf(stderr, "gpu_exchange: a rank was ended by signal %d\n", WTERMSIG(status));
    if (status != 0 && !killed) {
      for (const pid_t child : children) ::kill(child, SIGKILL);
      return 1;
    }
  }
  return 0;
}
