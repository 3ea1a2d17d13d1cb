// Fabric JSON either parses, and then survives being written and read again, or raises ParseError.
#include <cstddef>
#include <cstdint>
#include <string>

#include "check_fabric.hpp"
#include "railweave/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  try {
    check_fabric(railweave::parse_fabric_json(text, "input"));
  } catch (const railweave::ParseError&) {
  }
  return 0;
}
