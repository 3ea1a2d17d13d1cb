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

constexpr std::size_t kHostBytes = sizeof HubAddress{}.host;

// Without nonce and tag, which all ranks know.
void put(std::string& blob, const HubAddress& address) {
  blob.append(reinterpret_cast<const char*>(&address.family), sizeof address.family);
  blob.append(reinterpret_cast<const char*>(&address.port), sizeof address.port);
  blob.append(reinterpret_cast<const char*>(address.host.data()), kHostBytes);
  blob.append(reinterpret_cast<const char*>(&address.scope), sizeof address.scope);
}

bool take(const std::string& blob, std::size_t& at, HubAddress& address) {
  return take(blob, at, &address.family, sizeof address.family) && take(blob, at, &address.port, sizeof address.port) &&
         take(blob, at, address.host.data(), kHostBytes) && take(blob, at, &address.scope, sizeof address.scope);
}

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

Verdict no(Cause cause, std::string reason) { return {false, cause, std::move(reason), ""}; }

}  // namespace

const char* word_of(Cause cause) {
  switch (cause) {
    case Cause::ended: return "ended";
    case Cause::nccl_failed: return "nccl_failed";
    case Cause::foreign_id: return "foreign_id";
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
  put(blob, facts.stand_by);
  blob += facts.keeps_hub ? '\1' : '\0';
  return blob;
}

Facts decode(const std::string& blob) {
  Facts facts;
  std::size_t at = 0;
  Facts unreadable;
  unreadable.version = 0;
  unreadable.refusal = "its facts cannot be read";
  char keeps = 0;
  if (!take(blob, at, &facts.version, sizeof facts.version)) return unreadable;
  // Another version may say the rest in another way; the version alone settles it.
  if (facts.version != kAgreementVersion) return facts;
  if (!take(blob, at, &facts.device_abi, sizeof facts.device_abi) || !take(blob, at, facts.refusal) || !take(blob, at, facts.rendezvous) ||
      !take(blob, at, &facts.most_blocks, sizeof facts.most_blocks) || !take(blob, at, facts.stand_by) ||
      !take(blob, at, &keeps, sizeof keeps)) {
    unreadable.version = facts.version;
    return unreadable;
  }
  facts.keeps_hub = keeps != 0;
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

MeetingPlaces::MeetingPlaces(std::span<const std::string> blobs) {
  for (const std::string& blob : blobs) {
    const Facts facts = decode(blob);
    places_.push_back({facts.stand_by, facts.keeps_hub});
  }
}

HubAddress MeetingPlaces::without(std::span<const int> excluded, const HubAddress& parents) const {
  const Place* first = nullptr;
  for (std::size_t rank = 0; rank < places_.size(); ++rank) {
    if (std::find(excluded.begin(), excluded.end(), static_cast<int>(rank)) != excluded.end()) continue;
    if (places_[rank].keeps_hub) return parents;
    if (first == nullptr && places_[rank].stand_by.port != 0) first = &places_[rank];
  }
  if (first == nullptr) return parents;
  HubAddress place = first->stand_by;
  place.nonce = parents.nonce;
  return place;
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
