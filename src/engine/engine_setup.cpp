// Bringing an engine up: bootstrap rounds, memory, transports, links.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <system_error>

#include "engine.hpp"
#include "folder.hpp"
#include "railweave/engine/error.hpp"
#include "socket_transport.hpp"
#include "tx_link.hpp"
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

// Else links would stay down without a word.
void check_descriptors(std::size_t links) {
  rlimit limit{};
  const std::size_t there = names_in("/proc/self/fd").size(), needed = 2 * links;
  if (there == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (there + needed <= limit.rlim_cur) return;
  throw TransportError(std::to_string(links) + " links to NICs on other nodes need " + std::to_string(needed) +
                       " descriptors; the process has " + std::to_string(there) + " of the " + std::to_string(limit.rlim_cur) +
                       " that it may have (raise ulimit -n)");
}

std::unique_ptr<Rendezvous> meet(std::uint32_t rank, std::uint32_t world, const std::string& address, const ExchangeSettings& settings,
                                 Interruption interruption) {
  if (world == 0 || world > kMaxRanks)
    throw ExchangeError("world " + std::to_string(world) + "; expected 1 to " + std::to_string(kMaxRanks));
  if (rank >= world) throw ExchangeError("rank " + std::to_string(rank) + " of " + std::to_string(world) + "; expected less than world");
  // No setting has been checked yet, so this one may be out of its range, too.
  constexpr std::uint64_t kHourMs = 3'600'000;
  return make_rendezvous(address, rank, world, std::chrono::milliseconds(std::min(settings.bootstrap_ms, kHourMs)),
                         std::move(interruption));
}

}  // namespace

Engine::Engine(std::uint32_t rank, std::uint32_t world, const std::string& rendezvous, const ExchangeSettings& settings,
               std::optional<Fabric> fabric, const TransportWrapper& wrap, Interruption interruption) try
    : Engine(rank, world, *meet(rank, world, rendezvous, settings, std::move(interruption)), settings, std::move(fabric), wrap) {
} catch (const BootstrapError&) {
  check(settings);  // this rank's own, whatever others said or did not come to hear
  throw;
}

Engine::Engine(std::uint32_t rank, std::uint32_t world, Rendezvous& rendezvous, const ExchangeSettings& settings,
               std::optional<Fabric> fabric, const TransportWrapper& wrap)
    : Engine(exchange_identity(rendezvous, rank, world, settings), rendezvous, settings, std::move(fabric), wrap, make_host_backend) {}

Engine::Engine(Cluster cluster, Rendezvous& rendezvous, const ExchangeSettings& settings, std::optional<Fabric> fabric,
               const TransportWrapper& wrap, const BackendMaker& make_backend, SlotMemory* slots)
    : settings_(settings), slots_(slots), cluster_(std::move(cluster)) {
  set_up(rendezvous, std::move(fabric), wrap, make_backend);
}

void Engine::set_up(Rendezvous& rendezvous, std::optional<Fabric> fabric, const TransportWrapper& wrap, const BackendMaker& make_backend) {
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::string> objections;
  Resources mine;
  const std::string making = problem_of([&] {
    router_ = std::make_unique<Router>(cluster_, fabric ? std::move(*fabric) : derive_fabric(cluster_), settings_);
    memory_ = std::make_unique<NodeMemory>(cluster_, settings_);
    std::vector<OpenNic> nics = open_nics(wrap);
    mine = resources(nics);
    for (OpenNic& nic : nics) {
      transports.push_back(std::move(nic.transport));
      objections.push_back(std::move(nic.objection));
    }
  });
  exchange_resources(rendezvous, cluster_, mine, making);
  std::promise<bool> runs;
  const std::string mapping = problem_of([&] {
    memory_->map_mates(cluster_);
    move_nic_slots();
    proxy_ = std::make_unique<RailProxy>(
        cluster_, *memory_, settings_, std::move(transports),
        [this](std::uint32_t nic, std::uint32_t peer) { return router_->connected(nic, peer); },
        [this](std::uint32_t nic) { return router_->nominal_Bps(nic); },
        [this](std::span<const std::byte> frame) { control_->receive(frame, now_ns()); },
        [this](const Record& record) { backend_->on_record(record); });
    control_ = std::make_unique<ControlChannel>(
        cluster_, *memory_, *proxy_, settings_,
        [this](std::uint32_t source, FrameType type, ByteReader& payload) { on_frame(source, type, payload); });
    members_ = std::vector<Member>(cluster_.world);
    silent_ns_.assign(cluster_.nodes.size(), 0);
    heard_.assign(cluster_.nodes.size(), 0);
    watch_mates();
    backend_ = make_backend(*this);
    start_thread(runs.get_future());
  });
  try {
    agree(rendezvous, "mapped", mapping);
    settle_nic_slots(objections);
    tell_apart();
  } catch (...) {
    runs.set_value(false);
    if (thread_.joinable()) thread_.join();
    throw;
  }
  links_settled_.store(proxy_->all_links_up());
  // From here mates may write into the region and rails may carry; the thread must serve them even if a later round fails.
  runs.set_value(true);
  try {
    bring_links_up(rendezvous);
    agree(rendezvous, "ready", "");
    rendezvous.finish();
  } catch (...) {
    close();
    throw;
  }
}

