// Whether a communicator is served: a function of what all its ranks said, so that all come to the same answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace railweave::nccl {

// Raised when ranks of different builds could not work together.
inline constexpr std::uint32_t kAgreementVersion = 1;

struct Facts {
  std::uint32_t version = kAgreementVersion;
  std::uint32_t device_abi = 0;
  std::string refusal;     // why this rank cannot serve; empty: it can
  std::string rendezvous;  // of rank 0
};

std::string encode(const Facts& facts);
// A blob that cannot be read gives a refusal that says so.
Facts decode(const std::string& blob);

struct Verdict {
  bool served = false;
  std::string reason;      // why not, naming the first rank
  std::string rendezvous;  // where rank 0 listens
};

Verdict decide(std::span<const std::string> blobs);

}  // namespace railweave::nccl
