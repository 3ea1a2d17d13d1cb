#include "rails.hpp"

#include <new>
#include <utility>

#include "device.hpp"
#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

// A mate's region for kernels.
RailBackend::Mapped map_region(std::span<std::byte> region) {
  PinnedMemory pinned = pin(region, "slots (slots_per_writer and rx_slots set how many)");
  return {region.data(), region.size(), pinned.address, std::move(pinned.keep)};
}

}  // namespace

Rails::Rails(std::uint32_t rank, const std::vector<NodeFacts>& facts, engine::Rendezvous& rendezvous, const ExchangeSettings& settings,
             Remarks& remarks, std::function<void(const engine::Failure&)> on_failure)
    : slots_(settings.gpu_direct, remarks) {
  control_.on_failure = std::move(on_failure);
  engine::Cluster cluster = engine::exchange_identity(rendezvous, rank, static_cast<std::uint32_t>(facts.size()), settings, &slots_);
  const std::string objection = settings.gpu_nodes == 0 ? objection_to(cluster, facts) : std::string();
  if (!objection.empty()) {
    const std::string nodes = std::to_string(cluster.nodes.size());
    throw BootstrapError("it spans " + nodes + " nodes, and " + objection + " (RAILWEAVE_GPU_NODES=" + nodes +
                         " has it served all the same)");
  }
  const auto make_backend = [this, &settings](engine::EngineServices& services) -> std::unique_ptr<engine::Backend> {
    void* port = nullptr;
    check(cudaHostAlloc(&port, sizeof(RailPort), cudaHostAllocPortable | cudaHostAllocMapped), "allocating pinned host memory");
    port_.reset(new (port) RailPort{});
    void* counts = nullptr;
    check(cudaMalloc(&counts, sizeof(RailCounts)), "allocating counts on the GPU");
    counts_.reset(static_cast<RailCounts*>(counts));
    const Stream stream = make_stream();
    check(cudaMemsetAsync(counts, 0, sizeof(RailCounts), stream.get()), "clearing counts on the GPU");
    check(cudaStreamSynchronize(stream.get()), "clearing counts on the GPU");
    std::vector<RailBackend::Mapped> regions;
    for (std::uint32_t mate = 0; mate < services.memory().mates(); ++mate) {
      regions.push_back(map_region(services.memory().region(mate)));
      const std::span<std::byte> moved = services.memory().moved_nic_slots(mate);
      regions.push_back({moved.data(), moved.size(), reinterpret_cast<std::uint64_t>(moved.data())});
    }
    return std::make_unique<RailBackend>(services, *port_, std::move(regions), control_, settings.drain_ms);
  };
  engine_ = std::make_unique<engine::Engine>(std::move(cluster), rendezvous, settings, std::nullopt, engine::TransportWrapper{},
                                             make_backend, &slots_);
}

Rails::~Rails() { engine_->close(); }

void Rails::expect(bool captured) {
  if (captured)
    control_.captured = true;
  else
    ++control_.enqueued;
  engine_->wake();
}

std::vector<NicUse> Rails::nics() const {
  const engine::Cluster& cluster = engine_->cluster();
  std::vector<NicUse> uses;
  for (engine::NicLinks& links : engine_->nic_links()) {
    const engine::NicInfo& info = cluster.nics[links.nic];
    NicUse& use = uses.emplace_back();
    use.name = info.device;
    use.owner = info.owner;
    use.rate_Bps = info.rate_Bps;
    use.sent = control_.bytes_by_nic[info.position].load();
    use.links = links.links;
    use.down = std::move(links.down);
  }
  if (!engine_->is_closing()) return uses;  // asked after the links: it began to close before it takes them down
  for (NicUse& use : uses) {
    use.links = 0;
    use.down.clear();
  }
  return uses;
}

void Rails::stop() {
  control_.stopped = true;
  engine_->begin_close(true);  // who waits for this rank shall hear of it
}

}  // namespace railweave::cuda
