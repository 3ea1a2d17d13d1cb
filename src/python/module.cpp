// The extension module railweave._native: one bind_<room>() for each room.
#include <nanobind/nanobind.h>

#include "railweave/error.hpp"

namespace nb = nanobind;

void bind_fabric(nb::module_& m);
void bind_demand(nb::module_& m);
void bind_planner(nb::module_& m);
void bind_model(nb::module_& m);
void bind_engine(nb::module_& m);

NB_MODULE(_native, m) {
  m.doc() = "Railweave's C++ core: fabric, planner, model and engine.";
  // Python classes of the same names; railweave.errors re-exports them.
  auto error = nb::exception<railweave::Error>(m, "Error");
  nb::exception<railweave::ParseError>(m, "ParseError", error);
  nb::exception<railweave::FabricError>(m, "FabricError", error);
  nb::exception<railweave::DemandError>(m, "DemandError", error);
  nb::exception<railweave::UnreachableError>(m, "UnreachableError", error);
  bind_fabric(m);
  bind_demand(m);
  bind_planner(m);
  bind_model(m);
  bind_engine(m);
}
