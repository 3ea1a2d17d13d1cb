#include "socket_transport.hpp"

#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "railweave/engine/error.hpp"
#include "shared_memory.hpp"

namespace railweave::engine {
namespace {

using Clock = std::chrono::steady_clock;

// What is in the kernel's hands and not on its way yet: 0.25 ms of a rail of 8 Gbit/s. Frames overtake payloads before that, not behind it.
// 64 KiB to 1 GiB made no difference beyond the spread with host ranks (two rails of 8 and 20 Gbit/s, 2026-11-23,
// benchmarks/gpus/rails_cpu.py).
constexpr int kUnsentBytes = 256 << 10;
// Beside a payload as many bytes are read of what comes after it: frames, and the beginning of a payload, which are copied.
constexpr std::size_t kReadAhead = 4096;
constexpr std::size_t kMostFrames = 4096;   // that wait for a connection; more are lost, as frames may be
constexpr std::size_t kMostStrangers = 64;  // that have said nothing for longer than that:
constexpr auto kPatience = std::chrono::seconds(1);
constexpr int kKeepIdleS = 5, kKeepIntervalS = 2, kKeepProbes = 3;
constexpr int kMostEvents = 32;
constexpr std::chrono::milliseconds kAcceptPause(100);  // when the process has no descriptor left
// Where a queue of the machine's own drops what the kernel sends (tbf, as the lab and pods with a limited rate have) and nothing else of
// the connection is on its way, no answer and no time-out of a packet makes TCP go on: Linux looks again after 200 ms at the earliest, then
// 400, whatever the route's least time-out is. It is made to try again after 5 ms, the least that the lab's queue holds, then twice as long
// each time until something else is written (docs/engine.md, "What the kernel does not send").
constexpr std::chrono::milliseconds kLook(5), kLongestLook(1000);

using Secret = std::array<std::byte, 16>;

// What peers need to connect. Its first byte is none that UCX's begin with, as NICs of one job may go different ways.
struct Address {
  std::uint64_t kind;
  Secret secret;  // so that nobody is taken for a peer who is not of the job
  sockaddr_storage socket;
};
constexpr std::uint64_t kSocketAddress = 0x54454b434f53;  // "SOCKET"

std::optional<Address> read_address(std::span<const std::byte> bytes) {
  Address address;
  if (bytes.size() != sizeof address) return std::nullopt;
  std::memcpy(&address, bytes.data(), sizeof address);
  return address.kind == kSocketAddress ? std::optional(address) : std::nullopt;
}

// The first bytes on a connection, with padding behind them; headers with their payloads follow.
struct Greeting {
  Secret secret;
  std::uint64_t number;  // of the sender's connections: a higher one is newer
  std::uint64_t padding;
};
// A way that only small packets pass (a switch with too small an MTU) shall not look like one: what comes behind the padding, the first
// hello, does not come either.
constexpr std::uint64_t kFullPackets = 2, kMostPadding = 64u << 10;

socklen_t size_of(const sockaddr_storage& address) { return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }

in_port_t& port_of(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

[[noreturn]] void refuse(const std::string& interface, const std::string& why) {
  throw TransportError("network interface '" + interface + "': " + why);
}

// The first IPv4 address, else the first IPv6 one that is not of the link alone, else one of the link.
sockaddr_storage address_of(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) refuse(interface, std::string("its addresses cannot be read: ") + std::strerror(errno));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> keep(list, ::freeifaddrs);
  bool there = false;
  int best = 0;
  sockaddr_storage found{};
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const std::string_view name = entry->ifa_name;  // of an IPv4 address: its label, as eth0:1
    if (name.substr(0, name.find(':')) != interface) continue;
    there = true;
    if (entry->ifa_addr == nullptr) continue;
    int rank = 0;
    if (entry->ifa_addr->sa_family == AF_INET) rank = 3;
    if (entry->ifa_addr->sa_family == AF_INET6)
      rank = IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr) ? 1 : 2;
    if (rank <= best) continue;
    best = rank;
    std::memcpy(&found, entry->ifa_addr, rank == 3 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
  if (!there) refuse(interface, "there is none in this network namespace");
  if (best == 0) refuse(interface, "it has no IP address");
  return found;
}

// A payload of `length` bytes comes behind it; in others `length` says something else.
bool has_payload(const RailHeader& header) { return header.kind == RailFrame::data || header.kind == RailFrame::carry; }

RailHeader framed(RailHeader header, std::size_t payload_bytes) {
  if (has_payload(header)) header.length = static_cast<std::uint32_t>(payload_bytes);
  return header;
}

class SocketTransport final : public Transport {
 public:
  SocketTransport(std::string interface, std::size_t largest)
      : interface_(std::move(interface)), largest_(largest), own_(address_of(interface_)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_) refuse(interface_, std::string("epoll_create1: ") + std::strerror(errno));
    if (::getrandom(secret_.data(), secret_.size(), 0) != static_cast<ssize_t>(secret_.size()))
      refuse(interface_, std::string("getrandom: ") + std::strerror(errno));
    timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!timer_ || !watch(EPOLL_CTL_ADD, timer_.get(), EPOLLIN, kTimer))
      refuse(interface_, std::string("timerfd: ") + std::strerror(errno));
    listen();
    padding_ = std::min(kFullPackets * mtu(), kMostPadding);
  }

