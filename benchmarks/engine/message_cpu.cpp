// message_cpu [ROUNDS]: what a message over a rail costs the engine's thread. Two ranks on two nodes, whose rail is loopback, send each
// other groups of messages of several sizes in turns. CPU of the thread and time of an operation in us, medians of rounds with their
// smallest and largest. RAILWEAVE_* and UCX_* settings count, so builds and settings are compared by running it under each of them in
// turns.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "railweave/engine/exchange.hpp"

namespace {

struct Case {
  std::size_t bytes;
  int messages;  // a group
  int groups;    // a round
};
constexpr Case kCases[] = {{1024, 4, 2000},      {8u << 10, 4, 2000},  {16u << 10, 2, 2000}, {16u << 10, 4, 2000}, {64u << 10, 2, 1000},
                           {128u << 10, 2, 800}, {256u << 10, 2, 500}, {1u << 20, 2, 150},   {8u << 20, 1, 40}};
constexpr int kWarmUp = 50;

double cpu_us(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto us = [](const timeval& time) { return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec); };
  return us(usage.ru_utime) + us(usage.ru_stime);
}
// Of all threads but the caller's: the engine's, and UCX's where it is used, which sleep.
double engine_cpu_us() { return cpu_us(RUSAGE_SELF) - cpu_us(RUSAGE_THREAD); }

struct Cost {
  double cpu_us, time_us;  // a group
};

Cost round(railweave::Exchange& exchange, const Case& each, std::vector<std::byte>& out, std::vector<std::byte>& in) {
  const std::uint32_t peer = 1 - exchange.rank();
  double cpu = 0;
  std::chrono::steady_clock::time_point begin;
  for (int i = -kWarmUp; i < each.groups; ++i) {
    if (i == 0) {
      cpu = engine_cpu_us();
      begin = std::chrono::steady_clock::now();
    }
    railweave::Group group = exchange.group();
    for (int m = 0; m < each.messages; ++m) group.recv(in.data() + static_cast<std::size_t>(m) * each.bytes, each.bytes, peer);
    for (int m = 0; m < each.messages; ++m) group.send(out.data() + static_cast<std::size_t>(m) * each.bytes, each.bytes, peer);
    group.end().wait();
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  return {(engine_cpu_us() - cpu) / each.groups, time.count() / each.groups};
}

std::string spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  char text[64];
  std::snprintf(text, sizeof text, "%8.1f (%.1f-%.1f)", values[values.size() / 2], values.front(), values.back());
  return text;
}

void run(std::uint32_t rank, const std::string& folder, int rounds) {
  railweave::ExchangeSettings settings = railweave::settings_from_environment();
  settings.node_id = "node" + std::to_string(rank);
  settings.nics = "lo";
  railweave::Exchange exchange(rank, 2, "file://" + folder, settings);
  std::size_t largest = 0;
  for (const Case& each : kCases) largest = std::max(largest, each.bytes * static_cast<std::size_t>(each.messages));
  std::vector<std::byte> out(largest, std::byte{7}), in(largest);
  std::vector<std::vector<double>> cpu(std::size(kCases)), time(std::size(kCases));
  for (int r = 0; r < rounds; ++r) {
    for (std::size_t i = 0; i < std::size(kCases); ++i) {
      const Cost cost = round(exchange, kCases[i], out, in);
      cpu[i].push_back(cost.cpu_us);
      time[i].push_back(cost.time_us);
    }
  }
  for (std::size_t i = 0; rank == 0 && i < std::size(kCases); ++i)
    std::printf("%d x %zu bytes: %s us of CPU, %s us\n", kCases[i].messages, kCases[i].bytes, spread(cpu[i]).c_str(),
                spread(time[i]).c_str());
  exchange.close();
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  if (rounds < 1) {
    std::fprintf(stderr, "message_cpu [ROUNDS]: expected at least one round, not '%s'\n", argv[1]);
    return 2;
  }
  std::string folder = (std::filesystem::temp_directory_path() / "message-cpu-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 1;
  }
  const pid_t other = ::fork();
  int status = 0;
  try {
    run(other == 0 ? 1 : 0, folder, rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "message_cpu: %s\n", error.what());
    status = 1;
  }
  if (other == 0) return status;
  int ended = 0;
  ::waitpid(other, &ended, 0);
  std::filesystem::remove_all(folder);
  return status != 0 || ended != 0 ? 1 : 0;
}
