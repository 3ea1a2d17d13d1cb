// Parts of an engine without its thread: the memories of a node's ranks, and a rail that only notes what goes into it.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "node_memory.hpp"
#include "transport.hpp"

namespace railweave::test {

// Progress of both until `done`; the limit is half of UCX's keepalive interval, which must not be what saves a test. Of the CPU's time: a
// busy machine may keep the test from its CPU for as long.
inline bool progress_until(engine::Transport& a, engine::Transport& b, const std::function<bool()>& done) {
  for (const std::clock_t begin = std::clock(); !done() && std::clock() - begin < 10 * CLOCKS_PER_SEC;) {
    a.progress();
    b.progress();
  }
  return done();
}

// Node 0 has `mates` ranks, the first of which owns NIC 0; node 1 has two ranks with NICs 1 and 2.
inline engine::Cluster small_cluster(std::uint32_t mates) {
  engine::Cluster cluster;
  cluster.world = mates + 2;
  cluster.nodes = {{"near", {}, {0}}, {"far", {}, {1, 2}}};
  for (std::uint32_t rank = 0; rank < cluster.world; ++rank) {
    const std::uint32_t node = rank < mates ? 0 : 1;
    engine::RankInfo info;
    info.node = node;
    info.local = static_cast<std::uint32_t>(cluster.nodes[node].ranks.size());
    info.pid = ::getpid();
    if (rank == 0) info.nics = {0};
    if (node == 1) info.nics = {rank - mates + 1};
    cluster.nodes[node].ranks.push_back(rank);
    cluster.ranks.push_back(std::move(info));  // a copy is out of bounds to GCC 14's warnings
  }
  for (const std::uint32_t owner : {0u, mates, mates + 1}) {
    engine::NicInfo nic;
    nic.owner = owner;
    nic.node = cluster.ranks[owner].node;
    nic.position = owner == mates + 1 ? 1 : 0;
    cluster.nics.push_back(nic);
  }
  return cluster;
}

// 2 nodes of `rails` ranks, each with a NIC of that rate; seen by rank 0.
inline engine::Cluster rail_cluster(std::uint32_t rails, std::uint64_t rate_Bps, std::uint32_t nodes = 2) {
  engine::Cluster cluster;
  cluster.world = nodes * rails;
  cluster.nodes.resize(nodes);
  for (std::uint32_t rank = 0; rank < cluster.world; ++rank) {
    engine::RankInfo info;
    info.node = rank / rails;
    info.local = rank % rails;
    info.pid = ::getpid();
    info.nics = {rank};
    cluster.ranks.push_back(info);
    cluster.nodes[info.node].ranks.push_back(rank);
    cluster.nodes[info.node].nics.push_back(rank);
    engine::NicInfo nic;
    nic.owner = rank;
    nic.node = info.node;
    nic.position = info.local;
    nic.rate_Bps = rate_Bps;
    cluster.nics.push_back(nic);
  }
  return cluster;
}

// The memories of node 0's ranks, each as its own rank sees it.
class NodeParts {
 public:
  NodeParts(std::uint32_t mates, const ExchangeSettings& settings) : NodeParts(small_cluster(mates), settings) {}
  NodeParts(engine::Cluster shared, const ExchangeSettings& settings) {
    const auto mates = static_cast<std::uint32_t>(shared.nodes[0].ranks.size());
    for (std::uint32_t rank = 0; rank < mates; ++rank) {
      clusters.push_back(shared);
      clusters[rank].rank = rank;
      memories.push_back(std::make_unique<engine::NodeMemory>(clusters[rank], settings));
      shared.ranks[rank].region = memories[rank]->region();
      shared.ranks[rank].doorbell_fd = memories[rank]->doorbell_fd();
    }
    for (std::uint32_t rank = 0; rank < mates; ++rank) {
      clusters[rank].ranks = shared.ranks;
      memories[rank]->map_mates(clusters[rank]);
    }
  }

  std::vector<engine::Cluster> clusters;
  std::vector<std::unique_ptr<engine::NodeMemory>> memories;
};

class NotedTransport final : public engine::Transport {
 public:
  std::vector<std::byte> address() const override { return {}; }
  void set_listener(engine::TransportListener* heard) override { listener = heard; }
  bool knows(engine::MemoryKind) const override { return true; }
  void use_memory(std::span<std::byte>, engine::MemoryKind) override {}
  void connect(std::uint32_t, std::span<const std::byte>) override { ++connects; }
  void disconnect(std::uint32_t) override { ++disconnects; }
  bool reconnects() const override { return true; }
  void send(std::uint32_t, const engine::RailHeader& header, std::span<const std::byte> payload, std::uint64_t token) override {
    sent.push_back(header);
    if (!payload.empty()) {
      payloads.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
      addresses.push_back(payload.data());
    }
    if (token != 0) tokens.push_back(token);
  }
  void flush() override {}
  bool progress() override { return false; }
  int event_fd() const override { return -1; }
  bool arm() override { return true; }

  engine::TransportListener* listener = nullptr;
  std::vector<engine::RailHeader> sent;
  std::vector<std::string> payloads;  // of those that had one
  std::vector<const std::byte*> addresses;
  std::vector<std::uint64_t> tokens;
  int connects = 0, disconnects = 0;
};

}  // namespace railweave::test
