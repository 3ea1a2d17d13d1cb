// The shim's log: one line an event, one write a line, so that lines of many ranks do not mix.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace railweave::nccl {

enum class LogLevel { off, warn, info, debug };

std::optional<LogLevel> log_level(std::string_view name);
// `file` empty: standard error.
void open_log(std::string_view level, const std::string& file);
bool logs(LogLevel level);
void log(LogLevel level, std::string_view text);

}  // namespace railweave::nccl