  ~SocketTransport() override {
    for (const auto& [peer, connection] : outgoing_) end(connection->socket);
    for (const auto& [id, connection] : incoming_) end(connection->socket);
    end(listener_socket_);
    watch(EPOLL_CTL_DEL, timer_.get(), 0, 0);
  }
  SocketTransport(const SocketTransport&) = delete;
  SocketTransport& operator=(const SocketTransport&) = delete;

  std::vector<std::byte> address() const override {
    Address address{kSocketAddress, secret_, {}};
    socklen_t size = sizeof address.socket;
    if (::getsockname(listener_socket_.get(), reinterpret_cast<sockaddr*>(&address.socket), &size) != 0)
      refuse(interface_, std::string("getsockname: ") + std::strerror(errno));
    const auto* first = reinterpret_cast<const std::byte*>(&address);
    return {first, first + sizeof address};
  }

  void set_listener(TransportListener* listener) override { listener_ = listener; }
  bool knows(MemoryKind kind) const override { return kind == MemoryKind::host; }
  void use_memory(std::span<std::byte> /*memory*/, MemoryKind kind) override {
    if (kind != MemoryKind::host) refuse(interface_, "TCP reaches no memory of GPUs");
  }

  void connect(std::uint32_t peer_nic, std::span<const std::byte> address) override {
    disconnect(peer_nic);
    const std::optional<Address> peer = read_address(address);
    if (!peer) return;
    auto connection = std::make_unique<Outgoing>();
    connection->peer = peer_nic;
    connection->socket = begin_connecting(peer->socket);
    if (!connection->socket) return;  // stays down; the proxy tries again
    const std::uint64_t id = next_id_++;
    connection->id = id;
    const Greeting greeting{peer->secret, id, padding_};
    const auto* first = reinterpret_cast<const std::byte*>(&greeting);
    connection->head.assign(first, first + sizeof greeting);
    connection->head.resize(sizeof greeting + padding_);
    if (!watch(EPOLL_CTL_ADD, connection->socket.get(), EPOLLOUT | EPOLLRDHUP, id)) return;
    connection->waits_for_room = true;
    outgoing_ids_.emplace(id, peer_nic);
    outgoing_.emplace(peer_nic, std::move(connection));
  }

  void disconnect(std::uint32_t peer_nic) override {
    const auto found = outgoing_.find(peer_nic);
    if (found == outgoing_.end()) return;
    const std::unique_ptr<Outgoing> connection = std::move(found->second);
    outgoing_ids_.erase(connection->id);
    outgoing_.erase(found);
    std::erase(lost_, peer_nic);
    end(connection->socket);
    give_up(*connection);
  }

