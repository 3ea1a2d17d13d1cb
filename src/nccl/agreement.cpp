#include "agreement.hpp"

#include <cstring>

namespace railweave::nccl {
namespace {

void put(std::string& blob, const std::string& text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  blob.append(reinterpret_cast<const char*>(&length), sizeof length);
  blob += text;
}

bool take(const std::string& blob, std::size_t& at, void* value, std::size_t bytes) {
  if (blob.size() - at < bytes) return false;
  std::memcpy(value, blob.data() + at, bytes);
  at += bytes;
  return true;
}

bool take(const std::string& blob, std::size_t& at, std::string& text) {
  std::uint32_t length = 0;
  if (!take(blob, at, &length, sizeof length) || blob.size() - at < length) return false;
  text.assign(blob, at, length);
  at += length;
  return true;
}

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::string encode(const Facts& facts) {
  std::string blob;
  blob.append(reinterpret_cast<const char*>(&facts.version), sizeof facts.version);
  blob.append(reinterpret_cast<const char*>(&facts.device_abi), sizeof facts.device_abi);
  put(blob, facts.refusal);
  put(blob, facts.rendezvous);
  return blob;
}

Facts decode(const std::string& blob) {
  Facts facts;
  std::size_t at = 0;
  if (!take(blob, at, &facts.version, sizeof facts.version)) return {0, 0, "its facts cannot be read", ""};
  // Another version may say the rest in another way; the version alone settles it.
  if (facts.version != kAgreementVersion) return facts;
  if (!take(blob, at, &facts.device_abi, sizeof facts.device_abi) || !take(blob, at, facts.refusal) || !take(blob, at, facts.rendezvous))
    return {facts.version, 0, "its facts cannot be read", ""};
  return facts;
}

Verdict decide(std::span<const std::string> blobs) {
  Facts first;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    const Facts facts = decode(blobs[rank]);
    if (rank == 0) first = facts;
    if (facts.version != first.version)
      return {false,
              rank_text(rank) + " speaks version " + std::to_string(facts.version) + " of the shim's protocol, rank 0 version " +
                  std::to_string(first.version),
              ""};
    if (!facts.refusal.empty()) return {false, rank_text(rank) + ": " + facts.refusal, ""};
    if (facts.device_abi != first.device_abi)
      return {false,
              rank_text(rank) + " has a device library of version " + std::to_string(facts.device_abi) + ", rank 0 of version " +
                  std::to_string(first.device_abi),
              ""};
  }
  if (first.rendezvous.empty()) return {false, "rank 0 named no rendezvous", ""};
  return {true, "", first.rendezvous};
}

}  // namespace railweave::nccl
