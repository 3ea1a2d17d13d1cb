#include "waiting.hpp"

#include <algorithm>

#include "counted.hpp"
#include "packet_roles.hpp"

namespace railweave::cuda {
namespace {

std::uint64_t moved(const Port& port, Path path, Direction direction) { return port.counts[count_at(path, direction)].value; }
// Before the operation that runs.
std::uint64_t packets_moved(const Port& port, Direction direction, bool ahead) {
  return moved(port, Path::packets, direction) - (ahead ? port.newest_packets[static_cast<std::uint32_t>(direction)] : 0);
}

std::string over(std::uint32_t path) { return path == kHostPath ? " over the host" : " over relay " + std::to_string(path - kFirstRelay); }

// What the peer has not taken of the pieces sent to it. Pieces of a path are freed out of turn, each in its own slot.
std::string pieces_under_way(const Port& port, const std::string& peer) {
  std::string text;
  for (std::uint32_t path = 0; path < kIndirectPaths; ++path) {
    const IndirectPath& own = port.indirect[path];
    const std::uint64_t freed = *std::max_element(own.freed, own.freed + kIndirectSlots);
    if (own.taken > freed) text += (text.empty() ? "" : ", ") + std::to_string(own.taken - freed) + over(path);
  }
  return text.empty() ? text : "; pieces that " + peer + " has not taken: " + text;
}

std::string pieces_that_came(const Port& port, std::uint64_t number) {
  std::string text;
  for (std::uint32_t path = 0; path < kIndirectPaths; ++path) {
    const IndirectPath& own = port.indirect[path];
    for (std::uint32_t slot = 0; slot < kIndirectSlots; ++slot) {
      const SlotRecord& record = own.records[slot];
      if (own.filled[slot] <= own.pulled || record.number != number) continue;
      text += "; bytes " + std::to_string(record.offset) + " to " + std::to_string(record.offset + record.bytes - 1) + " have come" +
              over(path);
    }
  }
  return text;
}

std::string send_granted(const Waiting& m, const Port& port, const std::string& peer) {
  const std::uint64_t number = moved(port, Path::granted, Direction::send) + 1 + m.before;
  const std::uint64_t* words = port.grants[number % kGrants].words;
  if (!std::all_of(words, words + Grant::kWords, [&](std::uint64_t word) { return word >> 32 == (number & 0xffffffff); }))
    return "waits for " + peer + "'s grant: its receive has not begun";
  std::string full;
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    if (port.taken[slot] != port.freed[slot]) full += (full.empty() ? "" : ", ") + std::to_string(slot);
  }
  const bool nameless = (words[2] & 0xffffffff) == kNoBuffer;
  const std::string way = nameless ? "granted, over slots" : "granted, into " + peer + "'s buffer, or over slots until that is mapped";
  std::string read;
  if (port.fetched != 0 && (port.fetched & kDeclined) == 0)
    read = "; " + peer + " has read " + counted(port.fetched, "byte") + " of it itself";
  return way + (full.empty() ? "" : "; slots that " + peer + " has not emptied: " + full) + pieces_under_way(port, peer) + read;
}

std::string receive_granted(const Waiting& m, const Port& port, const std::string& peer) {
  // The place still counts the message before it there.
  if (m.before >= kGrants) return "not granted yet: " + std::to_string(kGrants) + " messages from " + peer + " are under way before it";
  const std::uint64_t number = moved(port, Path::granted, Direction::receive) + 1 + m.before;
  std::string text = peer + " has written " + counted(port.placed[number % kGrants], "byte") + " into the buffer";
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    const SlotRecord& record = port.records[slot];
    if (port.filled[slot] == port.pulled[slot] || record.number != number) continue;
    text += "; slot " + std::to_string(slot) + " has bytes " + std::to_string(record.offset) + " to " +
            std::to_string(record.offset + record.bytes - 1);
  }
  const std::uint64_t* offer = port.offer.words;
  if (std::all_of(offer, offer + FetchOffer::kWords, [&](std::uint64_t word) { return word >> 32 == (number & 0xffffffff); }))
    text += "; it offers the end to be read";
  return text + pieces_that_came(port, number);
}

// Of its packets, how many may be written now.
std::uint64_t packets_with_room(const Waiting& m, const Port& port, bool ahead) {
  const std::uint64_t first = packets_moved(port, Direction::send, ahead) + m.before, count = packets_of(m.bytes);
  std::uint64_t taken = 0;
  while (taken < count && is_credited(port.credits[(first + taken) % kPacketSlots], first + taken)) ++taken;
  return taken;
}

std::string send_packets(const Waiting& m, const Port& port, bool ahead, const std::string& peer) {
  const std::uint64_t first = packets_moved(port, Direction::send, ahead) + m.before, count = packets_of(m.bytes),
                      taken = packets_with_room(m, port, ahead);
  const std::string text = "in " + counted(count, "packet") + " from number " + std::to_string(first);
  if (taken == count) return text + ", for which " + peer + " has room";
  return text + ": number " + std::to_string(first + taken) + " waits for " + peer + " to take number " +
         std::to_string(first + taken - kPacketSlots);
}

}  // namespace

std::string waiting_text(const Waiting& m, const Port& port, bool ahead) {
  const std::string peer = "rank " + std::to_string(m.peer);
  const bool send = m.direction == Direction::send;
  const std::string what = (send ? "send of " : "receive of ") + counted(m.bytes, "byte") + (send ? " to " : " from ") + peer + ": ";
  if (m.path == Path::granted) return what + (send ? send_granted(m, port, peer) : receive_granted(m, port, peer));
  if (send) return what + send_packets(m, port, ahead, peer);
  return what + "in " + counted(packets_of(m.bytes), "packet") + " from number " +
         std::to_string(packets_moved(port, Direction::receive, ahead) + m.before) + ", of which not all have come";
}

bool is_unmatched(const Waiting& m, const Port& port, bool ahead, const Port& peers) {
  const bool send = m.direction == Direction::send;
  if (m.path == Path::granted)
    return send ? moved(port, Path::granted, Direction::send) + m.before >= moved(peers, Path::granted, Direction::receive)
                : moved(port, Path::granted, Direction::receive) + m.before >= moved(peers, Path::granted, Direction::send);
  const std::uint64_t end = m.before + packets_of(m.bytes);
  if (!send) return packets_moved(port, Direction::receive, ahead) + end > moved(peers, Path::packets, Direction::send);
  // Packets for which there is room need nobody.
  return packets_moved(port, Direction::send, ahead) + end > moved(peers, Path::packets, Direction::receive) &&
         packets_with_room(m, port, ahead) < packets_of(m.bytes);
}

}  // namespace railweave::cuda
