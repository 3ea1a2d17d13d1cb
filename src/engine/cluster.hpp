// Who takes part: what all ranks know about each other after the bootstrap. Equal on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "railweave/engine/settings.hpp"
#include "rendezvous.hpp"
#include "shared_memory.hpp"

namespace railweave::engine {

struct NicInfo {
  std::uint32_t owner = 0;  // rank whose process uses it
  std::uint32_t node = 0;
  std::uint32_t position = 0;      // among the NICs of its node
  std::uint32_t own_position = 0;  // among the NICs of its owner
  std::string device;
  std::uint64_t rate_Bps = 0;      // 0: unknown
  std::vector<std::byte> address;  // of its transport
  bool knows_slots = false;        // its transport can exchange payloads with NICs whose slots have moved
  bool moved = false;              // its slots may lie in its owner's slot_memory
};

struct RankInfo {
  std::uint32_t node = 0;
  std::uint32_t local = 0;  // position on its node
  std::int32_t pid = 0;
  std::int32_t doorbell_fd = -1;
  MemoryHandle region;
  std::vector<std::byte> slot_memory;  // handle of what slot_memory.hpp is about; empty: none
  std::vector<std::uint32_t> nics;
};

struct NodeInfo {
  std::string name;
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint32_t> nics;
};

struct Cluster {
  std::uint32_t rank = 0;
  std::uint32_t world = 0;
  std::vector<RankInfo> ranks;
  std::vector<NodeInfo> nodes;  // in the order of their lowest rank
  std::vector<NicInfo> nics;    // by node, then owner
  bool moves_slots = false;     // some rank would like to

  const RankInfo& self() const { return ranks[rank]; }
  std::uint32_t node() const { return ranks[rank].node; }
  const std::vector<std::uint32_t>& mates() const { return nodes[node()].ranks; }
  bool local(std::uint32_t other) const { return ranks[other].node == node(); }
};

// Whether an interface is one of those that the setting `interfaces` names.
bool is_rail(std::string_view interface, std::string_view rule);

// Ranks with equal identities run on one node and share its memory: the setting node_id, else host, boot and PID namespace.
std::string node_identity(const ExchangeSettings& settings);

class SlotMemory;
// First round: identities, interfaces and settings; checks that each rank's can be had, and that ranks agree. `slots`: where this rank
// would like to have the slots of NICs that they may be moved for, or none (slot_memory.hpp). Throws BootstrapError (the same on every
// rank).
Cluster exchange_identity(Rendezvous& rendezvous, std::uint32_t rank, std::uint32_t world, const ExchangeSettings& settings,
                          const SlotMemory* slots = nullptr);

// What a rank has made for others to use.
struct Resources {
  MemoryHandle region;
  std::int32_t doorbell_fd = -1;
  std::vector<std::byte> slot_memory;
  struct Nic {
    std::vector<std::byte> address;
    bool knows_slots = false;
    bool moved = false;
  };
  std::vector<Nic> nics;
};
// Second round. `problem`: why this rank could not make its resources, or empty; any problem is thrown on every rank.
void exchange_resources(Rendezvous& rendezvous, Cluster& cluster, const Resources& mine, const std::string& problem);
// Any further round at which a rank may fail.
void agree(Rendezvous& rendezvous, const std::string& round, const std::string& problem);

}  // namespace railweave::engine
