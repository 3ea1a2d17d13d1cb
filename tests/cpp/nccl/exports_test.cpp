// Against released NCCLs: the shim has every function that any of them has. exports/ lists them, made by check_releases.py --update from
// the wheels.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

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

// By the mark and not by trying: whether the loader drops an unmarked library depends on what else the process has loaded.
TEST(Exports, TheShimStaysWhenItIsClosed) {
  void* shim = ::dlopen(SHIM, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(shim, nullptr) << ::dlerror();
  const link_map* loaded = nullptr;
  ASSERT_EQ(::dlinfo(shim, RTLD_DI_LINKMAP, &loaded), 0);
  ElfW(Xword) flags = 0;
  for (const ElfW(Dyn)* entry = loaded->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_FLAGS_1) flags = entry->d_un.d_val;
  }
  EXPECT_NE(flags & DF_1_NODELETE, 0u);
}

}  // namespace
