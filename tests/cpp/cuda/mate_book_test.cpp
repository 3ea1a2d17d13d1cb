// What a rank maps of its mates: messages over chunks, memory that was freed, mates that have left.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "allocation_book.hpp"
#include "buffer_ranks.hpp"

namespace railweave::cuda {
namespace {

using test::exchange_mail;
using test::HostSegment;
using test::HostVirtualMemory;
using test::kChunk;
using test::Owner;
using test::pointer;
using test::Writer;

TEST(Buffers, AMessageOverSeveralChunksArrivesWhereItBelongs) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 5);
  for (std::size_t place = 0; place < 5; ++place) segment.fill(place);
  const std::uint64_t address = segment.at(1) + 100, bytes = 3 * kChunk;
  const auto name = owner.book.name(address, bytes);
  ASSERT_TRUE(name);
  EXPECT_EQ(writer.find(name->buffer), nullptr);
  exchange_mail(owner, writer);
  std::byte* const there = writer.find(name->buffer);
  ASSERT_NE(there, nullptr);
  ASSERT_NE(there, pointer(address));
  for (std::uint64_t i = 0; i < bytes; ++i) there[i] = static_cast<std::byte>(i * 7 / 3);
  for (std::uint64_t i = 0; i < bytes; ++i) ASSERT_EQ(pointer(address)[i], static_cast<std::byte>(i * 7 / 3)) << i;
  EXPECT_EQ(pointer(address)[-1], std::byte{0});
  EXPECT_EQ(pointer(address)[bytes], std::byte{0});
}

// NCCL's own memory, for one.
TEST(Buffers, ChunksOfAnotherSizeBesideASegmentAreNotOfIt) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 6);
  for (std::size_t place = 1; place < 4; ++place) segment.fill(place);
  const Chunk before{segment.at(1) - kChunk / 2, kChunk / 2, owner.memory.create(kChunk / 2)};
  const Chunk behind{segment.at(4), 2 * kChunk, owner.memory.create(2 * kChunk)};
  for (const Chunk& each : {before, behind}) {
    owner.memory.map(each);
    owner.memory.allow(each.base, each.bytes);
  }
  const auto name = owner.book.name(segment.at(2), 10);
  ASSERT_TRUE(name);
  EXPECT_EQ(name->buffer.offset, kChunk);
  exchange_mail(owner, writer);
  EXPECT_NE(writer.find(name->buffer), nullptr);
  EXPECT_EQ(writer.memory.mappings(), 3u);
  for (const Chunk& each : {before, behind}) {
    owner.memory.unmap(each.base, each.bytes);
    owner.memory.release(each.handle);
  }
}

// What mates keep mapped is not free, whatever its program has given back.
TEST(Buffers, AnAllocationThatWasFreedIsLetGoOf) {
  Owner owner;
  std::map<std::uint64_t, std::uint64_t> allocated{{0x1000, 7}, {0x2000, 8}, {0x3000, 9}};
  AllocationBook book(owner.page(), [&](std::uint64_t address) { return allocated.contains(address) ? allocated[address] : 0; });
  std::set<std::uint64_t> opened;
  MappingTable table;
  Mapping entries[kMappings]{};
  table.write = [&](std::uint32_t index, Mapping mapping) { entries[index] = mapping; };
  table.open = [&](const void* handle) {
    std::uint64_t base = 0;
    std::memcpy(&base, handle, sizeof base);
    opened.insert(base);
    return std::shared_ptr<void>(reinterpret_cast<void*>(base), [&opened, base](void*) { opened.erase(base); });
  };
  bool idle = false;
  table.close_alone = [&](bool, const std::function<void()>& close) {
    if (idle) close();
    return idle;
  };
  Remarks remarks{[](const std::string&) {}};
  MateBook mate(owner.shared.handle(), table, nullptr, "rank 3", remarks);
  std::map<std::uint64_t, std::uint64_t> names;
  for (const auto& [base, id] : allocated) {
    EXPECT_FALSE(book.find(id));
    const std::uint64_t handle[8] = {base};
    names[id] = book.list(id, base, handle);
  }
  mate.follow({1, 0, false, true, false});
  EXPECT_EQ(opened, (std::set<std::uint64_t>{0x1000, 0x2000, 0x3000}));
  EXPECT_EQ(entries[names[8] % kMappings].base, 0x2000u);

  EXPECT_FALSE(book.look_for_freed(2)) << "all is there";
  allocated.erase(0x1000);
  allocated[0x2000] = 10;  // freed, and others' now
  EXPECT_FALSE(book.look_for_freed(1)) << "the third one";
  EXPECT_TRUE(book.look_for_freed(1));
  EXPECT_TRUE(book.look_for_freed(1));
  EXPECT_FALSE(book.look_for_freed(5));
  EXPECT_FALSE(book.find(7));
  EXPECT_FALSE(book.find(8));
  EXPECT_EQ(book.find(9), names[9]);

  mate.follow({1, 0, false, true, false});
  EXPECT_EQ(entries[names[8] % kMappings].buffer, 0u) << "no kernel finds it any more";
  EXPECT_EQ(opened.size(), 3u) << "an operation that found it may run";
  mate.follow({1, 1, false, true, false});
  EXPECT_EQ(opened.size(), 3u) << "another kernel may run, which closing would wait for";
  idle = true;
  mate.follow({2, 2, false, true, false});
  EXPECT_EQ(opened, (std::set<std::uint64_t>{0x3000}));

  // With an operation that was captured, of whose replays nobody tells.
  allocated.erase(0x3000);
  EXPECT_TRUE(book.look_for_freed(5));
  mate.follow({2, 2, true, true, true});
  mate.follow({2, 2, true, true, false});
  idle = false;
  mate.follow({2, 2, true, true, true});
  EXPECT_EQ(opened.size(), 1u);
  idle = true;
  mate.follow({2, 2, true, true, true});
  EXPECT_TRUE(opened.empty());
}

