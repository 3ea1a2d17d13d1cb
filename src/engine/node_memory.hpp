// The memory of one node's ranks as this rank sees it: its own region and those of its mates, with rings, slots, boards and doorbells
// (docs/protocol.md §3). Everything but wake() and clock-free getters belongs to the engine thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cluster.hpp"
#include "layout.hpp"
#include "shared_memory.hpp"

namespace railweave::engine {

// A slot this rank may fill.
struct SlotRef {
  std::uint32_t owner = 0;  // local index
  Pool pool = Pool::direct;
  std::uint32_t slot = 0;
  std::uint64_t turn = 0;
};

class NodeMemory {
 public:
  // Makes this rank's region and doorbell. Throws Error.
  NodeMemory(const Cluster& cluster, const ExchangeSettings& settings);
  MemoryHandle region() const { return regions_[self_].handle(); }
  int doorbell_fd() const { return bells_[self_].write_fd(); }
  int wait_fd() const { return bells_[self_].read_fd(); }
  // Maps the regions and doorbells of all mates. Throws Error.
  void map_mates(const Cluster& cluster);

  std::uint32_t self() const noexcept { return self_; }
  std::uint32_t mates() const noexcept { return static_cast<std::uint32_t>(layouts_.size()); }
  std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  std::uint32_t slots_per_writer() const noexcept { return slots_; }
  std::uint32_t rx_slots() const noexcept { return rx_slots_; }

  std::span<std::byte> region(std::uint32_t mate) const { return {regions_[mate].data(), regions_[mate].bytes()}; }

  // --- slots
  // A free slot of the part of that pool that this rank writes; rx: of own NIC `owner_nic`. `reader` (local index) will free it.
  std::optional<SlotRef> take(std::uint32_t owner, Pool pool, std::uint32_t reader, std::uint32_t own_nic = 0);
  // What a copier or transport is given for a slot, which nobody else reads or writes. tx: when it is for that one of the owner's NICs.
  std::byte* data(std::uint32_t owner, Pool pool, std::uint32_t slot, std::uint32_t own_nic = 0) const {
    const RegionLayout& layout = layouts_[owner];
    const NicSlots& moved = nic_slots_[owner];
    if (pool != Pool::direct && moved.base != nullptr && moved.nics[pool == Pool::rx ? slot / rx_slots_ : own_nic])
      return moved.base + (layout.data(pool, slot) - layout.nic_slots());
    return regions_[owner].data() + layout.data(pool, slot);
  }
  // tx slots of an owner of NICs that hold chunks, whoever wrote them.
  std::uint32_t queued(std::uint32_t owner) const;
  // Whether the slot still holds what was announced with `turn`.
  bool holds(std::uint32_t owner, Pool pool, std::uint32_t slot, std::uint64_t turn) const;
  // The reader's release. Wakes the slot's writer.
  void release(std::uint32_t owner, Pool pool, std::uint32_t slot, std::uint64_t turn);
  bool is_free(const SlotRef& ref) const { return !holds(ref.owner, ref.pool, ref.slot, ref.turn); }
  // That mate reads nothing more: it died, or it left and has no operation any more. Takes back the announced slots that only it would have
  // freed; an rx slot that has not landed stays with its transfer (rx_port.cpp), since a write into it may come. From now on take() gives
  // no slot for that reader, and what is announced to it is freed.
  void reader_gone(std::uint32_t mate);
  bool reads(std::uint32_t mate) const { return !gone_[mate]; }

  // --- slots of NICs that lie in a GPU's memory (slot_memory.hpp); while the engine is made
  std::uint64_t nic_slot_bytes(std::uint32_t owner) const { return layouts_[owner].nic_slot_bytes(); }
  // Those of these NICs of the owner's, at an address of this rank's; nullptr: it does not reach them.
  void move_nic_slots(std::uint32_t owner, std::byte* base, std::vector<bool> nics);
  // Once every mate has called that: whether all reach them. Otherwise they lie in the owner's region, for all.
  bool settle_nic_slots(std::uint32_t owner);
  // As far as this rank reaches them; else empty.
  std::span<std::byte> moved_nic_slots(std::uint32_t owner) const {
    return {nic_slots_[owner].base, nic_slots_[owner].base == nullptr ? 0 : nic_slot_bytes(owner)};
  }

  // --- announcement rings
  void announce(std::uint32_t mate, const Record& record);
  // The next record of that mate, with every field checked against this node's shape. Bad ones are counted and skipped.
  bool next(std::uint32_t mate, Record& record);
  // Mates whose ring is so far behind that announcing more should wait.
  bool crowded(std::uint32_t mate) const { return !backlog_[mate].empty(); }
  // Records for a mate that reads so far, those that wait for room included; and whether it has, or will find, the first `count` of them
  // without this process. One that reads nothing more (reader_gone) lacks none.
  std::uint64_t announced(std::uint32_t mate) const { return written_[mate] + backlog_[mate].size(); }
  bool has_written(std::uint32_t mate, std::uint64_t count) const { return gone_[mate] || count <= written_[mate]; }
  // True if anything found room.
  bool flush_backlog();
  // Nothing waits for room in the ring of a mate that reads.
  bool all_announced() const;

  // --- mail rings
  bool mail(std::uint32_t mate, std::span<const std::byte> frame);
  // Whether that mate has read all mail from this rank.
  bool mail_read(std::uint32_t mate) const;
  bool next_mail(std::uint32_t mate, std::vector<std::byte>& frame);

