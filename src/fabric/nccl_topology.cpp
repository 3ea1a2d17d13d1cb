#include "railweave/fabric/nccl_topology.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "pci_models.hpp"
#include "railweave/fabric/limits.hpp"
#include "railweave/fabric/link_rates.hpp"
#include "xml_place.hpp"

namespace railweave {
namespace {

// Latencies, which the format does not have, of one crossing each. Assumed; measure and override where they matter.
constexpr std::uint64_t kPcieLatencyNs = 250, kNvlinkLatencyNs = 500, kSocketLatencyNs = 150, kPortLatencyNs = 1000;

enum class Device : std::uint8_t { gpu, nic, nvswitch, cpu, pci };

// By the start of the PCI class, as NCCL tells devices apart; anything else is a bridge.
Device device_of(std::string_view pci_class) {
  constexpr std::array<std::pair<std::string_view, Device>, 4> kClasses = {
      {{"0x068000", Device::nvswitch}, {"0x068001", Device::cpu}, {"0x03", Device::gpu}, {"0x02", Device::nic}}};
  for (const auto& [prefix, device] : kClasses) {
    if (pci_class.starts_with(prefix)) return device;
  }
  return Device::pci;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

class TopologyReader {
 public:
  TopologyReader(const XmlText& text, NodeTemplate& node, const std::string& described_by)
      : text_(text), node_(node), described_by_(described_by) {}
  void read(const pugi::xml_node& system);

 private:
  // A GPU or NIC that was found, and where.
  struct Found {
    VertexId vertex = kNone;
    pugi::xml_node element;  // its pci or net element
    std::optional<long long> dev;
    std::optional<long long> rail;  // nic
    VertexId numa = kNone;
    LinkClass parent_link;
  };

  void read_cpu(const pugi::xml_node& cpu);
  void read_pci(const pugi::xml_node& pci, VertexId parent, VertexId numa, unsigned depth);
  void read_gpu(const pugi::xml_node& pci, VertexId parent, VertexId numa);
  void keep_gpu(VertexId vertex, const pugi::xml_node& pci);
  void read_bare_nic(const pugi::xml_node& pci, VertexId parent);
  // `nic` element: one NIC for each `net`; several share their card's link to `parent`.
  void read_nets(const pugi::xml_node& nic, VertexId parent, const std::optional<LinkClass>& card_link, const std::string& bus_id,
                 const std::string& model);
  void read_bridge(const pugi::xml_node& pci, VertexId parent, VertexId numa, unsigned depth);
  void read_nvlinks(const Found& gpu);
  void read_c2c(const Found& gpu);
  void read_pci_links(const pugi::xml_node& system);
  void connect_sockets(const pugi::xml_node& system);
  void number_devices(std::vector<Found>& found, const char* prefix);
  void settle_rails();
  void settle_gdr();

  VertexId add(const pugi::xml_node& element, VertexKind kind);
  // Keeps an element's attributes with a vertex; `name` is that of the element, numbered where a vertex has several.
  void keep(VertexId vertex, const std::string& name, const pugi::xml_node& element);
  void link(VertexId a, VertexId b, EdgeKind kind, const LinkClass& link);
  // Adds to the one-way edge a -> b, which is made when there is none.
  void add_nvlinks(VertexId from, VertexId to, EdgeKind kind, std::uint64_t Bps, const std::string& source);
  LinkClass pcie_link(const pugi::xml_node& pci) const;
  std::string bus_id_of(const pugi::xml_node& pci) const;
  const PciModel* model_of(const pugi::xml_node& pci) const;
  std::optional<long long> integer(const pugi::xml_node& element, const char* name) const { return xml_integer(text_, element, name); }
  [[noreturn]] void fail(const pugi::xml_node& element, const std::string& found, const std::string& expected) const {
    xml_fail(text_, element, found, expected);
  }

  const XmlText& text_;
  NodeTemplate& node_;
  const std::string& described_by_;
  std::vector<Found> gpus_, nics_;
  std::map<long long, VertexId> numa_;
  std::map<std::string, VertexId> gpu_by_bus_, bridge_by_bus_;
  std::map<std::pair<VertexId, VertexId>, std::size_t> edges_;
  std::map<VertexId, Attributes> attributes_;
  VertexId nvswitch_ = kNone;
  std::uint32_t bridges_ = 0;
  bool any_gdr_net_ = false, any_net_ = false;
};

VertexId TopologyReader::add(const pugi::xml_node& element, VertexKind kind) {
  if (node_.vertices.size() >= limits::kVerticesPerNode) {
    fail(element, "more than " + std::to_string(limits::kVerticesPerNode) + " devices", "one host");
  }
  Vertex vertex;
  vertex.kind = kind;
  vertex.node = 0;
  node_.vertices.push_back(std::move(vertex));
  return static_cast<VertexId>(node_.vertices.size() - 1);
}

void TopologyReader::keep(VertexId vertex, const std::string& name, const pugi::xml_node& element) {
  Attributes& attributes = attributes_[vertex];
  for (const pugi::xml_attribute& attribute : element.attributes()) {
    const std::string_view value = attribute.value();
    if (std::string_view(attribute.name()) == "busid") continue;  // has a field
    if (value.size() > limits::kAttributeBytes) {
      fail(element, "attribute " + std::string(attribute.name()).substr(0, 60) + " of " + std::to_string(value.size()) + " bytes",
           "at most " + std::to_string(limits::kAttributeBytes));
    }
    attributes.emplace(name + "." + attribute.name(), value);
  }
  if (attributes.size() > limits::kAttributes) {
    fail(element, std::to_string(attributes.size()) + " attributes of one part", "at most " + std::to_string(limits::kAttributes));
  }
}

// "nvlink", "nvlink1", "nvlink2", ...
std::string numbered(const char* name, std::size_t number) { return number == 0 ? name : name + std::to_string(number); }

void TopologyReader::link(VertexId a, VertexId b, EdgeKind kind, const LinkClass& link) {
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    edges_.emplace(std::pair{from, to}, node_.edges.size());
    node_.edges.push_back({from, to, kind, link.capacity_Bps, link.latency_ns, link.source});
  }
}

std::string TopologyReader::bus_id_of(const pugi::xml_node& pci) const {
  std::string bus_id = lower(pci.attribute("busid").value());
  if (bus_id.empty()) fail(pci, "no attribute 'busid'", "the PCI address, such as 0000:1b:00.0");
  if (bus_id.size() > 32 || bus_id.find_first_not_of("0123456789abcdef:.") != std::string::npos) {
    fail(pci, "busid=\"" + bus_id.substr(0, 60) + "\"", "a PCI address, such as 0000:1b:00.0");
  }
  return bus_id;
}

const PciModel* TopologyReader::model_of(const pugi::xml_node& pci) const {
  const auto vendor = integer(pci, "vendor"), device = integer(pci, "device");
  if (!vendor || !device) return nullptr;
  return find_pci_model(static_cast<unsigned>(*vendor), static_cast<unsigned>(*device));
}

// The link from a device to what is above it. NCCL's rule where the file says nothing: 16 lanes, generation 3.
LinkClass TopologyReader::pcie_link(const pugi::xml_node& pci) const {
  constexpr std::array<std::pair<double, unsigned>, 6> kSpeeds = {{{2.5, 1}, {5, 2}, {8, 3}, {16, 4}, {32, 5}, {64, 6}}};
  constexpr unsigned kDefaultGeneration = 3, kDefaultWidth = 16;
  LinkClass link;
  link.latency_ns = kPcieLatencyNs;
  unsigned generation = 0;
  const std::string_view written = pci.attribute("link_speed").value();
  double speed = 0;
  if (std::from_chars(written.data(), written.data() + written.size(), speed).ec == std::errc{}) {
    for (const auto& [GTps, gen] : kSpeeds) {
      if (speed == GTps) generation = gen;
    }
  }
  link.source = described_by_ + ": ";
  if (generation == 0) {
    generation = kDefaultGeneration;
    link.source += "no known link_speed, 8 GT/s assumed as NCCL does";
  } else {
    link.source.append(written.substr(0, written.find("/s") + 2));
  }
  const long long width = integer(pci, "link_width").value_or(0);
  auto Bps = width > 0 && width <= 32 ? pcie_Bps(generation, static_cast<unsigned>(width)) : std::nullopt;
  link.source += Bps ? " x" + std::to_string(width) : ", no known link_width, x16 assumed as NCCL does";
  link.capacity_Bps = Bps ? *Bps : pcie_Bps(generation, kDefaultWidth).value_or(0);
  return link;
}

void TopologyReader::read(const pugi::xml_node& system) {
  if (const auto version = integer(system, "version"); !version || *version != 1) {
    fail(system, "version=\"" + std::string(system.attribute("version").value()).substr(0, 60) + "\"", "version 1");
  }
  std::set<std::string> hosts;
  for (const pugi::xml_node& cpu : system.children("cpu")) {
    hosts.insert(cpu.attribute("host_hash").value());
    if (hosts.size() > 1) fail(cpu, "a second host (host_hash)", "one host a file; join hosts in a cluster file");
    read_cpu(cpu);
  }
  if (gpus_.empty()) fail(system, "no GPU", "a pci element with a gpu element, or of class 0x03");
  number_devices(gpus_, "gpu");
  number_devices(nics_, "nic");
  for (const Found& gpu : gpus_) read_nvlinks(gpu);
  for (const Found& gpu : gpus_) read_c2c(gpu);
  read_pci_links(system);
  connect_sockets(system);
  settle_rails();
  settle_gdr();
  for (auto& [vertex, attributes] : attributes_) {
    node_.vertices[vertex].attributes = std::make_shared<const Attributes>(std::move(attributes));
  }
}

void TopologyReader::read_cpu(const pugi::xml_node& cpu) {
  const auto id = integer(cpu, "numaid");
  if (!id) fail(cpu, "no attribute 'numaid'", "the number of the NUMA node, -1 where the machine has only one");
  const auto [entry, inserted] = numa_.emplace(*id, kNone);
  if (inserted) {
    entry->second = add(cpu, VertexKind::numa);
    keep(entry->second, "cpu", cpu);
  }
  for (const pugi::xml_node& child : cpu.children()) {
    const std::string_view name = child.name();
    if (name == "pci") read_pci(child, entry->second, entry->second, 1);
    if (name == "nic") read_nets(child, entry->second, std::nullopt, "", "");
  }
}

void TopologyReader::read_pci(const pugi::xml_node& pci, VertexId parent, VertexId numa, unsigned depth) {
  if (depth > limits::kDepth) fail(pci, "pci elements nested more than " + std::to_string(limits::kDepth) + " deep", "a PCIe tree");
  const std::string_view pci_class = pci.attribute("class").value();
  const pugi::xml_node nic = pci.child("nic");
  if (pci_class.empty() && !pci.child("gpu") && !nic) fail(pci, "no attribute 'class'", "the PCI class, such as 0x060400 for a switch");
  if (pci.child("gpu") || device_of(pci_class) == Device::gpu) return read_gpu(pci, parent, numa);
  if (nic) {
    const PciModel* model = model_of(pci);
    return read_nets(nic, parent, pcie_link(pci), bus_id_of(pci), model != nullptr ? std::string(model->name) : "");
  }
  if (device_of(pci_class) == Device::nic) return read_bare_nic(pci, parent);
  if (device_of(pci_class) == Device::pci && pci.child("pci")) read_bridge(pci, parent, numa, depth);
}

// Broadcom switches of generation 4 and 5 in base mode show one chip as two levels of bridges; NCCL takes them as one switch.
unsigned broadcom_generation(const XmlText& text, const pugi::xml_node& pci, unsigned level) {
  const auto id = [&](const char* name) { return static_cast<unsigned long long>(xml_integer(text, pci, name).value_or(0)); };
  if (id("vendor") != 0x1000 || id("subsystem_vendor") != 0x1000) return 0;
  const unsigned long long kind = id("subsystem_device") & 0xF000U;
  if (id("device") == 0xC010 && kind == 0xA000) return 4;
  if (id("device") == 0xC030 && kind == level * 0x1000ULL) return 5;
  return 0;
}

void TopologyReader::read_bridge(const pugi::xml_node& pci, VertexId parent, VertexId numa, unsigned depth) {
  const std::string bus_id = bus_id_of(pci);
  const VertexId bridge = add(pci, VertexKind::pcie_switch);
  node_.vertices[bridge].index = bridges_++;
  node_.vertices[bridge].bus_id = bus_id;
  bridge_by_bus_.emplace(bus_id, bridge);
  keep(bridge, "pci", pci);
  std::size_t peers = 0;
  for (const pugi::xml_node& peer : pci.children("pcilink")) keep(bridge, numbered("pcilink", peers++), peer);
  link(bridge, parent, EdgeKind::pcie, pcie_link(pci));
  const unsigned generation = broadcom_generation(text_, pci, 0);
  for (const pugi::xml_node& child : pci.children("pci")) {
    if (generation != 0 && broadcom_generation(text_, child, 1) == generation && !child.child("gpu") && !child.child("nic")) {
      bridge_by_bus_.emplace(bus_id_of(child), bridge);
      for (const pugi::xml_node& device : child.children("pci")) read_pci(device, bridge, numa, depth + 2);
    } else {
      read_pci(child, bridge, numa, depth + 1);
    }
  }
}

void TopologyReader::read_gpu(const pugi::xml_node& pci, VertexId parent, VertexId numa) {
  // Several gpu elements are ranks or partitions that share one device; the fabric has the device.
  const pugi::xml_node gpu = pci.child("gpu");
  Found found;
  found.vertex = add(pci, VertexKind::gpu);
  found.element = pci;
  found.dev = integer(gpu, "dev");
  found.numa = numa;
  Vertex& vertex = node_.vertices[found.vertex];
  vertex.bus_id = bus_id_of(pci);
  vertex.gdr = integer(gpu, "gdr").value_or(1) != 0;
  if (const PciModel* model = model_of(pci)) vertex.model = model->name;
  keep_gpu(found.vertex, pci);
  if (!gpu_by_bus_.emplace(vertex.bus_id, found.vertex).second)
    fail(pci, "busid=\"" + vertex.bus_id + "\" of a second GPU", "unique addresses");
  link(found.vertex, parent, EdgeKind::pcie, pcie_link(pci));
  gpus_.push_back(found);
}

void TopologyReader::keep_gpu(VertexId vertex, const pugi::xml_node& pci) {
  keep(vertex, "pci", pci);
  std::size_t gpus = 0, nvlinks = 0, c2cs = 0;
  for (const pugi::xml_node& gpu : pci.children("gpu")) keep(vertex, numbered("gpu", gpus++), gpu);
  for (const pugi::xml_node& nvlink : pci.child("gpu").children("nvlink")) keep(vertex, numbered("nvlink", nvlinks++), nvlink);
  for (const pugi::xml_node& c2c : pci.child("gpu").children("c2c")) keep(vertex, numbered("c2c", c2cs++), c2c);
}

void TopologyReader::read_bare_nic(const pugi::xml_node& pci, VertexId parent) {
  Found found;
  found.vertex = add(pci, VertexKind::nic);
  found.element = pci;
  Vertex& vertex = node_.vertices[found.vertex];
  vertex.bus_id = bus_id_of(pci);
  if (const PciModel* model = model_of(pci)) vertex.model = model->name;
  keep(found.vertex, "pci", pci);
  const LinkClass pcie = pcie_link(pci);
  link(found.vertex, parent, EdgeKind::pcie, pcie);
  node_.ports.push_back(
      {found.vertex, {pcie.capacity_Bps, kPortLatencyNs, "assumed: the file has no port speed, taken as its PCIe link's"}});
  any_gdr_net_ = any_net_ = true;
  nics_.push_back(found);
}

void TopologyReader::read_nets(const pugi::xml_node& nic, VertexId parent, const std::optional<LinkClass>& card_link,
                               const std::string& bus_id, const std::string& model) {
  std::vector<pugi::xml_node> nets;
  for (const pugi::xml_node& net : nic.children("net")) {
    // NCCL leaves out what has no number, and what only serves collectives or device-initiated traffic.
    if (integer(net, "dev") && integer(net, "net").value_or(1) != 0) nets.push_back(net);
  }
  if (nets.empty()) return;
  VertexId above = parent;
  if (card_link && nets.size() > 1) {
    above = add(nic, VertexKind::pcie_switch);
    node_.vertices[above].index = bridges_++;
    node_.vertices[above].bus_id = bus_id;
    node_.vertices[above].model = model.empty() ? "NIC with several ports" : model + ", several ports";
    keep(above, "pci", nic.parent());
    link(above, parent, EdgeKind::pcie, *card_link);
  }
  for (const pugi::xml_node& net : nets) {
    Found found;
    found.vertex = add(net, VertexKind::nic);
    found.element = net;
    found.dev = integer(net, "dev");
    found.rail = integer(net, "rail");
    if (card_link && nets.size() == 1) keep(found.vertex, "pci", nic.parent());
    keep(found.vertex, "net", net);
    Vertex& vertex = node_.vertices[found.vertex];
    vertex.bus_id = bus_id;
    vertex.model = model.empty() ? net.attribute("name").value() : model;
    constexpr long long kNcclDefaultMbps = 10'000, kMaxMbps = 100'000'000;
    const long long written = integer(net, "speed").value_or(0);
    if (written > kMaxMbps) fail(net, "speed=\"" + std::to_string(written) + "\"", "Mbit/s, at most " + std::to_string(kMaxMbps));
    const long long Mbps = written > 0 ? written : kNcclDefaultMbps;
    LinkClass port{static_cast<std::uint64_t>(Mbps) * 125'000, kPortLatencyNs, described_by_ + ": " + std::to_string(Mbps) + " Mbit/s"};
    if (written <= 0) port.source = "no speed in the topology file, 10000 Mbit/s assumed as NCCL does";
    // 0 is what NCCL's InfiniBand and socket transports report, and write into files: "not set", so that a default holds.
    const double latency_us = net.attribute("latency").as_double();
    if (latency_us > 0 && latency_us <= 1e6) port.latency_ns = static_cast<std::uint64_t>(std::llround(latency_us * 1000));
    node_.ports.push_back({found.vertex, port});
    const LinkClass unplaced{port.capacity_Bps, kPcieLatencyNs, "assumed: the file does not place this NIC; as fast as its port"};
    link(found.vertex, above, EdgeKind::pcie, card_link.value_or(unplaced));
    any_net_ = true;
    if (integer(net, "gdr").value_or(0) != 0) any_gdr_net_ = true;
    nics_.push_back(found);
  }
}

void TopologyReader::add_nvlinks(VertexId from, VertexId to, EdgeKind kind, std::uint64_t Bps, const std::string& source) {
  const auto [entry, inserted] = edges_.emplace(std::pair{from, to}, node_.edges.size());
  if (inserted) {
    node_.edges.push_back({from, to, kind, Bps, kNvlinkLatencyNs, source});
    return;
  }
  Edge& edge = node_.edges[entry->second];
  if (edge.kind == kind) {
    edge.capacity_Bps = std::min(edge.capacity_Bps + Bps, limits::kCapacityBps);
    edge.source += " + " + source;
  } else if (edge.capacity_Bps < Bps) {
    // A GPU that hangs from its NUMA node both by PCIe and by NVLink moves its bytes over the faster one.
    edge = {from, to, kind, Bps, kNvlinkLatencyNs, source};
  }
}

void TopologyReader::read_nvlinks(const Found& gpu) {
  const pugi::xml_node element = gpu.element.child("gpu");
  const PciModel* model = model_of(gpu.element);
  const long long sm = integer(element, "sm").value_or(model != nullptr ? model->sm : 0);
  for (const pugi::xml_node& nvlink : element.children("nvlink")) {
    const long long count = integer(nvlink, "count").value_or(0);
    const auto Bps = count > 0 && count <= 1024 && sm > 0 && sm < 10'000
                         ? nvlink_Bps_of_sm(static_cast<unsigned>(sm), static_cast<unsigned>(count))
                         : std::nullopt;
    if (!Bps) {
      fail(nvlink,
           std::to_string(count) + " NVLinks of a GPU with sm=\"" + std::string(element.attribute("sm").value()).substr(0, 60) + "\"",
           "a count of 1 to 1024, and an sm of 60 or more");
    }
    const std::string source = described_by_ + ": " + std::to_string(count) + " NVLinks of sm " + std::to_string(sm);
    const std::string_view target_class = nvlink.attribute("tclass").value();
    if (target_class.empty()) fail(nvlink, "no attribute 'tclass'", "the PCI class of the other end, such as 0x068000 for an NVSwitch");
    VertexId target = kNone;
    if (device_of(target_class) == Device::gpu) {
      const auto entry = gpu_by_bus_.find(lower(nvlink.attribute("target").value()));
      if (entry == gpu_by_bus_.end()) continue;  // a GPU that this file leaves out, as NCCL reads it
      target = entry->second;
      if (target == gpu.vertex) fail(nvlink, "an NVLink from a GPU to itself", "another target");
      add_nvlinks(gpu.vertex, target, EdgeKind::nvlink, *Bps, source);
      continue;
    }
    if (device_of(target_class) == Device::cpu) {
      target = gpu.numa;
    } else {
      if (nvswitch_ == kNone) nvswitch_ = add(nvlink, VertexKind::nvswitch);
      target = nvswitch_;
    }
    add_nvlinks(gpu.vertex, target, EdgeKind::nvlink, *Bps, source);
    add_nvlinks(target, gpu.vertex, EdgeKind::nvlink, *Bps, source);
  }
}

void TopologyReader::read_c2c(const Found& gpu) {
  for (const pugi::xml_node& c2c : gpu.element.child("gpu").children("c2c")) {
    const long long count = integer(c2c, "count").value_or(0), MBps = integer(c2c, "bw").value_or(0);
    constexpr long long kMax = 100'000'000;
    if (count <= 0 || MBps <= 0 || count > 1024 || MBps > kMax) {
      fail(c2c, "count=\"" + std::to_string(count) + "\" bw=\"" + std::to_string(MBps) + "\"", "a count of 1 to 1024 and MB/s above 0");
    }
    const std::uint64_t Bps = static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(MBps) * 1'000'000;
    const std::string source = described_by_ + ": " + std::to_string(count) + " C2C links of " + std::to_string(MBps) + " MB/s";
    add_nvlinks(gpu.vertex, gpu.numa, EdgeKind::c2c, Bps, source);
    add_nvlinks(gpu.numa, gpu.vertex, EdgeKind::c2c, Bps, source);
  }
}

void TopologyReader::read_pci_links(const pugi::xml_node& system) {
  for (const pugi::xpath_node& match : system.select_nodes("cpu//pci/pcilink")) {
    const auto from = bridge_by_bus_.find(bus_id_of(match.node().parent()));
    const auto to = bridge_by_bus_.find(lower(match.node().attribute("target").value()));
    if (from == bridge_by_bus_.end() || to == bridge_by_bus_.end() || from->second == to->second) continue;
    if (edges_.count({from->second, to->second}) != 0) continue;
    LinkClass peer = pcie_link(match.node().parent());
    peer.source = "assumed: pcilink without a rate, taken as the switch's uplink";
    link(from->second, to->second, EdgeKind::pcie, peer);
  }
}

// What device traffic gets from one socket to another. NCCL's figures (src/graph/topo.h, GB/s), by CPU; the links' raw rates are
// higher, but peer-to-peer traffic does not reach them.
LinkClass socket_link(const XmlText& text, const pugi::xml_node& cpu) {
  const std::string_view arch = cpu.attribute("arch").value(), vendor = cpu.attribute("vendor").value();
  const long long family = xml_integer(text, cpu, "familyid").value_or(0), model = xml_integer(text, cpu, "modelid").value_or(0);
  const auto GBps = [&]() -> std::pair<std::uint64_t, const char*> {
    if (arch == "ppc64") return {32, "POWER9"};
    if (arch == "arm64") return {6, "Arm"};
    if (vendor == "AuthenticAMD") return {16, "AMD"};
    if (vendor == "CentaurHauls" || vendor == "  Shanghai  ") return {6, "Zhaoxin"};
    if (family == 6 && model >= 0xCF) return {40, "Emerald Rapids or later"};
    if (family == 6 && model >= 0x8F) return {22, "Sapphire Rapids"};
    if (family == 6 && model >= 0x55) return {10, "Skylake to Ice Lake"};
    return {6, "older or unknown"};
  }();
  return {GBps.first * 1'000'000'000, kSocketLatencyNs,
          std::string("NCCL's figure between sockets, CPU ") + GBps.second + " (nccl src/graph/topo.h)"};
}

void TopologyReader::connect_sockets(const pugi::xml_node& system) {
  std::uint32_t index = 0;
  for (const auto& [id, vertex] : numa_) {
    node_.vertices[vertex].index = index;
    node_.vertices[vertex].name = "numa" + std::to_string(index++);
  }
  for (Vertex& vertex : node_.vertices) {
    if (vertex.kind == VertexKind::pcie_switch) vertex.name = "switch" + std::to_string(vertex.index);
    if (vertex.kind == VertexKind::nvswitch) vertex.name = "nvswitch0";
  }
  const LinkClass socket = socket_link(text_, system.child("cpu"));
  for (auto a = numa_.begin(); a != numa_.end(); ++a) {
    for (auto b = std::next(a); b != numa_.end(); ++b) link(a->second, b->second, EdgeKind::socket, socket);
  }
}

void TopologyReader::number_devices(std::vector<Found>& found, const char* prefix) {
  const bool numbered = std::all_of(found.begin(), found.end(), [](const Found& f) { return f.dev.has_value(); });
  std::stable_sort(found.begin(), found.end(), [&](const Found& a, const Found& b) {
    if (numbered) return *a.dev < *b.dev;
    return node_.vertices[a.vertex].bus_id < node_.vertices[b.vertex].bus_id;
  });
  for (std::uint32_t i = 0; i < found.size(); ++i) {
    node_.vertices[found[i].vertex].index = i;
    node_.vertices[found[i].vertex].name = prefix + std::to_string(i);
  }
}

void TopologyReader::settle_rails() {
  for (const Found& nic : nics_) {
    Vertex& vertex = node_.vertices[nic.vertex];
    vertex.rail = vertex.index;
    if (!nic.rail || *nic.rail < 0) continue;
    if (*nic.rail >= limits::kVerticesPerNode) fail(nic.element, "rail=\"" + std::to_string(*nic.rail) + "\"", "a small number");
    vertex.rail = static_cast<std::uint32_t>(*nic.rail);
  }
}

// GPUDirect RDMA takes a GPU that can and a NIC that can; a file without net elements says nothing against it.
void TopologyReader::settle_gdr() {
  if (!any_net_ || any_gdr_net_) return;
  for (const Found& gpu : gpus_) node_.vertices[gpu.vertex].gdr = false;
}

}  // namespace

NodeTemplate parse_nccl_topology(std::string_view text, const std::string& source, const std::string& described_by) {
  if (text.size() > limits::kXmlBytes) {
    throw ParseError({source, 0, 0, ""}, std::to_string(text.size()) + " bytes", "at most " + std::to_string(limits::kXmlBytes));
  }
  const XmlText xml{text, source};
  pugi::xml_document document;
  const pugi::xml_parse_result parsed = document.load_buffer(text.data(), text.size());
  if (!parsed) {
    const TextPosition where = position_of(text, static_cast<std::size_t>(std::max<std::ptrdiff_t>(parsed.offset, 0)));
    throw ParseError({source, where.line, where.column, ""}, std::string("not XML: ") + parsed.description(), "");
  }
  const pugi::xml_node system = document.child("system");
  if (!system) throw ParseError({source, 0, 0, ""}, "no element 'system'", "an NCCL topology file, as NCCL_TOPO_DUMP_FILE writes it");
  NodeTemplate node;
  node.network = assumed_network();
  const std::string file = source.substr(source.find_last_of('/') + 1);
  node.name = system.attribute("name") ? system.attribute("name").value() : file.substr(0, file.rfind(".xml"));
  node.description = "from the NCCL topology file " + file;
  TopologyReader(xml, node, described_by).read(system);
  return node;
}

}  // namespace railweave
