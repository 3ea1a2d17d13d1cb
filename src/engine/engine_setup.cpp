// Bringing an engine up: bootstrap rounds, memory, transports, links.
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "engine.hpp"
#include "railweave/engine/error.hpp"
#include "ucx_transport.hpp"

namespace railweave::engine {
namespace {

// Runs a step that only this rank may fail, so that the next round can tell all.
template <typename Step>
std::string problem_of(Step&& step) {
  try {
    step();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::unique_ptr<Rendezvous> meet(std::uint32_t rank, std::uint32_t world, const std::string& address, const ExchangeSettings& settings) {
  check(settings);
  if (world == 0 || world > kMaxRanks)
    throw ExchangeError("world " + std::to_string(world) + "; expected 1 to " + std::to_string(kMaxRanks));
  if (rank >= world) throw ExchangeError("rank " + std::to_string(rank) + " of " + std::to_string(world) + "; expected less than world");
  return make_rendezvous(address, rank, world, std::chrono::milliseconds(settings.bootstrap_ms));
}

}  // namespace

Engine::Engine(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous, const ExchangeSettings& settings,
               std::optional<Fabric> fabric, const TransportWrapper& wrap)
    : Engine(rank, world, *meet(rank, world, rendezvous, settings), settings, std::move(fabric), wrap, make_host_backend) {}

Engine::Engine(std::uint32_t rank, std::uint32_t world, Rendezvous& rendezvous, const ExchangeSettings& settings,
               std::optional<Fabric> fabric, const TransportWrapper& wrap, const BackendMaker& make_backend)
    : settings_(settings) {
  cluster_ = exchange_identity(rendezvous, rank, world, settings);
  set_up(rendezvous, std::move(fabric), wrap, make_backend);
}

void Engine::set_up(Rendezvous& rendezvous, std::optional<Fabric> fabric, const TransportWrapper& wrap, const BackendMaker& make_backend) {
  std::vector<std::unique_ptr<Transport>> transports;
  Resources mine;
  const std::string resources = problem_of([&] {
    router_ = std::make_unique<Router>(cluster_, fabric ? std::move(*fabric) : derive_fabric(cluster_), settings_);
    memory_ = std::make_unique<NodeMemory>(cluster_, settings_);
    mine.region = memory_->region();
    mine.doorbell_fd = memory_->doorbell_fd();
    transports = open_transports(wrap);
    for (const auto& transport : transports) mine.nic_addresses.push_back(transport->address());
  });
  exchange_resources(rendezvous, cluster_, mine, resources);
  const std::string mapping = problem_of([&] {
    memory_->map_mates(cluster_);
    proxy_ = std::make_unique<RailProxy>(
        cluster_, *memory_, settings_, std::move(transports),
        [this](std::uint32_t nic, std::uint32_t peer) { return router_->connected(nic, peer); },
        [this](std::uint32_t nic) { return router_->nominal_Bps(nic); },
        [this](std::span<const std::byte> frame) { control_->receive(frame, now_ns()); });
    control_ = std::make_unique<ControlChannel>(
        cluster_, *memory_, *proxy_, settings_,
        [this](std::uint32_t source, FrameType type, ByteReader& payload) { on_frame(source, type, payload); });
    members_ = std::vector<Member>(cluster_.world);
    silent_ns_.assign(cluster_.nodes.size(), 0);
    heard_.assign(cluster_.nodes.size(), 0);
    watch_mates();
    backend_ = make_backend(*this);
  });
  agree(rendezvous, "mapped", mapping);
  links_settled_.store(proxy_->all_links_up());
  // From here mates may write into the region and rails may carry; the thread must serve them even if a later round fails.
  thread_ = std::thread([this] { run(); });
  try {
    bring_links_up();
    agree(rendezvous, "ready", "");
    rendezvous.finish();
  } catch (...) {
    close();
    throw;
  }
}

std::vector<std::unique_ptr<Transport>> Engine::open_transports(const TransportWrapper& wrap) const {
  std::vector<std::unique_ptr<Transport>> transports;
  if (cluster_.nodes.size() < 2 || cluster_.self().nics.empty()) return transports;
  const auto library = UcxLibrary::load(settings_.ucx_library);
  for (const std::uint32_t nic : cluster_.self().nics) {
    auto transport = make_ucx_transport(library, cluster_.nics[nic].device, settings_.ucx_tls, settings_.chunk_bytes);
    const auto own = static_cast<std::uint32_t>(transports.size());
    transports.push_back(wrap ? wrap(std::move(transport), own) : std::move(transport));
  }
  return transports;
}

// Mates in other processes are watched through pidfds; ranks that are threads of this process end with it.
void Engine::watch_mates() {
  for (const std::uint32_t rank : cluster_.mates()) {
    const std::int32_t pid = cluster_.ranks[rank].pid;
    if (pid == ::getpid()) continue;
    members_[rank].pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!members_[rank].pidfd) {
      throw Error("cannot watch the process of rank " + std::to_string(rank) + " (pid " + std::to_string(pid) +
                  "): pidfd_open failed; Linux 5.3 or newer is needed, and ranks of one node must share a PID namespace");
    }
  }
}

// Operations that start before all links are up would crowd onto the first ones.
void Engine::bring_links_up() {
  const std::uint64_t deadline = now_ns() + 2 * settings_.rail_timeout_ms * 1'000'000;
  while (!links_settled_.load() && now_ns() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Engine::~Engine() { close(); }

}  // namespace railweave::engine
