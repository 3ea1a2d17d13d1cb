// libucp loaded at run time: the system's where there is one, so that a cluster's own UCX with its RDMA transports is used.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

namespace railweave::engine {

class UcxLibrary {
 public:
  // Loads `path`, or libucp.so.0 from the loader's search path when it is empty. Throws TransportError saying what to install.
  static std::shared_ptr<const UcxLibrary> load(const std::string& path);

  const std::string& version() const noexcept { return version_; }
  // UCX 1.13 aborts the process (assertion in wireup_ep.c) when a connection breaks while it is being set up, as happens when a rail is
  // tried that is still half dead. Seen with 1.13.1; not with 1.22.0.
  bool survives_failed_connects() const noexcept { return !version_.starts_with("1.12") && !version_.starts_with("1.13"); }
  std::string describe(ucs_status_t status) const;

  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_context_query) context_query = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_mem_map) mem_map = nullptr;
  decltype(&::ucp_mem_unmap) mem_unmap = nullptr;
  decltype(&::ucp_rkey_pack) rkey_pack = nullptr;
  decltype(&::ucp_rkey_buffer_release) rkey_buffer_release = nullptr;
  decltype(&::ucp_ep_rkey_unpack) ep_rkey_unpack = nullptr;
  decltype(&::ucp_rkey_destroy) rkey_destroy = nullptr;
  decltype(&::ucp_get_nbx) get_nbx = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_am_send_nbx) am_send_nbx = nullptr;
  decltype(&::ucp_am_recv_data_nbx) am_recv_data_nbx = nullptr;
  decltype(&::ucp_request_check_status) request_check_status = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;

 private:
  UcxLibrary() = default;
  std::string version_;
  decltype(&::ucs_status_string) status_string_ = nullptr;
};

}  // namespace railweave::engine
