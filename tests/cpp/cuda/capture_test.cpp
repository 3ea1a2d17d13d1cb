// What is asked of a stream that is being captured, over a stand-in for CUDA's call.
#include "capture.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace {

constexpr auto kLossyQuery = static_cast<cudaError_t>(402);  // cudaErrorLossyQuery, which CUDA 12.1 does not name

// What the stream depends on, and whether an edge to any of that has data.
std::vector<cudaGraphNode_t> dependencies;
bool edge_data = false;
cudaStreamCaptureStatus capture_status = cudaStreamCaptureStatusActive;

cudaGraphNode_t node(std::uintptr_t number) { return reinterpret_cast<cudaGraphNode_t>(number); }

cudaError_t tell(cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                 std::size_t* count) {
  *status = capture_status;
  if (id != nullptr) *id = 7;
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(std::uintptr_t{70});
  if (nodes != nullptr && edge_data) return kLossyQuery;
  if (nodes != nullptr) *nodes = dependencies.data();
  if (count != nullptr) *count = dependencies.size();
  return cudaSuccess;
}

}  // namespace

extern "C" {
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, std::size_t* count) {
  EXPECT_EQ(edges, nullptr);
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t** nodes, std::size_t* count) {
#endif
  return tell(status, id, graph, nodes, count);
}
}

namespace {

using namespace railweave::cuda;

TEST(CaptureOf, AStreamBehindAProgrammaticDependencyIsBeingCaptured) {
  dependencies = {node(1), node(2)};
  for (const bool data : {false, true}) {
    edge_data = data;
    const Capture capture = capture_of(nullptr);
    EXPECT_TRUE(capture.active);
    EXPECT_EQ(capture.id, 7u);
    EXPECT_EQ(capture.graph, reinterpret_cast<cudaGraph_t>(std::uintptr_t{70}));
  }
}

TEST(CaptureOf, AStreamThatIsNotCaptured) {
  capture_status = cudaStreamCaptureStatusNone;
  EXPECT_FALSE(capture_of(nullptr).active);
  capture_status = cudaStreamCaptureStatusActive;
}

TEST(CaptureOf, TheNewestNodeIsTheOneThatTheStreamDependsOn) {
  edge_data = false;
  dependencies = {node(3)};
  EXPECT_EQ(newest_node(nullptr), node(3));
  dependencies = {node(3), node(4)};
  EXPECT_THROW(newest_node(nullptr), DeviceError);
}

}  // namespace
