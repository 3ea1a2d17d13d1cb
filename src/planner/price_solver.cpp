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
constexpr std::uint64_t kMaxStepOctaves = 8;
// Three stages, and three more where the split is then not proven to lie within kGoodEnough. Measured over 200 matrices on the 4-GPU
// NVLink mesh with one pair down (mean / worst gap): these six 0.11% / 2.1%; 48, 96, 192, 384, 768 as second round 0.10% / 1.4%
// (166,000 instructions a plan); 96, 512 0.14% / 2.6% (129,000). One pass a stage instead of two, all eight stages: 0.16% / 3.4%.
constexpr std::array<std::uint32_t, 6> kSharpness{16, 64, 256, 96, 256, 768};  // octaves of price, idle resource to busiest
constexpr std::uint32_t kSecondRound = 3;                                      // position in kSharpness
constexpr double kGoodEnough = 1.0 / 80;
constexpr int kPasses = 2;
// Prices nearer than one part in this many are left alone: of 64 and 8 the gap is the same, and 8 saves 3 of 17 us.
constexpr std::uint64_t kNear = 8;
constexpr double kProvenWithin = 1.0 / 256;  // a split this near its bound is done

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

}  // namespace

void PriceSolver::begin(std::span<const std::uint64_t> capacities_Bps, std::uint64_t total_bytes) {
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
  bound_seconds_ = 0;
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

void PriceSolver::add_column(std::uint64_t start_bytes) {
  const auto begin = static_cast<std::uint32_t>(entry_.size());
  column_.push_back({begin, begin, start_bytes >> shift_});
}

void PriceSolver::add_resource(std::uint32_t resource) {
  entry_.push_back(use(resource));
  ++column_.back().end;
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
  for (const Column& column : column_) {
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

// By how much time per byte the (logarithm of the) price of a column rises: its resources' inverses weighted with their prices.
inline double PriceSolver::slope(const Column& column, std::uint64_t price) const {
  std::uint64_t sum = 0, slowest = 0;
  for (std::uint32_t e = column.begin; e < column.end; ++e) {
    const Resource& r = resource_[entry_[e]];
    sum += r.inverse * r.price;
    slowest = std::max(slowest, r.inverse);
  }
  return price == 0 ? static_cast<double>(slowest) : static_cast<double>(sum) / static_cast<double>(price);
}

inline void PriceSolver::move(Column& from, Column& to, std::uint64_t amount) {
  from.amount -= amount;
  to.amount += amount;
  Resource* const resources = resource_.data();
  const std::uint32_t* const entries = entry_.data();
  for (std::uint32_t e = from.begin; e < from.end; ++e) resources[entries[e]].time -= amount * resources[entries[e]].inverse;
  for (std::uint32_t e = to.begin; e < to.end; ++e) resources[entries[e]].time += amount * resources[entries[e]].inverse;
  for (std::uint32_t e = from.begin; e < from.end; ++e) reprice(resources[entries[e]]);
  for (std::uint32_t e = to.begin; e < to.end; ++e) reprice(resources[entries[e]]);
}

// Moves bytes of one demand from its dearest used column to its cheapest, as many as make their prices meet: prices are
// exponentials, so their logarithms are nearly straight and one division finds the point.
inline bool PriceSolver::balance(std::uint32_t demand) {
  Column *best = nullptr, *worst = nullptr;
  std::uint64_t best_price = std::numeric_limits<std::uint64_t>::max(), worst_price = 0;
  Column* const last = column_.data() + first_column_[demand + 1];
  for (Column* c = column_.data() + first_column_[demand]; c != last; ++c) {
    const std::uint64_t price = column_price(*c);
    if (price < best_price) {
      best = c;
      best_price = price;
    }
    if (c->amount != 0 && price > worst_price) {
      worst = c;
      worst_price = price;
    }
  }
  if (worst == nullptr || worst_price - best_price <= worst_price / kNear) return false;
  const std::uint64_t octaves = std::min(log2_of(worst_price) - log2_of(best_price), kMaxStepOctaves << 16);
  // Floating point divides faster than integers do; every operation is a single correctly rounded one.
  const double rise = slope(*worst, worst_price) + slope(*best, best_price);
  const std::uint64_t amount = std::min(worst->amount, static_cast<std::uint64_t>(static_cast<double>(octaves * (step_ >> 16)) / rise));
  if (amount == 0) return false;
  move(*worst, *best, amount);
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

void PriceSolver::solve() {
  if (used_.empty()) return;
  finish_input();
  const auto demands = static_cast<std::uint32_t>(demand_bytes_.size());
  for (std::size_t stage = 0; stage < kSharpness.size(); ++stage) {
    if (stage == kSecondRound && proven_within(kGoodEnough)) return;
    for (int pass = 0; pass < kPasses; ++pass) {
      set_sharpness(kSharpness[stage]);
      bool moved = false;
      for (std::uint32_t d = 0; d < demands; ++d) {
        for (std::uint32_t c = first_column_[d]; c < first_column_[d + 1] && balance(d); ++c) moved = true;
      }
      if (!moved) break;
    }
    find_bound();
    if (proven_within(kProvenWithin)) return;
  }
}

}  // namespace railweave
