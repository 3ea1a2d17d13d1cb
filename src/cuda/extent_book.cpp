#include "extent_book.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "../engine/wire.hpp"
#include "railweave/error.hpp"

namespace railweave::cuda {
namespace {

constexpr std::uint32_t kMagic = 0x52574558;  // "RWEX"
// What one call of deliver() sends at most, so that the thread gets to what others sent: a parcel is some milliseconds of its time.
constexpr int kParcelsPerCall = 4;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 47;  // of an extent: more than there are addresses

// In front of the sizes of the chunks whose descriptors come with it.
struct Head {
  std::uint32_t magic;
  std::uint32_t owner;
  std::uint64_t number;
  std::uint64_t bytes;  // of the extent
  std::uint32_t chunks;
  std::uint32_t first;
  std::uint32_t count;
  std::uint32_t reserved;
};
static_assert(sizeof(Head) + kMostDescriptors * sizeof(std::uint64_t) <= kMostMailBytes);

}  // namespace

void Remarks::tell(const Say& how, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (said_.insert(text).second) how(text);
}

std::uint64_t list_buffer(BookPage& page, BufferKind kind, const void* handle) {
  std::uint64_t number = page.newest + 1;
  while (granted_name(number) <= kAbsoluteBuffer) ++number;
  BookPage::Entry& entry = entry_of(page, number);
  std::uint64_t words[8] = {};
  if (handle != nullptr) std::memcpy(words, handle, sizeof words);
  // Each word says more than itself: who reads one of these has not found the old number after it.
  std::atomic_ref(entry.buffer).store(0);
  std::atomic_ref(entry.kind).store(kind, std::memory_order_release);
  for (std::size_t i = 0; i < std::size(words); ++i) std::atomic_ref(entry.handle[i]).store(words[i], std::memory_order_release);
  std::atomic_ref(entry.buffer).store(number);
  std::atomic_ref(page.newest).store(number);
  return number;
}

std::optional<Listing> read_listing(BookPage& page, std::uint64_t number) {
  BookPage::Entry& entry = entry_of(page, number);
  Listing listing{};
  listing.kind = std::atomic_ref(entry.kind).load(std::memory_order_acquire);
  for (std::size_t i = 0; i < std::size(entry.handle); ++i)
    listing.handle[i] = std::atomic_ref(entry.handle[i]).load(std::memory_order_acquire);
  return is_listed(page, number) ? std::optional(listing) : std::nullopt;
}

void withdraw_buffer(BookPage& page, std::uint64_t number) {
  std::atomic_ref(entry_of(page, number).buffer).compare_exchange_strong(number, 0);
}

// --- The owner

ExtentBook::Extent::Extent(VirtualMemory& driver, std::deque<Chunk> retained) : memory(driver), chunks(std::move(retained)) {}

ExtentBook::Extent::~Extent() {
  for (const Chunk& chunk : chunks) memory.release(chunk.handle);
}

ExtentBook::ExtentBook(VirtualMemory& memory, BookPage& page, std::uint32_t rank, std::vector<int> reached, Remarks& remarks)
    : memory_(memory), page_(page), rank_(rank), reached_(std::move(reached)), remarks_(remarks) {}

void ExtentBook::add_mate(const MailboxHandle& mailbox, std::function<bool()> has_left) {
  mates_.push_back({MailSender(mailbox), std::move(has_left)});
}

bool ExtentBook::still_there(const Extent& extent, std::uint64_t address, std::uint64_t end) const {
  return std::all_of(extent.chunks.begin(), extent.chunks.end(), [&](const Chunk& chunk) {
    if (chunk.base >= end || chunk.base + chunk.bytes <= address) return true;
    const auto now = memory_.retain(chunk.base);
    if (!now) return false;
    memory_.release(now->handle);
    return now->base == chunk.base && now->bytes == chunk.bytes && now->handle == chunk.handle;
  });
}

// The chunks that hold those bytes, and their neighbours: tensors come and go inside a segment, and shall find one name. A segment's chunks
// are all as large; what lies beside them is others' memory, NCCL's own for one (117 chunks of it beside a buffer of one, 2 x H100).
std::shared_ptr<ExtentBook::Extent> ExtentBook::find_extent(std::uint64_t address, std::uint64_t bytes) {
  std::deque<Chunk> chunks;
  std::string refused;
  int home = -1;  // device of them all: addresses of another device's memory may lie beside them
  const auto retain = [&](std::uint64_t at) -> std::optional<Chunk> {
    refused = "it was neither allocated by cudaMalloc nor mapped by cuMemMap (a memory pool's?)";
    const auto chunk = memory_.retain(at);
    if (!chunk) return std::nullopt;
    const Terms terms = memory_.terms(chunk->handle);
    refused = terms.refusal;
    if (refused.empty() && !chunks.empty() && terms.device != home) refused = "a message lies in memory of several devices";
    home = chunks.empty() ? terms.device : home;
    if (refused.empty()) return chunk;
    memory_.release(chunk->handle);
    return std::nullopt;
  };
  const auto give_up = [&](const std::string& why) {
    for (const Chunk& chunk : chunks) memory_.release(chunk.handle);
    remarks_.once("a receive buffer cannot be mapped by other ranks: " + why);
    return nullptr;
  };
  for (std::uint64_t at = address; at < address + bytes; at = chunks.back().base + chunks.back().bytes) {
    if (chunks.size() == kMostChunks) return give_up("a message lies in more than " + std::to_string(kMostChunks) + " pieces of it");
    const auto chunk = retain(at);
    if (!chunk) return give_up(refused);
    chunks.push_back(*chunk);
  }
  const std::uint64_t size = chunks.front().bytes;
  const auto neighbour = [&](std::uint64_t at) -> std::optional<Chunk> {
    const auto chunk = retain(at);
    if (!chunk || chunk->bytes == size) return chunk;
    memory_.release(chunk->handle);
    return std::nullopt;
  };
  while (chunks.size() < kMostChunks) {
    const auto chunk = neighbour(chunks.back().base + chunks.back().bytes);
    if (!chunk) break;
    chunks.push_back(*chunk);
  }
  while (chunks.size() < kMostChunks && chunks.front().base != 0) {
    const auto chunk = neighbour(chunks.front().base - 1);
    if (!chunk) break;
    chunks.push_front(*chunk);
  }
  auto extent = std::make_shared<Extent>(memory_, std::move(chunks));
  extent->reached = !reached_.empty() && std::all_of(extent->chunks.begin(), extent->chunks.end(), [&](const Chunk& chunk) {
    return std::all_of(reached_.begin(), reached_.end(), [&](int device) { return memory_.accessible(chunk, device); });
  });
  return extent;
}

void ExtentBook::withdraw(std::uint64_t number) {
  withdraw_buffer(page_, number);
  drop_unlisted();
}

// Also what waits for a mate, which may be stopped for as long as its debugger likes.
void ExtentBook::drop_unlisted() {
  const auto unlisted = [&](const Named& named) { return !is_listed(page_, named.number); };
  std::erase_if(named_, unlisted);
  for (auto parcel = outgoing_.begin(); parcel != outgoing_.end();) {
    const bool dropped = parcel != outgoing_.begin() && unlisted(parcel->named);
    parcel = dropped ? outgoing_.erase(parcel) : std::next(parcel);
  }
}

std::optional<ExtentBook::Name> ExtentBook::name(std::uint64_t address, std::uint64_t bytes) {
  if (bytes == 0 || bytes > ~address) return std::nullopt;
  const std::lock_guard lock(mutex_);
  drop_unlisted();
  const auto known = std::find_if(named_.rbegin(), named_.rend(), [&](const Named& named) {
    return named.extent->base() <= address && address + bytes <= named.extent->end();
  });
  if (known != named_.rend()) {
    const Extent& extent = *known->extent;
    if (still_there(extent, address, address + bytes)) return Name{{known->number, address - extent.base()}, extent.reached};
    withdraw(known->number);
  }
  const auto extent = find_extent(address, bytes);
  if (extent == nullptr) return std::nullopt;
  const Named named{list_buffer(page_, BufferKind::virtual_, nullptr), extent};
  named_.push_back(named);
  for (std::size_t first = 0; first < extent->chunks.size() && !mates_.empty(); first += kMostDescriptors) {
    Parcel& parcel = outgoing_.emplace_back(Parcel{named, first, {}, {}});
    for (std::size_t mate = 0; mate < mates_.size(); ++mate) parcel.waiting.insert(mate);
  }
  return Name{{named.number, address - extent->base()}, extent->reached};
}

// False: it is not to be sent.
bool ExtentBook::pack(Parcel& parcel) {
  if (!is_listed(page_, parcel.named.number)) return false;
  if (!parcel.descriptors.empty()) return true;
  const auto& chunks = parcel.named.extent->chunks;
  const std::size_t end = std::min(parcel.first + kMostDescriptors, chunks.size());
  try {
    for (std::size_t at = parcel.first; at < end; ++at) parcel.descriptors.push_back(memory_.export_memory(chunks[at].handle));
    return true;
  } catch (const Error& error) {
    remarks_.once(std::string("a receive buffer cannot be mapped by other ranks: ") + error.what());
    return false;
  }
}

// False: some mate takes no more now.
bool ExtentBook::send(Parcel& parcel) {
  const Extent& extent = *parcel.named.extent;
  engine::ByteWriter mail;
  mail.put(Head{kMagic, rank_, parcel.named.number, extent.end() - extent.base(), static_cast<std::uint32_t>(extent.chunks.size()),
                static_cast<std::uint32_t>(parcel.first), static_cast<std::uint32_t>(parcel.descriptors.size()), 0});
  for (std::size_t i = 0; i < parcel.descriptors.size(); ++i) mail.put(extent.chunks[parcel.first + i].bytes);
  std::erase_if(parcel.waiting, [&](std::size_t at) {
    MateBox& mate = mates_[at];
    return (mate.has_left && mate.has_left()) || mate.box.send(mail.bytes(), parcel.descriptors) != MailSender::Result::later;
  });
  return parcel.waiting.empty();
}

bool ExtentBook::deliver() {
  bool sent = false;
  for (int parcels = 0; parcels < kParcelsPerCall; ++parcels) {
    Parcel* parcel = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (outgoing_.empty()) return sent;
      parcel = &outgoing_.front();  // others are only added behind it
    }
    if (pack(*parcel)) {
      const std::size_t before = parcel->waiting.size();
      const bool all = send(*parcel);
      sent = sent || parcel->waiting.size() < before;
      if (!all) return sent;
    }
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
  }
  return sent;
}

