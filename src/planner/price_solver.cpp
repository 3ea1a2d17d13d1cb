#include "price_solver.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace railweave {
namespace {

constexpr std::uint32_t kLoadBits = 34;
constexpr std::uint32_t kInverseBits = 28;
constexpr std::uint32_t kTopBits = 24;                  // of the top resource's time, where exponents are computed
constexpr std::uint32_t kFractionBits = 8;              // of an exponent
constexpr std::int64_t kHeadroom = 2 << kFractionBits;  // a price may rise two octaves above the top before the next set_sharpness
constexpr std::int64_t kDeepest = 8 << 16;              // octaves that a price counts below the dearest, 16 fraction bits
constexpr std::uint32_t kRiseBits = 12;
constexpr double kRiseUnit = 1 << kRiseBits;
// Stages: octaves of price from an idle resource to the busiest, and passes at these. A further round of them only where the split is not
// proven to lie within kGoodEnough. Found by a search over 350 settings on 200 matrices (seeds 1000 to 1199) of the 4-GPU mesh and DGX-1V,
// nominal, with a pair at half rate and down: of those with a mean gap below 0.75% and a worst below 2.1% on each, one of the quickest on
// both machines (the settings before, whose gaps were 0.50% and 1.5%, took a quarter longer). With a first stage of two passes instead of
// one the mesh takes longer; with one round only the worst gap is 3.7%.
struct Stage {
  std::uint32_t octaves;
  int passes;
};
constexpr std::array<Stage, 4> kFirstRound{{{16, 1}, {37, 1}, {84, 1}, {192, 1}}};
constexpr std::array<std::array<Stage, 3>, 3> kFurtherRounds{
    {{{{96, 1}, {256, 1}, {768, 2}}}, {{{32, 1}, {96, 1}, {384, 2}}}, {{{64, 1}, {192, 1}, {768, 2}}}}};
constexpr double kGoodEnough = 1.0 / 38;
// What those rounds leave further from its bound than that: one in ten random sparse matrices on the meshes, of which one in fifty was 3%
// to 10% above its optimum. Cooler stages of many passes move what sharp ones hold fast. Of seven settings tried on 484 such matrices of
// the mesh of four and 251 of DGX-1V the one with the least mean gap (0.45% and 0.28%, worst 2.4% and 2.2%); their plans take up to 75 and
// 260 us, the median is what it was.
constexpr std::array<Stage, 3> kLastRound{{{16, 8}, {64, 8}, {256, 8}}};
constexpr int kLastRounds = 3;
constexpr double kProvenWithin = 1.0 / 60;  // a split this near its bound is done
// Prices nearer than one part in this many are left alone.
constexpr std::uint64_t kNear = 6;
// A demand whose dearest column came down by more than kFar octaves (16 fraction bits) is balanced again at once, up to this often: of one
// step alone a hot pair keeps a gap of up to 23%.
constexpr int kSteps = 4;
constexpr double kFar = 2 << 16;

// 2^(32 - i/256): exponentials without floating point. The factor is 2^(-1/256) with 62 fraction bits.
constexpr std::array<std::uint64_t, 256> make_exponentials() {
  std::array<std::uint64_t, 256> table{};
  constexpr std::uint64_t factor = 0x3FD3B2D65447B229ULL;
  std::uint64_t high = std::uint64_t{1} << 62;
  for (std::uint64_t& entry : table) {
    entry = high >> 30;
    // (high * factor) >> 62 in two halves.
    const std::uint64_t a = high >> 31, b = high & 0x7FFFFFFF, c = factor >> 31, d = factor & 0x7FFFFFFF;
    high = a * c + ((a * d + b * c) >> 31);
  }
  return table;
}
constexpr auto kExponential = make_exponentials();

// log2 with 16 fraction bits, straight between powers of two (it only sizes steps): what a double's exponent and mantissa are side by
// side. Far below zero for 0.
std::int64_t log2_of(double value) {
  constexpr int kMantissaBits = 52;
  constexpr std::int64_t kBias = 1023;
  return (std::bit_cast<std::int64_t>(value) >> (kMantissaBits - 16)) - (kBias << 16);
}

// All numbers of the solver are below 2^63; signed ones turn into floating point and back in one instruction.
double to_double(std::uint64_t value) { return static_cast<double>(static_cast<std::int64_t>(value)); }

std::uint64_t at_most(std::uint64_t most, double wanted) {
  return wanted < to_double(most) ? static_cast<std::uint64_t>(static_cast<std::int64_t>(wanted)) : most;
}

}  // namespace

