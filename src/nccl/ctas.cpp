#include "ctas.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <optional>

namespace railweave::nccl {
namespace {

constexpr unsigned kWithCtas = 21700;  // NCCL 2.17; in the configuration of an older header those are not its own

using Number = std::optional<long long>;

// As NCCL reads its variables: what is no number is 0.
Number number(const char* (*lookup)(const char* name), const char* name) {
  const char* text = lookup(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  errno = 0;
  const long long value = std::strtoll(text, nullptr, 0);
  if (errno != 0) return std::nullopt;
  return value;
}

// The variable overrides what the program says, whichever is more.
Number overridden(const Number& variable, int configured) {
  if (variable && *variable > 0) return variable;
  return configured > 0 ? Number(configured) : std::nullopt;
}

}  // namespace

Ctas ctas_of(const void* config, const Ctas& inherited) {
  const auto* head = static_cast<const ncclConfigHead*>(config);
  if (head == nullptr) return inherited;
  if (head->size < sizeof(ncclConfigHead) || head->version < kWithCtas) return {};
  return {head->min_ctas, head->max_ctas};
}

std::uint32_t most_for_messages(const Ctas& configured, const char* (*lookup)(const char* name)) {
  constexpr long long kAny = INT_MAX;
  const long long most_ctas = overridden(number(lookup, "NCCL_MAX_CTAS"), configured.most).value_or(kAny);
  const long long least_ctas = std::min(overridden(number(lookup, "NCCL_MIN_CTAS"), configured.least).value_or(0), most_ctas);
  constexpr long long kNotSet = -2;  // as NCCL has it for these
  const long long said = number(lookup, "NCCL_MAX_NCHANNELS").value_or(kNotSet);
  const long long most_channels = said == kNotSet ? kAny : std::max(said, 1LL);
  const long long channels = std::max({std::min(most_channels, most_ctas), least_ctas, number(lookup, "NCCL_MIN_NCHANNELS").value_or(0)});
  const long long of_messages = std::max({std::min(channels, number(lookup, "NCCL_MAX_P2P_NCHANNELS").value_or(kAny)),
                                          number(lookup, "NCCL_MIN_P2P_NCHANNELS").value_or(1), 1LL});
  return of_messages >= kAny ? 0 : static_cast<std::uint32_t>(of_messages);
}

}  // namespace railweave::nccl
