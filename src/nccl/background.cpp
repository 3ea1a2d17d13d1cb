#include "background.hpp"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

namespace railweave::nccl {
namespace {

// Twice the device library's drain time: a rank that leaves first lends its slots for that long.
constexpr auto kExitWait = std::chrono::seconds(10);

struct Tasks {
  std::mutex mutex;
  std::condition_variable changed;
  unsigned running = 0;  // guarded by mutex

  // Leaked: threads use it while static objects are destroyed.
  static Tasks& get() {
    static Tasks* const tasks = new Tasks();
    return *tasks;
  }
};

// Communicators that the program has just destroyed are still being freed: shared memory would stay behind, and peers would lose a relay.
struct ExitWait {
  const pid_t process = ::getpid();
  ~ExitWait() {
    if (::getpid() != process) return;  // a forked child has none of the threads
    Tasks& tasks = Tasks::get();
    std::unique_lock lock(tasks.mutex);
    tasks.changed.wait_for(lock, kExitWait, [&] { return tasks.running == 0; });
  }
} exit_wait;

// On the thread that has one, which hands it to those that it starts.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

void run(std::function<void()>& task) {
  task();
  task = nullptr;  // what it holds is freed before it counts as ended
  Tasks& tasks = Tasks::get();
  const std::lock_guard lock(tasks.mutex);
  --tasks.running;
  tasks.changed.notify_all();
}

}  // namespace

std::thread signal_free_thread(std::function<void()> body) {
  const NoSignals none;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), "no thread (limits: ulimit -u, pids.max)");
  }
}

void in_background(std::function<void()> task) {
  const auto held = std::make_shared<std::function<void()>>(std::move(task));
  Tasks& tasks = Tasks::get();
  {
    const std::lock_guard lock(tasks.mutex);
    ++tasks.running;
  }
  try {
    signal_free_thread([held] { run(*held); }).detach();
  } catch (const std::exception&) {  // no thread, or no memory for one
    run(*held);
  }
}

}  // namespace railweave::nccl
