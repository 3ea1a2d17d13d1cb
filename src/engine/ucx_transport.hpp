// One UCX context and worker for one NIC.
#pragma once

#include <memory>
#include <string>

#include "transport.hpp"
#include "ucx_library.hpp"

namespace railweave::engine {

// `device`: a network interface ("eth1") or RDMA device ("mlx5_0:1"); `tls` as UCX_TLS, empty for the kind's default.
// `largest`: most bytes of a payload. Throws TransportError naming the device.
std::unique_ptr<Transport> make_ucx_transport(std::shared_ptr<const UcxLibrary> library, const std::string& device, const std::string& tls,
                                              std::size_t largest);

}  // namespace railweave::engine
