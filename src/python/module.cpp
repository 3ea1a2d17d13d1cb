// The extension module railweave._native: one bind_<room>() for each room.
#include <nanobind/nanobind.h>

#include "railweave/error.hpp"

namespace nb = nanobind;

#ifdef RAILWEAVE_BIND_FABRIC
void bind_fabric(nb::module_& m);
#endif
#ifdef RAILWEAVE_BIND_DEMAND
void bind_demand(nb::module_& m);
#endif
#ifdef RAILWEAVE_BIND_PLANNER
void bind_planner(nb::module_& m);
#endif
#ifdef RAILWEAVE_BIND_MODEL
void bind_model(nb::module_& m);
#endif
#ifdef RAILWEAVE_BIND_ENGINE
void bind_engine(nb::module_& m);
#endif

NB_MODULE(_native, m) {
  m.doc() = "Railweave's C++ core: fabric, planner, model and engine.";
  // Python classes of the same names; railweave.errors re-exports them.
  auto error = nb::exception<railweave::Error>(m, "Error");
  nb::exception<railweave::ParseError>(m, "ParseError", error);
  nb::exception<railweave::FabricError>(m, "FabricError", error);
  nb::exception<railweave::DemandError>(m, "DemandError", error);
  nb::exception<railweave::UnreachableError>(m, "UnreachableError", error);
#ifdef RAILWEAVE_BIND_FABRIC
  bind_fabric(m);
#endif
#ifdef RAILWEAVE_BIND_DEMAND
  bind_demand(m);
#endif
#ifdef RAILWEAVE_BIND_PLANNER
  bind_planner(m);
#endif
#ifdef RAILWEAVE_BIND_MODEL
  bind_model(m);
#endif
#ifdef RAILWEAVE_BIND_ENGINE
  bind_engine(m);
#endif
}
