// Error types of the library. Everything Railweave throws derives from railweave::Error, says which input was
// wrong, what was expected there, and what to do about it.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace railweave {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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
