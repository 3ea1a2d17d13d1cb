#include "rail_split.hpp"

#include <algorithm>
#include <bit>

namespace railweave {

void RailSplit::split(const LiveRoutes& routes, GpuId first_src, std::uint32_t src_count, GpuId first_dst, std::uint32_t dst_count,
                      std::span<const RailColumn> columns, std::span<const std::uint64_t> bytes, std::span<std::int64_t> quota,
                      Granularity granularity) {
  granularity_ = granularity;
  columns_ = columns.size();
  const std::size_t pairs = std::size_t{src_count} * dst_count;
  own_src_.assign(src_count, 0);
  own_dst_.assign(dst_count, 0);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::uint64_t bit = std::uint64_t{1} << c;
    for (std::uint32_t g = 0; g < src_count; ++g) own_src_[g] |= routes.source(first_src + g, columns[c].nic_src).relay == kNone ? bit : 0;
    for (std::uint32_t h = 0; h < dst_count; ++h) {
      own_dst_[h] |= routes.destination(columns[c].nic_dst, first_dst + h).relay == kNone ? bit : 0;
    }
  }
  rest_.assign(bytes.begin(), bytes.end());
  mask_.assign(pairs, 0);
  part_.resize(pairs * columns_);
  whole_.resize(pairs);
  for (std::size_t p = 0; p < pairs; ++p) {
    whole_[p] = rest_[p] <= granularity.whole_max_bytes || rest_[p] < 2 * granularity.chunk_bytes ? 1 : 0;
  }
  const std::uint64_t all = columns_ == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << columns_) - 1;
  for (int relays = 0; relays < 3; ++relays) {
    std::size_t p = 0;
    for (const std::uint64_t src : own_src_) {
      for (const std::uint64_t dst : own_dst_) {
        const std::uint64_t candidates = relays == 0 ? src & dst : relays == 1 ? src ^ dst : all & ~(src | dst);
        if (candidates != 0 && rest_[p] != 0) take(p, candidates, quota);
        ++p;
      }
    }
  }
  for (std::size_t p = 0; p < pairs; ++p) {
    if (rest_[p] != 0) place_rest(p, quota);
  }
}

void RailSplit::put(std::size_t pair, std::uint32_t column, std::uint64_t amount, std::span<std::int64_t> quota) {
  const std::uint64_t bit = std::uint64_t{1} << column;
  std::uint64_t& part = part_[pair * columns_ + column];
  part = (mask_[pair] & bit) != 0 ? part + amount : amount;
  mask_[pair] |= bit;
  quota[column] -= static_cast<std::int64_t>(amount);
  rest_[pair] -= amount;
}

// Fills the candidates' quotas, the largest first, without leaving less than a chunk anywhere.
void RailSplit::take(std::size_t pair, std::uint64_t candidates, std::span<std::int64_t> quota) {
  const std::uint64_t chunk = granularity_.chunk_bytes;
  while (candidates != 0 && rest_[pair] != 0) {
    auto column = static_cast<std::uint32_t>(std::countr_zero(candidates));
    for (std::uint64_t others = candidates & (candidates - 1); others != 0; others &= others - 1) {
      const auto other = static_cast<std::uint32_t>(std::countr_zero(others));
      if (quota[other] > quota[column]) column = other;
    }
    candidates &= ~(std::uint64_t{1} << column);
    if (quota[column] <= 0) return;
    const auto room = static_cast<std::uint64_t>(quota[column]);
    std::uint64_t amount = rest_[pair];
    if (amount > room) {
      if (whole_[pair] != 0) return;
      amount = room - room % chunk;
      if (amount != 0 && rest_[pair] - amount < chunk) amount -= chunk;
      if (amount == 0) continue;
    }
    put(pair, column, amount, quota);
  }
}

// What fits into no quota goes where most room is left, chunk by chunk.
void RailSplit::place_rest(std::size_t pair, std::span<std::int64_t> quota) {
  const std::uint64_t chunk = granularity_.chunk_bytes;
  while (rest_[pair] != 0) {
    const auto column = static_cast<std::uint32_t>(std::max_element(quota.begin(), quota.end()) - quota.begin());
    const bool all = whole_[pair] != 0 || rest_[pair] < 2 * chunk;
    std::uint64_t amount = all ? rest_[pair] : chunk;
    if (!all && quota[column] > static_cast<std::int64_t>(chunk)) {
      const auto room = static_cast<std::uint64_t>(quota[column]);
      amount = std::min(rest_[pair], room) - std::min(rest_[pair], room) % chunk;
      if (rest_[pair] - amount != 0 && rest_[pair] - amount < chunk) amount -= chunk;
    }
    put(pair, column, amount, quota);
  }
}

}  // namespace railweave
