// A thread in the place of a GPU block, for the roles of the exchange kernel: words are atomics, and each touch of one may be delayed.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>

#include "roles.hpp"

namespace railweave::cuda {

class HostBlock {
 public:
  // `delays`: of 1024 touches of a word, how many wait for the other threads first.
  HostBlock(std::uint32_t index, std::uint32_t blocks, std::uint64_t seed, std::uint32_t delays)
      : index_(index), blocks_(blocks), random_(seed), delays_(delays) {}

  std::uint32_t blocks() const { return blocks_; }
  std::uint32_t index() const { return index_; }

  template <typename T>
  T relaxed(const T* word) {
    delay();
    return atomic(word).load(std::memory_order_relaxed);
  }
  template <typename T>
  T acquire(const T* word) {
    delay();
    return atomic(word).load(std::memory_order_acquire);
  }
  template <typename T>
  void store(T* word, T value) {
    delay();
    atomic(word).store(value, std::memory_order_relaxed);
  }
  template <typename T>
  void release(T* word, T value) {
    delay();
    atomic(word).store(value, std::memory_order_release);
  }
  std::uint64_t arrived(const std::uint64_t* word) { return acquire(word); }
  void announce(std::uint64_t* word, std::uint64_t value) { add(word, value); }
  Mapping pair(const Mapping* mapping) {
    const std::uint64_t buffer = acquire(&mapping->buffer);
    return {buffer, relaxed(&mapping->base)};
  }
  MessageState* states(MessageState* in_global) { return in_global; }
  Share* shares() { return shares_; }
  static std::uint32_t count_zeros_below(std::uint64_t bits) { return static_cast<std::uint32_t>(std::countr_zero(bits)); }
  // Atomics carry the order that the fences beside them give on a GPU: the thread sanitizer knows no fences.
  template <typename T>
  T add(T* word, T value) {
    delay();
    return atomic(word).fetch_add(value, std::memory_order_acq_rel);
  }
  std::uint64_t take(std::uint64_t* word, std::uint64_t bits) {
    delay();
    return atomic(word).fetch_or(bits, std::memory_order_acq_rel);
  }
  template <typename T>
  bool swap_if(T* word, T old, T value) {
    delay();
    return atomic(word).compare_exchange_strong(old, value, std::memory_order_acq_rel);
  }
  void fence() {}

  void sync() {}
  template <typename F>
  auto share(F&& f) {
    return f();
  }
  template <typename F>
  void lead(F&& f) {
    f();
  }
  template <typename F>
  void leader(F&& f) {
    f();
  }
  template <typename F>
  std::uint64_t smallest(std::uint32_t count, F&& f) {
    std::uint64_t least = ~0ull;
    for (std::uint32_t i = 0; i < count; ++i) least = std::min(least, static_cast<std::uint64_t>(f(i)));
    return least;
  }
  template <typename F>
  void each(std::uint32_t count, F&& f) {
    for (std::uint32_t i = 0; i < count; ++i) f(i);
  }
  bool idle() {
    std::this_thread::yield();
    return ++idle_turns_ % 16 == 0;
  }
  std::uint64_t now() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
  }

  void copy(std::byte* to, const std::byte* from, std::uint32_t bytes) {
    if (to != from) std::memcpy(to, from, bytes);
  }
  void write_packets(Packet* to, const std::byte* from, std::uint32_t bytes, std::uint32_t flag) {
    for (std::uint32_t at = 0; at < bytes; at += 4) {
      std::uint32_t data = 0;
      std::memcpy(&data, from + at, std::min(4u, bytes - at));
      store(&to[at / 8].words[at / 4 % 2], std::uint64_t{flag} << 32 | data);
    }
    // A packet is 8 bytes of data, and both its words are awaited.
    if (bytes % 8 != 0 && bytes % 8 <= 4) store(&to[bytes / 8].words[1], std::uint64_t{flag} << 32);
  }
  template <typename F>
  void read_packets(const Packet* from, std::byte* to, std::uint32_t bytes, std::uint32_t flag, F&& give_up) {
    for (std::uint32_t at = 0; at < (bytes + 7) / 8 * 8; at += 4) {
      std::uint64_t word = 0;
      while ((word = relaxed(&from[at / 8].words[at / 4 % 2])) >> 32 != flag) {
        if (give_up()) return;
        std::this_thread::yield();
      }
      const auto data = static_cast<std::uint32_t>(word);
      if (at < bytes) std::memcpy(to + at, &data, std::min(4u, bytes - at));
    }
  }
  void wipe(Packet* packets) {
    for (std::uint64_t i = 0; i < kPackets; ++i) {
      for (std::uint64_t& word : packets[i].words) store(&word, std::uint64_t{0});
    }
  }

 private:
  template <typename T>
  static std::atomic_ref<T> atomic(const T* word) {
    return std::atomic_ref<T>(*const_cast<T*>(word));
  }
  void delay() {
    if (random_() % 1024 < delays_) std::this_thread::yield();
  }

  std::uint32_t index_;
  std::uint32_t blocks_;
  std::minstd_rand random_;
  std::uint32_t delays_;
  std::uint32_t idle_turns_ = 0;
  Share shares_[kMaxMessages] = {};
};

}  // namespace railweave::cuda
