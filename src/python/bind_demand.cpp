#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstring>
#include <memory>

#include "railweave/demand/demand.hpp"
#include "railweave/error.hpp"

namespace nb = nanobind;
using railweave::Demand;

namespace {

using Matrix = nb::ndarray<const std::uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Demand from_numpy(Matrix matrix) {
  if (matrix.shape(0) != matrix.shape(1)) {
    throw railweave::DemandError("a matrix of " + std::to_string(matrix.shape(0)) + " x " + std::to_string(matrix.shape(1)) +
                                 "; a demand is square");
  }
  const auto ranks = static_cast<std::uint32_t>(matrix.shape(0));
  Demand demand(ranks);
  for (std::uint32_t src = 0; src < ranks; ++src) {
    for (std::uint32_t dst = 0; dst < ranks; ++dst) demand.set(src, dst, matrix(src, dst));
  }
  return demand;
}

nb::ndarray<nb::numpy, std::uint64_t, nb::ndim<2>> to_numpy(const Demand& demand) {
  const std::size_t n = demand.ranks();
  auto data = std::make_unique<std::uint64_t[]>(n * n);
  std::memcpy(data.get(), demand.bytes().data(), n * n * sizeof(std::uint64_t));
  std::uint64_t* const raw = data.release();
  nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<std::uint64_t*>(p); });
  return {raw, {n, n}, owner};
}

}  // namespace

void bind_demand(nb::module_& m) {
  nb::class_<Demand>(m, "Demand", "Bytes from each rank to each rank; row = sender, column = receiver.")
      .def(nb::init<std::uint32_t>(), nb::arg("ranks"), "An empty matrix of ranks x ranks.")
      .def_static(
          "from_numpy", &from_numpy, nb::arg("matrix"),
          "From a C-contiguous uint64 array of shape [n, n], bytes. Raises DemandError when it is not square or the total reaches 2**63.")
      .def("to_numpy", &to_numpy, "A uint64 copy of shape [n, n], bytes.")
      .def("set", &Demand::set, nb::arg("src"), nb::arg("dst"), nb::arg("bytes"))
      .def(
          "at",
          [](const Demand& d, std::uint32_t src, std::uint32_t dst) {
            if (src >= d.ranks() || dst >= d.ranks()) throw nb::index_error("rank out of range");
            return d.at(src, dst);
          },
          nb::arg("src"), nb::arg("dst"))
      .def_prop_ro("ranks", &Demand::ranks)
      .def_prop_ro("total", &Demand::total, "Sum of all entries in bytes.")
      .def_prop_ro("skew", &Demand::skew, "Busiest endpoint / mean endpoint.")
      .def("__eq__", [](const Demand& a, const Demand& b) { return a == b; });
  m.def("parse_demand", &railweave::parse_demand, nb::arg("text"), nb::arg("source"),
        "Reads nccl-tests' matrix format. Raises ParseError with the line.");
  m.def("format_demand", &railweave::format_demand, nb::arg("demand"));
  m.def("check_fits", &railweave::check_fits, nb::arg("demand"), nb::arg("fabric"),
        "Raises DemandError when the matrix does not have one row for each GPU of the fabric.");
}
