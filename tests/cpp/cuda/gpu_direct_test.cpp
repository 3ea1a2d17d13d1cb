// Which NICs read and write a GPU's memory themselves, on machines made of links and files as /sys has them.
#include "gpu_direct.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "job.hpp"

namespace railweave::cuda {
namespace {

class GpuDirect : public testing::Test {
 protected:
  // The GPU at 0000:3C:00.0 and NIC mlx5_0 at these places below /sys/devices.
  void connect(const std::string& gpu, const std::string& nic, int gpu_node = 0, int nic_node = 0) {
    place(gpu, gpu_node, "bus/pci/devices/0000:3c:00.0");
    place(nic, nic_node, "class/infiniband/mlx5_0/device");
  }
  std::string objection(std::uint64_t setting, const std::string& nic = "mlx5_0:1") {
    return direct_objection(setting, gpu_, nic, directory_.path());
  }

  GpuFacts gpu_{"0000:3C:00.0", true, false};

 private:
  void place(const std::string& device, int node, const std::string& link) {
    const auto at = directory_.path() / "devices" / device;
    std::filesystem::create_directories(at);
    std::ofstream(at / "numa_node") << node << '\n';
    const auto name = directory_.path() / link;
    std::filesystem::create_directories(name.parent_path());
    std::filesystem::remove(name);
    std::filesystem::create_symlink(at, name);
  }
  test::ScratchDirectory directory_;
};

TEST_F(GpuDirect, WithinSwitchesTheyDo) {
  connect("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:00.0", "pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3d:00.0");
  EXPECT_EQ(objection(1), "");
  connect("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:00.0", "pci0000:3a/0000:3a:01.0/0000:3e:00.0/0000:3f:00.0/0000:40:00.0");
  EXPECT_EQ(objection(1), "");
}

TEST_F(GpuDirect, OverTheCpuTheyDoOnlyWhenForced) {
  connect("pci0000:3a/0000:3a:01.0/0000:3c:00.0", "pci0000:3a/0000:3a:02.0/0000:3d:00.0");  // two ports of a host bridge
  EXPECT_EQ(objection(1), "the way between it and GPU 0000:3C:00.0 passes the CPU (RAILWEAVE_GPU_DIRECT=2 allows that)");
  EXPECT_EQ(objection(2), "");
  connect("pci0000:3a/0000:3a:01.0/0000:3c:00.0", "pci0000:9a/0000:9a:01.0/0000:9b:00.0");
  EXPECT_NE(objection(1), "");
}

TEST_F(GpuDirect, ACoherentLinkToTheCpuIsAsGoodWithinANumaNode) {
  gpu_.coherent = true;
  connect("pci0009:00/0009:00:00.0/0009:01:00.0", "pci0002:00/0002:00:00.0/0002:01:00.0", 0, 0);
  EXPECT_EQ(objection(1), "");
  connect("pci0009:00/0009:00:00.0/0009:01:00.0", "pci0012:00/0012:00:00.0/0012:01:00.0", 0, 1);
  EXPECT_NE(objection(1), "");
  connect("pci0009:00/0009:00:00.0/0009:01:00.0", "pci0002:00/0002:00:00.0/0002:01:00.0", -1, -1);
  EXPECT_NE(objection(1), "") << "unknown is not the same";
}

TEST_F(GpuDirect, AreAskedForMore) {
  EXPECT_EQ(objection(1), "the system does not say how it and GPU 0000:3C:00.0 are connected");
  connect("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:00.0", "pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3d:00.0");
  EXPECT_EQ(objection(0), "RAILWEAVE_GPU_DIRECT=0");
  EXPECT_EQ(objection(1, "eth0"), "it is no RDMA device");
  EXPECT_EQ(objection(2, "eth0"), "it is no RDMA device") << "whose bytes UCX moves by CUDA's calls";
  EXPECT_EQ(objection(3, "eth0"), "");
  EXPECT_NE(objection(1, "mlx5_7:1"), "");
  gpu_.direct = false;
  EXPECT_EQ(objection(1), "the GPU's driver does not support GPUDirect RDMA");
}

}  // namespace
}  // namespace railweave::cuda
