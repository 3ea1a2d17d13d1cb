// A node template either gives a node that makes a fabric, or raises ParseError.
#include <cstddef>
#include <cstdint>
#include <string>

#include "check_fabric.hpp"
#include "railweave/error.hpp"
#include "railweave/fabric/cluster.hpp"
#include "railweave/fabric/node_template.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  try {
    const railweave::NodeTemplate node = railweave::parse_node_template(text, "input.yaml");
    check_fabric(railweave::make_cluster("cluster", {{node, 1}}, node.network));
  } catch (const railweave::ParseError&) {
  } catch (const railweave::FabricError&) {  // a template without a GPU, names that no fabric may have
  }
  return 0;
}
