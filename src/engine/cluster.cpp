#include "cluster.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "folder.hpp"
#include "layout.hpp"
#include "railweave/engine/error.hpp"
#include "slot_memory.hpp"
#include "wire.hpp"

namespace railweave::engine {
namespace {

struct Device {
  std::string name;
  std::uint64_t rate_Bps = 0;
};

struct Identity {
  std::string problem;  // why the rank cannot take part, or nothing
  std::string node;
  std::uint64_t network = 0;  // inode of the network namespace
  bool explicit_nics = false;
  bool moves_slots = false;
  std::vector<Device> devices;
  std::vector<std::string> settings;  // of those that must agree
};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::uint64_t inode(const char* path) {
  struct stat status {};
  return ::stat(path, &status) == 0 ? static_cast<std::uint64_t>(status.st_ino) : 0;
}

// Whether an interface has a device, its own or one that it lies over (a VLAN, a bond).
bool has_device(const std::string& interface) {
  const std::filesystem::path folder = "/sys/class/net/" + interface;
  std::error_code ignored;
  if (std::filesystem::exists(folder / "device", ignored)) return true;
  const std::vector<std::string> entries = names_in(folder);
  return std::any_of(entries.begin(), entries.end(), [](const std::string& entry) { return entry.starts_with("lower_"); });
}

// bytes/s of a network interface or RDMA device ("mlx5_0:1"), 0 when the system does not say.
std::uint64_t device_rate(const std::string& device) {
  constexpr std::uint64_t kBytesPerMbit = 125'000;
  const auto colon = device.find(':');
  if (colon != std::string::npos) {
    const std::string line =
        first_line("/sys/class/infiniband/" + device.substr(0, colon) + "/ports/" + device.substr(colon + 1) + "/rate");
    return line.empty() ? 0
                        : static_cast<std::uint64_t>(std::strtod(line.c_str(), nullptr) * 1000) * kBytesPerMbit;  // "200 Gb/sec (4X HDR)"
  }
  const long mbit = std::strtol(first_line("/sys/class/net/" + device + "/speed").c_str(), nullptr, 10);
  // Without a device they say what is nobody's: veth 10 Gbit/s, tap 10 Mbit/s. A container's macvlan, whose device is outside, says more.
  constexpr long kMadeUp = 10'000;
  if (mbit <= 0 || (mbit <= kMadeUp && !has_device(device))) return 0;
  return static_cast<std::uint64_t>(mbit) * kBytesPerMbit;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= text.size() && !text.empty()) {
    const auto comma = std::min(text.find(',', start), text.size());
    if (comma > start) parts.emplace_back(text.substr(start, comma - start));
    start = comma + 1;
  }
  return parts;
}

// Interfaces that could be rails: up, with an address, no loopback, and what the setting `interfaces` says.
std::vector<std::string> usable_interfaces(const std::string& rule) {
  std::set<std::string> names;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) continue;
    if (is_rail(entry->ifa_name, rule)) names.insert(entry->ifa_name);
  }
  ::freeifaddrs(list);
  return {names.begin(), names.end()};
}

Identity own_identity(const ExchangeSettings& settings, const SlotMemory* slots) {
  Identity identity;
  try {
    check(settings);
  } catch (const SettingsError& error) {
    identity.problem = error.what();
  }
  identity.node = node_identity(settings);
  identity.network = inode("/proc/self/ns/net");
  identity.explicit_nics = !settings.nics.empty();
  for (const std::string& name : identity.explicit_nics ? split(settings.nics) : usable_interfaces(settings.interfaces)) {
    identity.devices.push_back({name, device_rate(name)});
    if (slots != nullptr && slots->objection(name).empty()) identity.moves_slots = true;
  }
  for (const Setting& setting : settings_table()) {
    if (setting.must_agree) identity.settings.push_back(setting.get(settings));
  }
  return identity;
}

Blob encode(const Identity& identity, std::uint32_t world) {
  ByteWriter out;
  out.put(kRegionMagic)
      .put(kProtocolVersion)
      .put(world)
      .text(identity.problem)
      .put(static_cast<std::int32_t>(::getpid()))
      .text(identity.node)
      .put(identity.network);
  out.put(static_cast<std::uint8_t>(identity.explicit_nics)).put(static_cast<std::uint8_t>(identity.moves_slots));
  out.put(static_cast<std::uint32_t>(identity.devices.size()));
  for (const Device& device : identity.devices) out.text(device.name).put(device.rate_Bps);
  for (const std::string& value : identity.settings) out.text(value);
  return out.take();
}