  bool reconnects() const override { return true; }

  void send(std::uint32_t peer_nic, const RailHeader& header, std::span<const std::byte> payload, std::uint64_t token) override {
    const auto found = outgoing_.find(peer_nic);
    if (found == outgoing_.end() || found->second->failed) {
      if (token != 0) listener_->on_sent(token);
      return;
    }
    Outgoing& connection = *found->second;
    if (payload.empty() && token == 0) {
      if (connection.frames.size() == kMostFrames) return;
      if (connection.frames.empty()) held_.push_back(peer_nic);
      connection.frames.push_back(framed(header, 0));
      return;
    }
    connection.payloads.push_back({framed(header, payload.size()), payload, token});
    if (!connection.waits_for_room) write(connection);
  }

  void flush() override {
    for (const std::uint32_t peer : std::exchange(held_, {})) {
      const auto found = outgoing_.find(peer);
      if (found != outgoing_.end() && !found->second->waits_for_room && !found->second->failed) write(*found->second);
    }
  }

  bool progress() override {
    std::array<epoll_event, kMostEvents> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), kMostEvents, 0);
    bool moved = false;
    for (int i = 0; i < count; ++i) moved = handle(events[i].data.u64, events[i].events) || moved;
    if (!lost_.empty()) {
      moved = true;
      for (const std::uint32_t peer : std::exchange(lost_, {})) {
        if (const auto found = outgoing_.find(peer); found != outgoing_.end()) give_up(*found->second);
        if (listener_ != nullptr) listener_->on_peer_lost(peer);
      }
    }
    return moved;
  }

  int event_fd() const override { return epoll_.get(); }
  bool arm() override { return lost_.empty(); }  // else it is readable as long as anything is to be done

 private:
  struct Payload {
    RailHeader header;
    std::span<const std::byte> bytes;
    std::uint64_t token;
  };
  // To a peer: all that is sent to it.
  struct Outgoing {
    std::uint32_t peer = 0;
    std::uint64_t id = 0;
    Fd socket;
    bool failed = false;
    bool waits_for_room = false;  // or for the connection
    bool may_be_stuck = false;    // the kernel may have bytes that it has not sent
    // What has begun: as much of `head` and then of `body` as `written` says has gone out.
    std::vector<std::byte> head;
    std::span<const std::byte> body;
    std::uint64_t token = 0;
    std::size_t written = 0;
    // What has not: frames go before payloads.
    std::vector<RailHeader> frames;
    std::deque<Payload> payloads;
  };
  // From a peer, or from a stranger until its first frame has come.
  struct Incoming {
    Fd socket;
    Clock::time_point since;
    std::optional<std::uint32_t> peer;
    bool greeted = false;
    std::uint64_t number = 0;  // the peer's, of its connections
    std::array<std::byte, kReadAhead> ahead;
    std::size_t begin = 0, end = 0;  // of what has been read ahead
    // The payload that is being read, when `bytes` is not 0.
    RailHeader header;
    std::byte* where = nullptr;  // nullptr: it is thrown away
    std::size_t bytes = 0, have = 0;
    std::vector<std::byte> carried;
  };
  static constexpr std::uint64_t kListener = 0, kTimer = 1;

  bool watch(int what, int socket, std::uint32_t events, std::uint64_t id) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    return ::epoll_ctl(epoll_.get(), what, socket, &event) == 0;
  }

  // A child that this process has forked may have the descriptor, too: without this the connection would last as long as that, and wake
  // for ever who waits for events.
  void end(const Fd& socket) const {
    watch(EPOLL_CTL_DEL, socket.get(), 0, 0);
    ::shutdown(socket.get(), SHUT_RDWR);
  }

  void listen() {
    listener_socket_ = Fd(::socket(own_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_storage any_port = own_;
    port_of(any_port) = 0;
    if (!listener_socket_ || ::bind(listener_socket_.get(), reinterpret_cast<const sockaddr*>(&any_port), size_of(any_port)) != 0 ||
        ::listen(listener_socket_.get(), SOMAXCONN) != 0 || !watch(EPOLL_CTL_ADD, listener_socket_.get(), EPOLLIN, kListener))
      refuse(interface_, std::string("no socket can listen there: ") + std::strerror(errno));
  }

  std::uint32_t mtu() const {
    ifreq request{};
    interface_.copy(request.ifr_name, sizeof request.ifr_name - 1);
    return ::ioctl(listener_socket_.get(), SIOCGIFMTU, &request) == 0 && request.ifr_mtu > 0 ? static_cast<std::uint32_t>(request.ifr_mtu)
                                                                                             : 0;
  }

  // Where the process may not bind to an interface (before Linux 5.7, not root): whether the address that the kernel would send from is
  // ours.
  bool routed_here(const sockaddr_storage& peer) const {
    const Fd probe(::socket(own_.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    if (!probe || ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&peer), size_of(peer)) != 0 ||
        ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&from), &size) != 0)
      return false;
    if (own_.ss_family == AF_INET)
      return reinterpret_cast<const sockaddr_in&>(from).sin_addr.s_addr == reinterpret_cast<const sockaddr_in&>(own_).sin_addr.s_addr;
    return IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(from).sin6_addr,
                              &reinterpret_cast<const sockaddr_in6&>(own_).sin6_addr) != 0;
  }

  // Empty where it failed at once.
  Fd begin_connecting(sockaddr_storage peer) const {
    if (peer.ss_family != own_.ss_family) return {};
    // An address of a link means the link of whoever uses it.
    if (peer.ss_family == AF_INET6) {
      auto& to = reinterpret_cast<sockaddr_in6&>(peer);
      if (IN6_IS_ADDR_LINKLOCAL(&to.sin6_addr)) to.sin6_scope_id = ::if_nametoindex(interface_.c_str());
    }
    Fd socket(::socket(own_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) return {};
    const int on = 1, unsent = kUnsentBytes;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    // Through this NIC or not at all: what a machine's routes say of peers on other rails may be its management network.
    const bool bound =
        ::setsockopt(socket.get(), SOL_SOCKET, SO_BINDTODEVICE, interface_.c_str(), static_cast<socklen_t>(interface_.size())) == 0;
    if (!bound && !routed_here(peer)) return {};
    ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    sockaddr_storage from = own_;
    port_of(from) = 0;
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), size_of(from)) != 0) return {};
    const int done = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&peer), size_of(peer));
    if (done != 0 && errno != EINPROGRESS) return {};
    return socket;
  }

  bool handle(std::uint64_t id, std::uint32_t events) {
    if (id == kListener) return accept_all();
    if (id == kTimer) return on_timer();
    if (const auto peer = outgoing_ids_.find(id); peer != outgoing_ids_.end()) {
      Outgoing& connection = *outgoing_.at(peer->second);
      if (connection.failed) return false;
      if ((events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0) {
        lose(connection);
      } else {
        connection.waits_for_room = false;
        if (watch(EPOLL_CTL_MOD, connection.socket.get(), EPOLLRDHUP, id))
          write(connection);
        else
          lose(connection);
      }
      return true;
    }
    const auto found = incoming_.find(id);
    if (found == incoming_.end()) return false;
    if (!read(*found->second)) close_incoming(found);
    return true;
  }

  // --- Sending

  void lose(Outgoing& connection) {
    if (connection.failed) return;
    connection.failed = true;
    watch(EPOLL_CTL_DEL, connection.socket.get(), 0, connection.id);
    lost_.push_back(connection.peer);
  }

  // What is queued is not read any more.
  void give_up(Outgoing& connection) const {
    std::vector<std::uint64_t> tokens{std::exchange(connection.token, 0)};
    for (const Payload& payload : std::exchange(connection.payloads, {})) tokens.push_back(payload.token);
    for (const std::uint64_t token : tokens) {
      if (token != 0 && listener_ != nullptr) listener_->on_sent(token);
    }
  }

  // The next of what is queued becomes what has begun. False when there is nothing.
  static bool begin_next(Outgoing& connection) {
    if (connection.frames.empty() && connection.payloads.empty()) return false;
    const auto add = [&](const RailHeader& header) {
      const auto* first = reinterpret_cast<const std::byte*>(&header);
      connection.head.insert(connection.head.end(), first, first + sizeof header);
    };
    connection.head.clear();
    connection.body = {};
    connection.token = 0;
    connection.written = 0;
    for (const RailHeader& frame : connection.frames) add(frame);
    connection.frames.clear();
    if (connection.payloads.empty()) return true;
    const Payload& next = connection.payloads.front();
    add(next.header);
    connection.body = next.bytes;
    connection.token = next.token;
    connection.payloads.pop_front();
    return true;
  }

  void write(Outgoing& connection) {
    for (;;) {
      const std::size_t total = connection.head.size() + connection.body.size();
      if (connection.written == total) {
        if (const std::uint64_t token = std::exchange(connection.token, 0); token != 0 && listener_ != nullptr) listener_->on_sent(token);
        if (!begin_next(connection)) return;
        continue;
      }
      iovec parts[2];
      int count = 0;
      if (connection.written < connection.head.size())
        parts[count++] = {connection.head.data() + connection.written, connection.head.size() - connection.written};
      const std::size_t of_body = connection.written - std::min(connection.written, connection.head.size());
      if (of_body < connection.body.size())
        parts[count++] = {const_cast<std::byte*>(connection.body.data()) + of_body, connection.body.size() - of_body};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = static_cast<std::size_t>(count);
      const ssize_t sent = ::sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL);
      if (sent > 0) {
        connection.written += static_cast<std::size_t>(sent);
        connection.may_be_stuck = true;
        look_for_stuck();
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        connection.waits_for_room = true;
        if (!watch(EPOLL_CTL_MOD, connection.socket.get(), EPOLLOUT | EPOLLRDHUP, connection.id)) lose(connection);
        return;
      } else if (errno != EINTR) {
        lose(connection);
        return;
      }
    }
  }

  void look_for_stuck() {
    const auto now = Clock::now();
    look_after_ = kLook;
    if (look_at_ && *look_at_ <= now + kLook) return;
    look_at_ = now + kLook;
    set_timer(now);
  }

  void push_stuck(Clock::time_point now) {
    look_at_.reset();
    for (const auto& [peer, connection] : outgoing_) {
      if (!connection->may_be_stuck || connection->failed) continue;
      int unsent = 0;
      tcp_info info{};
      socklen_t size = sizeof info;
      const int socket = connection->socket.get(), on = 1;
      connection->may_be_stuck = ::ioctl(socket, SIOCOUTQNSD, &unsent) == 0 && unsent != 0;
      if (!connection->may_be_stuck) continue;
      look_at_ = now + look_after_;
      if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked == 0)
        ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // again: it sends what it may
    }
    look_after_ = std::min(2 * look_after_, kLongestLook);
  }

  // For whichever is first of what waits for it.
  void set_timer(Clock::time_point now) const {
    if (!look_at_ && !accept_at_) return;
    const auto first = std::min(look_at_.value_or(Clock::time_point::max()), accept_at_.value_or(Clock::time_point::max()));
    const auto ns = std::max<std::int64_t>(1, std::chrono::nanoseconds(first - now).count());  // 0 would stop it
    const itimerspec once{{}, {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)}};
    ::timerfd_settime(timer_.get(), 0, &once, nullptr);
  }

  bool on_timer() {
    std::uint64_t expirations = 0;
    [[maybe_unused]] const auto read = ::read(timer_.get(), &expirations, sizeof expirations);
    const auto now = Clock::now();
    if (look_at_ && *look_at_ <= now) push_stuck(now);
    const bool resumes = accept_at_ && *accept_at_ <= now;
    if (resumes) resume_accepting(now);
    set_timer(now);
    return resumes;
  }

  // --- Receiving

  bool accept_all() {
    for (bool moved = false;; moved = true) {
      Fd socket(::accept4(listener_socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          watch(EPOLL_CTL_DEL, listener_socket_.get(), 0, kListener);
          accept_at_ = Clock::now() + kAcceptPause;
          set_timer(Clock::now());
        }
        return moved;
      }
      close_silent_strangers();
      // A peer that has vanished in the middle of a payload shall not keep its place for ever.
      const int on = 1;
      ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &kKeepIdleS, sizeof kKeepIdleS);
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, &kKeepIntervalS, sizeof kKeepIntervalS);
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, &kKeepProbes, sizeof kKeepProbes);
      const std::uint64_t id = next_id_++;
      if (!watch(EPOLL_CTL_ADD, socket.get(), EPOLLIN | EPOLLRDHUP, id)) continue;
      auto connection = std::make_unique<Incoming>();
      connection->socket = std::move(socket);
      connection->since = Clock::now();
      incoming_.emplace(id, std::move(connection));
    }
  }

  void resume_accepting(Clock::time_point now) {
    accept_at_.reset();
    if (!watch(EPOLL_CTL_ADD, listener_socket_.get(), EPOLLIN, kListener)) accept_at_ = now + kAcceptPause;
  }

  // Who connects and says nothing shall not keep descriptors. Peers of a large job may all be there before the first of them is read.
  void close_silent_strangers() {
    const auto stranger = [](const auto& entry) { return !entry.second->greeted; };
    if (static_cast<std::size_t>(std::count_if(incoming_.begin(), incoming_.end(), stranger)) < kMostStrangers) return;
    const auto late = Clock::now() - kPatience;
    for (auto entry = incoming_.begin(); entry != incoming_.end();) {
      const auto next = std::next(entry);
      if (stranger(*entry) && entry->second->since < late) close_incoming(entry);
      entry = next;
    }
  }

  void close_incoming(std::map<std::uint64_t, std::unique_ptr<Incoming>>::iterator found) {
    const std::unique_ptr<Incoming> connection = std::move(found->second);
    incoming_.erase(found);
    end(connection->socket);
    if (connection->bytes != 0 && connection->where != nullptr && connection->header.kind == RailFrame::data && listener_ != nullptr)
      listener_->on_delivered(connection->header, connection->where, connection->bytes, false);
  }

  // False when the connection is over.
  bool read(Incoming& in) {
    iovec parts[2];
    int count = 0;
    const std::size_t missing = in.bytes - in.have;
    if (missing != 0) {
      if (in.where != nullptr)
        parts[count++] = {in.where + in.have, missing};
      else
        parts[count++] = {thrown_away_.data(), std::min(missing, thrown_away_.size())};
    }
    // Behind a part of what is thrown away comes more of it.
    if (missing == 0 || parts[0].iov_len == missing) parts[count++] = {in.ahead.data() + in.end, in.ahead.size() - in.end};
    const ssize_t got = ::readv(in.socket.get(), parts, count);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    const std::size_t of_payload = std::min(static_cast<std::size_t>(got), missing == 0 ? 0 : parts[0].iov_len);
    in.have += of_payload;
    in.end += static_cast<std::size_t>(got) - of_payload;
    if (missing != 0) {
      if (in.have < in.bytes) return true;
      end_payload(in);
    }
    const bool good = parse(in);
    std::memmove(in.ahead.data(), in.ahead.data() + in.begin, in.end - in.begin);
    in.end -= std::exchange(in.begin, 0);
    return good;
  }

  template <typename T>
  static bool take(Incoming& in, T& value) {
    if (in.end - in.begin < sizeof value) return false;
    std::memcpy(&value, in.ahead.data() + in.begin, sizeof value);
    in.begin += sizeof value;
    return true;
  }

  // What has been read ahead. False when it is not what a peer sends.
  bool parse(Incoming& in) {
    if (!in.greeted) {
      Greeting greeting;
      if (!take(in, greeting)) return true;
      if (greeting.secret != secret_ || greeting.padding > kMostPadding) return false;
      in.greeted = true;
      in.number = greeting.number;
      if (greeting.padding != 0) begin_payload(in, greeting.padding);
    }
    while (in.bytes == 0 && take(in, in.header)) {
      if (!in.peer && !introduce(in)) return false;
      if (in.header.from_nic != in.peer) return false;
      if (!has_payload(in.header) || in.header.length == 0) {
        if (listener_ != nullptr) listener_->on_delivered(in.header, nullptr, 0, true);
        continue;
      }
      if (in.header.length > (in.header.kind == RailFrame::carry ? kMaxCarryBytes : largest_)) return false;
      begin_payload(in, in.header.length);
    }
    return true;
  }

  // What comes on an older connection of the peer is nobody's any more. False where this is the older one.
  bool introduce(Incoming& in) {
    std::uint64_t& newest = newest_of_[in.header.from_nic];
    if (in.number < newest) return false;
    newest = in.number;
    for (auto other = incoming_.begin(); other != incoming_.end();) {
      const auto next = std::next(other);
      if (other->second->peer == in.header.from_nic) close_incoming(other);
      other = next;
    }
    in.peer = in.header.from_nic;
    return true;
  }

  // Before the first header: padding, which nobody wants.
  void begin_payload(Incoming& in, std::size_t bytes) {
    in.bytes = bytes;
    in.where = nullptr;
    if (in.header.kind == RailFrame::carry) {
      in.carried.resize(kMaxCarryBytes);
      in.where = in.carried.data();
    } else if (in.header.kind == RailFrame::data && listener_ != nullptr) {
      in.where = listener_->on_incoming(in.header, in.bytes);
    }
    in.have = std::min(in.bytes, in.end - in.begin);
    if (in.where != nullptr) std::memcpy(in.where, in.ahead.data() + in.begin, in.have);
    in.begin += in.have;
    if (in.have == in.bytes) end_payload(in);
  }

  void end_payload(Incoming& in) const {
    const std::size_t bytes = std::exchange(in.bytes, 0);
    in.have = 0;
    if (listener_ == nullptr || in.where == nullptr) return;
    if (in.header.kind == RailFrame::carry)
      listener_->on_carried(in.header, {in.where, bytes});
    else
      listener_->on_delivered(in.header, in.where, bytes, true);
  }

  const std::string interface_;
  const std::size_t largest_;
  const sockaddr_storage own_;
  std::uint64_t padding_ = 0;
  Secret secret_{};
  Fd epoll_;
  Fd listener_socket_;
  Fd timer_;
  std::optional<Clock::time_point> accept_at_;  // when accepting goes on
  std::optional<Clock::time_point> look_at_;    // when to look at connections that may be stuck
  std::chrono::milliseconds look_after_{kLook};
  TransportListener* listener_ = nullptr;
  std::uint64_t next_id_ = kTimer + 1;
  std::unordered_map<std::uint32_t, std::unique_ptr<Outgoing>> outgoing_;  // by peer
  std::unordered_map<std::uint64_t, std::uint32_t> outgoing_ids_;
  std::map<std::uint64_t, std::unique_ptr<Incoming>> incoming_;  // by id
  std::unordered_map<std::uint32_t, std::uint64_t> newest_of_;   // by peer: the number of its newest connection
  std::vector<std::uint32_t> held_;                              // peers for which frames wait
  std::vector<std::uint32_t> lost_;
  std::array<std::byte, 64 << 10> thrown_away_;
};

}  // namespace

int socket_family(std::span<const std::byte> address) {
  const std::optional<Address> found = read_address(address);
  return found ? found->socket.ss_family : 0;
}

std::unique_ptr<Transport> make_socket_transport(const std::string& interface, std::size_t largest) {
  return std::make_unique<SocketTransport>(interface, largest);
}

}  // namespace railweave::engine
