// A warp of GPU threads for the roles of packets (packet_roles.hpp).
#pragma once

#include <cstdint>

#include "device_words.cuh"

namespace railweave::cuda {

class DeviceWarp : public DeviceWords {
 public:
  // Of block `block` of `blocks`.
  __device__ __forceinline__ DeviceWarp(std::uint32_t blocks, std::uint32_t block) : blocks_(blocks), block_(block) {}

  // Neighbours in this count are warps of different blocks, so that a few packets use many SMs' ports.
  __device__ __forceinline__ std::uint32_t index() const { return block_ + blocks_ * (threadIdx.x / 32); }
  __device__ __forceinline__ std::uint32_t warps() const { return blocks_ * kWarps; }

  template <typename T>
  struct Lanes {
    T own;
  };
  template <typename T>
  __device__ __forceinline__ static T& at(Lanes<T>& lanes, std::uint32_t) {
    return lanes.own;
  }
  template <typename F>
  __device__ __forceinline__ static void each(std::uint32_t count, F&& f) {
    if (lane() < count) f(lane());
    __syncwarp();
  }
  template <typename F>
  __device__ __forceinline__ static std::uint32_t mask(std::uint32_t count, F&& f) {
    return __ballot_sync(~0u, lane() < count && f(lane()));
  }
  template <typename F>
  __device__ __forceinline__ static std::uint64_t from(std::uint32_t i, F&& f) {
    return __shfl_sync(~0u, static_cast<unsigned long long>(f()), static_cast<int>(i));
  }
  template <typename F>
  __device__ __forceinline__ static void leader(F&& f) {
    if (lane() == 0) f();
  }
  __device__ __forceinline__ static std::uint32_t lowest(std::uint32_t bits) {
    return static_cast<std::uint32_t>(__ffs(static_cast<int>(bits)) - 1);
  }

  template <typename Number>
  __device__ __forceinline__ bool write(Port& to, const Port& own, const std::byte* from, std::uint32_t bytes, bool patient,
                                        Number&& number_of) {
    // Which credit counts follows from the number, so all are asked for, and before the data: what is asked for last comes last.
    const Credits credits(own);
    return write_packet(from, bytes, [&]() -> Destination {
      const std::uint64_t number = number_of();
      const std::uint32_t slot = number % kPacketSlots;
      const Destination there{&to.packets[slot], packet_flag(number)};
      if (is_credited(credits.of(slot), number)) return there;
      constexpr std::uint32_t kLooks = 64;  // some 45 us, where a credit takes 4
#pragma unroll 1
      for (std::uint32_t looks = patient ? kLooks : 1; looks > 0; --looks) {
        if (__all_sync(~0u, is_credited(relaxed(&own.credits[slot]), number))) return there;
      }
      if (patient) idle_turns_ += kLooks;
      return {};
    });
  }
  template <typename Taken>
  __device__ __forceinline__ static bool read(const Packet& from, std::uint64_t flag, std::byte* to, std::uint32_t bytes, Taken&& taken) {
    return read_packet(from, flag, to, bytes, taken);
  }
  // Addresses are spread over the links by pairs of lines: 48 of them crossed all 18 of an H100. Loads that the assembler may not leave
  // out.
  __device__ __forceinline__ static void touch(const Port& port) {
    constexpr std::uint32_t kLoads = 4;
    static_assert(kLoads <= kPacketSlots && Packet::kLines == 32);
#pragma unroll
    for (std::uint32_t k = 0; k < kLoads; ++k) {
      [[maybe_unused]] std::uint64_t value;
      asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(value) : "l"(&port.packets[k].lines[lane()].flag));
    }
  }
  // By a block's last warp: the first packets that come are its, so its first turns find nothing. What it adds to comes back while it
  // goes on.
  __device__ __forceinline__ void began(std::uint32_t* count) {
    if (!is_last_of_block()) {
      asm volatile("bar.arrive 1, %0;" ::"n"(kThreads) : "memory");
      return;
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
    if (lane() == 0 && blocks_ > 1) begun_before_ = add(count, 1u);
  }
  __device__ __forceinline__ static bool may_be_last_to_begin() { return is_last_of_block(); }
  __device__ __forceinline__ bool was_last_to_begin() const {
    return is_last_of_block() && __shfl_sync(~0u, begun_before_, 0) + 1 == blocks_;
  }
  __device__ __forceinline__ static void stagger(std::uint32_t cycles) {
    const long long begin = clock64(), wait = cycles * (threadIdx.x / 32);
    while (clock64() - begin < wait) continue;
  }
  __device__ __forceinline__ bool idle() {
    constexpr std::uint32_t kTurnsBetweenLooks = 2048;  // every warp looks
    if (++idle_turns_ < kTurnsBetweenLooks) return false;
    idle_turns_ = 0;
    return true;
  }

 private:
  __device__ __forceinline__ static std::uint32_t lane() { return threadIdx.x & 31; }

  // Of a pair: four a lane and load.
  class Credits {
   public:
    __device__ __forceinline__ explicit Credits(const Port& port) {
#pragma unroll
      for (std::uint32_t k = 0; k < kLoads; ++k) {
        const std::uint32_t slot = 4 * (32 * k + lane());
        relaxed_four(&port.credits[slot < kPacketSlots ? slot : 0], credits_[k]);
      }
    }
    // The same at all lanes.
    __device__ __forceinline__ Credit of(std::uint32_t slot) const {
      const std::uint32_t holder = slot / 4, which = slot % 4;
      // Neither by an index nor in a loop, or they lie in memory.
      const bool first = holder < 32;
      const Credit even = which == 0 ? (first ? credits_[0][0] : credits_[1][0]) : (first ? credits_[0][2] : credits_[1][2]);
      const Credit odd = which == 1 ? (first ? credits_[0][1] : credits_[1][1]) : (first ? credits_[0][3] : credits_[1][3]);
      return __shfl_sync(~0u, which % 2 == 0 ? even : odd, static_cast<int>(holder % 32));
    }

   private:
    static constexpr std::uint32_t kLoads = 2;
    static_assert(kPacketSlots % 4 == 0 && kPacketSlots <= 128 * kLoads && offsetof(Port, credits) % 16 == 0);
    Credit credits_[kLoads][4];
  };

  __device__ __forceinline__ static bool is_last_of_block() { return threadIdx.x / 32 == kWarps - 1; }

  std::uint32_t blocks_, block_;
  std::uint32_t begun_before_ = 0;  // blocks before this one
  std::uint32_t idle_turns_ = 0;
};

}  // namespace railweave::cuda
