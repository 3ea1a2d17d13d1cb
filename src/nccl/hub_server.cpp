#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "background.hpp"
#include "hub.hpp"
#include "hub_frame.hpp"
#include "log.hpp"

namespace railweave::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// Descriptors that callers who have not said whose they are leave to the program, which may not have many; of few a quarter.
constexpr rlim_t kLeftToProgram = 256;
// While they take more, they are hung up on after so small a part of the usual time: a minute of five.
constexpr int kPatienceInACrowd = 5;

// Descriptors are given out from the lowest on, so one's number says how many were in use when it came.
rlim_t first_of_the_last() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return RLIM_INFINITY;
  return limit.rlim_cur - std::min(kLeftToProgram, limit.rlim_cur / 4);
}

// Who waits for a descriptor, or for memory, is looked at again after this time: poll() would say at once, and for ever, that somebody is
// there.
constexpr auto kFullPause = std::chrono::milliseconds(100);

struct Connection {
  FileDescriptor socket;
  Clock::time_point since = Clock::now();
  std::string in;
  // What a round's ranks are told is the same for all of them, some 100 bytes for each of them, so they share one copy.
  std::deque<std::shared_ptr<const std::string>> out;
  std::size_t sent = 0;  // of out's first
  bool known = false;    // has shown a nonce that is admitted
  bool closing = false;
};

// How a round ended that did not complete, for all its ranks, late ones too.
struct Expired {
  std::uint32_t first = 0;  // the first rank that was there
  bool left = false;        // some had come and went away
  std::string missing;      // for people
};

struct Gathering {
  std::uint32_t world = 0;
  Clock::time_point deadline;
  std::map<std::uint32_t, std::pair<Connection*, std::string>> present;  // by rank
};

std::string named(const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}

// Ranks that left explain a round's end; else those that never came.
Expired how_it_ended(const Gathering& gathering) {
  std::vector<std::uint32_t> left, absent;
  Expired ended{gathering.world, false, ""};
  for (std::uint32_t rank = 0; rank < gathering.world; ++rank) {
    const auto at = gathering.present.find(rank);
    if (at == gathering.present.end())
      absent.push_back(rank);
    else if (at->second.first->closing)
      left.push_back(rank);
    else
      ended.first = std::min(ended.first, rank);
  }
  ended.left = !left.empty();
  ended.missing = named(left.empty() ? absent : left);
  return ended;
}

FileDescriptor listen_anywhere(std::uint16_t& port) {
  for (const int family : {AF_INET6, AF_INET}) {
    FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) continue;
    sockaddr_in6 six{};
    sockaddr_in four{};
    six.sin6_family = AF_INET6;
    four.sin_family = AF_INET;
    const bool is_six = family == AF_INET6;
    const int off = 0;
    if (is_six) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    const auto* address = is_six ? reinterpret_cast<const sockaddr*>(&six) : reinterpret_cast<const sockaddr*>(&four);
    if (::bind(socket.get(), address, is_six ? sizeof six : sizeof four) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) continue;
    sockaddr_in6 bound{};
    socklen_t length = sizeof bound;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    port = ntohs(bound.sin6_port);  // sin_port lies at the same place
    return socket;
  }
  throw std::system_error(errno, std::generic_category(), "no socket to listen on");
}

}  // namespace

