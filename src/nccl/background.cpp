#include "background.hpp"

#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

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
  ~ExitWait() {
    Tasks& tasks = Tasks::get();
    std::unique_lock lock(tasks.mutex);
    tasks.changed.wait_for(lock, kExitWait, [&] { return tasks.running == 0; });
  }
} exit_wait;

}  // namespace

void in_background(std::function<void()> task) {
  Tasks& tasks = Tasks::get();
  {
    const std::lock_guard lock(tasks.mutex);
    ++tasks.running;
  }
  // The program's signal handlers belong on its own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([task = std::move(task)]() mutable {
    task();
    task = nullptr;  // what it holds is freed before it counts as ended
    Tasks& mine = Tasks::get();
    const std::lock_guard lock(mine.mutex);
    --mine.running;
    mine.changed.notify_all();
  }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace railweave::nccl
