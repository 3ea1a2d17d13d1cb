// Buffers in virtual memory, named by their owner and mapped by its mates, over real mailboxes.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
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

// So many files may be open at least, as long as it lives.
class OpenFiles {
 public:
  explicit OpenFiles(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit more{std::max(before_.rlim_cur, files), before_.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &more) != 0) throw Error("the limit on open files cannot be raised");
  }
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;
  ~OpenFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(Buffers, OneNameForAllOfASegment) {
  Owner owner;
  HostSegment segment(owner.memory, 8);
  for (std::size_t place = 0; place < 8; ++place) segment.fill(place);
  const auto first = owner.book.name(segment.at(5), 10);
  const auto second = owner.book.name(segment.at(0) + 1, 8 * kChunk - 1);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->buffer.buffer, second->buffer.buffer);
  EXPECT_EQ(first->buffer.offset, 5 * kChunk);
  EXPECT_EQ(second->buffer.offset, 1u);
}

TEST(Buffers, ASegmentThatGrewHasANewNameForWhatIsNew) {
  Owner owner;
  HostSegment segment(owner.memory, 4);
  segment.fill(0);
  const auto before = owner.book.name(segment.at(0), kChunk);
  segment.fill(1);
  EXPECT_EQ(owner.book.name(segment.at(0), kChunk)->buffer.buffer, before->buffer.buffer);
  EXPECT_NE(owner.book.name(segment.at(0), 2 * kChunk)->buffer.buffer, before->buffer.buffer);
}

TEST(Buffers, ANameGoesWithTheMemoryAndNotWithItsAddress) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 2);
  segment.fill(0);
  segment.fill(1);
  const auto old = owner.book.name(segment.at(1), kChunk);
  exchange_mail(owner, writer);
  ASSERT_NE(writer.find(old->buffer), nullptr);
  // Same address, other memory; the driver would give it the same handle, were that free.
  segment.empty(1);
  segment.fill(1);
  const auto fresh = owner.book.name(segment.at(1), kChunk);
  ASSERT_TRUE(fresh);
  EXPECT_NE(fresh->buffer.buffer, old->buffer.buffer);
  exchange_mail(owner, writer);
  *writer.find(fresh->buffer) = std::byte{9};
  EXPECT_EQ(*pointer(segment.at(1)), std::byte{9});
}

TEST(Buffers, FreedMemoryIsKeptByNobodyOnceItsOperationsHaveEnded) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  {
    HostSegment segment(owner.memory, 20);
    for (std::size_t place = 0; place < 20; ++place) segment.fill(place);
    const auto name = owner.book.name(segment.at(0), kChunk);
    writer.enqueued = 5;
    exchange_mail(owner, writer);
    EXPECT_EQ(writer.memory.mappings(), 20u);
    EXPECT_EQ(writer.memory.handles(), 20u);
    segment.empty(17);
    owner.book.look_for_freed(kLooksPerMs);
    owner.book.look_for_freed(kLooksPerMs);
    EXPECT_EQ(owner.memory.handles(), 20u) << "a look is about 8 chunks";
    owner.book.look_for_freed(kLooksPerMs);
    EXPECT_EQ(owner.memory.handles(), 19u) << "the owner's book holds a chunk that its program freed";
    writer.look();
    EXPECT_EQ(writer.find(name->buffer), nullptr);
    EXPECT_EQ(writer.memory.mappings(), 20u) << "operations may be writing there";
    writer.completed = 5;
    writer.look(true);
    EXPECT_EQ(writer.memory.mappings(), 20u) << "a captured operation may be writing there";
    writer.look();
    EXPECT_EQ(writer.memory.mappings(), 0u);
    EXPECT_EQ(writer.memory.handles(), 0u);
    EXPECT_EQ(writer.memory.reserved, 0);
  }
  for (int look = 0; look < 8; ++look) owner.book.look_for_freed(kLooksPerMs);
  EXPECT_EQ(owner.memory.handles(), 0u);
}

// The table is written beside running kernels: an operation that was queued after a mapping was taken out, but before the GPU had written
// that, may have found it.
TEST(Buffers, AMappingIsKeptForOperationsThatBeganBeforeItHadLeftTheTable) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 3);
  for (std::size_t place = 0; place < 3; ++place) segment.fill(place);
  ASSERT_TRUE(owner.book.name(segment.at(0), kChunk));
  writer.enqueued = writer.completed = 5;
  exchange_mail(owner, writer);
  segment.empty(1);
  owner.book.look_for_freed(kLooksPerMs);
  writer.look();
  writer.look(false, false, false);
  EXPECT_EQ(writer.memory.mappings(), 3u) << "the GPU has not written the table";
  writer.enqueued = 6;
  writer.look();
  EXPECT_EQ(writer.memory.mappings(), 3u) << "an operation may be writing there";
  writer.enqueued = writer.completed = 6;
  writer.look();
  EXPECT_EQ(writer.memory.mappings(), 0u);
  EXPECT_EQ(writer.memory.reserved, 0);
}

