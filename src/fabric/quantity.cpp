#include "quantity.hpp"

#include <charconv>

namespace railweave {
namespace {

// A decimal number without sign or exponent, and what follows it.
struct Decimal {
  std::uint64_t whole = 0;
  std::uint64_t fraction = 0;  // of `scale`
  std::uint64_t scale = 1;
  std::string_view rest;
};

std::optional<std::uint64_t> digits(std::string_view& text) noexcept {
  std::uint64_t number = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

std::optional<Decimal> parse_decimal(std::string_view text) noexcept {
  constexpr std::size_t kMaxFractionDigits = 6;
  Decimal number;
  const auto whole = digits(text);
  if (!whole) return std::nullopt;
  number.whole = *whole;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    const std::size_t before = text.size();
    const auto fraction = digits(text);
    const std::size_t length = before - text.size();
    if (!fraction || length > kMaxFractionDigits) return std::nullopt;
    number.fraction = *fraction;
    for (std::size_t i = 0; i < length; ++i) number.scale *= 10;
  }
  while (text.starts_with(' ')) text.remove_prefix(1);
  number.rest = text;
  return number;
}

std::optional<std::uint64_t> scaled(const Decimal& number, std::uint64_t unit) noexcept {
  constexpr std::uint64_t kMax = std::uint64_t{1} << 62U;
  if (number.whole > kMax / unit) return std::nullopt;
  return number.whole * unit + number.fraction * unit / number.scale;  // fraction < 10^6, unit <= 10^12
}

}  // namespace

std::optional<std::uint64_t> parse_rate_Bps(std::string_view text) noexcept {
  const auto number = parse_decimal(text);
  if (!number) return std::nullopt;
  std::string_view unit = number->rest;
  if (unit.ends_with("/s")) unit.remove_suffix(2);
  std::uint64_t factor = 1;
  if (!unit.empty()) {
    switch (unit.front()) {
      case 'k':
      case 'K': factor = 1'000; break;
      case 'm':
      case 'M': factor = 1'000'000; break;
      case 'g':
      case 'G': factor = 1'000'000'000; break;
      case 't':
      case 'T': factor = 1'000'000'000'000; break;
      default: break;
    }
    if (factor != 1) unit.remove_prefix(1);
  }
  if (unit == "B") return scaled(*number, factor);
  // A single bit/s is not a whole byte, so bits need a prefix.
  if (factor != 1 && (unit == "bit" || unit == "Bit")) return scaled(*number, factor / 8);
  return std::nullopt;
}

std::optional<std::uint64_t> parse_latency_ns(std::string_view text) noexcept {
  const auto number = parse_decimal(text);
  if (!number) return std::nullopt;
  if (number->rest == "ns") return scaled(*number, 1);
  if (number->rest == "us") return scaled(*number, 1'000);
  if (number->rest == "ms") return scaled(*number, 1'000'000);
  return std::nullopt;
}

std::optional<std::uint64_t> parse_permille(std::string_view text) noexcept {
  const auto number = parse_decimal(text);
  if (!number || !number->rest.empty()) return std::nullopt;
  return scaled(*number, 1'000);
}

}  // namespace railweave