bool ExtentBook::look_for_freed(std::size_t most) {
  Named named{};
  std::size_t first = 0;
  {
    const std::lock_guard lock(mutex_);
    drop_unlisted();
    std::size_t chunks = 0;
    for (const Named& each : named_) chunks += each.extent->chunks.size();
    if (chunks == 0) return false;
    std::size_t at = looked_at_ % chunks;
    for (const Named& each : named_) {
      named = each;
      first = at;
      if (at < each.extent->chunks.size()) break;
      at -= each.extent->chunks.size();
    }
    looked_at_ = looked_at_ % chunks + std::min(most, named.extent->chunks.size() - first);
  }
  const auto& chunks = named.extent->chunks;
  const Chunk& last = chunks[std::min(first + most, chunks.size()) - 1];
  if (still_there(*named.extent, chunks[first].base, last.base + last.bytes)) return false;
  const std::lock_guard lock(mutex_);
  withdraw(named.number);
  return true;
}

// --- A mate

MappedExtent::MappedExtent(VirtualMemory& memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes), base_(memory.reserve(bytes)) {}

MappedExtent::~MappedExtent() {
  for (const Chunk& chunk : chunks_) memory_.unmap(chunk.base, chunk.bytes);
  memory_.unreserve(base_, bytes_);
}

