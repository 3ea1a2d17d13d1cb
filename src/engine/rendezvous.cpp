#include "rendezvous.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <system_error>
#include <thread>

#include "folder.hpp"
#include "layout.hpp"
#include "railweave/engine/error.hpp"
#include "shared_memory.hpp"
#include "wire.hpp"

namespace railweave::engine {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPollInterval = std::chrono::milliseconds(2);
constexpr auto kAskEvery = std::chrono::milliseconds(100);  // a person who presses Ctrl-C feels no delay; others are kept from little
constexpr std::uint64_t kMaxBlob = 64u << 20;
// An address that does not answer must not keep a rank from the host's next one.
constexpr auto kMostOfAddress = std::chrono::seconds(5);
// For ranks that read the last round while others know already that the exchange is refused: some milliseconds, if they live.
constexpr auto kRefusedWait = std::chrono::seconds(1);

std::string list_ranks(const std::vector<std::uint32_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > 8) text += " and " + std::to_string(ranks.size() - 8) + " more";
  return text;
}

[[noreturn]] void missing(const std::vector<std::uint32_t>& ranks, const std::string& round, std::chrono::milliseconds limit) {
  throw BootstrapError((ranks.size() == 1 ? "rank " : "ranks ") + list_ranks(ranks) + " did not reach '" + round + "' within " +
                       std::to_string(limit.count()) + " ms; start all ranks with the same world and rendezvous, or raise " +
                       "RAILWEAVE_BOOTSTRAP_MS (under the NCCL shim RAILWEAVE_SHIM_WAIT_MS)");
}

