// A block of GPU threads for the roles (roles.hpp).
#pragma once

#include <cstdint>

#include "device_words.cuh"
#include "roles.hpp"

namespace railweave::cuda {

// Eight loads in flight a thread: one block then moves 46 GB/s (docs/gpu-probe.md). L2 only: slots are written by other GPUs while the
// kernel runs.
__device__ __forceinline__ void copy_vectors(uint4* to, const uint4* from, std::uint32_t vectors) {
  constexpr std::uint32_t kInFlight = 8;
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < vectors; i += kInFlight * kThreads) {
    uint4 values[kInFlight];
#pragma unroll
    for (std::uint32_t k = 0; k < kInFlight; ++k) {
      if (i + k * kThreads < vectors) values[k] = __ldcg(from + (i + k * kThreads));
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kInFlight; ++k) {
      if (i + k * kThreads < vectors) to[i + k * kThreads] = values[k];
    }
  }
}

// 16 bytes of the 32 of two vectors, from byte `shift` on, which is less than 16.
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, std::uint32_t shift) {
  const std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  std::uint32_t pairs[6], each[5];
#pragma unroll
  for (std::uint32_t i = 0; i < 6; ++i) pairs[i] = (shift & 8) != 0 ? words[i + 2] : words[i];
#pragma unroll
  for (std::uint32_t i = 0; i < 5; ++i) each[i] = (shift & 4) != 0 ? pairs[i + 1] : pairs[i];
  const std::uint32_t bits = 8 * (shift & 3);
  return {__funnelshift_r(each[0], each[1], bits), __funnelshift_r(each[1], each[2], bits), __funnelshift_r(each[2], each[3], bits),
          __funnelshift_r(each[3], each[4], bits)};
}

// From a place that is aligned to other bytes than `to` is: the first vector begins `shift` bytes, 1 to 15, behind `from`. Narrower loads
// would touch each sector several times: byte by byte a block moved 7 GB/s. So whole vectors are loaded, one more than are stored, and what
// a thread's lacks comes from its neighbour in the warp, which has a stretch of its own for that.
inline __device__ __noinline__ void copy_shifted(uint4* to, const uint4* from, std::uint32_t shift, std::uint32_t vectors) {
  constexpr std::uint32_t kInFlight = 4, kStretch = 32 * kInFlight;
  const std::uint32_t lane = threadIdx.x & 31;
#pragma unroll 1
  for (std::uint32_t first = threadIdx.x / 32 * kStretch; first < vectors; first += kWarps * kStretch) {
    uint4 values[kInFlight + 1];
#pragma unroll
    for (std::uint32_t k = 0; k <= kInFlight; ++k) {
      const std::uint32_t i = first + 32 * k + lane;
      if (i <= vectors && (k < kInFlight || lane == 0)) values[k] = __ldcg(from + i);
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kInFlight; ++k) {
      const uint4 lent = lane == 0 ? values[k + 1] : values[k];
      const auto neighbours = [lane](std::uint32_t word) { return __shfl_sync(~0u, word, static_cast<int>((lane + 1) % 32)); };
      const uint4 next{neighbours(lent.x), neighbours(lent.y), neighbours(lent.z), neighbours(lent.w)};
      const std::uint32_t i = first + 32 * k + lane;
      if (i < vectors) to[i] = shifted(values[k], next, shift);
    }
  }
}

// With room for so many messages in shared memory: 26 KB of it, as all kMaxMessages need, cost a launch 0.7 us. Without a capacity the room
// is in device memory.
template <std::uint32_t Capacity>
class DeviceBlock : public DeviceWords {
 public:
  static constexpr bool kMany = Capacity == 0;
  static_assert(Capacity <= kMaxMessages);

  DeviceBlock() = default;
  // Beside so many blocks of the grid that move packets, of which so many are before this one.
  __device__ __forceinline__ DeviceBlock(std::uint32_t packet_blocks, std::uint32_t before)
      : packet_blocks_(packet_blocks), before_(before) {}
  __device__ __forceinline__ explicit DeviceBlock(Share* shares) : shares_(shares) {}

  __device__ __forceinline__ std::uint32_t blocks() const { return gridDim.x - packet_blocks_; }
  __device__ __forceinline__ std::uint32_t index() const { return blockIdx.x - before_; }

