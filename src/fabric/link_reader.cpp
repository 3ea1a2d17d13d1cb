#include "link_reader.hpp"

#include <charconv>
#include <optional>

#include "quantity.hpp"
#include "railweave/fabric/limits.hpp"
#include "railweave/fabric/link_rates.hpp"

namespace railweave {
namespace {

constexpr std::size_t kMaxLinkClasses = 256;

// "gen5 x16" -> {5, 16}
std::optional<std::pair<unsigned, unsigned>> parse_generation(std::string_view text) {
  const auto number = [&](std::string_view prefix) -> std::optional<unsigned> {
    if (!text.starts_with(prefix)) return std::nullopt;
    text.remove_prefix(prefix.size());
    unsigned value = 0;
    const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc{}) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    return value;
  };
  const auto generation = number("gen");
  const auto width = generation ? number(" x") : std::nullopt;
  if (!width || !text.empty()) return std::nullopt;
  return std::pair{*generation, *width};
}

std::uint64_t read_generation_Bps(const YamlPlace& place, std::optional<std::uint64_t> (*rate)(unsigned, unsigned) noexcept,
                                  const std::string& form) {
  const std::string text = place.string();
  const auto parsed = parse_generation(text);
  const auto Bps = parsed ? rate(parsed->first, parsed->second) : std::nullopt;
  if (!Bps) place.fail("'" + text.substr(0, 60) + "'", form);
  return *Bps;
}

LinkClass read_link_class(const YamlPlace& place) {
  place.expect_keys({"source"}, {"pcie", "nvlink", "capacity", "latency"});
  const int given = static_cast<int>(place.has("pcie")) + static_cast<int>(place.has("nvlink")) + static_cast<int>(place.has("capacity"));
  if (given != 1) place.fail(std::to_string(given) + " of the keys pcie, nvlink, capacity", "exactly one of them");
  LinkClass link;
  if (place.has("pcie")) {
    link.capacity_Bps = read_generation_Bps(place.at("pcie"), pcie_Bps, "a PCIe link such as gen5 x16 (gen1 to gen6, x1 to x32)");
  } else if (place.has("nvlink")) {
    link.capacity_Bps = read_generation_Bps(place.at("nvlink"), nvlink_Bps, "NVLinks such as gen4 x18 (gen1 to gen5)");
  } else {
    link.capacity_Bps = read_rate_Bps(place.at("capacity"));
  }
  if (place.has("latency")) link.latency_ns = read_latency_ns(place.at("latency"));
  link.source = place.at("source").string();
  return link;
}

void read_spine(const YamlPlace& place, Network& network) {
  if (place.is_scalar()) {
    if (place.string() != "none") place.fail("'" + place.string().substr(0, 60) + "'", "a map, or the word none");
    network.spine = false;
    return;
  }
  place.expect_keys({"source"}, {"oversubscription", "uplink", "latency"});
  if (place.has("oversubscription") && place.has("uplink")) place.fail("both oversubscription and uplink", "one of them");
  network.spine = true;
  network.uplink_Bps = 0;
  if (place.has("oversubscription")) {
    const YamlPlace value = place.at("oversubscription");
    const auto permille = parse_permille(value.string());
    constexpr std::uint64_t kMaxPermille = 1'000'000;
    if (!permille || *permille == 0 || *permille > kMaxPermille) {
      value.fail("'" + value.string().substr(0, 60) + "'", "leaf ports / uplink: above 0 and at most 1000, such as 2 or 1.5");
    }
    network.oversubscription_permille = *permille;
  }
  if (place.has("uplink")) network.uplink_Bps = read_rate_Bps(place.at("uplink"));
  if (place.has("latency")) network.uplink_latency_ns = read_latency_ns(place.at("latency"));
  network.uplink_source = place.at("source").string();
}

}  // namespace

LinkClasses::LinkClasses(const YamlPlace& place) {
  const std::vector<std::string> names = place.keys();
  if (names.size() > kMaxLinkClasses) place.fail(std::to_string(names.size()) + " links", "at most " + std::to_string(kMaxLinkClasses));
  for (const std::string& name : names) links_.emplace(name, read_link_class(place.at(name)));
}

const LinkClass& LinkClasses::find(const YamlPlace& place) const {
  const std::string name = place.string();
  const auto entry = links_.find(name);
  if (entry != links_.end()) return entry->second;
  std::string known;
  for (const auto& [other, link] : links_) known += (known.empty() ? "" : ", ") + other.substr(0, 60);
  place.fail("'" + name.substr(0, 60) + "'",
             links_.empty() ? "a name from the map 'links', which this file lacks" : "one of the links " + known);
}

std::uint64_t read_rate_Bps(const YamlPlace& place) {
  const std::string text = place.string();
  const auto rate = parse_rate_Bps(text);
  if (!rate) place.fail("'" + text.substr(0, 60) + "'", kRateForm);
  if (*rate == 0) place.fail("a capacity of 0", "a rate above 0; leave out a link that carries nothing");
  if (*rate > limits::kCapacityBps) place.fail("'" + text.substr(0, 60) + "'", "at most " + std::to_string(limits::kCapacityBps) + " B/s");
  return *rate;
}

std::uint64_t read_latency_ns(const YamlPlace& place) {
  const std::string text = place.string();
  const auto latency = parse_latency_ns(text);
  if (!latency || *latency > limits::kLatencyNs) place.fail("'" + text.substr(0, 60) + "'", kLatencyForm);
  return *latency;
}

Network read_network(const YamlPlace& place, const LinkClasses& links) {
  place.expect_keys({"wiring"}, {"nodes_per_leaf", "port", "spine"});
  Network network = assumed_network();
  const YamlPlace wiring = place.at("wiring");
  if (wiring.string() == "tree") {
    network.wiring = Network::Wiring::tree;
  } else if (wiring.string() != "rail") {
    wiring.fail("'" + wiring.string().substr(0, 60) + "'", "rail or tree");
  }
  if (place.has("nodes_per_leaf")) {
    network.nodes_per_leaf = static_cast<std::uint32_t>(place.at("nodes_per_leaf").unsigned_integer(1, limits::kNodes));
  }
  if (place.has("port")) network.port = links.find(place.at("port"));
  if (place.has("spine")) read_spine(place.at("spine"), network);
  return network;
}

}  // namespace railweave
