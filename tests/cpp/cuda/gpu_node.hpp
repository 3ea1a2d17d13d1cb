// Ranks of one node whose kernels' blocks and warps are threads, and programs of operations for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include "host_block.hpp"
#include "planned_messages.hpp"
#include "prepare.hpp"
#include "transfer.hpp"
#include "waiting.hpp"

namespace railweave::cuda {

using Bytes = std::vector<std::byte>;

// As the GPU library copies while kernels run.
template <typename T>
void copy_while_written(T& copy, const T& words, std::size_t bytes = sizeof(T)) {
  auto* to = reinterpret_cast<std::uint64_t*>(&copy);
  auto* from = reinterpret_cast<std::uint64_t*>(const_cast<T*>(&words));
  for (std::size_t i = 0; i < bytes / 8; ++i) to[i] = std::atomic_ref(from[i]).load(std::memory_order_relaxed);
}
inline std::unique_ptr<Port> copy_words(const Port& port) {
  auto copy = std::make_unique<Port>();
  copy_while_written(*copy, port, kPortWordsBytes);
  return copy;
}

// Ranks of one node, each with its region; operations run in threads.
class Node {
 public:
  explicit Node(std::uint32_t world, std::uint64_t seed = 1)
      : seed_(seed), hosts_(world), ledgers_(world), states_(world), kernels_(world) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      regions_.push_back(std::make_unique<Port[]>(world));
      states_[rank] = std::make_unique<OperationState>();
      ledgers_[rank].ports = regions_[rank].get();
      ledgers_[rank].mates = world;
    }
  }

  // Gives every pair a path over the host, and one over each third rank, with so many slots; as IndirectMemory does.
  void add_paths(bool host, std::uint8_t slots_of_relays) {
    relay_slots = slots_of_relays;
    const auto world = static_cast<std::uint32_t>(hosts_.size());
    for (std::uint32_t source = 0; source < world; ++source) {
      for (std::uint32_t destination = 0; destination < world; ++destination) {
        if (source == destination) continue;
        if (host) add_path(source, destination, kHostPath, kHostSlots, source);
        std::uint32_t path = kFirstRelay;
        for (std::uint32_t relay = 0; relay < world && relay_slots != 0; ++relay) {
          if (relay != source && relay != destination) add_path(source, destination, path++, relay_slots, relay);
        }
      }
    }
  }
  // Where the kernel of a rank says what went over the paths to a peer.
  void count_at(std::uint32_t rank, std::uint32_t peer, IndirectSent& sent) {
    regions_[rank][peer].sent_at = reinterpret_cast<std::uint64_t>(&sent);
  }
  // As if a rank had not mapped it.
  void refuse_path(std::uint32_t rank, std::uint32_t peer, std::uint32_t path) {
    regions_[rank][peer].indirect[path].to = regions_[rank][peer].indirect[path].from = 0;
  }

  std::uint32_t blocks_at_most = 3;
  // What a device can begin together, and how many single blocks surely begin where that is 1.
  std::uint32_t cluster_blocks = 8, single_blocks = 1;
  std::vector<std::uint32_t> blocks_of, clusters_of;  // by rank, where they differ
  std::uint64_t low_latency_bytes = 32u << 10;
  bool mapped = true;
  // Each block, or cluster, begins when the one before it has ended: as if nothing more could be resident.
  bool one_at_a_time = false;
  bool captured = false;    // what runs now was
  bool last_first = false;  // blocks in the order of their numbers, or the other way round
  bool in_step = false;     // all granted operations whose messages have one size may be, also small ones
  std::uint32_t delays = 20;
  std::uint64_t timeout_ns = 3600'000'000'000;
  std::uint32_t host_share = 0, link_MBps = 0;
  std::uint8_t relay_slots = 0;
  // What else is said of an operation's messages before it is planned.
  std::function<void(std::uint32_t rank, std::span<Message> messages)> choose = [](std::uint32_t, std::span<Message>) {};

  HostView& host(std::uint32_t rank) { return hosts_[rank]; }
  // Once the rank's operations have ended; a last one that was given up does not count.
  std::uint64_t completed(std::uint32_t rank) const {
    std::uint64_t sum = 0;
    for (const Account& account : ledgers_[rank].accounts) sum += account.totals.completed - (hosts_[rank].error == 0 ? 0 : account.newest);
    return sum;
  }
  // While they run.
  Ledger ledger(std::uint32_t rank) const {
    const std::scoped_lock lock(HostWords::pairs());
    Ledger copy{};
    copy_while_written(copy, ledgers_[rank]);
    return copy;
  }
  const OperationState& state(std::uint32_t rank) const { return *states_[rank]; }
  // Kernels of a rank's operations so far.
  const std::vector<Kernel>& kernels(std::uint32_t rank) const { return kernels_[rank]; }
  Port& port(std::uint32_t rank, std::uint32_t peer) { return regions_[rank][peer]; }

  // As Region::halt().
  void halt(std::uint32_t rank) {
    for (std::uint32_t peer = 0; peer < hosts_.size(); ++peer) {
      for (Count& count : regions_[rank][peer].counts) std::atomic_ref(count.over).store(kNeverMoved);
    }
  }
  // As the host of a rank whose mates rest: once its kernel has told of an error, it may leave.
  std::jthread watch(std::uint32_t rank) {
    return std::jthread([&host = hosts_[rank]] {
      while (std::atomic_ref(host.error).load() == 0) std::this_thread::yield();
      std::atomic_ref(host.stop).store(kLeave);
    });
  }

  // Runs one operation of a rank to its end.
  void run(std::uint32_t rank, const std::vector<Transfer>& transfers) { run(rank, messages_of(rank, transfers)); }

  std::vector<Message> messages_of(std::uint32_t rank, const std::vector<Transfer>& transfers) {
    std::vector<Message> messages;
    for (const Transfer& t : transfers) {
      Message m{};
      m.local = &regions_[rank][t.peer];
      m.remote = &regions_[t.peer][rank];
      m.data = t.data;
      m.bytes = t.bytes;
      m.direction = t.direction;
      m.peer = t.peer;
      m.host = &hosts_[rank];
      m.ledger = &ledgers_[rank];
      m.captured = captured;
      m.relay_slots = relay_slots;
      for (std::uint32_t path = 0; path < kIndirectPaths; ++path) {
        const IndirectPath& way = m.local->indirect[path];
        if ((t.direction == Direction::send ? way.to : way.from) != 0) m.paths |= static_cast<std::uint8_t>(1u << path);
      }
      if (t.direction == Direction::receive) {
        m.named.buffer = mapped ? kAbsoluteBuffer : kNoBuffer;
        m.named.offset = reinterpret_cast<std::uint64_t>(t.data);
      }
      messages.push_back(m);
    }
    return messages;
  }

  // The same with messages of other nodes, too: other communicators of the ranks' processes.
  void run(std::uint32_t rank, std::vector<Message> messages) {
    const std::uint32_t blocks = blocks_of.empty() ? blocks_at_most : blocks_of[rank];
    const std::uint32_t clusters = clusters_of.empty() ? cluster_blocks : clusters_of[rank];
    choose(rank, sized(messages, low_latency_bytes));
    const Plan plan =
        prepare(sized(messages, low_latency_bytes), {blocks, clusters, static_cast<std::uint32_t>(hosts_.size()), false, host_share,
                                                     link_MBps, ~0u, clusters > 1 ? 2 * clusters : single_blocks});
    kernels_[rank].push_back(plan.kernel);
    const bool one_size = std::all_of(messages.begin(), messages.end(), [&](const Message& m) { return m.bytes == messages[0].bytes; });
    const OperationHeader header{.state = states_[rank].get(),
                                 .timeout_ns = timeout_ns,
                                 .count = static_cast<std::uint32_t>(messages.size()),
                                 .packet_messages = plan.packet_messages,
                                 .packet_blocks = plan.packet_blocks,
                                 .packet_blocks_a_cluster = plan.packet_blocks_a_cluster,
                                 .link_MBps = link_MBps,
                                 .send_warps = plan.send_warps,
                                 .receive_warps = plan.receive_warps,
                                 .warp_distance = plan.warp_distance,
                                 .in_step_blocks = in_step && one_size ? plan.blocks : plan.in_step_blocks,
                                 .in_step_KiB = static_cast<std::uint32_t>(messages[0].bytes >> 10)};
    const std::uint64_t seed = seed_ * 1000 + kernels_[rank].size() * 137 + rank * 10;
    switch (plan.kernel) {
      case Kernel::packets: return run_packets(plan, header, messages.data(), seed);
      case Kernel::apart: return run_apart_from_packets<false>(plan, header, messages.data(), seed);
      case Kernel::apart_indirect: return run_apart_from_packets<true>(plan, header, messages.data(), seed);
      case Kernel::granted: return run_blocks<false>(plan, header, messages, seed);
      case Kernel::indirect: return run_blocks<false, true>(plan, header, messages, seed);
      case Kernel::any: return run_blocks<true>(plan, header, messages, seed);
      case Kernel::rails: FAIL() << "no message goes to another node";
    }
  }

 private:
  void add_path(std::uint32_t source, std::uint32_t destination, std::uint32_t path, std::uint32_t slots, std::uint32_t relay) {
    slots_.push_back(std::make_unique<std::byte[]>(slots * kIndirectBytes));
    IndirectPath& at_source = regions_[source][destination].indirect[path];
    IndirectPath& at_destination = regions_[destination][source].indirect[path];
    at_source.to = at_destination.from = reinterpret_cast<std::uint64_t>(slots_.back().get());
    if (relay == source) return;
    at_source.link_to = reinterpret_cast<std::uint64_t>(&regions_[source][relay].link_free);
    at_destination.link_in = reinterpret_cast<std::uint64_t>(&regions_[relay][destination].link_free);
  }

  static Part in_trains(const Part& part, const Plan& plan) {
    return part_in_trains(part, plan.trains.data(), static_cast<std::uint32_t>(plan.trains.size()));
  }

  // Threads of blocks that begin together.
  using Cluster = std::vector<std::function<void()>>;
  void run_clusters(std::vector<Cluster> clusters) const {
    if (last_first) {
      std::reverse(clusters.begin(), clusters.end());
      for (Cluster& cluster : clusters) std::reverse(cluster.begin(), cluster.end());
    }
    std::vector<std::jthread> threads;
    for (const Cluster& cluster : clusters) {
      for (const auto& thread : cluster) threads.emplace_back(thread);
      if (one_at_a_time) threads.clear();
    }
  }

  // Whichever cluster begins first, its warps wait for those of the others, which begin as well (room.hpp).
  void run_packets(const Plan& plan, const OperationHeader& header, const Message* messages, std::uint64_t seed) {
    const std::uint32_t warps = plan.blocks * kBundlePackets;
    Cluster all;
    for (std::uint32_t w = 0; w < warps; ++w) {
      all.push_back([=, this, &header, &plan] {
        HostWarp warp(w, warps, seed + w + 1, delays);
        const Part part = whole_part(header, messages);
        if (!plan.trains.empty()) return PacketRoles<HostWarp, true, true>(warp, in_trains(part, plan)).run();
        if (plan.send_warps + plan.receive_warps == 0) return PacketRoles<HostWarp>(warp, part).run();
        PacketRoles<HostWarp, true>(warp, part).run();
      });
    }
    run_clusters({all});
  }

  template <bool kPackets, bool kIndirect = false>
  void run_blocks(const Plan& plan, const OperationHeader& header, const std::vector<Message>& messages, std::uint64_t seed) {
    // What does not fit into a kernel's parameters has its states in memory of its own, too.
    std::vector<MessageState> states(messages.size() > kMaxMessages ? messages.size() : 0);
    Part part = whole_part(header, messages.data());
    if (!states.empty()) part.states = states.data();
    std::vector<Cluster> clusters;
    for (std::uint32_t b = 0; b < plan.blocks; ++b) {
      clusters.push_back({[=, this, &part, blocks = plan.blocks] {
        const auto run = [&](auto&& block) {
          block.make_room(part.count);
          Roles<std::remove_cvref_t<decltype(block)>, kPackets, kIndirect>(block, part).run();
        };
        if (part.count > kMaxMessages) return run(HostBlockOfMany(b, blocks, seed + b + 1, delays));
        run(HostBlock(b, blocks, seed + b + 1, delays));
      }});
    }
    run_clusters(clusters);
    for (const MessageState& state : states) EXPECT_EQ(state.claimed, 0u);
  }

  // Blocks for packets have a thread for each warp, the others are one thread each.
  template <bool kIndirect>
  void run_apart_from_packets(const Plan& plan, const OperationHeader& header, const Message* messages, std::uint64_t seed) {
    const std::uint32_t others = plan.blocks - plan.packet_blocks, warps = plan.packet_blocks * kBundlePackets;
    std::vector<Cluster> clusters(plan.blocks / plan.cluster);
    std::uint32_t packet_block = 0, other = 0;
    for (std::uint32_t b = 0; b < plan.blocks; ++b) {
      Cluster& cluster = clusters[b / plan.cluster];
      if (b % plan.cluster < plan.packet_blocks_a_cluster && packet_block < plan.packet_blocks) {
        for (std::uint32_t w = packet_block++; w < warps; w += plan.packet_blocks) {
          cluster.push_back([=, this, &header, &plan] {
            HostWarp warp(w, warps, seed + 100 + w, delays);
            const Part part = packet_part(header, messages);
            if (!plan.trains.empty()) return PacketRoles<HostWarp, false, true>(warp, in_trains(part, plan)).run();
            PacketRoles<HostWarp>(warp, part).run();
          });
        }
      } else {
        cluster.push_back([=, this, &header, index = other++] {
          const Part granted = granted_part(header, messages);
          HostBlock block(index, others, seed + index + 50, delays);
          block.make_room(granted.count);
          Roles<HostBlock, false, kIndirect>(block, granted).run();
        });
      }
    }
    // As with packets alone, those of all clusters wait for each other, and single blocks.
    if (plan.packet_blocks > plan.packet_blocks_a_cluster || plan.cluster == 1) {
      Cluster all;
      for (Cluster& cluster : clusters) all.insert(all.end(), cluster.begin(), cluster.end());
      clusters = {std::move(all)};
    }
    run_clusters(std::move(clusters));
  }

  std::uint64_t seed_;
  std::vector<HostView> hosts_;
  std::vector<Ledger> ledgers_;
  std::vector<std::unique_ptr<Port[]>> regions_;
  std::vector<std::unique_ptr<OperationState>> states_;
  std::vector<std::vector<Kernel>> kernels_;
  std::vector<std::unique_ptr<std::byte[]>> slots_;  // of indirect paths
};

