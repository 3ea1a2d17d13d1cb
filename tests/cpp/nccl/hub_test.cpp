// The hub, and who calls it.
#include "../../../src/nccl/hub.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "../allocations.hpp"

namespace {

std::atomic<std::uint64_t> accepts{0};
std::atomic<bool> accepts_wait{false};
std::atomic<pid_t> hub_thread{0};  // the last that has called it

}  // namespace

// In the place of the C library's: how often the hub calls it, and when.
extern "C" int accept4(int socket, sockaddr* address, socklen_t* length, int flags) {
  ++accepts;
  hub_thread = ::gettid();
  accepts_wait.wait(true);
  return static_cast<int>(::syscall(SYS_accept4, socket, address, length, flags));
}

namespace railweave::nccl {
namespace {

using std::chrono::milliseconds;
const std::atomic<bool> kNever{false};

HubAddress loopback(const Hub& hub) {
  HubAddress address;
  address.family = 2;  // AF_INET
  address.port = hub.port();
  address.host = {127, 0, 0, 1};
  address.nonce = {1, 2, 3};
  return address;
}

// A rank on a thread of its own.
Round join(const HubAddress& address, const std::string& name, std::uint32_t rank, std::uint32_t world, milliseconds limit) {
  HubClient client(address, kNever);
  if (!client.connect(std::chrono::steady_clock::now() + milliseconds(30000))) return {};
  return client.join(name, rank, world, "blob " + std::to_string(rank), limit);
}

TEST(Hub, ARoundGivesEachRankAllBlobsInOrder) {
  Hub hub;
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  std::vector<Round> rounds(8);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    threads.emplace_back([&, rank] { rounds[rank] = join(address, "round", rank, 8, milliseconds(30000)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Round& round : rounds) {
    ASSERT_EQ(round.status, RoundStatus::complete);
    ASSERT_EQ(round.blobs.size(), 8u);
    for (std::size_t rank = 0; rank < 8; ++rank) EXPECT_EQ(round.blobs[rank], "blob " + std::to_string(rank));
  }
}

// More than a socket takes at once, and each rank is asked twice over one connection: the second answer begins where the first one ended.
TEST(Hub, LongAnswersComeWholeRoundAfterRound) {
  Hub hub;
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  constexpr std::uint32_t kRanks = 64, kBlob = 64u << 10, kRounds = 2;
  const auto blob = [](std::uint32_t rank, std::uint32_t round) { return std::string(kBlob, static_cast<char>(1 + rank + round)); };
  std::atomic<std::uint32_t> right{0};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      HubClient client(address, kNever);
      if (!client.connect(std::chrono::steady_clock::now() + milliseconds(30000))) return;
      for (std::uint32_t number = 0; number < kRounds; ++number) {
        const Round round = client.join("round " + std::to_string(number), rank, kRanks, blob(rank, number), milliseconds(30000));
        bool same = round.status == RoundStatus::complete && round.blobs.size() == kRanks;
        for (std::uint32_t other = 0; same && other < kRanks; ++other) same = round.blobs[other] == blob(other, number);
        right += same ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kRanks * kRounds);
}

TEST(Hub, ARoundThatExpiredStaysExpiredForLateRanks) {
  Hub hub;
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  for (const std::uint32_t rank : {1u, 2u}) {
    const Round round = join(address, "round", rank, 3, milliseconds(20));
    EXPECT_EQ(round.status, RoundStatus::expired);
    EXPECT_EQ(round.missing, "ranks 0, 2") << "when it ended";
    EXPECT_FALSE(round.left);
    EXPECT_EQ(round.first, 1u) << "who tells people";
  }
}

TEST(Hub, StrangersAndDisagreementsAreRefused) {
  Hub hub;
  HubAddress address = loopback(hub);
  EXPECT_EQ(join(address, "round", 0, 2, milliseconds(20)).status, RoundStatus::refused) << "a nonce that was not admitted";
  hub.admit(address.nonce);
  EXPECT_EQ(join(address, "round", 2, 2, milliseconds(20)).status, RoundStatus::refused) << "a rank out of range";
  // Two worlds under one name: whoever comes second is refused, nobody completes.
  std::vector<Round> rounds(2);
  std::thread two([&] { rounds[0] = join(address, "round", 0, 2, milliseconds(200)); });
  std::thread three([&] { rounds[1] = join(address, "round", 1, 3, milliseconds(200)); });
  two.join();
  three.join();
  for (const Round& round : rounds) EXPECT_TRUE(round.status == RoundStatus::refused || round.status == RoundStatus::expired);
}

TEST(Hub, WhoSaysNothingIsHungUpOnAndARankIsNot) {
  Hub hub(milliseconds(3000));  // within which a rank is heard on a busy machine
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  HubClient rank(address, kNever);
  ASSERT_TRUE(rank.connect(std::chrono::steady_clock::now() + milliseconds(30000)));
  ASSERT_EQ(rank.join("alone", 0, 1, "", milliseconds(30000)).status, RoundStatus::complete);
  FileDescriptor silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(hub.port());
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(silent.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place), 0);
  const timeval patience{120, 0};
  ::setsockopt(silent.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  char byte = 0;
  EXPECT_EQ(::recv(silent.get(), &byte, 1, 0), 0) << "waits for the end";
  EXPECT_EQ(rank.join("again", 0, 1, "", milliseconds(30000)).status, RoundStatus::complete);
}

// More of them than the process has descriptors for. Some are left to it all the time, and a rank that comes behind them is heard.
TEST(Hub, ACrowdThatSaysNothingLeavesTheProgramItsDescriptors) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_cur, 512u);
  const rlimit few{200, limit.rlim_max};
  Hub hub(milliseconds(5000));  // a second of it in a crowd
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  int ready[2], over[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(over), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const pid_t crowd = ::fork();
  if (crowd == 0) {
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::close(over[1]);  // so that it goes with its parent
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(hub.port());
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    char byte = 0;
    for (int i = 0; i < 400; ++i) {
      const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(socket, reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0) ::_exit(1);
    }
    const bool told = ::write(ready[1], "r", 1) == 1;
    ::_exit(told && ::read(over[0], &byte, 1) == 0 ? 0 : 1);
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  std::vector<FileDescriptor> own;
  for (int i = 0; i < 40; ++i) own.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const FileDescriptor& each : own) EXPECT_TRUE(each);
  // It waits at the listener behind the others, who are hung up on in turn.
  EXPECT_EQ(join(address, "alone", 0, 1, milliseconds(30000)).status, RoundStatus::complete);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ::close(over[1]);
  int status = 1;
  EXPECT_EQ(::waitpid(crowd, &status, 0), crowd);
  EXPECT_EQ(status, 0);
  for (const int end : {ready[0], ready[1], over[0]}) ::close(end);
}

// Sends a rank in and comes back when the hub has counted it, without an answer.
void send_in(HubClient& client, std::atomic<bool>& cancelled, std::uint32_t rank, std::uint32_t world) {
  ASSERT_TRUE(client.connect(std::chrono::steady_clock::now() + milliseconds(30000)));
  std::thread canceller([&] { cancelled = true; });
  EXPECT_EQ(client.join("round", rank, world, "", milliseconds(3'000'000)).status, RoundStatus::unknown);
  canceller.join();
  cancelled = false;
  // The hub takes the frames of a connection one after the other.
  ASSERT_EQ(client.join("alone " + std::to_string(rank), 0, 1, "", milliseconds(30000)).status, RoundStatus::complete);
}

// The rank that leaves ends the round for those who wait, long before its time.
TEST(Hub, ARankThatGoesAwayEndsItsRound) {
  Hub hub;
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  std::atomic<bool> cancelled{false};
  HubClient stays(address, cancelled);
  {
    HubClient leaves(address, cancelled);
    send_in(leaves, cancelled, 0, 3);
    send_in(stays, cancelled, 1, 3);
  }
  // The next answer is that of the round which it is in; there is none to this frame.
  const Round round = stays.join("for ever", 0, 2, "", milliseconds(3'000'000));
  EXPECT_EQ(round.status, RoundStatus::expired);
  EXPECT_EQ(round.missing, "rank 0");
  EXPECT_TRUE(round.left);
  EXPECT_EQ(round.first, 1u);
}

// The hub finds what the rank said and its end at once.
TEST(Hub, ARankThatGoesAwayBeforeItIsHeardEndsItsRound) {
  Hub hub;
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  accepts_wait = true;
  {
    std::atomic<bool> cancelled{false};
    HubClient leaves(address, cancelled);
    EXPECT_TRUE(leaves.connect(std::chrono::steady_clock::now() + milliseconds(30000)));
    cancelled = true;
    EXPECT_EQ(leaves.join("round", 0, 3, "", milliseconds(30000)).status, RoundStatus::unknown);
  }
  accepts_wait = false;
  accepts_wait.notify_all();
  const Round round = join(address, "round", 1, 3, milliseconds(5000));
  EXPECT_EQ(round.status, RoundStatus::expired);
  EXPECT_EQ(round.missing, "rank 0");
  EXPECT_TRUE(round.left);
}

TEST(Hub, NobodyThereIsKnownAtOnce) {
  // Bound, so that nobody else listens there meanwhile.
  const FileDescriptor silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in bound{};
  bound.sin_family = AF_INET;
  bound.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof bound;
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<const sockaddr*>(&bound), length), 0);
  ASSERT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&bound), &length), 0);
  HubAddress address;
  address.family = AF_INET;
  address.port = ::ntohs(bound.sin_port);
  address.host = {127, 0, 0, 1};
  HubClient client(address, kNever);
  EXPECT_FALSE(client.connect(std::chrono::steady_clock::now() + std::chrono::hours(1)));
}

