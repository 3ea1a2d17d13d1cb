// The device library (railweave/cuda.h) for Python: loaded by its path, as the NCCL shim loads it. Memory comes as addresses and sizes.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "railweave/cuda.h"
#include "railweave/engine/error.hpp"
#include "waiting.hpp"

namespace nb = nanobind;
using namespace railweave;

namespace {

using Lines = std::vector<std::pair<bool, std::string>>;  // whether it is a warning
using Sizes = std::vector<std::uint64_t>;
using Transfer = std::tuple<bool, std::uint32_t, std::uintptr_t, std::uint64_t>;  // railweave.device.Transfer

void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

// Told on the library's own threads, also while Python ends: nothing of Python is called.
struct Told {
  std::mutex mutex;
  Lines lines;  // guarded by mutex

  static void add(void* context, bool warning, const char* text) noexcept {
    auto* const told = static_cast<Told*>(context);
    const std::lock_guard lock(told->mutex);
    try {
      told->lines.emplace_back(warning, text);
    } catch (const std::bad_alloc&) {
      // A line less: no reason to end what is told.
    }
  }
};

// What a library says of its decisions, until Python asks for it. Without close() it stays for good: the library may tell as long as its
// communicator is there.
class DeviceLog {
 public:
  DeviceLog() : told_(new Told()) {}
  Lines take() {
    if (told_ == nullptr) return {};
    const std::lock_guard lock(told_->mutex);
    return std::exchange(told_->lines, {});
  }
  void tell(railweave_cuda_config& config) {
    config.log_context = told_;
    config.log = [](void* context, const char* text) { Told::add(context, false, text); };
    config.warn = [](void* context, const char* text) { Told::add(context, true, text); };
  }
  void close() { delete std::exchange(told_, nullptr); }

