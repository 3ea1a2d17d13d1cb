// Ranks whose kernels are threads, on nodes that reach each other over loopback: the roles, the engines and the rails are the real ones.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "engine.hpp"
#include "fault_transport.hpp"
#include "hidden_slots.hpp"
#include "host_block.hpp"
#include "job.hpp"
#include "prepare.hpp"
#include "rail_backend.hpp"
#include "rail_prepare.hpp"
#include "rail_roles.hpp"
#include "roles.hpp"
#include "transfer.hpp"
#include "ucx_transport.hpp"

namespace railweave::test {

using cuda::Direction;
using cuda::Transfer;

// What a rank did before a launch comes before all that the launch does, also to what its peers do once they hear of it. A GPU sees to that
// at a kernel's begin; threads whose grants are relaxed stores would not.
template <typename Base>
class LaunchedBlock : public Base {
 public:
  using Base::Base;
  template <typename T>
  void store(T* word, T value, cuda::Site site = cuda::Site::current()) {
    this->release(word, value, site);
  }
  void copy(std::byte* to, const std::byte* from, std::uint32_t bytes, cuda::Site site = cuda::Site::current()) {
    if (before_copy) before_copy({from, bytes});
    Base::copy(to, from, bytes, site);
  }
  std::function<void(std::span<const std::byte> from)> before_copy;
};

// What the ranks of a job share: their ports for each other inside the nodes, and the plugs of their rails.
struct GpuJob {
  explicit GpuJob(const Shape& shaped) : shape(shaped), rails(std::make_shared<RailSwitch>(shaped.world())) {
    for (std::uint32_t rank = 0; rank < shape.world(); ++rank) ports.push_back(std::make_unique<cuda::Port[]>(shape.ranks));
  }
  Shape shape;
  std::shared_ptr<RailSwitch> rails;
  std::vector<std::unique_ptr<cuda::Port[]>> ports;  // by rank, for each mate
  std::uint64_t low_latency_bytes = 8u << 10;
  cuda::LaunchLimits limits{2, 1, 4};
  std::uint32_t delays = 20;  // of 1024 touches of a word
  std::uint64_t timeout_ns = 3600'000'000'000;
  // What a rank's GPU and NIC can; by default slots lie in host memory.
  std::function<void(std::uint32_t rank, HiddenSlots& slots)> prepare_slots = [](std::uint32_t, HiddenSlots&) {};
  std::function<HiddenTransport::Refuses(std::uint32_t rank)> nic_of = [](std::uint32_t) { return HiddenTransport::Refuses{}; };
  std::string nics = "lo";  // of each rank
};

class GpuRank {
 public:
  GpuRank(GpuJob& job, std::uint32_t rank, const std::string& rendezvous, ExchangeSettings settings) : job_(job), rank_(rank) {
    settings = rank_settings(job.shape, rank, settings);
    ledger_.ports = job.ports[rank].get();
    ledger_.mates = job.shape.ranks;
    staged_bytes_ = settings.eager_bytes;
    settings.nics = job.nics;
    control_.on_failure = [this](const engine::Failure& failure) { fail(failure.text); };
    job.prepare_slots(rank, slots_);
    const auto meeting = engine::make_rendezvous(rendezvous, rank, job.shape.world(), std::chrono::milliseconds(settings.bootstrap_ms));
    engine_ = std::make_unique<engine::Engine>(
        engine::exchange_identity(*meeting, rank, job.shape.world(), settings, &slots_), *meeting, settings, std::nullopt,
        [&](std::unique_ptr<engine::Transport> nic, std::uint32_t) -> std::unique_ptr<engine::Transport> {
          if (slots_.kind() == engine::MemoryKind::host) {  // as over an RDMA device, what has arrived is read back before it is announced
            engine::UcxOptions options;
            options.reads_back = true;
            nic = engine::make_ucx_transport(engine::UcxLibrary::load(test_ucx_library()), "lo", options);
          }
          nic = std::make_unique<HiddenTransport>(std::move(nic), slots_, moved_, job.nic_of(rank));
          return std::make_unique<FaultTransport>(std::move(nic), FaultPolicy{}, job.rails, rank);
        },
        [this, &settings](engine::EngineServices& services) {
          std::vector<cuda::RailBackend::Mapped> regions;
          for (std::uint32_t mate = 0; mate < services.memory().mates(); ++mate) {
            const auto region = services.memory().region(mate);
            regions.push_back({region.data(), region.size(), reinterpret_cast<std::uint64_t>(region.data())});
            const auto moved = services.memory().moved_nic_slots(mate);
            regions.push_back({moved.data(), moved.size(), reinterpret_cast<std::uint64_t>(slots_.show(moved.data()))});
          }
          return std::make_unique<cuda::RailBackend>(services, *port_, std::move(regions), control_, settings.drain_ms);
        },
        &slots_);
  }
  ~GpuRank() { engine_->close(); }