Identity decode(const Blob& blob, std::uint32_t rank, std::uint32_t world, std::int32_t& pid) {
  const std::string who = "rank " + std::to_string(rank);
  ByteReader in(blob);
  const auto magic = in.get<std::uint64_t>();
  const auto version = in.get<std::uint32_t>();
  const auto peer_world = in.get<std::uint32_t>();
  if (!in.ok() || magic != kRegionMagic) throw BootstrapError(who + " does not speak Railweave's protocol");
  if (version != kProtocolVersion) {
    throw BootstrapError(who + " speaks protocol version " + std::to_string(version) + ", rank 0's version is needed by all; expected " +
                         std::to_string(kProtocolVersion) + ": install the same Railweave everywhere");
  }
  if (peer_world != world)
    throw BootstrapError(who + " was started with world " + std::to_string(peer_world) + "; expected " + std::to_string(world));
  Identity identity;
  identity.problem = in.text();
  if (!identity.problem.empty()) throw BootstrapError(who + ": " + identity.problem);
  pid = in.get<std::int32_t>();
  identity.node = in.text();
  identity.network = in.get<std::uint64_t>();
  identity.explicit_nics = in.get<std::uint8_t>() != 0;
  identity.moves_slots = in.get<std::uint8_t>() != 0;
  const auto devices = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < devices && in.ok(); ++i) {
    Device device;
    device.name = in.text();
    device.rate_Bps = in.get<std::uint64_t>();
    identity.devices.push_back(device);
  }
  for (const Setting& setting : settings_table()) {
    if (setting.must_agree) identity.settings.push_back(in.text());
  }
  if (!in.ok()) throw BootstrapError(who + " sent a damaged bootstrap record");
  return identity;
}

void check_settings(const std::vector<Identity>& identities) {
  std::size_t position = 0;
  for (const Setting& setting : settings_table()) {
    if (!setting.must_agree) continue;
    for (std::size_t rank = 1; rank < identities.size(); ++rank) {
      if (identities[rank].settings[position] != identities[0].settings[position]) {
        throw BootstrapError("setting " + std::string(setting.name) + ": rank " + std::to_string(rank) + " has '" +
                             identities[rank].settings[position] + "', rank 0 has '" + identities[0].settings[position] +
                             "'; expected the same on all ranks (" + setting.environment() + ")");
      }
    }
    ++position;
  }
}

// A rank that names its NICs owns those. Ranks of a node that share a network namespace see the same interfaces, which are dealt in order.
void deal_nics(Cluster& cluster, const std::vector<Identity>& identities) {
  for (std::uint32_t node = 0; node < cluster.nodes.size(); ++node) {
    const auto& ranks = cluster.nodes[node].ranks;
    std::map<std::uint32_t, std::vector<Device>> owned;
    std::map<std::uint64_t, std::vector<std::uint32_t>> sharing;
    for (const std::uint32_t rank : ranks) {
      if (identities[rank].explicit_nics)
        owned[rank] = identities[rank].devices;
      else
        sharing[identities[rank].network].push_back(rank);
    }
    for (const auto& [network, members] : sharing) {
      const auto& devices = identities[members.front()].devices;
      for (std::size_t i = 0; i < devices.size(); ++i) owned[members[i % members.size()]].push_back(devices[i]);
    }
    for (const std::uint32_t rank : ranks) {
      for (const Device& device : owned[rank]) {
        NicInfo nic;
        nic.owner = rank;
        nic.node = node;
        nic.position = static_cast<std::uint32_t>(cluster.nodes[node].nics.size());
        nic.own_position = static_cast<std::uint32_t>(cluster.ranks[rank].nics.size());
        nic.device = device.name;
        nic.rate_Bps = device.rate_Bps;
        const auto id = static_cast<std::uint32_t>(cluster.nics.size());
        cluster.ranks[rank].nics.push_back(id);
        cluster.nodes[node].nics.push_back(id);
        cluster.nics.push_back(nic);
      }
    }
    if (cluster.nodes.size() > 1 && cluster.nodes[node].nics.empty()) {
      throw BootstrapError("node '" + cluster.nodes[node].name + "' (rank " + std::to_string(ranks.front()) +
                           ") has no network interface that is up and has an address; bring one up or name it in RAILWEAVE_NICS");
    }
  }
}

}  // namespace