  // --- board
  void renew_lease(std::uint64_t now);
  void end_lease() { store_flag(header(self_).lease_ns, kNoLease); }
  std::uint64_t lease(std::uint32_t mate) const { return load_flag(header(mate).lease_ns); }
  void set_leaving() { store_flag(header(self_).leaving, 1); }
  // The rank's will (docs/protocol.md §12): what its mates read when its process has ended. Any thread.
  void operation_posted() {
    std::atomic_ref<std::uint64_t>(header(self_).unended).fetch_add(1);
    std::atomic_ref<std::uint64_t>(header(self_).posted).fetch_add(1);
  }
  // Before the program can know that it has ended.
  void operation_ended(bool failed) {
    if (failed) store_flag(header(self_).failed, 1);
    std::atomic_ref<std::uint64_t>(header(self_).unended).fetch_sub(1);
  }
  // Of a mate whose process has ended: it had ended all that its program had posted, and well.
  bool ended_well(std::uint32_t mate) const { return load_flag(header(mate).unended) == 0 && load_flag(header(mate).failed) == 0; }
  // How many operations a mate's program has posted; and whether the first `count` of them have ended.
  std::uint64_t posted(std::uint32_t mate) const { return load_flag(header(mate).posted); }
  bool ended_first(std::uint32_t mate, std::uint64_t count) const { return load_flag(header(mate).ended) >= count; }
  void set_ended_first(std::uint64_t count) { store_flag(header(self_).ended, count); }
  void hear(std::uint32_t node, std::uint64_t now) { store_flag(regions_[self_].at<std::uint64_t>(layouts_[self_].heard(node)), now); }
  std::uint64_t last_heard(std::uint32_t node) const;
  // Down for a mate that has died: nobody says so on its board. Any thread.
  std::uint64_t link_word(std::uint32_t owner, std::uint32_t own_nic, std::uint32_t nic) const {
    const std::uint64_t word = load_flag(regions_[owner].at<std::uint64_t>(layouts_[owner].word(own_nic, nic)));
    return dead_[owner] ? word & ~std::uint64_t{1} : word;
  }
  void set_dead(std::uint32_t mate) { dead_[mate] = true; }
  // Whether a mate renews its lease. Engine's thread.
  bool shows_life(std::uint32_t mate) const { return shows_life_[mate]; }
  void set_shows_life(std::uint32_t mate, bool life) { shows_life_[mate] = life; }
  void set_link_word(std::uint32_t own_nic, std::uint32_t nic, std::uint64_t word);
  // Sum over the mates of their link changes, and deaths: unequal values mean that some word changed.
  std::uint64_t link_changes() const;
  struct RowTag {
    std::uint64_t serial = 0;
    std::uint64_t communicator = 0;
    std::uint64_t operation = 0;
    std::uint64_t messages = 0;  // that it has posted with the rank that reads, on that communicator
    std::uint64_t at = 0;        // when it came here, ns
  };
  // `bytes` and `messages`: to, and with, each rank.
  void write_row(std::uint32_t rank, const RowTag& tag, std::span<const std::uint64_t> bytes, std::span<const std::uint64_t> messages);
  // The newest row of a rank on any board: copies it into `bytes` and gives its tag, or nothing if there is none.
  std::optional<RowTag> read_row(std::uint32_t rank, std::span<std::uint64_t> bytes) const;

  // --- sleeping
  // Any thread: wakes a mate (or this rank's own engine thread) if it sleeps.
  void wake(std::uint32_t mate) const;
  void wake_mates() const;
  // Engine thread: announces sleep. What others did before they could see that rings no bell: look at everything once more.
  void prepare_sleep();
  void end_sleep();

  std::uint64_t bad_records() const noexcept { return bad_records_; }

 private:
  struct SlotUse {
    std::uint32_t reader = 0;
    std::uint64_t turn = 0;
    bool announced = false;
  };
  struct NicSlots {
    std::byte* base = nullptr;
    std::vector<bool> nics;
  };
  RegionHeader& header(std::uint32_t mate) const { return regions_[mate].at<RegionHeader>(0); }
  std::uint64_t& flag(std::uint32_t owner, Pool pool, std::uint32_t slot) const {
    return regions_[owner].at<std::uint64_t>(layouts_[owner].flag(pool, slot));
  }
  SlotUse& use_of(const Record& record);
  bool try_announce(std::uint32_t mate, const Record& record);
  bool plausible(const Record& record) const;

  std::uint32_t self_ = 0;
  std::uint32_t rank_ = 0, world_ = 0;
  std::uint32_t slots_ = 0;
  std::uint32_t rx_slots_ = 0;
  std::uint64_t chunk_bytes_ = 0;
  std::vector<RegionLayout> layouts_;  // by mate
  std::vector<SharedMemory> regions_;  // by mate
  std::vector<NicSlots> nic_slots_;    // by mate
  std::vector<Doorbell> bells_;        // by mate
  std::vector<std::uint64_t> written_, consumed_, mail_taken_;
  std::vector<std::deque<Record>> backlog_;
  std::vector<std::vector<SlotUse>> direct_use_, rx_use_;  // readers of the slots this rank filled: by owner; by own NIC
  std::vector<bool> gone_;                                 // by mate
  std::vector<bool> shows_life_;                           // by mate
  std::unique_ptr<std::atomic<bool>[]> dead_;              // by mate
  std::uint64_t bad_records_ = 0;
};

}  // namespace railweave::engine
