// Short messages with file descriptors between the processes of a node. A mailbox is a datagram socket that has no name: mates reach it
// through /proc/PID/fd, as they do each other's memory, so nothing is left behind in the file system and network namespaces do not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "../engine/shared_memory.hpp"

namespace railweave::cuda {

// How a mate finds it. `inode` guards against a descriptor number that was used again.
struct MailboxHandle {
  std::int32_t pid = 0;
  std::int32_t fd = -1;  // none
  std::uint64_t inode = 0;
};

// Of one mail; the kernel's own limit is 253.
inline constexpr std::size_t kMostDescriptors = 64;
inline constexpr std::size_t kMostMailBytes = 1024;

struct Mail {
  std::vector<std::byte> bytes;
  std::vector<engine::Fd> descriptors;
};

class Mailbox {
 public:
  // Throws Error.
  Mailbox();
  const MailboxHandle& handle() const noexcept { return handle_; }
  // The next mail, without waiting for one. Descriptors beyond this process' limit on open files are missing.
  std::optional<Mail> receive();

 private:
  engine::Fd socket_, place_;
  MailboxHandle handle_;
};

// To a mate's mailbox.
class MailSender {
 public:
  // Throws Error saying what the mate's process did not allow.
  explicit MailSender(const MailboxHandle& handle);
  // later: the box is full, or too many descriptors are under way.
  enum class Result { sent, later, gone };
  Result send(std::span<const std::byte> bytes, std::span<const engine::Fd> descriptors);

 private:
  engine::Fd socket_;
};

}  // namespace railweave::cuda
