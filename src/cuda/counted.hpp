// For texts that people read.
#pragma once

#include <cstdint>
#include <string>

namespace railweave::cuda {

// "1 block", "2 blocks".
inline std::string counted(std::uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace railweave::cuda
