#include "prepare.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "fetch_prepare.hpp"
#include "fetch_roles.hpp"
#include "indirect_prepare.hpp"
#include "packet_roles.hpp"

namespace railweave::cuda {
namespace {

// What makes a block worth launching beside a bundle of packets: so many bytes of a push.
constexpr std::uint64_t kBytesPerBlock = 16u << 10;
// Below this an operation gets half of 16 blocks: NCCL's kernel has 9 CTAs at 64 KiB and 17 from 128 KiB on (docs/results.md), a channel
// for 8 KiB until a peer has all of its channels.
constexpr std::uint64_t kManyBlocksFrom = 128u << 10;
// Pieces of a push: short enough that blocks end together, long enough that claiming one (0.5 us) costs little beside moving it at 46 GB/s.
// A block's share below kLeastPiece is one piece.
constexpr std::uint64_t kLeastPiece = 64u << 10, kMostPiece = 256u << 10;
// With 4 instead of 8 a block, 8 MiB of a pair and both ways took 2.5 and 3% longer, balanced 16 MiB between four 2.4; from 32 MiB on
// pieces are the largest anyhow (4 x H200, docs/cuda-measured.md).
constexpr std::uint64_t kPiecesPerBlock = 8;
// A barrier after each piece costs a block a fifth of its rate. Where all together do not fill a link, pieces are larger: balanced 256 MiB
// between two took 846, 791 and 766 us with 8 blocks and pieces of 256 KiB, 1 and 4 MiB, and 1,648, 1,517 and 1,486 with 4; 64 MiB of a
// pair both ways with 11 blocks took 194 us, and 205 with 1 MiB, as they end further apart (2 and 4 x H200). Beside rails a block that is
// in the middle of one makes copies wait: 90% of 64 MiB inside nodes took 24% longer than at the bound so, where 8% was usual.
constexpr std::uint32_t kFewBlocks = 8;
constexpr std::uint64_t kMostPieceOfFew = 4u << 20;

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// What cannot be named comes through slots and has to be pulled, by a block for each: one alone moved 11 GB/s (docs/cuda-measured.md).
bool comes_through_slots(const Message& m) { return m.direction == Direction::receive && m.named.buffer == kNoBuffer; }

// Of a granted message.
std::uint64_t pulls_worth(const Message& m) {
  const std::uint64_t of_slots = comes_through_slots(m) ? std::min<std::uint64_t>(divide_up(m.bytes, kSlotBytes), kSlots) : 0;
  const bool over_paths = m.direction == Direction::receive && (m.paths & kSlotPaths) != 0;
  const bool fetched = m.direction == Direction::receive && is_fetched(m);
  return of_slots + (over_paths ? indirect_blocks_worth(m) : 0) + (fetched ? divide_up(moved_here(m), kBytesPerBlock) : 0);
}

std::uint64_t blocks_worth(const Message& m) {
  if (m.path == Path::packets) return divide_up(m.bytes, kBundleBytes);
  if (m.direction == Direction::send) return divide_up(m.bytes, kBytesPerBlock);
  // The first grants are any block's, at its begin; later ones wait for messages that are over, and each takes a turn. What comes through
  // slots although it has a name, as a mate has not mapped it, is pulled by those that there are.
  return std::max<std::uint64_t>(pulls_worth(m), m.grant_after != kNone ? 1 : 0);
}

// Of the direction that is worth more.
std::uint64_t blocks_worth(std::span<const Message> messages) {
  std::uint64_t worth[2] = {};
  for (const Message& m : messages) worth[static_cast<int>(m.direction)] += blocks_worth(m);
  return std::max(worth[0], worth[1]);
}

// Messages of a pair, a direction and a path, as far as they were counted.
struct Sequence {
  const Port* pair;
  Direction direction;
  Path path;
  std::uint32_t next = 0;   // ordinal
  std::uint32_t count = 0;  // messages
  Message* newest = nullptr;
  std::int32_t indices[kGrants] = {};  // of the newest messages, the n-th at n % kGrants
};

// `messages` are those of a part: indices count from its first one.
void number(std::span<Message> messages) {
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Message& m = messages[i];
    auto at = std::find_if(sequences.begin(), sequences.end(),
                           [&](const Sequence& s) { return s.pair == m.local && s.direction == m.direction && s.path == m.path; });
    if (at == sequences.end()) at = sequences.insert(at, Sequence{m.local, m.direction, m.path});
    m.ordinal = at->next;
    at->next += m.path == Path::granted ? 1 : packets_of(m.bytes);
    if (at->newest != nullptr) at->newest->last_of_pair = false;
    at->newest = &m;
    m.last_of_pair = true;
    std::int32_t& index = at->indices[at->count % kGrants];
    const bool takes_a_place = m.path == Path::granted && m.direction == Direction::receive && at->count >= kGrants;
    m.grant_after = takes_a_place ? index : kNone;
    index = static_cast<std::int32_t>(i);
    ++at->count;
  }
}

// What the operation adds to each communicator's totals of a path, at the first message of both.
void count(std::span<Message> messages) {
  std::vector<Message*> reporters;
  for (Message& m : messages) {
    m.operation = {};
    m.begins = false;
    auto at = std::find_if(reporters.begin(), reporters.end(), [&](const Message* r) { return r->host == m.host && r->path == m.path; });
    m.reports = at == reporters.end();
    if (m.reports) at = reporters.insert(at, &m);
    Totals& totals = (*at)->operation;
    ++totals.completed;
    (m.direction == Direction::send ? totals.bytes_sent : totals.bytes_received) += m.bytes;
  }
  for (Message* const m : reporters) {
    const bool has_packets =
        std::any_of(reporters.begin(), reporters.end(), [m](const Message* r) { return r->host == m->host && r->path == Path::packets; });
    m->begins = m->path == Path::packets || !has_packets;
  }
}

// Of a push by so many blocks.
std::uint32_t piece_of(std::uint64_t bytes, std::uint64_t blocks, std::uint64_t most) {
  const std::uint64_t piece = std::min(divide_up(bytes, blocks), std::clamp(bytes / (blocks * kPiecesPerBlock), kLeastPiece, most));
  return static_cast<std::uint32_t>(divide_up(piece, 1024) * 1024);
}

// Sends of which blocks from `first` on begin with one each, in proportion to bytes, at least one a send; several small sends may begin on
// one block.
struct Course {
  std::uint32_t first, blocks;
  std::uint64_t total = 0, before = 0;

