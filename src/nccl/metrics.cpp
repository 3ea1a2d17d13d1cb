#include "metrics.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>

namespace railweave::nccl {
namespace {

// As PathKind.
constexpr const char* kPaths[] = {"direct", "relay", "host", "rail", "cross_rail"};

struct Family {
  const char* name;
  const char* help;
  std::uint64_t railweave_cuda_counters::*member;
};
constexpr Family kFamilies[] = {
    {"railweave_messages_enqueued_total", "Messages handed to Railweave.", &railweave_cuda_counters::enqueued},
    {"railweave_messages_completed_total", "Messages that have ended.", &railweave_cuda_counters::completed},
    {"railweave_sent_bytes_total", "Bytes of sends that have ended.", &railweave_cuda_counters::bytes_sent},
    {"railweave_received_bytes_total", "Bytes of receives that have ended.", &railweave_cuda_counters::bytes_received},
};

std::string head(const std::string& name, const std::string& help) {
  return "# HELP " + name + " " + help + "\n# TYPE " + name + " counter\n";
}

// The file of this process, removed at its end: a rank that has left is not shown as one that stands still. Leaked, as the thread that
// writes it runs on while static objects are destroyed.
class File {
 public:
  static File& get() {
    static File* const file = new File();
    return *file;
  }
  bool write(const std::string& path, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (ended_) return true;
    const std::string part = path + ".part";
    bool written = false;
    {
      std::ofstream file(part, std::ios::trunc);
      written = static_cast<bool>((file << text).flush());
    }
    if (!written || std::rename(part.c_str(), path.c_str()) != 0) {
      const int error = errno;
      ::unlink(part.c_str());  // what a full file system took of it
      errno = error;
      return false;
    }
    path_ = path;
    return true;
  }
  void end() {
    if (::getpid() != process_) return;  // a forked child
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (!path_.empty()) ::unlink(path_.c_str());
  }

 private:
  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  bool ended_ = false;  // guarded by mutex_
  std::string path_;    // guarded by mutex_
};

struct AtExit {
  ~AtExit() { File::get().end(); }
};

}  // namespace

std::string metrics_text(std::span<const Sample> samples, const std::string& host, int pid) {
  const auto labels = [&](const Sample& sample) {
    return "host=\"" + host + "\",pid=\"" + std::to_string(pid) + "\",communicator=\"" + sample.communicator + "\",rank=\"" +
           std::to_string(sample.rank) + "\",world=\"" + std::to_string(sample.world) + "\",device=\"" + std::to_string(sample.device) +
           "\"";
  };
  std::string text;
  for (const Family& family : kFamilies) {
    text += head(family.name, family.help);
    for (const Sample& sample : samples)
      text += std::string(family.name) + "{" + labels(sample) + "} " + std::to_string(sample.counters.*family.member) + "\n";
  }
  const std::string paths = "railweave_path_bytes_total";
  text += head(paths, "Bytes sent so far by kind of path, repeated ones included.");
  for (const Sample& sample : samples) {
    for (std::size_t kind = 0; kind < std::size(kPaths); ++kind)
      text +=
          paths + "{" + labels(sample) + ",path=\"" + kPaths[kind] + "\"} " + std::to_string(sample.counters.bytes_by_kind[kind]) + "\n";
  }
  return text;
}

bool write_metrics(const std::string& directory, std::span<const Sample> samples) {
  static const AtExit at_exit;
  ::mkdir(directory.c_str(), 0755);  // where it is there already, or cannot be made, the file says so
  char host[HOST_NAME_MAX + 1] = "?";
  ::gethostname(host, HOST_NAME_MAX);
  const std::string path = directory + "/railweave-" + host + "-" + std::to_string(::getpid()) + ".prom";
  return File::get().write(path, metrics_text(samples, host, ::getpid()));
}

}  // namespace railweave::nccl
