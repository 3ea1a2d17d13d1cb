// Clusters: nodes from templates, joined by rails or a tree.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "railweave/fabric/fabric.hpp"
#include "railweave/fabric/node_template.hpp"

namespace railweave {

struct NodeGroup {
  NodeTemplate node;
  std::uint32_t count = 1;
};

// Nodes are named "node0", "node1", ... through all groups, their parts "node0/gpu0". Leafs are "leaf0", ...; with rails, leaf i
// of the first nodes_per_leaf nodes carries rail i. Throws FabricError, among others for more nodes than limits::kNodes.
Fabric make_cluster(const std::string& name, const std::vector<NodeGroup>& groups, const Network& network);

// Finds the template that a cluster file names; nothing when there is none. May throw ParseError for one it cannot read.
using TemplateLookup = std::function<std::optional<NodeTemplate>(const std::string& name)>;

// Reads "format: railweave-cluster" (docs/fabric.md). `nodes` replaces the count where the file has one group of nodes; 0 leaves
// it. Throws ParseError with line, column and path, FabricError when `nodes` does not fit.
Fabric parse_cluster(std::string_view text, const std::string& source, const TemplateLookup& lookup, std::uint32_t nodes = 0);

}  // namespace railweave
