// NICs of this machine that talk through sockets.
#include "socket_transport.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "parts.hpp"
#include "railweave/engine/error.hpp"
#include "shared_memory.hpp"

namespace {
// How often this program has set TCP_NODELAY, by which a transport makes the kernel send.
std::atomic<int> pushes{0};
}  // namespace

extern "C" int setsockopt(int socket, int level, int option, const void* value, socklen_t size) noexcept {
  if (level == IPPROTO_TCP && option == TCP_NODELAY) ++pushes;
  return static_cast<int>(::syscall(SYS_setsockopt, socket, level, option, value, size));
}

namespace railweave::test {
namespace {

using engine::RailFrame;
using engine::RailHeader;

constexpr std::size_t kLargest = 256u << 10;
constexpr std::ptrdiff_t kSecretAt = 8, kSecret = 16;  // in an address; then the socket's

std::byte byte_at(std::uint64_t transfer, std::size_t at) { return static_cast<std::byte>(at * 31 + (at >> 8) * 7 + transfer * 101); }

class Nic final : public engine::TransportListener {
 public:
  explicit Nic(std::uint32_t id) : id_(id), transport_(engine::make_socket_transport("lo", kLargest)) { transport_->set_listener(this); }
  ~Nic() override {
    if (transport_) transport_->set_listener(nullptr);
  }
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  engine::Transport& transport() { return *transport_; }
  void connect(const Nic& peer) { transport_->connect(peer.id_, peer.transport_->address()); }
  void end() { transport_.reset(); }
  std::uint32_t id() const { return id_; }

  // A frame that waits for one with a payload, or for a flush.
  void hold(const Nic& peer, std::uint64_t transfer, RailFrame kind = RailFrame::offer) {
    transport_->send(peer.id_, header(peer, transfer, kind, 77), {}, 0);
  }
  // Keeps the bytes until the transport lets go of them.
  void send(const Nic& peer, std::uint64_t transfer, std::size_t bytes, RailFrame kind = RailFrame::data) {
    std::vector<std::byte>& payload = kept[++tokens_];
    payload.resize(bytes);
    for (std::size_t at = 0; at < bytes; ++at) payload[at] = byte_at(transfer, at);
    transport_->send(peer.id_, header(peer, transfer, kind, static_cast<std::uint32_t>(bytes)), payload, tokens_);
  }

  std::byte* on_incoming(const RailHeader& header, std::size_t bytes) override {
    if (refused.contains(header.transfer)) return nullptr;
    inbox_.assign(bytes, std::byte{0});
    return inbox_.data();
  }
  void on_delivered(const RailHeader& header, std::byte* where, std::size_t bytes, bool ok) override {
    if (header.kind == RailFrame::offer) {
      EXPECT_EQ(header.length, 77u);
    }
    if (!ok) {
      broken.push_back(header.transfer);
      return;
    }
    check(header, {where, bytes});
    transfers.push_back(header.transfer);
  }
  void on_carried(const RailHeader& header, std::span<const std::byte> frames) override {
    check(header, frames);
    transfers.push_back(header.transfer);
  }
  void on_sent(std::uint64_t token) override { EXPECT_EQ(kept.erase(token), 1u) << token; }
  void on_peer_lost(std::uint32_t) override { ++lost; }

  std::vector<std::uint64_t> transfers, broken;  // in the order in which they came
  std::set<std::uint64_t> refused;
  std::map<std::uint64_t, std::vector<std::byte>> kept;  // by token
  int lost = 0;

 private:
  RailHeader header(const Nic& peer, std::uint64_t transfer, RailFrame kind, std::uint32_t length) const {
    RailHeader header;
    header.kind = kind;
    header.from_nic = id_;
    header.to_nic = peer.id_;
    header.transfer = transfer;
    header.length = length;
    return header;
  }
  static void check(const RailHeader& header, std::span<const std::byte> payload) {
    std::size_t at = 0;
    while (at < payload.size() && payload[at] == byte_at(header.transfer, at)) ++at;
    EXPECT_EQ(at, payload.size()) << "transfer " << header.transfer;
  }

