// railweave._native: Exchange and what belongs to it. Buffers come as addresses and sizes; python/railweave/exchange.py checks arrays
// and keeps them alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "../engine/kept_calibration.hpp"
#include "railweave/engine/exchange.hpp"
#include "railweave/fabric/fabric_json.hpp"
#include "waiting.hpp"

namespace nb = nanobind;
using namespace railweave;

namespace {

using Counts = std::vector<std::uint64_t>;

void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

// RankDied carries the rank: Python's exception gets it as an attribute.
nb::object& rank_died_type() {
  static nb::object* type = new nb::object();  // lives as long as the interpreter
  return *type;
}

void translate_rank_died(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const RankDied& error) {
    nb::object value = rank_died_type()(nb::str(error.what()));
    value.attr("rank") = error.rank();
    PyErr_SetObject(rank_died_type().ptr(), value.ptr());
  }
}

// Its end waits for other ranks, so other threads of this program go on meanwhile, as in close().
struct PythonExchange : Exchange {
  using Exchange::Exchange;
  ~PythonExchange() {
    const Waiting waiting;
    close();
  }
};

ExchangeSettings settings_from(const nb::dict& given) {
  ExchangeSettings settings = settings_from_environment();
  for (const auto& [key, value] : given) {
    set(settings, nb::cast<std::string>(nb::str(key)), nb::cast<std::string>(nb::str(value)));
  }
  return settings;
}

nb::dict report_dict(const OperationReport& report) {
  nb::dict kinds;
  for (std::size_t kind = 0; kind < kPathKinds; ++kind) {
    kinds[nb::str(std::string(to_string(static_cast<PathKind>(kind))).c_str())] = report.bytes_by_kind[kind];
  }
  nb::dict result;
  result["serial"] = report.serial;
  result["seconds"] = report.seconds;
  result["bytes_sent"] = report.bytes_sent;
  result["bytes_received"] = report.bytes_received;
  result["bytes_by_kind"] = kinds;
  result["bytes_by_nic"] = report.bytes_by_nic;
  result["mapped_bytes"] = report.mapped_bytes;
  result["resent_chunks"] = report.resent_chunks;
  result["plan_seconds"] = report.plan_seconds;
  result["row_wait_seconds"] = report.row_wait_seconds;
  result["rows_missing"] = report.rows_missing;
  result["plan_id"] = report.plan_id;
  result["plan_z_seconds"] = report.plan_z_seconds;
  return result;
}

nb::list settings_rows() {
  const ExchangeSettings defaults;
  nb::list rows;
  for (const Setting& setting : settings_table()) {
    nb::dict row;
    row["name"] = std::string(setting.name);
    row["environment"] = setting.environment();
    row["default"] = setting.get(defaults);
    row["unit"] = std::string(setting.unit);
    row["must_agree"] = setting.must_agree;
    row["help"] = std::string(setting.help);
    row["measured"] = std::string(setting.measured);
    rows.append(row);
  }
  return rows;
}

nb::dict found_calibration(const std::string& library, const std::string& for_all) {
  const KeptCalibration found = find_calibration(library, for_all);
  nb::dict result, settings;
  for (const auto& [name, value] : found.settings) settings[nb::str(name.c_str())] = value;
  result["path"] = found.path;
  result["settings"] = settings;
  result["problem"] = found.problem;
  return result;
}