 private:
  Told* told_;
};

// It stays loaded, as streams may hold its kernels until the process ends.
void* loaded(const std::string& path) {
  if (void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  throw TransportError(std::string("no device library: ") + ::dlerror() + "; build one (make cuda) and set RAILWEAVE_CUDA_LIBRARY to it");
}

const railweave_cuda_api& table(const std::string& path) {
  const auto entry = reinterpret_cast<railweave_cuda_entry_function>(::dlsym(loaded(path), "railweave_cuda_entry"));
  const railweave_cuda_api* const found = entry == nullptr ? nullptr : entry(RAILWEAVE_CUDA_VERSION);
  // The newest member that is used here comes before that.
  if (found == nullptr || found->size < offsetof(railweave_cuda_api, nics)) {
    throw TransportError(path + " does not have version " + std::to_string(RAILWEAVE_CUDA_VERSION) +
                         " of the device interface as this build has it; install one build of all of Railweave");
  }
  return *found;
}

// The file that a name on the loader's path stands for.
std::string library_file(const std::string& name) {
  Dl_info found{};
  void* const entry = ::dlsym(loaded(name), "railweave_cuda_entry");
  return entry != nullptr && ::dladdr(entry, &found) != 0 ? found.dli_fname : name;
}

// What was not closed stays for good: its end would wait for the other ranks.
class DeviceCommunicator {
 public:
  DeviceCommunicator(DeviceLog& log, const std::string& library, std::uint32_t rank, std::uint32_t world, std::int32_t device,
                     const std::string& rendezvous, const std::map<std::string, std::string>& settings)
      : api_(table(library)), world_(world) {
    std::vector<railweave_setting> chosen;
    for (const auto& [name, value] : settings) chosen.push_back({name.c_str(), value.c_str()});
    railweave_cuda_config config{};
    config.size = sizeof(config);
    config.rank = rank;
    config.world = world;
    config.device = device;
    config.rendezvous = rendezvous.c_str();
    config.settings = chosen.data();
    config.setting_count = chosen.size();
    log.tell(config);
    const Waiting waiting;
    check(api_.probe(device));
    check(api_.create(&config, &handle_));
  }

  void check_health() const { call(api_.async_error); }

  // Fails where the communicator has, also with nothing to move.
  void all_to_all_v(std::uintptr_t output, const Sizes& output_sizes, std::uintptr_t input, const Sizes& input_sizes,
                    std::uintptr_t stream) {
    const std::lock_guard lock(orders_);
    check_health();
    std::vector<railweave_cuda_transfer> list;
    list.reserve(output_sizes.size() + input_sizes.size());
    add(list, RAILWEAVE_CUDA_SEND, input, input_sizes);
    add(list, RAILWEAVE_CUDA_RECV, output, output_sizes);
    queue(list, stream);
  }

  void enqueue(const std::vector<Transfer>& transfers, std::uintptr_t stream) {
    const std::lock_guard lock(orders_);
    std::vector<railweave_cuda_transfer> list;
    list.reserve(transfers.size());
    for (const auto& [sends, peer, data, bytes] : transfers) {
      list.push_back(transfer(sends ? RAILWEAVE_CUDA_SEND : RAILWEAVE_CUDA_RECV, peer, data, bytes));
    }
    queue(list, stream);
  }

  std::uintptr_t register_buffer(std::uintptr_t data, std::uint64_t bytes) const {
    void* registration = nullptr;
    call(api_.register_buffer, address(data), bytes, &registration);
    return reinterpret_cast<std::uintptr_t>(registration);
  }
  void deregister_buffer(std::uintptr_t registration) const { call(api_.deregister_buffer, address(registration)); }

  // enqueued, completed, bytes_sent, bytes_received, bytes_by_kind.
  std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, Sizes> counters() const {
    railweave_cuda_counters now{};
    now.size = sizeof(now);
    call(api_.counters, &now);
    return {now.enqueued, now.completed, now.bytes_sent, now.bytes_received, {std::begin(now.bytes_by_kind), std::end(now.bytes_by_kind)}};
  }

  void abort() const { call(api_.abort); }

  void close() {
    const std::lock_guard lock(orders_);
    if (handle_ == nullptr) return;
    api_.drain(handle_);  // beside which other threads may still abort() what it waits for
    railweave_cuda_communicator* last = nullptr;
    {
      const std::lock_guard nobody_else(uses_);
      last = std::exchange(handle_, nullptr);
    }
    api_.destroy(last);
  }

 private:
  void check(railweave_status status) const {
    if (status == RAILWEAVE_OK) return;
    const std::string text = api_.last_error();
    switch (status) {
      case RAILWEAVE_ERROR_SETTINGS: throw SettingsError(text);
      case RAILWEAVE_ERROR_BOOTSTRAP: throw BootstrapError(text);
      case RAILWEAVE_ERROR_TRANSPORT: throw TransportError(text);
      case RAILWEAVE_ERROR_RANK_DIED:  // the interface does not say which it was
      case RAILWEAVE_ERROR_EXCHANGE: throw ExchangeError(text);
      default: throw Error(text);
    }
  }

  // For what may run beside any call except destroy.
  template <typename... Parameters, typename... Arguments>
  void call(railweave_status (*function)(railweave_cuda_communicator*, Parameters...), Arguments... arguments) const {
    const std::shared_lock use(uses_);
    check(function(handle(), arguments...));
  }

  railweave_cuda_communicator* handle() const {
    if (handle_ == nullptr) throw ExchangeError("the communicator is closed");
    return handle_;
  }

  railweave_cuda_transfer transfer(railweave_cuda_kind kind, std::uint32_t peer, std::uintptr_t data, std::uint64_t bytes) const {
    return {sizeof(railweave_cuda_transfer), handle(), static_cast<std::uint32_t>(kind), peer, address(data), bytes};
  }

  void add(std::vector<railweave_cuda_transfer>& list, railweave_cuda_kind kind, std::uintptr_t data, const Sizes& sizes) const {
    if (sizes.size() != world_) {
      throw ExchangeError((kind == RAILWEAVE_CUDA_SEND ? "input_sizes has " : "output_sizes has ") + std::to_string(sizes.size()) +
                          " entries; expected one for each of " + std::to_string(world_) + " ranks");
    }
    for (std::uint32_t peer = 0; peer < world_; ++peer) {
      if (sizes[peer] != 0) list.push_back(transfer(kind, peer, data, sizes[peer]));
      data += sizes[peer];
    }
  }

  void queue(const std::vector<railweave_cuda_transfer>& list, std::uintptr_t stream) const {
    if (list.empty()) return;
    const std::array<railweave_cuda_stream, 1> streams{address(stream)};
    check(api_.enqueue(list.data(), list.size(), streams.data(), streams.size()));
  }

  const railweave_cuda_api& api_;
  const std::uint32_t world_;
  railweave_cuda_communicator* handle_ = nullptr;  // changed under both
  std::mutex orders_;                              // enqueue calls of a communicator are made one after another, and before its end
  mutable std::shared_mutex uses_;                 // shared by the other calls
};

}  // namespace

void bind_device(nb::module_& m) {
  m.def("device_library_file", &library_file, nb::arg("name"), "The file of a device library that the loader finds by its name.");
  nb::class_<DeviceLog>(m, "DeviceLog", "What a device library tells.")
      .def(nb::init<>())
      .def("take", &DeviceLog::take, "What was told since the last call: whether it is a warning, and its text.")
      .def("close", &DeviceLog::close, "After the communicator is no more.");
  nb::class_<DeviceCommunicator>(m, "DeviceCommunicator")
      .def(nb::init<DeviceLog&, const std::string&, std::uint32_t, std::uint32_t, std::int32_t, const std::string&,
                    const std::map<std::string, std::string>&>(),
           nb::arg("log"), nb::arg("library"), nb::arg("rank"), nb::arg("world"), nb::arg("device"), nb::arg("rendezvous"),
           nb::arg("settings"))
      .def("check", &DeviceCommunicator::check_health, nb::call_guard<Waiting>())
      .def("all_to_all_v", &DeviceCommunicator::all_to_all_v, nb::call_guard<Waiting>())
      .def("enqueue", &DeviceCommunicator::enqueue, nb::call_guard<Waiting>())
      .def("register", &DeviceCommunicator::register_buffer, nb::call_guard<Waiting>())
      .def("deregister", &DeviceCommunicator::deregister_buffer, nb::call_guard<Waiting>())
      .def("counters", &DeviceCommunicator::counters, nb::call_guard<Waiting>())
      .def("abort", &DeviceCommunicator::abort, nb::call_guard<Waiting>())
      .def("close", &DeviceCommunicator::close, nb::call_guard<Waiting>());
}
