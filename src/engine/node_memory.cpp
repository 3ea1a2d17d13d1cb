#include "node_memory.hpp"

#include <algorithm>
#include <cstring>

#include "railweave/error.hpp"

namespace railweave::engine {

NodeMemory::NodeMemory(const Cluster& cluster, const ExchangeSettings& settings)
    : self_(cluster.self().local),
      rank_(cluster.rank),
      world_(cluster.world),
      slots_(static_cast<std::uint32_t>(settings.slots_per_writer)),
      rx_slots_(static_cast<std::uint32_t>(settings.rx_slots)),
      chunk_bytes_(settings.chunk_bytes) {
  const auto count = cluster.mates().size();
  RegionShape shape;
  shape.world = cluster.world;
  shape.nodes = static_cast<std::uint32_t>(cluster.nodes.size());
  shape.mates = static_cast<std::uint32_t>(count);
  shape.all_nics = static_cast<std::uint32_t>(cluster.nics.size());
  shape.slots = slots_;
  shape.rx_slots = rx_slots_;
  shape.chunk_bytes = chunk_bytes_;
  for (const std::uint32_t rank : cluster.mates()) {
    shape.own_nics = static_cast<std::uint32_t>(cluster.ranks[rank].nics.size());
    layouts_.emplace_back(shape);
  }
  regions_.resize(count);
  nic_slots_.resize(count);
  bells_.resize(count);
  written_.resize(count);
  consumed_.resize(count);
  mail_taken_.resize(count);
  backlog_.resize(count);
  direct_use_.assign(count, std::vector<SlotUse>(slots_));
  rx_use_.assign(cluster.self().nics.size(), std::vector<SlotUse>(rx_slots_));
  gone_.assign(count, false);
  shows_life_.assign(count, true);
  dead_ = std::make_unique<std::atomic<bool>[]>(count);
  regions_[self_] = SharedMemory::create("railweave-rank" + std::to_string(cluster.rank), layouts_[self_].bytes());
  RegionHeader& own = header(self_);
  own.size = layouts_[self_].bytes();
  own.lease_ns = now_ns();
  own.magic = kRegionMagic;
  bells_[self_] = Doorbell::create();
}

void NodeMemory::map_mates(const Cluster& cluster) {
  for (std::uint32_t mate = 0; mate < mates(); ++mate) {
    if (mate == self_) continue;
    const RankInfo& info = cluster.ranks[cluster.mates()[mate]];
    regions_[mate] = SharedMemory::open(info.region);
    if (regions_[mate].bytes() < sizeof(RegionHeader) || header(mate).magic != kRegionMagic ||
        header(mate).size != layouts_[mate].bytes() || regions_[mate].bytes() != layouts_[mate].bytes()) {
      throw Error("the region of rank " + std::to_string(cluster.mates()[mate]) +
                  " has another layout; install the same Railweave everywhere");
    }
    bells_[mate] = Doorbell::open(info.pid, info.doorbell_fd);
  }
}

void NodeMemory::move_nic_slots(std::uint32_t owner, std::byte* base, std::vector<bool> nics) {
  nic_slots_[owner] = {base, std::move(nics)};
  if (base != nullptr) store_flag(regions_[self_].at<std::uint64_t>(layouts_[self_].maps(owner)), 1);
}

bool NodeMemory::settle_nic_slots(std::uint32_t owner) {
  for (std::uint32_t mate = 0; mate < mates(); ++mate) {
    if (load_flag(regions_[mate].at<std::uint64_t>(layouts_[mate].maps(owner))) == 0) nic_slots_[owner].base = nullptr;
  }
  return nic_slots_[owner].base != nullptr;
}

std::uint32_t NodeMemory::queued(std::uint32_t owner) const {
  std::uint32_t count = 0;
  for (std::uint32_t slot = 0; slot < slots_ * mates(); ++slot) count += load_flag(flag(owner, Pool::tx, slot)) & 1;
  return count;
}

std::optional<SlotRef> NodeMemory::take(std::uint32_t owner, Pool pool, std::uint32_t reader, std::uint32_t own_nic) {
  if (pool != Pool::tx && gone_[reader]) return std::nullopt;
  const bool rx = pool == Pool::rx;
  const std::uint32_t count = rx ? rx_slots_ : slots_;
  const std::uint32_t first = rx ? own_nic * rx_slots_ : self_ * slots_;
  // The first free one, not the one that has been free for longest: what few slots carry stays in the cache.
  for (std::uint32_t position = 0; position < count; ++position) {
    const std::uint32_t slot = first + position;
    std::uint64_t& word = flag(owner, pool, slot);
    const std::uint64_t now = load_flag(word);
    if ((now & 1) != 0) continue;
    store_flag(word, now + 1);
    if (pool == Pool::direct) direct_use_[owner][position] = {reader, now + 1, false};
    if (rx) rx_use_[own_nic][position] = {reader, now + 1, false};
    return SlotRef{owner, pool, slot, now + 1};
  }
  return std::nullopt;
}

bool NodeMemory::holds(std::uint32_t owner, Pool pool, std::uint32_t slot, std::uint64_t turn) const {
  return load_flag(flag(owner, pool, slot)) == turn;
}

void NodeMemory::release(std::uint32_t owner, Pool pool, std::uint32_t slot, std::uint64_t turn) {
  // Compared and exchanged, since a reader that is leaving and a writer that takes back may do this at once.
  if (!std::atomic_ref<std::uint64_t>(flag(owner, pool, slot)).compare_exchange_strong(turn, turn + 1)) return;
  wake(pool == Pool::rx ? owner : slot / slots_);
}

// What this rank knows of a slot that it filled.
NodeMemory::SlotUse& NodeMemory::use_of(const Record& record) {
  if (record.pool == Pool::rx) return rx_use_[record.slot / rx_slots_][record.slot % rx_slots_];
  return direct_use_[record.owner][record.slot - self_ * slots_];
}

void NodeMemory::reader_gone(std::uint32_t mate) {
  gone_[mate] = true;
  for (std::uint32_t owner = 0; owner < mates(); ++owner) {
    for (std::uint32_t i = 0; i < slots_; ++i) {
      const SlotUse& use = direct_use_[owner][i];
      if (use.announced && use.reader == mate) release(owner, Pool::direct, self_ * slots_ + i, use.turn);
    }
  }
  for (std::uint32_t nic = 0; nic < rx_use_.size(); ++nic) {
    for (std::uint32_t i = 0; i < rx_slots_; ++i) {
      const SlotUse& use = rx_use_[nic][i];
      if (use.announced && use.reader == mate) release(self_, Pool::rx, nic * rx_slots_ + i, use.turn);
    }
  }
  std::erase_if(backlog_[mate], [](const Record& record) { return record.kind != RecordKind::forward; });  // a leaving mate still forwards
}

bool NodeMemory::try_announce(std::uint32_t mate, const Record& record) {
  const std::uint64_t base = layouts_[mate].ring(self_);
  RingHeader& ring = regions_[mate].at<RingHeader>(base);
  const std::uint64_t index = written_[mate];
  if (index >= load_flag(ring.consumed) + kRingRecords) return false;
  Record& place = regions_[mate].at<Record>(base + sizeof(RingHeader) + sizeof(Record) * (index % kRingRecords));
  std::memcpy(reinterpret_cast<std::byte*>(&place) + sizeof place.flag, reinterpret_cast<const std::byte*>(&record) + sizeof record.flag,
              sizeof place - sizeof place.flag);
  store_flag(place.flag, index + 1);
  written_[mate] = index + 1;
  wake(mate);
  return true;
}

void NodeMemory::announce(std::uint32_t mate, const Record& record) {
  const bool landed = record.kind == RecordKind::landed;
  if (gone_[mate] && record.kind != RecordKind::forward) {
    if (landed) release(record.owner, record.pool, record.slot, record.turn);
    return;
  }
  if (landed) {
    SlotUse& use = use_of(record);
    use.announced = true;
    use.reader = mate;  // an rx slot may have been taken before it was known
  }
  if (!backlog_[mate].empty() || !try_announce(mate, record)) backlog_[mate].push_back(record);
}

bool NodeMemory::flush_backlog() {
  bool moved = false;
  for (std::uint32_t mate = 0; mate < mates(); ++mate) {
    for (; !backlog_[mate].empty() && try_announce(mate, backlog_[mate].front()); moved = true) backlog_[mate].pop_front();
  }
  return moved;
}

bool NodeMemory::all_announced() const {
  for (std::uint32_t mate = 0; mate < mates(); ++mate) {
    if (!gone_[mate] && crowded(mate)) return false;
  }
  return true;
}

bool NodeMemory::plausible(const Record& record) const {
  const bool known_kind = record.kind >= RecordKind::landed && record.kind <= RecordKind::confirmed;
  const bool known_pool = record.pool == Pool::direct || record.pool == Pool::tx || record.pool == Pool::rx;
  if (!known_kind || !known_pool || record.owner >= mates() || record.length > chunk_bytes_) return false;
  if (record.kind == RecordKind::placed || record.kind == RecordKind::confirmed) return true;  // name no slot
  // An even turn would make a free slot look announced, and its release would take it.
  if (record.slot >= layouts_[record.owner].slots(record.pool) || (record.turn & 1) == 0) return false;
  if (record.kind == RecordKind::forward) return record.pool == Pool::tx && record.owner == self_;
  return record.pool != Pool::tx;
}

bool NodeMemory::next(std::uint32_t mate, Record& record) {
  const std::uint64_t base = layouts_[self_].ring(mate);
  RingHeader& ring = regions_[self_].at<RingHeader>(base);
  while (true) {
    const std::uint64_t index = consumed_[mate];
    const Record& place = regions_[self_].at<Record>(base + sizeof(RingHeader) + sizeof(Record) * (index % kRingRecords));
    if (load_flag(place.flag) != index + 1) return false;
    std::memcpy(&record, &place, sizeof record);
    consumed_[mate] = index + 1;
    store_flag(ring.consumed, index + 1);
    if ((index + 1) % (kRingRecords / 2) == 0) wake(mate);  // it may have a backlog
    if (plausible(record)) return true;
    ++bad_records_;
  }
}

bool NodeMemory::mail(std::uint32_t mate, std::span<const std::byte> frame) {
  const std::uint64_t base = layouts_[mate].mail(self_);
  MailHeader& ring = regions_[mate].at<MailHeader>(base);
  std::byte* bytes = regions_[mate].data() + base + sizeof(MailHeader);
  const std::uint64_t written = ring.written;
  const std::uint64_t used = written - load_flag(ring.read);
  const std::uint64_t need = (8 + frame.size() + 7) & ~std::uint64_t{7};
  if (frame.size() > kMaxFrameBytes || used > kMailBytes || kMailBytes - used < need) return false;
  const auto copy = [&](std::uint64_t at, const void* data, std::size_t size) {
    const std::uint64_t start = at % kMailBytes;
    const std::size_t head = std::min<std::size_t>(size, kMailBytes - start);
    std::memcpy(bytes + start, data, head);
    std::memcpy(bytes, static_cast<const std::byte*>(data) + head, size - head);
  };
  const std::uint64_t size = frame.size();
  copy(written, &size, sizeof size);
  copy(written + 8, frame.data(), frame.size());
  store_flag(ring.written, written + need);
  wake(mate);
  return true;
}

bool NodeMemory::mail_read(std::uint32_t mate) const {
  const MailHeader& ring = regions_[mate].at<MailHeader>(layouts_[mate].mail(self_));
  return load_flag(ring.read) == ring.written;
}

bool NodeMemory::next_mail(std::uint32_t mate, std::vector<std::byte>& frame) {
  const std::uint64_t base = layouts_[self_].mail(mate);
  MailHeader& ring = regions_[self_].at<MailHeader>(base);
  const std::byte* bytes = regions_[self_].data() + base + sizeof(MailHeader);
  const std::uint64_t read = mail_taken_[mate];
  const std::uint64_t available = load_flag(ring.written) - read;
  if (available == 0) return false;
  const auto copy = [&](std::uint64_t at, void* data, std::size_t size) {
    const std::uint64_t start = at % kMailBytes;
    const std::size_t head = std::min<std::size_t>(size, kMailBytes - start);
    std::memcpy(data, bytes + start, head);
    std::memcpy(static_cast<std::byte*>(data) + head, bytes, size - head);
  };
  std::uint64_t size = 0;
  if (available >= 8 && available <= kMailBytes) copy(read, &size, sizeof size);
  const std::uint64_t need = (8 + size + 7) & ~std::uint64_t{7};
  if (available < 8 || available > kMailBytes || size == 0 || size > kMaxFrameBytes || need > available) {
    ++bad_records_;  // nothing in it can be believed: forget what is there
    mail_taken_[mate] = read + available;
    store_flag(ring.read, mail_taken_[mate]);
    return false;
  }
  frame.resize(size);
  copy(read + 8, frame.data(), size);
  mail_taken_[mate] = read + need;
  store_flag(ring.read, mail_taken_[mate]);
  if (available > kMailBytes / 2) wake(mate);  // it may have mail waiting
  return true;
}

void NodeMemory::renew_lease(std::uint64_t now) { store_flag(header(self_).lease_ns, now); }

std::uint64_t NodeMemory::last_heard(std::uint32_t node) const {
  std::uint64_t latest = 0;
  for (std::uint32_t mate = 0; mate < mates(); ++mate) {
    latest = std::max(latest, load_flag(regions_[mate].at<std::uint64_t>(layouts_[mate].heard(node))));
  }
  return latest;
}

void NodeMemory::set_link_word(std::uint32_t own_nic, std::uint32_t nic, std::uint64_t word) {
  store_flag(regions_[self_].at<std::uint64_t>(layouts_[self_].word(own_nic, nic)), word);
  RegionHeader& own = header(self_);
  store_flag(own.link_changes, own.link_changes + 1);
  wake_mates();
}

std::uint64_t NodeMemory::link_changes() const {
  std::uint64_t sum = 0;
  for (std::uint32_t mate = 0; mate < mates(); ++mate) sum += load_flag(header(mate).link_changes) + (dead_[mate] ? 1 : 0);
  return sum;
}

void NodeMemory::write_row(std::uint32_t rank, const RowTag& tag, std::span<const std::uint64_t> bytes,
                           std::span<const std::uint64_t> messages) {
  const std::uint64_t base = layouts_[self_].row(rank);
  auto& row = regions_[self_].at<RowHeader>(base);
  auto* values = &regions_[self_].at<std::uint64_t>(base + sizeof(RowHeader));
  const auto put = [](std::uint64_t& place, std::uint64_t value) {
    std::atomic_ref<std::uint64_t>(place).store(value, std::memory_order_relaxed);
  };
  const std::uint64_t version = row.version;
  // An exchange: nothing after it is done before it.
  std::atomic_ref<std::uint64_t>(row.version).exchange(version + 1, std::memory_order_acq_rel);
  put(row.serial, tag.serial);
  put(row.communicator, tag.communicator);
  put(row.operation, tag.operation);
  put(row.at, now_ns());
  for (std::size_t i = 0; i < world_; ++i) put(values[i], bytes[i]);
  for (std::size_t i = 0; i < world_; ++i) put(values[world_ + i], messages[i]);
  store_flag(row.version, version + 2);
}

std::optional<NodeMemory::RowTag> NodeMemory::read_row(std::uint32_t rank, std::span<std::uint64_t> bytes) const {
  // Acquire for each value, so that the version is looked at again only after all of them.
  const auto get = [](std::uint64_t& place) { return load_flag(place); };
  std::optional<RowTag> best;
  for (std::uint32_t mate = 0; mate < mates(); ++mate) {
    const std::uint64_t base = layouts_[mate].row(rank);
    auto& row = regions_[mate].at<RowHeader>(base);
    auto* values = &regions_[mate].at<std::uint64_t>(base + sizeof(RowHeader));
    const std::uint64_t version = load_flag(row.version);
    if (version == 0 || (version & 1) != 0) continue;
    const RowTag tag{get(row.serial), get(row.communicator), get(row.operation), get(values[world_ + rank_]), get(row.at)};
    if (best && tag.serial <= best->serial) continue;
    std::vector<std::uint64_t> copy(bytes.size());
    for (std::size_t i = 0; i < copy.size(); ++i) copy[i] = get(values[i]);
    if (get(row.version) != version) continue;  // being written: its writer wakes us when it is done
    std::copy(copy.begin(), copy.end(), bytes.begin());
    best = tag;
  }
  return best;
}

void NodeMemory::wake(std::uint32_t mate) const {
  // Read-modify-writes on both sides: either this one sees the sleeper's mark, or the sleeper's mark comes after it and sees, in the look
  // that follows, what was published before it.
  std::atomic_ref<std::uint64_t> sleeping(header(mate).sleeping);
  if (sleeping.fetch_add(0, std::memory_order_acq_rel) != 0 && sleeping.exchange(0, std::memory_order_acq_rel) != 0) bells_[mate].ring();
}

void NodeMemory::wake_mates() const {
  for (std::uint32_t mate = 0; mate < mates(); ++mate) {
    if (mate != self_) wake(mate);
  }
}

void NodeMemory::prepare_sleep() { std::atomic_ref<std::uint64_t>(header(self_).sleeping).exchange(1, std::memory_order_acq_rel); }

void NodeMemory::end_sleep() {
  std::atomic_ref<std::uint64_t>(header(self_).sleeping).store(0);
  bells_[self_].clear();
}

}  // namespace railweave::engine
