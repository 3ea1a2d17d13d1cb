#include "watch.hpp"

#include <signal.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "communicator.hpp"
#include "log.hpp"
#include "settings.hpp"

namespace railweave::nccl {
namespace {

struct Watched {
  std::weak_ptr<Communicator> communicator;
  StallDetector detector;
};

struct Watch {
  std::mutex mutex;
  std::vector<Watched> entries;  // guarded by mutex
  bool running = false;          // guarded by mutex
};

// Leaked: its thread lives as long as the process.
Watch& the_watch() {
  static Watch* const watch = new Watch();
  return *watch;
}

std::uint64_t progress(const railweave_cuda_counters& counters) {
  return std::accumulate(std::begin(counters.bytes_by_kind), std::end(counters.bytes_by_kind),
                         counters.enqueued + counters.completed + counters.bytes_sent + counters.bytes_received);
}

void look(Watched& watched) {
  const auto communicator = watched.communicator.lock();
  if (communicator == nullptr) return;
  const auto counters = communicator->counters();
  if (!counters) return;
  if (watched.detector.stalled(progress(*counters), counters->enqueued > counters->completed, StallDetector::Clock::now()))
    log(LogLevel::warn, "stalled for " + std::to_string(settings().stall_ms) + " ms: " + communicator->describe());
}

void run(std::chrono::milliseconds interval) {
  Watch& watch = the_watch();
  for (;; std::this_thread::sleep_for(interval)) {
    const std::lock_guard lock(watch.mutex);
    std::erase_if(watch.entries, [](const Watched& watched) { return watched.communicator.expired(); });
    for (Watched& watched : watch.entries) look(watched);
  }
}

}  // namespace

bool StallDetector::stalled(std::uint64_t progress, bool under_way, Clock::time_point now) {
  if (!under_way || last_ != progress) {
    last_ = progress;
    since_ = now;
    told_ = false;
    return false;
  }
  if (told_ || now - since_ < limit_) return false;
  told_ = true;
  return true;
}

void watch(std::weak_ptr<Communicator> communicator) {
  const std::chrono::milliseconds limit(settings().stall_ms);
  if (limit.count() == 0) return;
  Watch& watch = the_watch();
  const std::lock_guard lock(watch.mutex);
  watch.entries.push_back({std::move(communicator), StallDetector(limit)});
  if (std::exchange(watch.running, true)) return;
  // Eight looks in the limit: a stall is told at most an eighth late.
  const auto interval = std::clamp(limit / 8, std::chrono::milliseconds(10), std::chrono::milliseconds(1000));
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(run, interval).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace railweave::nccl
