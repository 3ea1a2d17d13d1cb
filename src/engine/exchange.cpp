#include "railweave/engine/exchange.hpp"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <limits>

#include "engine.hpp"
#include "railweave/fabric/fabric_json.hpp"

namespace railweave {
namespace {

void throw_if_failed(const engine::Operation& operation) {
  if (operation.failure.kind != engine::FailureKind::none) std::rethrow_exception(engine::to_exception(operation.failure));
}

std::uint32_t chunk_count(std::uint64_t bytes, std::uint64_t chunk) {
  const std::uint64_t count = (bytes + chunk - 1) / chunk;
  if (bytes >= std::uint64_t{1} << 63 || count > std::numeric_limits<std::uint32_t>::max()) {
    throw ExchangeError("a message of " + std::to_string(bytes) + " bytes; expected at most 2^32 - 1 chunks of " + std::to_string(chunk) +
                        " bytes");
  }
  return static_cast<std::uint32_t>(count);
}

// A forked child has no engine thread: its operations would never end, and a lock may be held for ever.
void require_process(std::int32_t process) {
  if (process != ::getpid()) {
    throw ExchangeError("process " + std::to_string(::getpid()) + " did not create this exchange; expected process " +
                        std::to_string(process) + ": a forked child must create its own");
  }
}

// In a forked child it stays as it is: taken apart there it would end its parent's connections.
void destroy(engine::Engine* engine) {
  if (engine->is_of_this_process()) delete engine;
}

std::shared_ptr<engine::Engine> start(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous,
                                      const ExchangeSettings& settings, std::optional<Fabric> fabric, Interruption interruption) {
  return {new engine::Engine(rank, world, rendezvous, settings, std::move(fabric), engine::TransportWrapper{}, std::move(interruption)),
          destroy};
}

// Thrown where it is found, what is wrong with a fabric would leave the others waiting: it travels as a problem of the settings.
std::shared_ptr<engine::Engine> start(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous, ExchangeSettings settings,
                                      const FabricText& text, Interruption interruption) {
  std::optional<Fabric> fabric;
  std::exception_ptr unread;
  try {
    if (settings.problem.empty()) fabric = parse_fabric_json(text.json, text.source);
  } catch (const Error& error) {
    unread = std::current_exception();
    settings.problem = error.what();
  }
  try {
    return start(rank, world, rendezvous, settings, std::move(fabric), std::move(interruption));
  } catch (const Error&) {
    if (unread) std::rethrow_exception(unread);
    throw;
  }
}

}  // namespace

class ExchangeBuffer::Registration {
 public:
  explicit Registration(std::shared_ptr<engine::SharedMemory> shared, std::uint64_t size) : memory(std::move(shared)), bytes(size) {}
  std::shared_ptr<engine::SharedMemory> memory;
  std::uint64_t bytes;
};

std::byte* ExchangeBuffer::data() const noexcept { return registration_->memory->data(); }
std::uint64_t ExchangeBuffer::bytes() const noexcept { return registration_->bytes; }

void Handle::wait() {
  require_process(operation_->process);
  std::unique_lock lock(operation_->mutex);
  operation_->changed.wait(lock, [this] { return operation_->ended; });
  throw_if_failed(*operation_);
}

bool Handle::test() {
  require_process(operation_->process);
  const std::lock_guard lock(operation_->mutex);
  if (operation_->ended) throw_if_failed(*operation_);
  return operation_->ended;
}

bool Handle::wait_for(double seconds) {
  require_process(operation_->process);
  std::unique_lock lock(operation_->mutex);
  if (!operation_->changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return operation_->ended; })) return false;
  throw_if_failed(*operation_);
  return true;
}

OperationReport Handle::report() const {
  require_process(operation_->process);
  const std::lock_guard lock(operation_->mutex);
  if (!operation_->ended) throw ExchangeError("the operation is still running; wait for it before its report");
  return operation_->report;
}

Group::Group(std::shared_ptr<engine::Engine> engine, std::uint32_t communicator)
    : engine_(std::move(engine)), operation_(std::make_shared<engine::Operation>()) {
  operation_->communicator = communicator;
  operation_->process = engine_->cluster().self().pid;
}

