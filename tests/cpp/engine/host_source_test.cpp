// When a source holds a chunk that went over a link for landed (docs/protocol.md §6, §8).
#include "host_source.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "services.hpp"

namespace railweave::test {
namespace {

using engine::Record;

// Rank 0's send of these bytes, two chunks, to rank 1.
engine::SendMessage& add_send(engine::Operation& operation, const std::vector<std::byte>& data) {
  engine::SendMessage& message = operation.sends.emplace_back();
  message.key = {0, 0, 1, 0, 1};
  message.data = data.data();
  message.bytes = data.size();
  message.chunks.resize(2);
  message.operation = &operation;
  operation.unfinished = 1;
  return message;
}

engine::Grant grant_of(const engine::SendMessage& message) {
  engine::Grant grant;
  grant.message = message.key;
  grant.bytes = message.bytes;
  grant.chunks = 2;
  return grant;
}

// Rank 0 sends two chunks to rank 1, over the links from its NIC to NICs 1 and 2 in turns.
class HostSourceTest : public testing::Test {
 protected:
  HostSourceTest() : source_(services_, copier_) {
    for (const std::uint32_t peer : {1u, 2u}) {
      engine::RouteShare share;
      share.kind = PathKind::rail;
      share.peer_nic = peer;
      share.bytes = 10 * data_.size();
      operation_.routes[1].shares.push_back(share);
    }
    add_send(operation_, data_);
    operation_.report.bytes_by_nic.resize(1);
    source_.send(operation_);
  }

  void grant() { source_.on_grant(grant_of(message()), nullptr); }
  // Chunks that go out now, copied into their slots: their `forward` records.
  std::vector<Record> go_out() {
    source_.advance();
    for (const std::uint64_t ticket : std::exchange(copier_.tickets, {})) source_.on_copied({ticket, true});
    std::vector<Record> records;
    for (Record record; services_.memory().next(0, record);) records.push_back(record);
    return records;
  }
  void confirm(Record record) {
    record.kind = engine::RecordKind::confirmed;
    source_.on_confirmed(record);
  }
  void take_down(const Record& record) {
    const std::uint32_t nics = 3;
    services_.words[{record.link / nics, record.link % nics}] = 4;
    source_.retire_attempts();
  }
  engine::SendMessage& message() { return operation_.sends[0]; }
  bool ended() const { return operation_.unfinished == 0; }

  Services services_;
  LateCopier copier_;
  std::vector<std::byte> data_ = std::vector<std::byte>(2 * services_.memory().chunk_bytes());
  engine::Operation operation_;
  engine::HostSource source_;
};

TEST_F(HostSourceTest, ASendEndsWhenAllItsChunksHaveLanded) {
  grant();
  const auto out = go_out();
  ASSERT_EQ(out.size(), 2u);
  confirm(out[1]);
  confirm(out[1]);
  EXPECT_FALSE(ended());
  confirm(out[0]);
  EXPECT_TRUE(ended());
  confirm(out[0]);  // it is over
}

// The attempt was given up while the news of its landing was on its way.
TEST_F(HostSourceTest, AnAttemptThatWasRetiredCountsWhenItHasLanded) {
  grant();
  const auto out = go_out();
  ASSERT_EQ(out.size(), 2u);
  take_down(out[0]);
  EXPECT_EQ(operation_.report.resent_chunks, 1u);
  confirm(out[0]);
  EXPECT_TRUE(go_out().empty()) << "nothing to send again";
  confirm(out[1]);
  EXPECT_TRUE(ended());
}

TEST_F(HostSourceTest, TheSecondAttemptIsNotWaitedForWhenTheFirstHasLanded) {
  grant();
  const auto out = go_out();
  take_down(out[0]);
  confirm(out[1]);
  const auto again = go_out();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].attempt, 2u);
  EXPECT_NE(again[0].link, out[0].link);
  confirm(out[0]);
  EXPECT_TRUE(ended());
  confirm(again[0]);
}

