// What a profiler sees: loaded by NVTX (NVTX_INJECTION64_PATH), it writes a line for each domain, range and range's end into
// STAND_IN_PROFILER_FILE.PID. With STAND_IN_PROFILER_READS_STRUCTURES=0 it is an older one, without NVTX's payload extension.
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace {

std::FILE* output() {
  static std::FILE* const file =
      std::fopen((std::string(std::getenv("STAND_IN_PROFILER_FILE")) + "." + std::to_string(::getpid())).c_str(), "w");
  std::setvbuf(file, nullptr, _IOLBF, 1 << 16);
  return file;
}

struct Schema {
  std::vector<std::string> names;
  std::vector<nvtxPayloadSchemaEntry_t> entries;
};
// Kept for the life of the process, as a profiler does.
std::vector<Schema>& schemas() {
  static auto* const list = new std::vector<Schema>();
  return *list;
}

struct Domain {
  std::string name;
  std::deque<std::string> strings;  // which stay where they are
};

nvtxDomainHandle_t create_domain(const char* name) {
  std::fprintf(output(), "domain %s\n", name);
  return reinterpret_cast<nvtxDomainHandle_t>(new Domain{name, {}});
}

void destroy_domain(nvtxDomainHandle_t handle) {
  const std::unique_ptr<Domain> domain(reinterpret_cast<Domain*>(handle));
  std::fprintf(output(), "destroyed %s\n", domain->name.c_str());
}

nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(&reinterpret_cast<Domain*>(domain)->strings.emplace_back(text));
}

uint64_t register_schema(nvtxDomainHandle_t, const nvtxPayloadSchemaAttr_t* attributes) {
  Schema schema;
  for (std::size_t i = 0; i < attributes->numEntries; ++i) {
    schema.names.emplace_back(attributes->entries[i].name);
    schema.entries.push_back(attributes->entries[i]);
  }
  schemas().push_back(schema);
  return NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START + schemas().size() - 1;
}

std::string values(const nvtxEventAttributes_t& event) {
  if (event.payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64) return " payload=" + std::to_string(event.payload.ullValue);
  nvtxPayloadData_t data;
  std::memcpy(&data, reinterpret_cast<const void*>(event.payload.ullValue), sizeof data);
  const Schema& schema = schemas().at(data.schemaId - NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START);
  std::string text;
  for (std::size_t i = 0; i < schema.entries.size(); ++i) {
    std::uint64_t value = 0;  // little endian: a shorter one fills the low bytes
    const std::size_t bytes = schema.entries[i].type == NVTX_PAYLOAD_ENTRY_TYPE_UINT64 ? 8 : 4;
    std::memcpy(&value, static_cast<const char*>(data.payload) + schema.entries[i].offset, bytes);
    text += " " + schema.names[i] + "=" + std::to_string(value);
  }
  return text;
}

int push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  const auto* name = reinterpret_cast<const std::string*>(event->message.registered);
  std::fprintf(output(), "push %s%s\n", name->c_str(), values(*event).c_str());
  return 0;
}

int pop(nvtxDomainHandle_t) {
  std::fprintf(output(), "pop\n");
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  const auto set = [&](unsigned index, auto* function) { *table[index] = reinterpret_cast<NvtxFunctionPointer>(function); };
  set(NVTX_CBID_CORE2_DomainCreateA, &create_domain);
  set(NVTX_CBID_CORE2_DomainDestroy, &destroy_domain);
  set(NVTX_CBID_CORE2_DomainRegisterStringA, &register_string);
  set(NVTX_CBID_CORE2_DomainRangePushEx, &push);
  set(NVTX_CBID_CORE2_DomainRangePop, &pop);
  return 1;
}

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t* module) {
  const char* reads = std::getenv("STAND_IN_PROFILER_READS_STRUCTURES");
  if (module->moduleId != NVTX_EXT_PAYLOAD_MODULEID || (reads != nullptr && *reads == '0')) return 0;
  module->segments[0].functionSlots[NVTX3EXT_CBID_nvtxPayloadSchemaRegister] = reinterpret_cast<std::intptr_t>(&register_schema);
  return 1;
}