  // An operation as a launch keeps it: a graph may run it several times.
  struct Launch {
    std::vector<cuda::Message> messages;
    std::uint32_t near;
    cuda::Plan plan;
  };
  Launch prepare(const std::vector<Transfer>& transfers) {
    std::vector<cuda::Message> near, far;
    const std::uint32_t node = rank_ / job_.shape.ranks;
    for (const Transfer& t : transfers) {
      cuda::Message m{};
      m.data = t.data;
      m.bytes = t.bytes;
      m.direction = t.direction;
      m.peer = t.peer;
      m.host = &host_;
      m.ledger = &ledger_;
      m.path = cuda::path_of(t.bytes, job_.low_latency_bytes);
      if (t.peer / job_.shape.ranks != node) {
        m.rail = {port_.get(), &counts_};
        far.push_back(m);
        continue;
      }
      m.local = &job_.ports[rank_][t.peer % job_.shape.ranks];
      m.remote = &job_.ports[t.peer][rank_ % job_.shape.ranks];
      if (t.direction == Direction::receive) {
        m.named.buffer = cuda::kAbsoluteBuffer;
        m.named.offset = reinterpret_cast<std::uint64_t>(t.data);
      }
      near.push_back(m);
    }
    cuda::LaunchLimits limits = job_.limits;
    limits.beside_rails = true;
    limits.staged_bytes = staged_bytes_;
    limits.rail_bytes = cuda::bytes_over_rails(far);
    cuda::Plan plan{cuda::Kernel::any, 1};
    if (!near.empty()) plan = cuda::prepare(near, limits);
    if (!far.empty()) plan = cuda::prepare_rails(far, plan, limits);
    Launch launch{near, static_cast<std::uint32_t>(near.size()), plan};
    launch.messages.insert(launch.messages.end(), far.begin(), far.end());
    return launch;
  }

  // Runs it to its end. A captured one is not counted before.
  void run(const Launch& launch, bool captured = false) {
    const auto rails = static_cast<std::uint32_t>(launch.messages.size()) - launch.near;
    if (rails != 0) {
      if (captured)
        control_.captured = true;
      else
        ++control_.enqueued;
      engine_->wake();
    }
    const cuda::OperationHeader header{.state = &state_, .timeout_ns = job_.timeout_ns, .count = launch.near, .rails = rails};
    // What does not fit into a kernel's parameters has its states in memory of its own, too.
    std::vector<cuda::MessageState> states(launch.messages.size() > cuda::kMaxMessages ? launch.messages.size() : 0);
    cuda::Part part = cuda::whole_part(header, launch.messages.data());
    if (!states.empty()) part.states = states.data();
    const std::uint32_t blocks = launch.plan.blocks;
    std::vector<std::jthread> threads;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      threads.emplace_back([&, b] {
        const auto run = [&](auto&& block) {
          using Block = std::remove_cvref_t<decltype(block)>;
          block.before_copy = before_copy;
          block.make_room(launch.near);
          cuda::Roles<Block, true> near(block, part);
          if (rails == 0) return near.run();
          cuda::RailRoles<Block> far(block, cuda::rail_part(header, launch.messages.data()));
          cuda::run_beside_rails(block, far, near, launch.near != 0);
        };
        const std::uint64_t seed = seed_ + rank_ * 100 + b;
        if (part.count > cuda::kMaxMessages) return run(LaunchedBlock<cuda::HostBlockOfMany>(b, blocks, seed, job_.delays));
        run(LaunchedBlock<cuda::HostBlock>(b, blocks, seed, job_.delays));
      });
    }
    threads.clear();
    ++seed_;
  }
  void run(const std::vector<Transfer>& transfers) { run(prepare(transfers)); }