bool lacks_descriptors_or_memory(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

// `error` is 0 where the stream came to its end.
[[noreturn]] void lost(std::uint32_t rank, const std::string& round, int error) {
  const std::string who = "rank " + std::to_string(rank);
  if (error == 0 || error == ECONNRESET || error == EPIPE) {
    throw BootstrapError(who + " closed its connection before all ranks had gone through '" + round +
                         "': its process has ended, its own time limit was over, or what it says itself has ended its exchange");
  }
  throw BootstrapError("the connection to " + who + " broke during '" + round + "': " + std::generic_category().message(error));
}

// One file a rank and round, made visible by rename. Rank 0 draws a name for the run, which is part of the files' names: an earlier run
// that died may have left files behind. The others learn it from a list that answers what they have drawn themselves.
class FileRendezvous final : public Rendezvous {
 public:
  FileRendezvous(std::filesystem::path directory, std::uint32_t rank, std::uint32_t world, std::chrono::milliseconds limit,
                 Interruption interruption)
      : Rendezvous(std::move(interruption)), directory_(std::move(directory)), rank_(rank), world_(world), limit_(limit), token_(draw()) {
    std::error_code error;
    std::filesystem::create_directories(directory_, error);
    if (error) throw BootstrapError("rendezvous directory " + directory_.string() + ": " + error.message());
    if (rank_ != 0) return;
    run_ = token_;
    runs_.insert(run_);
    for (const std::string& name : names_in(directory_)) {
      if (const auto run = run_of(directory_ / name)) runs_.insert(*run);
    }
  }

  // Without finish(): the exchange is refused. Where all ranks came to the last round they know why, and nobody comes to another.
  ~FileRendezvous() override {
    if (!together_) return;
    try {
      write(of_run("finished", rank_), {});
      if (rank_ == 0 && all_finished(kRefusedWait, [] {})) remove_files();
    } catch (const std::exception&) {  // then they stay, which does no harm
    }
  }
  FileRendezvous(const FileRendezvous&) = delete;
  FileRendezvous& operator=(const FileRendezvous&) = delete;

  std::vector<Blob> all_gather(const std::string& round, const Blob& mine) override {
    const auto deadline = Clock::now() + limit_;
    together_ = false;
    if (run_.empty()) join(round, deadline);
    write(of_run(round, rank_), mine);
    std::vector<Blob> blobs(world_);
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      while (!read(of_run(round, rank), blobs[rank])) {
        if (rank_ == 0 && !all_joined_) answer();
        if (Clock::now() > deadline) missing(absent(round), round, limit_);
        ask();
        std::this_thread::sleep_for(kPollInterval);
      }
    }
    all_joined_ = together_ = true;
    return blobs;
  }

  // Rank 0 removes the files when all ranks have said that they have read them, and what earlier runs left.
  void finish() override {
    together_ = false;
    write(of_run("finished", rank_), {});
    if (rank_ != 0) return;
    finishing_ = true;
    all_finished(limit_, [this] { ask(); });
    remove_files();
  }

 private:
  static constexpr std::string_view kPrefix = "railweave-", kPart = ".part";

  static std::string draw() {
    std::random_device random;
    return std::to_string((std::uint64_t{random()} << 32) | random());
  }

  template <typename Ask>
  bool all_finished(std::chrono::milliseconds limit, Ask ask) const {
    const auto deadline = Clock::now() + limit;
    while (!absent("finished").empty()) {
      if (Clock::now() > deadline) return false;
      ask();
      std::this_thread::sleep_for(kPollInterval);
    }
    return true;
  }

  // Only what this rank wrote, so that the others can still say who is missing; but nobody is to come after the last round.
  void withdraw() override {
    together_ = false;
    if (finishing_) return remove_files();
    std::error_code ignored;
    for (const std::filesystem::path& file : written_) {
      // Names that each run uses: another one's may lie there by now.
      const bool shared = file == path("run") || file == hello(rank_);
      if (Blob said; shared && (!read(file, said) || first_word(said) != token_)) continue;
      std::filesystem::remove(file, ignored);
    }
  }

  // Ranks of the next run may be writing already. A hello that one of them finds removed it says again.
  void remove_files() const {
    std::error_code ignored;
    for (const std::string& name : names_in(directory_)) {
      const auto run = run_of(directory_ / name);
      const bool over = run ? runs_.contains(*run) : name.starts_with(std::string(kPrefix) + "hello.");
      if (over && !name.ends_with(kPart)) std::filesystem::remove(directory_ / name, ignored);
    }
  }

  // Whose list that is, or file of a round; nothing for other files.
  std::optional<std::string> run_of(const std::filesystem::path& file) const {
    const std::string name = file.filename().string();
    Blob list;
    if (file == path("run") && read(file, list)) return first_word(list);
    const auto end = name.find('-', kPrefix.size());
    if (!name.starts_with(kPrefix) || end == std::string::npos) return std::nullopt;
    return name.substr(kPrefix.size(), end - kPrefix.size());
  }

  static std::string text_of(const Blob& blob) { return {reinterpret_cast<const char*>(blob.data()), blob.size()}; }
  static std::string first_word(const Blob& list) {
    const std::string text = text_of(list);
    return text.substr(0, text.find(' '));
  }

  std::filesystem::path path(const std::string& name) const { return directory_ / (std::string(kPrefix) + name); }
  std::filesystem::path of_run(const std::string& round, std::uint32_t rank) const {
    return path(run_ + "-" + round + "." + std::to_string(rank));
  }
  std::filesystem::path hello(std::uint32_t rank) const { return path("hello." + std::to_string(rank)); }

  // Says hello until rank 0's list has this rank's answer.
  void join(const std::string& round, Clock::time_point deadline) {
    const auto* token = reinterpret_cast<const std::byte*>(token_.data());
    write(hello(rank_), {token, token + token_.size()});
    for (Blob list;; list.clear()) {
      if (read(path("run"), list)) {
        std::istringstream words(text_of(list));
        std::string run, word;
        words >> run;
        for (std::uint32_t rank = 1; rank <= rank_ && words >> word; ++rank) {
          if (rank == rank_ && word == token_) run_ = run;
        }
      }
      std::error_code error;
      if (!std::filesystem::exists(hello(rank_), error)) write(hello(rank_), {token, token + token_.size()});
      if (Clock::now() > deadline) missing({0}, round, limit_);
      if (!run_.empty()) return;
      ask();
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  // The name of the run, and what each rank that said hello has drawn; a later one may have come instead of a dead run's.
  void answer() {
    std::string list = run_;
    for (std::uint32_t rank = 1; rank < world_; ++rank) {
      Blob token;
      const bool came = read(hello(rank), token) && !token.empty();
      list += " " + (came ? text_of(token) : "-");
    }
    if (list == answered_) return;
    answered_ = list;
    const auto* bytes = reinterpret_cast<const std::byte*>(list.data());
    write(path("run"), {bytes, bytes + list.size()});
  }

  void write(const std::filesystem::path& target, const Blob& blob) {
    auto temporary = target;
    temporary += kPart;
    {
      std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
      if (!blob.empty()) file.write(reinterpret_cast<const char*>(blob.data()), static_cast<std::streamsize>(blob.size()));
      if (!file.flush()) throw BootstrapError("cannot write " + temporary.string() + ": " + std::generic_category().message(errno));
    }
    std::error_code error;
    std::filesystem::rename(temporary, target, error);
    if (error) throw BootstrapError("cannot rename " + temporary.string() + ": " + error.message());
    written_.insert(target);
  }

  static bool read(const std::filesystem::path& path, Blob& blob) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return false;
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    blob.resize(text.size());
    if (!text.empty()) std::memcpy(blob.data(), text.data(), text.size());
    return true;
  }

  std::vector<std::uint32_t> absent(const std::string& round) const {
    std::vector<std::uint32_t> ranks;
    std::error_code error;
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      if (!std::filesystem::exists(of_run(round, rank), error)) ranks.push_back(rank);
    }
    return ranks;
  }

  std::filesystem::path directory_;
  std::uint32_t rank_, world_;
  std::chrono::milliseconds limit_;
  std::string token_;           // what this rank has drawn
  std::string run_;             // rank 0's; empty until it is known
  std::set<std::string> runs_;  // rank 0: this one, and those that had files here when it began
  std::string answered_;        // rank 0: the list as it was written last
  std::set<std::filesystem::path> written_;
  bool all_joined_ = false;
  bool finishing_ = false;  // rank 0: waits for the others to have read the last round
  bool together_ = false;   // all ranks came to the last round, and finish() has not been called
};

