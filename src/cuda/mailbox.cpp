#include "mailbox.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "railweave/error.hpp"

namespace railweave::cuda {
namespace {

using engine::Fd;

[[noreturn]] void fail(const std::string& what) { throw Error(what + ": " + std::generic_category().message(errno)); }

Fd make_socket() {
  Fd made(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) fail("cannot create a socket");
  return made;
}

sockaddr_un address(const std::string& path) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (path.size() >= sizeof to.sun_path) throw Error(path + ": too long for the name of a socket");
  std::memcpy(to.sun_path, path.data(), path.size());
  return to;
}

// Where `socket` is bound for a moment: a folder of its own, which is gone when this is.
class Place {
 public:
  Place() {
    const char* parent = std::getenv("TMPDIR");
    folder_ = std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/railweave-XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) fail("cannot make " + folder_ + " (TMPDIR names another place)");
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/mail"; }

 private:
  std::string folder_;
};

struct Control {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kMostDescriptors)> bytes;
};

}  // namespace

Mailbox::Mailbox() : socket_(make_socket()) {
  const Place place;
  const sockaddr_un here = address(place.path());
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0) fail("cannot bind " + place.path());
  place_ = Fd(::open(place.path().c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!place_ || ::fstat(place_.get(), &status) != 0) fail("cannot open " + place.path());
  handle_ = {static_cast<std::int32_t>(::getpid()), place_.get(), static_cast<std::uint64_t>(status.st_ino)};
}

std::optional<Mail> Mailbox::receive() {
  Mail mail;
  mail.bytes.resize(kMostMailBytes);
  Control control{};
  iovec data{mail.bytes.data(), mail.bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return std::nullopt;
  mail.bytes.resize(static_cast<std::size_t>(got));
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      mail.descriptors.emplace_back(fd);
    }
  }
  return mail;
}

MailSender::MailSender(const MailboxHandle& handle) : socket_(make_socket()) {
  const std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
  const Fd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!place || ::fstat(place.get(), &status) != 0)
    fail("cannot open the mailbox of process " + std::to_string(handle.pid) + " (" + path + ")");
  if (!S_ISSOCK(status.st_mode) || static_cast<std::uint64_t>(status.st_ino) != handle.inode)
    throw Error(path + " is not the mailbox that process " + std::to_string(handle.pid) + " announced");
  const sockaddr_un to = address("/proc/self/fd/" + std::to_string(place.get()));
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    fail("cannot reach the mailbox of process " + std::to_string(handle.pid));
}

MailSender::Result MailSender::send(std::span<const std::byte> bytes, std::span<const Fd> descriptors) {
  if (bytes.size() > kMostMailBytes || descriptors.size() > kMostDescriptors) throw Error("a mail larger than mailboxes take");
  Control control{};
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      const int fd = descriptors[i].get();
      std::memcpy(CMSG_DATA(part) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) return Result::sent;
  switch (errno) {
    case EAGAIN:
    case EINTR:
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS: return Result::later;
    default: return Result::gone;
  }
}

}  // namespace railweave::cuda