std::vector<Engine::OpenNic> Engine::open_nics(const TransportWrapper& wrap) const {
  std::vector<OpenNic> nics;
  if (cluster_.nodes.size() < 2 || cluster_.self().nics.empty()) return nics;
  for (const std::uint32_t nic : cluster_.self().nics) nics.push_back(open_nic(nic, wrap));
  std::size_t links = 0;
  for (const std::uint32_t nic : cluster_.self().nics) {
    for (std::uint32_t peer = 0; peer < cluster_.nics.size() && goes_by_sockets(cluster_.nics[nic].device); ++peer)
      links += cluster_.nics[peer].node != cluster_.node() && router_->connected(nic, peer);
  }
  check_descriptors(links);
  if (slots_ != nullptr && std::none_of(nics.begin(), nics.end(), [](const OpenNic& nic) { return nic.objection.empty(); })) slots_->drop();
  return nics;
}

// TCP by sockets; through UCX where the user names its means, or where NICs are to reach memory that only UCX knows.
bool Engine::goes_by_sockets(const std::string& device) const {
  return !is_rdma(device) && settings_.ucx_tls.empty() && !cluster_.moves_slots;
}

Engine::OpenNic Engine::open_nic(std::uint32_t nic, const TransportWrapper& wrap) const {
  const NicInfo& info = cluster_.nics[nic];
  UcxOptions options{settings_.ucx_tls};
  // Where one NIC's slots move, UCX needs the means for it at both ends of a rail.
  options.cuda = cluster_.moves_slots && slots_ != nullptr && slots_->kind() == MemoryKind::cuda;
  options.reads_back = cluster_.moves_slots && is_rdma(info.device);
  auto transport = goes_by_sockets(info.device) ? make_socket_transport(info.device, settings_.chunk_bytes)
                                                : make_ucx_transport(UcxLibrary::load(settings_.ucx_library), info.device, options);
  if (wrap) transport = wrap(std::move(transport), info.own_position);
  std::string objection = slots_ == nullptr ? std::string() : offer_slots(info.device, *transport);
  return {std::move(transport), std::move(objection)};
}

