// A cluster file either gives a fabric or raises ParseError. The one template it can name is small, so that inputs with many
// nodes stay quick.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "check_fabric.hpp"
#include "railweave/error.hpp"
#include "railweave/fabric/cluster.hpp"

namespace {

railweave::NodeTemplate small_template() {
  return railweave::parse_node_template(R"(
format: railweave-node
version: 1
name: small
description: two GPUs, two NICs
links:
  pcie: {pcie: gen5 x16, source: test}
  port: {capacity: 100Gbit/s, source: test}
numa: {count: 1}
gpus: [{model: GPU, link: pcie, gdr: true, at: [numa0, numa0]}]
nics: [{model: NIC, link: pcie, port: port, at: [numa0, numa0]}]
nvlink: [{link: pcie, between: all-pairs}]
)",
                                        "small.yaml");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const railweave::NodeTemplate known = small_template();
  // Writing and reading a cluster of thousands of nodes takes a second and finds nothing that a small one does not.
  constexpr std::uint32_t kChecked = 64;
  const std::string text(data, data + size);
  const auto lookup = [](const std::string& name) -> std::optional<railweave::NodeTemplate> {
    if (name != "small") return std::nullopt;
    return known;
  };
  try {
    const railweave::Fabric fabric = railweave::parse_cluster(text, "input.yaml", lookup);
    if (fabric.node_count() <= kChecked) check_fabric(fabric);
  } catch (const railweave::ParseError&) {
  }
  return 0;
}
