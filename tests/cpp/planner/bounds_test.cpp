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

}  // namespace
}  // namespace railweave::testing
