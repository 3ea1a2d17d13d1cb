// A device library that queues nothing: what is left of a call's time is the shim's.
#include "railweave/cuda.h"

struct railweave_cuda_communicator {};

namespace {

const char* last_error() { return ""; }
railweave_status probe(int32_t) { return RAILWEAVE_OK; }
railweave_status create(const railweave_cuda_config*, railweave_cuda_communicator** communicator) {
  *communicator = new railweave_cuda_communicator();
  return RAILWEAVE_OK;
}
railweave_status enqueue(const railweave_cuda_transfer*, size_t, const railweave_cuda_stream*, size_t) { return RAILWEAVE_OK; }
railweave_status fine(railweave_cuda_communicator*) { return RAILWEAVE_OK; }
void destroy(railweave_cuda_communicator* communicator) { delete communicator; }
railweave_status register_buffer(railweave_cuda_communicator*, void* data, uint64_t, void** handle) {
  *handle = data;
  return RAILWEAVE_OK;
}
railweave_status deregister_buffer(railweave_cuda_communicator*, void*) { return RAILWEAVE_OK; }
railweave_status counters(railweave_cuda_communicator*, railweave_cuda_counters*) { return RAILWEAVE_OK; }
size_t describe(railweave_cuda_communicator*, char*, size_t) { return 0; }
size_t nics(railweave_cuda_communicator*, railweave_cuda_nic*, size_t) { return 0; }
railweave_status join(railweave_cuda_communicator*, const railweave_cuda_stream*, size_t) { return RAILWEAVE_OK; }

void explain(void (*)(const char*)) {}
size_t peers(railweave_cuda_communicator*, railweave_cuda_peer*, size_t) { return 0; }

const railweave_cuda_api kApi = {sizeof(railweave_cuda_api),
                                 RAILWEAVE_CUDA_VERSION,
                                 0,
                                 last_error,
                                 probe,
                                 create,
                                 enqueue,
                                 fine,
                                 fine,
                                 fine,
                                 destroy,
                                 register_buffer,
                                 deregister_buffer,
                                 counters,
                                 describe,
                                 nics,
                                 join,
                                 explain,
                                 peers};

}  // namespace

const railweave_cuda_api* railweave_cuda_entry(uint32_t) { return &kApi; }
