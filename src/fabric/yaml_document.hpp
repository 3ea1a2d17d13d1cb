// Reading YAML with errors that name the line, the column and the path.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace railweave {

class YamlPlace;

// A parsed text: exactly one document, a map at the top.
class YamlDocument {
 public:
  // Throws ParseError.
  YamlDocument(std::string_view text, std::string source);
  YamlPlace root() const;
  const std::string& source() const noexcept { return source_; }
  // Counts a value that was read; the error for aliases that expand without end.
  void count_value() const;

 private:
  std::string source_;
  YAML::Node root_;
  mutable std::size_t values_ = 0;
};

// A value and its place in the document.
class YamlPlace {
 public:
  // Throws ParseError at this place.
  [[noreturn]] void fail(const std::string& found, const std::string& expected) const;

  // A file's `format`, and `version` 1, where it has them. To be asked before its keys: another version has others.
  void expect_head(std::string_view format) const;
  // This is a map that has all of `required` and nothing beside those and `optional`, each once.
  void expect_keys(std::initializer_list<std::string_view> required, std::initializer_list<std::string_view> optional) const;
  // This is a list of at most `limit`.
  std::size_t list_size(std::size_t limit) const;
  bool is_list() const { return node_.IsSequence(); }
  bool is_map() const { return node_.IsMap(); }
  bool has(std::string_view key) const;
  YamlPlace at(std::string_view key) const;
  YamlPlace at(std::size_t index) const;
  // Keys of a map, in the order of the file.
  std::vector<std::string> keys() const;

  std::string string() const;
  bool boolean() const;
  std::uint64_t unsigned_integer(std::uint64_t min, std::uint64_t max) const;
  // The text as written, for values with units.
  bool is_scalar() const { return node_.IsScalar(); }

 private:
  friend class YamlDocument;
  YamlPlace(const YamlDocument& document, const YAML::Node& node, std::string path);

  const YamlDocument* document_;
  YAML::Node node_;
  std::string path_;
};

}  // namespace railweave
