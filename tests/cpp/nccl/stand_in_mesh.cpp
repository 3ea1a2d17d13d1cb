#include "stand_in_mesh.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

namespace stand_in {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

sockaddr_un address_of(const std::string& name, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = name + "." + std::to_string(rank);
  if (path.size() >= sizeof address.sun_path) throw std::system_error(ENAMETOOLONG, std::generic_category(), path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// One direction of one pair: messages in order, each a length and its bytes.
class Lane {
 public:
  void add(const Transfer& transfer) { messages_.push_back(transfer); }
  bool idle() const { return at_ == messages_.size(); }

  // Moves what the socket takes.
  Outcome advance(int socket, bool send) {
    while (!idle()) {
      Transfer& message = messages_[at_];
      if (!begun_) {
        length_ = message.bytes;
        begun_ = true;
        offset_ = 0;
      }
      const bool in_length = offset_ < sizeof length_;
      char* const at = in_length ? reinterpret_cast<char*>(&length_) + offset_ : message.data + (offset_ - sizeof length_);
      const std::uint64_t left = (in_length ? sizeof length_ : sizeof length_ + message.bytes) - offset_;
      if (left != 0) {
        const ssize_t count = send ? ::send(socket, at, left, MSG_NOSIGNAL | MSG_DONTWAIT) : ::recv(socket, at, left, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Outcome::done;
        if (count <= 0) return Outcome::lost;
        offset_ += static_cast<std::uint64_t>(count);
      }
      if (!send && offset_ == sizeof length_ && length_ != message.bytes) return Outcome::mismatch;
      if (offset_ != sizeof length_ + message.bytes) continue;
      ++at_;
      begun_ = false;
    }
    return Outcome::done;
  }

 private:
  std::vector<Transfer> messages_;
  std::size_t at_ = 0;
  std::uint64_t length_ = 0, offset_ = 0;
  bool begun_ = false;
};

void copy_own(const std::vector<Transfer>& transfers, int rank) {
  std::vector<const Transfer*> sends, receives;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == rank) (transfer.send ? sends : receives).push_back(&transfer);
  }
  for (std::size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
    if (sends[i]->bytes != 0) std::memmove(receives[i]->data, sends[i]->data, sends[i]->bytes);
  }
}

}  // namespace

Mesh::Mesh(const std::string& name, int rank, int world, const std::atomic<bool>& aborted)
    : rank_(rank), sockets_(static_cast<std::size_t>(world), -1), aborted_(aborted) {
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_un own = address_of(name, rank);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 || ::listen(listener, world) != 0) fail(own.sun_path);
  for (int peer = 0; peer < rank; ++peer) {
    const sockaddr_un address = address_of(name, peer);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      if (aborted.load()) fail("aborted");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (::send(socket, &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank) fail("hello");
    sockets_[static_cast<std::size_t>(peer)] = socket;
  }
  for (int arrived = rank + 1; arrived < world;) {
    pollfd entry{listener, POLLIN, 0};
    ::poll(&entry, 1, 20);
    if (aborted.load()) fail("aborted");
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    int peer = -1;
    if (::recv(socket, &peer, sizeof peer, MSG_WAITALL) != sizeof peer || peer <= rank || peer >= world) fail("hello");
    sockets_[static_cast<std::size_t>(peer)] = socket;
    ++arrived;
  }
  ::close(listener);
  ::unlink(own.sun_path);
}

Mesh::~Mesh() {
  for (const int socket : sockets_) {
    if (socket >= 0) ::close(socket);
  }
}

Outcome Mesh::run(const std::vector<Transfer>& transfers) {
  copy_own(transfers, rank_);
  std::vector<Lane> out(sockets_.size()), in(sockets_.size());
  for (const Transfer& transfer : transfers) {
    if (transfer.peer != rank_) (transfer.send ? out : in)[static_cast<std::size_t>(transfer.peer)].add(transfer);
  }
  for (;;) {
    std::vector<pollfd> polled;
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
      for (const bool send : {true, false}) {
        Lane& lane = send ? out[peer] : in[peer];
        if (lane.idle()) continue;
        if (const Outcome outcome = lane.advance(sockets_[peer], send); outcome != Outcome::done) return outcome;
        if (!lane.idle()) polled.push_back({sockets_[peer], static_cast<short>(send ? POLLOUT : POLLIN), 0});
      }
    }
    if (polled.empty()) return Outcome::done;
    if (aborted_.load()) return Outcome::aborted;
    ::poll(polled.data(), polled.size(), 20);
  }
}

Outcome Mesh::all_gather(const void* mine, std::uint64_t bytes, void* all) {
  std::vector<Transfer> transfers;
  std::vector<char> copy(static_cast<const char*>(mine), static_cast<const char*>(mine) + bytes);
  for (int peer = 0; peer < world(); ++peer) {
    transfers.push_back({true, peer, copy.data(), bytes});
    transfers.push_back({false, peer, static_cast<char*>(all) + static_cast<std::uint64_t>(peer) * bytes, bytes});
  }
  return run(transfers);
}

}  // namespace stand_in
