// The bound that a plan names.
#include <gtest/gtest.h>

#include "support.hpp"

namespace railweave::testing {
namespace {

Bound bound_of(const Fabric& fabric, const Demand& demand) {
  Planner planner(fabric, {});
  return planner.plan(demand, LinkState(fabric)).bound;
}

TEST(Bounds, NameTheEndpointThatHolds) {
  const Fabric two = machine("hgx-h100", 2);
  const Bound out = bound_of(two, one_pair(16, 9, 0, 1024 * kMiB));
  EXPECT_EQ(out.kind, Bound::Kind::node_out);
  EXPECT_EQ(out.at, 1u);
  EXPECT_NEAR(out.seconds, 1024.0 * kMiB / 400e9, 1e-6);

  Demand incast(16);  // 15 senders: the receiver's NVLink and PCIe, 450 + 63 GB/s, before the rails
  for (GpuId g = 0; g < 16; ++g) {
    if (g != 3) incast.set(g, 3, 256 * kMiB);
  }
  const Bound in = bound_of(two, incast);
  EXPECT_EQ(in.kind, Bound::Kind::gpu_in);
  EXPECT_EQ(in.at, 3u);

  Demand many(16);
  for (GpuId g = 8; g < 16; ++g) many.set(g, g - 8, 256 * kMiB);
  many.set(8, 1, 1);
  EXPECT_EQ(bound_of(two, many).kind, Bound::Kind::node_out);
}

TEST(Bounds, PricesProveWhatEndpointsCannot) {
  // One pair of a mesh: the sender's links could carry more than the three paths that lead to this receiver.
  const Fabric mesh = machine("h100-4gpu-ndr", 1);
  const Demand demand = one_pair(4, 0, 2, 1024 * kMiB);
  Planner planner(mesh, {});
  const Plan& plan = planner.plan(demand, LinkState(mesh));
  EXPECT_EQ(plan.bound.kind, Bound::Kind::prices);
  EXPECT_LE(plan.bound.seconds, plan.z_seconds);
  EXPECT_GE(plan.bound.seconds, plan.z_seconds * 0.97);
}

// The receivers' node has a slow NIC and a fast one, and one of its two GPUs has neither GPUDirect nor NVLink: with the NIC that belongs to
// that GPU the other one goes through host memory (12 GB/s), says the planner. NCCL has it write into the GPU (20 GB/s).
TEST(Bounds, OfEndpointsHoldForWaysThatThePlannerDoesNotTake) {
  FabricBuilder builder("odd");
  std::vector<VertexId> leaves;
  for (std::uint32_t r = 0; r < 2; ++r) {
    leaves.push_back(builder.add_vertex({VertexKind::leaf, kNone, r, r, "leaf" + std::to_string(r), 0, 0, 0, false, "", "", ""}));
  }
  for (std::uint32_t n = 0; n < 2; ++n) {
    const std::string name = "n" + std::to_string(n);
    const NodeId node = builder.add_node(name);
    const VertexId memory = builder.add_vertex({VertexKind::numa, node, 0, kNone, name + "/numa0", 0, 0, 0, false, "", "", ""});
    const VertexId pcie = builder.add_vertex({VertexKind::pcie_switch, node, 0, kNone, name + "/switch0", 0, 0, 0, false, "", "", ""});
    builder.add_link(pcie, memory, EdgeKind::pcie, 12'000'000'000, 100, "test");
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::string number = std::to_string(i);
      const bool gdr = n == 1 || i == 0;
      const VertexId gpu = builder.add_vertex({VertexKind::gpu, node, i, kNone, name + "/gpu" + number, 0, 0, 0, gdr, "", "", ""});
      const VertexId nic = builder.add_vertex({VertexKind::nic, node, i, i, name + "/nic" + number, 0, 0, 0, false, "", "", ""});
      builder.add_link(gpu, pcie, EdgeKind::pcie, 50'000'000'000, 100, "test");
      builder.add_link(nic, pcie, EdgeKind::pcie, 20'000'000'000, 100, "test");
      builder.add_link(nic, leaves[i], EdgeKind::rail, n == 0 && i == 0 ? 1'000'000'000 : 100'000'000'000, 1000, "test");
    }
  }
  const Fabric fabric = std::move(builder).build();
  const Demand demand = one_pair(4, 3, 0, 1024 * kMiB);
  for (const Policy policy : {Policy::single_path, Policy::nccl, Policy::ucx_rails, Policy::nimble, Policy::railweave}) {
    PlannerSettings settings;
    settings.policy = policy;
    Planner planner(fabric, settings);
    const Plan& plan = planner.plan(demand, LinkState(fabric));
    EXPECT_LE(plan.bound.seconds, plan.z_seconds * (1 + 1e-9)) << to_string(policy);
    if (policy == Policy::nccl) {
      EXPECT_NEAR(plan.z_seconds * 20e9 / static_cast<double>(demand.total()), 1, 1e-6);
      // Of a NIC whose rail has 100 GB/s, what every way to it passes still counts: its PCIe link. The slow NIC has 1 GB/s.
      EXPECT_NEAR(plan.bound.seconds * 21e9 / static_cast<double>(demand.total()), 1, 1e-6);
    }
  }
}

}  // namespace
}  // namespace railweave::testing