// All descriptors of the process but `left`, until the end of its life.
class NoDescriptors {
 public:
  explicit NoDescriptors(int left) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{128, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = ::dup(STDERR_FILENO); fd >= 0; fd = ::dup(STDERR_FILENO)) taken_.push_back(fd);
    for (; left > 0; --left, taken_.pop_back()) ::close(taken_.back());
  }
  ~NoDescriptors() {
    for (const int fd : taken_) ::close(fd);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

// Ten calls a second, where a loop without a pause makes a hundred thousand.
TEST(Hub, WithoutADescriptorForACallerItPausesAndServesHimLater) {
  Hub hub;
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  HubClient client(address, kNever);
  ::testing::internal::CaptureStderr();
  {
    const NoDescriptors none(1);
    ASSERT_TRUE(client.connect(std::chrono::steady_clock::now() + milliseconds(30000)));
    const std::uint64_t before = accepts.load();
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_LT(accepts.load() - before, 1000u);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::size_t told =
      log.find(" WARN ranks that call this process to meet here have to wait: Too many open files (limits: ulimit -n, ");
  EXPECT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("have to wait", log.find("have to wait") + 1), std::string::npos) << log;
  EXPECT_EQ(client.join("round", 0, 1, "", milliseconds(30000)).status, RoundStatus::complete);
}

// A round of three ranks, as each of them hears of it.
std::vector<Round> round_of_three(const HubAddress& address, const std::string& name, milliseconds limit) {
  std::vector<Round> rounds(3);
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < 3; ++rank) ranks.emplace_back([&, rank] { rounds[rank] = join(address, name, rank, 3, limit); });
  for (std::thread& rank : ranks) rank.join();
  return rounds;
}

