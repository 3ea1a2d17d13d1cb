// nccl_program SCENARIO RANKS DIRECTORY: runs the scenario with so many processes; the exit status says how many were not content.
// --bare RANK: that rank is started without LD_PRELOAD. Started by itself: nccl_program SCENARIO RANKS DIRECTORY --rank RANK.
// RANK_WRAPPER: shell words in front of every second rank's command, which get the same environment.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "rank.hpp"

#ifdef __SANITIZE_THREAD__
// What an ended thread had of its own is freed when glibc gives its stack to the next one, in an order that the sanitizer does not see.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls\n"; }
#endif

namespace {

int be_rank(const std::string& scenario, int rank, int world, const std::string& directory) {
  try {
    Rank self(rank, world, directory);
    scenarios().at(scenario)(self);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: rank %d: %s\n", scenario.c_str(), rank, error.what());
    return 1;
  }
}

pid_t start(std::vector<std::string> words, bool bare, bool wrapped) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (bare) ::unsetenv("LD_PRELOAD");
  std::string program = "/proc/self/exe";
  if (const char* wrapper = std::getenv("RANK_WRAPPER"); wrapper != nullptr && wrapped) {
    const std::vector<std::string> shell{"sh", "-c", std::string("exec ") + wrapper + " \"$@\"", "sh"};
    words.insert(words.begin(), shell.begin(), shell.end());
    program = "/bin/sh";
  }
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  ::_exit(127);
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> arguments(words, words + count);
  if (count < 4) return 2;
  const int world = std::atoi(words[2]);
  const std::string option = count == 6 ? arguments[4] : "";
  const int number = count == 6 ? std::atoi(words[5]) : -1;
  if (option == "--rank") return be_rank(arguments[1], number, world, arguments[3]);
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank)
    children.push_back(start({arguments[0], arguments[1], arguments[2], arguments[3], "--rank", std::to_string(rank)},
                             option == "--bare" && rank == number, rank % 2 == 1));
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }
  return failed;
}
