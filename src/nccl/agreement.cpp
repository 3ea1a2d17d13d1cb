#include "agreement.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

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

Verdict no(Cause cause, std::string reason) { return {false, cause, std::move(reason), ""}; }

}  // namespace

const char* word_of(Cause cause) {
  switch (cause) {
    case Cause::ended: return "ended";
    case Cause::nccl_failed: return "nccl_failed";
    case Cause::foreign_id: return "foreign_id";
    case Cause::grown: return "grown";
    case Cause::one_rank: return "one_rank";
    case Cause::no_hub: return "no_hub";
    case Cause::rank_missing: return "rank_missing";
    case Cause::rank_left: return "rank_left";
    case Cause::no_agreement: return "no_agreement";
    case Cause::versions: return "versions";
    case Cause::no_device_library: return "no_device_library";
    case Cause::refused: return "refused";
    case Cause::several_nodes: return "several_nodes";
    case Cause::set_up_failed: return "set_up_failed";
  }
  return "refused";
}

// By how the text begins: what ranks tell each other has no more than that, and those of other builds are to be understood, too.
Cause cause_of(std::string_view refusal, Cause otherwise) {
  if (refusal.starts_with("no device library") || refusal.starts_with("the device library does not have")) return Cause::no_device_library;
  return refusal.starts_with("it spans ") ? Cause::several_nodes : otherwise;
}

std::string encode(const Facts& facts) {
  std::string blob;
  blob.append(reinterpret_cast<const char*>(&facts.version), sizeof facts.version);
  blob.append(reinterpret_cast<const char*>(&facts.device_abi), sizeof facts.device_abi);
  put(blob, facts.refusal);
  put(blob, facts.rendezvous);
  blob.append(reinterpret_cast<const char*>(&facts.most_blocks), sizeof facts.most_blocks);
  return blob;
}

Facts decode(const std::string& blob) {
  Facts facts;
  std::size_t at = 0;
  if (!take(blob, at, &facts.version, sizeof facts.version)) return {0, 0, "its facts cannot be read", ""};
  // Another version may say the rest in another way; the version alone settles it.
  if (facts.version != kAgreementVersion) return facts;
  if (!take(blob, at, &facts.device_abi, sizeof facts.device_abi) || !take(blob, at, facts.refusal) || !take(blob, at, facts.rendezvous) ||
      !take(blob, at, &facts.most_blocks, sizeof facts.most_blocks))
    return {facts.version, 0, "its facts cannot be read", ""};
  return facts;
}

Verdict decide(std::span<const std::string> blobs) {
  Facts first;
  std::uint32_t most_blocks = 0;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    const Facts facts = decode(blobs[rank]);
    if (rank == 0) first = facts;
    if (facts.version != first.version)
      return no(Cause::versions, rank_text(rank) + " speaks version " + std::to_string(facts.version) +
                                     " of the shim's protocol, rank 0 version " + std::to_string(first.version));
    if (!facts.refusal.empty()) return no(cause_of(facts.refusal, Cause::refused), rank_text(rank) + ": " + facts.refusal);
    if (facts.device_abi != first.device_abi)
      return no(Cause::versions, rank_text(rank) + " has a device library of version " + std::to_string(facts.device_abi) +
                                     ", rank 0 of version " + std::to_string(first.device_abi));
    if (facts.most_blocks != 0) most_blocks = most_blocks == 0 ? facts.most_blocks : std::min(most_blocks, facts.most_blocks);
  }
  if (first.rendezvous.empty()) return no(Cause::no_agreement, "rank 0 named no rendezvous");
  return {true, {}, "", first.rendezvous, most_blocks};
}

bool is_own(std::size_t rank, std::string_view refusal) {
  const std::string self = rank_text(rank);
  const bool names_itself = refusal.starts_with(self) && refusal.find_first_of("0123456789", self.size()) != self.size();
  return names_itself || !refusal.starts_with("rank");
}

Verdict decide_made(std::span<const std::string> refusals) {
  const auto first = [&](bool own) {
    std::size_t rank = 0;
    while (rank < refusals.size() && (refusals[rank].empty() || (own && !is_own(rank, refusals[rank])))) ++rank;
    return rank;
  };
  std::size_t refused = first(true);
  if (refused == refusals.size()) refused = first(false);
  if (refused == refusals.size()) return {true, {}, "", ""};
  const std::string& text = refusals[refused];
  return no(cause_of(text, Cause::set_up_failed), text.starts_with("rank") ? text : rank_text(refused) + ": " + text);
}

}  // namespace railweave::nccl