class TcpRendezvous final : public Rendezvous {
 public:
  TcpRendezvous(const std::string& host, const std::string& port, std::uint32_t rank, std::uint32_t world, std::chrono::milliseconds limit,
                Interruption interruption)
      : Rendezvous(std::move(interruption)), name_("tcp://" + host + ":" + port), rank_(rank), world_(world), limit_(limit) {
    deadline_ = Clock::now() + limit_;
    if (world_ == 1) return;
    if (rank_ == 0)
      listen(host, port);
    else
      connect(host, port);
  }

  std::vector<Blob> all_gather(const std::string& round, const Blob& mine) override {
    deadline_ = Clock::now() + limit_;
    std::vector<Blob> blobs(world_);
    if (rank_ != 0) {
      send(server_, 0, mine, round);
      for (Blob& blob : blobs) blob = receive(server_, 0, round);
      return blobs;
    }
    blobs[0] = mine;
    for (std::uint32_t rank = 1; rank < world_; ++rank) blobs[rank] = receive(peers_[rank], rank, round);
    for (std::uint32_t rank = 1; rank < world_; ++rank) {
      for (const Blob& blob : blobs) send(peers_[rank], rank, blob, round);
    }
    return blobs;
  }

 private:
  // What a rank says first.
  struct Hello {
    std::array<char, 8> protocol{'r', 'a', 'i', 'l', 'w', 'v', ' ', '1'};
    std::uint32_t rank = 0;
    std::uint32_t world = 0;
  };
  struct AddressList {
    addrinfo* head = nullptr;
    ~AddressList() {
      if (head != nullptr) ::freeaddrinfo(head);
    }
  };

