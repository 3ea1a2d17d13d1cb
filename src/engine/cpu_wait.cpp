#include "cpu_wait.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "shared_memory.hpp"

namespace railweave::engine {
namespace {

constexpr std::uint64_t kTurnsEveryNs = 100'000;  // a fiftieth of the shortest span that is measured
constexpr std::uint64_t kTickNs = 10'000'000;     // what USER_HZ counts in; more often there is nothing new
constexpr std::uint64_t kReadShare = 100;         // reading takes at most a hundredth of the time: 10 us here, 1 ms with hundreds of CPUs
constexpr std::uint64_t kUnstolenNs = 1'000'000'000;  // where nothing was ever stolen, as on hardware

std::uint64_t read_turn_wait_ns() noexcept {
  thread_local const Fd file(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  char text[96] = {};
  if (!file || ::pread(file.get(), text, sizeof text - 1, 0) <= 0) return 0;
  char* end = nullptr;
  std::strtoull(text, &end, 10);  // time on a CPU
  return std::strtoull(end, nullptr, 10);
}

std::uint64_t turn_wait_ns() noexcept {
  thread_local std::uint64_t next = 0, last = 0;
  if (const std::uint64_t now = now_ns(); now >= next) {
    next = now + kTurnsEveryNs;
    last = read_turn_wait_ns();
  }
  return last;
}

// What was stolen, up to the last reading.
class StolenTime {
 public:
  std::uint64_t ns() noexcept {
    const std::uint64_t now = now_ns();
    if (now < next_) return total_;
    char text[256];
    const auto size = file_ ? ::pread(file_.get(), text, sizeof text, 0) : 0;
    const auto ticks = parse_cpu_ticks({text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))});
    const std::uint64_t cost = now_ns() - now;
    next_ = now + std::max(ticks && ticks->stolen != 0 ? kTickNs : kUnstolenNs, cost * kReadShare);
    if (!ticks) return total_;
    if (read_ != 0) total_ += stolen_ns(last_, *ticks, now - read_, kTickNs);
    last_ = *ticks;
    read_ = now;
    return total_;
  }

 private:
  Fd file_{::open("/proc/stat", O_RDONLY | O_CLOEXEC)};
  CpuTicks last_;
  std::uint64_t read_ = 0, next_ = 0, total_ = 0;
};

thread_local std::uint64_t worked_ns = 0;

}  // namespace

void add_work(std::uint64_t ns) noexcept { worked_ns += ns; }

std::optional<CpuTicks> parse_cpu_ticks(std::string_view stat) {
  constexpr std::string_view kName = "cpu ";
  if (!stat.starts_with(kName)) return std::nullopt;
  const char* at = stat.data() + kName.size();
  const char* const end = stat.data() + stat.size();
  std::uint64_t fields[8];  // user, nice, system, idle, iowait, irq, softirq, steal
  for (std::uint64_t& field : fields) {
    while (at != end && *at == ' ') ++at;
    const auto [next, error] = std::from_chars(at, end, field);
    if (error != std::errc()) return std::nullopt;
    at = next;
  }
  return CpuTicks{fields[0] + fields[1] + fields[2] + fields[5] + fields[6], fields[7]};
}

std::uint64_t stolen_ns(const CpuTicks& before, const CpuTicks& after, std::uint64_t interval_ns, std::uint64_t tick_ns) {
  // The kernel's counters may go back by a tick or two; then nothing is known.
  if (after.stolen <= before.stolen || after.busy < before.busy) return 0;
  const std::uint64_t stolen = after.stolen - before.stolen, busy = after.busy - before.busy;
  const double share = static_cast<double>(stolen) / static_cast<double>(stolen + busy);
  return std::min(static_cast<std::uint64_t>(share * static_cast<double>(interval_ns)), stolen * tick_ns);
}

std::uint64_t cpu_wait_ns() noexcept {
  thread_local StolenTime stolen;
  return turn_wait_ns() + stolen.ns();
}

ThreadTimes own_times() noexcept { return {now_ns(), cpu_wait_ns(), worked_ns}; }

}  // namespace railweave::engine