void MappedExtent::add(const engine::Fd& memory, std::uint64_t bytes) {
  const Chunk chunk{base_ + mapped_, bytes, memory_.import_memory(memory)};
  try {
    memory_.map(chunk);
  } catch (...) {
    memory_.release(chunk.handle);
    throw;
  }
  memory_.release(chunk.handle);  // the mapping keeps the memory
  chunks_.push_back(chunk);
  mapped_ += bytes;
}

void MappedExtent::open() { memory_.allow(base_, bytes_); }

ExtentArrivals::ExtentArrivals(VirtualMemory& memory, BookPage& owners_page, std::string owner, Remarks& remarks)
    : memory_(memory), page_(owners_page), owner_(std::move(owner)), remarks_(remarks) {}

std::optional<std::uint32_t> ExtentArrivals::sender(const Mail& mail) {
  engine::ByteReader in(mail.bytes);
  const Head head = in.get<Head>();
  if (!in.ok() || head.magic != kMagic) return std::nullopt;
  return head.owner;
}

void ExtentArrivals::tidy() {
  std::erase_if(incomplete_, [&](const auto& extent) { return !is_listed(page_, extent.first); });
}

std::optional<ExtentArrivals::Arrived> ExtentArrivals::take(const Mail& mail) {
  engine::ByteReader in(mail.bytes);
  const Head head = in.get<Head>();
  if (!in.ok() || !is_listed(page_, head.number)) return std::nullopt;
  const auto drop = [&](const std::string& why) {
    incomplete_.erase(head.number);
    remarks_.once(owner_ + "'s receive buffers in virtual memory are reached through slots from here: " + why);
    return std::nullopt;
  };
  if (mail.descriptors.size() != head.count || head.count == 0)
    return drop("their descriptors did not all arrive; raise the limit on open files (ulimit -n)");
  if (head.chunks > kMostChunks || head.bytes == 0 || head.bytes > kMostBytes) return drop("it announced more than there can be");
  try {
    std::shared_ptr<MappedExtent>& extent = incomplete_[head.number];
    if (extent == nullptr && head.first == 0) extent = std::make_shared<MappedExtent>(memory_, head.bytes);
    // A part of what was given up before.
    if (extent == nullptr || extent->chunks() != head.first || extent->bytes() != head.bytes) {
      incomplete_.erase(head.number);
      return std::nullopt;
    }
    for (const engine::Fd& descriptor : mail.descriptors) {
      const auto bytes = in.get<std::uint64_t>();
      if (!in.ok() || bytes == 0 || bytes > extent->bytes() - extent->mapped()) return drop("it announced pieces that do not fit");
      extent->add(descriptor, bytes);
    }
    if (extent->chunks() < head.chunks) return std::nullopt;
    if (extent->chunks() != head.chunks || extent->mapped() != extent->bytes()) return drop("it announced pieces that do not fit");
    extent->open();
    Arrived arrived{head.number, std::move(extent)};
    incomplete_.erase(head.number);
    return arrived;
  } catch (const Error& error) {
    return drop(error.what());
  }
}

}  // namespace railweave::cuda
