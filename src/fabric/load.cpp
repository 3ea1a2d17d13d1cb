#include "railweave/fabric/load.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "railweave/error.hpp"
#include "railweave/fabric/cluster.hpp"
#include "railweave/fabric/fabric_json.hpp"
#include "railweave/fabric/limits.hpp"
#include "railweave/fabric/nccl_topology.hpp"

namespace railweave {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  const std::string source = path.string();
  std::error_code problem;
  if (fs::is_directory(path, problem)) throw ParseError({source, 0, 0, ""}, "not a file", "a file to read");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  // In blocks, because a pipe has no size.
  std::vector<char> block(std::size_t{1} << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > limits::kJsonBytes) {
      throw ParseError({source, 0, 0, ""}, "more than " + std::to_string(limits::kJsonBytes) + " bytes", "at most that");
    }
  }
  if (!file.eof())
    throw ParseError({source, 0, 0, ""}, "cannot be read" + (errno == 0 ? "" : ": " + std::generic_category().message(errno)),
                     "a readable file");
  return text;
}

enum class Form : std::uint8_t { json, xml, yaml };

Form form_of(std::string_view text, const std::string& source) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {  // byte order marks
    throw ParseError({source, 0, 0, ""}, "UTF-16 text", "UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (first == std::string_view::npos) return Form::yaml;
  if (text[first] == '<') return Form::xml;
  return text[first] == '{' ? Form::json : Form::yaml;
}

// The line that says which of this project's files a text is; empty where none does.
std::string_view format_line(std::string_view text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.substr(line.find_first_not_of("'\"") == 1 ? 1 : 0).starts_with("format")) return line;
    begin = end + 1;
  }
  return {};
}

NodeTemplate read_node_file(const fs::path& path) {
  const std::string text = read_file(path);
  switch (form_of(text, path.string())) {
    case Form::xml: return parse_nccl_topology(text, path.string());
    case Form::yaml: return parse_node_template(text, path.string());
    case Form::json: break;
  }
  throw ParseError({path.string(), 0, 0, ""}, "JSON", "a node template (.yaml) or an NCCL topology file (.xml)");
}

std::optional<fs::path> find_template(const std::string& name, const std::vector<fs::path>& dirs) {
  // Only plain names: a template never comes from outside its folder.
  if (name.empty() || name.find('/') != std::string::npos || name.front() == '.') return std::nullopt;
  for (const fs::path& dir : dirs) {
    std::error_code ignored;
    if (fs::path file = dir / (name + ".yaml"); fs::is_regular_file(file, ignored)) return file;
  }
  return std::nullopt;
}

Fabric one_kind_of_node(const NodeTemplate& node, const std::string& source, std::uint32_t nodes) {
  try {
    return make_cluster(nodes > 1 ? std::to_string(nodes) + " x " + node.name : node.name, {{node, std::max(nodes, 1U)}}, node.network);
  } catch (const FabricError& error) {
    throw ParseError({source, 0, 0, ""}, error.what(), "a fabric that can exist");
  }
}

}  // namespace

std::vector<std::string> template_names(const std::vector<fs::path>& template_dirs) {
  std::set<std::string> names;
  for (const fs::path& dir : template_dirs) {
    std::error_code problem;
    for (const fs::directory_entry& entry : fs::directory_iterator(dir, problem)) {
      if (entry.path().extension() == ".yaml") names.insert(entry.path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

NodeTemplate load_node_template(const std::string& name, const std::vector<fs::path>& template_dirs) {
  if (const auto file = find_template(name, template_dirs)) return read_node_file(*file);
  std::string known;
  for (const std::string& other : template_names(template_dirs)) known += (known.empty() ? "" : ", ") + other;
  throw ParseError({name, 0, 0, ""}, "no such file, and no template of that name", "a file, or one of " + known);
}

Fabric load_fabric(const std::string& what, const LoadOptions& options) {
  std::error_code problem;
  const bool exists = fs::exists(what, problem);
  if (problem) throw ParseError({what, 0, 0, ""}, "cannot be read: " + problem.message(), "a readable file");
  // A folder of a template's name hides nothing: people keep a machine's results in one.
  const bool named = !exists || (fs::is_directory(what, problem) && find_template(what, options.template_dirs));
  if (named) return one_kind_of_node(load_node_template(what, options.template_dirs), what, options.nodes);
  return parse_fabric(read_file(what), what, options);
}

Fabric parse_fabric(std::string_view text, const std::string& source, const LoadOptions& options) {
  switch (form_of(text, source)) {
    case Form::json:
      if (options.nodes != 0) throw FabricError(source + ": a JSON fabric has its nodes in it; a number of nodes does not apply");
      return parse_fabric_json(text, source);
    case Form::xml: return one_kind_of_node(parse_nccl_topology(text, source, options.described_by), source, options.nodes);
    case Form::yaml: break;
  }
  const std::string_view format = format_line(text);
  if (format.empty() && text.find_first_not_of(" \t\r\n") != std::string_view::npos) {
    throw ParseError({source, 0, 0, ""}, "not of a kind that is read here",
                     "an NCCL topology file (XML), fabric JSON, or a cluster or node template (YAML with a line 'format: ...')");
  }
  if (format.find("railweave-cluster") == std::string_view::npos) {
    return one_kind_of_node(parse_node_template(text, source), source, options.nodes);
  }
  const TemplateLookup lookup = [&](const std::string& name) -> std::optional<NodeTemplate> {
    std::error_code ignored;
    if (const fs::path beside = fs::path(source).parent_path() / name; beside.has_extension() && fs::is_regular_file(beside, ignored)) {
      return read_node_file(beside);
    }
    if (const auto file = find_template(name, options.template_dirs)) return read_node_file(*file);
    return std::nullopt;
  };
  return parse_cluster(text, source, lookup, options.nodes);
}

}  // namespace railweave
