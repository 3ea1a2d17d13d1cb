#include "railweave/fabric/link_rates.hpp"

#include <algorithm>
#include <array>

namespace railweave {
namespace {

struct PcieGeneration {
  std::uint64_t transfers_per_lane;  // a second; one bit each
  std::uint64_t payload, total;      // line coding: payload of total
};

constexpr std::array<PcieGeneration, 6> kPcie = {{{2'500'000'000, 8, 10},
                                                  {5'000'000'000, 8, 10},
                                                  {8'000'000'000, 128, 130},
                                                  {16'000'000'000, 128, 130},
                                                  {32'000'000'000, 128, 130},
                                                  {64'000'000'000, 236, 256}}};
constexpr std::array<unsigned, 7> kPcieWidths = {1, 2, 4, 8, 12, 16, 32};
constexpr std::array<std::uint64_t, 5> kNvlink = {20'000'000'000, 25'000'000'000, 25'000'000'000, 25'000'000'000, 50'000'000'000};
constexpr std::uint64_t kNvlinkSm86 = 14'062'500'000;
// More links than any GPU has; keeps products far from overflow.
constexpr unsigned kMaxNvlinks = 1024;

std::optional<std::uint64_t> times(std::uint64_t each, unsigned count) noexcept {
  if (count == 0 || count > kMaxNvlinks) return std::nullopt;
  return each * count;
}

}  // namespace

std::optional<std::uint64_t> pcie_Bps(unsigned generation, unsigned width) noexcept {
  if (generation < 1 || generation > kPcie.size()) return std::nullopt;
  if (std::find(kPcieWidths.begin(), kPcieWidths.end(), width) == kPcieWidths.end()) return std::nullopt;
  const PcieGeneration& gen = kPcie[generation - 1];
  return gen.transfers_per_lane / 8 * width * gen.payload / gen.total;
}

std::optional<std::uint64_t> nvlink_Bps(unsigned generation, unsigned count) noexcept {
  if (generation < 1 || generation > kNvlink.size()) return std::nullopt;
  return times(kNvlink[generation - 1], count);
}

std::optional<std::uint64_t> nvlink_Bps_of_sm(unsigned sm, unsigned count) noexcept {
  if (sm >= 100) return nvlink_Bps(5, count);
  if (sm >= 90) return nvlink_Bps(4, count);
  if (sm == 86) return times(kNvlinkSm86, count);
  if (sm >= 80) return nvlink_Bps(3, count);
  if (sm >= 70) return nvlink_Bps(2, count);
  if (sm >= 60) return nvlink_Bps(1, count);
  return std::nullopt;
}

}  // namespace railweave
