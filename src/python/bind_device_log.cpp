// What a device library says of its decisions (railweave/cuda.h), until Python asks for it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace {

using Lines = std::vector<std::pair<bool, std::string>>;  // whether it is a warning

// Told on the library's own threads, also while Python ends: nothing of Python is called.
struct Told {
  std::mutex mutex;
  Lines lines;  // guarded by mutex

  static void add(void* context, bool warning, const char* text) {
    auto* const told = static_cast<Told*>(context);
    const std::lock_guard lock(told->mutex);
    told->lines.emplace_back(warning, text);
  }
};

void tell(void* context, const char* text) { Told::add(context, false, text); }
void warn(void* context, const char* text) { Told::add(context, true, text); }

template <typename T>
std::uintptr_t address(T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// Without close() what is told stays for good: the library may tell as long as its communicator is there.
class DeviceLog {
 public:
  DeviceLog() : told_(new Told()) {}
  std::uintptr_t context() const { return address(told_); }
  Lines take() {
    if (told_ == nullptr) return {};
    const std::lock_guard lock(told_->mutex);
    return std::exchange(told_->lines, {});
  }
  void close() { delete std::exchange(told_, nullptr); }

 private:
  Told* told_;
};

}  // namespace

void bind_device_log(nb::module_& m) {
  nb::class_<DeviceLog>(m, "DeviceLog", "What a device library tells, for the members log, log_context and warn of its configuration.")
      .def(nb::init<>())
      .def_prop_ro("log", [](const DeviceLog&) { return address(&tell); })
      .def_prop_ro("warn", [](const DeviceLog&) { return address(&warn); })
      .def_prop_ro("context", &DeviceLog::context)
      .def("take", &DeviceLog::take, "What was told since the last call: whether it is a warning, and its text.")
      .def("close", &DeviceLog::close, "After the communicator is no more.");
}
