// Shares out the GPU pairs of one node pair over its rail columns, given how many bytes each column is to carry in all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "live_routes.hpp"

namespace railweave {

class RailSplit {
 public:
  struct Granularity {
    std::uint64_t split_min_bytes;  // smaller demands take one path
    std::uint64_t chunk_bytes;      // parts of a split demand are multiples of this but for one tail
  };

  // `bytes`: [src gpu][dst gpu], row after row. `quota`: bytes a column is to carry, which together are those of `bytes`; afterwards it
  // has what is left of that, below zero where a column got more. Pairs go first where they need no relay, then where they need one,
  // then two.
  void split(const LiveRoutes& routes, GpuId first_src, std::uint32_t src_count, GpuId first_dst, std::uint32_t dst_count,
             std::span<const RailColumn> columns, std::span<const std::uint64_t> bytes, std::span<std::int64_t> quota,
             Granularity granularity);

  // Which columns a pair uses, as a mask, and the bytes on one of those.
  std::uint64_t mask(std::size_t pair) const { return mask_[pair]; }
  std::uint64_t bytes_on(std::size_t pair, std::uint32_t column) const { return part_[pair * columns_ + column]; }

 private:
  // A pair and the columns that it reaches over so many relays.
  struct Turn {
    std::uint32_t pair = 0;
    std::uint64_t candidates = 0;
  };
  void find_turns(const LiveRoutes& routes, GpuId first_src, std::uint32_t src_count, GpuId first_dst, std::uint32_t dst_count,
                  std::span<const RailColumn> columns);
  bool whole(std::size_t pair) const;
  void take(std::size_t pair, std::uint64_t candidates, std::span<std::int64_t> quota);
  void place_rest(std::size_t pair, std::span<std::int64_t> quota);
  void put(std::size_t pair, std::uint32_t column, std::uint64_t amount, std::span<std::int64_t> quota);

  Granularity granularity_{};
  std::size_t columns_ = 0;
  std::vector<std::uint64_t> own_;        // by GPU of the source, then of the destination: columns that it reaches without a relay
  std::vector<std::uint64_t> turns_own_;  // what turns_ was made for
  std::size_t turns_columns_ = 0;
  std::uint32_t turns_src_ = 0;
  std::vector<Turn> turns_;          // in the order in which pairs choose
  std::vector<std::uint64_t> rest_;  // by pair: bytes not placed yet
  std::vector<std::uint64_t> mask_, part_;
};

}  // namespace railweave
