// A TCP port that nobody else is given until its owner listens there.
#pragma once

#include <cstdint>
#include <string>

#include "file_descriptor.hpp"

namespace railweave::nccl {

struct ReservedPort {
  // Bound with SO_REUSEADDR and not listening: the kernel hands the port to no one else, and a listener with SO_REUSEADDR may still take
  // it.
  FileDescriptor socket;
  std::uint16_t number = 0;
};

// `host`: a numeric address of this machine, IPv6 in brackets. Throws std::system_error.
ReservedPort reserve_port(const std::string& host);

}  // namespace railweave::nccl