void Group::send(const void* data, std::uint64_t bytes, std::uint32_t peer) {
  if (operation_ == nullptr) throw ExchangeError("the group has been posted; begin another");
  const engine::Cluster& cluster = engine_->cluster();
  if (peer >= cluster.world)
    throw ExchangeError("send to rank " + std::to_string(peer) + "; expected less than " + std::to_string(cluster.world));
  if (bytes == 0) return;
  engine::SendMessage message;
  message.key = {operation_->communicator, cluster.rank, peer, 0, 0};
  message.data = message.readable = static_cast<const std::byte*>(data);
  message.bytes = bytes;
  message.chunks.resize(chunk_count(bytes, engine_->memory().chunk_bytes()));
  operation_->sends.push_back(std::move(message));
}

void Group::recv(void* data, std::uint64_t bytes, std::uint32_t peer) {
  if (operation_ == nullptr) throw ExchangeError("the group has been posted; begin another");
  const engine::Cluster& cluster = engine_->cluster();
  if (peer >= cluster.world)
    throw ExchangeError("receive from rank " + std::to_string(peer) + "; expected less than " + std::to_string(cluster.world));
  if (bytes == 0) return;
  engine::RecvMessage message;
  message.key = {operation_->communicator, peer, cluster.rank, 0, 0};
  message.data = static_cast<std::byte*>(data);
  message.bytes = bytes;
  message.chunks = chunk_count(bytes, engine_->memory().chunk_bytes());
  operation_->recvs.push_back(std::move(message));
}

Handle Group::end() {
  if (operation_ == nullptr) throw ExchangeError("the group has been posted; begin another");
  require_process(operation_->process);
  auto operation = std::move(operation_);
  engine_->post(operation);
  return Handle(std::move(operation));
}

Exchange::Exchange(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous, const ExchangeSettings& settings,
                   std::optional<Fabric> fabric, Interruption interruption)
    : engine_(start(rank, world, rendezvous, settings, std::move(fabric), std::move(interruption))) {}

Exchange::Exchange(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous, const ExchangeSettings& settings,
                   const FabricText& fabric, Interruption interruption)
    : engine_(start(rank, world, rendezvous, settings, fabric, std::move(interruption))) {}

Exchange::~Exchange() {
  if (engine_ != nullptr) engine_->close();
}
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;

std::uint32_t Exchange::rank() const noexcept { return engine_->cluster().rank; }
std::uint32_t Exchange::world() const noexcept { return engine_->cluster().world; }
const Fabric& Exchange::fabric() const noexcept { return engine_->router().fabric(); }
std::uint32_t Exchange::node_count() const noexcept { return static_cast<std::uint32_t>(engine_->cluster().nodes.size()); }
std::vector<std::string> Exchange::links_down() const { return engine_->links_down(); }

Handle Exchange::all_to_all_v(const void* send, std::span<const std::uint64_t> send_counts, std::span<const std::uint64_t> send_offsets,
                              void* recv, std::span<const std::uint64_t> recv_counts, std::span<const std::uint64_t> recv_offsets,
                              std::uint32_t communicator) {
  for (const auto& list : {send_counts, send_offsets, recv_counts, recv_offsets}) {
    if (list.size() != world()) {
      throw ExchangeError("all_to_all_v with " + std::to_string(list.size()) + " counts or offsets; expected one for each of " +
                          std::to_string(world()) + " ranks");
    }
  }
  if (send_counts[rank()] != recv_counts[rank()]) {
    throw ExchangeError("all_to_all_v with " + std::to_string(send_counts[rank()]) + " bytes from rank " + std::to_string(rank()) +
                        " to itself, which is to receive " + std::to_string(recv_counts[rank()]) + "; expected as many");
  }
  Group group(engine_, communicator);
  group.operation_->collective = true;
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    group.send(static_cast<const std::byte*>(send) + send_offsets[peer], send_counts[peer], peer);
    group.recv(static_cast<std::byte*>(recv) + recv_offsets[peer], recv_counts[peer], peer);
  }
  return group.end();
}

Group Exchange::group(std::uint32_t communicator) { return Group(engine_, communicator); }

ExchangeBuffer Exchange::allocate(std::uint64_t bytes) {
  require_process(engine_->cluster().self().pid);
  return ExchangeBuffer(std::make_shared<ExchangeBuffer::Registration>(engine_->allocate(bytes), bytes));
}

void Exchange::close() { engine_->close(); }

}  // namespace railweave