  // What Communicator::fail() does.
  void fail(const std::string& text) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_.empty()) failure_ = text;
    }
    std::atomic_ref(host_.stop).store(1);
    control_.stopped = true;
    engine_->begin_close(true);
  }
  std::string failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  std::uint32_t rank() const { return rank_; }
  const cuda::HostView& host() const { return host_; }
  std::uint64_t completed() const {
    std::uint64_t sum = 0;
    for (const cuda::Account& account : ledger_.accounts) sum += account.totals.completed;
    return sum;
  }
  // Sent and received, as Communicator::peers() tells it.
  std::array<std::uint64_t, 2> bytes_with(std::uint32_t peer) const {
    if (peer / job_.shape.ranks == rank_ / job_.shape.ranks) return std::to_array(job_.ports[rank_][peer % job_.shape.ranks].moved_bytes);
    const auto& far = control_.bytes_by_peer[peer];
    return {far[0].load(), far[1].load()};
  }
  const cuda::RailCounts& counts() const { return counts_; }
  // Copies that its kernels have taken on; while they run.
  std::uint64_t taken() { return std::atomic_ref(counts_.taken).load(); }
  const cuda::RailPort& port() const { return *port_; }
  // Whether its engine has asked for the n-th copy; while its kernels run.
  bool asked(std::uint64_t n) {
    return cuda::is_of(std::atomic_ref(port_->copies[n % cuda::kRailCopies].words[cuda::RailCopy::kWords - 1]).load(), n);
  }
  engine::Engine& engine() { return *engine_; }
  const cuda::RailControl& control() const { return control_; }
  const HiddenSlots& slots() const { return slots_; }
  const HiddenTransport::Counts& moved() const { return moved_; }
  std::function<void(std::span<const std::byte> from)> before_copy;  // of its blocks

 private:
  GpuJob& job_;
  const std::uint32_t rank_;
  std::uint64_t seed_ = 1;
  std::uint64_t staged_bytes_ = 0;
  cuda::HostView host_{};
  cuda::Ledger ledger_{};
  cuda::OperationState state_{};
  cuda::RailCounts counts_{};
  std::unique_ptr<cuda::RailPort> port_ = std::make_unique<cuda::RailPort>();
  cuda::RailControl control_;
  std::mutex mutex_;
  std::string failure_;
  HiddenSlots slots_;
  HiddenTransport::Counts moved_;
  std::unique_ptr<engine::Engine> engine_;
};

// Runs `body` on every rank in a thread of its own. No rank closes before all bodies have ended.
inline void run_gpu_job(GpuJob& job, const ExchangeSettings& settings, const std::function<void(GpuRank&)>& body) {
  const ScratchDirectory directory;
  std::barrier bodies_ended(job.shape.world());
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < job.shape.world(); ++rank) {
    threads.emplace_back([&, rank] {
      GpuRank instance(job, rank, directory.rendezvous(), settings);
      body(instance);
      bodies_ended.arrive_and_wait();
    });
  }
}

}  // namespace railweave::test