bool is_rail(std::string_view interface, std::string_view rule) {
  constexpr std::array<std::string_view, 6> kOfContainers{"docker", "virbr", "br-", "cni", "flannel", "lxc"};
  const auto begins = [interface](std::string_view prefix) { return interface.starts_with(prefix); };
  const bool excludes = rule.empty() || rule.front() == '^';
  if (excludes && std::any_of(kOfContainers.begin(), kOfContainers.end(), begins)) return false;
  if (excludes && !rule.empty()) rule.remove_prefix(1);
  const bool whole = !rule.empty() && rule.front() == '=';
  if (whole) rule.remove_prefix(1);
  const std::vector<std::string> names = split(rule);
  const bool named =
      std::any_of(names.begin(), names.end(), [&](const std::string& name) { return whole ? interface == name : begins(name); });
  return named != excludes;
}

std::string node_identity(const ExchangeSettings& settings) {
  if (!settings.node_id.empty()) return settings.node_id;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return std::string(host.data()) + " " + first_line("/proc/sys/kernel/random/boot_id") + " " + std::to_string(inode("/proc/self/ns/pid"));
}

Cluster exchange_identity(Rendezvous& rendezvous, std::uint32_t rank, std::uint32_t world, const ExchangeSettings& settings,
                          const SlotMemory* slots) {
  const std::vector<Blob> blobs = rendezvous.all_gather("identity", encode(own_identity(settings, slots), world));
  Cluster cluster;
  cluster.rank = rank;
  cluster.world = world;
  cluster.ranks.resize(world);
  std::vector<Identity> identities;
  std::map<std::string, std::uint32_t> node_of;
  for (std::uint32_t peer = 0; peer < world; ++peer) {
    identities.push_back(decode(blobs[peer], peer, world, cluster.ranks[peer].pid));
    const auto [entry, added] = node_of.emplace(identities.back().node, static_cast<std::uint32_t>(cluster.nodes.size()));
    cluster.moves_slots = cluster.moves_slots || identities.back().moves_slots;
    if (added) cluster.nodes.push_back({identities.back().node, {}, {}});
    NodeInfo& node = cluster.nodes[entry->second];
    cluster.ranks[peer].node = entry->second;
    cluster.ranks[peer].local = static_cast<std::uint32_t>(node.ranks.size());
    node.ranks.push_back(peer);
  }
  check_settings(identities);
  if (cluster.nodes.size() > 1) deal_nics(cluster, identities);
  return cluster;
}

void exchange_resources(Rendezvous& rendezvous, Cluster& cluster, const Resources& mine, const std::string& problem) {
  ByteWriter out;
  const auto put = [&out](const std::vector<std::byte>& bytes) { out.text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}); };
  out.text(problem).put(mine.region).put(mine.doorbell_fd);
  put(mine.slot_memory);
  out.put(static_cast<std::uint32_t>(mine.nics.size()));
  for (const Resources::Nic& nic : mine.nics) {
    put(nic.address);
    out.put(static_cast<std::uint8_t>(nic.knows_slots)).put(static_cast<std::uint8_t>(nic.moved));
  }
  const std::vector<Blob> blobs = rendezvous.all_gather("resources", out.take());
  for (std::uint32_t peer = 0; peer < cluster.world; ++peer) {
    ByteReader in(blobs[peer]);
    const std::string peer_problem = in.text();
    if (!peer_problem.empty()) throw BootstrapError("rank " + std::to_string(peer) + ": " + peer_problem);
    RankInfo& info = cluster.ranks[peer];
    info.region = in.get<MemoryHandle>();
    info.doorbell_fd = in.get<std::int32_t>();
    const auto get = [&in](std::vector<std::byte>& bytes) {
      const std::string text = in.text();
      const auto* first = reinterpret_cast<const std::byte*>(text.data());
      bytes.assign(first, first + text.size());
    };
    get(info.slot_memory);
    const auto nics = in.get<std::uint32_t>();
    for (std::uint32_t i = 0; i < nics && i < info.nics.size(); ++i) {
      NicInfo& nic = cluster.nics[info.nics[i]];
      get(nic.address);
      nic.knows_slots = in.get<std::uint8_t>() != 0;
      nic.moved = in.get<std::uint8_t>() != 0;
    }
    if (!in.ok() || nics != info.nics.size()) throw BootstrapError("rank " + std::to_string(peer) + " sent a damaged resource record");
  }
}

void agree(Rendezvous& rendezvous, const std::string& round, const std::string& problem) {
  ByteWriter out;
  out.text(problem);
  const std::vector<Blob> blobs = rendezvous.all_gather(round, out.take());
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    ByteReader in(blobs[peer]);
    const std::string text = in.text();
    if (!text.empty()) throw BootstrapError("rank " + std::to_string(peer) + ": " + text);
  }
}

}  // namespace railweave::engine
