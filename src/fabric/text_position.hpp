// From an offset in a text to the line and column that a person looks for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace railweave {

struct TextPosition {
  std::size_t line = 1;
  std::size_t column = 1;
};

inline TextPosition position_of(std::string_view text, std::size_t offset) noexcept {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const std::size_t newline = before.rfind('\n');
  return {static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1,
          newline == std::string_view::npos ? before.size() + 1 : before.size() - newline};
}

}  // namespace railweave
