// What an exchange can fail with. All say which rank or setting was wrong and what to do.
#pragma once

#include <cstdint>
#include <string>

#include "railweave/error.hpp"

namespace railweave {

class SettingsError : public Error {
 public:
  using Error::Error;
};

// Ranks could not be brought together: one is missing, disagrees, or cannot reach what it must. Thrown on every rank.
class BootstrapError : public Error {
 public:
  using Error::Error;
};

// The network library is missing or refuses a device.
class TransportError : public Error {
 public:
  using Error::Error;
};

// A call that cannot be served: sizes that differ between the two ends, counts that do not fit, an exchange already closed.
class ExchangeError : public Error {
 public:
  using Error::Error;
};

// A rank that an operation needs has died or left.
class RankDied : public ExchangeError {
 public:
  RankDied(std::uint32_t rank, const std::string& text) : ExchangeError(text), rank_(rank) {}
  std::uint32_t rank() const noexcept { return rank_; }

 private:
  std::uint32_t rank_;
};

}  // namespace railweave
