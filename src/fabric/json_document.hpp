// Reading JSON with errors that name the line, the column and the path. Used by every reader of this library's own JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace railweave {

// A parsed text. Refuses what nlohmann-json would let pass: two equal keys in one object, nesting without end.
class JsonDocument {
 public:
  // Throws ParseError.
  JsonDocument(std::string_view text, std::string source);
  const nlohmann::json& root() const noexcept { return root_; }
  std::string_view text() const noexcept { return text_; }
  const std::string& source() const noexcept { return source_; }

 private:
  std::string_view text_;
  std::string source_;
  nlohmann::json root_;
};

// A value and its place in the document. Places point to their parents, so they live on the reader's stack.
class JsonPlace {
 public:
  explicit JsonPlace(const JsonDocument& document) : document_(document), value_(document.root()) {}

  const nlohmann::json& value() const noexcept { return value_; }
  // Throws ParseError at this place.
  [[noreturn]] void fail(const std::string& found, const std::string& expected) const;

  // The object has all of `required` and nothing beside those and `optional`.
  void expect_keys(std::initializer_list<std::string_view> required, std::initializer_list<std::string_view> optional) const;
  bool has(std::string_view key) const { return value_.contains(key); }
  JsonPlace at(std::string_view key) const { return {*this, value_.at(key), key, 0}; }
  JsonPlace at(std::size_t index) const { return {*this, value_.at(index), {}, index}; }
  // The number of elements; fails unless this is an array of at most `limit`.
  std::size_t array_size(std::size_t limit) const;

  std::string_view string() const;
  bool boolean() const;
  std::uint64_t unsigned_integer(std::uint64_t min, std::uint64_t max) const;

 private:
  JsonPlace(const JsonPlace& parent, const nlohmann::json& value, std::string_view key, std::size_t index)
      : document_(parent.document_), value_(value), parent_(&parent), key_(key), index_(index) {}
  std::string path() const;
  // Offset of this value in the text. Scans from the start, so only errors may ask.
  std::size_t offset() const;

  const JsonDocument& document_;
  const nlohmann::json& value_;
  const JsonPlace* parent_ = nullptr;
  std::string_view key_;  // into the parent's object, or of static storage
  std::size_t index_ = 0;
};

}  // namespace railweave
