#include "railweave/fabric/load.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "railweave/fabric/fabric_json.hpp"
#include "railweave/fabric/limits.hpp"
#include "reading.hpp"

namespace railweave {
namespace {

const LoadOptions kOptions{0, {RAILWEAVE_TEMPLATES}};

class Load : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) / ("railweave-load-" + std::to_string(testing::UnitTest::GetInstance()->random_seed()) +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::filesystem::path folder_;
};

// What a template says about a machine, in one line.
struct Machine {
  std::uint32_t gpus, nics, rails;
  std::uint64_t nvlink_Bps;  // of gpu0, summed
  std::uint64_t port_Bps;
};

TEST_F(Load, TemplatesAreTheMachinesTheyName) {
  constexpr std::uint64_t kG = 1'000'000'000;
  const std::map<std::string, Machine> kMachines = {
      {"charisma-ab", {4, 2, 2, 150 * kG, 12'500'000'000}},
      {"charisma-c", {4, 2, 2, 150 * kG, 12'500'000'000}},
      {"charisma-e", {8, 2, 2, 300 * kG, 12'500'000'000}},
      {"dgx-1v", {8, 4, 4, 150 * kG, 12'500'000'000}},
      {"h100-4gpu-ndr", {4, 4, 4, 450 * kG, 50 * kG}},
      {"hgx-h100", {8, 8, 8, 450 * kG, 50 * kG}},
      {"hgx-h200", {8, 8, 8, 450 * kG, 50 * kG}},
      {"kisti-a100-8gpu", {8, 4, 0, 300 * kG, 25 * kG}},
      {"kisti-v100-8gpu", {8, 2, 0, 150 * kG, 12'500'000'000}},
      {"kisti-v100-4gpu", {4, 1, 0, 150 * kG, 12'500'000'000}},
      {"kisti-v100-2gpu", {2, 1, 0, 0, 12'500'000'000}},
      {"lineyahoo-2nic", {8, 2, 2, 450 * kG, 50 * kG}},
      {"lineyahoo-4nic", {8, 4, 4, 450 * kG, 50 * kG}},
      {"lineyahoo-4nic-rewired", {8, 4, 4, 450 * kG, 50 * kG}},
      {"xe9680-4hca", {8, 4, 4, 450 * kG, 50 * kG}},
  };
  const std::vector<std::string> names = template_names(kOptions.template_dirs);
  EXPECT_EQ(names.size(), kMachines.size());
  for (const std::string& name : names) {
    ASSERT_EQ(kMachines.count(name), 1) << name << " is not in this test's table";
    const Machine& machine = kMachines.at(name);
    const Fabric fabric = load_fabric(name, kOptions);
    EXPECT_EQ(fabric.gpu_count(), machine.gpus) << name;
    EXPECT_EQ(fabric.nics_of(0).size(), machine.nics) << name;
    std::set<std::uint32_t> rails;
    for (VertexId nic : fabric.nics_of(0)) {
      if (fabric.vertex(nic).rail != kNone) rails.insert(fabric.vertex(nic).rail);
      for (EdgeId e : fabric.out_edges(nic)) {
        if (fabric.edge(e).kind != EdgeKind::rail) continue;
        EXPECT_EQ(fabric.edge(e).capacity_Bps, machine.port_Bps) << name;
      }
    }
    EXPECT_EQ(rails.size(), machine.rails) << name;
    std::uint64_t nvlink = 0;
    for (EdgeId e : fabric.out_edges(fabric.gpu(0))) nvlink += fabric.edge(e).kind == EdgeKind::nvlink ? fabric.edge(e).capacity_Bps : 0;
    EXPECT_EQ(nvlink, machine.nvlink_Bps) << name;
    for (const Edge& edge : fabric.edges()) EXPECT_FALSE(edge.source.empty()) << name << ": " << fabric.vertex(edge.from).name;
    const std::string json = format_fabric_json(fabric);
    EXPECT_EQ(format_fabric_json(parse_fabric_json(json, name)), json);
  }
}

TEST_F(Load, NvlinkMeshesAreSymmetric) {
  for (const char* name : {"dgx-1v", "kisti-v100-8gpu", "h100-4gpu-ndr", "charisma-c"}) {
    const Fabric fabric = load_fabric(name, kOptions);
    std::map<VertexId, std::uint64_t> sum;
    for (const Edge& edge : fabric.edges()) {
      if (edge.kind != EdgeKind::nvlink) continue;
      sum[edge.from] += edge.capacity_Bps;
      EXPECT_EQ(fabric.edge(fabric.find_edge(edge.to, edge.from)).capacity_Bps, edge.capacity_Bps);
    }
    for (GpuId g = 0; g < fabric.gpu_count(); ++g) EXPECT_EQ(sum[fabric.gpu(g)], sum[fabric.gpu(0)]) << name << " gpu" << g;
  }
}

TEST_F(Load, EveryVertexOfEveryTemplateCanReachEveryOther) {
  for (const std::string& name : template_names(kOptions.template_dirs)) {
    const Fabric fabric = load_fabric(name, {2, kOptions.template_dirs});
    std::set<VertexId> seen = {0};
    std::vector<VertexId> next = {0};
    while (!next.empty()) {
      const VertexId v = next.back();
      next.pop_back();
      for (EdgeId e : fabric.out_edges(v)) {
        if (seen.insert(fabric.edge(e).to).second) next.push_back(fabric.edge(e).to);
      }
    }
    EXPECT_EQ(seen.size(), fabric.vertices().size()) << name;
  }
}

TEST_F(Load, KindsAreToldByContentNotByName) {
  const std::string json = write("a", format_fabric_json(load_fabric("kisti-v100-2gpu", kOptions)));
  EXPECT_EQ(load_fabric(json, kOptions).gpu_count(), 2);
  const std::string xml = write("b",
                                "\n <system version=\"1\"><cpu numaid=\"0\"><pci class=\"0x0302\" busid=\"0:1\" link_speed=\"8 GT/s\" "
                                "link_width=\"16\"/></cpu></system>");
  EXPECT_EQ(load_fabric(xml, {3, {}}).node_count(), 3);
  const std::string cluster = write(
      "c",
      "# comment\nformat: railweave-cluster\nversion: 1\nname: c\nnodes: [{template: b.xml, count: 2}, {template: dgx-1v, count: 1}]\n");
  write("b.xml",
        "<system version=\"1\"><cpu numaid=\"0\"><pci class=\"0x0302\" busid=\"0:1\" link_speed=\"8 GT/s\" "
        "link_width=\"16\"/></cpu></system>");
  EXPECT_EQ(load_fabric(cluster, kOptions).gpu_count(), 10);
}

TEST_F(Load, APipeIsReadToItsEnd) {
  const std::string text = format_fabric_json(load_fabric("dgx-1v", kOptions)) + std::string(200'000, ' ');  // more than a pipe holds
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << text; });
  const Fabric fabric = load_fabric(pipe, kOptions);
  writer.join();
  EXPECT_EQ(fabric.gpu_count(), 8);
}

TEST_F(Load, WhatMakesNoFabricNamesItsFile) {
  const std::string xml =
      write("topology.xml", "<system version=\"1\"><cpu numaid=\"0\" arch=\"\xE9\"><pci class=\"0x0302\" busid=\"0:1\"/></cpu></system>");
  EXPECT_EQ(parse_error([&] { load_fabric(xml, {}); }),
            xml + ": attribute 'cpu.arch' of 'node0/numa0': byte 0 is not UTF-8; expected a fabric that can exist");
  const std::string error = parse_error([&] { load_fabric("hgx-h100", {limits::kNodes, kOptions.template_dirs}); });
  EXPECT_EQ(error.rfind("hgx-h100: 131072 GPUs", 0), 0) << error;
}

TEST_F(Load, ErrorsOfANestedFileNameThatFile) {
  const std::string cluster = write("c.yaml", "format: railweave-cluster\nversion: 1\nname: c\nnodes: [{template: bad.xml, count: 2}]\n");
  write("bad.xml", "<system version=\"1\">\n<cpu/></system>");
  const std::string error = parse_error([&] { load_fabric(cluster, kOptions); });
  EXPECT_NE(error.find("bad.xml:2:2: /system/cpu[1]"), std::string::npos) << error;
}

TEST_F(Load, AFolderOfATemplatesNameIsNotInItsWay) {
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directories(folder_ / "dgx-1v");
  std::filesystem::current_path(folder_);
  const Fabric fabric = load_fabric("dgx-1v", kOptions);
  const std::string named = parse_error([] { load_fabric("./dgx-1v", kOptions); });
  std::filesystem::current_path(before);
  EXPECT_EQ(fabric.gpu_count(), 8U);
  EXPECT_NE(named.find("./dgx-1v: not a file"), std::string::npos) << named;
}

TEST_F(Load, WhatCannotBeLoadedSaysWhatCould) {
  const auto error_of = [](const std::string& what) { return parse_error([&] { load_fabric(what, kOptions); }); };
  EXPECT_NE(error_of("no-such-machine").find("no such file, and no template of that name; expected a file, or one of charisma-ab"),
            std::string::npos);
  EXPECT_NE(error_of(std::string(300, 'x')).find("x: cannot be read: File name too long; expected a readable file"), std::string::npos);
  // Of a process's own memory the first page is never there, for root either.
  EXPECT_NE(error_of("/proc/self/mem").find("mem: cannot be read: Input/output error; expected a readable file"), std::string::npos);
  EXPECT_NE(error_of("../hgx-h100").find("no such file"), std::string::npos) << "templates come from their folder only";
  EXPECT_NE(error_of(folder_.string()).find("not a file"), std::string::npos);
  EXPECT_NE(error_of(write("empty", "")).find("an empty document"), std::string::npos);
  for (const char* other : {"root:x:0:0:root:/root:/bin/bash\n", "PK\x03\x04\n- *a\n", "# nThread 1\n 8  16  float\n"}) {
    EXPECT_NE(error_of(write("other", other)).find("other: not of a kind that is read here; expected an NCCL topology file"),
              std::string::npos);
  }
  EXPECT_NE(error_of(write("utf16", "\xFF\xFE<")).find("utf16: UTF-16 text; expected UTF-8"), std::string::npos);
  EXPECT_NE(error_of(write("utf16be", "\xFE\xFF")).find("utf16be: UTF-16 text; expected UTF-8"), std::string::npos);
  EXPECT_NE(error_of(write("quoted", "'format': railweave-node\n")).find("is missing"), std::string::npos);
  const std::string json = write("a.json", format_fabric_json(load_fabric("dgx-1v", kOptions)));
  EXPECT_THROW(load_fabric(json, {2, {}}), FabricError);
}

}  // namespace
}  // namespace railweave
