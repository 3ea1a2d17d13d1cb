// What a communicator over several nodes has beside its mates: an engine, whose thread serves the node's rails, and the memory between it
// and the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../engine/engine.hpp"
#include "gpu_slots.hpp"
#include "rail_backend.hpp"
#include "several_nodes.hpp"

namespace railweave::cuda {

// A NIC of the node, as a rank of it sees it.
struct NicUse {
  std::string name;
  std::uint32_t owner = 0;
  std::uint64_t rate_Bps = 0;  // 0: unknown
  std::uint64_t sent = 0;      // bytes, by this rank
  std::uint32_t links = 0;     // to NICs of other nodes
  std::vector<std::string> down;
};

class Rails {
 public:
  // With the rank's device current. Takes the last rounds of the rendezvous. `facts`: of all ranks. Throws BootstrapError (on every rank).
  // `on_failure` is called on the engine's thread.
  Rails(std::uint32_t rank, const std::vector<NodeFacts>& facts, engine::Rendezvous& rendezvous, const ExchangeSettings& settings,
        Remarks& remarks, std::function<void(const engine::Failure&)> on_failure);
  Rails(const Rails&) = delete;
  Rails& operator=(const Rails&) = delete;
  ~Rails();

  // For the messages of an operation.
  RailSide side() const { return {port_.get(), counts_.get()}; }
  // An operation with messages to other nodes was queued, or captured.
  void expect(bool captured);
  // The communicator has ended. Does not wait.
  void stop();
  // The process is about to end: the port is looked at no more, once the engine's turn is over.
  void leave_kernels() { control_.no_kernels = true; }
  bool in_turn() const { return control_.in_turn; }
  // Once its own operations have ended: the others hear that this rank leaves, and it relays for them until nobody needs it, at most
  // drain_ms. close() waits for the end of that.
  void begin_close() { engine_->begin_close(); }
  void close() { engine_->close(); }

  // Also by the operation that runs.
  std::uint64_t bytes_sent(PathKind kind) const { return control_.bytes_by_kind[static_cast<std::size_t>(kind)].load(); }
  std::uint64_t bytes_of_ended() const { return control_.bytes_of_ended.load(); }  // of all kinds
  // Of messages with that rank that have ended, by direction.
  std::array<std::uint64_t, 2> bytes_moved(std::uint32_t peer) const {
    const auto& moved = control_.bytes_by_peer[peer];
    return {moved[0].load(), moved[1].load()};
  }
  std::vector<std::string> links_down() const { return engine_->links_down(); }
  // In the node's order; of one that leaves without links, as it takes them down itself.
  std::vector<NicUse> nics() const;
  std::optional<engine::Standing> standing(std::chrono::milliseconds limit) const { return engine_->standing(limit); }

 private:
  struct HostDeleter {
    void operator()(RailPort* port) const noexcept { cudaFreeHost(port); }
  };
  struct DeviceDeleter {
    void operator()(RailCounts* counts) const noexcept { cudaFree(counts); }
  };
  RailControl control_;
  GpuSlots slots_;
  std::unique_ptr<RailPort, HostDeleter> port_;
  std::unique_ptr<RailCounts, DeviceDeleter> counts_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace railweave::cuda
