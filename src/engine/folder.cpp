#include "folder.hpp"

#include <dirent.h>

#include <memory>
#include <utility>

namespace railweave::engine {

std::vector<std::string> names_in(const std::string& folder) {
  struct Close {
    void operator()(DIR* directory) const noexcept { ::closedir(directory); }
  };
  std::vector<std::string> names;
  const std::unique_ptr<DIR, Close> directory(::opendir(folder.c_str()));
  if (directory == nullptr) return names;
  while (const dirent* entry = ::readdir(directory.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  return names;
}

}  // namespace railweave::engine
