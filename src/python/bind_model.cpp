#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "railweave/error.hpp"
#include "railweave/model/flows.hpp"
#include "railweave/model/plan_flows.hpp"
#include "railweave/model/simulation.hpp"

namespace nb = nanobind;
using railweave::Flows;
using railweave::Simulation;

namespace {

template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
std::span<const T> view(const Input<T>& array) {
  return {array.data(), array.size()};
}

template <typename T>
Output<T> to_numpy(std::span<const T> values) {
  auto data = std::make_unique<T[]>(values.size());
  std::copy(values.begin(), values.end(), data.get());
  T* const raw = data.release();
  nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return {raw, {values.size()}, owner};
}

template <typename T>
Output<T> to_numpy(const std::vector<T>& values) {
  return to_numpy(std::span<const T>(values));
}

Flows make_flows(const Input<std::uint64_t>& capacities, const Input<std::uint64_t>& bytes, const Input<std::uint64_t>& offsets,
                 const Input<std::uint32_t>& resources, const Input<std::uint64_t>& start_ns, const Input<std::uint64_t>& latency_ns) {
  const std::size_t count = bytes.size();
  if (offsets.size() != count + 1 || start_ns.size() != count || latency_ns.size() != count) {
    throw railweave::DemandError(std::to_string(count) + " flows; expected as many starts and latencies, and one offset more");
  }
  const auto from = view(offsets);
  if (from.front() != 0 || !std::is_sorted(from.begin(), from.end()) || from.back() != resources.size()) {
    throw railweave::DemandError("offsets of flows; expected them to rise from 0 to the number of resources listed, " +
                                 std::to_string(resources.size()));
  }
  Flows flows({view(capacities).begin(), view(capacities).end()});
  flows.reserve(count, count == 0 ? 0 : resources.size() / count + 1);
  for (std::size_t i = 0; i < count; ++i) {
    flows.add({bytes(i), start_ns(i), latency_ns(i)}, view(resources).subspan(from[i], from[i + 1] - from[i]));
  }
  return flows;
}

template <typename T, typename Get>
Output<T> per_flow(const Flows& flows, Get get) {
  std::vector<T> values(flows.size());
  for (railweave::FlowId id = 0; id < flows.size(); ++id) values[id] = get(flows[id]);
  return to_numpy(values);
}

std::vector<std::uint32_t> resources_of(const Flows& flows, std::uint32_t id) {
  if (id >= flows.size()) throw nb::index_error("flow out of range");
  const auto resources = flows.resources(id);
  return {resources.begin(), resources.end()};
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Flows>(m, "Flows", "Flows over resources with capacities: what the model simulates.")
      .def("__len__", &Flows::size)
      .def_static("from_arrays", &make_flows, nb::arg("capacities_Bps"), nb::arg("bytes"), nb::arg("offsets"), nb::arg("resources"),
                  nb::arg("start_ns"), nb::arg("latency_ns"),
                  "Flow i loads resources[offsets[i]:offsets[i + 1]]; one that is listed twice is loaded at twice its rate. Capacities "
                  "in bytes/s. Raises DemandError or UnreachableError, naming the flow.")
      .def("resources", &resources_of, nb::arg("flow"), "Resources that a flow loads, ascending.")
      .def_prop_ro(
          "capacities_Bps", [](const Flows& f) { return to_numpy(f.capacities_Bps()); }, nb::rv_policy::move)
      .def_prop_ro(
          "bytes", [](const Flows& f) { return per_flow<std::uint64_t>(f, [](const auto& flow) { return flow.bytes; }); },
          nb::rv_policy::move)
      .def_prop_ro(
          "start_ns", [](const Flows& f) { return per_flow<std::uint64_t>(f, [](const auto& flow) { return flow.start_ns; }); },
          nb::rv_policy::move)
      .def_prop_ro(
          "latency_ns", [](const Flows& f) { return per_flow<std::uint64_t>(f, [](const auto& flow) { return flow.latency_ns; }); },
          nb::rv_policy::move);

  nb::class_<Simulation>(m, "Simulation", "What the model says happens; times in seconds, amounts in bytes.")
      .def_prop_ro("seconds", &Simulation::seconds, "When the last flow ended.")
      .def_prop_ro("load_bound_seconds", &Simulation::load_bound_seconds, "max over resources of load / capacity.")
      .def_prop_ro(
          "finish_seconds", [](const Simulation& s) { return to_numpy(s.finish_seconds()); }, nb::rv_policy::move,
          "Per flow: arrival of its last byte.")
      .def_prop_ro(
          "bytes", [](const Simulation& s) { return to_numpy(s.bytes()); }, nb::rv_policy::move, "Per resource: bytes carried.")
      .def_prop_ro(
          "waited_seconds", [](const Simulation& s) { return to_numpy(s.waited_seconds()); }, nb::rv_policy::move,
          "Per resource: time it held flows back, summed over the flows.")
      .def_prop_ro(
          "last_held", [](const Simulation& s) { return to_numpy(s.last_held()); }, nb::rv_policy::move,
          "Per resource: how many flows it held back when they ended.")
      .def(
          "waits",
          [](const Simulation& s, std::uint32_t flow) {
            if (flow >= s.finish_seconds().size()) throw nb::index_error("flow out of range");
            nb::list waits;
            for (const railweave::Wait& wait : s.waits(flow)) waits.append(nb::make_tuple(wait.begin_seconds, wait.resource));
            return waits;
          },
          nb::arg("flow"), "What held a flow back: list of (begin in seconds, resource), in order.")
      .def(
          "carried_bytes",
          [](const Simulation& s, std::uint32_t resource) {
            if (resource >= s.bytes().size()) throw nb::index_error("resource out of range");
            return to_numpy(s.carried_bytes(resource));
          },
          nb::arg("resource"), "Bytes carried in each slice of slice_seconds; empty for a resource without load.")
      .def_prop_ro("slice_seconds", &Simulation::slice_seconds)
      .def_prop_ro("slices", &Simulation::slices)
      .def_prop_ro("batching_loss_seconds", &Simulation::batching_loss_seconds, "Time that the worst hit resource lost by batching.")
      .def_prop_ro("solves", &Simulation::solves, "How often rates were shared out.");

  m.def("plan_flows", &railweave::plan_flows, nb::arg("plan"), nb::arg("planner"), nb::arg("chunk_bytes"), nb::arg("fabric"),
        nb::arg("links"), nb::call_guard<nb::gil_scoped_release>(),
        "A plan as flows: flow i is share i, its resources are the fabric's at the rates of `links`, and its latency includes the time "
        "that relays take to fill the pipeline with chunks.");
  m.def(
      "plan_share",
      [](const railweave::Plan& plan, std::size_t share) {
        if (share >= plan.shares.size()) throw nb::index_error("share out of range");
        return plan.shares[share];
      },
      nb::arg("plan"), nb::arg("share"), "One share of a plan, without a copy of the million others.");
  m.def(
      "simulate", [](const Flows& flows, double batching) { return railweave::simulate(flows, {.batching = batching}); }, nb::arg("flows"),
      nb::arg("batching") = 0.0, nb::call_guard<nb::gil_scoped_release>(),
      "Simulates max-min fair sharing. Above 0, `batching` is the part of the time that a resource may lose to late sharing before rates "
      "are shared out again; because that has a least distance, many small flows can cost a resource more: "
      "Simulation.batching_loss_seconds says how much. 0 is exact.");
}
