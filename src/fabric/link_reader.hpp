// Parts that node templates and cluster files share: links with names, networks.
#pragma once

#include <map>
#include <string>

#include "railweave/fabric/node_template.hpp"
#include "yaml_document.hpp"

namespace railweave {

// The named links of a file.
class LinkClasses {
 public:
  LinkClasses() = default;
  // Reads the map "links".
  explicit LinkClasses(const YamlPlace& place);
  // The link whose name stands at `place`.
  const LinkClass& find(const YamlPlace& place) const;

 private:
  std::map<std::string, LinkClass> links_;
};

std::uint64_t read_rate_Bps(const YamlPlace& place);
std::uint64_t read_latency_ns(const YamlPlace& place);

// Reads the map "network".
Network read_network(const YamlPlace& place, const LinkClasses& links);

// Reads the keys of a node template that stand beside format, version and name; also the inline "node" of a cluster file.
NodeTemplate read_node(const YamlPlace& place, std::string name);

}  // namespace railweave
