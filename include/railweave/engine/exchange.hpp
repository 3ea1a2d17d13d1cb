// Exchanges: move bytes between the ranks of a job over all paths that the fabric has (docs/engine.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "railweave/engine/error.hpp"
#include "railweave/engine/interruption.hpp"
#include "railweave/engine/report.hpp"
#include "railweave/engine/settings.hpp"
#include "railweave/fabric/fabric.hpp"

namespace railweave {

namespace engine {
class Engine;
struct Operation;
}  // namespace engine

// A posted operation. The buffers belong to the exchange until it has ended.
class Handle {
 public:
  // Blocks until the operation has ended. Throws RankDied or ExchangeError if it failed; afterwards no rank touches its buffers.
  void wait();
  // Whether it has ended; throws like wait() if it failed.
  bool test();
  // Waits for at most `seconds`; false when the operation is still running then.
  bool wait_for(double seconds);
  // Of an operation that has ended.
  OperationReport report() const;

 private:
  friend class Exchange;
  friend class Group;
  explicit Handle(std::shared_ptr<engine::Operation> operation) : operation_(std::move(operation)) {}
  std::shared_ptr<engine::Operation> operation_;
};

// Sends and receives that start together; none blocks another. The k-th send from a rank to another on a communicator meets the k-th
// receive there, whatever groups they are in. Sends and receives of 0 bytes do nothing.
class Group {
 public:
  void send(const void* data, std::uint64_t bytes, std::uint32_t peer);
  void recv(void* data, std::uint64_t bytes, std::uint32_t peer);
  // Posts the group; it cannot be used afterwards.
  Handle end();

 private:
  friend class Exchange;
  Group(std::shared_ptr<engine::Engine> engine, std::uint32_t communicator);
  std::shared_ptr<engine::Engine> engine_;
  std::shared_ptr<engine::Operation> operation_;
};

// Memory that ranks of the same node write to directly.
class ExchangeBuffer {
 public:
  std::byte* data() const noexcept;
  std::uint64_t bytes() const noexcept;

 private:
  friend class Exchange;
  class Registration;
  explicit ExchangeBuffer(std::shared_ptr<Registration> registration) : registration_(std::move(registration)) {}
  std::shared_ptr<Registration> registration_;
};

// A fabric as JSON text; errors call it `source`.
struct FabricText {
  std::string_view json;
  std::string source;
};

class Exchange {
 public:
  // Brings `world` ranks together at `rendezvous` (tcp://HOST:PORT, where rank 0 listens, or file:///DIRECTORY). Without a fabric one is
  // derived from what the ranks find: a GPU a rank, its interfaces as NICs, rails by position. Throws BootstrapError on all ranks if one
  // fails, but SettingsError on a rank that fails for its settings. `interruption` can end the wait for the others.
  Exchange(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous,
           const ExchangeSettings& settings = settings_from_environment(), std::optional<Fabric> fabric = std::nullopt,
           Interruption interruption = {});
  // On a rank that cannot read its fabric throws what parse_fabric_json() does, once the others have heard of it, too.
  Exchange(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous, const ExchangeSettings& settings,
           const FabricText& fabric, Interruption interruption = {});
  ~Exchange();
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;

  std::uint32_t rank() const noexcept;
  std::uint32_t world() const noexcept;
  const Fabric& fabric() const noexcept;
  std::uint32_t node_count() const noexcept;
  // Links between nodes that are down at the moment, in words.
  std::vector<std::string> links_down() const;

  // Rank r gets send_counts[r] bytes from send + send_offsets[r]; all ranks of the exchange take part.
  Handle all_to_all_v(const void* send, std::span<const std::uint64_t> send_counts, std::span<const std::uint64_t> send_offsets, void* recv,
                      std::span<const std::uint64_t> recv_counts, std::span<const std::uint64_t> recv_offsets,
                      std::uint32_t communicator = 0);
  Group group(std::uint32_t communicator = 0);
  ExchangeBuffer allocate(std::uint64_t bytes);

  // Waits for own operations, then serves as relay until nobody needs it; bounded by the drain time. Later calls do nothing.
  void close();

 private:
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace railweave
