// A thread in the place of a GPU block, or of a warp, for the roles of the exchange kernels: words are atomics, and each touch of one,
// and each copy, may be delayed.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>
#include <source_location>
#include <thread>
#include <vector>

#include "roles.hpp"

namespace railweave::cuda {

// Where the roles touch a word or copy.
using Site = std::source_location;

// Each thread is slow at a few of these sites, which its seed chooses: it sleeps before the first, second, fourth, ... touch there, so in a
// loop, too, and not for long. What the others do in the meantime they do between any two touches that the roles make one after the other.
class HostWords {
 public:
  // `delays`: of 1024 touches of a word, how many wait for the other threads first; 0: none, and no site is slow.
  HostWords(std::uint64_t seed, std::uint32_t delays) : random_(seed), delays_(delays), slow_(random_() % kSites) {}

  template <typename T>
  T relaxed(const T* word, Site site = Site::current()) {
    delay(site);
    return atomic(word).load(std::memory_order_relaxed);
  }
  template <typename T>
  T acquire(const T* word, Site site = Site::current()) {
    delay(site);
    return atomic(word).load(std::memory_order_acquire);
  }
  template <typename T>
  void store(T* word, T value, Site site = Site::current()) {
    delay(site);
    atomic(word).store(value, std::memory_order_relaxed);
  }
  // At once for who reads them under the mutex.
  static std::mutex& pairs() {
    static std::mutex mutex;
    return mutex;
  }
  void store_pair(std::uint64_t* words, std::uint64_t first, std::uint64_t second, Site site = Site::current()) {
    delay(site);
    const std::scoped_lock lock(pairs());
    atomic(words).store(first, std::memory_order_relaxed);
    atomic(words + 1).store(second, std::memory_order_relaxed);
  }
  template <typename T>
  void release(T* word, T value, Site site = Site::current()) {
    delay(site);
    atomic(word).store(value, std::memory_order_release);
  }
  std::uint64_t arrived(const std::uint64_t* word, Site site = Site::current()) { return acquire(word, site); }
  void announce(std::uint64_t* word, std::uint64_t value, Site site = Site::current()) { add(word, value, site); }
  // The thread sanitizer does not see that loads are over.
  void vacate(std::uint64_t* word, std::uint64_t value, Site site = Site::current()) { release(word, value, site); }
  Mapping pair(const Mapping* mapping, Site site = Site::current()) {
    const std::uint64_t buffer = acquire(&mapping->buffer, site);
    return {buffer, relaxed(&mapping->base, site)};
  }
  Count counted(const Count* count, Site site = Site::current()) {
    const std::uint64_t over = relaxed(&count->over, site);
    return {relaxed(&count->value, site), over};
  }
  // Atomics carry the order that the fences beside them give on a GPU: the thread sanitizer knows no fences.
  template <typename T>
  T add(T* word, T value, Site site = Site::current()) {
    delay(site);
    return atomic(word).fetch_add(value, std::memory_order_acq_rel);
  }
  std::uint64_t take(std::uint64_t* word, std::uint64_t bits, Site site = Site::current()) {
    delay(site);
    return atomic(word).fetch_or(bits, std::memory_order_acq_rel);
  }
  template <typename T>
  bool swap_if(T* word, T old, T value, Site site = Site::current()) {
    delay(site);
    return atomic(word).compare_exchange_strong(old, value, std::memory_order_acq_rel);
  }
  void raise_between(std::uint64_t* word, std::uint64_t value, Site site = Site::current()) {
    for (std::uint64_t old = relaxed(word, site); old < value && !swap_if(word, old, value, site);) old = relaxed(word, site);
  }
  void add_between(std::uint64_t* word, std::uint64_t value, Site site = Site::current()) { add(word, value, site); }
  void fence() {}

  bool idle() {
    std::this_thread::yield();
    return ++idle_turns_ % 16 == 0;
  }
  std::uint64_t now() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
  }

  // A line comes whole: its flag after its data.
  void write_packet(Packet& to, std::uint64_t flag, const std::byte* from, std::uint32_t bytes) {
    for (std::uint32_t k = 0; k * Line::kData < bytes; ++k) {
      delay(Site::current());
      std::uint64_t words[Line::kWords] = {};
      std::memcpy(words, from + k * Line::kData, std::min(Line::kData, bytes - k * Line::kData));
      for (std::uint32_t w = 0; w < Line::kWords; ++w) atomic(&to.lines[k].words[w]).store(words[w], std::memory_order_relaxed);
      release(&to.lines[k].flag, flag);
    }
  }
  bool read_packet(const Packet& from, std::uint64_t flag, std::byte* to, std::uint32_t bytes) {
    for (std::uint32_t k = 0; k * Line::kData < bytes; ++k) {
      if (acquire(&from.lines[k].flag) != flag) return false;
    }
    delay(Site::current());
    for (std::uint32_t k = 0; k * Line::kData < bytes; ++k) {
      std::uint64_t words[Line::kWords];
      for (std::uint32_t w = 0; w < Line::kWords; ++w) words[w] = atomic(&from.lines[k].words[w]).load(std::memory_order_relaxed);
      std::memcpy(to + k * Line::kData, words, std::min(Line::kData, bytes - k * Line::kData));
    }
    return true;
  }

 protected:
  template <typename T>
  static std::atomic_ref<T> atomic(const T* word) {
    return std::atomic_ref<T>(*const_cast<T*>(word));
  }
  void delay(const Site& site) {
    if (delays_ == 0) return;
    if (random_() % 1024 < delays_) std::this_thread::yield();
    const bool slow = (site.line() * 7 + site.column()) % kSites == slow_;
    if (slow && std::has_single_bit(++slow_touches_)) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  static constexpr std::uint32_t kSites = 32;  // kinds of sites

  std::minstd_rand random_;
  std::uint32_t delays_, slow_, slow_touches_ = 0;
  std::uint32_t idle_turns_ = 0;
};

class HostBlock : public HostWords {
 public:
  static constexpr bool kMany = false;

