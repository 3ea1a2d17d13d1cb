#include "settings.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "log.hpp"

namespace railweave::nccl {
namespace {

using S = Settings;
constexpr std::uint64_t kHour = 3'600'000;

const Setting kTable[] = {
    {"shim", "on/off", "off: every call goes to NCCL unchanged; no socket, no thread", &S::shim},
    {"nccl_library", "",
     "the real libnccl.so.2, or a library with NCCL in it that exports its functions; default libnccl.so.2 where the program has loaded "
     "it, else the next NCCL in its symbol scope, else in another library that it has loaded, else the next on the search path",
     &S::nccl_library},
    {"cuda_library", "", "the device library; default librailweave_cuda.so beside the shim, else on the search path", &S::cuda_library},
    {"shim_wait_ms", "ms",
     "the longest that a communicator's set-up waits for ranks that may have no shim, and for the device library to bring the ranks "
     "together",
     &S::shim_wait_ms},
    {"stall_ms", "ms", "an operation that moved nothing for this long is described in the log; 0: never", &S::stall_ms},
    {"metrics", "",
     "a directory: each process keeps a file of its counters there, in Prometheus' text format, for `railweave top`; default none",
     &S::metrics},
    {"log", "",
     "how much is logged: off, warn, info (what each communicator was decided to do, and why) or debug (also how each operation is "
     "launched, and which way each of its messages goes)",
     &S::log},
    {"log_file", "",
     "where it goes, %p and %h become process id and host name; default standard error, also for a pipe that nobody reads (one that is "
     "read slowly loses lines)",
     &S::log_file},
};

// Of the engine's settings (a test compares), and what `railweave lab` and `railweave run` hand on.
constexpr std::string_view kOthers[] = {
    "RAILWEAVE_BOOTSTRAP_MS",
    "RAILWEAVE_CHECKSUM",
    "RAILWEAVE_CHUNK_BYTES",
    "RAILWEAVE_DEATH_MS",
    "RAILWEAVE_DRAIN_MS",
    "RAILWEAVE_EAGER_BYTES",
    "RAILWEAVE_GPU_BLOCKS",
    "RAILWEAVE_GPU_BLOCK_RATE",
    "RAILWEAVE_GPU_DIRECT",
    "RAILWEAVE_GPU_EMULATED_MESH",
    "RAILWEAVE_GPU_HOST_SHARE",
    "RAILWEAVE_GPU_LOW_LATENCY_BYTES",
    "RAILWEAVE_GPU_NODES",
    "RAILWEAVE_GPU_PAIR_RATE",
    "RAILWEAVE_GPU_RELAYS",
    "RAILWEAVE_GPU_STAGING_BYTES",
    "RAILWEAVE_GPU_TIMEOUT_MS",
    "RAILWEAVE_GPU_VIRTUAL_MEMORY",
    "RAILWEAVE_HEARTBEAT_MS",
    "RAILWEAVE_INTERFACES",
    "RAILWEAVE_LAB_PYTHON",
    "RAILWEAVE_LEASE_MS",
    "RAILWEAVE_LINK_WINDOW",
    "RAILWEAVE_MULTIPATH_MIN_BYTES",
    "RAILWEAVE_NICS",
    "RAILWEAVE_NODE_ID",
    "RAILWEAVE_POLICY",
    "RAILWEAVE_RAIL_TIMEOUT_MS",
    "RAILWEAVE_RECONNECT_MS",
    "RAILWEAVE_RESEND_MS",
    "RAILWEAVE_ROW_WAIT_US",
    "RAILWEAVE_RX_SLOTS",
    "RAILWEAVE_SLOTS_PER_WRITER",
    "RAILWEAVE_SPIN_US",
    "RAILWEAVE_UCX_LIBRARY",
    "RAILWEAVE_UCX_TLS",
};

// The only switch is the one that an operator throws in trouble: what cannot be read throws it, too.
bool parse(bool& value, std::string_view text) {
  std::string lower;
  for (const char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  value = lower == "on" || lower == "1" || lower == "true" || lower == "yes";
  return value || lower == "off" || lower == "0" || lower == "false" || lower == "no";
}

bool parse(std::uint64_t& value, std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || number > kHour) return false;
  value = number;
  return true;
}

bool parse(std::string& value, std::string_view text) {
  value = text;
  return true;
}

std::string_view expected(const Setting& setting) { return setting.unit == "ms" ? "a number from 0 to 3600000" : "on or off"; }

std::string show(bool value) { return value ? "on" : "off"; }
std::string show(std::uint64_t value) { return std::to_string(value); }
std::string show(const std::string& value) { return value; }

}  // namespace

std::string Setting::environment() const {
  std::string result = "RAILWEAVE_";
  for (const char c : name) result += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

std::span<const Setting> settings_table() { return kTable; }

std::span<const std::string_view> other_variables() { return kOthers; }

std::vector<std::string> unread_variables(const char* const* environment) {
  std::vector<std::string> result;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("RAILWEAVE_") || std::ranges::find(kOthers, name) != std::end(kOthers)) continue;
    if (std::ranges::none_of(kTable, [&](const Setting& setting) { return setting.environment() == name; })) result.emplace_back(name);
  }
  return result;
}

Settings read_settings(const char* (*lookup)(const char* name), std::string& errors) {
  Settings result;
  for (const Setting& setting : kTable) {
    const std::string variable = setting.environment();
    const char* text = lookup(variable.c_str());
    if (text == nullptr || *text == '\0') continue;
    bool good = std::visit([&](auto member) { return parse(result.*member, text); }, setting.member);
    std::string_view wanted = expected(setting);
    if (setting.name == "log" && !log_level(text)) {
      good = false;
      wanted = "off, warn, info or debug";
      result.log = Settings{}.log;
    }
    const std::string_view taken = std::holds_alternative<bool S::*>(setting.member) ? ": off is taken" : ", the default is used";
    if (!good) errors += variable + "='" + text + "'; expected " + std::string(wanted) + std::string(taken) + "\n";
  }
  return result;
}

const Settings& settings() {
  // Never freed: threads of the shim go on while static objects are destroyed.
  static const Settings& value = *[] {
    std::string errors;
    auto* const read = new Settings(read_settings([](const char* name) -> const char* { return std::getenv(name); }, errors));
    open_log(read->log, read->log_file);
    // It is written to for as long as the job lasts, wherever that goes meanwhile.
    std::error_code nowhere;
    const std::filesystem::path metrics = std::filesystem::absolute(read->metrics, nowhere);
    if (!read->metrics.empty() && !nowhere) read->metrics = metrics.string();
    if (!errors.empty()) log(LogLevel::warn, errors.substr(0, errors.size() - 1));
    for (const std::string& name : unread_variables(environ))
      log(LogLevel::warn, name + " is set, but nothing of Railweave reads a variable of that name");
    if (!read->shim) log(LogLevel::info, "switched off (RAILWEAVE_SHIM): every call goes to NCCL");
    return read;
  }();
  return value;
}

std::string settings_markdown() {
  const Settings defaults;
  std::string text = "| variable | default | unit | meaning |\n|---|---|---|---|\n";
  for (const Setting& setting : kTable) {
    const std::string value = std::visit([&](auto member) { return show(defaults.*member); }, setting.member);
    text += "| `" + setting.environment() + "` | " + value + " | " + std::string(setting.unit) + " | " + std::string(setting.help) + " |\n";
  }
  return text;
}

}  // namespace railweave::nccl
