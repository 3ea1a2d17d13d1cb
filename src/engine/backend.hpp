// Who pushes and pulls: the roles of docs/protocol.md §5 and §6, over a Copier. The host backend's copies in the engine thread; a backend
// for GPUs (src/cuda/rail_backend.hpp) takes its operations from kernels, and has them copy.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "cluster.hpp"
#include "control.hpp"
#include "node_memory.hpp"
#include "operation.hpp"
#include "router.hpp"

namespace railweave::engine {

// What a `grant` says (docs/protocol.md §4).
struct Grant {
  MessageKey message;
  std::uint64_t bytes = 0;
  std::uint32_t chunks = 0;  // that may be sent
  std::uint32_t has_buffer = 0;
  MemoryHandle memory;  // where mates may write
  std::uint64_t offset = 0;
};

// An `ask`: the source wants a grant.
struct Ask {
  MessageKey message;
  std::uint64_t bytes = 0;
};

enum class MessageState : std::uint8_t { unposted, unfinished, over };

// What a backend needs from the engine.
class EngineServices {
 public:
  virtual ~EngineServices() = default;
  virtual const Cluster& cluster() const = 0;
  virtual NodeMemory& memory() = 0;
  virtual ControlChannel& control() = 0;
  virtual const Router& router() const = 0;
  // New chunks may go through that rank's slots or NIC.
  virtual bool relays(std::uint32_t rank) const = 0;
  // Chunks that went through that rank may still arrive.
  virtual bool serves(std::uint32_t rank) const = 0;
  virtual std::uint64_t link_word(std::uint32_t nic, std::uint32_t peer) const = 0;
  // Registered memory of this rank that holds [data, data + bytes), if any; kept while the result lives.
  virtual std::shared_ptr<void> registered(const std::byte* data, std::uint64_t bytes, MemoryHandle& handle, std::uint64_t& offset) = 0;
  // A mate's registered memory, mapped here.
  virtual std::shared_ptr<SharedMemory> map(const MemoryHandle& handle) = 0;
  // This rank's side of the message.
  virtual MessageState state_of(const MessageKey& key) const = 0;
  virtual std::uint64_t eager_bytes() const = 0;
  // Transfers that may be under way at once on a link of that NIC.
  virtual std::uint32_t link_window(std::uint32_t nic) const = 0;
  virtual void message_over(Operation& operation) = 0;
  virtual void fail(Operation& operation, const Failure& failure) = 0;
  // A rank whose process has ended, as far as this one knows: why other ranks leave, or fail.
  virtual std::optional<Failure> death() const = 0;
  // An operation of the backend's own making; as from a program's thread.
  virtual void post(const std::shared_ptr<Operation>& operation) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // The operation's receives, and the sends that need no route and no grant.
  virtual void start(Operation& operation) = 0;
  // The operation's other sends: their routes are known.
  virtual void send(Operation& operation) = 0;
  virtual void on_record(const Record& record) = 0;
  virtual void on_grant(const Grant& grant) = 0;
  virtual void on_eager(const MessageKey& message, std::span<const std::byte> data) = 0;
  virtual void on_ask(const Ask& ask) = 0;
  virtual void on_credit(std::uint32_t destination, std::uint64_t taken) = 0;
  // The whole message is here, and its receive has not been posted yet.
  virtual bool has_come(const MessageKey& message) const = 0;
  // The operation is over, well or not.
  virtual void on_end(const Operation& operation) = 0;
  // The engine's thread ends by an error: nothing is called any more. Takes no memory but for the failure's text.
  virtual void on_break_down(const Failure& /*failure*/) {}
  // Asks for the grants of sends that have waited since before `posted_before`.
  virtual void ask_late(std::uint64_t posted_before) = 0;
  // Pushes what has room; true if anything moved.
  virtual bool advance() = 0;
  // A link word, lease or rank changed: attempts that cannot be trusted any more go out again.
  virtual void retire_attempts() = 0;
  // That rank has left, or is dead and had ended all its operations well: what it had granted has landed, though nobody may have said so.
  virtual void has_all(std::uint32_t destination) = 0;
  // Forgets the messages of an operation that failed; nothing of it is touched afterwards.
  virtual void drop(Operation& operation) = 0;
  // When advance() wants to be called at the latest although nothing has woken the engine thread.
  virtual std::uint64_t next_look(std::uint64_t /*now*/) const { return std::numeric_limits<std::uint64_t>::max(); }
  // How long the engine thread shall look for work before it sleeps; the setting spin_us if that is longer.
  virtual std::uint64_t spin_ns() const { return 0; }
};

using BackendMaker = std::function<std::unique_ptr<Backend>(EngineServices& services)>;
std::unique_ptr<Backend> make_host_backend(EngineServices& services);

}  // namespace railweave::engine
