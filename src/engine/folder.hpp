#pragma once

#include <string>
#include <vector>

namespace railweave::engine {

// What a folder has but "." and "..", in no order; nothing where it cannot be read. Throws without memory, where the standard library's
// iterator ends the process (GCC 12: its step to the next entry is noexcept, and allocates).
std::vector<std::string> names_in(const std::string& folder);

}  // namespace railweave::engine
