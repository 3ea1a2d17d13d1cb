// Ranks as processes: forks of a program that has one thread and has not loaded UCX.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <vector>

namespace railweave::test {

// Counters that the ranks of a job share with the test.
class SharedCounters {
 public:
  SharedCounters()
      : data_(static_cast<std::atomic<int>*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedCounters() { ::munmap(data_, 4096); }
  SharedCounters(const SharedCounters&) = delete;
  SharedCounters& operator=(const SharedCounters&) = delete;
  std::atomic<int>& operator[](std::size_t i) { return data_[i]; }

 private:
  std::atomic<int>* data_;
};

inline std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Forks one process a rank; `body` gives its exit status. Returns the statuses, or -signal. A fork has only the thread that forked: where
// UCX has been loaded, its threads and locks would be missing or held, so tests that start engines in this process are another program's.
inline std::vector<int> run_processes(std::uint32_t world, const std::function<int(std::uint32_t)>& body) {
  if (threads_of_this_process() != 1) throw std::logic_error("only a process of one thread may fork ranks");
  std::vector<pid_t> pids;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int status = 99;
      try {
        status = body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %u: %s\n", rank, error.what());
      }
      std::fflush(nullptr);
      ::_exit(status);
    }
    pids.push_back(pid);
  }
  std::vector<int> statuses;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return statuses;
}

}  // namespace railweave::test
