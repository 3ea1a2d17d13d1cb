// A block of GPU threads for the roles (roles.hpp).
#pragma once

#include <cstdint>

#include "roles.hpp"

namespace railweave::cuda {

inline constexpr std::uint32_t kThreads = 512;

// 16 bytes from anywhere, read in words as wide as the address allows. L2 only: slots are written by other GPUs while the kernel runs.
template <typename Word>
__device__ __forceinline__ uint4 load16(const std::byte* from) {
  union {
    uint4 vector;
    Word words[16 / sizeof(Word)];
  } value;
#pragma unroll
  for (std::uint32_t i = 0; i < 16 / sizeof(Word); ++i) value.words[i] = __ldcg(reinterpret_cast<const Word*>(from) + i);
  return value.vector;
}

// `to` is aligned to 16 bytes. Eight loads in flight a thread: one block then moves 46 GB/s (docs/gpu-probe.md).
template <typename Word>
__device__ __forceinline__ void copy_vectors(std::byte* to, const std::byte* from, std::uint32_t vectors) {
  constexpr std::uint32_t kInFlight = 8;
  auto* out = reinterpret_cast<uint4*>(to);
  std::uint32_t i = threadIdx.x;
  for (; i + (kInFlight - 1) * kThreads < vectors; i += kInFlight * kThreads) {
    uint4 values[kInFlight];
#pragma unroll
    for (std::uint32_t k = 0; k < kInFlight; ++k) values[k] = load16<Word>(from + 16ull * (i + k * kThreads));
#pragma unroll
    for (std::uint32_t k = 0; k < kInFlight; ++k) out[i + k * kThreads] = values[k];
  }
  // The rest, all at once again.
  uint4 values[kInFlight];
#pragma unroll
  for (std::uint32_t k = 0; k < kInFlight; ++k) {
    if (i + k * kThreads < vectors) values[k] = load16<Word>(from + 16ull * (i + k * kThreads));
  }
#pragma unroll
  for (std::uint32_t k = 0; k < kInFlight; ++k) {
    if (i + k * kThreads < vectors) out[i + k * kThreads] = values[k];
  }
}

class DeviceBlock {
 public:
  __device__ __forceinline__ std::uint32_t blocks() const { return gridDim.x; }
  __device__ __forceinline__ std::uint32_t index() const { return blockIdx.x; }

  // One block has nobody to share the states with: they are in shared memory then.
  __device__ __forceinline__ static MessageState* states(MessageState* in_global) {
    __shared__ MessageState own[kMaxMessages];
    if (gridDim.x > 1) return in_global;
    for (std::uint32_t i = threadIdx.x; i < kMaxMessages; i += kThreads) own[i] = MessageState{};
    __syncthreads();
    return own;
  }
  __device__ __forceinline__ static Share* shares() {
    __shared__ Share own[kMaxMessages];
    return own;
  }
  __device__ __forceinline__ static std::uint32_t count_zeros_below(std::uint64_t bits) {
    return static_cast<std::uint32_t>(__ffsll(static_cast<long long>(bits)) - 1);
  }

