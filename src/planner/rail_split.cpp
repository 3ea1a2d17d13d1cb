#include "rail_split.hpp"

#include <algorithm>
#include <bit>

namespace railweave {

// Nodes of a cluster are mostly alike, so that the turns of one pair of nodes are those of the next.
void RailSplit::find_turns(const LiveRoutes& routes, GpuId first_src, std::uint32_t src_count, GpuId first_dst, std::uint32_t dst_count,
                           std::span<const RailColumn> columns) {
  own_.assign(std::size_t{src_count} + dst_count, 0);
  for (std::uint32_t g = 0; g < src_count; ++g) {
    const GpuId* const relays = routes.source_relays(first_src + g);
    std::uint64_t own = 0;
    for (std::size_t c = columns.size(); c-- > 0;) own = own << 1 | (relays[columns[c].nic_src] == kNone ? 1 : 0);
    own_[g] = own;
  }
  for (std::uint32_t h = 0; h < dst_count; ++h) {
    const GpuId* const relays = routes.destination_relays(first_dst + h);
    std::uint64_t own = 0;
    for (std::size_t c = columns.size(); c-- > 0;) own = own << 1 | (relays[columns[c].nic_dst] == kNone ? 1 : 0);
    own_[src_count + h] = own;
  }
  if (turns_src_ == src_count && turns_columns_ == columns.size() && turns_own_ == own_) return;
  turns_src_ = src_count;
  turns_columns_ = columns.size();
  turns_own_ = own_;
  turns_.clear();
  const std::uint64_t all = columns.size() == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << columns.size()) - 1;
  for (int relays = 0; relays < 3; ++relays) {
    for (std::uint32_t p = 0; p < src_count * dst_count; ++p) {
      const std::uint64_t src = own_[p / dst_count], dst = own_[src_count + p % dst_count];
      const std::uint64_t candidates = relays == 0 ? src & dst : relays == 1 ? src ^ dst : all & ~(src | dst);
      if (candidates != 0) turns_.push_back({p, candidates});
    }
  }
}

void RailSplit::split(const LiveRoutes& routes, GpuId first_src, std::uint32_t src_count, GpuId first_dst, std::uint32_t dst_count,
                      std::span<const RailColumn> columns, std::span<const std::uint64_t> bytes, std::span<std::int64_t> quota,
                      Granularity granularity) {
  granularity_ = granularity;
  columns_ = columns.size();
  const std::size_t pairs = std::size_t{src_count} * dst_count;
  find_turns(routes, first_src, src_count, first_dst, dst_count, columns);
  rest_.assign(bytes.begin(), bytes.end());
  mask_.assign(pairs, 0);
  if (part_.size() < pairs * columns_) part_.resize(pairs * columns_);
  for (const Turn& turn : turns_) {
    if (rest_[turn.pair] != 0) take(turn.pair, turn.candidates, quota);
  }
  for (std::size_t p = 0; p < pairs; ++p) {
    if (rest_[p] != 0) place_rest(p, quota);
  }
}

inline bool RailSplit::whole(std::size_t pair) const { return mask_[pair] == 0 && rest_[pair] < granularity_.split_min_bytes; }

inline void RailSplit::put(std::size_t pair, std::uint32_t column, std::uint64_t amount, std::span<std::int64_t> quota) {
  const std::uint64_t bit = std::uint64_t{1} << column;
  std::uint64_t& part = part_[pair * columns_ + column];
  part = (mask_[pair] & bit) != 0 ? part + amount : amount;
  mask_[pair] |= bit;
  quota[column] -= static_cast<std::int64_t>(amount);
  rest_[pair] -= amount;
}

// Fills the candidates' quotas, the largest first, without leaving less than a chunk anywhere.
inline void RailSplit::take(std::size_t pair, std::uint64_t candidates, std::span<std::int64_t> quota) {
  const std::uint64_t chunk = granularity_.chunk_bytes;
  const bool one_path = whole(pair);
  while (candidates != 0 && rest_[pair] != 0) {
    auto column = static_cast<std::uint32_t>(std::countr_zero(candidates));
    std::int64_t most = quota[column];
    for (std::uint64_t others = candidates & (candidates - 1); others != 0; others &= others - 1) {
      const auto other = static_cast<std::uint32_t>(std::countr_zero(others));
      column = quota[other] > most ? other : column;
      most = std::max(most, quota[other]);
    }
    candidates &= ~(std::uint64_t{1} << column);
    if (most <= 0) return;
    const auto room = static_cast<std::uint64_t>(most);
    std::uint64_t amount = rest_[pair];
    if (amount > room) {
      if (one_path) return;
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
  const bool one_path = whole(pair);
  while (rest_[pair] != 0) {
    const auto column = static_cast<std::uint32_t>(std::max_element(quota.begin(), quota.end()) - quota.begin());
    const bool all = one_path || rest_[pair] < 2 * chunk;
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
