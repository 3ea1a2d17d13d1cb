// A block of GPU threads for the roles (roles.hpp).
#pragma once

#include <cstdint>

#include "device_words.cuh"
#include "roles.hpp"

namespace railweave::cuda {

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

// With room for so many messages in shared memory: 26 KB of it, as all kMaxMessages need, cost a launch 0.7 us. Without a capacity the room
// is in device memory.
template <std::uint32_t Capacity>
class DeviceBlock : public DeviceWords {
 public:
  static constexpr bool kMany = Capacity == 0;

  DeviceBlock() = default;
  // Beside so many first blocks of the grid, which move packets.
  __device__ __forceinline__ explicit DeviceBlock(std::uint32_t packet_blocks) : packet_blocks_(packet_blocks) {}
  __device__ __forceinline__ explicit DeviceBlock(Share* shares) : shares_(shares) {}

  __device__ __forceinline__ std::uint32_t blocks() const { return gridDim.x - packet_blocks_; }
  __device__ __forceinline__ std::uint32_t index() const { return blockIdx.x - packet_blocks_; }

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
  // A packet a warp. Whoever calls this has seen their credits, or their first lines.
  __device__ __noinline__ static void write_bundle(Port& to, std::uint64_t number, const std::byte* from, std::uint32_t bytes) {
    const std::uint32_t at = threadIdx.x / 32 * Packet::kData;
    if (at >= bytes) return;
    number += threadIdx.x / 32;
    write_packet(from + at, packet_bytes(bytes - at), [&] { return Destination{&to.packets[number % kPacketSlots], packet_flag(number)}; });
  }
  // Not told by a closure when to give up: one that knows the roles puts what they hold into local memory (64 bytes of the kernel's stack).
  __device__ __noinline__ static void read_bundle(const Port& from, Port& source, std::uint64_t number, std::byte* to, std::uint32_t bytes,
                                                  const std::uint32_t* stop) {
    constexpr std::uint32_t kSpinsBetweenLooks = 1u << 16;
    const std::uint32_t at = threadIdx.x / 32 * Packet::kData;
    if (at >= bytes) return;
    number += threadIdx.x / 32;
    const std::uint32_t slot = number % kPacketSlots;
    for (std::uint32_t spins = 1; !read_packet(from.packets[slot], packet_flag(number), to + at, packet_bytes(bytes - at)); ++spins) {
      if (spins % kSpinsBetweenLooks == 0 && __any_sync(~0u, relaxed(stop) != 0)) return;
    }
    if ((threadIdx.x & 31) == 0) store(&source.credits[slot], packet_flag(number));
  }

 private:
  static constexpr std::uint32_t kTurnsBetweenLooks = 512, kTurnsBeforeNaps = 4096;

  __device__ __forceinline__ static std::uint32_t packet_bytes(std::uint32_t left) { return left < Packet::kData ? left : Packet::kData; }
  __device__ __forceinline__ static std::byte load_byte(const std::byte* from) {
    return static_cast<std::byte>(__ldcg(reinterpret_cast<const unsigned char*>(from)));
  }
  std::uint32_t packet_blocks_ = 0;
  Share* shares_ = nullptr;
  std::uint32_t turn_ = 0;
  std::uint32_t idle_turns_ = 0;
};

static_assert(kWarps == kBundlePackets);

}  // namespace railweave::cuda
