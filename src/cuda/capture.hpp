// Graphs that are being captured: edges between operations.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "device.hpp"

namespace railweave::cuda {

struct Capture {
  bool active = false;
  unsigned long long id = 0;  // no two captures of a process share it
  cudaGraph_t graph = nullptr;
};

namespace detail {

struct CaptureInfo {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* nodes = nullptr;
  std::size_t count = 0;
};
// CUDA 13 gave its calls about edges one more parameter.
inline CaptureInfo capture_info(cudaStream_t stream) {
  CaptureInfo info;
#if CUDART_VERSION >= 13000
  check(cudaStreamGetCaptureInfo(stream, &info.status, &info.id, &info.graph, &info.nodes, nullptr, &info.count),
#else
  check(cudaStreamGetCaptureInfo_v2(stream, &info.status, &info.id, &info.graph, &info.nodes, &info.count),
#endif
        "asking whether a stream is being captured");
  return info;
}

}  // namespace detail

inline Capture capture_of(cudaStream_t stream) {
  const detail::CaptureInfo info = detail::capture_info(stream);
  return {info.status == cudaStreamCaptureStatusActive, info.id, info.graph};
}

// What was queued last on a stream that is being captured.
inline cudaGraphNode_t newest_node(cudaStream_t stream) {
  const detail::CaptureInfo info = detail::capture_info(stream);
  if (info.count != 1)
    throw DeviceError("a captured launch left its stream with " + std::to_string(info.count) + " dependencies; expected the launch alone");
  return info.nodes[0];
}

// What is captured next on the stream comes after the node.
inline void add_dependency(cudaStream_t stream, cudaGraphNode_t node) {
#if CUDART_VERSION >= 13000
  check(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamAddCaptureDependencies),
#else
  check(cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamAddCaptureDependencies),
#endif
        "ordering captured operations");
}

// `node` comes after `after` and no longer after `before`.
inline void move_dependency(cudaGraph_t graph, cudaGraphNode_t node, cudaGraphNode_t before, cudaGraphNode_t after) {
#if CUDART_VERSION >= 13000
  check(cudaGraphRemoveDependencies(graph, &before, &node, nullptr, 1), "ordering captured operations");
  check(cudaGraphAddDependencies(graph, &after, &node, nullptr, 1), "ordering captured operations");
#else
  check(cudaGraphRemoveDependencies(graph, &before, &node, 1), "ordering captured operations");
  check(cudaGraphAddDependencies(graph, &after, &node, 1), "ordering captured operations");
#endif
}

}  // namespace railweave::cuda
