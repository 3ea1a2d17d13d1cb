#include "mate_book.hpp"

#include <iterator>
#include <utility>

namespace railweave::cuda {

MateBook::MateBook(const engine::MemoryHandle& handle, MappingTable table, VirtualMemory* memory, const std::string& mate, Remarks& remarks)
    : memory_(engine::SharedMemory::open(handle)), table_(std::move(table)) {
  if (memory != nullptr) arrivals_.emplace(*memory, page(), mate, remarks);
}

void MateBook::retire(std::uint32_t index) {
  const auto mapped = mapped_.find(index);
  if (mapped == mapped_.end()) return;
  if (mapped->second.base != nullptr) {
    table_.write(index, {0, 0});
    retired_.push_back({std::move(mapped->second.base), mapped->second.kind, std::nullopt});
  }
  mapped_.erase(mapped);
}

void MateBook::follow(const Progress& progress, const std::vector<const Mail*>& mail, bool left) {
  if (progress.quiet) let_go(true, [](const Retired&) { return true; });
  for (Retired& retired : retired_) {
    if (progress.settled && !retired.enqueued) retired.enqueued = progress.enqueued;
  }
  const std::uint64_t newest = std::atomic_ref(page().newest).load();
  if (newest - seen_ > kMappings) seen_ = newest - kMappings;
  while (seen_ < newest && !left) map(++seen_);
  std::vector<std::uint32_t> withdrawn;
  for (const auto& [index, mapped] : mapped_) {
    if (left || !is_listed(page(), mapped.number)) withdrawn.push_back(index);
  }
  for (const std::uint32_t index : withdrawn) retire(index);
  if (left) arrivals_.reset();
  if (arrivals_) {
    arrivals_->tidy();
    for (const Mail* each : mail) {
      const auto arrived = arrivals_->take(*each);
      if (!arrived || !is_listed(page(), arrived->number)) continue;
      const auto index = static_cast<std::uint32_t>(arrived->number % kMappings);
      retire(index);
      mapped_[index] = {arrived->number, arrived->extent, BufferKind::virtual_};
      table_.write(index, {granted_name(arrived->number), arrived->extent->base()});
    }
  }
  if (progress.captured) return;
  let_go(false, [&](const Retired& retired) { return retired.enqueued && progress.completed >= *retired.enqueued; });
}

// CUDA unmaps another process' allocation when no kernel of the device runs, and until then no other thread's launch returns (2.3 s of a
// kernel of 2.5, H100, driver 580). Where that kernel waits for a rank whose program waits for one that this program is about to launch,
// none of them would ever go on. A look is too long a time for that: each is closed by itself, with no operation beginning meanwhile, and
// what cannot be closed now waits for the next look. Virtual memory is unmapped beside kernels.
template <typename Over>
void MateBook::let_go(bool quiet, Over over) {
  bool refused = false;
  const auto close = [&](Retired& retired) {
    if (retired.kind == BufferKind::virtual_) return true;
    refused = refused || !table_.close_alone(quiet, [&] { retired.base.reset(); });
    return !refused;
  };
  for (auto retired = retired_.begin(); retired != retired_.end();)
    retired = over(*retired) && close(*retired) ? retired_.erase(retired) : std::next(retired);
}

// A mapping that is refused leaves the table without the buffer: its data go through slots.
void MateBook::map(std::uint64_t number) {
  const auto index = static_cast<std::uint32_t>(number % kMappings);
  const auto listing = read_listing(page(), number);
  if (!listing) return;  // replaced meanwhile by a newer one, which follows; or withdrawn
  retire(index);
  Mapped& mapped = mapped_[index] = {number, nullptr, listing->kind};
  if (listing->kind != BufferKind::ipc || !table_.open) return;
  mapped.base = table_.open(listing->handle);
  if (mapped.base != nullptr) table_.write(index, {granted_name(number), reinterpret_cast<std::uint64_t>(mapped.base.get())});
}

}  // namespace railweave::cuda
