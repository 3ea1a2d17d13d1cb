#include "price_solver.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace railweave {
namespace {

constexpr std::uint32_t kUnused = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kLoadBits = 34;
constexpr std::uint32_t kInverseBits = 28;
constexpr std::uint32_t kTopBits = 24;                  // of the top resource's time, where exponents are computed
constexpr std::uint32_t kFractionBits = 8;              // of an exponent
constexpr std::int64_t kHeadroom = 2 << kFractionBits;  // a price may rise two octaves above the top before the next set_sharpness
constexpr std::uint64_t kDeepest = 8 << 16;             // octaves that a price counts below the dearest, 16 fraction bits
constexpr std::uint32_t kRiseBits = 12;
constexpr double kRiseUnit = 1 << kRiseBits;
// Rounds of three stages: octaves of price from an idle resource to the busiest, and passes at these; another round only where the split
// is not proven to lie within kGoodEnough. Measured on 200 matrices (seeds 1000 to 1199) of the 4-GPU mesh and DGX-1V, nominal and with a
// pair down: mean gap 0.2% to 0.5%, worst 1.3%. With one pass at first the mesh's hot pair takes three times as long (mice follow it to
// the host path and have to come back); with two at each stage plans take longer and are no better; with one round the worst is 3.7%.
// With 1, 1 and 3 passes, proof within 1/33 instead of 1/45: worst 2.8% of seeds 2000 to 2199; 1/60: no better, a tenth slower on DGX-1V.
constexpr std::array<std::array<std::uint32_t, 3>, 4> kRounds{{{16, 64, 256}, {96, 256, 768}, {32, 96, 384}, {64, 192, 768}}};
constexpr std::array<int, 3> kPasses{2, 1, 2};
constexpr double kGoodEnough = 1.0 / 45;
// Prices nearer than one part in this many are left alone: with 32 gaps are no smaller on these, and plans take longer.
constexpr std::uint64_t kNear = 8;
// A demand whose dearest column came down by more than an octave is balanced again at once, up to this often: of one step alone a hot
// pair keeps a gap of up to 23%.
constexpr int kSteps = 4;
constexpr double kFar = 1 << 16;            // an octave, 16 fraction bits
constexpr double kProvenWithin = 1.0 / 80;  // a split this near its bound is done; with 1/40 the worst gap of the mesh is 1.8%

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

// log2 with 16 fraction bits, straight between powers of two: it only sizes steps.
std::uint64_t log2_of(std::uint64_t value) {
  if (value == 0) return 0;
  const auto bits = static_cast<std::uint32_t>(std::bit_width(value)) - 1;
  const std::uint64_t fraction = value ^ (std::uint64_t{1} << bits);
  return (std::uint64_t{bits} << 16) | (bits >= 16 ? fraction >> (bits - 16) : fraction << (16 - bits));
}

std::uint64_t at_most(std::uint64_t most, double wanted) {
  return wanted < static_cast<double>(most) ? static_cast<std::uint64_t>(wanted) : most;
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
}

std::uint32_t PriceSolver::use(std::uint32_t resource) {
  std::uint32_t& position = local_[resource];
  if (position == kUnused) {
    position = static_cast<std::uint32_t>(used_.size());
    used_.push_back(resource);
    capacity_.push_back(capacities_[resource]);
    base_.push_back(0);
  }
  return position;
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
  entry_.resize(end);
  std::uint32_t* entry = entry_.data() + begin;
  for (const auto& part : parts) {
    for (const std::uint32_t resource : part) *entry++ = use(resource);
  }
  column_.push_back({begin, end, start_bytes >> shift_});
}

void PriceSolver::finish_input() {
  first_column_.push_back(static_cast<std::uint32_t>(column_.size()));
  resource_.assign(used_.size(), {});
  slowest_ = *std::min_element(capacity_.begin(), capacity_.end());
  // One correctly rounded division each: the same everywhere.
  const double numerator = static_cast<double>(slowest_) * static_cast<double>(std::uint64_t{1} << kInverseBits);
  for (std::size_t r = 0; r < used_.size(); ++r) {
    resource_[r].inverse = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(numerator / static_cast<double>(capacity_[r])));
    resource_[r].time = base_[r] * resource_[r].inverse;
  }
  std::uint32_t most_columns = 0;
  for (std::size_t d = 0; d + 1 < first_column_.size(); ++d) most_columns = std::max(most_columns, first_column_[d + 1] - first_column_[d]);
  slope_.resize(most_columns);
  for (Column& column : column_) {
    column.slowest = 1;
    for (std::uint32_t e = column.begin; e < column.end; ++e) column.slowest = std::max(column.slowest, resource_[entry_[e]].inverse);
    if (column.amount == 0) continue;
    for (std::uint32_t e = column.begin; e < column.end; ++e) resource_[entry_[e]].time += column.amount * resource_[entry_[e]].inverse;
  }
}

