// A library that uses NCCL, as a framework's is: one that contains it, one that was linked to a copy of another name, or neither.
#include <cstdio>

#include "nccl_calls.hpp"

// The version of the NCCL that it gets; 0: something has failed.
extern "C" __attribute__((visibility("default"))) int use_nccl() {
  int version = 0;
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  if (ncclGetVersion(&version) == ncclSuccess && ncclGetUniqueId(&id) == ncclSuccess && ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess &&
      ncclCommDestroy(comm) == ncclSuccess)
    return version;
  std::fprintf(stderr, "nccl_user: %s\n", ncclGetLastError(nullptr));
  return 0;
}
