// What a rank believes of its mates' records (docs/protocol.md §3).
#include "node_memory.hpp"

#include <gtest/gtest.h>

#include <cstring>

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

}  // namespace
}  // namespace railweave::test
