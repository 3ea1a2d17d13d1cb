#include "ucx_memory.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "railweave/engine/error.hpp"
#include "shared_memory.hpp"
#include "ucx_transport.hpp"

namespace railweave::engine {
namespace {

// A reading takes microseconds, connecting the endpoint milliseconds; a busy machine may keep this thread from its CPU.
constexpr std::uint64_t kProofNs = 10'000'000'000;
constexpr int kClosingTurns = 10000;  // of the worker

ucs_memory_type_t type_of(MemoryKind kind) { return kind == MemoryKind::cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST; }

}  // namespace

// The form is the one in which keys travel between UCX's versions: a bit for each memory domain, a byte for the kind of memory, then for
// each domain a byte with its key's length, and the key.
bool has_key(std::span<const std::byte> packed) {
  std::uint64_t domains = 0;
  if (packed.size() < sizeof domains + 1) return false;
  std::memcpy(&domains, packed.data(), sizeof domains);
  std::size_t at = sizeof domains + 1;
  for (int left = std::popcount(domains); left > 0 && at < packed.size(); --left) {
    if (packed[at] != std::byte{0}) return true;
    ++at;
  }
  return false;
}

UcxMemory::UcxMemory(std::shared_ptr<const UcxLibrary> library, ucp_context_h context, ucp_worker_h worker, std::span<std::byte> bytes,
                     MemoryKind kind, bool reads_back)
    : ucx_(std::move(library)), context_(context), worker_(worker), bytes_(bytes), type_(type_of(kind)) {
  if (!known(*ucx_, context_, kind))
    throw TransportError("UCX " + ucx_->version() + " knows no memory of GPUs (it needs its CUDA modules, and cuda_copy among UCX_TLS)");
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = bytes_.data();
  params.length = bytes_.size();
  params.memory_type = type_;
  require(ucx_->mem_map(context_, &params, &handle_), "registering memory");
  try {
    if (!reads_back) return;
    std::size_t size = 0;
    require(ucx_->rkey_pack(context_, handle_, &key_, &size), "packing a key of memory");
    if (kind == MemoryKind::cuda && !has_key({static_cast<const std::byte*>(key_), size}))
      throw TransportError("UCX " + ucx_->version() + " could not register the GPU's memory with the NIC (nvidia_peermem, or DMA-BUF)");
    ucp_worker_params_t other{};
    other.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    other.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    require(ucx_->worker_create(context_, &other, &other_), "a second worker");
    prove();
  } catch (...) {
    release();
    throw;
  }
}

UcxMemory::~UcxMemory() { release(); }

bool UcxMemory::known(const UcxLibrary& library, ucp_context_h context, MemoryKind kind) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return library.context_query(context, &attributes) == UCS_OK && (attributes.memory_types & (std::uint64_t{1} << type_of(kind))) != 0;
}

void UcxMemory::release() {
  done_ = nullptr;
  close();
  for (int turns = 0; !closing_.empty() && turns < kClosingTurns; ++turns) {
    ucx_->worker_progress(worker_);
    progress();
    reap();
  }
  if (other_ != nullptr) ucx_->worker_destroy(other_);
  if (key_ != nullptr) ucx_->rkey_buffer_release(key_);
  ucx_->mem_unmap(context_, handle_);
}

void UcxMemory::require(ucs_status_t status, const char* what) const {
  if (status != UCS_OK) throw TransportError("UCX " + ucx_->version() + ": " + what + ": " + ucx_->describe(status));
}

bool UcxMemory::holds(const void* payload) const {
  const auto* at = static_cast<const std::byte*>(payload);
  return at >= bytes_.data() && at < bytes_.data() + bytes_.size();
}

void UcxMemory::describe(ucp_request_param_t& params) const {
  params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
  params.memory_type = type_;
  params.memh = handle_;
}

// To another worker: a way from the worker to itself may lead through cuda_copy instead of the NIC.
bool UcxMemory::open() {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  if (ucx_->worker_get_address(other_, &address, &size) != UCS_OK) return false;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = address;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxMemory::on_error;
  params.err_handler.arg = this;
  const ucs_status_t made = ucx_->ep_create(worker_, &params, &endpoint_);
  ucx_->worker_release_address(other_, address);
  failed_ = false;
  if (made != UCS_OK) {
    endpoint_ = nullptr;
    return false;
  }
  return ucx_->ep_rkey_unpack(endpoint_, key_, &endpoint_key_) == UCS_OK;
}

void UcxMemory::close() {
  if (endpoint_key_ != nullptr) ucx_->rkey_destroy(std::exchange(endpoint_key_, nullptr));
  if (endpoint_ == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucx_->ep_close_nbx(std::exchange(endpoint_, nullptr), &params);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void UcxMemory::reap() {
  std::erase_if(closing_, [this](void* request) {
    if (ucx_->request_check_status(request) == UCS_INPROGRESS) return false;
    ucx_->request_free(request);
    return true;
  });
}

void UcxMemory::read_back(const std::byte* from, Done done) {
  done_ = std::move(done);
  reap();
  if (failed_) close();
  if (endpoint_key_ == nullptr && !open()) {
    close();
    return finish(false);
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = &UcxMemory::on_read;
  params.user_data = this;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request =
      ucx_->get_nbx(endpoint_, &word_, sizeof word_, reinterpret_cast<std::uint64_t>(from), endpoint_key_, &params);
  if (UCS_PTR_IS_PTR(request)) return;
  failed_ = failed_ || UCS_PTR_IS_ERR(request);
  finish(!UCS_PTR_IS_ERR(request));
}

void UcxMemory::progress() {
  if (other_ != nullptr) ucx_->worker_progress(other_);
}

void UcxMemory::finish(bool ok) {
  const Done done = std::exchange(done_, nullptr);
  if (done != nullptr) done(ok);
}

void UcxMemory::on_read(void* request, ucs_status_t status, void* user_data) {
  auto* self = static_cast<UcxMemory*>(user_data);
  self->ucx_->request_free(request);
  if (status != UCS_OK) self->failed_ = true;
  self->finish(status == UCS_OK);
}

void UcxMemory::on_error(void* argument, ucp_ep_h, ucs_status_t) { static_cast<UcxMemory*>(argument)->failed_ = true; }

// That the NIC can is better known now than in the middle of an operation.
void UcxMemory::prove() {
  bool read = false;
  read_back(bytes_.data(), [&read](bool ok) { read = ok; });
  for (const std::uint64_t begin = now_ns(); reading() && now_ns() - begin < kProofNs; progress()) ucx_->worker_progress(worker_);
  if (!read) throw TransportError("UCX " + ucx_->version() + ": the NIC could not read from the memory registered with it");
}

}  // namespace railweave::engine
