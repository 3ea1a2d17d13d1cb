// Memory of Transport::use_memory(), registered with one NIC's UCX context.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "transport.hpp"
#include "ucx_library.hpp"

namespace railweave::engine {

class UcxMemory {
 public:
  // `reads_back`: as UcxOptions says; tried once here. Throws TransportError when UCX or the NIC does not reach the memory.
  UcxMemory(std::shared_ptr<const UcxLibrary> library, ucp_context_h context, ucp_worker_h worker, std::span<std::byte> bytes,
            MemoryKind kind, bool reads_back);
  // Drops a reading that is under way.
  ~UcxMemory();
  UcxMemory(const UcxMemory&) = delete;
  UcxMemory& operator=(const UcxMemory&) = delete;

  // Whether UCX has what it takes to exchange such payloads; both ends need it, wherever their own ones lie.
  static bool known(const UcxLibrary& library, ucp_context_h context, MemoryKind kind);

  bool holds(const void* payload) const;
  // Of a payload there: its kind and its registration.
  void describe(ucp_request_param_t& params) const;

  bool reads_back() const { return key_ != nullptr; }
  bool reading() const { return done_ != nullptr; }
  // Has the NIC read there. `done`, which may be called from inside, is told whether it could; one reading at a time.
  using Done = std::function<void(bool ok)>;
  void read_back(const std::byte* from, Done done);
  // While reading(), beside the worker's own progress.
  void progress();

 private:
  void require(ucs_status_t status, const char* what) const;
  void release();
  bool open();
  void close();
  void reap();
  void finish(bool ok);
  void prove();
  static void on_read(void* request, ucs_status_t status, void* user_data);
  static void on_error(void* argument, ucp_ep_h, ucs_status_t);

  std::shared_ptr<const UcxLibrary> ucx_;
  ucp_context_h context_;
  ucp_worker_h worker_;
  std::span<std::byte> bytes_;
  ucs_memory_type_t type_;
  ucp_mem_h handle_ = nullptr;
  void* key_ = nullptr;           // packed
  ucp_worker_h other_ = nullptr;  // where the reading's way through the NIC ends
  ucp_ep_h endpoint_ = nullptr;   // to it
  ucp_rkey_h endpoint_key_ = nullptr;
  bool failed_ = false;  // that endpoint
  std::vector<void*> closing_;
  std::uint64_t word_ = 0;  // what was read
  Done done_;
};

}  // namespace railweave::engine