// Why the NIC's slots stay in the region; empty: they need not.
std::string Engine::offer_slots(const std::string& device, Transport& transport) const {
  std::string objection = slots_->objection(device);
  if (!objection.empty()) return objection;
  try {
    transport.use_memory(slots_->make(memory_->nic_slot_bytes(memory_->self())), slots_->kind());
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

Resources Engine::resources(const std::vector<OpenNic>& nics) const {
  Resources mine;
  mine.region = memory_->region();
  mine.doorbell_fd = memory_->doorbell_fd();
  for (const OpenNic& nic : nics) {
    const bool moved = slots_ != nullptr && nic.objection.empty();
    if (moved) mine.slot_memory = slots_->handle();
    mine.nics.push_back({nic.transport->address(), slots_ != nullptr && nic.transport->knows(slots_->kind()), moved});
  }
  return mine;
}

// What this rank does not reach is no reason to end: its mates hear of it, and all use the owner's region.
void Engine::move_nic_slots() {
  if (!common_objection().empty()) return;
  for (std::uint32_t mate = 0; mate < memory_->mates(); ++mate) {
    const std::uint32_t rank = cluster_.mates()[mate];
    const RankInfo& info = cluster_.ranks[rank];
    if (info.slot_memory.empty() || slots_ == nullptr) continue;
    std::vector<bool> nics;
    for (const std::uint32_t nic : info.nics) nics.push_back(cluster_.nics[nic].moved);
    std::byte* base = nullptr;
    try {
      base = rank == cluster_.rank ? slots_->make(memory_->nic_slot_bytes(mate)).data() : slots_->map(rank, info);
    } catch (const Error& error) {
      slots_->say("the slots of rank " + std::to_string(rank) + "'s NICs stay in host memory: " + error.what());
    }
    memory_->move_nic_slots(mate, base, std::move(nics));
  }
}

// The same for all ranks.
std::string Engine::common_objection() const {
  for (const NicInfo& nic : cluster_.nics) {
    if (!nic.knows_slots) return "the network library of rank " + std::to_string(nic.owner) + " knows no memory of GPUs";
  }
  return {};
}

void Engine::settle_nic_slots(const std::vector<std::string>& objections) {
  bool reached = true;
  for (std::uint32_t mate = 0; mate < memory_->mates(); ++mate) {
    if (cluster_.ranks[cluster_.mates()[mate]].slot_memory.empty()) continue;
    const bool settled = memory_->settle_nic_slots(mate);
    if (mate == memory_->self()) reached = settled;
  }
  for (std::size_t own = 0; own < objections.size() && slots_ != nullptr; ++own) {
    std::string objection = objections[own];
    if (objection.empty()) objection = common_objection();
    if (objection.empty() && !reached) objection = "another rank of the node does not reach the GPU's";
    slots_->say("the slots of NIC " + cluster_.nics[cluster_.self().nics[own]].device +
                (objection.empty() ? " lie in the GPU's memory (GPUDirect)" : " lie in host memory: " + objection));
  }
}

// Of the two NICs of a link the first one's owner says it. Where there is no log, links_down() does.
void Engine::tell_apart() const {
  std::string first;
  std::size_t more = 0;
  for (const std::uint32_t nic : cluster_.self().nics) {
    for (std::uint32_t peer = nic + 1; peer < cluster_.nics.size(); ++peer) {
      const std::string why = router_->connected(nic, peer) ? apart(nic, peer) : "";
      if (why.empty()) continue;
      if (first.empty())
        first = name_of(nic) + " and " + name_of(peer) + " will not be connected: " + why + "; give it one";
      else
        ++more;
    }
  }
  if (slots_ == nullptr || first.empty()) return;
  slots_->warn(first + (more == 0 ? "" : " (and so for " + std::to_string(more) + " more links of this rank's NICs)"));
}

// Before the ranks agree that all is well, as there may be none to be had; it waits for what they agree on.
void Engine::start_thread(std::future<bool> runs) {
  try {
    thread_ = std::thread(&Engine::run, this, std::move(runs));
  } catch (const std::system_error& error) {
    throw Error(std::string("no thread for the engine: ") + error.what() + " (limits: ulimit -u, pids.max)");
  }
}

// Mates in other processes are watched through pidfds; ranks that are threads of this process end with it.
void Engine::watch_mates() {
  for (const std::uint32_t rank : cluster_.mates()) {
    const std::int32_t pid = cluster_.ranks[rank].pid;
    if (pid == ::getpid()) continue;
    members_[rank].pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (const int error = errno; !members_[rank].pidfd) {
      throw Error(
          "cannot watch the process of rank " + std::to_string(rank) + " (pid " + std::to_string(pid) +
          "): pidfd_open: " + std::generic_category().message(error) +
          (error == ENOSYS || error == ESRCH ? "; Linux 5.3 or newer is needed, and ranks of one node must share a PID namespace" : ""));
    }
  }
}

// Operations that start before all links are up would crowd onto the first ones.
void Engine::bring_links_up(Rendezvous& rendezvous) {
  const std::uint64_t deadline = now_ns() + 2 * settings_.rail_timeout_ms * 1'000'000;
  while (!links_settled_.load() && now_ns() < deadline) {
    rendezvous.ask();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Engine::~Engine() { close(); }

std::uint32_t Engine::link_window(std::uint32_t nic) const { return engine::link_window(settings_, router_->nominal_Bps(nic)); }

}  // namespace railweave::engine
