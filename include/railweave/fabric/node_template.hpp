// A node template: how one host is wired. Many of them and a network make a cluster (cluster.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "railweave/fabric/fabric.hpp"

namespace railweave {

// One direction's capacity, its latency, and where both come from.
struct LinkClass {
  std::uint64_t capacity_Bps = 0;
  std::uint64_t latency_ns = 0;
  std::string source;
};

// The network side of a NIC.
struct Port {
  VertexId nic = kNone;  // in NodeTemplate::vertices
  LinkClass link;
};

// How nodes are joined.
struct Network {
  enum class Wiring : std::uint8_t {
    rail,  // NIC i of every node goes to leaf i
    tree,  // all NICs of a node go to the same leaf
  };
  Wiring wiring = Wiring::rail;
  std::uint32_t nodes_per_leaf = 0;  // 0: all nodes share the leafs
  std::optional<LinkClass> port;     // instead of each NIC's own
  // Leafs are joined by one spine, which stands for all spine switches together, unless there is only one leaf or one node.
  bool spine = true;
  // A leaf's uplink carries the sum of its ports divided by this, in thousandths: 2000 is 2:1.
  std::uint64_t oversubscription_permille = 1000;
  // Capacity of a leaf's uplink; given, it goes before the oversubscription.
  std::uint64_t uplink_Bps = 0;
  std::uint64_t uplink_latency_ns = 0;
  std::string uplink_source;
};

// What a network is taken to be where nothing says so: rails, a spine without oversubscription.
Network assumed_network();

struct NodeTemplate {
  std::string name;
  std::string description;
  // Names are "gpu0", "nic0", "switch0", "numa0", "nvswitch0"; node is 0. The rail of a NIC is kNone when it is not part of the
  // GPU network; such a NIC has no port.
  std::vector<Vertex> vertices;
  std::vector<Edge> edges;
  std::vector<Port> ports;
  Network network;  // that this machine is known to stand in; used where no cluster file gives one
};

// Reads "format: railweave-node" (docs/fabric.md). Throws ParseError with line, column and path.
NodeTemplate parse_node_template(std::string_view text, const std::string& source);

}  // namespace railweave
