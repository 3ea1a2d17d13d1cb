// Reading a fabric from wherever it stands: a file of any kind, or a node template by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "railweave/fabric/fabric.hpp"
#include "railweave/fabric/node_template.hpp"

namespace railweave {

struct LoadOptions {
  // Number of nodes. 0: one node of a template or topology file, a cluster file as it stands. A JSON fabric takes only 0.
  std::uint32_t nodes = 0;
  // Folders with node templates, NAME.yaml, searched in this order.
  std::vector<std::filesystem::path> template_dirs;
  // What the sources of a topology file's figures begin with: "this machine" where it was written from a machine's own facts.
  std::string described_by = "topology file";
};

// `what` is a path to fabric JSON, a cluster file, a node template or an NCCL topology XML (told apart by their content), or the
// name of a node template. Throws ParseError or FabricError.
Fabric load_fabric(const std::string& what, const LoadOptions& options);

// The same from the text of a file. Errors name `source`, and files that a cluster file names are looked for beside it.
Fabric parse_fabric(std::string_view text, const std::string& source, const LoadOptions& options);

// The template of that name, for listings. Throws ParseError when there is none.
NodeTemplate load_node_template(const std::string& name, const std::vector<std::filesystem::path>& template_dirs);

// Names of all templates, sorted.
std::vector<std::string> template_names(const std::vector<std::filesystem::path>& template_dirs);

}  // namespace railweave
