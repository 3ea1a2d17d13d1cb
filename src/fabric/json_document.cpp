#include "json_document.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "railweave/error.hpp"
#include "railweave/fabric/limits.hpp"
#include "text_position.hpp"

namespace railweave {
namespace {

using nlohmann::json;

// Steps over values of a text that is known to be valid JSON.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::size_t offset() noexcept {
    skip_space();
    return at_;
  }

  // Into the object's member `key`, or into the array's element `index`.
  void enter_member(std::string_view key) {
    ++at_;  // {
    for (;;) {
      skip_space();
      if (at_ >= text_.size() || text_[at_] != '"') return;
      const std::size_t begin = at_;
      skip_value();
      // A key that the reader does not know may be written with escapes.
      const std::string_view written = text_.substr(begin, at_ - begin);
      const bool plain = written.find('\\') == std::string_view::npos;
      const bool found = plain ? written.substr(1, written.size() - 2) == key : json::parse(written).get<std::string>() == key;
      skip_space();
      ++at_;  // :
      skip_space();
      if (found || at_ >= text_.size()) return;
      skip_value();
      skip_space();
      ++at_;  // ,
    }
  }
  void enter_element(std::size_t index) {
    ++at_;  // [
    for (std::size_t i = 0; i < index; ++i) {
      skip_space();
      skip_value();
      skip_space();
      ++at_;  // ,
    }
  }

 private:
  void skip_space() noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
  }
  void skip_string() noexcept {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }
  void skip_value() noexcept {
    std::size_t depth = 0;
    do {
      skip_space();
      if (at_ >= text_.size()) return;
      const char c = text_[at_];
      if (c == '"') {
        skip_string();
      } else if (c == '{' || c == '[') {
        ++depth;
        ++at_;
      } else if (c == '}' || c == ']') {
        --depth;
        ++at_;
      } else if (c == ',' || c == ':') {
        ++at_;
      } else {
        while (at_ < text_.size() && std::string_view(",:]} \t\r\n").find(text_[at_]) == std::string_view::npos) ++at_;
      }
    } while (depth != 0);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The text's characters, noting the last one that the parser took.
class Reading {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Reading(const char* at, const char** last) noexcept : at_(at), last_(last) {}
  reference operator*() const noexcept { return *at_; }
  Reading& operator++() noexcept {
    *last_ = at_++;
    return *this;
  }
  Reading operator++(int) noexcept {
    const Reading before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Reading& other) const noexcept { return at_ == other.at_; }

 private:
  const char* at_;
  const char** last_;
};

std::string name_of(const json& value) { return std::string("a JSON ") + value.type_name(); }

std::string shown(const json& value) {
  if (value.is_structured()) return name_of(value);
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr std::size_t kShown = 60;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

std::string joined(std::initializer_list<std::string_view> words) {
  std::string text;
  for (std::string_view word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

}  // namespace

JsonDocument::JsonDocument(std::string_view text, std::string source) : text_(text), source_(std::move(source)) {
  if (text.size() > limits::kJsonBytes) {
    throw ParseError({source_, 0, 0, ""}, std::to_string(text.size()) + " bytes", "at most " + std::to_string(limits::kJsonBytes));
  }
  const char* last = text.data();
  const auto here = [&](const std::string& found, const std::string& expected) {
    const TextPosition where = position_of(text, static_cast<std::size_t>(last - text.data()));
    return ParseError({source_, where.line, where.column, ""}, found, expected);
  };
  std::vector<std::set<std::string>> keys;  // of the objects that are open, by depth
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    const auto level = static_cast<std::size_t>(std::max(depth, 0));
    if (level > limits::kDepth) {
      throw here("values nested more than " + std::to_string(limits::kDepth) + " deep", "a flatter document");
    }
    if (event == json::parse_event_t::object_start) {
      if (keys.size() <= level) keys.resize(level + 1);
      keys[level].clear();
    }
    if (event == json::parse_event_t::key && !keys[level - 1].insert(parsed.get<std::string>()).second) {
      throw here("the key '" + parsed.get<std::string>() + "' stands twice in one object", "each key once");
    }
    return true;
  };
  try {
    root_ = json::parse(Reading(text.data(), &last), Reading(text.data() + text.size(), &last), check);
  } catch (const json::parse_error& error) {
    const TextPosition where = position_of(text, error.byte == 0 ? 0 : error.byte - 1);
    std::string found = error.what();
    if (const std::size_t colon = found.rfind("; "); colon != std::string::npos) found = found.substr(0, colon);
    if (const std::size_t said = found.find(": "); said != std::string::npos) found = found.substr(said + 2);
    throw ParseError({source_, where.line, where.column, ""}, "not JSON: " + found, "");
  } catch (const json::out_of_range&) {
    throw here("a number too large to read", "a smaller one");
  }
}

void JsonPlace::fail(const std::string& found, const std::string& expected) const {
  const TextPosition where = position_of(document_.text(), offset());
  throw ParseError({document_.source(), where.line, where.column, path()}, found, expected);
}

std::string JsonPlace::path() const {
  if (parent_ == nullptr) return "";
  std::string text = parent_->path();
  if (key_.empty()) return text + "[" + std::to_string(index_) + "]";
  if (!text.empty()) text += ".";
  return text.append(key_);
}

std::size_t JsonPlace::offset() const {
  std::vector<const JsonPlace*> chain;
  for (const JsonPlace* place = this; place->parent_ != nullptr; place = place->parent_) chain.push_back(place);
  Scanner scanner(document_.text());
  scanner.offset();
  for (auto place = chain.rbegin(); place != chain.rend(); ++place) {
    if ((*place)->key_.empty()) {
      scanner.enter_element((*place)->index_);
    } else {
      scanner.enter_member((*place)->key_);
    }
    scanner.offset();
  }
  return scanner.offset();
}

void JsonPlace::expect_keys(std::initializer_list<std::string_view> required, std::initializer_list<std::string_view> optional) const {
  if (!value_.is_object()) fail(name_of(value_), "an object");
  for (const auto& [key, value] : value_.items()) {
    const auto is = [&k = key](std::string_view known) { return known == k; };
    if (std::none_of(required.begin(), required.end(), is) && std::none_of(optional.begin(), optional.end(), is)) {
      const TextPosition where = position_of(document_.text(), at(key).offset());
      throw ParseError({document_.source(), where.line, where.column, path()}, "unknown key '" + key.substr(0, 60) + "'",
                       "one of " + joined(required) + (optional.size() == 0 ? "" : ", ") + joined(optional));
    }
  }
  for (std::string_view key : required) {
    if (!has(key)) fail("key '" + std::string(key) + "' is missing", "all of " + joined(required));
  }
}

std::size_t JsonPlace::array_size(std::size_t limit) const {
  if (!value_.is_array()) fail(name_of(value_), "an array");
  if (value_.size() > limit) fail("an array of " + std::to_string(value_.size()), "at most " + std::to_string(limit));
  return value_.size();
}

std::string_view JsonPlace::string() const {
  if (!value_.is_string()) fail(shown(value_), "a string");
  return value_.get_ref<const std::string&>();
}

bool JsonPlace::boolean() const {
  if (!value_.is_boolean()) fail(shown(value_), "true or false");
  return value_.get<bool>();
}

std::uint64_t JsonPlace::unsigned_integer(std::uint64_t min, std::uint64_t max) const {
  const std::string expected = "a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  if (!value_.is_number_unsigned()) fail(shown(value_), expected);
  const auto number = value_.get<std::uint64_t>();
  if (number < min || number > max) fail(shown(value_), expected);
  return number;
}

}  // namespace railweave