void PriceSolver::begin(std::span<const std::uint64_t> capacities_Bps, std::uint64_t total_bytes, double bound_seconds) {
  // A column may load a resource twice (host memory, in and out), and repeated rounding needs a spare bit.
  const auto bits = static_cast<std::uint32_t>(std::bit_width(total_bytes)) + 2;
  shift_ = bits > kLoadBits ? bits - kLoadBits : 0;
  for (std::uint32_t r : used_) local_[r] = kUnused;
  if (local_.size() < capacities_Bps.size()) local_.resize(capacities_Bps.size(), kUnused);
  used_.clear();
  capacity_.clear();
  base_.clear();
  demand_bytes_.clear();
  first_column_.clear();
  column_.clear();
  entry_.clear();
  capacities_ = capacities_Bps;
  bound_seconds_ = bound_seconds;
  least_ = volume_ = 0;
}

inline std::uint32_t PriceSolver::use(std::uint32_t resource) {
  const std::uint32_t position = local_[resource];
  if (position != kUnused) return position;
  const auto next = static_cast<std::uint32_t>(used_.size());
  local_[resource] = next;
  used_.push_back(resource);
  capacity_.push_back(capacities_[resource]);
  base_.push_back(0);
  return next;
}

void PriceSolver::add_base(std::uint32_t resource, std::uint64_t bytes) { base_[use(resource)] += bytes >> shift_; }

void PriceSolver::add_demand(std::uint64_t bytes) {
  first_column_.push_back(static_cast<std::uint32_t>(column_.size()));
  demand_bytes_.push_back(bytes >> shift_);
}

void PriceSolver::add_column(std::uint64_t start_bytes, std::initializer_list<std::span<const std::uint32_t>> parts) {
  std::size_t size = 0;
  for (const auto& part : parts) size += part.size();
  const auto begin = static_cast<std::uint32_t>(entry_.size()), end = static_cast<std::uint32_t>(begin + size);
  entry_.resize(begin + (size + kGroup - 1) / kGroup * kGroup);
  std::uint32_t* entry = entry_.data() + begin;
  for (const auto& part : parts) {
    for (const std::uint32_t resource : part) *entry++ = use(resource);
  }
  column_.push_back({begin, end, start_bytes >> shift_});
}

void PriceSolver::finish_input() {
  first_column_.push_back(static_cast<std::uint32_t>(column_.size()));
  const auto none = static_cast<std::uint32_t>(used_.size());
  time_.resize(none + 1);
  inverse_.resize(none + 1);
  price_.resize(none + 1);
  rise_.resize(none + 1);
  time_[none] = inverse_[none] = price_[none] = rise_[none] = 0;
  slowest_ = *std::min_element(capacity_.begin(), capacity_.end());
  // One correctly rounded division each: the same everywhere.
  const double numerator = to_double(slowest_) * to_double(std::uint64_t{1} << kInverseBits);
  for (std::size_t r = 0; r < none; ++r) {
    inverse_[r] = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<std::int64_t>(numerator / to_double(capacity_[r]))));
    time_[r] = base_[r] * inverse_[r];
  }
  std::uint32_t most_columns = 0;
  for (std::size_t d = 0; d + 1 < first_column_.size(); ++d) most_columns = std::max(most_columns, first_column_[d + 1] - first_column_[d]);
  slope_.resize(most_columns);
  for (Column& column : column_) {
    column.slowest = 1;
    for (std::uint32_t e = column.begin; e < column.end; ++e) {
      column.slowest = std::max(column.slowest, inverse_[entry_[e]]);
      time_[entry_[e]] += column.amount * inverse_[entry_[e]];
    }
    for (std::uint32_t e = column.end; e % kGroup != 0; ++e) entry_[e] = none;
  }
}

inline void PriceSolver::reprice(std::uint32_t resource, const Sharpness& at) {
  const std::int64_t below = (static_cast<std::int64_t>(at.top) - static_cast<std::int64_t>(time_[resource])) >> at.top_shift;
  const std::int64_t exponent = std::max<std::int64_t>(0, ((below * static_cast<std::int64_t>(at.octave)) >> kTopBits) + kHeadroom);
  const std::int64_t octaves = exponent >> kFractionBits;
  const std::uint64_t exponential = octaves > 63 ? 0 : kExponential[static_cast<std::size_t>(exponent) & 255] >> octaves;
  const std::uint64_t price = (inverse_[resource] * exponential) >> kInverseBits;
  price_[resource] = price;
  rise_[resource] = (inverse_[resource] * price) >> kRiseBits;
}

