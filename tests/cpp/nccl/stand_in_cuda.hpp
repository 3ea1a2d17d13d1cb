// As much of the CUDA runtime as the tests need, over host memory and threads: a stream is a thread that runs callbacks in order.
#pragma once

#include <functional>
#include <memory>

using cudaStream_t = struct CUstream_st*;

namespace stand_in {

class Graph;

void set_device(int device);
int device();

cudaStream_t make_stream();
void destroy_stream(cudaStream_t stream);
// `device` counts for the default stream (nullptr) only.
void launch(cudaStream_t stream, int device, std::function<void()> work);
void synchronize(cudaStream_t stream, int device);
// Later work on `waiting` starts after what is queued on `stream` now.
void wait_for(cudaStream_t waiting, cudaStream_t stream, int device);

// Between begin and end, launches on the stream go into the graph.
void begin_capture(cudaStream_t stream);
std::shared_ptr<Graph> end_capture(cudaStream_t stream);
bool capturing(cudaStream_t stream);
void launch(const Graph& graph, cudaStream_t stream);

}  // namespace stand_in
