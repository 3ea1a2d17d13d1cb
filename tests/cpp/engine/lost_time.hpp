// What a machine kept from its threads: a test that judges how fast something goes takes it off.
#pragma once

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>

namespace railweave::test {

// Time from its making on.
class Span {
 public:
  // Seconds that have passed, without those in which a thread that was ready waited for a CPU, or a CPU for its host (summed over CPUs).
  double ran() const { return std::chrono::duration<double>(Clock::now() - start_).count() - (lost() - lost_); }

 private:
  using Clock = std::chrono::steady_clock;

  static double lost() {
    std::ifstream pressure("/proc/pressure/cpu");  // some avg10=… avg60=… avg300=… total=<us>; absent without CONFIG_PSI
    std::string word;
    double waited = 0;
    for (int i = 0; i < 5 && pressure >> word; ++i) {
      if (word.starts_with("total=")) waited = std::stod(word.substr(6)) * 1e-6;
    }
    std::ifstream stat("/proc/stat");  // cpu, then ticks: user nice system idle iowait irq softirq steal
    double stolen = 0;
    stat >> word;
    for (int i = 0; i < 8; ++i) stat >> stolen;
    return waited + stolen / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }

  Clock::time_point start_ = Clock::now();
  double lost_ = lost();
};

}  // namespace railweave::test
