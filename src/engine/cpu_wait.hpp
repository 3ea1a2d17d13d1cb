#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace railweave::engine {

// What a machine's CPUs did since it booted, summed over them, in ticks (first line of /proc/stat, proc(5)).
struct CpuTicks {
  std::uint64_t busy = 0;    // user, nice, system, irq and softirq
  std::uint64_t stolen = 0;  // a hypervisor ran something else while a CPU of this machine had work
};

// Nothing where the text is not such a line.
std::optional<CpuTicks> parse_cpu_ticks(std::string_view stat);

// How much of `interval_ns` a thread of the machine that wanted to run must be expected to have lost between the two: the share of the
// wanted CPU time that was stolen. Idle CPUs that wake up are stolen from a little all the time, so never more than was stolen in all.
std::uint64_t stolen_ns(const CpuTicks& before, const CpuTicks& after, std::uint64_t interval_ns, std::uint64_t tick_ns);

// Time without a CPU, all its life, that the calling thread had work: waiting for its turn (0 where the kernel does not count it,
// CONFIG_SCHED_INFO), and, in a virtual machine, what the hypervisor took.
std::uint64_t cpu_wait_ns() noexcept;

// Time that the calling thread's turns took that found work, all its life.
void add_work(std::uint64_t ns) noexcept;

// What a thread says of itself beside what it confirms, in ns.
struct ThreadTimes {
  std::uint64_t now = 0;
  std::uint64_t waited = 0;  // cpu_wait_ns()
  std::uint64_t worked = 0;  // add_work()
};
using ThreadClock = std::function<ThreadTimes()>;
ThreadTimes own_times() noexcept;

}  // namespace railweave::engine