// Replays are not counted: what was in the table before is given up when none runs after it has left the table.
TEST(Buffers, FreedMemoryIsNotKeptForGoodOnceAnOperationWasCaptured) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 3);
  for (std::size_t place = 0; place < 3; ++place) segment.fill(place);
  const auto name = owner.book.name(segment.at(0), kChunk);
  exchange_mail(owner, writer);
  segment.empty(1);
  owner.book.look_for_freed(kLooksPerMs);
  writer.look(true, true);
  EXPECT_EQ(writer.find(name->buffer), nullptr);
  EXPECT_EQ(writer.memory.mappings(), 3u) << "a replay that began since may have found it in the table";
  writer.look(true, false);
  EXPECT_EQ(writer.memory.mappings(), 3u);
  writer.look(true, true);
  EXPECT_EQ(writer.memory.mappings(), 0u);
  EXPECT_EQ(writer.memory.handles(), 0u);
  EXPECT_EQ(writer.memory.reserved, 0);
}

TEST(Buffers, OldNamesMakeRoom) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  // Every other place stays empty, so each chunk is an extent of its own.
  const OpenFiles limit(4 * kMappings);
  HostSegment segment(owner.memory, 2 * kMappings + 40);
  std::vector<BufferName> names;
  for (std::size_t place = 0; place < segment.places(); place += 2) {
    segment.fill(place);
    names.push_back(owner.book.name(segment.at(place), kChunk)->buffer);
    owner.book.deliver();
    writer.look();
  }
  exchange_mail(owner, writer);
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(writer.find(names[i]) != nullptr, i + kMappings >= names.size()) << i;
  writer.completed = writer.enqueued = 1;
  writer.look();
  EXPECT_EQ(writer.memory.mappings(), kMappings);
  // One whose entry is gone is listed anew.
  const auto again = owner.book.name(segment.at(0), kChunk);
  exchange_mail(owner, writer);
  EXPECT_NE(again->buffer.buffer, names[0].buffer);
  ASSERT_NE(writer.find(again->buffer), nullptr);
}

// Grants have 32 bits of a number. With more receive buffers in turn than the table has entries each use takes a new one.
TEST(Buffers, NamesThatPass32BitsAreFoundAndMeanNothingElse) {
  Owner owner;
  owner.page().newest = 0xfffffffd;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 12);
  for (std::size_t place = 0; place < segment.places(); place += 2) {
    segment.fill(place);
    const auto name = owner.book.name(segment.at(place), kChunk);
    ASSERT_TRUE(name);
    EXPECT_GT(granted_name(name->buffer.buffer), kAbsoluteBuffer);
    exchange_mail(owner, writer);
    std::byte* const there = writer.find(name->buffer);
    ASSERT_NE(there, nullptr) << place;
    *there = std::byte{7};
    EXPECT_EQ(*pointer(segment.at(place)), std::byte{7});
  }
}

TEST(Buffers, WhatIsNoRangeOfMemoryHasNoName) {
  Owner owner;
  HostSegment segment(owner.memory, 1);
  segment.fill(0);
  EXPECT_FALSE(owner.book.name(segment.at(0), 0));
  for (const std::uint64_t bytes : {~std::uint64_t{0}, ~segment.at(0) + 1, ~segment.at(0)})
    EXPECT_FALSE(owner.book.name(segment.at(0), bytes));
  EXPECT_EQ(owner.memory.handles(), 1u);
}

TEST(Buffers, MemoryThatCannotBeSharedIsSaidOnce) {
  Owner owner;
  HostSegment segment(owner.memory, 3);
  segment.fill(0, false);
  EXPECT_FALSE(owner.book.name(segment.at(0), 10));
  EXPECT_FALSE(owner.book.name(segment.at(0), 20));
  ASSERT_EQ(owner.said.size(), 1u);
  EXPECT_NE(owner.said[0].find("not made to be shared"), std::string::npos) << owner.said[0];
  // Nor is a message that begins in memory that can be; what lies beside it is.
  segment.fill(1);
  EXPECT_FALSE(owner.book.name(segment.at(0), 2 * kChunk));
  EXPECT_TRUE(owner.book.name(segment.at(1), kChunk));
  EXPECT_FALSE(owner.book.name(segment.at(2), 1));
  EXPECT_EQ(owner.said.size(), 2u);
}