inline void PriceSolver::reprice(Resource& resource) const {
  const std::int64_t below = (static_cast<std::int64_t>(top_) - static_cast<std::int64_t>(resource.time)) >> top_shift_;
  const std::int64_t exponent = std::max<std::int64_t>(0, ((below * static_cast<std::int64_t>(octave_)) >> kTopBits) + kHeadroom);
  const std::int64_t octaves = exponent >> kFractionBits;
  const std::uint64_t exponential = octaves > 63 ? 0 : kExponential[static_cast<std::size_t>(exponent) & 255] >> octaves;
  resource.price = (resource.inverse * exponential) >> kInverseBits;
  resource.rise = (resource.inverse * resource.price) >> kRiseBits;
}

void PriceSolver::set_sharpness(std::uint32_t octaves) {
  top_ = 1;
  for (const Resource& r : resource_) top_ = std::max(top_, r.time);
  const auto bits = static_cast<std::uint32_t>(std::bit_width(top_));
  top_shift_ = bits > kTopBits ? bits - kTopBits : 0;
  octave_ = (std::uint64_t{octaves} << (kFractionBits + kTopBits)) / (top_ >> top_shift_);
  step_ = top_ / octaves;
  for (Resource& r : resource_) reprice(r);
}

inline std::uint64_t PriceSolver::column_price(const Column& column) const {
  const Resource* const resources = resource_.data();
  const std::uint32_t* const last = entry_.data() + column.end;
  std::uint64_t price = 0;
  for (const std::uint32_t* e = entry_.data() + column.begin; e != last; ++e) price += resources[*e].price;
  return price;
}

// Moves bytes between the columns of a demand so that the prices of those in use meet at one level, below those of the others:
// prices are exponentials, so their logarithms are nearly straight lines, and bytes find their level in them as water does.
inline PriceSolver::Step PriceSolver::balance(std::uint32_t demand) {
  const std::span<Column> columns = std::span(column_).subspan(first_column_[demand], first_column_[demand + 1] - first_column_[demand]);
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max(), most = 0;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::uint64_t price = column_price(columns[c]);
    slope_[c].price = price;
    least = std::min(least, price);
    if (columns[c].amount != 0) most = std::max(most, price);
  }
  if (most <= least || most - least <= most / kNear) return Step::none;
  const std::uint64_t top = log2_of(most);
  const double level = find_level(columns, top);
  if (!move(columns, level)) return Step::none;
  return static_cast<double>(top) - level > kFar ? Step::far : Step::near;
}

