#include "allocation_book.hpp"

#include <utility>
#include <vector>

namespace railweave::cuda {

AllocationBook::AllocationBook(BookPage& page, IdAt id_at) : page_(page), id_at_(std::move(id_at)) {}

std::optional<std::uint64_t> AllocationBook::find(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto known = names_.find(id);
  if (known == names_.end()) return std::nullopt;
  // Entries are reused in turn.
  if (is_listed(page_, known->second)) return known->second;
  forget(known->second);
  return std::nullopt;
}

std::uint64_t AllocationBook::list(std::uint64_t id, std::uint64_t base, const void* handle) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = list_buffer(page_, BufferKind::ipc, handle);
  while (!listed_.empty() && !is_listed(page_, listed_.begin()->first)) forget(listed_.begin()->first);
  names_[id] = number;
  listed_[number] = {id, base};
  return number;
}

void AllocationBook::forget(std::uint64_t number) {
  const auto found = listed_.find(number);
  if (found == listed_.end()) return;
  names_.erase(found->second.id);
  listed_.erase(found);
}

bool AllocationBook::look_for_freed(std::size_t most) {
  std::vector<std::pair<std::uint64_t, Listed>> some;
  {
    const std::lock_guard lock(mutex_);
    auto at = listed_.upper_bound(looked_at_);
    if (at == listed_.end()) at = listed_.begin();
    for (; at != listed_.end() && some.size() < most; ++at) some.push_back(*at);
    looked_at_ = some.empty() ? 0 : some.back().first;
  }
  // Without the lock: a call of the driver may wait for another thread's.
  std::erase_if(some, [&](const auto& each) { return id_at_(each.second.base) == each.second.id; });
  const std::lock_guard lock(mutex_);
  for (const auto& [number, allocation] : some) {
    withdraw_buffer(page_, number);
    forget(number);
  }
  return !some.empty();
}

}  // namespace railweave::cuda
