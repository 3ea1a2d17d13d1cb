#include "standing.hpp"

#include <array>
#include <cstdio>
#include <map>

namespace railweave::engine {
namespace {

constexpr std::size_t kMostRanges = 8;  // of chunks in a list; a message may have thousands

// Numbers, smallest first, as "3-7, 9".
class Chunks {
 public:
  void add(std::uint32_t chunk) {
    ++count_;
    if (!ranges_.empty() && ranges_.back().second + 1 == chunk)
      ranges_.back().second = chunk;
    else if (ranges_.size() < kMostRanges)
      ranges_.emplace_back(chunk, chunk);
    else
      return;
    ++told_;
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    std::string text;
    for (const auto& [first, last] : ranges_) {
      text += (text.empty() ? "" : ", ") + std::to_string(first) + (first == last ? "" : "-" + std::to_string(last));
    }
    return told_ == count_ ? text : text + " and " + std::to_string(count_ - told_) + " more";
  }

 private:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges_;
  std::uint32_t count_ = 0, told_ = 0;
};

std::string part(const std::string& what, const Chunks& chunks) { return chunks.empty() ? "" : "; " + what + ": " + chunks.text(); }

bool has(const std::vector<std::uint64_t>& bits, std::uint32_t chunk) {
  return chunk / 64 < bits.size() && (bits[chunk / 64] >> (chunk % 64) & 1) != 0;
}

std::string of_chunks(std::uint32_t done, std::size_t all) {
  return std::to_string(done) + " of " + std::to_string(all) + " chunk" + (all == 1 ? "" : "s");
}

}  // namespace

std::string waiting_text(const SendMessage& message, const std::function<std::string(std::uint32_t link)>& name_of) {
  const std::string peer = "rank " + std::to_string(message.key.destination);
  const std::string what = "send of " + std::to_string(message.bytes) + " bytes to " + peer + ": ";
  if (!message.granted) return what + "waits for " + peer + "'s grant: its receive has not begun";
  Chunks todo, copying;
  std::map<std::uint32_t, Chunks> out;  // by link
  for (std::uint32_t i = 0; i < message.chunks.size(); ++i) {
    const SendChunk& chunk = message.chunks[i];
    if (chunk.state == ChunkState::todo) todo.add(i);
    if (chunk.state == ChunkState::copying) copying.add(i);
    if (chunk.state == ChunkState::out) out[chunk.link].add(i);
  }
  std::string text = what + "granted, " + of_chunks(message.done, message.chunks.size()) + " landed" + part("being copied", copying);
  for (const auto& [link, chunks] : out) text += part("under way over " + name_of(link), chunks);
  text += part("not sent yet", todo);
  if (message.done == message.chunks.size() && message.copies == 0)
    text += "; a record waits for room in the ring of " + peer + ", which reads nothing";
  return text;
}

std::string waiting_text(const RecvMessage& message) {
  const std::string peer = "rank " + std::to_string(message.key.source);
  const std::string what = "receive of " + std::to_string(message.bytes) + " bytes from " + peer + ": ";
  if (message.here) return what + "has come and is being copied";
  if (!message.granted) return what + "waits for " + peer + ", which needs no grant for so little";
  Chunks copying, missing;
  for (std::uint32_t i = 0; i < message.chunks; ++i) {
    if (has(message.bits, i)) continue;
    (has(message.copying, i) ? copying : missing).add(i);
  }
  return what + "granted, " + of_chunks(message.arrived, message.chunks) + " arrived" + part("being copied", copying) +
         part("not here yet", missing);
}

std::string waiting_text(const LinkLoad& load, const std::string& name, std::uint64_t Bps) {
  std::string text = "link " + name + (load.up ? "" : " (down)") + ": ";
  if (Bps == 0) {
    text += "no rate measured";
  } else {
    std::array<char, 32> rate{};
    std::snprintf(rate.data(), rate.size(), "%.3f GB/s", static_cast<double>(Bps) / 1e9);
    text += rate.data();
  }
  text += "; chunks: ";
  std::string counts;
  const auto count = [&counts](std::uint32_t chunks, const char* how) {
    if (chunks != 0) counts += (counts.empty() ? "" : ", ") + std::to_string(chunks) + how;
  };
  count(load.queued, " queued");
  count(load.offered, " waiting for a slot there");
  count(load.accepted, " with a slot, not sent");
  count(load.sent, " sent and not confirmed");
  return text + (counts.empty() ? "none" : counts);
}

}  // namespace railweave::engine
