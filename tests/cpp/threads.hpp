// Threads of this process by their names.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace railweave::testing {

// The first of that name; 0: there is none.
inline pid_t thread_named(const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string found;
    std::getline(std::ifstream(task.path() / "comm"), found);
    if (found == name) return static_cast<pid_t>(std::stol(task.path().filename().string()));
  }
  return 0;
}

}  // namespace railweave::testing
