// Memory in the place of a GPU's, for slots of NICs: the engine and its transports get addresses at which nobody may read or write, so a
// CPU's touch ends the test; kernels, and the NIC behind a transport, see the same memory elsewhere. Where the test was started with the
// stand-in for CUDA's driver, the memory is its device's, and UCX itself gets those addresses, with its own means for GPUs.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "job.hpp"
#include "railweave/engine/error.hpp"
#include "slot_memory.hpp"
#include "transport.hpp"
#include "ucx_transport.hpp"

namespace railweave::test {

// stand_in_driver.cpp.
struct StandInDriver {
  void (*add)(const std::byte* hidden, std::byte* visible, std::size_t bytes) = nullptr;
  void (*remove)(const std::byte* hidden) = nullptr;
  std::uint64_t (*copies)() = nullptr;

  // nullptr: the test runs without, or UCX has no means for GPUs.
  static const StandInDriver* get() {
    static const StandInDriver driver = load();
    return driver.add == nullptr ? nullptr : &driver;
  }

 private:
  static StandInDriver load() {
    StandInDriver driver;
    if (std::getenv("STAND_IN_DRIVER") == nullptr) return driver;
    void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY);
    engine::UcxOptions options;
    options.cuda = true;
    const auto nic = engine::make_ucx_transport(engine::UcxLibrary::load(test_ucx_library()), "lo", options);
    if (library == nullptr || !nic->knows(engine::MemoryKind::cuda)) return driver;
    driver.remove = reinterpret_cast<decltype(driver.remove)>(::dlsym(library, "stand_in_remove"));
    driver.copies = reinterpret_cast<decltype(driver.copies)>(::dlsym(library, "stand_in_copies"));
    driver.add = reinterpret_cast<decltype(driver.add)>(::dlsym(library, "stand_in_add"));
    return driver;
  }
};

// Both views of a piece of memory.
class HiddenMemory {
 public:
  explicit HiddenMemory(engine::SharedMemory memory) : memory_(std::move(memory)) {
    void* hidden = ::mmap(nullptr, memory_.bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hidden == MAP_FAILED) throw Error("no addresses left");
    hidden_ = static_cast<std::byte*>(hidden);
    if (const StandInDriver* driver = StandInDriver::get()) driver->add(hidden_, memory_.data(), memory_.bytes());
  }
  ~HiddenMemory() {
    if (const StandInDriver* driver = StandInDriver::get()) driver->remove(hidden_);
    ::munmap(hidden_, memory_.bytes());
  }
  HiddenMemory(const HiddenMemory&) = delete;
  HiddenMemory& operator=(const HiddenMemory&) = delete;

  std::span<std::byte> hidden() const { return {hidden_, memory_.bytes()}; }
  std::span<std::byte> visible() const { return {memory_.data(), memory_.bytes()}; }
  const engine::SharedMemory& memory() const { return memory_; }
  // The same place in the other view; nullptr where it is in none.
  std::byte* show(const std::byte* at) const { return other(at, hidden_, memory_.data()); }
  std::byte* hide(const std::byte* at) const { return other(at, memory_.data(), hidden_); }

 private:
  std::byte* other(const std::byte* at, const std::byte* from, std::byte* to) const {
    return at >= from && at < from + memory_.bytes() ? to + (at - from) : nullptr;
  }
  engine::SharedMemory memory_;
  std::byte* hidden_ = nullptr;
};

class HiddenSlots final : public engine::SlotMemory {
 public:
  std::vector<std::string> objections{"RAILWEAVE_GPU_DIRECT=0"};  // to this rank's NICs in turn; empty: none
  bool refuses_memory = false;
  bool refuses_mates = false;  // this rank maps no other's

  engine::MemoryKind kind() const override { return StandInDriver::get() == nullptr ? engine::MemoryKind::host : engine::MemoryKind::cuda; }
  std::string objection(const std::string&) const override { return objections[asked_++ % objections.size()]; }
  std::span<std::byte> make(std::uint64_t bytes) override {
    if (refuses_memory) throw Error("out of memory");
    if (own_ == nullptr) own_ = std::make_unique<HiddenMemory>(engine::SharedMemory::create("railweave-test-slots", bytes));
    return own_->hidden();
  }
  void drop() override { own_.reset(); }
  std::vector<std::byte> handle() const override {
    const auto* first = reinterpret_cast<const std::byte*>(&own_->memory().handle());
    return {first, first + sizeof(engine::MemoryHandle)};
  }
  std::byte* map(std::uint32_t rank, const engine::RankInfo& mate) override {
    if (refuses_mates) throw Error("no IPC");
    engine::MemoryHandle handle;
    std::memcpy(&handle, mate.slot_memory.data(), sizeof handle);
    mates_[rank] = std::make_unique<HiddenMemory>(engine::SharedMemory::open(handle));
    return mates_[rank]->hidden().data();
  }
  void say(const std::string& text) override { said.push_back(text); }
  void warn(const std::string& text) override { said.push_back(text); }
  void enter() const override { entered = true; }