  void begin(Message& m, std::uint64_t most_piece) {
    // 128 bits: bytes times blocks may pass 2^64.
    __extension__ using Wide = unsigned __int128;
    const auto at = [&] { return static_cast<std::uint32_t>(Wide{before} * blocks / total); };
    const std::uint32_t begin = at();
    before += m.bytes;
    const std::uint32_t end = std::max(begin + 1, at());
    m.first_block = static_cast<std::uint16_t>(first + begin);
    m.last_block = static_cast<std::uint16_t>(first + end);
    m.piece_bytes = piece_of(moved_here(m), end - begin, most_piece);
  }
};

// Who sends to several peers has half of its blocks begin with the next rank and half with the one after that, and all go on with those
// that follow. In balanced traffic no receiver has more than two senders then: divided between all peers blocks moved 318 GB/s of 64 MiB
// between four GPUs, so 355, and with all of them at one peer after another 358, but a hot pair with half of it between all others 337
// and 245 (315 divided; 4 x H100, docs/cuda-measured.md). What is short has too few pieces for two turns; balanced 4 MiB, 12 to send, the
// least measured, took 50 us instead of 59.
constexpr std::uint64_t kInTurnFrom = 12u << 20;
constexpr std::size_t kCourses = 2;

bool is_granted_send(const Message& m) { return m.direction == Direction::send && m.path == Path::granted; }

// Where there is one message to and one from each of several peers, all of the same size, at all ranks, which the last such operation
// knows, all blocks are at one peer after another (Part::in_step_blocks), so each receiver has one sender: balanced 64 and 256 MiB between
// four GPUs took 564 and 2,188 us instead of 585 and 2,412 on one machine (NCCL 748 and 2,360), and 564 and 2,191 instead of 567 and 2,218
// on another; 16 MiB 0.99 to 1.06 times as long, 8 MiB 1.14 and 1.46. A hot pair of 64 MiB with half of it between all others took 469 us
// instead of 402 where ranks went by their own messages alone (4 x H100, docs/cuda-measured.md).
constexpr std::uint64_t kInStepFrom = 24u << 20;  // to each
// Bytes of each message where there is one to and one from each of the peers, all of the same size and into buffers that the peers can
// write to (of slots a pair has too few for all blocks of a rank); else 0. Peers are those that get something.
std::uint64_t balanced_bytes(std::span<const Message> messages, std::size_t peers) {
  std::vector<const Port*> seen[2];
  std::uint64_t bytes = 0;
  for (const Message& m : messages) {
    if (m.local == m.remote) continue;
    auto& same_way = seen[static_cast<int>(m.direction)];
    if (bytes == 0) bytes = m.bytes;
    if (m.bytes != bytes || comes_through_slots(m) || same_way.size() == peers) return 0;
    same_way.push_back(m.local);
  }
  for (auto& same_way : seen) std::sort(same_way.begin(), same_way.end());
  const bool once = std::adjacent_find(seen[0].begin(), seen[0].end()) == seen[0].end();
  return once && seen[0].size() == peers && seen[0] == seen[1] ? bytes : 0;
}

// Whether something other than this rank's pushes wants blocks soon: they should come to the ends of their rows sooner.
bool wants_short_rows(const Message& m) {
  return m.path == Path::packets ||
         (m.direction == Direction::receive && (comes_through_slots(m) || (m.paths & kSlotPaths) != 0 || m.grant_after != kNone));
}

// Of granted messages.
struct Blocks {
  std::uint32_t all;
  std::uint32_t own = 0;    // the last ones, which begin with what the rank sends itself; none: any, after the rest
  bool fills_link = false;  // the others, which are fewer for that
};

// What a rank sends itself crosses no link, so blocks of its own move it beside the rest, in proportion to bytes. After the rest all of
// them had balanced 64 MiB between four GPUs, and as much to oneself, take 700 us instead of 580 without, and NCCL 655 (4 x H100; so 597 to
// 612).
//
// The link to one peer is full with fewer blocks than NCCL has, and what more of them offer holds up other work's bytes: beside balanced 64
// MiB between two GPUs, that never end, an all-reduce took 2.10 times as long as alone with 16 blocks, 1.71 with 12, 1.58 with 10, and 1.60
// beside NCCL's. With 12 exchanges of 5 to 256 MiB took 0.96 to 1.016 times as long, with 10 up to 1.025, at odd places 1.13 (2 x H200). To
// several peers all have to do: with 18 instead of 24 balanced 64 MiB between four took 1.003 times as long on one machine, 1.04 on another
// (4 x H100, docs/cuda-measured.md).
constexpr double kFillsALink = 1.3;  // times a pair's rate, by what a block moves alone

// Of at most so many. `keeps_all`: something else wants them all.
Blocks blocks_of_granted(std::span<const Message> messages, std::uint32_t most, const LaunchLimits& limits, bool keeps_all) {
  std::uint64_t own = 0, others[2] = {};
  const Port* peer = nullptr;
  bool several = false;
  for (const Message& m : messages) {
    if (m.path != Path::granted || m.local == m.remote) {
      if (is_granted_send(m)) own += m.bytes;
      continue;
    }
    others[static_cast<int>(m.direction)] += m.bytes;
    if (m.direction != Direction::send) continue;
    several = several || (peer != nullptr && peer != m.local);
    peer = m.local;
  }
  if (peer == nullptr || most == 1) return {most};
  const std::uint64_t over_links = std::max(others[0], others[1]);
  const double part = static_cast<double>(own) / static_cast<double>(own + over_links);
  std::uint32_t of_own = own == 0 ? 0 : std::clamp(static_cast<std::uint32_t>(std::lround(most * part)), 1u, most - 1);
  if (several || keeps_all || !limits.knows_rates) return {most, of_own};
  const double enough = std::max(1.0, std::round(kFillsALink * limits.pair_rate / limits.block_rate));
  const bool fills = enough < most - of_own;
  const std::uint32_t links = fills ? static_cast<std::uint32_t>(enough) : most - of_own;
  // No longer than the link takes.
  of_own = static_cast<std::uint32_t>(std::min<double>(of_own, std::ceil(enough * part / (1 - part))));
  return {links + of_own, of_own, fills};
}

// Part::in_step_blocks and in_step_KiB.
struct InStep {
  std::uint32_t blocks = 0, KiB = 0;
};

// Which blocks begin with which granted sends. `own_links`: each peer is reached over links of its own, which all are to be busy. Blocks of
// a message that goes over indirect paths as well are counted by it. So in both cases, and with little to send, sends are divided between
// all, and also where destinations read ends, which all are to begin with at once. `alone`: nothing else is moved beside it. So many may be
// in step.
InStep assign(std::span<Message> messages, Blocks division, bool own_links, bool alone) {
  const std::uint32_t blocks = division.all - division.own;
  std::uint64_t total = 0;
  bool paths = false;
  std::vector<const Port*> peers;  // in turn
  const bool short_rows = std::any_of(messages.begin(), messages.end(), wants_short_rows);
  const std::uint64_t most_piece = short_rows                                                    ? kLeastPiece
                                   : alone && division.all <= kFewBlocks && !division.fills_link ? kMostPieceOfFew
                                                                                                 : kMostPiece;
  for (Message& m : messages) {
    m.first_block = m.last_block = 0;
    m.piece_bytes = is_fetched(m) ? piece_of(moved_here(m), blocks, most_piece) : 0;
    if (!is_granted_send(m)) continue;
    total += m.bytes;
    paths = paths || m.paths != 0;
    if (m.local != m.remote && std::find(peers.begin(), peers.end(), m.local) == peers.end()) peers.push_back(m.local);
  }
  const bool in_turn = peers.size() >= kCourses && total >= kInTurnFrom && blocks >= kCourses && !own_links && !paths;
  constexpr std::size_t kOwn = kCourses, kNoCourse = kCourses + 1;
  const auto course_of = [&](const Message& m) {
    if (division.own != 0 && m.local == m.remote) return kOwn;
    if (!in_turn) return std::size_t{0};
    const auto turn = static_cast<std::size_t>(std::find(peers.begin(), peers.end(), m.local) - peers.begin());
    return turn < kCourses ? turn : kNoCourse;
  };
  Course courses[kCourses + 1] = {{0, blocks}, {0, 0}, {blocks, division.own}};
  if (in_turn) courses[0].blocks = courses[1].first = blocks / 2, courses[1].blocks = blocks - blocks / 2;
  for (const Message& m : messages) {
    if (is_granted_send(m) && course_of(m) != kNoCourse) courses[course_of(m)].total += m.bytes;
  }
  for (Message& m : messages) {
    if (!is_granted_send(m)) continue;
    if (const std::size_t course = course_of(m); course != kNoCourse) {
      courses[course].begin(m, most_piece);
    } else {
      m.piece_bytes = piece_of(m.bytes, blocks / kCourses, most_piece);
    }
  }
  if (!in_turn || !alone) return {};
  const std::uint64_t bytes = balanced_bytes(messages, peers.size());
  return bytes < kInStepFrom ? InStep{} : InStep{blocks, static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes >> 10, ~0u))};
}

