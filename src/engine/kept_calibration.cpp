#include "kept_calibration.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

#include "../fabric/json_document.hpp"
#include "folder.hpp"
#include "railweave/engine/error.hpp"
#include "railweave/engine/settings.hpp"
#include "shared_memory.hpp"

namespace railweave {
namespace {

constexpr off_t kMostBytes = 1 << 20;  // what Python reads of a calibration

// Files of /proc and /sys on one line; nothing where there is no such file.
std::string words_of(const char* path) {
  std::ifstream file(path);
  std::string text;
  for (std::string word; file >> word;) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string listed_in(const char* path) {
  std::vector<std::string> names = engine::names_in(path);
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// As pip and make leave it: another build or installation has another time.
std::string identity_of(const std::string& library) {
  struct stat found {};
  if (::stat(library.c_str(), &found) != 0) return "none";
  return std::to_string(found.st_size) + " bytes of " + std::to_string(found.st_mtim.tv_sec) + "." + std::to_string(found.st_mtim.tv_nsec);
}

// What a calibration depends on, in the words of the log.
constexpr std::array<std::string_view, 5> kParts{"boot", "driver", "set of GPUs", "set of PCI devices", "build of Railweave"};

std::vector<std::string> parts_of(std::string_view line) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find("; ", begin), line.size());
    parts.emplace_back(line.substr(begin, end - begin));
    begin = end + 2;
  }
  return parts;
}

std::string what_changed(std::string_view then, std::string_view now) {
  const std::vector<std::string> before = parts_of(then), here = parts_of(now);
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    if (before.size() == here.size() && before[i] != here[i]) return std::string(kParts[i]);
  }
  return "form of the file";
}

// A folder, and no link to one, of that owner, with these permissions given to nobody: else anybody may have put something there.
bool trusted(const std::string& path, uid_t owner, mode_t closed) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == owner && (found.st_mode & closed) == 0;
}

// Where launch/cache.py keeps things: root's are for all, or where that folder cannot be written (a container) in its own, as users' are.
std::vector<std::string> folders(const std::string& for_all) {
  std::vector<std::string> found;
  if (trusted(for_all, 0, 022)) found.push_back(for_all);
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool has_runtime = runtime != nullptr && *runtime != '\0';
  const uid_t user = ::geteuid();
  const std::string own = std::string(has_runtime ? runtime : "/tmp") + "/railweave-" + std::to_string(user);
  if (trusted(own, user, 077)) found.push_back(own);
  return found;
}

// Nothing where there is no such file. Throws Error.
std::optional<std::string> text_of(const std::string& path) {
  const auto unreadable = [&] { return Error(path + ": cannot be read: " + std::generic_category().message(errno)); };
  const engine::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ENOENT) return std::nullopt;
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) throw unreadable();
  if (!S_ISREG(found.st_mode)) throw Error(path + ": not a file; expected what `railweave calibrate` keeps");
  if (found.st_size > kMostBytes)
    throw Error(path + ": more than " + std::to_string(kMostBytes) + " bytes; expected what `railweave calibrate` keeps");
  std::string text(static_cast<std::size_t>(found.st_size), '\0');
  for (std::size_t length = 0; length < text.size();) {
    const ssize_t got = ::read(file.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw unreadable();
    if (got == 0) text.resize(length);
    length += static_cast<std::size_t>(got);
  }
  return text;
}

// Throws Error for what is no setting, or no value of it.
std::vector<std::pair<std::string, std::string>> settings_of(std::string_view line, const std::string& path) {
  const std::string text = "\n" + std::string(line);  // errors name the line of the file
  const JsonDocument document(text, path);
  const JsonPlace whole(document);
  if (!whole.value().is_object()) whole.fail("no object", "settings by name");
  std::vector<std::pair<std::string, std::string>> settings;
  const auto table = settings_table();
  for (const auto& [name, ignored] : whole.value().items()) {
    const auto setting = std::find_if(table.begin(), table.end(), [&key = name](const Setting& each) { return each.name == key; });
    if (setting == table.end()) whole.fail("unknown setting '" + name + "'", "settings by name");
    const std::string value(whole.at(name).string());
    try {
      ExchangeSettings scratch;
      setting->set(scratch, value);
    } catch (const SettingsError& error) {
      throw Error(path + ":2: " + error.what());
    }
    settings.emplace_back(name, value);
  }
  return settings;
}

}  // namespace

std::string calibration_fingerprint(const std::string& library) {
  const std::array<std::string, kParts.size()> values{words_of("/proc/sys/kernel/random/boot_id"), words_of("/proc/driver/nvidia/version"),
                                                      listed_in("/proc/driver/nvidia/gpus"), listed_in("/sys/bus/pci/devices"),
                                                      identity_of(library)};
  std::string line;
  for (std::size_t i = 0; i < kParts.size(); ++i) line += (i == 0 ? "" : "; ") + std::string(kParts[i]) + ": " + values[i];
  return line;
}

KeptCalibration find_calibration(const std::string& library, const std::string& for_all) {
  KeptCalibration result;
  std::string now;
  for (const std::string& folder : folders(for_all)) {
    const std::string path = folder + "/calibration";
    try {
      const std::optional<std::string> text = text_of(path);
      if (!text) continue;
      if (now.empty()) now = calibration_fingerprint(library);
      const std::size_t first = std::min(text->find('\n'), text->size());
      const std::string_view then(text->data(), first);
      if (then != now) {
        result.problem = path + " does not hold here (another " + what_changed(then, now) + "); `railweave calibrate` measures again";
        continue;
      }
      const std::string_view rest = std::string_view(*text).substr(std::min(first + 1, text->size()));
      result.settings = settings_of(rest.substr(0, rest.find('\n')), path);
      result.path = path;
      result.problem.clear();
    } catch (const Error& error) {
      result.problem = error.what();
      result.damaged = true;
    }
    return result;
  }
  return result;
}

}  // namespace railweave