  // One block has nobody to share the states with: they are in shared memory then.
  __device__ __forceinline__ static MessageState* states(MessageState* in_global) {
    if constexpr (kMany) {
      return in_global;
    } else {
      __shared__ MessageState own[Capacity];
      if (gridDim.x > 1) return in_global;
      for (std::uint32_t i = threadIdx.x; i < Capacity; i += kThreads) own[i] = MessageState{};
      __syncthreads();
      return own;
    }
  }
  __device__ __forceinline__ Share* shares() const {
    if constexpr (kMany) {
      return shares_;
    } else {
      __shared__ Share own[Capacity];
      return own;
    }
  }
  __device__ __forceinline__ static std::uint32_t count_zeros_below(std::uint64_t bits) {
    return static_cast<std::uint32_t>(__ffsll(static_cast<long long>(bits)) - 1);
  }

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
  // Of words of 32 or 64 bits.
  template <typename F>
  __device__ __forceinline__ auto smallest(std::uint32_t count, F&& f) const {
    using Value = decltype(f(0u));
    Value least = ~Value{0};
    for (std::uint32_t i = threadIdx.x; i < count; i += 32) {
      const Value value = f(i);
      if (value < least) least = value;
    }
    __syncwarp();
#if __CUDA_ARCH__ >= 800
    constexpr bool kAtOnce = sizeof(Value) == 4;
#else
    constexpr bool kAtOnce = false;
#endif
    if constexpr (kAtOnce) {
      least = __reduce_min_sync(~0u, least);
    } else {
#pragma unroll
      for (std::uint32_t distance = 16; distance != 0; distance /= 2) {
        const Value other = __shfl_xor_sync(~0u, least, distance);
        if (other < least) least = other;
      }
    }
    return least;
  }
  template <typename F>
  __device__ __forceinline__ std::uint64_t uniform(F&& f) const {
    return __shfl_sync(~0u, static_cast<unsigned long long>(f()), 0);
  }
  template <std::uint32_t Count, typename F>
  __device__ __forceinline__ void gather(std::uint64_t (&words)[Count], F&& address) const {
    static_assert(Count <= 32);
    const std::uint32_t lane = threadIdx.x & 31;
    const std::uint64_t own = lane < Count ? acquire(address(lane)) : 0;
#pragma unroll
    for (std::uint32_t i = 0; i < Count; ++i) words[i] = __shfl_sync(~0u, static_cast<unsigned long long>(own), i);
  }
  template <typename F>
  __device__ __forceinline__ void each(std::uint32_t count, F&& f) const {
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) f(i);
    __syncthreads();
  }
  // The host's words lie behind PCIe: a look costs more than a turn, and nobody needs an abort within microseconds. Naps are for blocks
  // that have nothing to do for long: any bytes that the block moves end them, but not the count to the next look.
  __device__ __forceinline__ bool idle() {
    ++idle_turns_;
    if (idle_turns_ > kTurnsBeforeNaps) __nanosleep(500);
    return idle_turns_ % kTurnsBetweenLooks == 0;
  }

  // --- Bytes
  __device__ __forceinline__ void copy(std::byte* to, const std::byte* from, std::uint32_t bytes) {
    idle_turns_ %= kTurnsBetweenLooks;
    const auto misaligned = static_cast<std::uint32_t>(-reinterpret_cast<std::uintptr_t>(to) & 15);
    const std::uint32_t head = misaligned < bytes ? misaligned : bytes;
    const std::uint32_t shift = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(from + head) % 16);
    std::uint32_t vectors = (bytes - head) / 16, tail = (bytes - head) % 16;
    if (shift != 0 && vectors != 0 && shift + tail < 16) {  // the last vector's neighbour would begin in the message and end behind it
      --vectors;
      tail += 16;
    }
    if (threadIdx.x < head) to[threadIdx.x] = load_byte(from + threadIdx.x);
    if (threadIdx.x < tail) to[bytes - tail + threadIdx.x] = load_byte(from + (bytes - tail + threadIdx.x));
    auto* const out = reinterpret_cast<uint4*>(to + head);
    const auto* const in = reinterpret_cast<const uint4*>(from + head - shift);
    if (shift == 0) {
      copy_vectors(out, in, vectors);
    } else {
      copy_shifted(out, in, shift, vectors);
    }
  }
  // A packet a warp, and then the next. Whoever calls this has seen their credits, or their first lines.
  __device__ __noinline__ static void write_bundle(Port& to, std::uint64_t number, const std::byte* from, std::uint32_t bytes) {
    number += threadIdx.x / 32;
#pragma unroll 1
    for (std::uint32_t at = threadIdx.x / 32 * Packet::kData; at < bytes; at += kBundleBytes, number += kWarps) {
      write_packet(from + at, packet_bytes(bytes - at), [&] {
        return Destination{&to.packets[number % kPacketSlots], packet_flag(number)};
      });
    }
  }
  // Not told by a closure when to give up: one that knows the roles puts what they hold into local memory (64 bytes of the kernel's stack).
  __device__ __noinline__ static void read_bundle(const Port& from, Port& source, std::uint64_t number, std::byte* to, std::uint32_t bytes,
                                                  const std::uint32_t* stop) {
    constexpr std::uint32_t kSpinsBetweenLooks = 1u << 16;
    number += threadIdx.x / 32;
#pragma unroll 1
    for (std::uint32_t at = threadIdx.x / 32 * Packet::kData; at < bytes; at += kBundleBytes, number += kWarps) {
      const std::uint32_t slot = number % kPacketSlots;
      const auto taken = [&] {
        if ((threadIdx.x & 31) == 0) store(&source.credits[slot], credit_of(number));
      };
      for (std::uint32_t spins = 1; !read_packet(from.packets[slot], packet_flag(number), to + at, packet_bytes(bytes - at), taken);
           ++spins) {
        if (spins % kSpinsBetweenLooks == 0 && __any_sync(~0u, relaxed(stop) != 0)) return;
      }
    }
  }

 private:
  static constexpr std::uint32_t kTurnsBetweenLooks = 512, kTurnsBeforeNaps = 4096;

  __device__ __forceinline__ static std::uint32_t packet_bytes(std::uint32_t left) { return left < Packet::kData ? left : Packet::kData; }
  __device__ __forceinline__ static std::byte load_byte(const std::byte* from) {
    return static_cast<std::byte>(__ldcg(reinterpret_cast<const unsigned char*>(from)));
  }
  std::uint32_t packet_blocks_ = 0, before_ = 0;
  Share* shares_ = nullptr;
  std::uint32_t turn_ = 0;
  std::uint32_t idle_turns_ = 0;
};

static_assert(kWarps == kBundlePackets);

}  // namespace railweave::cuda