// Packets of the fuller direction, and which warp begins with which message. A block has 16 warps and one packet keeps a warp busy for a
// microsecond; a second block costs an operation 0.3 us, so there is one for every 4 packets (docs/gpu-probe.md).
constexpr std::uint64_t kPacketsPerBlock = 4;

std::uint64_t packets_of_fuller_direction(std::span<const Message> messages) {
  std::uint64_t packets[2] = {};
  for (const Message& m : messages) packets[static_cast<int>(m.direction)] += packets_of(m.bytes);
  return std::max(packets[0], packets[1]);
}

// Where there are clusters: a power of two that is one of them, or several, which are smaller ones where that makes more blocks, as 6 of 7,
// 10 of the 11 for one peer of four GPUs or 12 of 14. 256 KiB of a pair took 3.6 us with 6 blocks and 4.9 with 4 (2 x H200,
// docs/cuda-measured.md).
std::uint32_t blocks_for_packets(std::uint64_t packets, std::uint32_t most, std::uint32_t cluster_blocks) {
  const std::uint64_t wanted = std::bit_ceil(divide_up(packets, kPacketsPerBlock));
  const auto blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, most));
  if (cluster_blocks == 1) return blocks;
  return std::max(std::bit_floor(blocks), blocks - blocks % 2);
}

// Of so many blocks: the largest power of two that they are whole clusters of.
std::uint32_t cluster_of(std::uint32_t blocks, std::uint32_t most) { return std::min(most, blocks & (0u - blocks)); }

// Of a block's warps: so many only send, and so many others only receive; none: all do both.
struct Split {
  std::uint32_t send = 0, receive = 0;
  std::uint32_t distance = 0;  // Plan::warp_distance

  bool any() const { return send + receive != 0; }
  std::uint32_t of(Direction direction) const {
    if (!any()) return kBundlePackets;
    return direction == Direction::send ? send : receive;
  }
};

// What a lane of each warp looks after: a message, or all of a train.
struct Lane {
  Message* head;
  std::uint64_t packets;
  std::uint64_t before = 0;  // in lanes of its direction
};