  const HiddenMemory* own() const { return own_.get(); }
  // Where kernels find what the engine calls so.
  std::byte* show(const std::byte* at) const {
    if (own_ != nullptr && own_->show(at) != nullptr) return own_->show(at);
    for (const auto& [rank, memory] : mates_) {
      if (std::byte* visible = memory->show(at)) return visible;
    }
    return nullptr;
  }

  std::vector<std::string> said;
  mutable std::atomic<bool> entered{false};

 private:
  mutable std::size_t asked_ = 0;
  std::unique_ptr<HiddenMemory> own_;
  std::map<std::uint32_t, std::unique_ptr<HiddenMemory>> mates_;
};

// A NIC that reaches that memory: in front of a transport that is told of it as host memory, where it is not a device's.
class HiddenTransport final : public engine::Transport, engine::TransportListener {
 public:
  struct Counts {
    std::atomic<std::uint64_t> sent{0}, received{0};  // payloads out of hidden memory and into it
  };
  struct Refuses {
    bool registration = false, peers = false;
  };
  HiddenTransport(std::unique_ptr<engine::Transport> inner, const HiddenSlots& slots, Counts& counts, Refuses refuses)
      : inner_(std::move(inner)), slots_(slots), counts_(counts), refuses_(refuses) {}

  std::vector<std::byte> address() const override { return inner_->address(); }
  void set_listener(engine::TransportListener* listener) override {
    listener_ = listener;
    inner_->set_listener(listener == nullptr ? nullptr : this);
  }
  bool knows(engine::MemoryKind kind) const override { return !refuses_.peers && inner_->knows(kind); }
  void use_memory(std::span<std::byte> memory, engine::MemoryKind kind) override {
    if (refuses_.registration) throw TransportError("the NIC could not register it");
    inner_->use_memory({kind == engine::MemoryKind::host ? slots_.own()->show(memory.data()) : memory.data(), memory.size()}, kind);
  }
  void connect(std::uint32_t peer, std::span<const std::byte> address) override { inner_->connect(peer, address); }
  void disconnect(std::uint32_t peer) override { inner_->disconnect(peer); }
  bool reconnects() const override { return inner_->reconnects(); }
  void send(std::uint32_t peer, const engine::RailHeader& header, std::span<const std::byte> payload, std::uint64_t token) override {
    const std::byte* visible = slots_.own() == nullptr ? nullptr : slots_.own()->show(payload.data());
    if (visible == nullptr) return inner_->send(peer, header, payload, token);
    ++counts_.sent;
    inner_->send(peer, header, {slots_.kind() == engine::MemoryKind::host ? visible : payload.data(), payload.size()}, token);
  }
  void flush() override { inner_->flush(); }
  bool progress() override { return inner_->progress(); }
  int event_fd() const override { return inner_->event_fd(); }
  bool arm() override { return inner_->arm(); }

  std::byte* on_incoming(const engine::RailHeader& header, std::size_t bytes) override {
    std::byte* where = listener_->on_incoming(header, bytes);
    std::byte* visible = slots_.own() == nullptr ? nullptr : slots_.own()->show(where);
    if (visible == nullptr) return where;
    ++counts_.received;
    return slots_.kind() == engine::MemoryKind::host ? visible : where;
  }
  void on_delivered(const engine::RailHeader& header, std::byte* where, std::size_t bytes, bool ok) override {
    std::byte* hidden = slots_.own() == nullptr ? nullptr : slots_.own()->hide(where);
    listener_->on_delivered(header, hidden == nullptr ? where : hidden, bytes, ok);
  }
  void on_carried(const engine::RailHeader& header, std::span<const std::byte> frames) override { listener_->on_carried(header, frames); }
  void on_sent(std::uint64_t token) override { listener_->on_sent(token); }
  void on_peer_lost(std::uint32_t peer) override { listener_->on_peer_lost(peer); }

 private:
  std::unique_ptr<engine::Transport> inner_;
  const HiddenSlots& slots_;
  Counts& counts_;
  const Refuses refuses_;
  engine::TransportListener* listener_ = nullptr;
};

}  // namespace railweave::test