inline Bytes random_bytes(std::mt19937_64& random, std::uint64_t count) {
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// A message of a program: its bytes, and the buffers at its ends.
struct Sent {
  std::uint32_t source, destination;
  Bytes data, sent, came;
};
// Operations in the order in which each rank runs them, once; a message is in one operation of its source and in one of its destination.
struct Program {
  std::vector<std::unique_ptr<Sent>> messages;
  std::vector<std::vector<std::vector<Transfer>>> operations;  // by rank

  explicit Program(std::uint32_t world) : operations(world) {}
  void add(std::mt19937_64& random, std::uint32_t source, std::size_t send_op, std::uint32_t destination, std::size_t receive_op,
           std::uint64_t bytes) {
    const Bytes data = random_bytes(random, bytes);
    messages.push_back(std::make_unique<Sent>(Sent{source, destination, data, data, Bytes(bytes)}));
    Sent& m = *messages.back();
    at(source, send_op).push_back({Direction::send, destination, m.sent.data(), bytes});
    at(destination, receive_op).push_back({Direction::receive, source, m.came.data(), bytes, m.data.data()});
  }
  // Each byte is looked at when its operation has ended, and again when all have.
  void run(Node& node) const {
    std::vector<std::jthread> ranks;
    for (std::uint32_t rank = 0; rank < operations.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        for (const auto& operation : operations[rank]) {
          if (operation.empty()) continue;
          node.run(rank, operation);
          use_buffers(operation);
        }
      });
    }
    ranks.clear();
    for (const auto& of_rank : operations) {
      for (const auto& operation : of_rank) expect_left_alone(operation);
    }
  }
  // What its ports say was moved, by peer and direction, when the node has run this so many times and nothing else.
  void check_moved(Node& node, std::uint64_t times = 1) const {
    const auto world = static_cast<std::uint32_t>(operations.size());
    for (std::uint32_t source = 0; source < world; ++source) {
      for (std::uint32_t destination = 0; destination < world; ++destination) {
        std::uint64_t bytes = 0;
        for (const auto& m : messages) bytes += m->source == source && m->destination == destination ? m->data.size() : 0;
        const auto moved = [&](std::uint32_t rank, std::uint32_t peer, Direction direction) {
          return node.port(rank, peer).moved_bytes[static_cast<std::uint32_t>(direction)];
        };
        EXPECT_EQ(moved(source, destination, Direction::send), times * bytes) << source << " to " << destination;
        EXPECT_EQ(moved(destination, source, Direction::receive), times * bytes) << source << " to " << destination;
      }
    }
  }

 private:
  std::vector<Transfer>& at(std::uint32_t rank, std::size_t op) {
    if (operations[rank].size() <= op) operations[rank].resize(op + 1);
    return operations[rank][op];
  }
};

}  // namespace railweave::cuda
