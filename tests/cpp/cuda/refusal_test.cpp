#include "refusal.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace railweave::cuda {
namespace {

TEST(Refusal, MigSlicesAreNotServed) {
  EXPECT_EQ(device_refusal(0, {"NVIDIA H200 MIG 1g.18gb", 9}),
            "device 0 is a MIG slice (NVIDIA H200 MIG 1g.18gb), which no other can reach");
  EXPECT_EQ(device_refusal(3, {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", 8}),
            "device 3 is a MIG slice (NVIDIA A100-SXM4-40GB MIG 3g.20gb), which no other can reach");
  for (const char* whole : {"NVIDIA H200", "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB", "NVIDIA MIGHTY", ""})
    EXPECT_EQ(device_refusal(0, {whole, 7}), "") << whole;
}

TEST(Refusal, DevicesOlderThanVoltaAreNotServed) {
  EXPECT_EQ(device_refusal(1, {"Tesla P100-SXM2-16GB", 6}), "device 1 has compute capability 6.x; expected 7.0 or newer");
  EXPECT_EQ(device_refusal(1, {"NVIDIA B200", 10}), "");
}

TEST(Refusal, NoDriverIsToldFromAnOlderOne) {
  const std::string none = driver_refusal(13000, "/nowhere/libcuda.so.1");
  EXPECT_EQ(none.find("no NVIDIA driver (/nowhere/libcuda.so.1: cannot open shared object file"), 0u) << none;
  EXPECT_EQ(driver_refusal(13000, DRIVER_OF_12_4),
            "the NVIDIA driver supports CUDA 12.4, and this build needs CUDA 13.0; update the driver");
}

// CUDA 12.9 goes with each driver of CUDA 12 from 12.1 on.
TEST(Refusal, OfANewerMinorVersionTheFirstOneIsNeeded) {
  EXPECT_EQ(version_refusal(11080, 12090), "the NVIDIA driver supports CUDA 11.8, and this build needs CUDA 12.1; update the driver");
  EXPECT_EQ(version_refusal(12020, 12090), "the NVIDIA driver supports CUDA 12.2, and this build needs CUDA 12.9; update the driver");
}

TEST(Refusal, DriversThatLaunchNoKernelWithLongParameters) {
  EXPECT_EQ(parameters_refusal(12000), "the NVIDIA driver supports CUDA 12.0, and this build needs CUDA 12.1; update the driver");
  EXPECT_EQ(parameters_refusal(12010), "");
  EXPECT_EQ(parameters_refusal(13000), "");
}

TEST(Refusal, DevicesWithoutPoolsServeNoLongLists) {
  EXPECT_EQ(lists_refusal(2, false, 257),
            "device 2 has no memory pools, which an operation of more than 256 messages needs; an all-to-all has 257");
  EXPECT_EQ(lists_refusal(2, false, 256), "");
  EXPECT_EQ(lists_refusal(2, true, 4096), "");
}

// Then CUDA's own text has to do.
TEST(Refusal, WhatTheDriverIsNotToBlameFor) {
  EXPECT_EQ(version_refusal(13000, 13000), "");
  EXPECT_EQ(version_refusal(13010, 12090), "");
  EXPECT_EQ(driver_refusal(12040, DRIVER_OF_12_4), "");
  EXPECT_EQ(driver_refusal(13000, STAND_IN_NVML), "") << "a library that does not answer";
}

TEST(Refusal, PeerAccessThatIsSwitchedOffForNccl) {
  static const char *disable, *level;
  const auto lookup = [](const char* name) {
    return name == std::string_view("NCCL_P2P_DISABLE") ? disable : name == std::string_view("NCCL_P2P_LEVEL") ? level : nullptr;
  };
  const struct {
    const char *disable, *level;
    std::string off;
  } table[] = {
      {nullptr, nullptr, ""},
      {"", "", ""},
      {"0", nullptr, ""},
      {"2", nullptr, ""},
      {"no", nullptr, ""},
      {"1", nullptr, "NCCL_P2P_DISABLE=1"},
      {"1", "SYS", "NCCL_P2P_DISABLE=1"},
      {"0", "LOC", "NCCL_P2P_LEVEL=LOC"},
      {nullptr, "0", "NCCL_P2P_LEVEL=0"},
      {nullptr, "1", ""},
      {nullptr, "NVL", ""},
      {nullptr, "LOCAL", ""},
  };
  for (const auto& each : table) {
    disable = each.disable;
    level = each.level;
    EXPECT_EQ(no_peer_access(lookup), each.off);
  }
}

}  // namespace
}  // namespace railweave::cuda