void PriceSolver::set_sharpness(std::uint32_t octaves) {
  std::uint64_t top = 1;
  for (const std::uint64_t time : time_) top = std::max(top, time);
  const auto bits = static_cast<std::uint32_t>(std::bit_width(top));
  const std::uint32_t shift = bits > kTopBits ? bits - kTopBits : 0;
  sharpness_ = {top, shift, (std::uint64_t{octaves} << (kFractionBits + kTopBits)) / (top >> shift), to_double((top / octaves) >> 16)};
  const Sharpness at = sharpness_;
  for (std::uint32_t r = 0; r < used_.size(); ++r) reprice(r, at);
}

// Of the resources of a column.
inline std::uint64_t PriceSolver::sum(const std::vector<std::uint64_t>& values, const std::vector<std::uint32_t>& entries,
                                      const Column& column) {
  const std::uint64_t* const value = values.data();
  const std::uint32_t *entry = entries.data() + column.begin, *const last = entries.data() + column.end;
  std::uint64_t total = 0;
  do {
    total += value[entry[0]] + value[entry[1]] + value[entry[2]] + value[entry[3]];
    entry += kGroup;
  } while (entry < last);
  return total;
}

// Moves bytes between the columns of a demand so that the prices of those in use meet at one level, below those of the others:
// prices are exponentials, so their logarithms are nearly straight lines, and bytes find their level in them as water does.
inline PriceSolver::Step PriceSolver::balance(std::uint32_t demand) {
  const std::span<Column> columns(column_.data() + first_column_[demand], column_.data() + first_column_[demand + 1]);
  Slope* slope = slope_.data();
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max(), most = 0;
  for (const Column& column : columns) {
    const std::uint64_t price = sum(price_, entry_, column);
    (slope++)->price = price;
    least = std::min(least, price);
    most = std::max(most, column.amount != 0 ? price : 0);
  }
  if (most <= least || most - least <= most / kNear) return Step::none;
  const std::int64_t top = log2_of(to_double(most));
  const double level = find_level(columns, top);
  if (!move(columns, level)) return Step::none;
  return static_cast<double>(top) - level > kFar ? Step::far : Step::near;
}

// Floating point divides faster than integers do; every operation is a single correctly rounded one.
inline double PriceSolver::find_level(std::span<const Column> columns, std::int64_t top) {
  Slope* const slopes = slope_.data();
  const std::size_t count = columns.size();
  const std::int64_t floor = std::max<std::int64_t>(0, top - kDeepest);
  const double octave = sharpness_.step;
  double bytes = 0, volume = 0, lowest = std::numeric_limits<double>::infinity();
  for (std::size_t c = 0; c < count; ++c) {
    const Column& column = columns[c];
    Slope& slope = slopes[c];
    const std::uint64_t rise = sum(rise_, entry_, column);
    const double price = to_double(slope.price);
    slope.level = static_cast<double>(std::max(log2_of(price), floor));
    slope.bytes = rise == 0 ? octave / to_double(column.slowest) : octave * price / (to_double(rise) * kRiseUnit);
    slope.used = true;
    bytes += slope.bytes;
    volume += slope.level * slope.bytes;
    lowest = std::min(lowest, slope.level);
  }
  // Columns that would have to give more than they carry give that and drop out, which lowers the level, so that others may follow.
  for (double level = volume / bytes;; level = volume / bytes) {
    bool lower = false;
    for (std::size_t c = 0; c < count; ++c) {
      Slope& slope = slopes[c];
      if (!slope.used || slope.level == lowest) continue;
      const double amount = to_double(columns[c].amount);
      if ((slope.level - level) * slope.bytes <= amount) continue;
      slope.used = false;
      lower = true;
      bytes -= slope.bytes;
      volume -= slope.level * slope.bytes - amount;
    }
    if (!lower) return level;
  }
}