// Floating point divides faster than integers do; every operation is a single correctly rounded one.
inline double PriceSolver::find_level(std::span<const Column> columns, std::uint64_t top) {
  const auto octave = static_cast<double>(step_ >> 16);
  double bytes = 0, sum = 0, lowest = std::numeric_limits<double>::infinity();
  for (std::size_t c = 0; c < columns.size(); ++c) {
    Slope& slope = slope_[c];
    std::uint64_t rise = 0;
    for (std::uint32_t e = columns[c].begin; e != columns[c].end; ++e) rise += resource_[entry_[e]].rise;
    slope.level = static_cast<double>(std::max(log2_of(slope.price), top < kDeepest ? 0 : top - kDeepest));
    slope.bytes = rise == 0 ? octave / static_cast<double>(columns[c].slowest)
                            : octave * static_cast<double>(slope.price) / (static_cast<double>(rise) * kRiseUnit);
    slope.used = true;
    bytes += slope.bytes;
    sum += slope.level * slope.bytes;
    lowest = std::min(lowest, slope.level);
  }
  // Columns that would have to give more than they carry give that and drop out, which lowers the level, so that others may follow.
  double level = sum / bytes;
  for (bool lower = true; lower; level = sum / bytes) {
    lower = false;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      Slope& slope = slope_[c];
      if (!slope.used || slope.level == lowest) continue;
      if ((slope.level - level) * slope.bytes <= static_cast<double>(columns[c].amount)) continue;
      slope.used = false;
      lower = true;
      bytes -= slope.bytes;
      sum -= slope.level * slope.bytes - static_cast<double>(columns[c].amount);
    }
  }
  return level;
}

inline void PriceSolver::load(const Column& column, std::uint64_t amount) {
  for (std::uint32_t e = column.begin; e != column.end; ++e) resource_[entry_[e]].time += amount * resource_[entry_[e]].inverse;
}

// Brings the columns to the level that find_level found. Every byte that is given is taken.
inline bool PriceSolver::move(std::span<Column> columns, double level) {
  std::uint64_t given = 0;
  Column* taker = nullptr;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    Column& column = columns[c];
    Slope& slope = slope_[c];
    slope.moved = false;
    if (slope.level < level) {
      if (taker == nullptr) taker = &column;
    } else if (column.amount != 0) {
      const std::uint64_t amount = slope.used ? at_most(column.amount, (slope.level - level) * slope.bytes) : column.amount;
      column.amount -= amount;
      given += amount;
      slope.moved = amount != 0;
      load(column, 0 - amount);
    }
  }
  if (given == 0 || taker == nullptr) return false;
  for (std::size_t c = columns.size(); c-- > 0 && given != 0;) {
    if (slope_[c].level >= level) continue;
    const std::uint64_t amount = &columns[c] == taker ? given : at_most(given, (level - slope_[c].level) * slope_[c].bytes);
    columns[c].amount += amount;
    given -= amount;
    slope_[c].moved = true;
    load(columns[c], amount);
  }
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (!slope_[c].moved) continue;
    for (std::uint32_t e = columns[c].begin; e != columns[c].end; ++e) reprice(resource_[entry_[e]]);
  }
  return true;
}

void PriceSolver::find_bound() {
  double least = 0, volume = 0;
  for (std::uint32_t d = 0; d + 1 < first_column_.size(); ++d) {
    std::uint64_t cheapest = std::numeric_limits<std::uint64_t>::max();
    for (std::uint32_t c = first_column_[d]; c < first_column_[d + 1]; ++c) cheapest = std::min(cheapest, column_price(column_[c]));
    least += static_cast<double>(demand_bytes_[d]) * static_cast<double>(cheapest);
  }
  for (std::size_t r = 0; r < resource_.size(); ++r) {
    const auto price = static_cast<double>(resource_[r].price);
    least += static_cast<double>(base_[r]) * price;
    volume += static_cast<double>(capacity_[r]) * price;
  }
  if (volume != 0) bound_seconds_ = std::max(bound_seconds_, least / volume * static_cast<double>(std::uint64_t{1} << shift_));
}

bool PriceSolver::proven_within(double part) const {
  std::uint64_t top = 0;
  for (const Resource& r : resource_) top = std::max(top, r.time);
  const double time = static_cast<double>(top) / static_cast<double>(std::uint64_t{1} << kInverseBits) / static_cast<double>(slowest_);
  return time * static_cast<double>(std::uint64_t{1} << shift_) <= bound_seconds_ * (1 + part);
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
  for (const auto& round : kRounds) {
    for (std::size_t stage = 0; stage < round.size(); ++stage) {
      if (sharpen(round[stage], kPasses[stage])) return;
    }
    if (proven_within(kGoodEnough)) return;
  }
}

}  // namespace railweave
