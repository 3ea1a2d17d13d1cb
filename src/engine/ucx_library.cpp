#include "ucx_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "railweave/engine/error.hpp"

namespace railweave::engine {
namespace {

template <typename Function>
void bind(void* handle, const char* name, Function& function) {
  void* symbol = ::dlsym(handle, name);
  if (symbol == nullptr) {
    throw TransportError(std::string("the UCX library lacks ") + name +
                         "; expected UCX 1.12 or newer (RAILWEAVE_UCX_LIBRARY names another)");
  }
  function = reinterpret_cast<Function>(symbol);
}

void prepare_environment() {
  // UCX reads these once, when it is loaded. Lost peers are our business, not console output; nor does a library take over signals.
  ::setenv("UCX_LOG_LEVEL", "fatal", 0);
  ::setenv("UCX_ERROR_SIGNALS", "", 0);
  ::setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
  // It knows a GPU's memory by hooks in the CUDA runtime that allocates it, which miss one that is linked statically, as ours is, and takes
  // such memory for the host's. Memory is registered with its type; a UCX that is there already and has the cache refuses to.
  ::setenv("UCX_MEMTYPE_CACHE", "n", 0);
  // By default UCX's TCP waits inside connect(), for as long as a dead rail keeps silent; the engine thread has other rails to serve.
  ::setenv("UCX_TCP_CONN_NB", "y", 1);
}

}  // namespace

std::shared_ptr<const UcxLibrary> UcxLibrary::load(const std::string& path) {
  // Once: the UCX that one thread loads reads the environment while the next engine of the process is made.
  static std::once_flag prepared;
  std::call_once(prepared, prepare_environment);
  const std::string name = path.empty() ? "libucp.so.0" : path;
  // Never unloaded: UCX keeps threads and exit handlers.
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    throw TransportError(
        "cannot load UCX (" + name + "): " + (reason == nullptr ? "unknown error" : reason) +
        "; RDMA devices are reached through it: install the system's (Debian's libucx0), or name a libucp.so.0 in RAILWEAVE_UCX_LIBRARY");
  }
  std::shared_ptr<UcxLibrary> ucx(new UcxLibrary());
  decltype(&::ucp_get_version_string) version = nullptr;
  bind(handle, "ucp_get_version_string", version);
  ucx->version_ = version();
  bind(handle, "ucs_status_string", ucx->status_string_);
  bind(handle, "ucp_config_read", ucx->config_read);
  bind(handle, "ucp_config_modify", ucx->config_modify);
  bind(handle, "ucp_config_release", ucx->config_release);
  bind(handle, "ucp_init_version", ucx->init_version);
  bind(handle, "ucp_context_query", ucx->context_query);
  bind(handle, "ucp_cleanup", ucx->cleanup);
  bind(handle, "ucp_mem_map", ucx->mem_map);
  bind(handle, "ucp_mem_unmap", ucx->mem_unmap);
  bind(handle, "ucp_rkey_pack", ucx->rkey_pack);
  bind(handle, "ucp_rkey_buffer_release", ucx->rkey_buffer_release);
  bind(handle, "ucp_ep_rkey_unpack", ucx->ep_rkey_unpack);
  bind(handle, "ucp_rkey_destroy", ucx->rkey_destroy);
  bind(handle, "ucp_get_nbx", ucx->get_nbx);
  bind(handle, "ucp_worker_create", ucx->worker_create);
  bind(handle, "ucp_worker_destroy", ucx->worker_destroy);
  bind(handle, "ucp_worker_get_address", ucx->worker_get_address);
  bind(handle, "ucp_worker_release_address", ucx->worker_release_address);
  bind(handle, "ucp_worker_progress", ucx->worker_progress);
  bind(handle, "ucp_worker_arm", ucx->worker_arm);
  bind(handle, "ucp_worker_get_efd", ucx->worker_get_efd);
  bind(handle, "ucp_worker_set_am_recv_handler", ucx->worker_set_am_recv_handler);
  bind(handle, "ucp_ep_create", ucx->ep_create);
  bind(handle, "ucp_ep_close_nbx", ucx->ep_close_nbx);
  bind(handle, "ucp_am_send_nbx", ucx->am_send_nbx);
  bind(handle, "ucp_am_recv_data_nbx", ucx->am_recv_data_nbx);
  bind(handle, "ucp_request_check_status", ucx->request_check_status);
  bind(handle, "ucp_request_free", ucx->request_free);
  return ucx;
}

std::string UcxLibrary::describe(ucs_status_t status) const { return status_string_(status); }

}  // namespace railweave::engine