// Refused memory once, at each place in turn. Who cannot be answered hears the end of its connection.
TEST(Hub, WithoutMemoryItEndsNothingButARound) {
  namespace allocations = testing::allocations;
  int places = 0;
  for (bool refused = true; refused; ++places) {
    Hub hub;
    const HubAddress address = loopback(hub);
    hub.admit(address.nonce);
    ASSERT_EQ(join(address, "before", 0, 1, milliseconds(30000)).status, RoundStatus::complete);
    allocations::refuse(hub_thread, places, 1);
    const std::vector<Round> rounds = round_of_three(address, "round", milliseconds(100));
    allocations::give_again();
    refused = allocations::refused() != 0;
    for (const Round& round : rounds) {
      EXPECT_NE(round.status, RoundStatus::refused) << places;
      if (round.status != RoundStatus::complete) continue;
      for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(round.blobs[rank], "blob " + std::to_string(rank)) << places;
    }
    for (const Round& round : round_of_three(address, "after", milliseconds(30000)))
      EXPECT_EQ(round.status, RoundStatus::complete) << places;
  }
  EXPECT_GT(places, 10);
}

TEST(Hub, WithoutMemoryForACallerItServesHimLater) {
  namespace allocations = testing::allocations;
  Hub hub;
  const HubAddress address = loopback(hub);
  hub.admit(address.nonce);
  ASSERT_EQ(join(address, "before", 0, 1, milliseconds(30000)).status, RoundStatus::complete);
  allocations::refuse(hub_thread, 0, INT_MAX);
  Round round;
  std::thread rank([&] { round = join(address, "round", 0, 1, milliseconds(30000)); });
  while (allocations::refused() < 3) std::this_thread::sleep_for(milliseconds(1));  // it has paused between
  allocations::give_again();
  rank.join();
  EXPECT_EQ(round.status, RoundStatus::complete);
}

}  // namespace
}  // namespace railweave::nccl