TEST(Buffers, AnExtentIsOfOneDevice) {
  Owner owner;
  HostSegment segment(owner.memory, 4);
  for (std::size_t place = 0; place < 4; ++place) segment.fill(place, true, place < 2 ? 0 : 1);
  const auto first = owner.book.name(segment.at(1), kChunk), second = owner.book.name(segment.at(2), kChunk);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->buffer.buffer, second->buffer.buffer);
  EXPECT_EQ(first->buffer.offset, kChunk);
  EXPECT_EQ(second->buffer.offset, 0u);
  EXPECT_FALSE(owner.book.name(segment.at(1), 2 * kChunk));
  ASSERT_EQ(owner.said.size(), 1u);
  EXPECT_NE(owner.said[0].find("several devices"), std::string::npos) << owner.said[0];
}

TEST(Buffers, AMateThatMayNotImportUsesSlotsAndSaysSo) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  writer.memory.refuse_imports = true;
  HostSegment segment(owner.memory, 70);
  for (std::size_t place = 0; place < 70; ++place) segment.fill(place);
  const auto name = owner.book.name(segment.at(0), kChunk);
  exchange_mail(owner, writer);
  EXPECT_EQ(writer.find(name->buffer), nullptr);
  ASSERT_EQ(writer.said.size(), 1u);
  EXPECT_NE(writer.said[0].find("rank 3"), std::string::npos) << writer.said[0];
  EXPECT_NE(writer.said[0].find("importing is refused"), std::string::npos) << writer.said[0];
  EXPECT_EQ(writer.memory.mappings(), 0u);
  EXPECT_EQ(writer.memory.reserved, 0);
}

TEST(Buffers, OtherRanksOfTheProcessUseItWhereItLiesIfTheirDevicesMay) {
  Owner owner({1, 2});
  HostSegment segment(owner.memory, 2);
  segment.fill(0);
  owner.memory.devices = {1};
  EXPECT_FALSE(owner.book.name(segment.at(0), 10)->reached);
  segment.empty(0);
  segment.fill(0);
  owner.memory.devices = {1, 2};
  EXPECT_TRUE(owner.book.name(segment.at(0), 10)->reached);
}

TEST(Buffers, AMateThatDoesNotReadItsMailGetsItLater) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 120);
  std::vector<BufferName> names;
  for (std::size_t place = 0; place < segment.places(); place += 2) {
    segment.fill(place);
    names.push_back(owner.book.name(segment.at(place), kChunk)->buffer);
  }
  for (int turn = 0; turn < 100; ++turn) owner.book.deliver();
  exchange_mail(owner, writer);
  for (const BufferName& name : names) EXPECT_NE(writer.find(name), nullptr) << name.buffer;
}

// Behind what it has not taken yet.
// One that has left without taking its communicator apart reads nothing, and its box fills.
TEST(Buffers, AMateThatHasLeftHoldsUpNoOther) {
  Owner owner;
  Writer gone(owner.shared.handle()), writer(owner.shared.handle());
  bool left = false;
  owner.book.add_mate(gone.mailbox.handle(), [&] { return left; });
  owner.book.add_mate(writer.mailbox.handle());
  const OpenFiles limit(4 * kMappings);
  HostSegment segment(owner.memory, 2 * 600);  // more mails than a socket takes: net.unix.max_dgram_qlen, 512 at most where systemd sets it
  std::vector<BufferName> names;
  for (std::size_t place = 0; place < segment.places(); place += 2) {
    segment.fill(place);
    names.push_back(owner.book.name(segment.at(place), kChunk)->buffer);
    owner.book.deliver();
    writer.look();
  }
  exchange_mail(owner, writer);
  ASSERT_EQ(writer.find(names.back()), nullptr) << "the first box is full";
  left = true;
  while (owner.book.deliver()) writer.look();
  EXPECT_NE(writer.find(names.back()), nullptr);
}

TEST(Buffers, AMateThatIsStoppedKeepsNoMemoryThatWasFreed) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  constexpr std::size_t kLive = 56;  // more than a mailbox takes
  HostSegment live(owner.memory, 2 * kLive), freed(owner.memory, 1);
  for (std::size_t place = 0; place < live.places(); place += 2) {
    live.fill(place);
    ASSERT_TRUE(owner.book.name(live.at(place), kChunk));
    owner.book.deliver();
  }
  freed.fill(0);
  ASSERT_TRUE(owner.book.name(freed.at(0), kChunk));
  owner.book.deliver();
  freed.empty(0);
  for (std::size_t chunk = 0; chunk <= kLive; ++chunk) owner.book.look_for_freed(1);
  EXPECT_EQ(owner.memory.handles(), kLive);
}

