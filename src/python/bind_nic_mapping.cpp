#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "railweave/planner/nic_mapping.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace railweave;

namespace {

using Gpus = std::vector<std::pair<VertexId, bool>>;
using Nics = std::vector<std::pair<VertexId, std::uint64_t>>;
// By GPU and NIC: distance, latency, resources.
template <class KnownDistance>
using Ways = std::vector<std::vector<std::optional<std::tuple<KnownDistance, std::uint64_t, std::vector<ResourceId>>>>>;

std::vector<RankGpu> gpus_from(const Gpus& given) {
  std::vector<RankGpu> gpus;
  for (const auto& [vertex, gdr] : given) gpus.push_back({vertex, gdr});
  return gpus;
}

Ways<std::uint8_t> ways_between(const Fabric& fabric, const Gpus& gpus, const std::vector<VertexId>& nics) {
  Ways<std::uint8_t> found;
  for (auto& of_gpu : nic_ways(fabric, gpus_from(gpus), nics)) {
    auto& row = found.emplace_back();
    for (auto& way : of_gpu) {
      auto& cell = row.emplace_back();
      if (way) cell.emplace(static_cast<std::uint8_t>(*way->distance), way->latency_ns, std::move(way->resources));
    }
  }
  return found;
}

nb::tuple mapping_of(const Fabric& fabric, NodeId node, const Gpus& gpus, const Nics& given_nics, Ways<std::optional<std::uint8_t>> ways,
                     bool shortest_first, std::uint64_t most_steps) {
  std::vector<RankNic> nics;
  for (const auto& [vertex, capacity_Bps] : given_nics) nics.push_back({vertex, capacity_Bps});
  std::vector<std::vector<std::optional<NicWay>>> known;
  for (auto& of_gpu : ways) {
    auto& row = known.emplace_back();
    for (auto& way : of_gpu) {
      auto& cell = row.emplace_back();
      if (!way) continue;
      auto& [distance, latency_ns, resources] = *way;
      cell.emplace(NicWay{std::nullopt, latency_ns, std::move(resources)});
      if (distance) cell->distance = static_cast<Distance>(*distance);
    }
  }
  const NicMapping found = map_nics(fabric, node, gpus_from(gpus), nics, known, {shortest_first, most_steps});
  return nb::make_tuple(found.nics, found.seconds_per_byte, found.bottleneck, found.nearest_seconds_per_byte, found.steps);
}

}  // namespace

void bind_nic_mapping(nb::module_& m) {
  m.def(
      "numa_above",
      [](const Fabric& fabric, VertexId device) {
        const VertexId numa = numa_above(fabric, device);
        return numa == kNone ? nb::object(nb::none()) : nb::cast(numa);
      },
      "fabric"_a, "device"_a, nb::sig("def numa_above(fabric: Fabric, device: int) -> int | None"),
      "The NUMA node at the root of a device's PCIe tree.");
  m.def(
      "nic_ways", &ways_between, "fabric"_a, "gpus"_a, "nics"_a,
      "By GPU and NIC: distance, latency in ns and resources that a byte loads of the way between them; None where there is none. GPUs are "
      "vertices, with whether NICs reach their memory.");
  m.def(
      "map_nics", &mapping_of, "fabric"_a, "node"_a, "gpus"_a, "nics"_a, "ways"_a, "shortest_first"_a, "most_steps"_a,
      nb::sig("def map_nics(fabric: Fabric, node: int, gpus: Sequence[tuple[int, bool]], nics: Sequence[tuple[int, int]], ways: "
              "Sequence[Sequence[tuple[int | None, int, Sequence[int]] | None]], shortest_first: bool, most_steps: int) -> "
              "tuple[list[list[int]], float, int, float, int]"),
      "The assignment of NICs (vertices with their bytes/s) to GPUs that has the least bound: positions of NICs by rank, seconds for each "
      "byte of a rank, the resource that takes them, the same seconds with the nearest NICs, and steps of the search.");
}
