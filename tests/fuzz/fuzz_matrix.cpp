// A matrix file either parses, and then survives being written and read again, or raises ParseError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "railweave/demand/demand.hpp"
#include "railweave/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  try {
    const railweave::Demand demand = railweave::parse_demand(text, "input");
    if (!(railweave::parse_demand(railweave::format_demand(demand), "output") == demand)) std::abort();
    if (demand.total() >> 63U != 0) std::abort();
  } catch (const railweave::ParseError&) {
  }
  return 0;
}