TEST(Buffers, WhatIsFreedBeforeItHasArrivedIsNotKept) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 70);
  for (std::size_t place = 0; place < 70; ++place) segment.fill(place);
  ASSERT_TRUE(owner.book.name(segment.at(0), kChunk));
  owner.book.deliver();
  ExtentArrivals arrivals(writer.memory, owner.page(), "rank 3", writer.remarks);
  EXPECT_FALSE(arrivals.take(*writer.mailbox.receive()));
  EXPECT_EQ(writer.memory.mappings(), kMostDescriptors);
  segment.empty(3);
  owner.book.look_for_freed(kLooksPerMs);
  arrivals.tidy();
  EXPECT_EQ(writer.memory.mappings(), 0u);
  EXPECT_EQ(writer.memory.reserved, 0);
  EXPECT_FALSE(arrivals.take(*writer.mailbox.receive()));
  EXPECT_EQ(writer.memory.mappings(), 0u);
}

TEST(Buffers, AMailThatDoesNotFitIsRefused) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 2);
  segment.fill(0);
  segment.fill(1);
  const auto name = owner.book.name(segment.at(0), 2 * kChunk);
  owner.book.deliver();
  const auto mail = writer.mailbox.receive();
  ASSERT_TRUE(mail);
  // Every byte in turn, and every length: whatever it says then, no more is mapped than what was reserved, and nothing stays.
  for (std::size_t at = 0; at <= mail->bytes.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      Mail other;
      other.bytes = mail->bytes;
      if (at < other.bytes.size())
        other.bytes[at] ^= static_cast<std::byte>(change);
      else
        other.bytes.resize(static_cast<std::size_t>(change) % at);
      for (const auto& fd : mail->descriptors) other.descriptors.emplace_back(::dup(fd.get()));
      ExtentArrivals arrivals(writer.memory, owner.page(), "rank 3", writer.remarks);
      const auto arrived = arrivals.take(other);
      if (arrived) {
        EXPECT_EQ(arrived->number, name->buffer.buffer);
        EXPECT_EQ(arrived->extent->bytes(), 2 * kChunk);
      }
    }
  }
  EXPECT_EQ(writer.memory.mappings(), 0u);
  EXPECT_EQ(writer.memory.handles(), 0u);
  EXPECT_EQ(writer.memory.reserved, 0);
}

TEST(Buffers, TooFewDescriptorsAreSaidAndLeaveNothing) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 30);
  for (std::size_t place = 0; place < 30; ++place) segment.fill(place);
  const auto name = owner.book.name(segment.at(0), 30 * kChunk);
  owner.book.deliver();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  // A few more than are open.
  const auto open =
      static_cast<rlim_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
  const rlimit low{std::min(limit.rlim_cur, open + 10), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  writer.look();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(writer.find(name->buffer), nullptr);
  ASSERT_EQ(writer.said.size(), 1u);
  EXPECT_NE(writer.said[0].find("ulimit -n"), std::string::npos) << writer.said[0];
  EXPECT_EQ(writer.memory.handles(), 0u);
}

TEST(Buffers, AMateInAnotherProcessWritesIntoThem) {
  Owner owner;
  HostSegment segment(owner.memory, 200);
  for (std::size_t place = 0; place < 200; ++place) segment.fill(place);
  // The child's mailbox, told through shared memory; it must not leave the test's process half forked on an error, so it ends by _exit.
  const auto words = engine::SharedMemory::create("words", 4096);
  struct Words {
    std::uint32_t open;
    std::uint32_t named;
    MailboxHandle mailbox;
    BufferName name;
  };
  auto& shared = words.at<Words>(0);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    Writer writer(owner.shared.handle());
    shared.mailbox = writer.mailbox.handle();
    std::atomic_ref(shared.open).store(1);
    std::byte* at = nullptr;
    while (at == nullptr && ::getppid() == parent) {
      writer.look();
      if (std::atomic_ref(shared.named).load() == 1) at = writer.find(shared.name);
      ::usleep(100);
    }
    if (at != nullptr) std::memset(at, 0x5a, 150 * kChunk);
    ::_exit(at == nullptr ? 1 : 0);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  pid_t ended = 0;
  const auto alive = [&] { return (ended = ended == 0 ? ::waitpid(child, &status, WNOHANG) : ended) == 0; };
  while (std::atomic_ref(shared.open).load() == 0 && alive()) ::usleep(100);
  owner.book.add_mate(shared.mailbox);
  shared.name = owner.book.name(segment.at(30), 150 * kChunk)->buffer;
  std::atomic_ref(shared.named).store(1);
  while (alive()) {
    owner.book.deliver();
    ::usleep(100);
  }
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const auto wrong = [&](std::size_t from, std::size_t to, std::byte expected) {
    return std::count_if(pointer(segment.at(from)), pointer(segment.at(to)), [&](std::byte byte) { return byte != expected; });
  };
  EXPECT_EQ(wrong(0, 30, std::byte{0}), 0);
  EXPECT_EQ(wrong(30, 180, std::byte{0x5a}), 0);
  EXPECT_EQ(wrong(180, 199, std::byte{0}), 0);
}