// What a column carries changes by `amount`, which may be negative (modulo 2^64).
inline void PriceSolver::load(const Column& column, std::uint64_t amount, const Sharpness& at) {
  for (const std::uint32_t *e = entry_.data() + column.begin, *const last = entry_.data() + column.end; e != last; ++e) {
    time_[*e] += amount * inverse_[*e];
    reprice(*e, at);
  }
}

// Brings the columns to the level that find_level found. Every byte that is given is taken.
inline bool PriceSolver::move(std::span<Column> columns, double level) {
  const Slope* const slopes = slope_.data();
  const Sharpness at = sharpness_;
  const std::size_t count = columns.size();
  std::uint64_t given = 0;
  std::size_t taker = count;
  for (std::size_t c = count; c-- > 0;) {
    if (slopes[c].level < level) taker = c;
  }
  if (taker == count) return false;
  for (std::size_t c = 0; c < count; ++c) {
    const Slope& slope = slopes[c];
    Column& column = columns[c];
    if (slope.level < level || column.amount == 0) continue;
    const std::uint64_t amount = slope.used ? at_most(column.amount, (slope.level - level) * slope.bytes) : column.amount;
    if (amount == 0) continue;
    column.amount -= amount;
    given += amount;
    load(column, 0 - amount, at);
  }
  if (given == 0) return false;
  for (std::size_t c = count; c-- > 0 && given != 0;) {
    const Slope& slope = slopes[c];
    if (slope.level >= level) continue;
    const std::uint64_t amount = c == taker ? given : at_most(given, (level - slope.level) * slope.bytes);
    if (amount == 0) continue;
    columns[c].amount += amount;
    given -= amount;
    load(columns[c], amount, at);
  }
  return true;
}

void PriceSolver::find_bound() {
  double least = 0, volume = 0;
  const Column* column = column_.data();
  for (std::size_t d = 0; d < demand_bytes_.size(); ++d) {
    std::uint64_t cheapest = std::numeric_limits<std::uint64_t>::max();
    for (const Column* const end = column_.data() + first_column_[d + 1]; column != end; ++column) {
      cheapest = std::min(cheapest, sum(price_, entry_, *column));
    }
    least += to_double(demand_bytes_[d]) * to_double(cheapest);
  }
  for (std::size_t r = 0; r < used_.size(); ++r) {
    const double price = to_double(price_[r]);
    least += to_double(base_[r]) * price;
    volume += to_double(capacity_[r]) * price;
  }
  least_ = least;
  volume_ = volume;
  if (volume != 0) bound_seconds_ = std::max(bound_seconds_, least / volume * to_double(std::uint64_t{1} << shift_));
}

double PriceSolver::bound_seconds_less(double saved) const noexcept {
  if (volume_ == 0) return 0;
  return (least_ - saved / to_double(std::uint64_t{1} << shift_)) / volume_ * to_double(std::uint64_t{1} << shift_);
}

bool PriceSolver::proven_within(double part) const {
  std::uint64_t top = 0;
  for (const std::uint64_t time : time_) top = std::max(top, time);
  const double time = to_double(top) / to_double(std::uint64_t{1} << kInverseBits) / to_double(slowest_);
  return time * to_double(std::uint64_t{1} << shift_) <= bound_seconds_ * (1 + part);
}

bool PriceSolver::sharpen(std::uint32_t octaves, int passes) {
  const auto demands = static_cast<std::uint32_t>(demand_bytes_.size());
  for (int pass = 0; pass < passes; ++pass) {
    set_sharpness(octaves);
    bool moved = false;
    for (std::uint32_t d = 0; d < demands; ++d) {
      for (int step = 0; step < kSteps; ++step) {
        const Step done = balance(d);
        moved = moved || done != Step::none;
        if (done != Step::far) break;
      }
    }
    if (!moved) break;
  }
  find_bound();
  return proven_within(kProvenWithin);
}

void PriceSolver::solve() {
  if (used_.empty()) return;
  finish_input();
  const auto proven = [this](const Stage& stage) { return sharpen(stage.octaves, stage.passes); };
  if (std::any_of(kFirstRound.begin(), kFirstRound.end(), proven)) return;
  for (const auto& round : kFurtherRounds) {
    if (proven_within(kGoodEnough) || std::any_of(round.begin(), round.end(), proven)) return;
  }
  for (int round = 0; round < kLastRounds; ++round) {
    for (const Stage& stage : kLastRound) {
      if (proven_within(kGoodEnough) || proven(stage)) return;
    }
  }
}

}  // namespace railweave