// The copy still reads the user's buffer.
TEST_F(HostSourceTest, ASendDoesNotEndWhileAnAttemptIsCopied) {
  grant();
  const auto out = go_out();
  take_down(out[0]);
  confirm(out[1]);
  source_.advance();
  ASSERT_EQ(copier_.tickets.size(), 1u);
  confirm(out[0]);
  EXPECT_FALSE(ended());
  source_.on_copied({copier_.tickets[0], true});
  EXPECT_TRUE(ended());
}

// A mate wrote it.
TEST_F(HostSourceTest, WhatWasNeverSentHasNotLanded) {
  grant();
  Record record;
  record.message = message().key;
  record.attempt = 1;
  confirm(record);
  auto out = go_out();
  ASSERT_EQ(out.size(), 2u);
  Record later = out[0], none = out[0], beyond = out[0], other = out[0];
  ++later.attempt;
  none.attempt = 0;
  beyond.chunk = 2;
  ++other.message.number;
  for (const Record& wrong : {later, none, beyond, other}) confirm(wrong);
  EXPECT_EQ(message().done, 0u);
}

// A destination that left, or died well.
TEST_F(HostSourceTest, WhatWasGrantedIsThereWhenItsDestinationHasEndedWell) {
  source_.has_all(1);
  EXPECT_FALSE(ended()) << "it was not granted";
  grant();
  ASSERT_EQ(go_out().size(), 2u);
  source_.has_all(2);
  EXPECT_FALSE(ended());
  source_.has_all(1);
  EXPECT_TRUE(ended());
}

// Rank 0 sends 40 chunks to rank 2 over the rail of its own NIC. Rank 1's NIC is on the other rail of the two nodes.
class IdleWayTest : public testing::Test {
 protected:
  // Bytes/s: four chunks take 42 us, 42 and 420 ms.
  static constexpr std::uint64_t kFast = 12'500'000'000, kSlow = kFast / 1000, kVerySlow = kSlow / 10;

  // Of two nodes with so many rails. `peer_Bps`: of the NIC at the other end of the own one, if it is not as fast.
  void start(std::uint64_t other_Bps = kFast, Policy policy = Policy::railweave, std::uint64_t own_Bps = kFast, std::uint64_t peer_Bps = 0,
             std::uint32_t rails = 2) {
    engine::Cluster cluster = rail_cluster(rails, own_Bps);
    for (std::uint32_t nic = 1; rails == 2 && nic < cluster.nics.size(); nic += 2) cluster.nics[nic].rate_Bps = other_Bps;
    if (peer_Bps != 0) cluster.nics[rails].rate_Bps = peer_Bps;
    ExchangeSettings settings;
    settings.policy = policy;
    services_.emplace(cluster, settings);
    source_.emplace(*services_, copier_);
    data_.resize(40 * services_->memory().chunk_bytes());
    engine::SendMessage& message = add_send(operation_, data_);
    message.key.destination = rails;
    message.chunks.resize(40);
    engine::RouteShare share;
    share.kind = PathKind::rail;
    share.peer_nic = rails;
    share.bytes = data_.size();
    operation_.routes[rails].shares.push_back(share);
    operation_.report.bytes_by_nic.resize(2);
    source_->send(operation_);
    engine::Grant grant = grant_of(message);
    grant.chunks = 40;
    source_->on_grant(grant, nullptr);
  }
  // Looks again and again, for much longer than it takes to find a way idle.
  std::uint64_t bytes_over_other(std::uint64_t until, std::uint64_t ns = 200'000'000) {
    for (const std::uint64_t begin = engine::now_ns(); engine::now_ns() - begin < ns;) {
      source_->advance();
      if (operation_.report.bytes_by_nic[1] >= until) break;
    }
    return operation_.report.bytes_by_nic[1];
  }
  // The same where it will be found idle, also if this process has no CPU for a while.
  std::uint64_t bytes_over_idle(std::uint64_t until) { return bytes_over_other(until, 10'000'000'000); }
  std::uint64_t chunks(std::uint64_t count) { return count * services_->memory().chunk_bytes(); }

  LateCopier copier_;
  std::optional<Services> services_;
  std::vector<std::byte> data_;
  engine::Operation operation_;
  std::optional<engine::HostSource> source_;
};

TEST_F(IdleWayTest, TakesFourChunksOnceTheOwnWayIsFull) {
  start();
  for (int turn = 0; turn < 3; ++turn) source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(24)) << "all slots of the own way";
  EXPECT_EQ(bytes_over_other(chunks(5)), chunks(4)) << "no more than keep it busy";
  engine::Routes& routes = operation_.routes[2];
  ASSERT_EQ(routes.shares.size(), 1u);
  EXPECT_EQ(routes.shares[0].bytes, chunks(40 - 28)) << "what is left of the plan is what has not been sent";
  engine::Routes again;
  again.shares.push_back(routes.shares[0]);
  again.shares[0].bytes = data_.size();
  routes.follow(again);
  EXPECT_EQ(routes.shares[0].bytes, chunks(40 - 28)) << "also after a new plan";
}

TEST_F(IdleWayTest, NotAtTheFirstLook) {
  start();
  for (int turn = 0; turn < 4; ++turn) source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(24));
  EXPECT_EQ(operation_.report.bytes_by_nic[1], 0u);
}

