// Against released NCCLs: the shim has every function that any of them has. exports/ lists them, made by check_releases.py --update from
// the wheels.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace {

namespace fs = std::filesystem;

TEST(Exports, TheShimHasEveryFunctionOfEveryRelease) {
  void* shim = ::dlopen(SHIM, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(shim, nullptr) << ::dlerror();
  std::size_t releases = 0;
  for (const auto& entry : fs::directory_iterator(EXPORTS)) {
    ++releases;
    std::ifstream file(entry.path());
    std::size_t names = 0;
    for (std::string name; std::getline(file, name); ++names)
      EXPECT_NE(::dlsym(shim, name.c_str()), nullptr) << name << " of NCCL " << entry.path().stem();
    EXPECT_GE(names, 60u) << entry.path();
  }
  EXPECT_GE(releases, 13u);
}

}  // namespace
