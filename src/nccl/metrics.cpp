#include "metrics.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "railweave/error.hpp"

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

// Down links that are named, of a NIC: where it is broken they are as many as NICs elsewhere, and say no more than their number.
constexpr std::size_t kNamedLinks = 8;

// Peers of a rank that are shown, those with the most bytes: in a large communicator there are thousands, each with two lines.
constexpr std::size_t kShownPeers = 64;

std::vector<PeerSample> busiest(std::vector<PeerSample> peers) {
  if (peers.size() <= kShownPeers) return peers;
  const auto end = peers.begin() + kShownPeers;
  std::nth_element(peers.begin(), end, peers.end(), [](const PeerSample& a, const PeerSample& b) {
    const std::uint64_t of_a = a.sent + a.received, of_b = b.sent + b.received;
    return of_a != of_b ? of_a > of_b : a.peer < b.peer;
  });
  peers.erase(end, peers.end());
  std::sort(peers.begin(), peers.end(), [](const PeerSample& a, const PeerSample& b) { return a.peer < b.peer; });
  return peers;
}

std::string head(const std::string& name, const std::string& help, const char* type = "counter") {
  return "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

// As a label's value, which readers look for up to the next quote. What is not UTF-8, as a path may hold, would cost them the whole file.
std::string plain(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  text = printable(text);
  for (char& c : text) {
    if (c == '"') c = '\'';
    if (c == '\\') c = '/';
  }
  return text;
}

std::string label(const char* name, const std::string& value) { return std::string(name) + "=\"" + plain(value) + "\""; }

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

std::string metrics_text(const Metrics& metrics, const Process& of) {
  const std::string process =
      label("host", of.host) + "," + label("pid_namespace", std::to_string(of.pid_namespace)) + "," + label("pid", std::to_string(of.pid));
  const auto ranks = [](const std::string& communicator, std::uint32_t rank, std::uint32_t world) {
    return label("communicator", communicator) + "," + label("rank", std::to_string(rank)) + "," + label("world", std::to_string(world));
  };
  const auto labels = [&](const Sample& sample) {
    return process + "," + ranks(sample.communicator, sample.rank, sample.world) + "," + label("device", std::to_string(sample.device));
  };
  std::string text;
  const auto line = [&text](const std::string& name, const std::string& all, std::uint64_t value) {
    text += name + "{" + all + "} " + std::to_string(value) + "\n";
  };
  for (const Family& family : kFamilies) {
    text += head(family.name, family.help);
    for (const Sample& sample : metrics.samples) line(family.name, labels(sample), sample.counters.*family.member);
  }
  const std::string paths = "railweave_path_bytes_total";
  text += head(paths, "Bytes sent so far by kind of path, repeated ones included.");
  for (const Sample& sample : metrics.samples) {
    for (std::size_t kind = 0; kind < std::size(kPaths); ++kind)
      line(paths, labels(sample) + "," + label("path", kPaths[kind]), sample.counters.bytes_by_kind[kind]);
  }
  const std::string peers = "railweave_peer_bytes_total";
  text += head(peers, "Bytes of messages with each peer, of the " + std::to_string(kShownPeers) + " with the most, by direction.");
  for (const Sample& sample : metrics.samples) {
    for (const PeerSample& each : busiest(sample.peers)) {
      const std::string of_peer = labels(sample) + "," + label("peer", std::to_string(each.peer)) + ",";
      line(peers, of_peer + label("direction", "sent"), each.sent);
      line(peers, of_peer + label("direction", "received"), each.received);
    }
  }
  // `value`: nothing where the NIC has none.
  const auto of_nics = [&](const std::string& name, const char* help, const char* type, auto value) {
    text += head(name, help, type);
    for (const Sample& sample : metrics.samples) {
      for (const NicSample& nic : sample.nics) {
        if (const std::optional<std::uint64_t> found = value(nic)) line(name, labels(sample) + "," + label("nic", nic.name), *found);
      }
    }
  };
  using Value = std::optional<std::uint64_t>;
  of_nics("railweave_nic_bytes_total", "Bytes that the rank has sent through each NIC of its node, repeated ones included.", "counter",
          [](const NicSample& nic) -> Value { return nic.bytes_sent; });
  of_nics("railweave_nic_bytes_per_second", "Rate of each NIC that the rank serves, where it is known.", "gauge",
          [](const NicSample& nic) { return nic.own && nic.bytes_per_second != 0 ? Value(nic.bytes_per_second) : Value(); });
  of_nics("railweave_nic_links", "Links of each NIC that the rank serves to NICs of other nodes.", "gauge",
          [](const NicSample& nic) { return nic.own && nic.links != 0 ? Value(nic.links) : Value(); });
  of_nics("railweave_nic_links_down", "Of those links, the ones that are down.", "gauge",
          [](const NicSample& nic) { return nic.own && nic.links != 0 ? Value(nic.links_down) : Value(); });
  const std::string down = "railweave_link_down";
  text += head(down, "Links that are down, of each NIC the first ones.", "gauge");
  for (const Sample& sample : metrics.samples) {
    for (const NicSample& nic : sample.nics) {
      for (std::size_t i = 0; i < std::min(nic.down.size(), kNamedLinks); ++i)
        line(down, labels(sample) + "," + label("nic", nic.name) + "," + label("peer", nic.down[i]), 1);
    }
  }
  const std::string communicators = "railweave_communicators";
  text += head(communicators, "Ranks of communicators in this process by what became of them.", "gauge");
  std::map<std::pair<std::string, std::string>, std::uint64_t> counts{{{"served", ""}, 0}};
  for (const Fate& fate : metrics.fates) ++counts[{fate.state, fate.reason}];
  for (const auto& [kind, count] : counts)
    line(communicators, process + "," + label("state", kind.first) + "," + label("reason", kind.second), count);
  for (const Fate& fate : metrics.fates) {
    if (*fate.reason == '\0') continue;
    text += "# communicator {" + process + "," + ranks(fate.communicator, fate.rank, fate.world) + "," + label("state", fate.state) + "," +
            label("reason", fate.reason) + "," + label("text", fate.text) + "}\n";
  }
  return text;
}

bool write_metrics(const std::string& directory, const Metrics& metrics) {
  static const AtExit at_exit;
  ::mkdir(directory.c_str(), 0755);  // where it is there already, or cannot be made, the file says so
  char host[HOST_NAME_MAX + 1] = "?";
  ::gethostname(host, HOST_NAME_MAX);
  struct stat pid_namespace {};
  ::stat("/proc/self/ns/pid", &pid_namespace);  // 0 without /proc
  const Process process{host, pid_namespace.st_ino, ::getpid()};
  const std::string name = process.host + "-" + std::to_string(process.pid_namespace) + "-" + std::to_string(process.pid);
  return File::get().write(directory + "/railweave-" + name + ".prom", metrics_text(metrics, process));
}

}  // namespace railweave::nccl
