// Splits demands over alternative columns (sets of resources) so that the most loaded resource is as idle as possible, by
// multiplicative weights: a resource's price grows exponentially with its load, a column costs the sum of its resources' prices,
// and bytes move from dear columns to cheap ones while the prices get steeper.
//
// Integers only, so that every compiler and CPU gives the same answer. Formats, chosen so that every product fits 64 bits:
//   load     34 bits  bytes, scaled down by a power of two that makes the sum of all loads fit
//   inverse  28 bits  time per byte relative to the slowest resource
//   time     62 bits  load * inverse
//   price    32 bits  inverse * exponential, top resource about 2^30
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace railweave {

class PriceSolver {
 public:
  // Begins a problem over resources 0 … capacities.size()-1 in which all columns together place at most `total` bytes on one, and of
  // which it is known that it cannot end before `bound`.
  void begin(std::span<const std::uint64_t> capacities_Bps, std::uint64_t total_bytes, double bound_seconds);
  // Bytes that lie on a resource whatever is decided here.
  void add_base(std::uint32_t resource, std::uint64_t bytes);
  // A demand, then its columns, best first; each starts with some of the demand's bytes. Its resources come in several parts.
  void add_demand(std::uint64_t bytes);
  void add_column(std::uint64_t start_bytes, std::initializer_list<std::span<const std::uint32_t>> parts);

  // Improves the split. Ends early when the price bound shows that no split is better by much.
  void solve();

  // What a column carries (numbered as they were added), in bytes, rounded down.
  std::uint64_t column_bytes(std::uint32_t column) const { return column_[column].amount << shift_; }
  // What it loads, numbered within this problem; resources() has the caller's number of each.
  std::span<const std::uint32_t> column_resources(std::uint32_t column) const {
    return std::span(entry_).subspan(column_[column].begin, column_[column].end - column_[column].begin);
  }
  std::span<const std::uint32_t> resources() const noexcept { return used_; }

  // No split can end earlier than this: for any prices, sum of (bytes * cheapest column) / sum of (price * capacity).
  double bound_seconds() const noexcept { return bound_seconds_; }
  // Prices at the end, of the caller's resources, in a unit of the solver's; a resource of no column and no base has none.
  std::uint64_t price(std::uint32_t resource) const { return local_[resource] == kUnused ? 0 : price_[local_[resource]]; }
  // The bound at these prices if bytes of the base had cost so much less: for each, bytes * (its price - that of the cheapest way).
  double bound_seconds_less(double saved) const noexcept;

 private:
  static constexpr std::uint32_t kUnused = ~0U;  // a resource that is not in the problem
  struct Slope {                                 // of a column's price, while its demand is balanced
    std::uint64_t price = 0;
    double level = 0;   // logarithm of the price, base 2, 16 fraction bits
    double bytes = 0;   // that raise it by one unit
    bool used = false;  // carries something at the level found
  };
  enum class Step : std::uint8_t { none, near, far };
  // Entries are in groups of kGroup, so that sums over a column have no loop in most cases; what is over stands for no resource.
  static constexpr std::uint32_t kGroup = 4;
  struct Column {
    std::uint32_t begin = 0, end = 0;  // its entries, without what is over
    std::uint64_t amount = 0;
    std::uint64_t slowest = 0;  // the greatest inverse of its resources
  };
  // How prices follow from times: exponentially, the top resource's is about 2^30.
  struct Sharpness {
    std::uint64_t top = 0;        // time of the most loaded resource when this was set
    std::uint32_t top_shift = 0;  // brings it to 24 bits
    std::uint64_t octave = 0;     // octaves (8 fraction bits) per unit of shifted time, 24 fraction bits
    double step = 0;              // time per octave, without its last 16 bits
  };
  std::uint32_t use(std::uint32_t resource);
  void finish_input();
  static std::uint64_t sum(const std::vector<std::uint64_t>& values, const std::vector<std::uint32_t>& entries, const Column& column);
  void set_sharpness(std::uint32_t octaves);
  void reprice(std::uint32_t resource, const Sharpness& at);
  bool sharpen(std::uint32_t octaves, int passes);
  Step balance(std::uint32_t demand);
  double find_level(std::span<const Column> columns, std::int64_t top);
  bool move(std::span<Column> columns, double level);
  void load(const Column& column, std::uint64_t amount, const Sharpness& at);
  void find_bound();
  bool proven_within(double part) const;

  std::uint32_t shift_ = 0;
  std::span<const std::uint64_t> capacities_;  // the caller's
  std::uint64_t slowest_ = 0;                  // capacity of the slowest resource used
  std::vector<std::uint64_t> capacity_;        // by resource used
  // By resource used, and one more at the end that stands for none: of no price and never loaded.
  std::vector<std::uint64_t> time_;     // load * inverse
  std::vector<std::uint64_t> inverse_;  // 0: none
  std::vector<std::uint64_t> price_;
  std::vector<std::uint64_t> rise_;   // inverse * price, 48 bits
  std::vector<std::uint32_t> local_;  // caller's resource -> position here, kUnused
  std::vector<std::uint32_t> used_;   // the other way round
  std::vector<std::uint64_t> demand_bytes_, base_;
  std::vector<std::uint32_t> first_column_;  // by demand
  std::vector<Column> column_;
  std::vector<std::uint32_t> entry_;  // resources of columns
  std::vector<Slope> slope_;          // of the columns of the demand at hand

  Sharpness sharpness_;
  double bound_seconds_ = 0;
  double least_ = 0, volume_ = 0;  // of the bound at the last prices: what all bytes cost at least, what a second of all resources costs
};

}  // namespace railweave
