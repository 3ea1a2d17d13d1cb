#include "nvlink.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace railweave::cuda {
namespace {

TEST(NvLink, IsWhatTheManagementLibrarySays) {
  ::setenv("STAND_IN_NVLINKS", "01 23", 1);
  const auto joined = [](const char* a, const char* b) { return joined_by_nvlink(a, b, STAND_IN_NVML); };
  EXPECT_EQ(joined("0000:00:00.0", "0000:01:00.0"), true);
  EXPECT_EQ(joined("0000:01:00.0", "0000:00:00.0"), true);
  EXPECT_EQ(joined("0000:03:00.0", "0000:02:00.0"), true);
  EXPECT_EQ(joined("0000:00:00.0", "0000:02:00.0"), false);
  EXPECT_EQ(joined("0000:00:00.0", "0000:07:00.0"), std::nullopt);
  ::unsetenv("STAND_IN_NVLINKS");
  EXPECT_EQ(joined("0000:00:00.0", "0000:01:00.0"), std::nullopt) << "it cannot be started";
}

TEST(NvLink, IsNotKnownWithoutThatLibrary) {
  EXPECT_EQ(joined_by_nvlink("0000:00:00.0", "0000:01:00.0", "libnothing-here.so.1"), std::nullopt);
}

}  // namespace
}  // namespace railweave::cuda
