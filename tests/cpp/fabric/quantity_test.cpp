#include "quantity.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace railweave {
namespace {

TEST(Quantity, Rates) {
  const std::vector<std::pair<const char*, std::uint64_t>> kRows = {{"400Gbit/s", 50'000'000'000},
                                                                    {"400gbit", 50'000'000'000},
                                                                    {"400mbit", 50'000'000},
                                                                    {"1.5Tbit/s", 187'500'000'000},
                                                                    {"50GB/s", 50'000'000'000},
                                                                    {"307.2 GB/s", 307'200'000'000},
                                                                    {"1B/s", 1},
                                                                    {"1kB/s", 1'000},
                                                                    {"0.000001GB/s", 1'000},
                                                                    {"2.5kbit", 312},
                                                                    {"0Gbit/s", 0},
                                                                    {"10 TB/s", 10'000'000'000'000}};
  for (const auto& [text, Bps] : kRows) EXPECT_EQ(parse_rate_Bps(text), Bps) << text;
}

TEST(Quantity, NotRates) {
  for (const char* text : {"", "400", "400Gb/s", "400Gbps", "-1GB/s", "1e9B/s", "GB/s", "1.GB/s", "1.1234567GB/s", "1bit/s", "50GiB/s",
                           "5GB/s ", "99999999999999999999GB/s", "9999999999999TB/s", ".5GB/s", "1,5GB/s", "nanGB/s"}) {
    EXPECT_EQ(parse_rate_Bps(text), std::nullopt) << text;
  }
}

TEST(Quantity, Latencies) {
  EXPECT_EQ(parse_latency_ns("500ns"), 500);
  EXPECT_EQ(parse_latency_ns("1.5us"), 1'500);
  EXPECT_EQ(parse_latency_ns("2 ms"), 2'000'000);
  EXPECT_EQ(parse_latency_ns("0ns"), 0);
  for (const char* text : {"", "5", "5s", "-5ns", "5 NS", "1.5.5us"}) EXPECT_EQ(parse_latency_ns(text), std::nullopt) << text;
}

TEST(Quantity, Thousandths) {
  EXPECT_EQ(parse_permille("2"), 2'000);
  EXPECT_EQ(parse_permille("1.5"), 1'500);
  EXPECT_EQ(parse_permille("2:1"), std::nullopt);
  EXPECT_EQ(parse_permille("x"), std::nullopt);
}

}  // namespace
}  // namespace railweave
