// TCP between NICs that are network interfaces.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "transport.hpp"

namespace railweave::engine {

// `largest`: most bytes of a payload. Throws TransportError naming the interface.
std::unique_ptr<Transport> make_socket_transport(const std::string& interface, std::size_t largest);

// The family of that address of a NIC, AF_INET or AF_INET6, the latter only where the interface has none of the former; 0: of another
// transport.
int socket_family(std::span<const std::byte> address);

}  // namespace railweave::engine
