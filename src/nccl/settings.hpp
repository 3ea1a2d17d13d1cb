// Settings of the shim: RAILWEAVE_* variables, read once. docs/settings.md shows the same table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace railweave::nccl {

struct Settings {
  bool shim = true;
  std::string nccl_library;
  std::string cuda_library;
  std::uint64_t shim_wait_ms = 10000;
  std::uint64_t stall_ms = 30000;
  std::string metrics;
  std::string log = "warn";
  std::string log_file;
};

struct Setting {
  std::string_view name;  // the variable is RAILWEAVE_ + upper case
  std::string_view unit;  // "on/off", "ms", or "" for text
  std::string_view help;
  std::variant<bool Settings::*, std::uint64_t Settings::*, std::string Settings::*> member;

  std::string environment() const;
};

std::span<const Setting> settings_table();

// `lookup` gives a variable's text, or nullptr. A value that cannot be read is named in `errors` and the default stays, but for the switch,
// which is off then: a shim that is preloaded into a job must not end it, nor stay in it against an operator's will.
Settings read_settings(const char* (*lookup)(const char* name), std::string& errors);

// Variables of Railweave's other libraries and commands, which the shim does not read but the same job may have.
std::span<const std::string_view> other_variables();

// Those of `environment` (NAME=value, a null pointer at its end) that are named like Railweave's and that nothing of it reads: misspelt
// ones.
std::vector<std::string> unread_variables(const char* const* environment);

// Of this process; the first call reads the environment.
const Settings& settings();

// The table as docs/settings.md has it.
std::string settings_markdown();

}  // namespace railweave::nccl
