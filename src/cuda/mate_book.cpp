#include "mate_book.hpp"

#include <algorithm>
#include <utility>

namespace railweave::cuda {

MateBook::MateBook(const engine::MemoryHandle& handle, MappingTable table, VirtualMemory* memory, const std::string& mate, Remarks& remarks)
    : memory_(engine::SharedMemory::open(handle)), table_(std::move(table)) {
  if (memory != nullptr) arrivals_.emplace(*memory, page(), mate, remarks);
}

void MateBook::retire(std::uint32_t index) {
  Mapped& mapped = mapped_[index];
  if (mapped.base != nullptr) {
    table_.write(index, {0, 0});
    retired_.push_back({std::move(mapped.base), std::nullopt});
  }
  mapped = {};
}

void MateBook::follow(const Progress& progress, const std::vector<const Mail*>& mail) {
  if (progress.quiet) retired_.clear();
  for (Retired& retired : retired_) {
    if (progress.settled && !retired.enqueued) retired.enqueued = progress.enqueued;
  }
  const std::uint64_t newest = std::atomic_ref(page().newest).load();
  if (newest - seen_ > kMappings) seen_ = newest - kMappings;
  while (seen_ < newest) map(++seen_);
  for (std::uint32_t index = 0; index < kMappings; ++index) {
    if (mapped_[index].withdrawable && !is_listed(page(), mapped_[index].number)) retire(index);
  }
  if (arrivals_) {
    arrivals_->tidy();
    for (const Mail* each : mail) {
      const auto arrived = arrivals_->take(*each);
      if (!arrived || !is_listed(page(), arrived->number)) continue;
      const auto index = static_cast<std::uint32_t>(arrived->number % kMappings);
      retire(index);
      mapped_[index] = {arrived->number, arrived->extent, true};
      table_.write(index, {granted_name(arrived->number), arrived->extent->base()});
    }
  }
  if (progress.captured) return;
  std::erase_if(retired_, [&](const Retired& retired) { return retired.enqueued && progress.completed >= *retired.enqueued; });
}

// A mapping that is refused leaves the table without the buffer: its data go through slots.
void MateBook::map(std::uint64_t number) {
  const auto index = static_cast<std::uint32_t>(number % kMappings);
  const auto listing = read_listing(page(), number);
  if (!listing) return;  // replaced meanwhile by a newer one, which follows; or withdrawn
  if (mapped_[index].number == number) return;
  retire(index);
  mapped_[index].number = number;
  if (listing->kind != BufferKind::ipc || !table_.open) return;
  mapped_[index].base = table_.open(listing->handle);
  if (mapped_[index].base != nullptr)
    table_.write(index, {granted_name(number), reinterpret_cast<std::uint64_t>(mapped_[index].base.get())});
}

}  // namespace railweave::cuda
