#include <algorithm>
#include <memory>
#include <new>
#include <string>

#include "railweave/engine/exchange.hpp"
#include "railweave/railweave.h"
#include "status.hpp"

struct railweave_exchange {
  railweave::Exchange exchange;
};
struct railweave_group {
  railweave::Group group;
};
struct railweave_operation {
  railweave::Handle handle;
};

namespace {

using namespace railweave;

using capi::guarded;
using capi::require;

}  // namespace

extern "C" {

const char* railweave_last_error(void) { return capi::last_error().text.c_str(); }
uint32_t railweave_last_rank(void) { return capi::last_error().rank; }

railweave_status railweave_exchange_create(uint32_t rank, uint32_t world, const char* rendezvous, const char* fabric_json,
                                           const railweave_setting* settings, size_t setting_count, railweave_exchange** exchange) {
  return guarded([&] {
    require(rendezvous, "rendezvous");
    require(exchange, "exchange");
    if (setting_count != 0) require(settings, "settings");
    ExchangeSettings chosen = settings_from_environment();
    for (size_t i = 0; i < setting_count; ++i) {
      require(settings[i].name, "name of a setting");
      require(settings[i].value, "value of a setting");
      set(chosen, settings[i].name, settings[i].value);
    }
    *exchange = fabric_json == nullptr
                    ? new railweave_exchange{Exchange(rank, world, rendezvous, chosen)}
                    : new railweave_exchange{Exchange(rank, world, rendezvous, chosen, FabricText{fabric_json, "fabric_json"})};
  });
}

void railweave_exchange_destroy(railweave_exchange* exchange) { delete exchange; }

railweave_status railweave_all_to_all_v(railweave_exchange* exchange, const void* send, const uint64_t* send_counts,
                                        const uint64_t* send_offsets, void* recv, const uint64_t* recv_counts, const uint64_t* recv_offsets,
                                        uint32_t communicator, railweave_operation** operation) {
  return guarded([&] {
    for (const void* pointer : {static_cast<const void*>(exchange), static_cast<const void*>(operation)})
      require(pointer, "exchange or operation");
    for (const uint64_t* pointer : {send_counts, send_offsets, recv_counts, recv_offsets}) require(pointer, "counts or offsets");
    const std::size_t world = exchange->exchange.world();
    const auto some = [world](const uint64_t* counts) {
      return std::any_of(counts, counts + world, [](uint64_t count) { return count != 0; });
    };
    if (some(send_counts)) require(send, "send");
    if (some(recv_counts)) require(recv, "recv");
    *operation = new railweave_operation{exchange->exchange.all_to_all_v(send, {send_counts, world}, {send_offsets, world}, recv,
                                                                         {recv_counts, world}, {recv_offsets, world}, communicator)};
  });
}

railweave_status railweave_group_begin(railweave_exchange* exchange, uint32_t communicator, railweave_group** group) {
  return guarded([&] {
    require(exchange, "exchange");
    require(group, "group");
    *group = new railweave_group{exchange->exchange.group(communicator)};
  });
}

railweave_status railweave_send(railweave_group* group, const void* data, uint64_t bytes, uint32_t peer) {
  return guarded([&] {
    require(group, "group");
    if (bytes != 0) require(data, "data");
    group->group.send(data, bytes, peer);
  });
}

railweave_status railweave_recv(railweave_group* group, void* data, uint64_t bytes, uint32_t peer) {
  return guarded([&] {
    require(group, "group");
    if (bytes != 0) require(data, "data");
    group->group.recv(data, bytes, peer);
  });
}

railweave_status railweave_group_end(railweave_group* group, railweave_operation** operation) {
  const std::unique_ptr<railweave_group> owned(group);
  return guarded([&] {
    require(group, "group");
    require(operation, "operation");
    *operation = new railweave_operation{owned->group.end()};
  });
}

railweave_status railweave_wait(railweave_operation* operation) {
  const std::unique_ptr<railweave_operation> owned(operation);
  return guarded([&] {
    require(operation, "operation");
    owned->handle.wait();
  });
}

railweave_status railweave_test(railweave_operation* operation, int* ended) {
  return guarded([&] {
    require(operation, "operation");
    require(ended, "ended");
    *ended = 1;  // also when it failed
    *ended = operation->handle.wait_for(0) ? 1 : 0;
  });
}

}  // extern "C"
