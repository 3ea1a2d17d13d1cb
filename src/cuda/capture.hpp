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

// Asks for no dependencies: the program may have left the stream behind an edge with data (a programmatic dependency of a launch), which
// CUDA does not list without the data (cudaErrorLossyQuery).
inline Capture capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  Capture capture;
// CUDA 13 gave its calls about edges one more parameter.
#if CUDART_VERSION >= 13000
  check(cudaStreamGetCaptureInfo(stream, &status, &capture.id, &capture.graph, nullptr, nullptr, nullptr),
#else
  check(cudaStreamGetCaptureInfo_v2(stream, &status, &capture.id, &capture.graph, nullptr, nullptr),
#endif
        "asking whether a stream is being captured");
  capture.active = status == cudaStreamCaptureStatusActive;
  return capture;
}

// What was queued last on a stream that is being captured, by this library: without data at its edge.
inline cudaGraphNode_t newest_node(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  const cudaGraphNode_t* nodes = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  check(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, &count),
#else
  check(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &nodes, &count),
#endif
        "asking what was captured last");
  if (count != 1)
    throw DeviceError("a captured launch left its stream with " + std::to_string(count) + " dependencies; expected the launch alone");
  return nodes[0];
}

// For CaptureOrder.
struct CaptureCalls {
  cudaGraph_t graph;
  cudaEvent_t event;

  void wait_for_event(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal), "ordering a captured operation");
  }

  // What is captured next on the stream comes after the node.
  void come_after(cudaStream_t stream, cudaGraphNode_t node) const {
#if CUDART_VERSION >= 13000
    check(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamAddCaptureDependencies),
#else
    check(cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamAddCaptureDependencies),
#endif
          "ordering captured operations");
  }

  cudaGraphNode_t newest(cudaStream_t stream) const { return newest_node(stream); }

  cudaGraphNode_t record_event(cudaGraphNode_t after) const {
    cudaGraphNode_t node = nullptr;
    check(cudaGraphAddEventRecordNode(&node, graph, &after, 1, event), "ordering a captured operation");
    return node;
  }

  // `node` comes after `after` and no longer after `before`.
  void move(cudaGraphNode_t node, cudaGraphNode_t before, cudaGraphNode_t after) const {
#if CUDART_VERSION >= 13000
    check(cudaGraphRemoveDependencies(graph, &before, &node, nullptr, 1), "ordering captured operations");
    check(cudaGraphAddDependencies(graph, &after, &node, nullptr, 1), "ordering captured operations");
#else
    check(cudaGraphRemoveDependencies(graph, &before, &node, 1), "ordering captured operations");
    check(cudaGraphAddDependencies(graph, &after, &node, 1), "ordering captured operations");
#endif
  }
};

}  // namespace railweave::cuda
