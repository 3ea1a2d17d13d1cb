// Which communicators over several nodes are served where nobody says: what the ranks' nodes are like → why not, or nothing.
#include "several_nodes.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "settings.hpp"

namespace railweave::cuda {
namespace {

constexpr std::uint64_t kGbit = 125'000'000;

// Two nodes of two ranks, each with a NIC of 10 Gbit/s and four CPUs of its own.
struct TwoNodes : testing::Test {
  TwoNodes() {
    cluster.world = 4;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      if (rank % 2 == 0) cluster.nodes.push_back({"node" + std::to_string(rank / 2), {}, {}});
      cluster.nodes.back().ranks.push_back(rank);
      add_nic(rank, 10 * kGbit);
      facts[rank].cpus.words[0] = 0xfull << 4 * rank;
    }
  }
  void add_nic(std::uint32_t rank, std::uint64_t rate) {
    engine::NicInfo nic;
    nic.owner = rank;
    nic.device = "eth" + std::to_string(cluster.nics.size());
    nic.rate_Bps = rate;
    cluster.nodes[rank / 2].nics.push_back(static_cast<std::uint32_t>(cluster.nics.size()));
    cluster.nics.push_back(nic);
  }
  std::string objection() const { return objection_to(cluster, facts); }

  engine::Cluster cluster;
  std::vector<NodeFacts> facts{4};
};

TEST_F(TwoNodes, LikeWhatHasBeenMeasuredAreServed) { EXPECT_EQ(objection(), ""); }

TEST_F(TwoNodes, WithABetterNetworkAreNot) {
  facts[3].network = "RDMA device mlx5_0";
  EXPECT_EQ(objection(), "rank 3 has RDMA device mlx5_0, over which several nodes have not run");
}

constexpr const char* kThan0 =
    "rank 2 runs on another node than rank 0, or in another PID namespace of this one (start containers in one: --pid=host, "
    "shareProcessNamespace)";

TEST_F(TwoNodes, OfOneMachineAreNot) {
  cluster.nodes[0].name = "8e2c 8c1f-boot 4026532577";
  cluster.nodes[1].name = "11d0 8c1f-boot 4026532600";
  EXPECT_EQ(objection(), kThan0);
  facts[1].network = "RDMA device mlx5_0";
  EXPECT_EQ(objection(), kThan0) << "which is what to mend";
}

TEST_F(TwoNodes, OfOneMachineBesideAnotherAreNot) {
  cluster.nodes[1].name = "11d0 8c1f-boot 4026532600";
  cluster.nodes[1].ranks = {2};
  cluster.nodes.push_back({"8e2c 8c1f-boot 4026532577", {3}, {}});
  EXPECT_EQ(objection(),
            "rank 3 runs on another node than rank 2, or in another PID namespace of this one (start containers in one: --pid=host, "
            "shareProcessNamespace)");
}

TEST_F(TwoNodes, WithMoreThanAThreadCarriesAreNot) {
  add_nic(2, 10 * kGbit);
  EXPECT_EQ(objection(),
            "the NICs of node 'node1' have 30 Gbit/s for 2 ranks; more than 10 Gbit/s for each can be too much for its thread");
}

// NICs are the node's: one rank may have none, and another two.
TEST_F(TwoNodes, ShareTheirNics) {
  cluster.nics[0].rate_Bps = 20 * kGbit;
  cluster.nodes[0].nics = {0};
  EXPECT_EQ(objection(), "");
}

TEST_F(TwoNodes, WithANicOfUnknownSpeedAreNot) {
  cluster.nics[1].rate_Bps = 0;
  EXPECT_EQ(objection(), "the speed of NIC eth1 of rank 1 is not known");
}

TEST_F(TwoNodes, WithFewCpusAreNot) {
  facts[3].cpus.words[0] = 0x3f00;  // two more than rank 2, which has 8 to 11
  EXPECT_EQ(objection(), "node 'node1' has 6 CPUs for 2 ranks; with less than 4 for each its threads take each other's");
  for (NodeFacts& each : facts) each.cpus.words = {0, 0, 0xff};  // ranks that are not bound
  EXPECT_EQ(objection(), "");
}

TEST_F(TwoNodes, WithAQuotaOfFewCpusAreNot) {
  facts[0].quota = facts[1].quota = 2;
  EXPECT_EQ(objection(), "node 'node0' has 2 CPUs for 2 ranks; with less than 4 for each its threads take each other's");
  facts[0].quota = facts[1].quota = 8;
  EXPECT_EQ(objection(), "");
}

TEST(Quota, IsInWholeCpus) {
  EXPECT_EQ(quota_of("200000 100000"), 2u);
  EXPECT_EQ(quota_of("150000 100000"), 2u);
  EXPECT_EQ(quota_of("max 100000"), 0u);
  EXPECT_EQ(quota_of(""), 0u);
}

struct Networks : testing::Test {
  Networks() {
    char name[] = "/tmp/railweave-infiniband-XXXXXX";
    folder = ::mkdtemp(name);
    variables.clear();
  }
  ~Networks() override { std::filesystem::remove_all(folder); }
  std::string better() const {
    return better_network(folder, [](const char* name) -> const char* {
      const auto at = variables.find(name);
      return at == variables.end() ? nullptr : at->second.c_str();
    });
  }

