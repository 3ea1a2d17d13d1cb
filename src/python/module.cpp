// The extension module railweave._native: one bind_<room>() for each room.
#include <nanobind/nanobind.h>

#include <mutex>
#include <string>
#include <string_view>

#include "railweave/error.hpp"

namespace nb = nanobind;

void bind_fabric(nb::module_& m);
void bind_nic_mapping(nb::module_& m);
void bind_kinds(nb::module_& m);
void bind_link_state(nb::module_& m);
void bind_demand(nb::module_& m);
void bind_planner(nb::module_& m);
void bind_model(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_device(nb::module_& m);

// What the first rank of a node needs to find its place is bound at import, the rest when one of its names is first asked for (PEP 562):
// a rank's start is short (docs/run.md), and Python's enumerations with the library behind them take a tenth of it.
void bind_rest(nb::module_& m) {
  static std::recursive_mutex mutex;  // binding runs Python, which may let another thread ask meanwhile
  static bool is_begun = false;
  std::unique_lock lock(mutex, std::defer_lock);
  {
    const nb::gil_scoped_release release;
    lock.lock();
  }
  if (is_begun) return;
  is_begun = true;
  bind_kinds(m);
  bind_link_state(m);
  bind_demand(m);
  bind_planner(m);
  bind_model(m);
  bind_engine(m);
  bind_device(m);
}

namespace {

nb::object attribute(const char* name) {
  nb::module_ m = nb::module_::import_("railweave._native");
  if (!std::string_view(name).starts_with("__")) bind_rest(m);  // those are asked for by imports and tools
  const nb::object found = m.attr("__dict__").attr("get")(name);
  if (found.is_none()) throw nb::attribute_error((std::string("module 'railweave._native' has no attribute '") + name + "'").c_str());
  return found;
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Railweave's C++ core: fabric, planner, model and engine.";
  // Python classes of the same names; railweave.errors re-exports them.
  auto error = nb::exception<railweave::Error>(m, "Error");
  nb::exception<railweave::ParseError>(m, "ParseError", error);
  nb::exception<railweave::FabricError>(m, "FabricError", error);
  nb::exception<railweave::DemandError>(m, "DemandError", error);
  nb::exception<railweave::UnreachableError>(m, "UnreachableError", error);
  bind_fabric(m);
  bind_nic_mapping(m);
  m.def("__getattr__", &attribute, nb::arg("name"));
}