TEST_F(IdleWayTest, NotWhileItsOwnerIsBusy) {
  start(kVerySlow, Policy::railweave, kVerySlow);
  engine::NodeMemory& owner = services_->memory_of(1);
  std::vector<engine::SlotRef> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(owner.take(1, engine::Pool::tx, 1).value());
  EXPECT_EQ(bytes_over_other(1, 1'000'000'000), 0u);
  for (const engine::SlotRef& slot : slots) owner.release(1, slot.pool, slot.slot, slot.turn);
  source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[1], 0u) << "it has only just become idle";
  EXPECT_EQ(bytes_over_idle(chunks(4)), chunks(4));
}

TEST_F(IdleWayTest, IsKeptBusyOnceItWasFoundIdle) {
  start(kVerySlow, Policy::railweave, kVerySlow);
  ASSERT_EQ(bytes_over_idle(chunks(4)), chunks(4));
  const auto look = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    source_->advance();
  };
  look();
  ASSERT_EQ(operation_.report.bytes_by_nic[1], chunks(4));
  for (auto ticket = copier_.tickets.end() - 4; ticket != copier_.tickets.end(); ++ticket) source_->on_copied({*ticket, false});
  look();
  EXPECT_EQ(operation_.report.bytes_by_nic[1], chunks(8)) << "at once, and not after four chunks' time";
}

TEST_F(IdleWayTest, NotIfItIsLessThanHalfAsFast) {
  start(kFast / 3);
  EXPECT_EQ(bytes_over_other(1), 0u);
}

// What has a slot of a way cannot move to another.
TEST_F(IdleWayTest, ASlowWayGetsFewChunksAhead) {
  start(kSlow, Policy::railweave, kSlow);
  for (int turn = 0; turn < 2; ++turn) source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(5));
  EXPECT_EQ(bytes_over_idle(chunks(4)), chunks(4));
  for (const std::uint64_t ticket : {copier_.tickets[0], copier_.tickets[1]}) source_->on_copied({ticket, false});  // frees their slots
  source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(7));
}

TEST_F(IdleWayTest, AWayGetsAheadWhatItCarriesSoon) {
  const std::uint64_t Bps = 10 * ExchangeSettings{}.chunk_bytes * 1'000'000 / 700;  // ten chunks in 0.7 ms
  start(Bps, Policy::railweave, Bps + Bps / 100);
  for (int turn = 0; turn < 3; ++turn) source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(10));
}

TEST_F(IdleWayTest, AWayToASlowNicGetsFewChunksAhead) {
  start(kFast, Policy::railweave, kFast, kSlow);
  for (int turn = 0; turn < 3; ++turn) source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(8)) << "a window of the own NIC";
}

