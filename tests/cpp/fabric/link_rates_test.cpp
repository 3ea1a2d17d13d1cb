#include "railweave/fabric/link_rates.hpp"

#include <gtest/gtest.h>

namespace railweave {
namespace {

TEST(LinkRates, PcieIsTransferRateTimesLanesWithoutCoding) {
  struct Row {
    unsigned generation, width;
    std::uint64_t Bps;
  };
  // 2.5 GT/s x 8/10 / 8 bits = 250 MB/s a lane; 8 GT/s x 128/130 / 8 = 984.615 MB/s a lane; and so on.
  for (const Row& row : {Row{1, 1, 250'000'000}, Row{2, 8, 4'000'000'000}, Row{3, 16, 15'753'846'153}, Row{4, 16, 31'507'692'307},
                         Row{5, 16, 63'015'384'615}, Row{6, 16, 118'000'000'000}, Row{5, 8, 31'507'692'307}}) {
    EXPECT_EQ(pcie_Bps(row.generation, row.width), row.Bps) << "gen" << row.generation << " x" << row.width;
  }
}

TEST(LinkRates, PcieLinksThatDoNotExistHaveNoRate) {
  for (const auto& [generation, width] : {std::pair{0U, 16U}, {7U, 16U}, {5U, 0U}, {5U, 3U}, {5U, 64U}}) {
    EXPECT_EQ(pcie_Bps(generation, width), std::nullopt) << "gen" << generation << " x" << width;
  }
}

TEST(LinkRates, NvlinkAddsUpToTheDataSheets) {
  // Half of what the data sheets give for both directions together.
  EXPECT_EQ(nvlink_Bps(1, 4), 80'000'000'000);    // P100: 160 GB/s
  EXPECT_EQ(nvlink_Bps(2, 6), 150'000'000'000);   // V100: 300 GB/s
  EXPECT_EQ(nvlink_Bps(3, 12), 300'000'000'000);  // A100: 600 GB/s
  EXPECT_EQ(nvlink_Bps(4, 18), 450'000'000'000);  // H100: 900 GB/s
  EXPECT_EQ(nvlink_Bps(5, 18), 900'000'000'000);  // B200: 1800 GB/s
  EXPECT_EQ(nvlink_Bps(4, 0), std::nullopt);
  EXPECT_EQ(nvlink_Bps(6, 1), std::nullopt);
}

TEST(LinkRates, NvlinkByComputeCapability) {
  EXPECT_EQ(nvlink_Bps_of_sm(60, 4), nvlink_Bps(1, 4));
  EXPECT_EQ(nvlink_Bps_of_sm(70, 6), nvlink_Bps(2, 6));
  EXPECT_EQ(nvlink_Bps_of_sm(72, 6), nvlink_Bps(2, 6));
  EXPECT_EQ(nvlink_Bps_of_sm(80, 12), nvlink_Bps(3, 12));
  EXPECT_EQ(nvlink_Bps_of_sm(86, 4), 56'250'000'000);  // A40: 112.5 GB/s in both directions
  EXPECT_EQ(nvlink_Bps_of_sm(90, 18), nvlink_Bps(4, 18));
  EXPECT_EQ(nvlink_Bps_of_sm(100, 18), nvlink_Bps(5, 18));
  EXPECT_EQ(nvlink_Bps_of_sm(52, 1), std::nullopt);
}

}  // namespace
}  // namespace railweave