std::vector<Lane> lanes_of(std::span<Message> messages, std::span<const Train> trains) {
  std::vector<Lane> lanes;
  lanes.reserve(trains.empty() ? messages.size() : trains.size());
  for (const Train& train : trains) lanes.push_back({&messages[train.first], train.packets});
  if (trains.empty()) {
    for (Message& m : messages) lanes.push_back({&m, packets_of(m.bytes)});
  }
  std::uint64_t before[2] = {};
  for (Lane& lane : lanes) {
    std::uint64_t& sum = before[static_cast<int>(lane.head->direction)];
    lane.before = sum;
    sum += lane.packets;
  }
  return lanes;
}

bool waits_for_credits(const Lane& lane) { return lane.packets > kPacketSlots; }

// By direction.
struct LaneCounts {
  std::uint64_t packets[2] = {};
  std::uint32_t count[2] = {};
  std::uint32_t waiting[2] = {};  // for credits
};

LaneCounts count_lanes(std::span<const Lane> lanes) {
  LaneCounts counts;
  for (const Lane& lane : lanes) {
    const auto d = static_cast<int>(lane.head->direction);
    counts.packets[d] += lane.packets;
    ++counts.count[d];
    if (waits_for_credits(lane)) ++counts.waiting[d];
  }
  return counts;
}

// Messages of each pair and direction side by side.
std::vector<Train> make_trains(std::span<Message> packets) {
  struct Key {
    const Port* pair;
    Direction direction;
    std::vector<Message> messages;
  };
  std::vector<Key> keys;
  for (const Message& m : packets) {
    auto at = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.pair == m.local && key.direction == m.direction; });
    if (at == keys.end()) at = keys.insert(at, Key{m.local, m.direction, {}});
    at->messages.push_back(m);
  }
  std::vector<Train> trains;
  std::uint32_t first = 0;
  for (const Key& key : keys) {
    Train train{first, static_cast<std::uint32_t>(key.messages.size()), 0, kNone, 0};
    for (const Message& m : key.messages) {
      if (m.reports) train.reporter = static_cast<std::int32_t>(first);
      train.packets += packets_of(m.bytes);
      train.bytes += m.bytes;
      packets[first++] = m;
    }
    trains.push_back(train);
  }
  return trains;
}

// Whether a pair has several messages, all in packets, that together have more than it has slots. `most_bytes`: of the fuller direction.
bool wait_for_each_other(std::span<const Message> packets_only, std::uint64_t most_bytes) {
  if (packets_only.size() <= 2 || most_bytes <= std::uint64_t{kPacketSlots} * Packet::kData) return false;
  for (std::size_t i = 0; i < packets_only.size(); ++i) {
    std::uint64_t packets = 0, count = 0;
    for (const Message& m : packets_only.subspan(i)) {
      if (m.local != packets_only[i].local || m.direction != packets_only[i].direction) continue;
      packets += packets_of(m.bytes);
      ++count;
    }
    if (count > 1 && packets > kPacketSlots) return true;
  }
  return false;
}

// Once a message waits for credits both ways go on at once, or the credits do: 2 MiB both ways took 14.5 us, and 12.4 with half of the
// warps each. Where none waits, all warps send and then all receive, and 512 KiB took 6.2 and 6.9 us (2 x H100, docs/cuda-measured.md).
// Then fewer of all of them send than a pair has slots, and no more look at packets that have not come than it takes to keep up: a pair of
// 32 MiB in 15 messages took 105.9 us with all 256 warps at both ends, 105.4 with 128 that receive, 104.7 with 208 that send, too, and
// 113.8 with 96 that receive. Several peers have slots each, so more send, though no more to one of them, and their packets come by turns:
// balanced 1 MiB between four took 17.5 us with 120 warps that receive and 15.9 with 192, an incast of 4 MiB 41.7 with 128 and 38.3 with
// 256, an outcast of 1 MiB 13.3 with 192 that send and 13.1 with 312 (4 x H100). A pair both ways has one warp of a block more that sends:
// 2 MiB took 15.6 us with 8 and 8, 15.1 so.
constexpr std::uint32_t kMostSend = 208, kMostSendToSeveral = 312, kMostReceive = 128, kMostReceiveFromSeveral = 256;
static_assert(kMostSend < kPacketSlots);

// Two messages; more of a pair that wait for each other are a train.
bool are_of_one_pair(std::span<const Lane> lanes) {
  return lanes.size() == 2 && lanes[0].head->local == lanes[1].head->local && lanes[0].head->direction == lanes[1].head->direction;
}

// Cycles between the begins of a block's warps, of which so many send (docs/cuda-measured.md, "Warps that begin one after another"). A
// single message so that all blocks begin to send 256 bytes a cycle, 500 GB/s, a third more than a peer's links take: 2 MiB took 9.1 us
// with 150 cycles for 10 blocks and 9.7 with 300, and 16 blocks want 240 (4 and 2 x H200; fewer than 10 were not measured). Several that
// wait for credits have links each: Zipf of 2 MiB 14.6 us with half of what 16 blocks once had and 14.9 with all of it, an outcast of 1
// MiB 12.1 and 12.6; but one that waits beside short ones 1% longer.
std::uint32_t warp_distance(std::uint32_t sends, std::uint32_t waiting, std::uint32_t warps, std::uint32_t blocks) {
  constexpr std::uint32_t kOfOne = 15, kOfSeveral = kWarpDistance / 2;
  if (sends == 1) return std::max(kOfSeveral, kOfOne * blocks);
  return (waiting > 1 ? kOfSeveral : kWarpDistance) * warps / kBundlePackets;
}

// One message, or train, from 2 MiB on beside short ones to others is faster with about as many blocks as it would have alone: a hot pair
// of 4 MiB with 1/16 between all others took 18.8, 17.8, 18.5, 18.5 and 18.8 us with 10, 12, 14, 16 and 24 blocks, of 2 MiB 10.4 and 10.5
// with 12 and 24, but of 1 MiB 7.6 and 7.1. With half between all others they want all: 42.2, 35.8, 33.6 and 32.2 us with 10, 12, 14 and 24
// (4 x H200, docs/cuda-measured.md).
constexpr std::uint32_t kBlocksOfOneBesideShort = 12;
constexpr std::uint64_t kOneBesideShortFrom = 2u << 20;

