#include "reserved_port.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace railweave::nccl {

ReservedPort reserve_port(const std::string& host) {
  const bool is_six = !host.empty() && host.front() == '[';
  sockaddr_in6 six{};
  sockaddr_in four{};
  six.sin6_family = AF_INET6;
  four.sin_family = AF_INET;
  auto* address = is_six ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
  socklen_t length = is_six ? sizeof six : sizeof four;
  ReservedPort port;
  port.socket = FileDescriptor(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!port.socket || ::setsockopt(port.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(port.socket.get(), address, length) != 0 || ::getsockname(port.socket.get(), address, &length) != 0)
    throw std::system_error(errno, std::generic_category(), "no TCP port for the ranks to meet at");
  port.number = ntohs(is_six ? six.sin6_port : four.sin_port);
  return port;
}

}  // namespace railweave::nccl
