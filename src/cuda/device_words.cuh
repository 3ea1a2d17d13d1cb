// Words and packets for GPU threads: what the roles of blocks (device_block.cuh) and of warps (device_warp.cuh) share.
#pragma once

#include <cstdint>
#include <type_traits>

#include "packet_roles.hpp"

namespace railweave::cuda {

inline constexpr std::uint32_t kThreads = 512;
inline constexpr std::uint32_t kWarps = kThreads / 32;

// Less than 8 bytes from anywhere, at once. Not inlined: what a kernel of a few microseconds runs it has to fetch first.
inline __device__ __noinline__ std::uint64_t load_bytes(const std::byte* from, std::uint32_t bytes) {
  std::uint64_t value = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 7; ++i) {
    if (i < bytes) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  }
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
  // Both in one access, at a multiple of 16 bytes.
  __device__ __forceinline__ static void store_pair(std::uint64_t* words, std::uint64_t first, std::uint64_t second) {
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(first), "l"(second) : "memory");
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
  __device__ __forceinline__ static void relaxed_four(const std::uint32_t* words, std::uint32_t (&values)[4]) {
    asm volatile("ld.relaxed.sys.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "l"(words)
                 : "memory");
  }
  // Whoever changes a mapping writes its base before its name.
  __device__ __forceinline__ static Mapping pair(const Mapping* mapping) {
    static_assert(sizeof(Mapping) == 16 && alignof(Mapping) == 16 && offsetof(Mapping, base) == 8);
    std::uint64_t words[2];
    relaxed_pair(reinterpret_cast<const std::uint64_t*>(mapping), words);
    return {words[0], words[1]};
  }
  __device__ __forceinline__ static Count counted(const Count* count) {
    static_assert(sizeof(Count) == 16 && alignof(Count) == 16 && offsetof(Count, over) == 8);
    std::uint64_t words[2];
    relaxed_pair(reinterpret_cast<const std::uint64_t*>(count), words);
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

  // --- Packets: by a warp. Lanes 8 l to 8 l + 7 have 16 bytes of a line each, the last one 8 and the flag.
  struct Destination {
    Packet* to;  // none: it may not be written
    std::uint64_t flag;
  };
  template <typename Find>
  __device__ __forceinline__ static bool write_packet(const std::byte* from, std::uint32_t bytes, Find&& find) {
    if (reinterpret_cast<std::uintptr_t>(from) % 8 != 0) return write_packet_from_between(from, bytes, find);
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
  // Calls `taken` at all lanes once its loads are over.
  template <typename Taken>
  __device__ __forceinline__ static bool read_packet(const Packet& from, std::uint64_t flag, std::byte* to, std::uint32_t bytes,
                                                     Taken&& taken) {
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
      store_between(from, to, bytes);
    } else if (whole) {
      taken();  // what was loaded has been looked at; 0.1 to 0.3 us of a message that waits for credits
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        word(to, k, 0) = data[k][0];
        if (!has_flag()) word(to, k, 1) = data[k][1];
      }
      return true;
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
    taken();
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
  // Data that do not begin at a multiple of 8 bytes are loaded and stored in words that do, and shifted. Byte by byte a packet took 16
  // times as many sectors' accesses, and those of a lane one after another: 0.46 to 0.75 of NCCL's speed (docs/cuda-measured.md).
  template <typename Find>
  __device__ __forceinline__ static bool write_packet_from_between(const std::byte* from, std::uint32_t bytes, Find&& find) {
    const auto skew = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(from) % 8);
    const auto* const base = reinterpret_cast<const std::uint64_t*>(from - skew);
    // The first word begins before the data. A last one that ends behind them is loaded by bytes, too.
    const std::uint32_t end = skew + bytes, whole = end / 8;
    const std::uint64_t first = load_bytes(from, end < 8 ? bytes : 8 - skew) << (8 * skew);
    const std::uint64_t last = whole > 0 ? load_bytes(reinterpret_cast<const std::byte*>(base + whole), end % 8) : 0;
    std::uint64_t data[kRounds][2];
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
#pragma unroll
      for (std::uint32_t j = 0; j < 2; ++j) {
        const std::uint32_t i = place(k) / 8 + j;
        data[k][j] = i == 0 ? first : last;
        if (i != 0 && i < whole && (j == 0 || !has_flag())) data[k][j] = base[i];
      }
    }
    const Destination there = find();
    if (there.to == nullptr) return false;
    const std::uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      // The word behind a lane's last one is the first of the lane behind it; of the last lane, the first lane's of the round behind.
      const std::uint64_t lent = lane != 0 ? data[k][0] : k + 1 < kRounds ? data[k + 1][0] : last;
      const std::uint64_t behind = __shfl_sync(~0u, static_cast<unsigned long long>(lent), static_cast<int>((lane + 1) % 32));
      if (line(k) * Line::kData >= bytes) continue;
      const std::uint64_t own = joined(data[k][0], has_flag() ? behind : data[k][1], 8 * skew);
      put(*there.to, k, own, has_flag() ? there.flag : joined(data[k][1], behind, 8 * skew));
    }
    return true;
  }
  // A packet that has come. Not inlined, and asked for once more, for registers.
  __device__ __noinline__ static void store_between(const Packet& from, std::byte* to, std::uint32_t bytes) {
    const auto skew = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(to) % 8);
    auto* const base = reinterpret_cast<std::uint64_t*>(to - skew);
    // Words of memory from 1 to before `whole` are all the packet's. What is behind them is of the last word of data, or of the last two.
    const std::uint32_t whole = (skew + bytes) / 8, last = (bytes - 1) / 8, lane = threadIdx.x & 31;
    std::uint64_t data[kRounds][2] = {}, rest = 0;
    bool has_rest = false;
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      if (line(k) * Line::kData < bytes) get(from, k, data[k]);
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      // The word before a lane's first one is the last of the lane before it; of the first lane, the last lane's of the round before.
      const std::uint64_t lent = lane == 31 ? data[k == 0 ? 0 : k - 1][0] : has_flag() ? data[k][0] : data[k][1];
      const std::uint64_t before = __shfl_sync(~0u, static_cast<unsigned long long>(lent), static_cast<int>((lane + 31) % 32));
      const std::uint64_t words[2] = {joined(before, data[k][0], 64 - 8 * skew), joined(data[k][0], data[k][1], 64 - 8 * skew)};
#pragma unroll
      for (std::uint32_t j = 0; j < 2; ++j) {
        const std::uint32_t i = place(k) / 8 + j;
        if (j == 1 && has_flag()) continue;
        if (i > 0 && i < whole) base[i] = words[j];
        if (i == last && whole > 0) {
          rest = whole == last ? words[j] : data[k][j] >> (64 - 8 * skew);
          has_rest = true;
        }
      }
    }
    if (lane == 0) store_bytes(to, data[0][0], whole == 0 ? bytes : 8 - skew);
    if (has_rest) store_bytes(reinterpret_cast<std::byte*>(base + whole), rest, (skew + bytes) % 8);
  }
  // 64 bits of the 128 of two words, from bit `shift` on: 8 to 56.
  __device__ __forceinline__ static std::uint64_t joined(std::uint64_t low, std::uint64_t high, std::uint32_t shift) {
    return low >> shift | high << (64 - shift);
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