  // What getaddrinfo() gives: 0, or why there is no address.
  static int resolve(const std::string& host, const std::string& port, bool passive, AddressList& list) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = passive ? AI_PASSIVE : 0;
    return ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list.head);
  }

  [[noreturn]] void no_address(int status) const { throw BootstrapError("rendezvous " + name_ + ": " + ::gai_strerror(status)); }

  [[noreturn]] void no_means(const std::string& what, int error) const {
    throw BootstrapError("rank " + std::to_string(rank_) + " cannot " + what + " at " + name_ + ": " +
                         std::generic_category().message(error) +
                         (error == EMFILE ? "; raise the limit of open files (ulimit -n) above the number of ranks" : ""));
  }

  // At the first of the host's addresses that is this machine's.
  Fd listener_at(const std::string& host, const std::string& port) const {
    AddressList list;
    if (const int status = resolve(host, port, true, list); status != 0) no_address(status);
    int error = 0;
    for (const addrinfo* address = list.head; address != nullptr; address = address->ai_next) {
      Fd listener(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      const int on = 1;
      ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (listener && ::bind(listener.get(), address->ai_addr, address->ai_addrlen) == 0 &&
          ::listen(listener.get(), static_cast<int>(world_)) == 0)
        return listener;
      error = errno;
      if (lacks_descriptors_or_memory(error)) no_means("listen", error);
    }
    throw BootstrapError("rank 0 cannot listen at " + name_ + ": " + std::generic_category().message(error) +
                         "; choose a free port of this host");
  }

  void listen(const std::string& host, const std::string& port) {
    const Fd listener = listener_at(host, port);
    peers_.resize(world_);
    std::vector<Fd> unknown;  // have connected and said nothing yet: whoever else does that must not keep ranks waiting
    for (std::uint32_t arrived = 1; arrived < world_;) {
      std::vector<pollfd> entries{{listener.get(), POLLIN, 0}};
      for (const Fd& socket : unknown) entries.push_back({socket.get(), POLLIN, 0});
      if (!wait_watching(entries, "connect")) missing(unconnected(), "connect", limit_);
      for (std::size_t i = unknown.size(); i-- > 0;) {
        if (entries[i + 1].revents == 0) continue;
        Fd socket = std::move(unknown[i]);
        unknown.erase(unknown.begin() + static_cast<std::ptrdiff_t>(i));
        if (welcome(std::move(socket))) ++arrived;
      }
      if (entries.front().revents == 0) continue;
      if (Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)); socket) {
        wake_at(socket, sizeof(Hello));
        unknown.push_back(std::move(socket));
      } else if (lacks_descriptors_or_memory(errno)) {
        no_means("accept connections", errno);
      }
    }
  }

  // False for one that is no rank of anything.
  bool welcome(Fd socket) {
    Hello hello;
    if (::recv(socket.get(), &hello, sizeof hello, MSG_DONTWAIT) != sizeof hello) return false;
    if (hello.protocol != Hello{}.protocol) return false;
    if (hello.world != world_ || hello.rank == 0 || hello.rank >= world_ || peers_[hello.rank]) {
      throw BootstrapError("rendezvous " + name_ + ": a process came as rank " + std::to_string(hello.rank) + " of " +
                           std::to_string(hello.world) + "; expected each rank from 1 to " + std::to_string(world_ - 1) + " of " +
                           std::to_string(world_) + " once");
    }
    wake_at(socket, 1);
    peers_[hello.rank] = std::move(socket);
    return true;
  }

  // poll() shows as readable what has so many bytes, or has ended.
  static void wake_at(const Fd& socket, int bytes) { ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes); }

  // Rank 0 may not listen yet, nor its host's name be known, which a cluster's name service learns when that host starts.
  void connect(const std::string& host, const std::string& port) {
    int status = 0;
    do {
      AddressList list;
      status = resolve(host, port, false, list);
      if (status != 0 && status != EAI_NONAME && status != EAI_AGAIN) no_address(status);
      for (const addrinfo* address = list.head; address != nullptr; address = address->ai_next) {
        if (introduced_at(*address)) return;
      }
      ask();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (Clock::now() < deadline_);
    if (status != 0) no_address(status);
    missing({0}, "connect to " + name_, limit_);
  }

  bool introduced_at(const addrinfo& address) {
    const Hello hello{.rank = rank_, .world = world_};
    Fd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket && lacks_descriptors_or_memory(errno)) no_means("connect", errno);
    if (!connected(socket, address) || ::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) return false;
    server_ = std::move(socket);
    return true;
  }

  bool connected(const Fd& socket, const addrinfo& to) {
    if (::connect(socket.get(), to.ai_addr, to.ai_addrlen) != 0) {
      pollfd entry{socket.get(), POLLOUT, 0};
      if (errno != EINPROGRESS || !wait({&entry, 1}, std::min(deadline_, Clock::now() + kMostOfAddress))) return false;
      int error = 0;
      socklen_t size = sizeof error;
      if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return false;
    }
    return !with_itself(socket);
  }

  // While nobody listens, a connection from the very port that it goes to meets itself. The kernel draws ports of its own, and rank 0's
  // may be one of them.
  static bool with_itself(const Fd& socket) {
    sockaddr_storage here{}, there{};
    socklen_t size = sizeof here, other_size = sizeof there;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &size) != 0 ||
        ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&there), &other_size) != 0 || size != other_size ||
        std::memcmp(&here, &there, size) != 0)
      return false;
    const linger at_once{1, 0};  // the port is rank 0's, and must not stay taken
    ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return true;
  }

  std::vector<std::uint32_t> unconnected() const {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 1; rank < world_; ++rank) {
      if (!peers_[rank]) ranks.push_back(rank);
    }
    return ranks;
  }

  bool wait(std::span<pollfd> entries) { return wait(entries, deadline_); }

  bool wait(std::span<pollfd> entries, Clock::time_point until) {
    for (;;) {
      ask();
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      if (left.count() <= 0) return false;
      const int ready = ::poll(entries.data(), entries.size(), static_cast<int>(std::min(left, kAskEvery).count()));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) no_means("wait for others", errno);  // a signal of the program's says nothing of others
    }
  }

  // Before all ranks have come to a round none has its answer, so one that goes away then ends it: the others are not to wait for their
  // limit.
  bool wait_watching(std::vector<pollfd>& entries, const std::string& round, const Fd* awaited = nullptr) {
    const std::size_t own = entries.size();
    std::vector<std::uint32_t> watched;
    for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
      if (!peers_[rank] || &peers_[rank] == awaited) continue;
      entries.push_back({peers_[rank].get(), POLLRDHUP, 0});
      watched.push_back(rank);
    }
    if (!wait(entries)) return false;
    for (std::size_t i = 0; i < watched.size(); ++i) {
      if (entries[own + i].revents != 0) lost(watched[i], round, 0);
    }
    return true;
  }

  // All of it, to that rank or from it.
  void transfer(const Fd& fd, std::uint32_t rank, const std::string& round, void* data, std::size_t bytes, bool out) {
    auto* at = static_cast<char*>(data);
    while (bytes != 0) {
      const ssize_t count = out ? ::send(fd.get(), at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : ::recv(fd.get(), at, bytes, MSG_DONTWAIT);
      if (count > 0) {
        at += count;
        bytes -= static_cast<std::size_t>(count);
        continue;
      }
      if (count == 0 || (errno != EAGAIN && errno != EINTR)) lost(rank, round, count == 0 ? 0 : errno);
      std::vector<pollfd> entries{{fd.get(), static_cast<short>(out ? POLLOUT : POLLIN), 0}};
      if (!(out ? wait(entries) : wait_watching(entries, round, &fd))) missing({rank}, round, limit_);
    }
  }

  void send(const Fd& fd, std::uint32_t rank, Blob blob, const std::string& round) {
    std::uint64_t size = blob.size();
    transfer(fd, rank, round, &size, sizeof size, true);
    transfer(fd, rank, round, blob.data(), size, true);
  }

  Blob receive(const Fd& fd, std::uint32_t rank, const std::string& round) {
    std::uint64_t size = 0;
    transfer(fd, rank, round, &size, sizeof size, false);
    if (size > kMaxBlob) throw BootstrapError("rendezvous " + name_ + ": rank " + std::to_string(rank) + " does not speak this protocol");
    Blob blob(size);
    transfer(fd, rank, round, blob.data(), size, false);
    return blob;
  }

  std::string name_;
  std::uint32_t rank_, world_;
  std::chrono::milliseconds limit_;
  Clock::time_point deadline_;
  Fd server_;
  std::vector<Fd> peers_;
};

}  // namespace

