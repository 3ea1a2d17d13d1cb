#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "hub.hpp"
#include "hub_frame.hpp"

namespace railweave::nccl {
namespace {

using Clock = std::chrono::steady_clock;
// A cancelled wait ends within this time.
constexpr auto kSlice = std::chrono::milliseconds(20);
// For the answer to travel after the hub's own time is over.
constexpr auto kAnswerGrace = std::chrono::milliseconds(2000);

socklen_t fill(const HubAddress& address, sockaddr_storage& storage) {
  if (address.family == AF_INET) {
    auto* four = reinterpret_cast<sockaddr_in*>(&storage);
    four->sin_family = AF_INET;
    four->sin_port = htons(address.port);
    std::memcpy(&four->sin_addr, address.host.data(), sizeof four->sin_addr);
    return sizeof *four;
  }
  auto* six = reinterpret_cast<sockaddr_in6*>(&storage);
  six->sin6_family = AF_INET6;
  six->sin6_port = htons(address.port);
  std::memcpy(&six->sin6_addr, address.host.data(), sizeof six->sin6_addr);
  six->sin6_scope_id = address.scope;
  return sizeof *six;
}

}  // namespace

std::string name_of(const HubAddress& address) {
  constexpr char kHex[] = "0123456789abcdef";
  std::array<std::uint8_t, 8> bytes;
  std::memcpy(bytes.data(), address.nonce.data(), bytes.size());
  if (address.tag != 0) std::memcpy(bytes.data(), &address.tag, bytes.size());
  std::string name = address.tag != 0 ? "grown-" : "";
  for (const std::uint8_t byte : bytes) {
    name += kHex[byte >> 4];
    name += kHex[byte & 15];
  }
  return name;
}

std::string host_of(const HubAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (::inet_ntop(address.family, address.host.data(), text, sizeof text) == nullptr) return "";
  if (address.family == AF_INET) return text;
  return "[" + std::string(text) + (address.scope == 0 ? "" : "%" + std::to_string(address.scope)) + "]";
}

HubClient::HubClient(const HubAddress& address, const std::atomic<bool>& cancelled) : address_(address), cancelled_(cancelled) {}

bool HubClient::connect(Clock::time_point deadline) {
  sockaddr_storage storage{};
  const socklen_t length = fill(address_, storage);
  do {
    socket_ = FileDescriptor(::socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket_) throw std::system_error(errno, std::generic_category(), "no socket to the process in which its ranks meet");
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&storage), length) == 0) return true;
    int error = errno;
    if (error == EINPROGRESS && wait(POLLOUT, deadline)) {
      socklen_t size = sizeof error;
      ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return true;
    }
    // Nobody listens there (any more), or no way leads there: waiting does not help.
    if (error == ECONNREFUSED || error == ENETUNREACH || error == EHOSTUNREACH) break;
    std::this_thread::sleep_for(kSlice);
  } while (Clock::now() < deadline && !cancelled_.load());
  socket_ = FileDescriptor();
  return false;
}

HubAddress HubClient::local() const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  HubAddress address;
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) return address;
  address.family = storage.ss_family;
  if (storage.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(storage);
    std::memcpy(address.host.data(), &four.sin_addr, sizeof four.sin_addr);
    return address;
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(storage);
  std::memcpy(address.host.data(), &six.sin6_addr, sizeof six.sin6_addr);
  address.scope = six.sin6_scope_id;
  return address;
}

Round HubClient::join(const std::string& name, std::uint32_t rank, std::uint32_t world, const std::string& blob,
                      std::chrono::milliseconds limit) {
  JoinFrame frame;
  std::memcpy(frame.nonce, address_.nonce.data(), sizeof frame.nonce);
  frame.rank = rank;
  frame.world = world;
  frame.limit_ms = static_cast<std::uint32_t>(limit.count());
  frame.name_bytes = static_cast<std::uint32_t>(name.size());
  frame.blob_bytes = static_cast<std::uint32_t>(blob.size());
  Round round;
  if (!socket_ || name.size() > kMaxName || blob.size() > kMaxBlob) return round;
  const auto deadline = Clock::now() + limit + kAnswerGrace;
  std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
  // From the first byte on the hub may count this rank in.
  round.status = RoundStatus::unknown;
  AnswerFrame answer;
  if (!send(bytes + name + blob, deadline) || !receive(&answer, sizeof answer, deadline)) return round;
  if (answer.magic != kHubMagic || answer.status > static_cast<std::uint32_t>(RoundStatus::refused)) return round;
  const auto status = static_cast<RoundStatus>(answer.status);
  for (std::uint32_t other = 0; status == RoundStatus::complete && other < world; ++other) {
    if (!receive(round.blobs.emplace_back(), deadline)) return round;
  }
  if (status == RoundStatus::expired && !receive(round.missing, deadline)) return round;
  round.left = answer.left != 0;
  round.first = answer.first;
  round.status = status;
  return round;
}

bool HubClient::wait(short events, Clock::time_point deadline) const {
  while (!cancelled_.load()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{socket_.get(), events, 0};
    if (::poll(&entry, 1, static_cast<int>(std::min(left, kSlice).count())) > 0) return true;
  }
  return false;
}

bool HubClient::send(const std::string& bytes, Clock::time_point deadline) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::send(socket_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (count >= 0)
      done += static_cast<std::size_t>(count);
    else if ((errno != EAGAIN && errno != EINTR) || !wait(POLLOUT, deadline))
      return false;
  }
  return true;
}

bool HubClient::receive(void* data, std::size_t bytes, Clock::time_point deadline) const {
  auto* at = static_cast<char*>(data);
  while (bytes != 0) {
    const ssize_t count = ::recv(socket_.get(), at, bytes, 0);
    if (count == 0) return false;
    if (count > 0) {
      at += count;
      bytes -= static_cast<std::size_t>(count);
    } else if ((errno != EAGAIN && errno != EINTR) || !wait(POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

bool HubClient::receive(std::string& text, Clock::time_point deadline) const {
  std::uint32_t length = 0;
  if (!receive(&length, sizeof length, deadline) || length > kMaxBlob) return false;
  text.resize(length);
  return receive(text.data(), length, deadline);
}

}  // namespace railweave::nccl