TEST_F(IdleWayTest, BesideAnotherLinkAWayGetsHalfOfTheSlots) {
  start();
  engine::Operation other;
  engine::SendMessage& message = add_send(other, data_);
  message.key.destination = 3;
  message.chunks.resize(2);
  message.bytes = chunks(2);
  engine::RouteShare share;
  share.kind = PathKind::rail;
  share.peer_nic = 3;
  share.bytes = chunks(2);
  other.routes[3].shares.push_back(share);
  other.report.bytes_by_nic.resize(2);
  source_->send(other);
  source_->on_grant(grant_of(message), nullptr);
  for (int turn = 0; turn < 5; ++turn) source_->advance();
  EXPECT_EQ(other.report.bytes_by_nic[0], chunks(2));
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(12));
}

TEST_F(IdleWayTest, NothingCouldMoveWhereThereIsOneNic) {
  start(kSlow, Policy::railweave, kSlow, 0, 1);
  for (int turn = 0; turn < 4; ++turn) source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(24));
}

TEST_F(IdleWayTest, NothingCouldMoveWherePlansSayWhichWayAllGoes) {
  start(kSlow, Policy::nimble, kSlow);
  for (int turn = 0; turn < 3; ++turn) source_->advance();
  EXPECT_EQ(operation_.report.bytes_by_nic[0], chunks(24));
}

TEST_F(IdleWayTest, NotWhereThePlanIsWhatIsCompared) {
  start(kFast, Policy::nimble);
  EXPECT_EQ(bytes_over_other(1), 0u);
}

// Rank 1 is a mate, whose ring has room for one of the two records. What waits for room is known to this process alone, and the program
// may end that when its operation has ended.
class FullRingTest : public testing::Test {
 protected:
  FullRingTest() : source_(services_, copier_) {
    Record other;
    other.kind = engine::RecordKind::placed;
    for (std::uint32_t i = 1; i < engine::kRingRecords; ++i) services_.memory().announce(1, other);
    const engine::SendMessage& message = add_send(operation_, data_);
    source_.send(operation_);
    source_.on_grant(grant_of(message), into_.data());
    source_.advance();
    EXPECT_EQ(copier_.tickets.size(), 2u);
    for (const std::uint64_t ticket : std::exchange(copier_.tickets, {})) source_.on_copied({ticket, true});
    EXPECT_EQ(operation_.sends[0].done, 2u);
  }
  bool ended() const { return operation_.unfinished == 0; }

  Services services_{2};
  LateCopier copier_;
  std::vector<std::byte> data_ = std::vector<std::byte>(2 * services_.memory().chunk_bytes()), into_ = data_;
  engine::Operation operation_;
  engine::HostSource source_;
};

TEST_F(FullRingTest, ASendEndsWhenItsRecordsStandThere) {
  EXPECT_FALSE(source_.advance());
  EXPECT_FALSE(ended());
  for (Record record; services_.memory_of(1).next(0, record);) {
  }
  EXPECT_FALSE(source_.advance());
  EXPECT_FALSE(ended()) << "room is not enough";
  EXPECT_TRUE(services_.memory().flush_backlog());
  EXPECT_TRUE(source_.advance());
  EXPECT_TRUE(ended());
  EXPECT_FALSE(source_.advance());
}

TEST_F(FullRingTest, NobodyWaitsForRoomInTheRingOfAMateThatReadsNothingMore) {
  services_.memory().reader_gone(1);
  EXPECT_TRUE(source_.advance());
  EXPECT_TRUE(ended());
}

TEST_F(FullRingTest, ItEndsOnceAlsoWhenTheMateLeaves) {
  services_.memory().reader_gone(1);
  source_.has_all(1);
  EXPECT_TRUE(ended());
  EXPECT_FALSE(source_.advance());
}

TEST_F(FullRingTest, AFailedOperationIsNotHeld) {
  source_.drop(operation_);
  services_.memory().reader_gone(1);
  EXPECT_FALSE(source_.advance());
}

}  // namespace
}  // namespace railweave::test
