#include "railweave/fabric/nccl_topology.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "railweave/fabric/cluster.hpp"
#include "reading.hpp"

namespace railweave {
namespace {

// One host of the parsed file, so that links can be asked for by name.
class Host {
 public:
  explicit Host(const std::string& body,
                const std::string& cpu = R"(numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143")")
      : Host(parse_nccl_topology("<system version=\"1\"><cpu " + cpu + ">" + body + "</cpu></system>", "test.xml")) {}
  explicit Host(const NodeTemplate& node) : fabric_(make_cluster("test", {{node, 1}}, node.network)) {}

  const Vertex* part(const std::string& name) const {
    const VertexId id = fabric_.find_vertex(name.starts_with("leaf") ? name : "node0/" + name);
    return id == kNone ? nullptr : &fabric_.vertex(id);
  }
  const Edge* edge(const std::string& from, const std::string& to) const {
    const EdgeId id = fabric_.find_edge(id_of(from), id_of(to));
    return id == kNone ? nullptr : &fabric_.edge(id);
  }
  std::uint64_t Bps(const std::string& from, const std::string& to) const {
    return edge(from, to) == nullptr ? 0 : edge(from, to)->capacity_Bps;
  }
  std::size_t count(VertexKind kind) const {
    std::size_t count = 0;
    for (const Vertex& v : fabric_.vertices()) count += v.kind == kind ? 1 : 0;
    return count;
  }

