// Which network interfaces are rails: rule, as in NCCL_SOCKET_IFNAME → interfaces.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster.hpp"

namespace railweave::engine {
namespace {

std::string rails(std::string_view rule) {
  std::string names;
  for (const char* const name : {"eth0", "eth1", "eth10", "ib0", "docker0", "br-1f2e"}) {
    if (is_rail(name, rule)) names.append(names.empty() ? "" : " ").append(name);
  }
  return names;
}

TEST(Interfaces, AreRailsUnlessContainersHaveThem) { EXPECT_EQ(rails(""), "eth0 eth1 eth10 ib0"); }

TEST(Interfaces, BeginWithWhatIsNamed) {
  EXPECT_EQ(rails("eth1"), "eth1 eth10");
  EXPECT_EQ(rails("ib,eth0"), "eth0 ib0");
  EXPECT_EQ(rails("docker"), "docker0") << "who names it means it";
  EXPECT_EQ(rails("enp"), "");
}

TEST(Interfaces, AreNamedAsAWhole) {
  EXPECT_EQ(rails("=eth1"), "eth1");
  EXPECT_EQ(rails("=eth1,ib0"), "eth1 ib0");
  EXPECT_EQ(rails("=eth"), "");
}

TEST(Interfaces, AreLeftOut) {
  EXPECT_EQ(rails("^eth1"), "eth0 ib0");
  EXPECT_EQ(rails("^=eth1,ib0"), "eth0 eth10");
  EXPECT_EQ(rails("^"), rails(""));
}

}  // namespace
}  // namespace railweave::engine
