// The fabric as JSON: the form in which tools exchange it. Described in docs/fabric.md, schema in schema/fabric.schema.json.
#pragma once

#include <string>
#include <string_view>

#include "railweave/fabric/fabric.hpp"

namespace railweave {

// Value of the "format" key, and of "version" as it is written. Version 1, which had no attributes, is read as well.
inline constexpr std::string_view kFabricJsonFormat = "railweave-fabric";
inline constexpr int kFabricJsonVersion = 2;

// Throws ParseError with line, column and the path in the document ("vertices[3].kind"). Unknown keys are errors: a misspelt
// capacity must not pass as "has none". `source` is the file name that errors show.
Fabric parse_fabric_json(std::string_view text, const std::string& source);

// parse_fabric_json(format_fabric_json(f)) gives f again, ids included.
std::string format_fabric_json(const Fabric& fabric);

}  // namespace railweave
