#include "railweave/fabric/link_state.hpp"

#include <gtest/gtest.h>

#include "railweave/error.hpp"

namespace railweave {
namespace {

Fabric pair() {
  FabricBuilder builder("pair");
  builder.add_node("n");
  for (std::uint32_t i = 0; i < 2; ++i) {
    Vertex gpu;
    gpu.node = 0;
    gpu.index = i;
    gpu.name = "gpu" + std::to_string(i);
    builder.add_vertex(std::move(gpu));
  }
  builder.add_link(0, 1, EdgeKind::nvlink, 1000, 0, "test");
  return std::move(builder).build();
}

TEST(LinkState, StartsNominalAndCountsOnlyChanges) {
  LinkState state(pair());
  EXPECT_EQ(state.epoch(), 0);
  EXPECT_EQ(state.rate_Bps(0), 1000);
  state.set_rate(0, 400);
  state.set_rate(0, 400);
  EXPECT_EQ(state.epoch(), 1);
  EXPECT_EQ(state.rate_Bps(0), 400);
  EXPECT_EQ(state.rate_Bps(1), 1000);
  state.set_down(0, true);
  EXPECT_EQ(state.epoch(), 2);
  EXPECT_TRUE(state.is_down(0));
  EXPECT_EQ(state.rate_Bps(0), 0);
  state.set_down(0, false);
  EXPECT_EQ(state.rate_Bps(0), 400) << "the measured rate outlives an outage";
}

TEST(LinkState, RefusesWhatTheFabricLacks) {
  LinkState state(pair());
  EXPECT_THROW(state.set_rate(2, 1), FabricError);
  EXPECT_THROW(state.set_down(2, true), FabricError);
  EXPECT_THROW(state.set_rate(0, 0), FabricError);
  EXPECT_EQ(state.epoch(), 0);
}

TEST(LinkState, AdoptsAnotherRanksView) {
  const Fabric fabric = pair();
  LinkState mine(fabric), theirs(fabric);
  theirs.set_rate(1, 10);
  theirs.set_down(0, true);
  EXPECT_FALSE(mine == theirs);
  mine.adopt(theirs);
  EXPECT_TRUE(mine == theirs);
  EXPECT_EQ(mine.epoch(), 2);
}

}  // namespace
}  // namespace railweave