 private:
  VertexId id_of(const std::string& name) const { return fabric_.find_vertex(name.starts_with("leaf") ? name : "node0/" + name); }
  Fabric fabric_;
};

std::string gpu(int dev, const std::string& bus, const std::string& inside, const std::string& speed = "32.0 GT/s PCIe") {
  return "<pci busid=\"" + bus + "\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\" link_speed=\"" + speed +
         "\" link_width=\"16\"><gpu dev=\"" + std::to_string(dev) + "\" sm=\"90\" rank=\"" + std::to_string(dev) + "\" gdr=\"1\">" +
         inside + "</gpu></pci>";
}

std::string bridge(const std::string& bus, const std::string& inside, const std::string& more = "") {
  return "<pci busid=\"" + bus + "\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\" link_width=\"8\" " + more + ">" + inside + "</pci>";
}

std::string nic(const std::string& bus, const std::string& nets) {
  return "<pci busid=\"" + bus +
         "\" class=\"0x020700\" vendor=\"0x15b3\" device=\"0x1021\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><nic>" + nets +
         "</nic></pci>";
}

const std::string kSwitch =
    "<nvlink target=\"0000:07:00.0\" count=\"9\" tclass=\"0x068000\"/><nvlink target=\"0000:08:00.0\" count=\"9\" tclass=\"0x068000\"/>";

TEST(NcclTopology, AttributesOfEveryElementAreKept) {
  const Host host(
      bridge("0000:10:00.0", gpu(0, "0000:11:00.0", R"(<nvlink target="0000:05:00.0" count="9" tclass="0x068000"/>
      <nvlink target="0000:06:00.0" count="9" tclass="0x068000"/>)") +
                                 nic("0000:12:00.0", R"(<net name="mlx5_3" dev="0" speed="400000" guid="0xabc" maxconn="8"/>)")),
      R"(numaid="3" affinity="0000ffff" host_hash="0x1")");
  EXPECT_EQ(*host.part("numa0")->attributes, (Attributes{{"cpu.affinity", "0000ffff"}, {"cpu.host_hash", "0x1"}, {"cpu.numaid", "3"}}));
  EXPECT_EQ(host.part("switch0")->attributes->at("pci.link_width"), "8");
  const Attributes& gpu0 = *host.part("gpu0")->attributes;
  EXPECT_EQ(gpu0.at("gpu.rank"), "0");
  EXPECT_EQ(gpu0.at("nvlink.target"), "0000:05:00.0");
  EXPECT_EQ(gpu0.at("nvlink1.target"), "0000:06:00.0");
  EXPECT_EQ(gpu0.count("pci.busid"), 0U);
  const Attributes& nic0 = *host.part("nic0")->attributes;
  EXPECT_EQ(nic0.at("pci.device"), "0x1021");
  EXPECT_EQ(nic0.at("net.guid"), "0xabc");
  EXPECT_EQ(nic0.at("net.maxconn"), "8");
}

TEST(NcclTopology, PcieTreeWithRatesOfEachLink) {
  const Host host(bridge("0:1", gpu(0, "0:2", "", "8 GT/s") + nic("0:3", R"(<net name="mlx5_0" dev="0" speed="400000" gdr="1"/>)")));
  EXPECT_EQ(host.Bps("switch0", "numa0"), 15'753'846'153) << "16 GT/s x8";
  EXPECT_EQ(host.Bps("gpu0", "switch0"), 15'753'846'153) << "8 GT/s x16";
  EXPECT_EQ(host.Bps("nic0", "switch0"), 63'015'384'615) << "32 GT/s x16";
  EXPECT_EQ(host.Bps("nic0", "leaf0"), 50'000'000'000) << "400000 Mbit/s";
  EXPECT_EQ(host.part("gpu0")->model, "H100 SXM5 80GB");
  EXPECT_EQ(host.part("nic0")->model, "ConnectX-7");
  EXPECT_EQ(host.part("gpu0")->bus_id, "0:2");
  EXPECT_TRUE(host.part("gpu0")->gdr);
}

TEST(NcclTopology, LinksWithoutSpeedOrWidthGetNcclsDefaults) {
  struct Row {
    const char *speed, *width;
    std::uint64_t Bps;
    const char* source;
  };
  for (const Row& row :
       {Row{"32.0 GT/s PCIe", "0", 63'015'384'615, "x16 assumed"}, Row{"", "16", 15'753'846'153, "8 GT/s assumed"},
        Row{"Unknown", "4", 3'938'461'538, "8 GT/s assumed"}, Row{"2.5 GT/s", "1", 250'000'000, "2.5 GT/s x1"},
        Row{"5.0 GT/s PCIe", "255", 8'000'000'000, "x16 assumed"}, Row{"64.0 GT/s PCIe", "16", 118'000'000'000, "64.0 GT/s x16"}}) {
    const Host host("<pci busid=\"0:1\" class=\"0x030200\" link_speed=\"" + std::string(row.speed) + "\" link_width=\"" + row.width +
                    "\"/>");
    EXPECT_EQ(host.Bps("gpu0", "numa0"), row.Bps) << row.speed << " x" << row.width;
    EXPECT_NE(host.edge("gpu0", "numa0")->source.find(row.source), std::string::npos) << host.edge("gpu0", "numa0")->source;
  }
}

TEST(NcclTopology, NvswitchPlanesAddUpToOneVertex) {
  const Host host(gpu(0, "0:1", kSwitch) + gpu(1, "0:2", kSwitch));
  EXPECT_EQ(host.count(VertexKind::nvswitch), 1);
  EXPECT_EQ(host.Bps("gpu0", "nvswitch0"), 450'000'000'000);
  EXPECT_EQ(host.Bps("nvswitch0", "gpu1"), 450'000'000'000);
  EXPECT_EQ(host.edge("gpu0", "gpu1"), nullptr);
}

TEST(NcclTopology, NvlinksBetweenGpusFollowTheirTargets) {
  const Host host(gpu(0, "0:1", R"(<nvlink target="0:2" count="2" tclass="0x030200"/><nvlink target="9:9" count="1" tclass="0x030200"/>)") +
                  gpu(1, "0:2", R"(<nvlink target="0:1" count="2" tclass="0x030200"/>)") + gpu(2, "0:a", ""));
  EXPECT_EQ(host.Bps("gpu0", "gpu1"), 50'000'000'000);
  EXPECT_EQ(host.Bps("gpu1", "gpu0"), 50'000'000'000);
  EXPECT_EQ(host.edge("gpu0", "gpu2"), nullptr);
}

TEST(NcclTopology, NvlinksToTheCpuReplaceASlowerPcieLinkThere) {
  const std::string power = R"(<nvlink target="0004:04:00.0" count="3" tclass="0x068001"/>)";
  const Host direct(gpu(0, "0:1", power));
  EXPECT_EQ(direct.Bps("gpu0", "numa0"), 75'000'000'000);
  EXPECT_EQ(direct.edge("gpu0", "numa0")->kind, EdgeKind::nvlink);
  const Host below(bridge("0:1", gpu(0, "0:2", power)));
  EXPECT_EQ(below.edge("gpu0", "switch0")->kind, EdgeKind::pcie);
  EXPECT_EQ(below.edge("numa0", "gpu0")->kind, EdgeKind::nvlink);
}

TEST(NcclTopology, C2cIsTheWayToTheCpu) {
  const Host host(gpu(0, "0:1", R"(<c2c bw="25000" count="18"/>)"));
  EXPECT_EQ(host.Bps("gpu0", "numa0"), 450'000'000'000);
  EXPECT_EQ(host.edge("numa0", "gpu0")->kind, EdgeKind::c2c);
}

TEST(NcclTopology, DevicesAreToldByClassAloneAndNumberedByBusId) {
  const std::string row = R"(" link_speed="16 GT/s" link_width="16"/>)";
  const Host host(
      bridge("ffff:ff:01.0", R"(<pci class="0x030200" busid="0003:00:00.0)" + row + R"(<pci class="0x020700" busid="0103:00:00.0)" + row +
                                 R"(<pci class="0x030000" busid="0001:00:00.0)" + row + R"(<pci class="0x020000" busid="0101:00:00.0)" +
                                 row + R"(<pci class="0x010802" busid="0009:00:00.0)" + row));
  EXPECT_EQ(host.count(VertexKind::gpu), 2);
  EXPECT_EQ(host.count(VertexKind::nic), 2);
  EXPECT_EQ(host.count(VertexKind::pcie_switch), 1) << "the NVMe drive is no part of a GPU fabric";
  EXPECT_EQ(host.part("gpu0")->bus_id, "0001:00:00.0");
  EXPECT_EQ(host.part("nic1")->bus_id, "0103:00:00.0");
  EXPECT_EQ(host.Bps("nic0", "leaf0"), 31'507'692'307);
  EXPECT_NE(host.edge("nic0", "leaf0")->source.find("assumed"), std::string::npos);
  EXPECT_TRUE(host.part("gpu0")->gdr);
}

TEST(NcclTopology, DevNumbersGoBeforeBusIds) {
  const Host host(gpu(1, "0:1", "") + gpu(0, "0:2", ""));
  EXPECT_EQ(host.part("gpu0")->bus_id, "0:2");
}

TEST(NcclTopology, PortsOfOneCardShareItsLink) {
  const Host host(gpu(0, "0:1", "") +
                  nic("0:2", R"(<net name="a" dev="0" speed="200000" gdr="1"/><net name="b" dev="1" speed="100000" gdr="1"/>)"));
  EXPECT_EQ(host.Bps("nic0", "switch0"), 63'015'384'615);
  EXPECT_EQ(host.Bps("nic1", "switch0"), 63'015'384'615);
  EXPECT_EQ(host.Bps("switch0", "numa0"), 63'015'384'615);
  EXPECT_EQ(host.Bps("nic1", "leaf1"), 12'500'000'000);
}

TEST(NcclTopology, NetsThatNcclLeavesOut) {
  const Host host(
      gpu(0, "0:1", "") +
      nic("0:2", R"(<net name="no dev" speed="1"/><net name="coll" dev="0" net="0" coll="1"/><net name="a" dev="1" speed="-1"/>)"));
  EXPECT_EQ(host.count(VertexKind::nic), 1);
  EXPECT_EQ(host.Bps("nic0", "leaf0"), 1'250'000'000) << "no speed: 10 Gbit/s as in NCCL";
  EXPECT_FALSE(host.part("gpu0")->gdr) << "no NIC can do it";
}

TEST(NcclTopology, NetsWithoutPlaceHangFromTheirCpu) {
  const Host host(gpu(0, "0:1", "") +
                  R"(<nic><net name="eth0" dev="0" speed="25000" latency="2.5"/><net name="eth1" dev="1" speed="25000" rail="5"/></nic>)");
  EXPECT_EQ(host.Bps("nic0", "numa0"), 3'125'000'000);
  EXPECT_EQ(host.edge("nic0", "leaf0")->latency_ns, 2'500);
  EXPECT_EQ(host.part("nic1")->rail, 5);
  EXPECT_EQ(host.part("leaf1")->rail, 5);
}

TEST(NcclTopology, ALatencyOf0IsNotSet) {
  const Host host(gpu(0, "0:1", "") + R"(<nic><net name="a" dev="0" latency="0.000000"/><net name="b" dev="1"/></nic>)");
  EXPECT_EQ(host.edge("nic0", "leaf0")->latency_ns, 1'000);
  EXPECT_EQ(host.edge("nic1", "leaf1")->latency_ns, 1'000);
}

TEST(NcclTopology, BroadcomSwitchesInTwoLevelsAreOneSwitch) {
  const std::string gen4 = R"(vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="0xa096")";
  const std::string gen5 = R"(vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x)";
  const auto switches = [](const std::string& upper, const std::string& lower) {
    const Host host(bridge("0:1", bridge("0:2", gpu(0, "0:3", ""), lower) + bridge("0:4", gpu(1, "0:5", ""), lower), upper));
    EXPECT_NE(host.edge("gpu1", "switch" + std::to_string(host.count(VertexKind::pcie_switch) - 1)), nullptr);
    return host.count(VertexKind::pcie_switch);
  };
  EXPECT_EQ(switches(gen4, gen4), 1);
  EXPECT_EQ(switches(gen5 + "0064\"", gen5 + "1064\""), 1);
  EXPECT_EQ(switches(gen5 + "0064\"", gen5 + "0064\""), 3);
  EXPECT_EQ(switches("", ""), 3);
}

TEST(NcclTopology, PcilinksJoinSwitches) {
  const Host host(bridge("0:1", R"(<pcilink target="0:3"/>)" + gpu(0, "0:2", "")) +
                  bridge("0:3", R"(<pcilink target="0:1"/>)" + gpu(1, "0:4", "")));
  ASSERT_NE(host.edge("switch0", "switch1"), nullptr);
  EXPECT_NE(host.edge("switch1", "switch0"), nullptr);
}

TEST(NcclTopology, SocketsByCpuAsNcclHasThem) {
  struct Row {
    const char* cpu;
    std::uint64_t GBps;
  };
  for (const Row& row : {Row{R"(arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79")", 6},
                         Row{R"(arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85")", 10},
                         Row{R"(arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143")", 22},
                         Row{R"(arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207")", 40},
                         Row{R"(arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1")", 16}, Row{R"(arch="arm64")", 6},
                         Row{R"(arch="ppc64")", 32}}) {
    const std::string cpu = row.cpu;
    const NodeTemplate node = parse_nccl_topology("<system version=\"1\"><cpu numaid=\"1\" " + cpu + ">" + gpu(0, "0:1", "") +
                                                      "</cpu><cpu numaid=\"0\" " + cpu + ">" + gpu(1, "0:2", "") + "</cpu></system>",
                                                  "test.xml");
    const Host host(node);
    EXPECT_EQ(host.Bps("numa0", "numa1"), row.GBps * 1'000'000'000) << cpu;
    EXPECT_NE(host.edge("gpu1", "numa0"), nullptr) << "NUMA nodes are numbered by numaid";
  }
}

TEST(NcclTopology, WhatNcclIgnoresIsIgnored) {
  const Host host("<unknown a=\"1\"><gpu/></unknown><!-- comment -->" + gpu(0, "0:1", "<other/>"));
  EXPECT_EQ(host.count(VertexKind::gpu), 1);
}

struct Fault {
  std::string text;
  const char* error;
};

TEST(NcclTopology, ErrorsNameLineColumnPathAndWhatWasExpected) {
  const auto system = [](const std::string& body) { return "<system version=\"1\">\n<cpu numaid=\"0\">\n" + body + "\n</cpu>\n</system>"; };
  const std::vector<Fault> kFaults = {
      {"", "t.xml:1:1: not XML: No document element found"},
      {"<system version=\"1\"><cpu></system>", "t.xml:1:28: not XML: Start-end tags mismatch"},
      {"<topology/>", "t.xml: no element 'system'; expected an NCCL topology file, as NCCL_TOPO_DUMP_FILE writes it"},
      {"<system version=\"2\"/>", "t.xml:1:2: /system: version=\"2\"; expected version 1"},
      {"<system/>", "t.xml:1:2: /system: version=\"\"; expected version 1"},
      {system(""), "t.xml:1:2: /system: no GPU; expected a pci element with a gpu element, or of class 0x03"},
      {"<system version=\"1\">\n<cpu/></system>",
       "t.xml:2:2: /system/cpu[1]: no attribute 'numaid'; expected the number of the NUMA node, -1 where the machine has only one"},
      {"<system version=\"1\">\n<cpu numaid=\"x\"/></system>",
       "t.xml:2:2: /system/cpu[1]: attribute numaid=\"x\"; expected a whole number"},
      {system("<pci busid=\"0:1\"/>"),
       "t.xml:3:2: /system/cpu[1]/pci[1]: no attribute 'class'; expected the PCI class, such as 0x060400 for a switch"},
      {system("<pci class=\"0x0302\"/>"),
       "t.xml:3:2: /system/cpu[1]/pci[1]: no attribute 'busid'; expected the PCI address, such as 0000:1b:00.0"},
      {system("<pci class=\"0x0302\" busid=\"gpu\"/>"),
       "t.xml:3:2: /system/cpu[1]/pci[1]: busid=\"gpu\"; expected a PCI address, such as 0000:1b:00.0"},
      {system(gpu(0, "0:1", "") + "\n" + gpu(1, "0:1", "")),
       "t.xml:4:2: /system/cpu[1]/pci[2]: busid=\"0:1\" of a second GPU; expected unique addresses"},
      {system(gpu(0, "0:1", "\n<nvlink count=\"0\" tclass=\"0x068000\"/>")),
       "t.xml:4:2: /system/cpu[1]/pci[1]/gpu[1]/nvlink[1]: 0 NVLinks of a GPU with sm=\"90\"; expected a count of 1 to 1024, and an sm of "
       "60 or more"},
      {system(gpu(0, "0:1", "\n<nvlink count=\"1\"/>")),
       "t.xml:4:2: /system/cpu[1]/pci[1]/gpu[1]/nvlink[1]: no attribute 'tclass'; expected the PCI class of the other end, such as "
       "0x068000 for an NVSwitch"},
      {system(gpu(0, "0:1", "\n<nvlink count=\"1\" tclass=\"0x03\" target=\"0:1\"/>")),
       "t.xml:4:2: /system/cpu[1]/pci[1]/gpu[1]/nvlink[1]: an NVLink from a GPU to itself; expected another target"},
      {system(gpu(0, "0:1", "\n<c2c count=\"1\" bw=\"0\"/>")),
       "t.xml:4:2: /system/cpu[1]/pci[1]/gpu[1]/c2c[1]: count=\"1\" bw=\"0\"; expected a count of 1 to 1024 and MB/s above 0"},
      {"<system version=\"1\"><cpu numaid=\"0\" host_hash=\"0x1\"/>\n<cpu numaid=\"0\" host_hash=\"0x2\"/></system>",
       "t.xml:2:2: /system/cpu[2]: a second host (host_hash); expected one host a file; join hosts in a cluster file"},
  };
  for (const Fault& fault : kFaults) EXPECT_EQ(parse_error([&] { parse_nccl_topology(fault.text, "t.xml"); }), fault.error) << fault.text;
}

TEST(NcclTopology, HostileTextsAreRefusedByNamedLimits) {
  std::string deep, close;
  for (int i = 0; i < 5'000; ++i) {
    deep += "<pci class=\"0x060400\" busid=\"0:1\">";
    close += "</pci>";
  }
  const std::string nested = "<system version=\"1\"><cpu numaid=\"0\">" + deep + close + "</cpu></system>";
  EXPECT_NE(parse_error([&] { parse_nccl_topology(nested, "x"); }).find("pci elements nested more than 32 deep"), std::string::npos);
  std::string wide;
  for (int i = 0; i < 5'000; ++i) wide += "<pci class=\"0x0302\" busid=\"" + std::to_string(i) + "\"/>";
  const std::string many = "<system version=\"1\"><cpu numaid=\"0\">" + wide + "</cpu></system>";
  EXPECT_NE(parse_error([&] { parse_nccl_topology(many, "x"); }).find("more than 4096 devices"), std::string::npos);
}

// The machine whose file stands in examples/: four H200 behind NVSwitch, one rail beside each GPU.
TEST(NcclTopology, TheExampleFileIsRailAligned) {
  const std::filesystem::path path = std::filesystem::path(RAILWEAVE_EXAMPLES) / "nccl-topo-4xH200-rail-aligned.xml";
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const NodeTemplate node = parse_nccl_topology(text.str(), path.string());
  EXPECT_EQ(node.name, "nccl-topo-4xH200-rail-aligned");
  const Host host(node);
  for (int i = 0; i < 4; ++i) {
    const std::string n = std::to_string(i);
    EXPECT_EQ(host.Bps("gpu" + n, "nvswitch0"), 450'000'000'000);
    EXPECT_NE(host.edge("gpu" + n, "switch" + n), nullptr);
    EXPECT_NE(host.edge("nic" + n, "switch" + n), nullptr);
    EXPECT_EQ(host.Bps("nic" + n, "leaf" + n), 1'250'000'000);
    EXPECT_FALSE(host.part("gpu" + n)->gdr) << "the rails are sockets";
  }
}

// Every topology file of a folder parses: RAILWEAVE_TOPOLOGY_FILES=/some/folder ctest ...
TEST(NcclTopology, FilesOfAFolderParse) {
  const char* folder = std::getenv("RAILWEAVE_TOPOLOGY_FILES");  // NOLINT(concurrency-mt-unsafe): tests are single-threaded
  if (folder == nullptr) GTEST_SKIP() << "RAILWEAVE_TOPOLOGY_FILES names no folder of topology files";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".xml") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const NodeTemplate node = parse_nccl_topology(text.str(), entry.path().string());
    EXPECT_GT(make_cluster("test", {{node, 2}}, node.network).gpu_count(), 0) << entry.path();
  }
}

}  // namespace
}  // namespace railweave
