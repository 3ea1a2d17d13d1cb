#include "unique_id.hpp"

#include <netinet/in.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>

namespace railweave::nccl {
namespace {

struct Trailer {
  std::uint32_t magic = kMagic;
  std::uint16_t family = 0;
  std::uint16_t port = 0;
  std::uint8_t host[16] = {};
  std::uint8_t nonce[16] = {};
  std::uint64_t tag = 0;
  std::uint32_t scope = 0;
  std::uint32_t unused = 0;

  static constexpr std::uint32_t kMagic = 0x32575244;  // "DRW2"
};
static_assert(sizeof(Trailer) == 56);  // NCCL's own part has 40 bytes from 2.29 on
constexpr std::size_t kPlace = kUniqueIdBytes - sizeof(Trailer);
// The id begins with a 64-bit magic number, then the socket address.
constexpr std::size_t kAddressPlace = 8;

}  // namespace

bool write_hub(ncclUniqueId& id, const HubAddress& address) {
  if (std::any_of(id.internal + kPlace, id.internal + kUniqueIdBytes, [](char byte) { return byte != 0; })) return false;
  Trailer trailer;
  trailer.family = address.family;
  trailer.port = address.port;
  trailer.tag = address.tag;
  trailer.scope = address.scope;
  std::memcpy(trailer.host, address.host.data(), sizeof trailer.host);
  std::memcpy(trailer.nonce, address.nonce.data(), sizeof trailer.nonce);
  std::memcpy(id.internal + kPlace, &trailer, sizeof trailer);
  return true;
}

std::optional<HubAddress> read_hub(const ncclUniqueId& id) {
  Trailer trailer;
  std::memcpy(&trailer, id.internal + kPlace, sizeof trailer);
  if (trailer.magic != Trailer::kMagic || (trailer.family != AF_INET && trailer.family != AF_INET6) || trailer.port == 0)
    return std::nullopt;
  HubAddress address;
  address.family = trailer.family;
  address.port = trailer.port;
  address.tag = trailer.tag;
  address.scope = trailer.scope;
  std::memcpy(address.host.data(), trailer.host, sizeof trailer.host);
  std::memcpy(address.nonce.data(), trailer.nonce, sizeof trailer.nonce);
  return address;
}

std::optional<HubAddress> nccl_host(const ncclUniqueId& id) {
  sockaddr_in6 six;
  std::memcpy(&six, id.internal + kAddressPlace, sizeof six);
  HubAddress address;
  address.family = six.sin6_family;
  if (six.sin6_family == AF_INET6) {
    std::memcpy(address.host.data(), &six.sin6_addr, sizeof six.sin6_addr);
    address.scope = six.sin6_scope_id;
    return address;
  }
  if (six.sin6_family != AF_INET) return std::nullopt;
  sockaddr_in four;
  std::memcpy(&four, id.internal + kAddressPlace, sizeof four);
  std::memcpy(address.host.data(), &four.sin_addr, sizeof four.sin_addr);
  return address;
}

Hub& own_hub() {
  // Lives until the process ends: communicators that are split later still meet there, and joining its thread at exit could wait for
  // what a dead rank never sends.
  static std::mutex mutex;
  static Hub* hub = nullptr;  // guarded by mutex, as is of_process
  static pid_t of_process = 0;
  const std::lock_guard lock(mutex);
  if (of_process != ::getpid()) {  // a forked child has its parent's hub without the thread that serves it
    hub = new Hub();
    of_process = ::getpid();
  }
  return *hub;
}

HubAddress announce(const HubAddress& host) {
  HubAddress address = host;
  address.port = own_hub().port();
  if (::getrandom(address.nonce.data(), address.nonce.size(), 0) != static_cast<ssize_t>(address.nonce.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  own_hub().admit(address.nonce);
  return address;
}

HubAddress stand_by(const HubAddress& host, const HubAddress& hub) {
  HubAddress address = host;
  address.port = own_hub().port();
  address.nonce = hub.nonce;
  own_hub().admit(address.nonce);
  return address;
}

}  // namespace railweave::nccl
