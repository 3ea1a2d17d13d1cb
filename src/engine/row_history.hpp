// Whether what other ranks sent last says what they send now (docs/protocol.md §10). One for each communicator.
#pragma once

#include <cstdint>
#include <vector>

namespace railweave::engine {

class RowHistory {
 public:
  explicit RowHistory(std::uint32_t world) : ranks_(world) {}

  // This rank plans an operation in which it sends `own` (bytes to each rank).
  void begin_plan(const std::vector<std::uint64_t>& own) {
    steady_ = own == own_;
    if (!steady_) own_ = own;
  }

  // In a plan, for each rank but the own, with the serial of its newest row: whether it does the same again and again beside this rank,
  // which does too. Then its row stands for its next one. A rank that has come to no new row within two plans has stopped.
  bool repeats(std::uint32_t rank, std::uint64_t serial) {
    Seen& seen = ranks_[rank];
    const bool renewed = serial != seen.serial;
    seen.serial = serial;
    seen.unchanged = renewed ? 0 : seen.unchanged + 1;
    seen.beside = steady_ && (seen.beside || renewed);
    return seen.beside && seen.unchanged <= kPlansBehind;
  }

 private:
  // Ranks come to an operation in any order: one that was early for the last, and is late for this, has come to none in between.
  static constexpr std::uint32_t kPlansBehind = 1;

  struct Seen {
    std::uint64_t serial = 0;
    std::uint32_t unchanged = 0;
    bool beside = false;  // renewed since this rank's row is what it is
  };
  bool steady_ = false;
  std::vector<std::uint64_t> own_;
  std::vector<Seen> ranks_;  // by rank
};

}  // namespace railweave::engine
