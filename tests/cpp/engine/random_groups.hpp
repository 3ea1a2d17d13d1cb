// Random groups of sends and receives, drawn alike by all ranks from one seed: what each rank posts follows from it, so every byte can be
// checked.
#pragma once

#include <algorithm>
#include <random>

#include "job.hpp"

namespace railweave::test {

struct PlannedMessage {
  std::uint32_t communicator, source, destination;
  std::uint64_t bytes, tag;
};

struct RandomWorkload {
  std::uint32_t world = 0;
  int messages = 0;
  std::uint64_t max_bytes = 0;
  std::uint64_t seed = 0;
  std::uint32_t communicators = 2;
  std::vector<bool> idle;  // ranks that take part in nothing (they only relay)
};

inline std::vector<PlannedMessage> draw(const RandomWorkload& workload) {
  std::mt19937_64 random(workload.seed);
  std::vector<PlannedMessage> messages;
  while (messages.size() < static_cast<std::size_t>(workload.messages)) {
    const auto source = static_cast<std::uint32_t>(random() % workload.world);
    const auto destination = static_cast<std::uint32_t>(random() % workload.world);
    if (!workload.idle.empty() && (workload.idle[source] || workload.idle[destination])) continue;
    const std::uint64_t kind = random() % 8;
    const std::uint64_t bytes = kind == 0 ? 0 : kind < 4 ? random() % 5000 : random() % workload.max_bytes;
    messages.push_back({static_cast<std::uint32_t>(random() % workload.communicators), source, destination, bytes, random()});
  }
  return messages;
}

// What one rank does: its part of the workload in groups of its own sizes, on several communicators, not waiting in between, with pauses.
// Odd ranks post each batch's communicators in the opposite order. Returns the number of operations. `mismatch` gets a text for wrong
// bytes.
inline int run_rank(Exchange& exchange, const RandomWorkload& workload, std::string& mismatch) {
  constexpr std::size_t kBatch = 24;
  const std::uint32_t me = exchange.rank();
  const std::vector<PlannedMessage> messages = draw(workload);
  std::mt19937_64 own(workload.seed * 77 + me);
  int operations = 0;
  for (std::size_t start = 0; start < messages.size(); start += kBatch) {
    const std::size_t end = std::min(messages.size(), start + kBatch);
    std::vector<std::vector<std::byte>> outgoing(end - start), incoming(end - start);
    std::vector<Handle> handles;
    std::vector<std::uint32_t> order(workload.communicators);
    for (std::uint32_t i = 0; i < workload.communicators; ++i) order[i] = me % 2 == 0 ? i : workload.communicators - 1 - i;
    for (const std::uint32_t communicator : order) {
      Group group = exchange.group(communicator);
      std::size_t in_group = 0;
      for (std::size_t i = start; i < end; ++i) {
        const PlannedMessage& message = messages[i];
        if (message.communicator != communicator || (message.source != me && message.destination != me)) continue;
        if (message.source == me) {
          outgoing[i - start].resize(message.bytes);
          fill(outgoing[i - start].data(), message.bytes, message.tag);
          group.send(outgoing[i - start].data(), message.bytes, message.destination);
        }
        if (message.destination == me) {
          incoming[i - start].resize(message.bytes);
          group.recv(incoming[i - start].data(), message.bytes, message.source);
        }
        if (++in_group >= 1 + own() % 5) {
          handles.push_back(group.end());
          ++operations;
          group = exchange.group(communicator);
          in_group = 0;
          if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));  // a receiver that comes late
        }
      }
      handles.push_back(group.end());
      ++operations;
    }
    for (Handle& handle : handles) handle.wait();
    for (std::size_t i = start; i < end; ++i) {
      if (messages[i].destination != me) continue;
      const std::uint64_t wrong = first_wrong(incoming[i - start].data(), messages[i].bytes, messages[i].tag);
      if (wrong != messages[i].bytes && mismatch.empty()) {
        mismatch = "message " + std::to_string(i) + " from " + std::to_string(messages[i].source) + " to " + std::to_string(me) +
                   ": byte " + std::to_string(wrong) + " of " + std::to_string(messages[i].bytes);
      }
    }
  }
  return operations;
}

}  // namespace railweave::test
