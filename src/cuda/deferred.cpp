#include "deferred.hpp"

#include <algorithm>

namespace railweave::cuda {

void Deferred::add(int device, std::shared_ptr<void> memory) {
  const std::scoped_lock lock(mutex_);
  memory_.emplace_back(device, std::move(memory));
}

bool Deferred::has(int device) {
  const std::scoped_lock lock(mutex_);
  return std::any_of(memory_.begin(), memory_.end(), [device](const auto& each) { return each.first == device; });
}

// Nothing where another thread was faster.
std::shared_ptr<void> Deferred::take(int device) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(memory_.begin(), memory_.end(), [device](const auto& each) { return each.first == device; });
  if (found == memory_.end()) return nullptr;
  std::shared_ptr<void> memory = std::move(found->second);
  memory_.erase(found);
  return memory;
}

void Deferred::give_back(int device, const std::function<bool(const std::function<void()>& call)>& alone) {
  while (has(device) && alone([&] { take(device).reset(); })) {
  }
}

}  // namespace railweave::cuda