void Rendezvous::ask() {
  if (!interruption_ || Clock::now() < next_ask_) return;
  next_ask_ = Clock::now() + kAskEvery;
  try {
    interruption_();
  } catch (...) {
    withdraw();
    throw;
  }
}

std::unique_ptr<Rendezvous> make_rendezvous(const std::string& address, std::uint32_t rank, std::uint32_t world,
                                            std::chrono::milliseconds limit, Interruption interruption) {
  constexpr std::string_view kFile = "file://", kTcp = "tcp://";
  if (address.starts_with(kFile) && address.size() > kFile.size()) {
    return std::make_unique<FileRendezvous>(address.substr(kFile.size()), rank, world, limit, std::move(interruption));
  }
  const auto colon = address.rfind(':');
  if (address.starts_with(kTcp) && colon > kTcp.size() && colon + 1 < address.size()) {
    // A name of a service is left to the resolver, which takes more than it should of numbers.
    const std::string port = address.substr(colon + 1);
    const bool number = port.find_first_not_of("0123456789") == std::string::npos;
    if (number && (port.size() > 5 || std::stoul(port) > 65535 || std::stoul(port) == 0))
      throw BootstrapError("rendezvous '" + address + "': port " + port + "; expected 1 to 65535");
    std::string host = address.substr(kTcp.size(), colon - kTcp.size());
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    return std::make_unique<TcpRendezvous>(host, port, rank, world, limit, std::move(interruption));
  }
  throw BootstrapError("rendezvous '" + address + "'; expected tcp://HOST:PORT or file:///DIRECTORY");
}

}  // namespace railweave::engine