class Hub::Server {
 public:
  explicit Server(std::chrono::milliseconds stranger) : stranger_(stranger), listener_(listen_anywhere(port_)) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    stop_read_ = FileDescriptor(ends[0]);
    stop_write_ = FileDescriptor(ends[1]);
    thread_ = signal_free_thread([this] { run(); });
  }

  ~Server() {
    [[maybe_unused]] const ssize_t ignored = ::write(stop_write_.get(), "", 1);
    thread_.join();
  }

  std::uint16_t port() const { return port_; }

  void admit(const std::array<std::uint8_t, 16>& nonce) {
    const std::lock_guard lock(mutex_);
    admitted_.insert(nonce);
  }

 private:
  // An exception would end the program. What a turn without memory has left undone, the next one does.
  void run() {
    for (;;) {
      try {
        if (!turn()) return;
      } catch (const std::bad_alloc&) {
        pollfd stop{stop_read_.get(), POLLIN, 0};
        if (::poll(&stop, 1, static_cast<int>(kFullPause.count())) > 0) return;
      }
    }
  }

  // False: it is to stop.
  bool turn() {
    polled_.assign({{stop_read_.get(), POLLIN, 0}, {listener_.get(), static_cast<short>(full_ ? 0 : POLLIN), 0}});
    for (const Connection& connection : connections_)
      polled_.push_back({connection.socket.get(), static_cast<short>(connection.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    const int ready = ::poll(polled_.data(), polled_.size(), time_left());
    if ((ready < 0 && errno != EINTR) || polled_[0].revents != 0) return false;
    expire();
    std::size_t at = 2;
    for (Connection& connection : connections_) serve(connection, polled_[at++].revents);
    if (full_ || polled_[1].revents != 0) accept_all();
    hang_up();
    forget_closed();
    return true;
  }

  int time_left() const {
    auto first = full_ ? Clock::now() + kFullPause : Clock::time_point::max();
    for (const auto& [name, gathering] : gatherings_) first = std::min(first, gathering.deadline);
    for (const Connection& connection : connections_) {
      if (!connection.known) first = std::min(first, connection.since + stranger_);
    }
    if (first == Clock::time_point::max()) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(first - Clock::now()).count();
    return left < 0 ? 0 : static_cast<int>(left) + 1;
  }

  void accept_all() {
    for (;;) {
      crowded_ = is_crowded();
      full_ = crowded_;
      if (full_) return;
      std::list<Connection> caller(1);  // first: without memory he waits at the listener
      FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      full_ = !socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
      if (full_ && !told_) {  // that they are absent is all that the ranks hear, if it lasts
        told_ = true;
        log(LogLevel::warn, std::string("ranks that call this process to meet here have to wait: ") + std::strerror(errno) +
                                " (limits: ulimit -n, fs.file-max)");
      }
      if (!socket) return;
      caller.front().socket = std::move(socket);
      connections_.splice(connections_.end(), caller);
    }
  }

  // Callers who have said nothing are most, and have come to the program's last descriptors: others wait at the listener until these have
  // said whose they are, or are hung up on.
  bool is_crowded() const {
    const auto strangers = std::ranges::count_if(connections_, [](const Connection& each) { return !each.known; });
    if (2 * static_cast<std::size_t>(strangers) <= connections_.size()) return false;
    return std::ranges::any_of(connections_, [last = first_of_the_last()](const Connection& each) {
      return !each.known && static_cast<rlim_t>(each.socket.get()) >= last;
    });
  }

  void serve(Connection& connection, short events) {
    try {
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read(connection);
    } catch (const std::bad_alloc&) {
      connection.closing = true;  // what it said is lost: it hears that, and the others of its round that it has left
    }
    flush(connection);
  }

  void read(Connection& connection) {
    char buffer[4096];
    bool ended = false;
    while (!ended) {
      const ssize_t count = ::recv(connection.socket.get(), buffer, sizeof buffer, 0);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (count > 0) connection.in.append(buffer, static_cast<std::size_t>(count));
      ended = count <= 0 || connection.in.size() > sizeof(JoinFrame) + kMaxName + kMaxBlob;
    }
    take_frames(connection);  // also of who has gone since: the others of the round are to hear of it
    connection.closing |= ended;
  }

  void take_frames(Connection& connection) {
    while (!connection.closing && connection.in.size() >= sizeof(JoinFrame)) {
      JoinFrame frame;
      std::memcpy(&frame, connection.in.data(), sizeof frame);
      if (frame.magic != kHubMagic || frame.name_bytes > kMaxName || frame.blob_bytes > kMaxBlob) {
        connection.closing = true;
        return;
      }
      const std::size_t bytes = sizeof frame + frame.name_bytes + frame.blob_bytes;
      if (connection.in.size() < bytes) return;
      join(connection, frame, connection.in.substr(sizeof frame, frame.name_bytes),
           connection.in.substr(sizeof frame + frame.name_bytes, frame.blob_bytes));
      connection.in.erase(0, bytes);
    }
  }

  bool admitted(const std::uint8_t (&nonce)[16]) {
    std::array<std::uint8_t, 16> key;
    std::memcpy(key.data(), nonce, sizeof nonce);
    const std::lock_guard lock(mutex_);
    return admitted_.contains(key);
  }

  void join(Connection& connection, const JoinFrame& frame, const std::string& name, std::string blob) {
    connection.known = connection.known || admitted(frame.nonce);
    if (!admitted(frame.nonce) || frame.world == 0 || frame.world > kMaxWorld || frame.rank >= frame.world)
      return answer(connection, framed(RoundStatus::refused));
    if (const auto ended = expired_.find(name); ended != expired_.end()) return answer(connection, framed(ended->second));
    auto [at, fresh] = gatherings_.try_emplace(name);
    Gathering& gathering = at->second;
    if (fresh) {
      gathering.world = frame.world;
      gathering.deadline = Clock::now() + std::chrono::milliseconds(frame.limit_ms);
    }
    if (gathering.world != frame.world || gathering.present.contains(frame.rank)) return answer(connection, framed(RoundStatus::refused));
    gathering.present.emplace(frame.rank, std::pair(&connection, std::move(blob)));
    if (gathering.present.size() == gathering.world) {
      complete(gathering);
      gatherings_.erase(at);
    }
  }

  void complete(Gathering& gathering) {
    std::string bytes = framed(RoundStatus::complete);
    for (const auto& [rank, entry] : gathering.present) put(bytes, entry.second);
    answer(gathering, std::move(bytes));
  }

  void expire() {
    const auto now = Clock::now();
    for (auto at = gatherings_.begin(); at != gatherings_.end();) {
      if (at->second.deadline > now) {
        ++at;
        continue;
      }
      Expired ended = how_it_ended(at->second);
      std::string bytes = framed(ended);
      expired_.insert_or_assign(at->first, std::move(ended));
      answer(at->second, std::move(bytes));
      at = gatherings_.erase(at);
    }
  }

  static void put(std::string& bytes, const std::string& text) {
    const auto length = static_cast<std::uint32_t>(text.size());
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += text;
  }

  static std::string framed(RoundStatus status, const Expired& ended = {}) {
    AnswerFrame frame;
    frame.status = static_cast<std::uint32_t>(status);
    frame.first = ended.first;
    frame.left = ended.left ? 1 : 0;
    return {reinterpret_cast<const char*>(&frame), sizeof frame};
  }

  static std::string framed(const Expired& ended) {
    std::string bytes = framed(RoundStatus::expired, ended);
    put(bytes, ended.missing);
    return bytes;
  }

  static void answer(const Gathering& gathering, std::string bytes) {
    const auto shared = std::make_shared<const std::string>(std::move(bytes));
    for (const auto& [rank, entry] : gathering.present) answer(*entry.first, shared);
  }

  static void answer(Connection& connection, std::string bytes) {
    answer(connection, std::make_shared<const std::string>(std::move(bytes)));
  }

  // All of a round's ranks are told: who cannot be hears that by the end of its connection, and the others what they are to hear.
  static void answer(Connection& connection, std::shared_ptr<const std::string> bytes) noexcept {
    try {
      connection.out.push_back(std::move(bytes));
    } catch (const std::bad_alloc&) {
      connection.closing = true;
    }
    flush(connection);
  }

  static void flush(Connection& connection) {
    while (!connection.out.empty() && !connection.closing) {
      const std::string& bytes = *connection.out.front();
      const ssize_t count = ::send(connection.socket.get(), bytes.data() + connection.sent, bytes.size() - connection.sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count < 0) {
        connection.closing = true;
      } else if ((connection.sent += static_cast<std::size_t>(count)) == bytes.size()) {
        connection.out.pop_front();
        connection.sent = 0;
      }
    }
  }

  void hang_up() {
    const auto now = Clock::now();
    const auto patience = crowded_ ? stranger_ / kPatienceInACrowd : stranger_;
    for (Connection& connection : connections_) connection.closing |= !connection.known && now - connection.since >= patience;
  }

  // A rank that has gone while others wait is absent: its round cannot complete, and ends now instead of at its deadline.
  void forget_closed() {
    for (auto& [name, gathering] : gatherings_) {
      for (const auto& [rank, entry] : gathering.present) {
        if (entry.first->closing) gathering.deadline = Clock::time_point::min();
      }
    }
    expire();
    connections_.remove_if([](const Connection& connection) { return connection.closing; });
  }

  const std::chrono::milliseconds stranger_;
  std::uint16_t port_ = 0;
  FileDescriptor listener_, stop_read_, stop_write_;
  bool full_ = false;     // there is no descriptor for who waits at the listener...
  bool crowded_ = false;  // ... as callers who have said nothing have those
  bool told_ = false;     // that it is full
  std::mutex mutex_;
  std::set<std::array<std::uint8_t, 16>> admitted_;  // guarded by mutex_
  std::vector<pollfd> polled_;                       // stop, listener, then connections_
  std::list<Connection> connections_;                // list: gatherings point into it
  std::map<std::string, Gathering> gatherings_;
  std::map<std::string, Expired> expired_;  // so that a late rank learns what the others were told; some bytes for each of these rounds
  std::thread thread_;
};

Hub::Hub(std::chrono::milliseconds stranger) : server_(std::make_unique<Server>(stranger)) {}
Hub::~Hub() = default;
std::uint16_t Hub::port() const noexcept { return server_->port(); }
void Hub::admit(const std::array<std::uint8_t, 16>& nonce) { server_->admit(nonce); }

}  // namespace railweave::nccl
