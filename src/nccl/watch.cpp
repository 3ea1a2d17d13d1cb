#include "watch.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "background.hpp"
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
  std::vector<Watched> fresh;  // guarded by mutex: since the thread's last look
  bool running = false;        // guarded by mutex
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

void look(Watched& watched, Metrics& metrics) {
  const auto communicator = watched.communicator.lock();
  if (communicator == nullptr) return;
  if (auto fate = communicator->fate()) metrics.fates.push_back(std::move(*fate));
  auto sample = communicator->sample();
  if (!sample) return;
  const railweave_cuda_counters& counters = sample->counters;
  StallDetector detector = watched.detector;
  if (settings().stall_ms != 0 &&
      detector.stalled(progress(counters), counters.enqueued > counters.completed || counters.replays != 0, StallDetector::Clock::now()))
    log(LogLevel::warn, "stalled for " + std::to_string(settings().stall_ms) + " ms: " + communicator->describe());
  watched.detector = detector;  // now that it is told
  metrics.samples.push_back(std::move(*sample));
}

void take_fresh(std::vector<Watched>& entries) {
  Watch& watch = the_watch();
  const std::lock_guard lock(watch.mutex);
  entries.reserve(entries.size() + watch.fresh.size());  // so that all come, or none
  std::move(watch.fresh.begin(), watch.fresh.end(), std::back_inserter(entries));
  watch.fresh.clear();
}

// Communicators are asked outside of the mutex: a GPU may take its time to answer, and others begin meanwhile.
void look_at_all(std::vector<Watched>& entries, bool& told) {
  take_fresh(entries);
  std::erase_if(entries, [](const Watched& watched) { return watched.communicator.expired(); });
  Metrics metrics;
  for (Watched& watched : entries) look(watched, metrics);
  const std::string& directory = settings().metrics;
  if (directory.empty() || write_metrics(directory, metrics) || std::exchange(told, true)) return;
  log(LogLevel::warn, "RAILWEAVE_METRICS=" + directory + ": no file can be written there: " + std::strerror(errno));
}

void run(std::chrono::milliseconds interval) {
  std::vector<Watched> entries;
  bool told = false;
  for (;; std::this_thread::sleep_for(interval)) {
    try {
      look_at_all(entries, told);
    } catch (const std::exception&) {
      // Without memory: the next look has what this one lacked.
    }
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
  if (limit.count() == 0 && settings().metrics.empty()) return;
  Watch& watch = the_watch();
  const std::lock_guard lock(watch.mutex);
  // Eight looks in the limit: a stall is told at most an eighth late. Metrics are wanted each second.
  const auto second = std::chrono::milliseconds(1000);
  const auto interval = limit.count() == 0 ? second : std::clamp(limit / 8, std::chrono::milliseconds(10), second);
  try {
    watch.fresh.push_back({std::move(communicator), StallDetector(limit)});
    if (watch.running) return;
    signal_free_thread([interval] { run(interval); }).detach();
    watch.running = true;
  } catch (const std::exception& error) {
    log(LogLevel::warn, std::string("nobody watches for stalls or keeps metrics: ") + error.what());
  }
}

}  // namespace railweave::nccl
