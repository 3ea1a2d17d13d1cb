// TCP between NICs that are network interfaces.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "transport.hpp"

namespace railweave::engine {

// `largest`: most bytes of a payload. Throws TransportError naming the interface.
std::unique_ptr<Transport> make_socket_transport(const std::string& interface, std::size_t largest);

}  // namespace railweave::engine