bool are_mostly_of_one(std::span<const Lane> lanes) {
  const LaneCounts counts = count_lanes(lanes);
  if (counts.waiting[0] + counts.waiting[1] != 1) return false;
  const Lane& one = *std::find_if(lanes.begin(), lanes.end(), waits_for_credits);
  const auto d = static_cast<std::size_t>(one.head->direction);
  const bool is_most = counts.packets[d] >= counts.packets[1 - d] && 4 * one.packets >= 3 * counts.packets[d];
  if (!is_most || one.packets * Packet::kData < kOneBesideShortFrom) return false;
  return std::any_of(lanes.begin(), lanes.end(), [&](const Lane& lane) {
    const Message& m = *lane.head;
    return m.local != one.head->local && m.local != m.remote;
  });
}

Split split_warps(std::span<const Lane> lanes, std::uint32_t blocks) {
  LaneCounts counts = count_lanes(lanes);
  auto& waiting = counts.waiting;
  if (are_of_one_pair(lanes)) waiting[0] = std::min(waiting[0], 1u), waiting[1] = std::min(waiting[1], 1u);
  if (waiting[0] + waiting[1] == 0) return {};
  constexpr auto kSend = static_cast<int>(Direction::send), kReceive = static_cast<int>(Direction::receive);
  const std::uint64_t sent = counts.packets[kSend], all = counts.packets[0] + counts.packets[1];
  // In proportion, rounded, but none is left out.
  auto share = static_cast<std::uint32_t>((2 * kBundlePackets * sent + all) / (2 * all));
  if (share == kBundlePackets / 2 && counts.count[kSend] == 1 && counts.count[kReceive] == 1) ++share;
  const std::uint32_t send = std::clamp(share, sent == 0 ? 0 : 1u, sent == all ? kBundlePackets : kBundlePackets - 1);
  const auto most = [blocks](std::uint32_t warps) { return std::max(1u, warps / blocks); };
  const std::uint32_t senders = std::min(send, most(waiting[kSend] > 1 ? kMostSendToSeveral : kMostSend));
  return {.send = senders,
          .receive = std::min(kBundlePackets - send, most(waiting[kReceive] > 1 ? kMostReceiveFromSeveral : kMostReceive)),
          .distance = warp_distance(counts.count[kSend], waiting[kSend], senders, blocks)};
}

// Where warps only send or receive, each has one message, or train, in proportion to packets: it finds whether it can go on by trying,
// while one that has several has to look first, a trip to L2 more a packet, and what it loaded for a send without a credit is lost.
// Balanced 4 MiB between four took 49.4 us with all warps for all messages and 46.5 so (4 x H100, docs/cuda-measured.md). Not two of a
// pair, of which the second has to wait for the first one's credits; more of those are a train.
// And not with few warps for each, of which a share could be half of what it should be (not swept).
constexpr std::uint64_t kLeastWarpsOfALane = 4;

void deal_to_warps(std::span<const Lane> lanes, std::uint32_t blocks, const Split& split) {
  const LaneCounts counts = count_lanes(lanes);
  const bool apart = split.any() && !are_of_one_pair(lanes);
  for (const Lane& lane : lanes) {
    Message& m = *lane.head;
    const auto d = static_cast<int>(m.direction);
    const std::uint64_t warps = std::uint64_t{blocks} * split.of(m.direction);
    std::uint64_t first = lane.before % warps, share = warps;
    if (apart && kLeastWarpsOfALane * counts.count[d] <= warps && counts.packets[d] != 0) {
      first = std::min(lane.before * warps / counts.packets[d], warps - 1);
      share = std::clamp<std::uint64_t>((lane.before + lane.packets) * warps / counts.packets[d] - first, 1, warps - first);
      if (m.direction == Direction::send) share = std::min<std::uint64_t>(share, kMostSend);
    }
    m.first_warp = static_cast<std::uint16_t>(first);
    m.warps = static_cast<std::uint16_t>(share);
  }
}

// Messages that go by NCCL's protocol for short ones: 16 KiB for each of 32 channels.
constexpr std::uint64_t kNcclShort = 512u << 10;

// What the messages of an operation come to.
struct Sums {
  std::size_t packets = 0, granted = 0;  // messages
  std::uint64_t bytes[2] = {};           // by direction
  std::uint64_t packet_bytes[2] = {};    // by direction
  std::uint64_t pulled_bytes = 0;        // of granted receives through slots
  std::uint64_t own_bytes[2] = {};       // granted, of the rank to itself, by direction
  std::uint32_t peers = 0;               // to which messages go, or from which packets come if those are more
  std::uint64_t largest = 0;             // message

  struct Partner {
    const Port* pair;
    bool itself;                      // the rank
    std::uint64_t bytes[2] = {};      // by direction
    std::uint64_t largest_short = 0;  // message
    bool packets_come = false;
  };
  std::vector<Partner> partners = {};  // to or from which any message goes
};

Sums sum_up(std::span<const Message> messages) {
  Sums sums;
  for (const Message& m : messages) {
    const int direction = static_cast<int>(m.direction);
    sums.bytes[direction] += m.bytes;
    sums.largest = std::max(sums.largest, m.bytes);
    auto partner = std::find_if(sums.partners.begin(), sums.partners.end(), [&](const auto& each) { return each.pair == m.local; });
    if (partner == sums.partners.end()) partner = sums.partners.insert(partner, {m.local, m.local == m.remote});
    partner->bytes[direction] += m.bytes;
    if (m.bytes <= kNcclShort) partner->largest_short = std::max(partner->largest_short, m.bytes);
    if (m.path == Path::packets) {
      ++sums.packets;
      sums.packet_bytes[direction] += m.bytes;
      partner->packets_come = partner->packets_come || m.direction == Direction::receive;
      continue;
    }
    ++sums.granted;
    if (comes_through_slots(m)) sums.pulled_bytes += m.bytes;
    if (m.local == m.remote) sums.own_bytes[direction] += m.bytes;
  }
  const auto partners = [&](auto&& counts) { return std::count_if(sums.partners.begin(), sums.partners.end(), counts); };
  sums.peers = static_cast<std::uint32_t>(
      std::max(partners([](const Sums::Partner& partner) { return partner.bytes[static_cast<int>(Direction::send)] != 0; }),
               partners([](const Sums::Partner& partner) { return partner.packets_come; })));
  return sums;
}