  // --- Words
  __device__ __forceinline__ static std::uint64_t relaxed(const std::uint64_t* word) {
    std::uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ __forceinline__ static std::uint32_t relaxed(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ __forceinline__ static std::uint64_t acquire(const std::uint64_t* word) {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ __forceinline__ static std::uint32_t acquire(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ __forceinline__ static void store(std::uint64_t* word, std::uint64_t value) {
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  __device__ __forceinline__ static void store(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  __device__ __forceinline__ static void release(std::uint64_t* word, std::uint64_t value) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  __device__ __forceinline__ static void release(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  // Nothing that the block reads later depends on these bytes, and the kernel's end makes them visible to what follows.
  __device__ __forceinline__ static std::uint64_t arrived(const std::uint64_t* word) { return relaxed(word); }
  __device__ __forceinline__ static void announce(std::uint64_t* word, std::uint64_t value) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  // 16 bytes in one access; whoever changes a mapping writes its base before its name.
  __device__ __forceinline__ static Mapping pair(const Mapping* mapping) {
    Mapping value;
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(value.buffer), "=l"(value.base) : "l"(mapping) : "memory");
    return value;
  }
  // Atomics are within this GPU: nobody else adds to these words.
  __device__ __forceinline__ static std::uint32_t add(std::uint32_t* word, std::uint32_t value) { return atomicAdd(word, value); }
  __device__ __forceinline__ static std::uint64_t add(std::uint64_t* word, std::uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
  // The bits that were set before.
  __device__ __forceinline__ static std::uint64_t take(std::uint64_t* word, std::uint64_t bits) {
    return atomicOr(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(bits));
  }
  __device__ __forceinline__ static bool swap_if(std::uint32_t* word, std::uint32_t old, std::uint32_t value) {
    return atomicCAS(word, old, value) == old;
  }
  __device__ __forceinline__ static bool swap_if(std::uint64_t* word, std::uint64_t old, std::uint64_t value) {
    return atomicCAS(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(old),
                     static_cast<unsigned long long>(value)) == old;
  }
  __device__ __forceinline__ static void fence() { __threadfence_system(); }

  // --- Threads
  __device__ __forceinline__ static void sync() { __syncthreads(); }
  template <typename F>
  __device__ __forceinline__ void lead(F&& f) const {
    if ((threadIdx.x & 31) == 0) f();
  }
  template <typename F>
  __device__ __forceinline__ void leader(F&& f) const {
    if (threadIdx.x == 0) f();
  }
  // Two places in turn, so that one barrier a call is enough: whoever writes a place again has passed the barrier after its last reading.
  template <typename F>
  __device__ __forceinline__ auto share(F&& f) {
    using Result = decltype(f());
    __shared__ alignas(16) std::byte places[2][64];
    static_assert(sizeof(Result) <= sizeof(places[0]));
    auto* place = reinterpret_cast<Result*>(places[turn_ ^= 1]);
    if (threadIdx.x < 32) {
      const Result result = f();
      if (threadIdx.x == 0) *place = result;
    }
    __syncthreads();
    return *place;
  }
  template <typename F>
  __device__ __forceinline__ std::uint64_t smallest(std::uint32_t count, F&& f) const {
    std::uint64_t least = ~0ull;
    for (std::uint32_t i = threadIdx.x; i < count; i += 32) {
      const std::uint64_t value = f(i);
      if (value < least) least = value;
    }
    __syncwarp();
#pragma unroll
    for (std::uint32_t distance = 16; distance != 0; distance /= 2) {
      const std::uint64_t other = __shfl_xor_sync(~0u, static_cast<unsigned long long>(least), distance);
      if (other < least) least = other;
    }
    return least;
  }
  template <typename F>
  __device__ __forceinline__ void each(std::uint32_t count, F&& f) const {
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) f(i);
    __syncthreads();
  }
  // The host's words lie behind PCIe: a look costs more than a turn, and nobody needs an abort within microseconds.
  __device__ __forceinline__ bool idle() {
    constexpr std::uint32_t kTurnsBetweenLooks = 512, kTurnsBeforeNaps = 4096;
    ++idle_turns_;
    if (idle_turns_ > kTurnsBeforeNaps) __nanosleep(500);
    return idle_turns_ % kTurnsBetweenLooks == 0;
  }
  __device__ __forceinline__ static std::uint64_t now() {
    std::uint64_t value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
  }

  // --- Bytes
  __device__ __forceinline__ static void copy(std::byte* to, const std::byte* from, std::uint32_t bytes) {
    const auto misaligned = static_cast<std::uint32_t>(-reinterpret_cast<std::uintptr_t>(to) & 15);
    const std::uint32_t head = misaligned < bytes ? misaligned : bytes;
    const std::uint32_t vectors = (bytes - head) / 16, tail = (bytes - head) % 16;
    if (threadIdx.x < head) to[threadIdx.x] = load_byte(from + threadIdx.x);
    if (threadIdx.x < tail) to[bytes - tail + threadIdx.x] = load_byte(from + (bytes - tail + threadIdx.x));
    to += head;
    from += head;
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(from);
    if (address % 16 == 0) {
      copy_vectors<uint4>(to, from, vectors);
    } else if (address % 4 == 0) {
      copy_vectors<unsigned int>(to, from, vectors);
    } else {
      copy_vectors<unsigned char>(to, from, vectors);
    }
  }
  __device__ __forceinline__ static void write_packets(Packet* to, const std::byte* from, std::uint32_t bytes, std::uint32_t flag) {
    const std::uint64_t mark = static_cast<std::uint64_t>(flag) << 32;
    std::uint64_t data[kRounds];
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t at = (threadIdx.x + k * kThreads) * 8;
      if (at < bytes) data[k] = load_up_to_8(from + at, bytes - at);
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t at = (threadIdx.x + k * kThreads) * 8;
      if (at >= bytes) break;
      asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(to + at / 8), "l"((data[k] & 0xffffffff) | mark), "l"(data[k] >> 32 | mark)
                   : "memory");
    }
  }
  template <typename F>
  __device__ __forceinline__ static void read_packets(const Packet* from, std::byte* to, std::uint32_t bytes, std::uint32_t flag,
                                                      F&& give_up) {
    constexpr std::uint32_t kSpinsBetweenLooks = 1u << 16;
    std::uint64_t low[kRounds], high[kRounds];
    for (std::uint32_t spins = 1;; ++spins) {
      bool all = true;
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        const std::uint32_t at = (threadIdx.x + k * kThreads) * 8;
        if (at >= bytes) break;
        asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(low[k]), "=l"(high[k]) : "l"(from + at / 8) : "memory");
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        if ((threadIdx.x + k * kThreads) * 8 < bytes) all = all && low[k] >> 32 == flag && high[k] >> 32 == flag;
      }
      if (all) break;
      if (spins % kSpinsBetweenLooks == 0 && give_up()) return;
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t at = (threadIdx.x + k * kThreads) * 8;
      if (at < bytes) store_up_to_8(to + at, (low[k] & 0xffffffff) | high[k] << 32, bytes - at);
    }
  }
  __device__ __forceinline__ static void wipe(Packet* packets) {
    for (std::uint32_t i = threadIdx.x; i < kPackets; i += kThreads) packets[i] = Packet{};
  }

 private:
  static constexpr std::uint32_t kRounds = kPackets / kThreads;  // of packets, for a whole slot
  static_assert(kRounds * kThreads == kPackets);

  __device__ __forceinline__ static std::byte load_byte(const std::byte* from) {
    return static_cast<std::byte>(__ldcg(reinterpret_cast<const unsigned char*>(from)));
  }
  __device__ __forceinline__ static std::uint64_t load_up_to_8(const std::byte* from, std::uint32_t bytes) {
    if (bytes >= 8 && reinterpret_cast<std::uintptr_t>(from) % 8 == 0) return *reinterpret_cast<const std::uint64_t*>(from);
    std::uint64_t value = 0;
    for (std::uint32_t i = 0; i < 8 && i < bytes; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
    return value;
  }
  __device__ __forceinline__ static void store_up_to_8(std::byte* to, std::uint64_t value, std::uint32_t bytes) {
    if (bytes >= 8 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
      *reinterpret_cast<std::uint64_t*>(to) = value;
      return;
    }
    for (std::uint32_t i = 0; i < 8 && i < bytes; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
  }

  std::uint32_t turn_ = 0;
  std::uint32_t idle_turns_ = 0;
};

}  // namespace railweave::cuda
