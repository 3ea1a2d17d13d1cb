// Numbers with units as people write them in cluster files.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace railweave {

// "400Gbit/s", "400gbit", "50GB/s", "1.5 TB/s": bytes/s. Prefixes are decimal (k, M, G, T); "bit" or "B" tells bits from bytes.
std::optional<std::uint64_t> parse_rate_Bps(std::string_view text) noexcept;
inline constexpr const char* kRateForm = "a rate such as 400Gbit/s or 50GB/s";

// "500ns", "1.5us", "2ms": nanoseconds.
std::optional<std::uint64_t> parse_latency_ns(std::string_view text) noexcept;
inline constexpr const char* kLatencyForm = "a time such as 500ns or 1.5us";

// "2", "1.5": thousandths.
std::optional<std::uint64_t> parse_permille(std::string_view text) noexcept;

}  // namespace railweave