// NCCL splits its 32 channels between the ranks of a communicator, rounded up to a power of two: 16 for the one peer of two GPUs, 8 for
// each of three. With as many, four GPUs that all send to all others are to be no slower than it: 16 blocks moved 14.5 GB/s each there, 24
// of NCCL's 14.2. Never more than its kernel has: one for each channel to or from a peer and one for each other rank (11, 18 and 25 for
// one, two and three peers of four), until a channel would carry more than 16 MiB (18 for a pair of 256 MiB): docs/cuda-measured.md. Short
// messages have fewer channels, by `channel_bytes`: 2, 3, 5 and 9 CTAs for 64 to 512 KiB of NCCL 2.32.3 between two GPUs, and 13 of NCCL
// 2.28.9 for 256 KiB to one and 16 KiB to two others (docs/results.md). It counts each message by itself; here those of a peer count
// together, or as the largest short one where that has more. Between more than two GPUs 2.32.3 was faster from 256 KiB on in some rows,
// with its fewer channels, so no more are taken over either: 256 KiB took up to 19% longer so, and was still 1.9 times as fast as NCCL (4 x
// H200, docs/results.md), but between two GPUs up to 70% longer.
constexpr std::uint32_t kNcclChannels = 32;
constexpr std::uint64_t kNcclMostBytesPerChannel = 16u << 20;
constexpr std::uint64_t kNcclBytesPerChannel = 64u << 10;
constexpr std::uint64_t kFewChannelsFrom = 256u << 10;

std::uint64_t channels_of_nccl(std::uint64_t bytes, std::uint64_t channel_bytes, std::uint64_t most) {
  if (channel_bytes == 0) return most;
  const bool few = bytes > kNcclShort || (bytes >= kFewChannelsFrom && most < kNcclChannels / 2);
  const std::uint64_t each = few ? std::max(channel_bytes, kNcclBytesPerChannel) : channel_bytes;
  return std::clamp<std::uint64_t>(divide_up(bytes, each), 1, most);
}

// In a communicator over several nodes NCCL's kernel has a channel for each other rank, however long messages are, and one more where
// there are several: 3 and 4 CTAs on two nodes of two GPUs, 8 on two of four (docs/results.md).
std::uint32_t channels_over_nodes(const LaunchLimits& limits, const Sums& sums) {
  const auto others = std::count_if(sums.partners.begin(), sums.partners.end(), [](const auto& partner) { return !partner.itself; });
  const bool several = others > 1 || limits.beside_rails;
  return std::max(1u, limits.world - 1 + (several ? 1 : 0));
}

std::uint32_t worthwhile_blocks(const LaunchLimits& limits, const Sums& sums) {
  const auto partners = static_cast<std::uint32_t>(sums.partners.size());
  const std::uint32_t world = std::max({limits.world, partners, 1u}), shared_by = std::bit_ceil(world);
  const std::uint32_t each = std::max(1u, 2 * limits.blocks / shared_by), of_nccl = std::max(1u, kNcclChannels / shared_by);
  std::uint64_t channels = world - partners;
  for (const Sums::Partner& partner : sums.partners) {
    const auto of = [&](std::uint64_t bytes) { return channels_of_nccl(bytes, limits.channel_bytes, of_nccl); };
    channels += std::max(of(std::max(partner.bytes[0], partner.bytes[1])), of(partner.largest_short));
  }
  std::uint32_t most = std::clamp(sums.peers * each, limits.blocks, 2 * limits.blocks);
  if (std::max(sums.bytes[0], sums.bytes[1]) < kManyBlocksFrom) most = std::max(1u, limits.blocks / 2);
  if (limits.several_nodes && limits.channel_bytes != 0) return std::min(most, channels_over_nodes(limits, sums));
  if (sums.largest > of_nccl * kNcclMostBytesPerChannel) return most;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(most, channels));
}

// Messages inside the node beside others over rails need be little faster than those: a block for each time that they have as many bytes,
// and one more. A block pushes 46 GB/s and moves 5 to 11 in packets or out of slots (docs/cuda-measured.md), so these count fourfold: more
// than rails of 100 Gbit/s a rank bring. Never fewer than four, as NCCL's kernel has at least on two nodes of two, since a mate may have
// nothing else to wait for; but two, as that has in the 2x4 lab up to 64 KiB, where as much goes over rails and all that is short: 192 KiB
// take them some 20 us, and an operation of 64 KiB each way with seven ranks 290.
constexpr std::uint64_t kPushesPerCopy = 4;
constexpr std::uint64_t kLeastBesideRails = 4, kShortBesideRails = 2;
constexpr std::uint64_t kShortBytes = 256u << 10;  // each way

std::uint64_t blocks_beside_rails(const LaunchLimits& limits, const Sums& sums) {
  const auto pushes = [&](Direction direction, std::uint64_t pulled) {
    const auto d = static_cast<int>(direction);
    return sums.bytes[d] + (kPushesPerCopy - 1) * (sums.packet_bytes[d] + pulled);
  };
  const std::uint64_t near = std::max(sums.bytes[0], sums.bytes[1]);
  if (sums.granted == 0 && near <= std::min(kShortBytes, limits.rail_bytes)) return kShortBesideRails;
  const std::uint64_t most = std::max(pushes(Direction::send, 0), pushes(Direction::receive, sums.pulled_bytes));
  return std::max(kLeastBesideRails, 1 + divide_up(most, std::max<std::uint64_t>(limits.rail_bytes, 1)));
}

