// An element of an XML text, and errors that name its line, column and path.
#pragma once

#include <charconv>
#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>

#include "railweave/error.hpp"
#include "text_position.hpp"

namespace railweave {

struct XmlText {
  std::string_view text;
  std::string source;
};

// "/system/cpu[2]/pci[1]": positions count from 1 among siblings of a name, as in XPath.
inline std::string xml_path(const pugi::xml_node& element) {
  std::string path;
  for (pugi::xml_node node = element; node.type() == pugi::node_element; node = node.parent()) {
    std::size_t position = 1;
    for (pugi::xml_node other = node.previous_sibling(node.name()); other; other = other.previous_sibling(node.name())) ++position;
    path.insert(0,
                "/" + std::string(node.name()) + (node.parent().type() == pugi::node_element ? "[" + std::to_string(position) + "]" : ""));
  }
  return path;
}

[[noreturn]] inline void xml_fail(const XmlText& text, const pugi::xml_node& element, const std::string& found,
                                  const std::string& expected) {
  const TextPosition where = position_of(text.text, static_cast<std::size_t>(std::max<std::ptrdiff_t>(element.offset_debug(), 0)));
  throw ParseError({text.source, where.line, where.column, xml_path(element)}, found, expected);
}

// The attribute as an integer, decimal or 0x hexadecimal; nothing when it is absent or empty.
inline std::optional<long long> xml_integer(const XmlText& text, const pugi::xml_node& element, const char* name) {
  const std::string_view written = element.attribute(name).value();
  if (written.empty()) return std::nullopt;
  std::string_view digits = written;
  const bool hex = digits.starts_with("0x");
  if (hex) digits.remove_prefix(2);
  long long number = 0;
  const auto [stop, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number, hex ? 16 : 10);
  if (problem != std::errc{} || stop != digits.data() + digits.size()) {
    xml_fail(text, element, "attribute " + std::string(name) + "=\"" + std::string(written.substr(0, 60)) + "\"", "a whole number");
  }
  return number;
}

}  // namespace railweave
