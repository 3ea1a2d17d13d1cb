#include "settings.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include "../capi/status.hpp"
#include "../engine/kept_calibration.hpp"

namespace railweave::cuda {
namespace {

const Setting& setting_named(std::string_view name) {
  for (const Setting& setting : settings_table()) {
    if (setting.name == name) return setting;
  }
  throw SettingsError("no setting named '" + std::string(name) + "'; docs/settings.md lists them");
}

// The library that this is linked into: a calibration is of its kernels.
std::string own_library() {
  Dl_info info{};
  return ::dladdr(reinterpret_cast<void*>(&settings_of), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

// Read once, so that all communicators of a process go by the same file.
const KeptCalibration& kept_calibration() {
  static const KeptCalibration kept = find_calibration(own_library());
  return kept;
}

bool is_set(const Setting& setting) {
  const char* const text = std::getenv(setting.environment().c_str());
  return text != nullptr && *text != '\0';
}

// What a calibration would change most: of bytes that could go over the host by default none do.
std::string nothing_kept(const ExchangeSettings& settings) {
  const std::string share = std::to_string(settings.gpu_host_share);
  return "not calibrated: gpu_host_share is " + share + (settings.gpu_host_share == 0 ? " (no bytes over the host)" : "") +
         "; run railweave calibrate";
}

std::string remark(const KeptCalibration& kept, const ExchangeSettings& settings) {
  if (kept.path.empty()) return kept.problem.empty() ? nothing_kept(settings) : "not as calibrated: " + kept.problem;
  std::string followed, otherwise;
  for (const auto& [name, value] : kept.settings) {
    const Setting& setting = setting_named(name);
    if (is_set(setting))
      otherwise.append(otherwise.empty() ? "; set otherwise: " : ", ")
          .append(setting.environment())
          .append("=")
          .append(setting.get(settings));
    else
      followed.append(followed.empty() ? "" : ", ").append(name).append(" ").append(value);
  }
  return "as calibrated (" + kept.path + "): " + (followed.empty() ? "nothing" : followed) + otherwise;
}

// Whether a variable or the config says it.
bool is_asked_for(const railweave_cuda_config& config, std::string_view name) {
  return is_set(setting_named(name)) || std::any_of(config.settings, config.settings + config.setting_count,
                                                    [&](const railweave_setting& each) { return each.name == name; });
}

// Whether these do, or a calibration.
bool is_said(const railweave_cuda_config& config, std::string_view name) {
  const auto& kept = kept_calibration().settings;
  return is_asked_for(config, name) || std::any_of(kept.begin(), kept.end(), [&](const auto& each) { return each.first == name; });
}

void tell_once(const railweave_cuda_config& config, const KeptCalibration& kept, const ExchangeSettings& settings) {
  static std::atomic<bool> told{false};
  if (config.size < offsetof(railweave_cuda_config, warn) || config.log == nullptr) return;
  if (told.exchange(true)) return;
  const std::string text = remark(kept, settings);
  const bool can_warn = config.size >= offsetof(railweave_cuda_config, most_blocks) && config.warn != nullptr;
  (kept.damaged && can_warn ? config.warn : config.log)(config.log_context, text.c_str());
}

}  // namespace

// Messages of that many bytes to all others take no longer in packets than after a grant, in all up to some 6 MiB: as many as this among so
// many ranks, with one message a pair or three (2 x H100, docs/cuda-measured.md).
std::uint64_t packets_up_to(std::uint32_t ranks) { return std::uint64_t{ranks <= 2 ? 4u : ranks <= 4 ? 2u : 1u} << 20; }

ExchangeSettings settings_of(const railweave_cuda_config& config) {
  const KeptCalibration& kept = kept_calibration();
  ExchangeSettings settings;
  for (const auto& [name, value] : kept.settings) setting_named(name).set(settings, value);
  settings = settings_from_environment(settings);
  // Which interfaces NCCL is to use was said to NCCL.
  if (const char* const names = std::getenv("NCCL_SOCKET_IFNAME"); names != nullptr && settings.interfaces.empty())
    settings.interfaces = names;
  tell_once(config, kept, settings);
  if (config.setting_count != 0) capi::require(config.settings, "settings");
  for (std::size_t i = 0; i < config.setting_count; ++i) {
    capi::require(config.settings[i].name, "name of a setting");
    capi::require(config.settings[i].value, "value of a setting");
    set(settings, config.settings[i].name, config.settings[i].value);
  }
  settings.gpu_low_latency_by_ranks = !is_said(config, "gpu_low_latency_bytes");
  settings.gpu_rates_said = is_said(config, "gpu_pair_rate") && is_said(config, "gpu_block_rate");
  settings.gpu_blocks_said = is_asked_for(config, "gpu_blocks");
  return settings;
}

}  // namespace railweave::cuda
