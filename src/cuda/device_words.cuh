// Words and packets for GPU threads: what the roles of blocks (device_block.cuh) and of warps (device_warp.cuh) share.
#pragma once

#include <cstdint>
#include <type_traits>

#include "packet_roles.hpp"

namespace railweave::cuda {

inline constexpr std::uint32_t kThreads = 512;
inline constexpr std::uint32_t kWarps = kThreads / 32;

// At most 8 bytes from anywhere. Not inlined, as little code as possible: what a kernel of a few microseconds runs it has to fetch first.
inline __device__ __noinline__ std::uint64_t load_bytes(const std::byte* from, std::uint32_t bytes) {
  std::uint64_t value = 0;
#pragma unroll 1
  for (std::uint32_t i = 0; i < 8 && i < bytes; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return value;
}
inline __device__ __noinline__ void store_bytes(std::byte* to, std::uint64_t value, std::uint32_t bytes) {
#pragma unroll 1
  for (std::uint32_t i = 0; i < 8 && i < bytes; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

struct DeviceWords {
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
  // What was read has been stored elsewhere before the barrier, so it had come. No fence, which would wait for those stores.
  __device__ __forceinline__ static void vacate(std::uint64_t* word, std::uint64_t value) { store(word, value); }
  // 16 bytes in one access.
  __device__ __forceinline__ static void relaxed_pair(const std::uint64_t* words, std::uint64_t (&values)[2]) {
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(values[0]), "=l"(values[1]) : "l"(words) : "memory");
  }
  // Whoever changes a mapping writes its base before its name.
  __device__ __forceinline__ static Mapping pair(const Mapping* mapping) {
    static_assert(sizeof(Mapping) == 16 && alignof(Mapping) == 16 && offsetof(Mapping, base) == 8);
    std::uint64_t words[2];
    relaxed_pair(reinterpret_cast<const std::uint64_t*>(mapping), words);
    return {words[0], words[1]};
  }
  // Atomics are within this GPU, as nobody else changes these words; the two below are not.
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
  __device__ __forceinline__ static void raise_between(std::uint64_t* word, std::uint64_t value) {
    asm volatile("red.relaxed.sys.global.max.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  __device__ __forceinline__ static void add_between(std::uint64_t* word, std::uint64_t value) {
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  __device__ __forceinline__ static void fence() { __threadfence_system(); }
  __device__ __forceinline__ static std::uint64_t now() {
    std::uint64_t value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
  }

  // --- Packets: by a warp. Lanes 8 l to 8 l + 7 have 16 bytes of a line each, the last one 8 and the flag. What is not aligned to 8 bytes
  // goes word by word.
  struct Destination {
    Packet* to;  // none: it may not be written
    std::uint64_t flag;
  };
  template <typename Find>
  __device__ __forceinline__ static bool write_packet(const std::byte* from, std::uint32_t bytes, Find&& find) {
    if (reinterpret_cast<std::uintptr_t>(from) % 8 != 0) {
      const Destination there = find();
      if (there.to == nullptr) return false;
#pragma unroll 1
      for (std::uint32_t k = 0; line(k) * Line::kData < bytes; ++k) {
        const std::uint32_t at = place(k);
        const std::uint64_t first = at < bytes ? load_bytes(from + at, bytes - at) : 0;
        const std::uint64_t second = at + 8 < bytes ? load_bytes(from + at + 8, bytes - at - 8) : 0;
        put(*there.to, k, first, has_flag() ? there.flag : second);
      }
      return true;
    }
    // The data are on their way while `find` looks where the packet goes, and whether it may be written. Whole packets, which are most,
    // have nothing that depends on their length: a third of the instructions.
    std::uint64_t data[kRounds][2], rest = 0;
    const std::uint32_t end = bytes & ~7u;
    if (bytes == Packet::kData) {
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        data[k][0] = word(from, k, 0);
        data[k][1] = has_flag() ? 0 : word(from, k, 1);
      }
    } else {
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        const std::uint32_t at = place(k);
        data[k][0] = at + 8 <= bytes ? word(from, k, 0) : 0;
        data[k][1] = at + 16 <= bytes && !has_flag() ? word(from, k, 1) : 0;
      }
      if (end < bytes) rest = load_bytes(from + end, bytes - end);
    }
    const Destination there = find();
    if (there.to == nullptr) return false;
    if (bytes == Packet::kData) {
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) put(*there.to, k, data[k][0], has_flag() ? there.flag : data[k][1]);
      return true;
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      if (line(k) * Line::kData >= bytes) break;
      const std::uint32_t at = place(k);
      put(*there.to, k, at == end ? rest : data[k][0], has_flag() ? there.flag : at + 8 == end ? rest : data[k][1]);
    }
    return true;
  }
  __device__ __forceinline__ static bool read_packet(const Packet& from, std::uint64_t flag, std::byte* to, std::uint32_t bytes) {
    std::uint64_t data[kRounds][2];
    bool all = true;
    const bool whole = bytes == Packet::kData;
    if (whole) {
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) get(from, k, data[k]);
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) all = all && data[k][1] == flag;
      all = all || !has_flag();
    } else {
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        if (line(k) * Line::kData >= bytes) break;
        get(from, k, data[k]);
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        if (has_flag() && line(k) * Line::kData < bytes) all = all && data[k][1] == flag;
      }
    }
    if (!__all_sync(~0u, all)) return false;
    if (reinterpret_cast<std::uintptr_t>(to) % 8 != 0) {
#pragma unroll 1
      for (std::uint32_t k = 0; line(k) * Line::kData < bytes; ++k) {
        get(from, k, data[0]);
        const std::uint32_t at = place(k);
        if (at < bytes) store_bytes(to + at, data[0][0], bytes - at);
        if (at + 8 < bytes && !has_flag()) store_bytes(to + at + 8, data[0][1], bytes - at - 8);
      }
    } else if (whole) {
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        word(to, k, 0) = data[k][0];
        if (!has_flag()) word(to, k, 1) = data[k][1];
      }
    } else {
      const std::uint32_t end = bytes & ~7u;
      std::uint64_t rest = 0;
      bool has_rest = false;
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        const std::uint32_t at = place(k);
        if (at + 8 <= bytes) word(to, k, 0) = data[k][0];
        if (at + 16 <= bytes && !has_flag()) word(to, k, 1) = data[k][1];
        if (at == end || (at + 8 == end && !has_flag())) {
          rest = at == end ? data[k][0] : data[k][1];
          has_rest = true;
        }
      }
      if (has_rest) store_bytes(to + end, rest, bytes - end);
    }
    __syncwarp();
    return true;
  }

 private:
  static constexpr std::uint32_t kRounds = Packet::kLines / 4;

  __device__ __forceinline__ static std::uint32_t line(std::uint32_t round) { return round * 4 + (threadIdx.x & 31) / 8; }
  __device__ __forceinline__ static std::uint32_t part() { return threadIdx.x & 7; }
  __device__ __forceinline__ static bool has_flag() { return part() == 7; }
  // Of the lane's first word, in the packet's data.
  __device__ __forceinline__ static std::uint32_t place(std::uint32_t round) { return line(round) * Line::kData + part() * 16; }
  // One of the lane's two words in the packet's data, which lie 8 bytes aligned.
  template <typename Byte>
  __device__ __forceinline__ static auto& word(Byte* data, std::uint32_t round, std::uint32_t which) {
    using Word = std::conditional_t<std::is_const_v<Byte>, const std::uint64_t, std::uint64_t>;
    return *reinterpret_cast<Word*>(data + place(0) + std::size_t{round} * (4 * Line::kData) + 8 * which);
  }
  __device__ __forceinline__ static void put(Packet& to, std::uint32_t round, std::uint64_t first, std::uint64_t second) {
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(to.lines[line(round)].words + 2 * part()), "l"(first), "l"(second)
                 : "memory");
  }
  __device__ __forceinline__ static void get(const Packet& from, std::uint32_t round, std::uint64_t (&data)[2]) {
    relaxed_pair(from.lines[line(round)].words + 2 * part(), data);
  }
};
static_assert(sizeof(Line) == 128 && offsetof(Line, flag) == 120);

}  // namespace railweave::cuda
