// What this shim needs of NCCL's C ABI, the same from 2.20 on. Declared here because the header belongs to the NCCL of the user, whose
// version is not known when the shim is built; the rest of the ABI passes through forwarding.cpp, made from the header.
#pragma once

#include <cstddef>
#include <cstdint>

struct ncclComm;
using ncclComm_t = ncclComm*;
using cudaStream_t = struct CUstream_st*;
using ncclWindow_t = struct ncclWindow_vidmem*;

constexpr std::size_t kUniqueIdBytes = 128;
struct ncclUniqueId {
  char internal[kUniqueIdBytes];
};

// Values of enumerators are part of the ABI; ints, because newer versions add some (ncclTimeout = 8 in 2.32).
using ncclResult_t = int;
constexpr ncclResult_t ncclSuccess = 0;
constexpr ncclResult_t ncclUnhandledCudaError = 1;
constexpr ncclResult_t ncclSystemError = 2;
constexpr ncclResult_t ncclInternalError = 3;
constexpr ncclResult_t ncclInvalidArgument = 4;
constexpr ncclResult_t ncclInvalidUsage = 5;
constexpr ncclResult_t ncclRemoteError = 6;
constexpr ncclResult_t ncclInProgress = 7;

using ncclDataType_t = int;

constexpr int kSplitNoColor = -1;                                // NCCL_SPLIT_NOCOLOR
constexpr int kShrinkAbort = 0x01;                               // NCCL_SHRINK_ABORT
constexpr int kConfigUndefined = static_cast<int>(0x80000000u);  // NCCL_CONFIG_UNDEF_INT

// The head of ncclConfig_t. Programs bring configurations of other lengths: `size` says how long theirs is, and nothing past it is read.
struct ncclConfigHead {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  // From here on since 2.17.
  int cga_cluster_size, min_ctas, max_ctas;
};

// ncclCollConfig_t of 2.32 as far as its event, which is the one member that changes what a program may wait for.
struct ncclCollConfigHead {
  std::size_t size;
  unsigned magic;
  unsigned version;
  void* extensions;
  int min_ctas, max_ctas, nvls_ctas, cga_cluster_size;
  const char* algorithm;
  int force_algorithm, cta_policy;
  std::uint64_t profiler_tag;
  void* launch_completion_event;
};

namespace railweave::nccl {

// Bytes of an element, 0 for a number that no NCCL up to 2.32 has.
constexpr std::size_t datatype_bytes(ncclDataType_t type) {
  // int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8e4m3, float8e5m2
  constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && static_cast<std::size_t>(type) < sizeof kBytes / sizeof *kBytes ? kBytes[type] : 0;
}

}  // namespace railweave::nccl
