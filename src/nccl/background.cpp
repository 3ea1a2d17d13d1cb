#include "background.hpp"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
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

}  // namespace

std::thread signal_free_thread(std::function<void()> body) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

void in_background(std::function<void()> task) {
  Tasks& tasks = Tasks::get();
  {
    const std::lock_guard lock(tasks.mutex);
    ++tasks.running;
  }
  signal_free_thread([task = std::move(task)]() mutable {
    task();
    task = nullptr;  // what it holds is freed before it counts as ended
    Tasks& mine = Tasks::get();
    const std::lock_guard lock(mine.mutex);
    --mine.running;
    mine.changed.notify_all();
  }).detach();
}

}  // namespace railweave::nccl