  std::filesystem::path folder;
  inline static std::map<std::string, std::string> variables;
};

TEST_F(Networks, AreTcpAlone) {
  EXPECT_EQ(better(), "");
  variables = {{"NCCL_NET", "socket"}, {"NCCL_NET_PLUGIN", "none"}};
  EXPECT_EQ(better(), "");
  EXPECT_EQ(better_network(folder / "none", [](const char*) -> const char* { return nullptr; }), "");
}

TEST_F(Networks, AreRdmaUnlessNcclIsToldOtherwise) {
  std::filesystem::create_directory(folder / "mlx5_1");
  std::filesystem::create_directory(folder / "mlx5_0");
  EXPECT_EQ(better(), "RDMA device mlx5_0");
  variables["NCCL_IB_DISABLE"] = "1";
  EXPECT_EQ(better(), "");
  variables["NCCL_IB_DISABLE"] = "0";
  EXPECT_EQ(better(), "RDMA device mlx5_0");
}

TEST_F(Networks, AreAPlugins) {
  variables["NCCL_NET"] = "AWS Libfabric";
  EXPECT_EQ(better(), "NCCL_NET=AWS Libfabric");
  variables = {{"NCCL_NET_PLUGIN", "gcp"}};
  EXPECT_EQ(better(), "NCCL_NET_PLUGIN=gcp");
}

// What NCCL was told of interfaces counts, unless something else was said.
TEST(Interfaces, AreNccls) {
  railweave_cuda_config config{};
  config.size = sizeof config;
  ::setenv("NCCL_SOCKET_IFNAME", "^=eth1", 1);
  EXPECT_EQ(settings_of(config).interfaces, "^=eth1");
  ::setenv("RAILWEAVE_INTERFACES", "rail", 1);
  EXPECT_EQ(settings_of(config).interfaces, "rail");
  ::unsetenv("RAILWEAVE_INTERFACES");
  ::unsetenv("NCCL_SOCKET_IFNAME");
  EXPECT_EQ(settings_of(config).interfaces, "");
}

// Fewer ranks share what an operation may have in packets. What somebody said counts for all of them.
TEST(LowLatencyBytes, FollowTheNumberOfRanksWhereNothingSaysThem) {
  EXPECT_EQ(packets_up_to(2), 4u << 20);
  EXPECT_EQ(packets_up_to(3), 2u << 20);
  EXPECT_EQ(packets_up_to(4), 2u << 20);
  EXPECT_EQ(packets_up_to(5), 1u << 20);
  EXPECT_EQ(packets_up_to(64), 1u << 20);
  railweave_cuda_config config{};
  config.size = sizeof config;
  EXPECT_TRUE(settings_of(config).gpu_low_latency_by_ranks);
  const railweave_setting other{"gpu_blocks", "4"}, setting{"gpu_low_latency_bytes", "7MiB"};
  config.settings = &other;
  config.setting_count = 1;
  EXPECT_TRUE(settings_of(config).gpu_low_latency_by_ranks);
  config.settings = &setting;
  EXPECT_FALSE(settings_of(config).gpu_low_latency_by_ranks);
  EXPECT_EQ(settings_of(config).gpu_low_latency_bytes, 7u << 20);
  config.setting_count = 0;
  ::setenv("RAILWEAVE_GPU_LOW_LATENCY_BYTES", "1MiB", 1);
  EXPECT_FALSE(settings_of(config).gpu_low_latency_by_ranks);
  ::unsetenv("RAILWEAVE_GPU_LOW_LATENCY_BYTES");
}

}  // namespace
}  // namespace railweave::cuda
