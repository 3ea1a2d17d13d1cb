// CUDA's runtime, the kernels' launches and the bell, so that a whole Communicator runs without a GPU, as far as its host side goes: memory
// is the host's, copies are made at once, and of what is queued nothing runs. Device 0 is all there is.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "operation.hpp"

namespace railweave::cuda::stand_in {

// Whether streams are being captured.
inline std::atomic<bool> capturing = false;
// What cudaEventQuery does; none: what was recorded is over.
inline std::atomic<cudaError_t (*)()> event_query = nullptr;
// SMs of the part of the device that streams belong to; 0: to all of it.
inline std::atomic<std::uint32_t> part_processors = 0;
// What comes before the driver's answer to which part that is.
inline std::atomic<void (*)()> before_part = nullptr;
// Of the newest operation.
inline std::atomic<HostView*> host_view = nullptr;
inline std::atomic<std::uint32_t> blocks = 0;
inline Message first_message{};
inline OperationHeader header{};
// What the driver says of all memory: an allocation of this GPU's that begins there; null: none. Whether other processes may have it.
inline std::atomic<std::byte*> allocation = nullptr;
inline std::atomic<bool> shareable = false;
// While it is set threads stay where they wait for their bell, so many.
inline std::atomic<bool> holds_threads = false;
inline std::atomic<int> held_threads = 0;

// The name of a call of the runtime that fails; null: none.
inline std::atomic<const char*> refuses = nullptr;
// The next event that is recorded is one too many for the host's memory.
inline std::atomic<bool> record_throws = false;
// Of this process: allocations on the device that there are, and how often one was freed.
inline std::atomic<int> allocations = 0, frees = 0;
// Whether this thread has a context.
bool has_context();

// As CUDA does when a process ends: who touches pinned memory then is killed.
void take_pinned_memory_away();

}  // namespace railweave::cuda::stand_in