// A program that fills and empties places at random and receives into what is there. Whatever a name says when it is given, writing through
// it reaches the program's memory as it is then.
TEST(Buffers, RandomSegments) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random); };
    Owner owner;
    Writer writer(owner.shared.handle());
    owner.book.add_mate(writer.mailbox.handle());
    int direct = 0;
    {
      HostSegment segment(owner.memory, 90, 4096);
      for (int step = 0; step < 300; ++step) {
        const std::size_t place = below(segment.places());
        if (below(4) == 0) {
          if (segment.filled(place))
            segment.empty(place);
          else
            segment.fill(place, below(8) != 0);
          continue;
        }
        std::size_t end = place;
        while (end < segment.places() && segment.filled(end) && end - place < 6) ++end;
        if (end == place) continue;
        const std::uint64_t skip = below(4096), bytes = 1 + below((end - place) * 4096 - skip);
        const auto name = owner.book.name(segment.at(place) + skip, bytes);
        if (!name) continue;
        ++writer.enqueued;
        if (below(2) == 0) exchange_mail(owner, writer);
        if (below(3) == 0) owner.book.look_for_freed(kLooksPerMs);
        if (below(3) == 0) writer.look();
        if (std::byte* const there = writer.find(name->buffer)) {
          const auto mark = static_cast<std::byte>(step);
          there[0] = there[bytes - 1] = mark;
          ASSERT_EQ(pointer(segment.at(place) + skip)[0], mark) << "seed " << seed << " step " << step;
          ASSERT_EQ(pointer(segment.at(place) + skip)[bytes - 1], mark) << "seed " << seed << " step " << step;
          ++direct;
        }
        writer.completed = writer.enqueued;
      }
    }
    EXPECT_GT(direct, 20) << seed;
    for (int look = 0; look < 600; ++look) owner.book.look_for_freed(kLooksPerMs);
    exchange_mail(owner, writer);
    EXPECT_EQ(owner.memory.handles(), 0u) << seed;
    EXPECT_EQ(writer.memory.mappings(), 0u) << seed;
    EXPECT_EQ(writer.memory.reserved, 0) << seed;
  }
}

// The program's thread names while another one sends and looks for what is gone, as in a communicator.
TEST(Buffers, NamesAreGivenWhileOthersAreSent) {
  Owner owner;
  Writer writer(owner.shared.handle());
  owner.book.add_mate(writer.mailbox.handle());
  HostSegment segment(owner.memory, 30, 4096);
  std::atomic<bool> done = false;
  std::jthread mapper([&] {
    while (!done) {
      owner.book.deliver();
      owner.book.look_for_freed(kLooksPerMs);
      std::this_thread::yield();
    }
  });
  std::jthread mate([&] {
    while (!done) {
      writer.look();
      std::this_thread::yield();
    }
  });
  std::mt19937 random(7);
  for (int step = 0; step < 600; ++step) {
    const std::size_t place = random() % segment.places();
    if (!segment.filled(place)) {
      segment.fill(place);
    } else if (random() % 3 == 0) {
      segment.empty(place);
    } else {
      EXPECT_TRUE(owner.book.name(segment.at(place), 4096));
    }
  }
  done = true;
  mapper.join();
  mate.join();
  for (std::size_t place = 0; place < segment.places(); ++place) {
    if (!segment.filled(place)) continue;
    const auto name = owner.book.name(segment.at(place), 4096);
    exchange_mail(owner, writer);
    ASSERT_NE(writer.find(name->buffer), nullptr) << place;
    *writer.find(name->buffer) = std::byte{42};
    EXPECT_EQ(*pointer(segment.at(place)), std::byte{42}) << place;
  }
}

}  // namespace
}  // namespace railweave::cuda
