#include "staging.hpp"

#include <utility>

namespace railweave::cuda {
namespace {

// Copies of 16 bytes need source and destination in the same place between boundaries of 16, whole lines of the GPU's of 128, and what
// the driver copies memory with is fastest from 256 on.
constexpr std::uint64_t kBoundary = 256;

}  // namespace

void Staging::begin() {
  taken_ = 0;
  copies_.clear();
}

bool Staging::want() { return bytes_ != 0 && !wanted_.exchange(true); }

std::byte* Staging::place(std::byte* data, std::uint64_t bytes) {
  if (!provided_ || memory_ == nullptr) return nullptr;
  const std::uint64_t offset = reinterpret_cast<std::uint64_t>(data) % kBoundary;
  const std::uint64_t ahead = (offset + kBoundary - taken_ % kBoundary) % kBoundary;
  if (ahead > bytes_ - taken_ || bytes > bytes_ - taken_ - ahead) return nullptr;
  std::byte* const there = memory_.get() + taken_ + ahead;
  taken_ += ahead + bytes;
  const bool goes_on =
      !copies_.empty() && copies_.back().to + copies_.back().bytes == data && copies_.back().from + copies_.back().bytes == there;
  if (goes_on)
    copies_.back().bytes += bytes;
  else
    copies_.push_back({data, there, bytes});
  return there;
}

void Staging::provide(std::shared_ptr<std::byte> memory) {
  memory_ = std::move(memory);
  provided_ = true;
}

}  // namespace railweave::cuda
