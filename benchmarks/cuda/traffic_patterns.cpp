#include "traffic_patterns.hpp"

#include <algorithm>
#include <cstddef>

std::vector<Pattern> traffic_patterns(std::uint32_t world, std::uint64_t size) {
  const Matrix none(world, std::vector<std::uint64_t>(world)), own(world, std::vector<std::uint64_t>(world, size));
  Matrix balanced = none, pair = none, both = none, hot = none, half = none, incast = none, outcast = none, zipf = none, rotating = none;
  for (std::uint32_t i = 0; i < world; ++i) {
    for (std::uint32_t j = 0; j < world; ++j) {
      if (i == j) continue;
      balanced[i][j] = size;
      hot[i][j] = size / 16;
      half[i][j] = size / 2;
    }
  }
  pair[0][1] = both[0][1] = both[1][0] = hot[0][1] = half[0][1] = size;
  for (std::uint32_t i = 1; i < world; ++i) incast[i][0] = outcast[0][i] = size;
  // Zipf's destinations are in an order that all ranks share.
  const auto weight = [world](std::uint32_t j) { return 1.0 / (1 + (j + world / 2) % world); };
  for (std::uint32_t i = 0; i < world; ++i) {
    double all = 0;
    for (std::uint32_t j = 0; j < world; ++j) all += i == j ? 0 : weight(j);
    for (std::uint32_t j = 0; j < world; ++j)
      zipf[i][j] = i == j ? 0 : static_cast<std::uint64_t>(static_cast<double>(size) * weight(j) / all) / 16 * 16;
    rotating[i][(i + world / 2) % world] = size;
    rotating[i][(i + world / 2 + 1) % world] = size / 8;
    rotating[i][i] = 0;
  }
  std::vector<Pattern> all{{"one pair", "pair", pair},
                           {"hot pair + 1/16", "hot", hot},
                           {"hot pair + 1/2", "half", half},
                           {"balanced", "balanced", balanced},
                           {"and to itself", "own", own}};
  if (world > 2) {
    all.push_back({"pair both ways", "both", both});
    all.push_back({"incast", "incast", incast});
    all.push_back({"outcast", "outcast", outcast});
    all.push_back({"Zipf 1.0", "zipf", zipf});
    all.push_back({"rotating hotspot", "rotating", rotating});
  }
  return all;
}

std::uint64_t busiest(const Matrix& m) {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < m.size(); ++i) {
    std::uint64_t out = 0, in = 0;
    for (std::size_t j = 0; j < m.size(); ++j) {
      out += i == j ? 0 : m[i][j];
      in += i == j ? 0 : m[j][i];
    }
    most = std::max({most, out, in});
  }
  return most;
}
