#include "yaml_document.hpp"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <utility>

#include "railweave/error.hpp"
#include "railweave/fabric/limits.hpp"

namespace railweave {
namespace {

// Values read from one document. A file of limits::kYamlBytes without aliases cannot hold more.
constexpr std::size_t kMaxValues = limits::kYamlBytes;
constexpr std::size_t kShown = 60;

Location location_of(const std::string& source, const YAML::Mark& mark, std::string path) {
  if (mark.is_null()) return {source, 0, 0, std::move(path)};
  return {source, static_cast<std::size_t>(mark.line) + 1, static_cast<std::size_t>(mark.column) + 1, std::move(path)};
}

std::string shown(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (!node.IsScalar() || node.Scalar().empty()) return "nothing";
  return "'" + node.Scalar().substr(0, kShown) + "'";
}

std::string joined(std::initializer_list<std::string_view> words) {
  std::string text;
  for (std::string_view word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

// Runs through a document's events before a tree is built from it, to bound what the tree may cost.
class Survey : public YAML::EventHandler {
 public:
  explicit Survey(const std::string& source) : source_(source) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override { descend(mark); }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override { descend(mark); }
  void OnMapEnd() override { --depth_; }

 private:
  void descend(const YAML::Mark& mark) {
    if (++depth_ <= limits::kDepth) return;
    throw ParseError(location_of(source_, mark, ""), "values nested more than " + std::to_string(limits::kDepth) + " deep",
                     "a flatter document");
  }

  const std::string& source_;
  std::size_t depth_ = 0;
};

// One document and nothing behind it. (YAML::LoadAll would loop for ever on some texts that are not YAML.)
void check_one_document(const std::string& text, const std::string& source) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Survey survey(source);
  if (!parser.HandleNextDocument(survey)) throw ParseError({source, 0, 0, ""}, "an empty document", "a map");
  if (parser.HandleNextDocument(survey)) throw ParseError({source, 0, 0, ""}, "more than one YAML document", "one");
}

}  // namespace

YamlDocument::YamlDocument(std::string_view text, std::string source) : source_(std::move(source)) {
  if (text.size() > limits::kYamlBytes) {
    throw ParseError({source_, 0, 0, ""}, std::to_string(text.size()) + " bytes", "at most " + std::to_string(limits::kYamlBytes));
  }
  const std::string copy(text);
  try {
    check_one_document(copy, source_);
    root_ = YAML::Load(copy);
  } catch (const YAML::Exception& error) {
    throw ParseError(location_of(source_, error.mark, ""), "not YAML: " + error.msg, "");
  }
}

YamlPlace YamlDocument::root() const { return {*this, root_, ""}; }

void YamlDocument::count_value() const {
  if (++values_ > kMaxValues) {
    throw ParseError({source_, 0, 0, ""}, "more than " + std::to_string(kMaxValues) + " values once aliases are expanded", "fewer");
  }
}

YamlPlace::YamlPlace(const YamlDocument& document, const YAML::Node& node, std::string path)
    : document_(&document), node_(node), path_(std::move(path)) {
  document.count_value();
}

void YamlPlace::fail(const std::string& found, const std::string& expected) const {
  throw ParseError(location_of(document_->source(), node_.Mark(), path_), found, expected);
}

void YamlPlace::expect_keys(std::initializer_list<std::string_view> required, std::initializer_list<std::string_view> optional) const {
  const std::vector<std::string> all = keys();
  const std::set<std::string> seen(all.begin(), all.end());
  for (const auto& entry : node_) {
    const std::string& key = entry.first.Scalar();
    const auto is = [&](std::string_view known) { return known == key; };
    if (std::none_of(required.begin(), required.end(), is) && std::none_of(optional.begin(), optional.end(), is)) {
      throw ParseError(location_of(document_->source(), entry.first.Mark(), path_), "unknown key '" + key.substr(0, kShown) + "'",
                       "one of " + joined(required) + (required.size() == 0 || optional.size() == 0 ? "" : ", ") + joined(optional));
    }
  }
  for (std::string_view key : required) {
    if (seen.count(std::string(key)) == 0) fail("key '" + std::string(key) + "' is missing", "all of " + joined(required));
  }
}

void YamlPlace::expect_head(std::string_view format) const {
  if (has("format") && at("format").string() != format) at("format").fail(shown(at("format").node_), std::string(format));
  if (has("version")) at("version").unsigned_integer(1, 1);
}

std::vector<std::string> YamlPlace::keys() const {
  if (!node_.IsMap()) fail(shown(node_), "a map");
  std::vector<std::string> keys;
  std::set<std::string> seen;
  for (const auto& entry : node_) {
    document_->count_value();
    if (!entry.first.IsScalar()) fail("a key that is " + shown(entry.first), "a word");
    keys.push_back(entry.first.Scalar());
    if (!seen.insert(keys.back()).second) {
      throw ParseError(location_of(document_->source(), entry.first.Mark(), path_),
                       "the key '" + keys.back().substr(0, kShown) + "' stands twice", "each key once");
    }
  }
  return keys;
}

std::size_t YamlPlace::list_size(std::size_t limit) const {
  if (!node_.IsSequence()) fail(shown(node_), "a list");
  if (node_.size() > limit) fail("a list of " + std::to_string(node_.size()), "at most " + std::to_string(limit));
  return node_.size();
}

bool YamlPlace::has(std::string_view key) const {
  // Asked of a const node: a mutable one would add the key.
  const YAML::Node& node = node_;
  return node.IsMap() && node[std::string(key)].IsDefined();
}

YamlPlace YamlPlace::at(std::string_view key) const {
  const YAML::Node& node = node_;
  return {*document_, node[std::string(key)], path_.empty() ? std::string(key) : path_ + "." + std::string(key)};
}

YamlPlace YamlPlace::at(std::size_t index) const {
  const YAML::Node& node = node_;
  return {*document_, node[index], path_ + "[" + std::to_string(index) + "]"};
}

std::string YamlPlace::string() const {
  if (!node_.IsScalar() || node_.Scalar().empty()) fail(shown(node_), "a text");
  return node_.Scalar();
}

bool YamlPlace::boolean() const {
  const bool scalar = node_.IsScalar();
  if (scalar && node_.Scalar() == "true") return true;
  if (scalar && node_.Scalar() == "false") return false;
  fail(shown(node_), "true or false");
}

std::uint64_t YamlPlace::unsigned_integer(std::uint64_t min, std::uint64_t max) const {
  const std::string text = node_.IsScalar() ? node_.Scalar() : "";
  std::uint64_t number = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{} || stop != text.data() + text.size() || number < min || number > max) {
    fail(shown(node_), min == max ? std::to_string(min) : "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return number;
}

}  // namespace railweave
