#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "railweave/error.hpp"
#include "railweave/planner/planner.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace railweave;

namespace {

constexpr std::array kPolicies{Policy::single_path, Policy::nccl, Policy::ucx_rails, Policy::nimble, Policy::railweave};

nb::object id_or_none(std::uint32_t id) { return id == kNone ? nb::none() : nb::cast(id); }

Policy policy_of(std::string_view name) {
  const auto found = std::find_if(kPolicies.begin(), kPolicies.end(), [&](Policy p) { return to_string(p) == name; });
  if (found != kPolicies.end()) return *found;
  std::string known;
  for (Policy p : kPolicies) known += (known.empty() ? "" : ", ") + std::string(to_string(p));
  throw nb::value_error(("policy '" + std::string(name) + "' does not exist; expected one of " + known).c_str());
}

nb::ndarray<nb::numpy, std::uint64_t, nb::ndim<1>> load_of(const Plan& plan) {
  auto data = std::make_unique<std::uint64_t[]>(plan.load.size());
  std::copy(plan.load.begin(), plan.load.end(), data.get());
  std::uint64_t* const raw = data.release();
  nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<std::uint64_t*>(p); });
  return {raw, {plan.load.size()}, owner};
}

// Median over `repeat` runs. An empty demand in between keeps the planner from reusing the plan that it has.
double plan_microseconds(Planner& planner, const Demand& demand, const LinkState& links, int repeat) {
  const Demand nothing(demand.ranks());
  std::vector<double> times;
  for (int i = 0; i < std::max(1, repeat); ++i) {
    planner.plan(nothing, links);
    const auto begin = std::chrono::steady_clock::now();
    planner.plan(demand, links);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void bind_routes(nb::module_& m) {
  nb::class_<Route>(m, "Route", "One way from a GPU to another. GPUs are ranks, NICs are vertex ids; None where there is none.")
      .def_prop_ro("kind", [](const Route& r) { return to_string(r.kind); })
      .def_ro("src", &Route::src)
      .def_ro("dst", &Route::dst)
      .def_prop_ro(
          "relay_src", [](const Route& r) { return id_or_none(r.relay_src); }, nb::sig("def relay_src(self) -> int | None"))
      .def_prop_ro(
          "relay_dst", [](const Route& r) { return id_or_none(r.relay_dst); }, nb::sig("def relay_dst(self) -> int | None"))
      .def_prop_ro(
          "nic_src", [](const Route& r) { return id_or_none(r.nic_src); }, nb::sig("def nic_src(self) -> int | None"))
      .def_prop_ro(
          "nic_dst", [](const Route& r) { return id_or_none(r.nic_dst); }, nb::sig("def nic_dst(self) -> int | None"))
      .def_prop_ro("relays", &Route::relays, "GPUs that lend memory and links: 0, 1 or 2.")
      .def("__eq__", [](const Route& a, const Route& b) { return a == b; })
      .def("__hash__", [](const Route& r) {
        std::size_t hash = static_cast<std::size_t>(r.kind);
        for (std::uint32_t part : {r.src, r.dst, r.relay_src, r.relay_dst, r.nic_src, r.nic_dst}) hash = hash * 1000003 + part;
        return hash;
      });
  nb::class_<Path>(m, "Path", "A route with everything it loads.")
      .def_ro("route", &Path::route)
      .def_ro("latency_ns", &Path::latency_ns)
      .def_ro("edges", &Path::edges, "Edge ids in order; one may appear twice.")
      .def_ro("resources", &Path::resources, "Resource ids that a byte loads; repeated if loaded twice.");
  nb::class_<Share>(m, "Share", "Bytes of one demand that take a route.").def_ro("route", &Share::route).def_ro("bytes", &Share::bytes);
}

void bind_plan(nb::module_& m) {
  nb::class_<Bound>(m, "Bound", "Why no plan can end earlier; links: no plan over the routes that the planner considers.")
      .def_prop_ro(
          "kind", [](const Bound& b) { return to_string(b.kind); }, "sender, receiver, node-out, node-in, links or none")
      .def_ro("seconds", &Bound::seconds)
      .def_prop_ro(
          "at", [](const Bound& b) { return id_or_none(b.at); }, nb::sig("def at(self) -> int | None"), "Rank or node; None for links.");
  nb::class_<Plan>(m, "Plan", "Which bytes of which demand take which way.")
      .def_prop_ro("policy", [](const Plan& p) { return to_string(p.policy); })
      .def_ro("id", &Plan::id, "Equal inputs give equal ids.")
      .def_ro("link_epoch", &Plan::link_epoch)
      .def_ro("shares", &Plan::shares, "Ordered by sender and receiver.")
      .def_prop_ro("load", &load_of, nb::rv_policy::move, "Bytes on each resource of the fabric, uint64.")
      .def_ro("z_seconds", &Plan::z_seconds, "Load over capacity of the busiest resource: the plan's time in the fluid limit.")
      .def_prop_ro(
          "bottleneck", [](const Plan& p) { return id_or_none(p.bottleneck); }, nb::sig("def bottleneck(self) -> int | None"),
          "The resource where z_seconds is reached.")
      .def_ro("bound", &Plan::bound);
}

}  // namespace

void bind_planner(nb::module_& m) {
  bind_routes(m);
  bind_plan(m);
  nb::class_<PlannerSettings>(m, "PlannerSettings")
      .def(nb::init<>())
      .def_prop_rw(
          "policy", [](const PlannerSettings& s) { return to_string(s.policy); },
          [](PlannerSettings& s, std::string_view name) { s.policy = policy_of(name); })
      .def_rw("multipath_min_bytes", &PlannerSettings::multipath_min_bytes,
              "Demands of at most this many bytes take one path; of rails below 50 GB/s as many as take as long.")
      .def_rw("chunk_bytes", &PlannerSettings::chunk_bytes, "Parts of a split demand are multiples of this, but for one.")
      .def_rw("pxn_level", &PlannerSettings::pxn_level, "Policy nccl: 0, 1 or 2.")
      .def_rw("ucx_rails", &PlannerSettings::ucx_rails, "Policy ucx-rails: NICs that a sender stripes over.")
      .def_rw("hysteresis_permille", &PlannerSettings::hysteresis_permille,
              "By how much a new plan for the same demand must win to replace the one in force.");
  nb::class_<Planner>(m, "Planner", "Routes demands over one fabric.")
      .def(nb::init<const Fabric&, const PlannerSettings&>(), "fabric"_a, "settings"_a = PlannerSettings{}, nb::keep_alive<1, 2>())
      .def("plan", &Planner::plan, "demand"_a, "links"_a, nb::rv_policy::copy, nb::call_guard<nb::gil_scoped_release>(),
           "Routes every byte between different GPUs. Raises DemandError or UnreachableError; the previous plan then still holds.")
      .def(
          "shares",
          [](const Planner& p, GpuId src, GpuId dst) {
            const auto shares = p.shares(src, dst);
            return std::vector<Share>(shares.begin(), shares.end());
          },
          "src"_a, "dst"_a, "Shares of one pair in the last plan.")
      .def("plan_microseconds", &plan_microseconds, "demand"_a, "links"_a, "repeat"_a = 5, nb::call_guard<nb::gil_scoped_release>(),
           "Median time that planning this demand anew takes.")
      .def("candidates", &Planner::candidates, "src"_a, "dst"_a, "links"_a, "Usable routes of a pair, best first.")
      .def("split_min_bytes", &Planner::split_min_bytes, "src"_a, "dst"_a,
           "Demands of fewer bytes take one path, under the last plan's links.")
      .def("expand", &Planner::expand, "route"_a, "The edges and resources of a route.");
  m.def("policy_names", [] {
    std::vector<std::string_view> names;
    for (Policy p : kPolicies) names.push_back(to_string(p));
    return names;
  });
}
