#include "railweave/demand/demand.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "railweave/error.hpp"

namespace railweave {
namespace {

constexpr std::uint64_t kLimit = std::uint64_t{1} << 63U;

TEST(Demand, KeepsTotalBelow2To63) {
  Demand demand(2);
  demand.set(0, 1, kLimit - 2);
  demand.set(1, 0, 1);
  EXPECT_EQ(demand.total(), kLimit - 1);
  EXPECT_THROW(demand.set(1, 1, 1), DemandError);
  EXPECT_THROW(demand.set(1, 0, 2), DemandError);
  EXPECT_THROW(demand.set(0, 0, kLimit), DemandError);
  EXPECT_THROW(demand.set(0, 2, 1), DemandError);
  EXPECT_EQ(demand.total(), kLimit - 1) << "a refused entry changes nothing";
  demand.set(0, 1, 0);
  EXPECT_EQ(demand.total(), 1) << "an entry is replaced, not added to";
}

TEST(Demand, SkewIsBusiestOverMeanEndpoint) {
  Demand balanced(4);
  for (GpuId s = 0; s < 4; ++s) {
    for (GpuId d = 0; d < 4; ++d) balanced.set(s, d, s == d ? 0 : 10);
  }
  EXPECT_DOUBLE_EQ(balanced.skew(), 1);
  Demand pair(4);
  pair.set(0, 1, 100);
  EXPECT_DOUBLE_EQ(pair.skew(), 2) << "two of four endpoints are busy";
  Demand with_own = pair;
  with_own.set(3, 3, 1000);
  EXPECT_DOUBLE_EQ(with_own.skew(), 2) << "what a rank sends itself crosses no link";
  Demand own(2);
  own.set(1, 1, 5);
  EXPECT_DOUBLE_EQ(own.skew(), 0);
  EXPECT_DOUBLE_EQ(Demand(3).skew(), 0);
  EXPECT_DOUBLE_EQ(Demand().skew(), 0);
}

TEST(DemandFile, ReadsNcclTestsForm) {
  const Demand demand = parse_demand("# rows send\n\n0 16,\t32\r\n1  2 3   # gpu1\n4,5,6", "m.txt");
  EXPECT_EQ(demand.ranks(), 3);
  EXPECT_EQ(demand.at(0, 1), 16);
  EXPECT_EQ(demand.at(0, 2), 32);
  EXPECT_EQ(demand.at(2, 0), 4);
  EXPECT_EQ(demand.total(), 69);
}

TEST(DemandFile, WrittenMatricesReadBack) {
  std::mt19937_64 random(7);
  for (std::uint32_t ranks : {1U, 2U, 5U, 33U}) {
    Demand demand(ranks);
    for (GpuId s = 0; s < ranks; ++s) {
      for (GpuId d = 0; d < ranks; ++d) demand.set(s, d, random() >> (13U + random() % 50U));
    }
    EXPECT_EQ(parse_demand(format_demand(demand), "written"), demand);
  }
}

struct Fault {
  const char* text;
  const char* error;
};

TEST(DemandFile, ErrorsNameLineColumnAndWhatWasExpected) {
  const std::vector<Fault> kFaults = {
      {"", "m.txt: no rows; expected one row of bytes for each sending rank"},
      {"# nothing\n \n", "m.txt: no rows; expected one row of bytes for each sending rank"},
      {"0 1\n1 x", "m.txt:2:3: 'x'; expected a number of bytes from 0 to 2^63 - 1"},
      {"0 -1\n1 0", "m.txt:1:3: '-1'; expected a number of bytes from 0 to 2^63 - 1"},
      {"0 1.5\n1 0", "m.txt:1:3: '1.5'; expected a number of bytes from 0 to 2^63 - 1"},
      {"0 1e3\n1 0", "m.txt:1:3: '1e3'; expected a number of bytes from 0 to 2^63 - 1"},
      {"0 9223372036854775808\n1 0", "m.txt:1:3: '9223372036854775808'; expected a number of bytes from 0 to 2^63 - 1"},
      {"0 99999999999999999999999\n1 0", "m.txt:1:3: '99999999999999999999999'; expected a number of bytes from 0 to 2^63 - 1"},
      {"0 1\n\n1", "m.txt:3: a row of 1 entries; expected 2 as in line 1"},
      {"0 1\n1 0\n0 0", "m.txt:3: row 3; expected a square matrix of 2 rows"},
      {"0 1 2\n1 0 2", "m.txt:2: 2 rows of 3 entries; expected a square matrix"},
      {"0 9223372036854775807\n1 0", "m.txt:2: demand 1 -> 0: with 1 bytes the total would reach 2^63; expected a total below 2^63 bytes"},
  };
  for (const Fault& fault : kFaults) {
    try {
      parse_demand(fault.text, "m.txt");
      ADD_FAILURE() << "no error for '" << fault.text << "'";
    } catch (const ParseError& error) {
      EXPECT_STREQ(error.what(), fault.error);
    }
  }
}

TEST(DemandFile, WideRowsAreRefused) {
  std::string row;
  for (int i = 0; i < 16'385; ++i) row += "0 ";
  EXPECT_THROW(parse_demand(row, "m.txt"), ParseError);
}

TEST(Demand, FitsAFabricOfAsManyGpus) {
  FabricBuilder builder("one");
  builder.add_node("n");
  Vertex gpu;
  gpu.node = 0;
  gpu.name = "gpu0";
  builder.add_vertex(std::move(gpu));
  const Fabric fabric = std::move(builder).build();
  EXPECT_NO_THROW(check_fits(Demand(1), fabric));
  EXPECT_THROW(check_fits(Demand(2), fabric), DemandError);
}

}  // namespace
}  // namespace railweave
