#include "log.hpp"

#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>

namespace railweave::nccl {
namespace {

std::atomic<LogLevel> current{LogLevel::warn};
std::atomic<int> output{STDERR_FILENO};

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "?";
  ::gethostname(name, HOST_NAME_MAX);
  return name;
}

std::string expand(const std::string& pattern) {
  std::string result;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'p')
      result += std::to_string(::getpid());
    else if (next == 'h')
      result += host_name();
    else
      result += pattern[i];
    if (next == 'p' || next == 'h') ++i;
  }
  return result;
}

void write_lines(LogLevel level, std::string_view text) {
  const char* names[] = {"", "WARN", "INFO", "DEBUG"};
  const std::string prefix = "railweave " + host_name() + ":" + std::to_string(::getpid()) + " " + names[static_cast<int>(level)] + " ";
  std::string out;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    out += prefix;
    out += text.substr(0, end);
    out += '\n';
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  // A log that cannot be written is no reason to disturb the job.
  [[maybe_unused]] const ssize_t ignored = ::write(output.load(), out.data(), out.size());
}

}  // namespace

std::optional<LogLevel> log_level(std::string_view name) {
  constexpr std::string_view kNames[] = {"off", "warn", "info", "debug"};
  for (int level = 0; level < 4; ++level) {
    if (name.size() == kNames[level].size() && ::strncasecmp(name.data(), kNames[level].data(), name.size()) == 0)
      return static_cast<LogLevel>(level);
  }
  return std::nullopt;
}

void open_log(std::string_view level, const std::string& file) {
  current = log_level(level).value_or(LogLevel::warn);
  if (file.empty()) return;
  const std::string path = expand(file);
  // A pipe without a reader is an error, and one whose reader is slow loses lines: the job waits for neither.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0)
    log(LogLevel::warn, "RAILWEAVE_LOG_FILE " + path + ": " + std::strerror(errno) + "; logging to standard error");
  else
    output = fd;
}

bool logs(LogLevel level) { return level <= current.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view text) {
  if (logs(level)) write_lines(level, text);
}

}  // namespace railweave::nccl
