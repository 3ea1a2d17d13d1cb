// Calls of railweave._native that give up the GIL while they wait.
#pragma once

#include <nanobind/nanobind.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace railweave {

inline bool finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Without the GIL. Until Python 3.14 a thread that wants it back when the interpreter ends is ended by unwinding its stack, and with
// nanobind's functions on it that aborts the process: daemon threads in wait(). Here they sleep on instead.
class Waiting {
 public:
  Waiting() : state_(PyEval_SaveThread()) { ++waiting; }
  ~Waiting() {
    ++returning;
    if (ending && std::this_thread::get_id() != ends) {
      --returning;
      // Other handlers may still need this thread, so not for ever yet.
      for (int ms = 0; ms < 1000 && !finalizing(); ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      while (finalizing()) ::pause();
      ++returning;
    }
    PyEval_RestoreThread(state_);
    --returning;
    --waiting;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Just before the interpreter ends, by the thread that ends it: who is about to have the GIL back still gets it.
  static void end() {
    ends = std::this_thread::get_id();
    ending = true;
    const nanobind::gil_scoped_release release;
    while (returning != 0) std::this_thread::yield();
    if (waiting != 0) nanobind::set_leak_warnings(false);  // those threads keep what they wait for
  }
  static void watch_end() {
    ::pthread_atfork(nullptr, nullptr, [] { waiting = returning = 0; });
    nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function(&Waiting::end));
  }

 private:
  inline static std::atomic<bool> ending{false};
  inline static std::atomic<int> waiting{0}, returning{0};
  inline static std::thread::id ends;
  PyThreadState* state_;
};

}  // namespace railweave
