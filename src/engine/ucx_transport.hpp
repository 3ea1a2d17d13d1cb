// One UCX context and worker for one NIC.
#pragma once

#include <memory>
#include <string>

#include "transport.hpp"
#include "ucx_library.hpp"

namespace railweave::engine {

// "mlx5_0:1" is an RDMA device, "eth1" a network interface.
inline bool is_rdma(const std::string& device) { return device.find(':') != std::string::npos; }

struct UcxOptions {
  std::string tls;    // as UCX_TLS; empty: the device's default
  bool cuda = false;  // for payloads in memory of a GPU, here or at a peer
  // What has arrived in memory of use_memory() is delivered after the NIC has read back from there: only then are its writes in their
  // place. Both ends of a rail alike.
  bool reads_back = false;
};

// `device`: a network interface or RDMA device. Throws TransportError naming the device.
std::unique_ptr<Transport> make_ucx_transport(std::shared_ptr<const UcxLibrary> library, const std::string& device,
                                              const UcxOptions& options);

// Whether a packed key of memory (ucp_rkey_pack) has a NIC's part. UCX maps memory without a word when no NIC could register it.
bool has_key(std::span<const std::byte> packed);

}  // namespace railweave::engine