  HostBlock(std::uint32_t index, std::uint32_t blocks, std::uint64_t seed, std::uint32_t delays)
      : HostWords(seed, delays), index_(index), blocks_(blocks) {}

  std::uint32_t blocks() const { return blocks_; }
  std::uint32_t index() const { return index_; }
  MessageState* states(MessageState* in_global) { return in_global; }
  Share* shares() { return shares_.data(); }
  void make_room(std::uint32_t messages) { shares_.resize(messages); }
  static std::uint32_t count_zeros_below(std::uint64_t bits) { return static_cast<std::uint32_t>(std::countr_zero(bits)); }
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
  auto smallest(std::uint32_t count, F&& f) {
    auto least = ~decltype(f(0u)){0};
    for (std::uint32_t i = 0; i < count; ++i) least = std::min(least, f(i));
    return least;
  }
  template <typename F>
  std::uint64_t uniform(F&& f) {
    return f();
  }
  template <std::uint32_t Count, typename F>
  void gather(std::uint64_t (&words)[Count], F&& address, Site site = Site::current()) {
    for (std::uint32_t i = 0; i < Count; ++i) words[i] = acquire(address(i), site);
  }
  template <typename F>
  void each(std::uint32_t count, F&& f) {
    for (std::uint32_t i = 0; i < count; ++i) f(i);
  }
  void copy(std::byte* to, const std::byte* from, std::uint32_t bytes, Site site = Site::current()) {
    delay(site);
    if (to != from) std::memcpy(to, from, bytes);
  }
  void write_bundle(Port& to, std::uint64_t number, const std::byte* from, std::uint32_t bytes) {
    for (std::uint32_t at = 0; at < bytes; at += Packet::kData, ++number)
      write_packet(to.packets[number % kPacketSlots], packet_flag(number), from + at, std::min(Packet::kData, bytes - at));
  }
  void read_bundle(const Port& from, Port& source, std::uint64_t number, std::byte* to, std::uint32_t bytes, const std::uint32_t* stop) {
    for (std::uint32_t at = 0; at < bytes; at += Packet::kData, ++number) {
      const std::uint32_t slot = number % kPacketSlots;
      while (!read_packet(from.packets[slot], packet_flag(number), to + at, std::min(Packet::kData, bytes - at))) {
        if (relaxed(stop) != 0) return;
        std::this_thread::yield();
      }
      // The thread sanitizer does not see that the packet's loads are over.
      release(&source.credits[slot], credit_of(number));
    }
  }

 private:
  std::uint32_t index_;
  std::uint32_t blocks_;
  std::vector<Share> shares_;
};

// Of more messages than one look takes.
class HostBlockOfMany : public HostBlock {
 public:
  using HostBlock::HostBlock;
  static constexpr bool kMany = true;
};

class HostWarp : public HostWords {
 public:
  HostWarp(std::uint32_t index, std::uint32_t warps, std::uint64_t seed, std::uint32_t delays)
      : HostWords(seed, delays), index_(index), warps_(warps) {}

  std::uint32_t warps() const { return warps_; }
  std::uint32_t index() const { return index_; }
  template <typename T>
  using Lanes = std::array<T, kMaxPacketMessages>;
  template <typename T>
  static T& at(std::array<T, kMaxPacketMessages>& lanes, std::uint32_t i) {
    return lanes[i];
  }
  template <typename F>
  void each(std::uint32_t count, F&& f) {
    for (std::uint32_t i = 0; i < count; ++i) f(i);
  }
  template <typename F>
  std::uint32_t mask(std::uint32_t count, F&& f) {
    std::uint32_t bits = 0;
    for (std::uint32_t i = 0; i < count; ++i) bits |= f(i) ? 1u << i : 0u;
    return bits;
  }
  template <typename F>
  std::uint64_t from(std::uint32_t, F&& f) {
    return f();
  }
  template <typename F>
  void leader(F&& f) {
    f();
  }
  static std::uint32_t lowest(std::uint32_t bits) { return static_cast<std::uint32_t>(std::countr_zero(bits)); }
  template <typename Number>
  bool write(Port& to, const Port& own, const std::byte* from, std::uint32_t bytes, bool patient, Number&& number_of) {
    const std::uint64_t number = number_of();
    const std::uint32_t slot = number % kPacketSlots;
    for (std::uint32_t looks = patient ? 4 : 1; looks > 0; --looks) {
      if (!is_credited(acquire(&own.credits[slot]), number)) continue;
      write_packet(to.packets[slot], packet_flag(number), from, bytes);
      return true;
    }
    return false;
  }
  void stagger(std::uint32_t, Site site = Site::current()) { delay(site); }
  void touch(const Port& port) { relaxed(&port.packets[0].lines[0].flag); }
  template <typename Taken>
  bool read(const Packet& from, std::uint64_t flag, std::byte* to, std::uint32_t bytes, Taken&& taken) {
    if (!read_packet(from, flag, to, bytes)) return false;
    taken();
    return true;
  }
  // Each is a block of its own.
  static bool may_be_last_to_begin() { return true; }
  void began(std::uint32_t* count) { begun_before_ = add(count, 1u); }
  bool was_last_to_begin() const { return begun_before_ + 1 == warps_; }

 private:
  std::uint32_t begun_before_ = 0;
  std::uint32_t index_;
  std::uint32_t warps_;
};

}  // namespace railweave::cuda