// Operations that the program queues while a look closes mappings.
TEST(Buffers, EachMappingIsClosedWhenNothingRunsThenAndNotWhenTheLookBegan) {
  engine::SharedMemory shared = engine::SharedMemory::create("book", sizeof(BookPage));
  auto& page = shared.at<BookPage>(0);
  page.newest = kAbsoluteBuffer;
  bool runs = false;
  int closed = 0, asked = 0;
  MappingTable table;
  table.write = [](std::uint32_t, Mapping) {};
  table.open = [&](const void*) {
    return std::shared_ptr<void>(&shared, [&](void*) {
      EXPECT_FALSE(runs) << "closed beside a kernel";
      ++closed;
    });
  };
  table.close_alone = [&](bool quiet, const std::function<void()>& close) {
    EXPECT_FALSE(quiet);
    ++asked;
    if (runs) return false;
    close();
    runs = closed % 2 == 0;  // begins as soon as it may
    return true;
  };
  Remarks remarks{[](const std::string&) {}};
  MateBook mate(shared.handle(), table, nullptr, "rank 3", remarks);
  std::vector<std::uint64_t> names;
  for (int buffer = 0; buffer < 5; ++buffer) names.push_back(list_buffer(page, BufferKind::ipc, nullptr));
  mate.follow({0, 0, false, true, false});
  for (const std::uint64_t name : names) withdraw_buffer(page, name);
  mate.follow({0, 0, false, false, false});
  mate.follow({0, 0, false, true, false});
  EXPECT_EQ(closed, 2);
  EXPECT_EQ(asked, 3) << "the others of that look would be refused as well";
  EXPECT_TRUE(mate.keeps_retired());
  runs = false;
  mate.follow({1, 1, false, true, false});
  EXPECT_EQ(closed, 4);
  runs = false;
  mate.follow({2, 2, false, true, false});
  EXPECT_EQ(closed, 5);
  EXPECT_FALSE(mate.keeps_retired());
}

// Its thread that looks for what is freed has ended, so its names stay listed whatever becomes of the memory.
TEST(Buffers, WhatAMateThatHasLeftHadIsLetGoOf) {
  engine::SharedMemory shared = engine::SharedMemory::create("book", sizeof(BookPage));
  auto& page = shared.at<BookPage>(0);
  page.newest = kAbsoluteBuffer;
  Mapping entries[kMappings]{};
  int open = 0;
  MappingTable table;
  table.write = [&](std::uint32_t index, Mapping mapping) { entries[index] = mapping; };
  table.open = [&](const void*) {
    ++open;
    return std::shared_ptr<void>(&shared, [&](void*) { --open; });
  };
  table.close_alone = [](bool, const std::function<void()>& close) {
    close();
    return true;
  };
  Remarks remarks{[](const std::string&) {}};
  MateBook mate(shared.handle(), table, nullptr, "rank 3", remarks);
  const std::uint64_t first = list_buffer(page, BufferKind::ipc, nullptr);
  mate.follow({1, 0, false, true, false});
  EXPECT_EQ(open, 1);
  list_buffer(page, BufferKind::ipc, nullptr);
  mate.follow({1, 0, false, true, false}, {}, true);
  EXPECT_EQ(entries[first % kMappings].buffer, 0u) << "no kernel finds it any more";
  EXPECT_EQ(open, 1) << "an operation that found it may run, and what is new is not mapped";
  mate.follow({1, 0, false, true, false}, {}, true);
  EXPECT_EQ(open, 1);
  mate.follow({1, 1, false, true, false}, {}, true);
  EXPECT_EQ(open, 0);
  EXPECT_FALSE(mate.keeps_retired());
}

TEST(Buffers, OfAMateThatHasLeftNoVirtualMemoryStaysMapped) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 3 + kMostDescriptors + 1);  // of two extents, the second of two mails
  for (std::size_t place = 0; place < segment.places(); ++place) {
    if (place != 2) segment.fill(place);
  }
  const auto name = owner.book.name(segment.at(0), kChunk);
  exchange_mail(owner, writer);
  ASSERT_NE(writer.find(name->buffer), nullptr);
  ASSERT_TRUE(owner.book.name(segment.at(3), kChunk));
  owner.book.deliver();
  const auto begun = writer.mailbox.receive();
  ASSERT_TRUE(begun);
  writer.book->follow({0, 0, false, true, false}, {&*begun});
  EXPECT_GT(writer.memory.mappings(), 2u);
  writer.book->follow({0, 0, false, true, false}, {}, true);
  EXPECT_EQ(writer.find(name->buffer), nullptr);
  EXPECT_EQ(writer.memory.mappings(), 2u) << "its chunks on their way are given up at once, as no kernel knows them";
  writer.book->follow({0, 0, false, true, false}, {}, true);
  EXPECT_EQ(writer.memory.mappings(), 0u);
  EXPECT_EQ(writer.memory.reserved, 0);
}

TEST(Buffers, DeliveringSaysWhetherAnythingWasSent) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  EXPECT_FALSE(owner.book.deliver());
  HostSegment segment(owner.memory, 1);
  segment.fill(0);
  ASSERT_TRUE(owner.book.name(segment.at(0), 10));
  EXPECT_TRUE(owner.book.deliver());
  EXPECT_FALSE(owner.book.deliver());
}

}  // namespace
}  // namespace railweave::cuda