// What the operation may have.
std::uint32_t most_blocks(const LaunchLimits& limits, const Sums& sums) {
  std::uint32_t most = std::min(limits.room, worthwhile_blocks(limits, sums));
  if (limits.beside_rails) most = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, blocks_beside_rails(limits, sums)));
  return std::max(1u, most);
}

// What both take together where packets have `own` of the blocks. A block moves packets at 28 GB/s, those of the lesser
// direction, which it moves too, at two thirds of that; it pushes 30 GB/s until all together have what a link carries, from 4 us later on,
// when the grant has come, and pulls 11 GB/s out of slots (2 x H100, docs/cuda-measured.md); slower ones as much slower.
//
// Beside pushes that fill a link, packets that go the same way are slower where a rank has several peers: as much as all blocks, 46 GB/s
// each that pushes, offer more than the link takes. A hot pair of 64 MiB with packets of 4 MiB between all others took 367, 258, 213 and
// 221 us with 3, 6, 9 and 12 of 24 blocks for them at both ends (4 x H200): that its destination is like its source was not shown apart.
// Of 16 MiB it took 60.7 and 64.5 us with 6 and 9, between two GPUs nothing of the kind was seen, and nothing between was measured.
constexpr std::uint64_t kFillsALinkFrom = 32u << 20;
constexpr double kPacketRate = 28e3, kPushRate = 30e3, kMostPushRate = 46e3, kPullRate = 11e3;  // of a block, bytes a microsecond

class ApartTimes {
 public:
  // `most`: blocks of the operation; mates that push to this rank have as many. `moved`: bytes of granted messages that blocks push or
  // fetch.
  ApartTimes(const Sums& sums, std::uint64_t moved, std::uint32_t most, const LaunchLimits& limits)
      : packets_(kPacketRate * limits.block_speed()), pushes_(kMostPushRate * limits.block_speed()), pair_(limits.pair_rate), most_(most) {
    constexpr auto kSend = static_cast<int>(Direction::send), kReceive = static_cast<int>(Direction::receive);
    const auto &all = sums.bytes, &in_packets = sums.packet_bytes;
    const std::uint64_t over_links[] = {all[0] - sums.own_bytes[0], all[1] - sums.own_bytes[1]};
    const std::uint64_t granted[] = {over_links[0] - in_packets[0], over_links[1] - in_packets[1]};
    const bool sends_less = in_packets[kSend] < in_packets[kReceive];
    sent_us_ = (sends_less ? 1.5 : 1) * static_cast<double>(in_packets[kSend]) / packets_;
    received_us_ = (sends_less ? 1 : 1.5) * static_cast<double>(in_packets[kReceive]) / packets_;
    granted_us_ = (static_cast<double>(moved) / kPushRate + static_cast<double>(sums.pulled_bytes) / kPullRate) / limits.block_speed();
    const bool several = std::count_if(sums.partners.begin(), sums.partners.end(), [](const auto& partner) { return !partner.itself; }) > 1;
    out_is_full_ = several && granted[kSend] >= kFillsALinkFrom;
    in_is_full_ = several && granted[kReceive] >= kFillsALinkFrom;
    const auto& on_link = out_is_full_ || in_is_full_ ? over_links : granted;
    link_us_ = static_cast<double>(std::max(on_link[0], on_link[1])) / pair_;
  }
  double all_us(std::uint32_t own, std::uint32_t blocks) const {
    const double granted_us = 4 + std::max(link_us_, granted_us_ / (blocks - own)), alone_us = (sent_us_ + received_us_) / own;
    if (!out_is_full_ && !in_is_full_) return std::max(alone_us, granted_us);
    const auto slower = [&](bool full, std::uint32_t all) {
      return full ? std::max(1.0, (packets_ * own + pushes_ * (all - own)) / pair_) : 1.0;
    };
    const double beside_us = (sent_us_ * slower(out_is_full_, blocks) + received_us_ * slower(in_is_full_, most_)) / own;
    return beside_us <= granted_us ? granted_us : granted_us + (1 - granted_us / beside_us) * alone_us;
  }

 private:
  double packets_, pushes_, pair_;             // bytes a microsecond; of a block, and of a link
  double sent_us_, received_us_, granted_us_;  // of a block
  double link_us_;
  std::uint32_t most_;
  bool out_is_full_, in_is_full_;
};

// Blocks of packets, a multiple of `step`, so that both kinds end as early as they can: the fewest.
std::uint32_t blocks_of_packets(const ApartTimes& times, std::uint32_t blocks, std::uint32_t step) {
  std::uint32_t best = step;
  for (std::uint32_t own = 2 * step; own < blocks; own += step) {
    if (times.all_us(own, blocks) < times.all_us(best, blocks)) best = own;
  }
  return best;
}

// So many blocks packets may have also where fewer would do and the others lose nothing: a mate may have nothing else to wait for.
constexpr std::uint32_t kPacketBlocksAnyway = kMostApartCluster / 2;