void bind_errors(nb::module_& m) {
  const nb::object base = m.attr("Error");
  nb::exception<SettingsError>(m, "SettingsError", base);
  nb::exception<BootstrapError>(m, "BootstrapError", base);
  nb::exception<TransportError>(m, "TransportError", base);
  const auto exchange_error = nb::exception<ExchangeError>(m, "ExchangeError", base);
  rank_died_type() = nb::steal(PyErr_NewException("railweave._native.RankDied", exchange_error.ptr(), nullptr));
  m.attr("RankDied") = rank_died_type();
  nb::register_exception_translator(translate_rank_died);  // asked before those registered earlier
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_errors(m);
  Waiting::watch_end();
  m.def("exchange_settings", &settings_rows, "The settings table: name, environment variable, default, unit, help, measurement.");
  m.def("exchange_settings_markdown", &settings_markdown, "The settings table as docs/settings.md has it.");

  m.def("calibration_fingerprint", &calibration_fingerprint, nb::arg("library"),
        "What a calibration depends on, in one line; `library` is the path of librailweave_cuda.so.");
  m.def("find_calibration", &found_calibration, nb::arg("library"), nb::arg("for_all"),
        "The kept calibration that holds: path (empty: none), settings that follow, and what is wrong with one that does not.");

  nb::class_<Handle>(m, "ExchangeHandle")
      // In slices, so that Ctrl-C is noticed.
      .def("wait_for", &Handle::wait_for, nb::arg("seconds"), nb::call_guard<Waiting>())
      .def("test", &Handle::test)
      .def("report", [](const Handle& handle) { return report_dict(handle.report()); });

  nb::class_<Group>(m, "ExchangeGroup")
      .def("send",
           [](Group& group, std::uintptr_t data, std::uint64_t bytes, std::uint32_t peer) { group.send(address(data), bytes, peer); })
      .def("recv",
           [](Group& group, std::uintptr_t data, std::uint64_t bytes, std::uint32_t peer) { group.recv(address(data), bytes, peer); })
      .def("end", &Group::end);

  nb::class_<ExchangeBuffer>(m, "ExchangeBuffer")
      .def_prop_ro("address", [](const ExchangeBuffer& buffer) { return reinterpret_cast<std::uintptr_t>(buffer.data()); })
      .def_prop_ro("bytes", &ExchangeBuffer::bytes);

  nb::class_<PythonExchange>(m, "Exchange")
      .def(
          "__init__",
          [](PythonExchange* self, std::uint32_t rank, std::uint32_t world, const std::string& rendezvous,
             const std::optional<std::string>& fabric, const nb::dict& given) {
            const ExchangeSettings settings = settings_from(given);
            std::optional<Waiting> waiting(std::in_place);
            // Ctrl-C, or whatever else the handler of a signal raises; handlers run in the main thread alone.
            const Interruption interruption = [&waiting] {
              waiting.reset();
              std::exception_ptr raised;
              if (PyErr_CheckSignals() != 0) raised = std::make_exception_ptr(nb::python_error());
              waiting.emplace();
              if (raised) std::rethrow_exception(raised);
            };
            if (fabric)
              new (self) PythonExchange(rank, world, rendezvous, settings, FabricText{*fabric, "fabric"}, interruption);
            else
              new (self) PythonExchange(rank, world, rendezvous, settings, std::nullopt, interruption);
          },
          nb::arg("rank"), nb::arg("world"), nb::arg("rendezvous"), nb::arg("fabric").none(), nb::arg("settings"))
      .def_prop_ro("rank", &Exchange::rank)
      .def_prop_ro("world", &Exchange::world)
      .def_prop_ro("nodes", &Exchange::node_count)
      .def("fabric_json", [](const PythonExchange& exchange) { return format_fabric_json(exchange.fabric()); })
      .def("links_down", &Exchange::links_down)
      .def("all_to_all_v",
           [](PythonExchange& exchange, std::uintptr_t send, const Counts& send_counts, const Counts& send_offsets, std::uintptr_t recv,
              const Counts& recv_counts, const Counts& recv_offsets, std::uint32_t communicator) {
             return exchange.all_to_all_v(address(send), send_counts, send_offsets, address(recv), recv_counts, recv_offsets, communicator);
           })
      .def("group", &Exchange::group, nb::arg("communicator"))
      .def("allocate", &Exchange::allocate, nb::arg("bytes"))
      .def("close", &Exchange::close, nb::call_guard<Waiting>());
}
