#include "railweave/fabric/fabric.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "railweave/error.hpp"
#include "railweave/fabric/limits.hpp"

namespace railweave {
namespace {

Vertex vertex(VertexKind kind, NodeId node, std::uint32_t index, std::string name) {
  Vertex v;
  v.kind = kind;
  v.node = node;
  v.index = index;
  v.name = std::move(name);
  return v;
}

// Two nodes, GPUs added out of order, one with an injection limit, one leaf.
Fabric small_fabric() {
  FabricBuilder builder("small");
  builder.add_node("a");
  builder.add_node("b");
  const VertexId b0 = builder.add_vertex(vertex(VertexKind::gpu, 1, 0, "b/gpu0"));
  const VertexId a1 = builder.add_vertex(vertex(VertexKind::gpu, 0, 1, "a/gpu1"));
  Vertex limited = vertex(VertexKind::gpu, 0, 0, "a/gpu0");
  limited.egress_Bps = 7;
  limited.ingress_Bps = 8;
  const VertexId a0 = builder.add_vertex(std::move(limited));
  const VertexId nic = builder.add_vertex(vertex(VertexKind::nic, 1, 0, "b/nic0"));
  const VertexId leaf = builder.add_vertex(vertex(VertexKind::leaf, kNone, 0, "leaf0"));
  builder.add_link(a0, a1, EdgeKind::nvlink, 100, 5, "test");
  builder.add_edge({b0, nic, EdgeKind::pcie, 50, 1, "test"});
  builder.add_link(nic, leaf, EdgeKind::rail, 25, 2, "test");
  return std::move(builder).build();
}

TEST(Fabric, NumbersGpusByNodeAndIndex) {
  const Fabric fabric = small_fabric();
  EXPECT_EQ(fabric.gpu_count(), 3);
  std::vector<std::string> names;
  for (GpuId g = 0; g < fabric.gpu_count(); ++g) names.push_back(fabric.vertex(fabric.gpu(g)).name);
  EXPECT_EQ(names, (std::vector<std::string>{"a/gpu0", "a/gpu1", "b/gpu0"}));
  EXPECT_EQ(fabric.first_gpu(1), 2);
  EXPECT_EQ(fabric.node_of(2), 1);
  EXPECT_EQ(fabric.gpus_of(0).size(), 2);
  EXPECT_TRUE(fabric.nics_of(0).empty());
  EXPECT_EQ(fabric.nics_of(1).size(), 1);
}

TEST(Fabric, AdjacencyHasEachEdgeOnceAtBothEnds) {
  const Fabric fabric = small_fabric();
  std::size_t out = 0, in = 0;
  for (VertexId v = 0; v < fabric.vertices().size(); ++v) {
    for (EdgeId e : fabric.out_edges(v)) EXPECT_EQ(fabric.edge(e).from, v);
    for (EdgeId e : fabric.in_edges(v)) EXPECT_EQ(fabric.edge(e).to, v);
    out += fabric.out_edges(v).size();
    in += fabric.in_edges(v).size();
  }
  EXPECT_EQ(out, fabric.edges().size());
  EXPECT_EQ(in, fabric.edges().size());
  const VertexId b0 = fabric.find_vertex("b/gpu0"), nic = fabric.find_vertex("b/nic0");
  EXPECT_NE(fabric.find_edge(b0, nic), kNone);
  EXPECT_EQ(fabric.find_edge(nic, b0), kNone);
  EXPECT_EQ(fabric.find_vertex("c/gpu0"), kNone);
}

TEST(Fabric, ResourcesAreEdgesThenOwnCapacities) {
  const Fabric fabric = small_fabric();
  ASSERT_EQ(fabric.resources().size(), fabric.edges().size() + 2);
  const VertexId a0 = fabric.find_vertex("a/gpu0");
  const ResourceId egress = fabric.vertex_resource(a0, Resource::Kind::vertex_egress);
  ASSERT_NE(egress, kNone);
  EXPECT_EQ(fabric.resources()[egress].capacity_Bps, 7);
  EXPECT_EQ(fabric.describe(egress), "a/gpu0 (egress)");
  EXPECT_EQ(fabric.vertex_resource(a0, Resource::Kind::vertex_through), kNone);
  EXPECT_EQ(fabric.describe(0), "a/gpu0 -> a/gpu1 (nvlink)");
}

struct Fault {
  const char* expected;
  std::function<void(FabricBuilder&)> build;
};

TEST(FabricBuilder, NamesWhatCannotExist) {
  const auto gpu = [](FabricBuilder& b, const std::string& name) { return b.add_vertex(vertex(VertexKind::gpu, 0, 0, name)); };
  const std::vector<Fault> kFaults = {
      {"two vertices are named 'x'", [&](FabricBuilder& b) { gpu(b, "x"), gpu(b, "x"); }},
      {"two nodes are named 'n'", [&](FabricBuilder& b) { b.add_node("n"); }},
      {"a gpu has no name", [&](FabricBuilder& b) { gpu(b, ""); }},
      {"has no GPU", [](FabricBuilder&) {}},
      {"has no capacity",
       [&](FabricBuilder& b) {
         b.add_edge({gpu(b, "x"), gpu(b, "y"), EdgeKind::nvlink, 0, 0, ""});
       }},
      {"leads to itself",
       [&](FabricBuilder& b) {
         b.add_edge({gpu(b, "x"), 0, EdgeKind::nvlink, 1, 0, ""});
       }},
      {"does not exist",
       [&](FabricBuilder& b) {
         b.add_edge({gpu(b, "x"), 9, EdgeKind::nvlink, 1, 0, ""});
       }},
      {"stands twice",
       [&](FabricBuilder& b) {
         const VertexId x = gpu(b, "x"), y = gpu(b, "y");
         b.add_edge({x, y, EdgeKind::nvlink, 1, 0, ""});
         b.add_edge({x, y, EdgeKind::pcie, 1, 0, ""});
       }},
      {"needs a node", [&](FabricBuilder& b) { gpu(b, "x"), b.add_vertex(vertex(VertexKind::nic, kNone, 0, "y")); }},
      {"belongs to no node", [&](FabricBuilder& b) { gpu(b, "x"), b.add_vertex(vertex(VertexKind::leaf, 0, 0, "y")); }},
      {"names a node that does not exist", [&](FabricBuilder& b) { gpu(b, "x"), b.add_vertex(vertex(VertexKind::nic, 3, 0, "y")); }},
      {"is not UTF-8", [&](FabricBuilder& b) { gpu(b, "gpu\xC3"); }},
      {"is not UTF-8", [&](FabricBuilder& b) { gpu(b, "\xED\xA0\x80"); }},
      {"is a control character", [&](FabricBuilder& b) { gpu(b, "gpu\n0"); }},
      {"has a name of 257 bytes", [&](FabricBuilder& b) { gpu(b, std::string(limits::kNameBytes + 1, 'x')); }},
  };
  for (const Fault& fault : kFaults) {
    FabricBuilder builder("test");
    builder.add_node("n");
    fault.build(builder);
    try {
      std::move(builder).build();
      ADD_FAILURE() << "no error for: " << fault.expected;
    } catch (const FabricError& error) {
      EXPECT_NE(std::string(error.what()).find(fault.expected), std::string::npos) << error.what();
    }
  }
}

TEST(FabricBuilder, TakesNamesInAnyScript) {
  FabricBuilder builder("뉴론");
  builder.add_node("узел");
  builder.add_vertex(vertex(VertexKind::gpu, 0, 0, "узел/gpu0 \xF0\x9F\x9A\x82"));
  EXPECT_EQ(std::move(builder).build().name(), "뉴론");
}

}  // namespace
}  // namespace railweave