// Neither kind does the other's work. Every cluster that has blocks of packets has one for granted messages, too, so blocks of both kinds
// are running, or none; single blocks all begin.
Plan plan_apart(std::span<Message> messages, std::span<const Train> trains, const LaunchLimits& limits, const Sums& sums,
                std::uint32_t most, bool own_links) {
  const std::span packets = messages.first(sums.packets), granted = messages.subspan(sums.packets);
  Plan plan{.kernel = Kernel::apart, .packet_messages = static_cast<std::uint32_t>(packets.size())};
  const std::uint32_t largest = std::min({limits.cluster_blocks, kMostApartCluster, most});
  const std::uint32_t surely = std::min(most, std::max(limits.needed, largest)) / largest * largest;
  std::uint64_t moved = 0;
  for (const Message& m : granted) moved += moved_here(m);
  const std::uint64_t others = std::max<std::uint64_t>(blocks_worth(granted), 1);
  const ApartTimes times(sums, moved, most, limits);
  const auto enough =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(divide_up(packets_of_fuller_direction(packets), kPacketsPerBlock), 1, most));
  if (largest == 1) {
    std::uint32_t own = std::min(blocks_of_packets(times, surely, 1), enough);
    const std::uint32_t anyway = std::min({kPacketBlocksAnyway, enough, surely - 1});
    while (own < anyway && times.all_us(own + 1, surely) <= times.all_us(own, surely)) ++own;
    plan.packet_blocks = own;
    plan.packet_blocks_a_cluster = 1;
    plan.blocks = own + static_cast<std::uint32_t>(std::min<std::uint64_t>(others, surely - own));
  } else if (const std::uint32_t own = std::min(blocks_of_packets(times, most, 1), enough); own > largest / 2 && surely > largest) {
    // Some blocks of each cluster, of which all begin.
    const auto clusters = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(divide_up(own + others, largest), 2, surely / largest));
    plan.cluster = largest;
    plan.blocks = clusters * largest;
    plan.packet_blocks = std::min(blocks_of_packets(times, plan.blocks, clusters), (enough + clusters - 1) / clusters * clusters);
    plan.packet_blocks_a_cluster = plan.packet_blocks / clusters;
  } else {
    // Up to half of the first one.
    const std::uint32_t half = std::bit_floor(std::min(kPacketBlocksAnyway, largest / 2));
    std::uint32_t of_packets = std::min(std::bit_floor(own), half);
    while (of_packets < std::min(half, enough) && times.all_us(2 * of_packets, most) <= times.all_us(of_packets, most)) of_packets *= 2;
    plan.packet_blocks = plan.packet_blocks_a_cluster = of_packets;
    plan.cluster = 2 * of_packets;
    const std::uint64_t all = of_packets + std::min<std::uint64_t>(others, most - of_packets);
    plan.blocks = static_cast<std::uint32_t>(divide_up(all, plan.cluster)) * plan.cluster;
    if (plan.blocks > most) plan.blocks -= plan.cluster;
  }
  deal_to_warps(lanes_of(packets, trains), plan.packet_blocks, {});
  assign(granted, blocks_of_granted(granted, plan.blocks - plan.packet_blocks, limits, true), own_links, false);
  return plan;
}

}  // namespace

std::uint32_t most_blocks(std::span<const Message> messages, const LaunchLimits& limits) { return most_blocks(limits, sum_up(messages)); }

Plan prepare(std::span<Message> messages, const LaunchLimits& limits) {
  const Sums sums = sum_up(messages);
  const std::uint32_t most = most_blocks(limits, sums);
  count(messages);
  std::vector<Train> trains;
  bool warps_can = sums.packets != 0 && !limits.beside_rails;
  if (warps_can) {
    if (sums.granted != 0)
      std::stable_partition(messages.begin(), messages.end(), [](const Message& m) { return m.path == Path::packets; });
    const std::span packets = messages.first(sums.packets);
    if (packets.size() > kMaxPacketMessages || wait_for_each_other(packets, std::max(sums.packet_bytes[0], sums.packet_bytes[1])))
      trains = make_trains(packets);
    warps_can = trains.size() <= kMaxPacketMessages;
  }
  // Blocks of packets wait for each other, so all have to begin. Beside granted messages the general roles have more blocks where few do.
  const std::uint32_t begin = std::min(most, std::max(limits.cluster_blocks, limits.needed));
  const bool enough_begin = begin > 1 && (limits.cluster_blocks > 1 || 2 * begin >= most);
  const bool apart = warps_can && sums.granted != 0 && messages.size() <= kMaxMessages && enough_begin;
  const bool granted = sums.packets == 0 && messages.size() <= kMaxMessages;
  const bool own_links = limits.link_MBps != 0 || std::any_of(messages.begin(), messages.end(), offers_relays);
  const bool indirect = choose_indirect(messages, limits, !limits.beside_rails && (apart || granted));
  if (apart) {
    number(messages.first(sums.packets));
    number(messages.subspan(sums.packets));
    Plan plan = plan_apart(messages, trains, limits, sums, most, own_links);
    if (indirect) {
      plan.kernel = Kernel::apart_indirect;
      assign_indirect(messages.subspan(sums.packets), limits);
    }
    plan.trains = std::move(trains);
    return plan;
  }
  number(messages);
  if (sums.granted == 0 && warps_can) {
    const std::vector<Lane> lanes = lanes_of(messages, trains);
    const std::uint32_t most_here = are_mostly_of_one(lanes) ? std::min(begin, kBlocksOfOneBesideShort) : begin;
    const std::uint32_t blocks = blocks_for_packets(packets_of_fuller_direction(messages), most_here, limits.cluster_blocks);
    const Split split = split_warps(lanes, blocks);
    deal_to_warps(lanes, blocks, split);
    return {.kernel = Kernel::packets,
            .blocks = blocks,
            .cluster = cluster_of(blocks, limits.cluster_blocks),
            .send_warps = split.send * blocks,
            .receive_warps = split.receive * blocks,
            .warp_distance = split.any() ? split.distance : kWarpDistance,
            .trains = std::move(trains)};
  }
  const auto worth = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(blocks_worth(messages), 1, most));
  const bool keeps_all = sums.packets != 0 || sums.pulled_bytes != 0 || own_links || indirect;
  const Blocks blocks = limits.beside_rails ? Blocks{worth} : blocks_of_granted(messages, worth, limits, keeps_all);
  const InStep in_step = assign(messages, blocks, own_links, !limits.beside_rails);
  if (!granted) return {.kernel = Kernel::any, .blocks = blocks.all};
  if (indirect) {
    assign_indirect(messages, limits);
    return {.kernel = Kernel::indirect, .blocks = blocks.all};
  }
  return {.kernel = Kernel::granted,
          .blocks = blocks.all,
          .fills_link = blocks.fills_link,
          .in_step_blocks = in_step.blocks,
          .in_step_KiB = in_step.KiB};
}

}  // namespace railweave::cuda
