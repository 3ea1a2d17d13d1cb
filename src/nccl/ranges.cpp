#include "ranges.hpp"

#ifdef RAILWEAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>

#include <cstddef>
#include <iterator>
#include <mutex>
#endif

namespace railweave::nccl {

#ifdef RAILWEAVE_NVTX
namespace {

nvtxDomainHandle_t handle(void* domain) { return static_cast<nvtxDomainHandle_t>(domain); }

nvtxPayloadSchemaEntry_t entry(std::uint64_t type, const char* name, std::size_t offset) {
  nvtxPayloadSchemaEntry_t result{};
  result.type = type;
  result.name = name;
  result.offset = offset;
  return result;
}

std::uint64_t register_schema(nvtxDomainHandle_t domain) {
  const nvtxPayloadSchemaEntry_t entries[] = {
      entry(NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "bytes sent", offsetof(RangeFacts, bytes_sent)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "bytes received", offsetof(RangeFacts, bytes_received)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_UINT32, "messages", offsetof(RangeFacts, messages)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_UINT32, "peers", offsetof(RangeFacts, peers)),
  };
  nvtxPayloadSchemaAttr_t schema{};
  schema.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                     NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE;
  schema.name = "Railweave operation";
  schema.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
  schema.entries = entries;
  schema.numEntries = std::size(entries);
  schema.payloadStaticSize = sizeof(RangeFacts);
  return nvtxPayloadSchemaRegister(domain, &schema);
}

}  // namespace

RangeDomain::RangeDomain(const std::string& name) {
  // NVTX looks for a profiler in its first calls, and writes plain words then that later ones read.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  domain_ = nvtxDomainCreateA(name.c_str());
  if (domain_ == nullptr) return;
  name_ = nvtxDomainRegisterStringA(handle(domain_), "exchange");
  schema_ = register_schema(handle(domain_));
}

RangeDomain::~RangeDomain() {
  if (domain_ != nullptr) nvtxDomainDestroy(handle(domain_));
}

void RangeDomain::push(const RangeFacts& facts) const {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = static_cast<nvtxStringHandle_t>(name_);
  attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  attributes.payload.ullValue = facts.bytes_sent;
  const nvtxPayloadData_t data{schema_, sizeof facts, &facts};
  if (schema_ != 0) {
    attributes.payloadType = NVTX_PAYLOAD_TYPE_EXT;
    attributes.reserved0 = 1;  // structures
    attributes.payload.ullValue = reinterpret_cast<std::uintptr_t>(&data);
  }
  nvtxDomainRangePushEx(handle(domain_), &attributes);
}

void RangeDomain::pop() const { nvtxDomainRangePop(handle(domain_)); }
#else
RangeDomain::RangeDomain(const std::string&) {}
RangeDomain::~RangeDomain() = default;
void RangeDomain::push(const RangeFacts&) const {}
void RangeDomain::pop() const {}
#endif

}  // namespace railweave::nccl
