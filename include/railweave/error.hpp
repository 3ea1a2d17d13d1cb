// Error types of the library. Everything Railweave throws derives from railweave::Error, says which input was
// wrong, what was expected there, and what to do about it.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace railweave {

// Errors quote what they found, which may be anything: control characters and bytes that are not UTF-8 come as \xNN, so
// that no input can steer a terminal, and every binding can make a string of the text. Line breaks stay.
inline std::string printable(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  // Bytes of the character that starts at i; 0 where none does that may be shown (RFC 3629, section 4; C1 controls are below C2 A0).
  const auto character = [&](std::size_t i) -> std::size_t {
    const unsigned lead = byte(i), next = byte(i + 1);
    if (lead < 0x80) return (lead >= 0x20 && lead != 0x7F) || lead == '\n' ? 1 : 0;
    if (lead < 0xC2 || lead > 0xF4 || !continues(i + 1)) return 0;
    if (lead < 0xE0) return lead == 0xC2 && next < 0xA0 ? 0 : 2;
    if ((lead == 0xE0 && next < 0xA0) || (lead == 0xED && next > 0x9F) || !continues(i + 2)) return 0;
    if (lead < 0xF0) return 3;
    return (lead == 0xF0 && next < 0x90) || (lead == 0xF4 && next > 0x8F) || !continues(i + 3) ? 0 : 4;
  };
  std::string shown;
  for (std::size_t i = 0; i < text.size();) {
    if (const std::size_t length = character(i); length != 0) {
      shown += text.substr(i, length);
      i += length;
      continue;
    }
    constexpr std::string_view kDigits = "0123456789abcdef";
    shown += {'\\', 'x', kDigits[byte(i) >> 4U], kDigits[byte(i) & 15U]};
    ++i;
  }
  return shown;
}

class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view text) : std::runtime_error(printable(text)) {}
};

// Where in an input something was wrong. `source` is a file name (or "<string>"); line and column count from 1, 0 means
// unknown; `path` is the place in the document ("nodes[2].gpus", "/system/cpu[1]/pci[3]").
struct Location {
  std::string source;
  std::size_t line = 0;
  std::size_t column = 0;
  std::string path;
};

// A file or text that cannot be read as what it should be. `found` and `expected` are complete clauses; what() joins
// them as "FILE:LINE:COL: PATH: FOUND; expected EXPECTED".
class ParseError : public Error {
 public:
  ParseError(Location where, const std::string& found, const std::string& expected)
      : Error(render(where, found, expected)), where_(std::move(where)), expected_(expected) {}

  const Location& where() const noexcept { return where_; }
  const std::string& expected() const noexcept { return expected_; }

 private:
  static std::string render(const Location& where, const std::string& found, const std::string& expected) {
    std::string text = where.source;
    if (where.line != 0) text += ":" + std::to_string(where.line);
    if (where.line != 0 && where.column != 0) text += ":" + std::to_string(where.column);
    if (!where.path.empty()) text += ": " + where.path;
    text += ": " + found;
    if (!expected.empty()) text += "; expected " + expected;
    return text;
  }

  Location where_;
  std::string expected_;
};

// A fabric that cannot exist: an edge without capacity or ends, two vertices of one name, no GPU.
class FabricError : public Error {
 public:
  using Error::Error;
};

// A demand that cannot be served on this fabric: wrong number of ranks, bytes that overflow.
class DemandError : public Error {
 public:
  using Error::Error;
};

// A pair with bytes to move and no usable path between its GPUs.
class UnreachableError : public Error {
 public:
  using Error::Error;
};

}  // namespace railweave