  std::uint32_t id_;
  std::uint64_t tokens_ = 0;
  std::unique_ptr<engine::Transport> transport_;
  std::vector<std::byte> inbox_;
};

class SocketTransport : public testing::Test {
 protected:
  bool until(const std::function<bool()>& done) { return progress_until(a_.transport(), b_.transport(), done); }
  void SetUp() override {
    a_.connect(b_);
    b_.connect(a_);
  }
  // a's connection to b takes as much of so many payloads as it can.
  void fill_socket(std::size_t payloads) {
    ASSERT_TRUE(progress_until(a_.transport(), a_.transport(), [&] { return a_.kept.size() < payloads; }));
    for (int turn = 0; turn < 100; ++turn) a_.transport().progress();
    ASSERT_FALSE(a_.kept.empty());
  }
  // What a stranger's socket has to say; b's port.
  engine::Fd stranger(std::span<const std::byte> text) {
    sockaddr_storage to{};
    const std::vector<std::byte> address = b_.transport().address();
    std::memcpy(&to, address.data() + kSecretAt + kSecret, sizeof to);
    engine::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(sockaddr_in)), 0);
    if (!text.empty()) {
      EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    }
    return socket;
  }
  static bool is_closed(const engine::Fd& socket) {
    char byte = 0;
    return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

  Nic a_{0}, b_{1};
};

TEST_F(SocketTransport, PayloadsAndFramesOfAllSizesArriveWholeAndInOrder) {
  std::mt19937 random(1);
  std::vector<std::uint64_t> sent;
  for (std::uint64_t transfer = 1; transfer <= 400; ++transfer) {
    const std::uint32_t choice = random() % 8;
    if (choice < 4)
      a_.send(b_, transfer, 1 + random() % (choice == 0 ? kLargest : 9000));
    else if (choice < 6)
      a_.send(b_, transfer, 1 + random() % engine::kMaxCarryBytes, RailFrame::carry);
    else
      a_.hold(b_, transfer);
    if (choice == 7) a_.transport().flush();
    b_.send(a_, transfer, 1 + random() % 5000);
    sent.push_back(transfer);
    // Else frames would overtake what has not begun.
    ASSERT_TRUE(until([&] { return a_.kept.empty(); }));
  }
  a_.transport().flush();
  ASSERT_TRUE(until([&] { return b_.transfers.size() == sent.size() && a_.transfers.size() == sent.size(); }));
  EXPECT_EQ(b_.transfers, sent);
  EXPECT_EQ(a_.transfers, sent);
  EXPECT_EQ(a_.lost + b_.lost, 0);
}

TEST_F(SocketTransport, FramesOvertakePayloadsThatHaveNotBegun) {
  constexpr std::uint64_t kPayloads = 100, kFrame = 1000;  // 25 MiB: more than a socket takes
  for (std::uint64_t transfer = 1; transfer <= kPayloads; ++transfer) a_.send(b_, transfer, kLargest);
  fill_socket(kPayloads);
  ASSERT_FALSE(a_.kept.empty());
  a_.hold(b_, kFrame);
  a_.transport().flush();
  ASSERT_TRUE(until([&] { return b_.transfers.size() == kPayloads + 1; }));
  const auto place = std::find(b_.transfers.begin(), b_.transfers.end(), kFrame) - b_.transfers.begin();
  EXPECT_LT(place, static_cast<std::ptrdiff_t>(kPayloads));
  EXPECT_GT(place, 0);
  b_.transfers.erase(b_.transfers.begin() + place);
  EXPECT_TRUE(std::is_sorted(b_.transfers.begin(), b_.transfers.end()));
}

TEST_F(SocketTransport, WhatNobodyWantsIsReadAndThrownAway) {
  b_.refused = {2, 4};
  for (std::uint64_t transfer = 1; transfer <= 5; ++transfer) a_.send(b_, transfer, transfer == 4 ? 100 : kLargest);
  ASSERT_TRUE(until([&] { return b_.transfers.size() == 3; }));
  EXPECT_EQ(b_.transfers, (std::vector<std::uint64_t>{1, 3, 5}));
}

TEST_F(SocketTransport, AConnectionThatEndsInAPayloadLosesItAndGivesBackTheRest) {
  for (std::uint64_t transfer = 1; transfer <= 100; ++transfer) a_.send(b_, transfer, kLargest);
  fill_socket(100);
  a_.transport().disconnect(b_.id());
  EXPECT_TRUE(a_.kept.empty()) << "nothing is read any more";
  ASSERT_TRUE(until([&] { return b_.broken.size() == 1; }));
  EXPECT_EQ(b_.broken.front(), b_.transfers.size() + 1);
  a_.connect(b_);
  a_.send(b_, 500, kLargest);
  ASSERT_TRUE(until([&] { return b_.transfers.back() == 500; }));
  EXPECT_EQ(a_.lost, 0);
}

// Nothing of the older one comes behind what the newer one has brought.
TEST_F(SocketTransport, ANewConnectionOfAPeerEndsItsOlderOne) {
  for (std::uint64_t transfer = 1; transfer <= 20; ++transfer) a_.send(b_, transfer, kLargest);
  ASSERT_TRUE(until([&] { return !b_.transfers.empty(); }));
  for (int turn = 0; turn < 100; ++turn) a_.transport().progress();
  a_.connect(b_);
  a_.hold(b_, 500);
  a_.transport().flush();
  ASSERT_TRUE(until([&] { return b_.transfers.back() == 500; }));
  const std::size_t seen = b_.transfers.size();
  a_.hold(b_, 501);
  a_.transport().flush();
  ASSERT_TRUE(until([&] { return b_.transfers.back() == 501; }));
  EXPECT_EQ(b_.transfers.size(), seen + 1);
}

TEST_F(SocketTransport, APeerThatIsGoneIsTold) {
  a_.send(b_, 1, 100);
  ASSERT_TRUE(until([&] { return !b_.transfers.empty(); }));
  const std::vector<std::byte> address = b_.transport().address();
  b_.end();
  ASSERT_TRUE(progress_until(a_.transport(), a_.transport(), [&] { return a_.lost != 0; }));
  a_.send(b_, 2, 100);
  EXPECT_TRUE(a_.kept.empty()) << "what cannot be sent is given back at once";
  // Nobody listens there any more.
  a_.lost = 0;
  a_.transport().connect(b_.id(), address);
  a_.send(b_, 3, 100);
  ASSERT_TRUE(progress_until(a_.transport(), a_.transport(), [&] { return a_.lost != 0; }));
  a_.transport().disconnect(b_.id());
  EXPECT_TRUE(a_.kept.empty());
}

TEST_F(SocketTransport, StrangersAreClosedAndNeverHeard) {
  std::vector<std::byte> text(4096, std::byte{0x47});
  const engine::Fd rude = stranger(text);
  ASSERT_TRUE(until([&] { return is_closed(rude); }));
  // Some that say nothing: there is an end of them, and peers still come.
  std::deque<engine::Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(stranger({}));
  b_.transport().progress();
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  silent.push_back(stranger({}));
  ASSERT_TRUE(until([&] { return is_closed(silent.front()); }));
  EXPECT_FALSE(is_closed(silent.back()));
  a_.connect(b_);
  a_.send(b_, 1, 100);
  ASSERT_TRUE(until([&] { return b_.transfers == std::vector<std::uint64_t>{1}; }));
}

// As at the start of a large job, where peers connect before this rank's thread runs.
TEST_F(SocketTransport, ManyPeersMayConnectAtOnce) {
  std::deque<Nic> peers;
  for (std::uint32_t id = 2; id < 152; ++id) {
    Nic& peer = peers.emplace_back(id);
    peer.connect(b_);
    peer.send(b_, id, 100);
    peer.transport().progress();
  }
  ASSERT_TRUE(until([&] {
    for (Nic& peer : peers) peer.transport().progress();
    return b_.transfers.size() == peers.size();
  }));
  for (const Nic& peer : peers) EXPECT_EQ(peer.lost, 0) << peer.id();
}

TEST_F(SocketTransport, WhatIsQueuedComesBackWhenThePeerIsLost) {
  a_.send(b_, 1, 100);
  ASSERT_TRUE(until([&] { return a_.kept.empty(); }));
  for (std::uint64_t transfer = 2; transfer <= 100; ++transfer) a_.send(b_, transfer, kLargest);
  ASSERT_FALSE(a_.kept.empty());
  b_.end();
  ASSERT_TRUE(progress_until(a_.transport(), a_.transport(), [&] { return a_.lost != 0; }));
  EXPECT_TRUE(a_.kept.empty());
}

// It is told at the next progress(), so nobody may sleep before.
TEST_F(SocketTransport, ALossThatAWriteFindsKeepsAwake) {
  a_.send(b_, 1, 100);
  ASSERT_TRUE(until([&] { return a_.kept.empty() && !b_.transfers.empty(); }));
  ASSERT_TRUE(a_.transport().arm());
  b_.end();
  for (std::uint64_t transfer = 2; a_.transport().arm() && transfer < 1000; ++transfer) {
    a_.hold(b_, transfer);
    a_.transport().flush();
  }
  EXPECT_FALSE(a_.transport().arm());
  a_.transport().progress();
  EXPECT_EQ(a_.lost, 1);
  EXPECT_TRUE(a_.transport().arm());
}

// A descriptor that a forked child has, too, is open until the child ends.
TEST_F(SocketTransport, AForkedChildKeepsNoConnectionAlive) {
  for (std::uint64_t transfer = 1; transfer <= 100; ++transfer) a_.send(b_, transfer, kLargest);
  fill_socket(100);
  for (int turn = 0; turn < 10; ++turn) b_.transport().progress();
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  a_.transport().disconnect(b_.id());
  EXPECT_TRUE(until([&] { return b_.broken.size() == 1; }));
  while (b_.transport().progress()) continue;
  pollfd event{b_.transport().event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 0), 0) << "who sleeps would be woken for ever";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(SocketTransport, WhatIsHeardLateOfAnOlderConnectionDoesNotEndTheNewerOne) {
  const std::vector<std::byte> address = b_.transport().address();
  const auto said = [&](std::uint64_t number, std::uint64_t transfer) {
    std::vector<std::byte> text(address.begin() + kSecretAt, address.begin() + kSecretAt + kSecret);
    const std::uint64_t numbers[] = {number, 0};
    RailHeader header;
    header.from_nic = 7;
    header.to_nic = b_.id();
    header.transfer = transfer;
    for (const std::span<const std::byte> bytes :
         {std::span<const std::byte>(std::as_bytes(std::span(numbers))), std::span<const std::byte>(std::as_bytes(std::span(&header, 1)))})
      text.insert(text.end(), bytes.begin(), bytes.end());
    return text;
  };
  const engine::Fd newer = stranger(said(2, 20));
  ASSERT_TRUE(until([&] { return b_.transfers.size() == 1; }));
  const engine::Fd older = stranger(said(1, 10));
  ASSERT_TRUE(until([&] { return is_closed(older); }));
  EXPECT_FALSE(is_closed(newer));
  const engine::Fd newest = stranger(said(3, 30));
  ASSERT_TRUE(until([&] { return is_closed(newer); }));
  EXPECT_EQ(b_.transfers, (std::vector<std::uint64_t>{20, 30}));
}

// Of the job, but not what a peer sends.
TEST_F(SocketTransport, WhatNoPeerSendsEndsTheConnection) {
  const std::vector<std::byte> address = b_.transport().address();
  RailHeader header;
  header.from_nic = 7;
  header.to_nic = b_.id();
  const auto said = [&](const std::vector<RailHeader>& headers) {
    std::vector<std::byte> text(address.begin() + kSecretAt, address.begin() + kSecretAt + kSecret);
    text.resize(text.size() + 16);  // a number of 0, no padding
    for (const RailHeader& each : headers) {
      const auto* first = reinterpret_cast<const std::byte*>(&each);
      text.insert(text.end(), first, first + sizeof each);
    }
    return text;
  };
  RailHeader large = header, other = header, carry = header;
  large.kind = RailFrame::data;
  large.length = kLargest + 1;
  carry.kind = RailFrame::carry;
  carry.length = engine::kMaxCarryBytes + 1;
  other.from_nic = 8;
  for (const auto& headers : {std::vector{large}, std::vector{carry}, std::vector{header, other}}) {
    const engine::Fd socket = stranger(said(headers));
    ASSERT_TRUE(until([&] { return is_closed(socket); }));
  }
  const engine::Fd good = stranger(said({header}));
  for (int turn = 0; turn < 1000; ++turn) b_.transport().progress();
  EXPECT_FALSE(is_closed(good));
  EXPECT_EQ(b_.transfers.size(), 2u) << "the frames before the bad one, and the good one";
}

// Who sleeps until something happens is woken when it is time to look for descriptors again.
TEST_F(SocketTransport, PeersAreAcceptedOnceTheProcessHasDescriptorsAgain) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const engine::Fd first_free(::dup(0));
  const rlimit none{static_cast<rlim_t>(first_free.get()) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  while (b_.transport().progress()) continue;  // a's connection cannot be accepted
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  a_.send(b_, 1, 100);
  ASSERT_TRUE(progress_until(a_.transport(), a_.transport(), [&] { return a_.kept.empty(); }));
  pollfd event{b_.transport().event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 30'000), 1);
  EXPECT_TRUE(until([&] { return b_.transfers == std::vector<std::uint64_t>{1}; }));
}

// What a peer that does not read leaves in the kernel looks like what a queue has dropped: unsent, and nothing on its way. The connection
// is not new, so nothing else sets the option.
TEST_F(SocketTransport, WhatTheKernelDoesNotSendIsPushed) {
  a_.send(b_, 1, 100);
  ASSERT_TRUE(until([&] { return a_.kept.empty() && !b_.transfers.empty(); }));
  constexpr std::uint64_t kPayloads = 40;
  for (std::uint64_t transfer = 2; transfer <= kPayloads; ++transfer) a_.send(b_, transfer, kLargest);
  ASSERT_FALSE(a_.kept.empty());
  const int before = pushes;
  ASSERT_TRUE(progress_until(a_.transport(), a_.transport(), [&] { return pushes - before >= 3; }));
  // More and more seldom.
  pollfd event{a_.transport().event_fd(), POLLIN, 0};
  const auto begin = std::chrono::steady_clock::now();
  const int middle = pushes;
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(300)) {
    ::poll(&event, 1, 300);
    a_.transport().progress();
  }
  EXPECT_LE(pushes - middle, 8) << "20, 40, 80 ms and so on, and not each 5";
  ASSERT_TRUE(until([&] { return b_.transfers.size() == kPayloads; }));
  EXPECT_TRUE(a_.kept.empty());
}

TEST_F(SocketTransport, WhatHasBeenSentWakesNobody) {
  a_.send(b_, 1, kLargest);
  ASSERT_TRUE(until([&] { return a_.kept.empty() && !b_.transfers.empty(); }));
  const int before = pushes;
  pollfd event{a_.transport().event_fd(), POLLIN, 0};
  int wakes = 0;
  for (const auto begin = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(200);) {
    if (::poll(&event, 1, 200) == 1) ++wakes;
    a_.transport().progress();
  }
  EXPECT_LE(wakes, 2) << "one look, when the peer has long read all";
  EXPECT_EQ(pushes - before, 0);
}

TEST_F(SocketTransport, WakesWhoSleeps) {
  a_.hold(b_, 1);
  a_.transport().flush();
  ASSERT_TRUE(until([&] { return b_.transfers.size() == 1; }));
  pollfd event{b_.transport().event_fd(), POLLIN, 0};
  while (b_.transport().progress()) continue;
  ASSERT_TRUE(b_.transport().arm());
  EXPECT_EQ(::poll(&event, 1, 0), 0);
  a_.hold(b_, 2);
  a_.transport().flush();
  EXPECT_EQ(::poll(&event, 1, 5000), 1);
}

TEST(SocketTransportSetUp, NamesTheInterfaceThatIsNotThere) {
  try {
    engine::make_socket_transport("rail99", kLargest);
    FAIL();
  } catch (const TransportError& error) {
    EXPECT_STREQ(error.what(), "network interface 'rail99': there is none in this network namespace");
  }
}

// From now on the process may not bind a socket to an interface, as without root before Linux 5.7.
bool forbid_binding_to_interfaces() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_setsockopt, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOL_SOCKET, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_BINDTODEVICE, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// The same place by an address of another interface of this machine: the kernel sends from that one by itself. Nothing where there is none.
std::optional<std::vector<std::byte>> by_another_interface(std::vector<std::byte> address) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> keep(list, ::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    sockaddr_in place{};
    std::memcpy(&place, address.data() + kSecretAt + kSecret, sizeof place);
    place.sin_addr = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    std::memcpy(address.data() + kSecretAt + kSecret, &place, sizeof place);
    return address;
  }
  return std::nullopt;
}

