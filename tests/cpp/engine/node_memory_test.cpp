// What a rank believes of its mates' records (docs/protocol.md §3).
#include "node_memory.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "parts.hpp"

namespace railweave::test {
namespace {

using engine::Pool;
using engine::Record;
using engine::RecordKind;

// Writes into mate 0's ring what mate 1 would not.
class RecordChecks : public testing::Test {
 protected:
  RecordChecks() : reader_(*node_.memories[0]), region_(engine::SharedMemory::open(reader_.region())) {}

  Record announced() const {
    Record record;
    record.message = {0, 1, 0, 0, 1};
    record.length = 100;
    record.slot = reader_.slots_per_writer();  // the first of those that mate 1 fills
    record.turn = 1;
    return record;
  }
  bool believed(Record record) {
    record.flag = ++written_;
    const std::uint64_t at = layout_.ring(1) + sizeof(engine::RingHeader) + sizeof record * (written_ - 1);
    std::memcpy(region_.data() + at, &record, sizeof record);
    const std::uint64_t bad = reader_.bad_records();
    Record read;
    const bool taken = reader_.next(1, read);
    EXPECT_EQ(reader_.bad_records(), bad + (taken ? 0 : 1));
    return taken;
  }

  ExchangeSettings settings_;
  NodeParts node_{2, settings_};
  engine::NodeMemory& reader_;
  engine::SharedMemory region_;
  engine::RegionLayout layout_{{4, 2, 2, 1, 3, static_cast<std::uint32_t>(settings_.slots_per_writer),
                                static_cast<std::uint32_t>(settings_.rx_slots), settings_.chunk_bytes}};
  std::uint64_t written_ = 0;
};

TEST_F(RecordChecks, CoverEveryField) {
  EXPECT_TRUE(believed(announced()));
  const auto forged = [this](auto&& change) {
    Record record = announced();
    change(record);
    return believed(record);
  };
  EXPECT_FALSE(forged([](Record& record) { record.kind = RecordKind{9}; }));
  EXPECT_FALSE(forged([](Record& record) { record.pool = Pool{9}; }));
  EXPECT_FALSE(forged([](Record& record) { record.pool = Pool::tx; }));  // nobody pulls from there
  EXPECT_FALSE(forged([](Record& record) { record.owner = 2; }));
  EXPECT_FALSE(forged([this](Record& record) { record.length = static_cast<std::uint32_t>(reader_.chunk_bytes()) + 1; }));
  EXPECT_FALSE(forged([this](Record& record) { record.slot = 2 * reader_.slots_per_writer(); }));
  EXPECT_FALSE(forged([](Record& record) { record.turn = 0; }));  // what the flag of a slot never used is
  EXPECT_FALSE(forged([](Record& record) { record.kind = RecordKind::forward; }));
}

// Rank 0 has two NICs; the slots of the second lie elsewhere, at an address of each rank's own.
TEST(SlotsThatLieElsewhere, AreFoundByTheirNicWhereAllMatesReachThem) {
  ExchangeSettings settings;
  settings.chunk_bytes = 4096;
  settings.slots_per_writer = 2;
  settings.rx_slots = 4;
  engine::Cluster shared = small_cluster(2);
  shared.ranks[0].nics = {0, 3};
  shared.nics.push_back(shared.nics[0]);
  std::vector<engine::Cluster> clusters(2, shared);
  clusters[1].rank = 1;
  engine::NodeMemory a(clusters[0], settings), b(clusters[1], settings);
  for (engine::Cluster& cluster : clusters) {
    cluster.ranks[0].region = a.region();
    cluster.ranks[0].doorbell_fd = a.doorbell_fd();
    cluster.ranks[1].region = b.region();
    cluster.ranks[1].doorbell_fd = b.doorbell_fd();
  }
  a.map_mates(clusters[0]);
  b.map_mates(clusters[1]);
  std::vector<std::byte> at_a(a.nic_slot_bytes(0)), at_b(b.nic_slot_bytes(0));
  EXPECT_EQ(at_a.size(), 4096u * (2 * 2 + 4 * 2));
  const auto inside = [](const std::byte* slot, const std::vector<std::byte>& memory) {
    return slot >= memory.data() && slot + 4096 <= memory.data() + memory.size();
  };

  a.move_nic_slots(0, at_a.data(), {false, true});
  b.move_nic_slots(0, at_b.data(), {false, true});
  EXPECT_TRUE(a.settle_nic_slots(0));
  EXPECT_TRUE(b.settle_nic_slots(0));
  std::set<std::ptrdiff_t> places;
  for (std::uint32_t slot = 0; slot < 4; ++slot) {
    EXPECT_FALSE(inside(b.data(0, Pool::tx, slot, 0), at_b));
    EXPECT_FALSE(inside(b.data(0, Pool::rx, slot), at_b));
    EXPECT_FALSE(inside(b.data(0, Pool::direct, slot), at_b));
    EXPECT_TRUE(inside(b.data(0, Pool::tx, slot, 1), at_b));
    EXPECT_TRUE(inside(b.data(0, Pool::rx, 4 + slot), at_b));
    places.insert(b.data(0, Pool::tx, slot, 1) - at_b.data());
    places.insert(b.data(0, Pool::rx, 4 + slot) - at_b.data());
    EXPECT_EQ(a.data(0, Pool::tx, slot, 1) - at_a.data(), b.data(0, Pool::tx, slot, 1) - at_b.data());
    EXPECT_EQ(a.data(0, Pool::rx, 4 + slot) - at_a.data(), b.data(0, Pool::rx, 4 + slot) - at_b.data());
  }
  EXPECT_EQ(places.size(), 8u) << "slots share a place";
}

TEST(SlotsThatLieElsewhere, LieInTheRegionForAllWhenOneDoesNotReachThem) {
  NodeParts node(2, {});
  std::vector<std::byte> memory(node.memories[0]->nic_slot_bytes(0));
  node.memories[0]->move_nic_slots(0, memory.data(), {true});
  node.memories[1]->move_nic_slots(0, nullptr, {true});
  for (const auto& seen : node.memories) {
    EXPECT_FALSE(seen->settle_nic_slots(0));
    const auto region = seen->region(0);
    const std::byte* slot = seen->data(0, Pool::tx, 0, 0);
    EXPECT_TRUE(slot >= region.data() && slot < region.data() + region.size());
  }
}

}  // namespace
}  // namespace railweave::test