enum Ending { kGood, kUnsupported, kNotReached, kLeftByAnotherWay };

Ending connect_without_binding_to_interfaces() {
  if (!forbid_binding_to_interfaces()) return kUnsupported;
  Nic a(0), b(1);
  a.connect(b);
  a.send(b, 1, 100);
  if (!progress_until(a.transport(), b.transport(), [&] { return b.transfers.size() == 1; })) return kNotReached;
  const auto descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  const auto other = by_another_interface(b.transport().address());
  if (!other) return kGood;
  const auto before = descriptors();
  a.transport().connect(7, *other);
  return descriptors() == before ? kGood : kLeftByAnotherWay;
}

TEST(SocketTransportSetUp, WhereNoSocketMayBeBoundToAnInterfaceLinksAreMadeOnlyWhereRoutesLeadThere) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(connect_without_binding_to_interfaces());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kUnsupported) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(WEXITSTATUS(status), kGood);
}

TEST(SocketTransportSetUp, ReachesNoMemoryOfGpus) {
  const auto transport = engine::make_socket_transport("lo", kLargest);
  EXPECT_TRUE(transport->knows(engine::MemoryKind::host));
  EXPECT_FALSE(transport->knows(engine::MemoryKind::cuda));
  EXPECT_THROW(transport->use_memory({}, engine::MemoryKind::cuda), TransportError);
}

}  // namespace
}  // namespace railweave::test
