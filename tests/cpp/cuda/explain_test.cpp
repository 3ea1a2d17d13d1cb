#include "explain.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fetch_prepare.hpp"
#include "planned_messages.hpp"
#include "rail_prepare.hpp"

namespace railweave::cuda {
namespace {

constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

std::string explained(std::vector<Message> messages, LaunchLimits limits, std::uint64_t low_latency_bytes = 2 * kMiB) {
  sized(messages, low_latency_bytes);
  choose_fetched(messages, limits);
  const Plan plan = prepare(messages, limits);
  return explanation(plan, messages, limits);
}

TEST(Explanation, SaysHowPacketsAndGrantedMessagesAreMoved) {
  std::vector<Message> messages{make_message(Direction::send, 1, 64 * kMiB), make_message(Direction::receive, 1, 64 * kMiB),
                                make_message(Direction::send, 2, 100'000), make_message(Direction::receive, 2, 3 * kMiB)};
  messages[3].named.buffer = kNoBuffer;
  const std::string text = explained(messages, {.blocks = 16, .cluster_blocks = 8});
  EXPECT_EQ(text.rfind("kernel apart, ", 0), 0u) << text;
  EXPECT_NE(text.find(" blocks that begin in clusters of "), std::string::npos) << text;
  EXPECT_NE(text.find(" of them for packets (at most "), std::string::npos) << text;
  EXPECT_NE(text.find("; 100000 B to 2 in packets, as it is short"), std::string::npos) << text;
  EXPECT_NE(text.find("; 64 MiB to 1 after a grant, in pieces of "), std::string::npos) << text;
  EXPECT_NE(text.find("; 64 MiB from 1 after a grant;"), std::string::npos) << text;
  EXPECT_NE(text.find("; 3 MiB from 2 after a grant, through slots, as no other process can write into its buffer"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("room for"), std::string::npos) << text;
}

TEST(Explanation, SaysWhatLimitsTheBlocksAndWhatFewOfThemDo) {
  const std::string few = explained({make_message(Direction::send, 1, 64 * kMiB)}, {.blocks = 16, .room = 4});
  EXPECT_NE(few.find("kernel indirect, 4 blocks (at most 16 for what stays inside the node, room for 4); 64 MiB to 1"), std::string::npos)
      << few;
  EXPECT_NE(few.find(", its second half for the destination to read, in pieces of "), std::string::npos) << few;
  EXPECT_NE(few.find(", begun by blocks 0 to 3"), std::string::npos) << few;
  const std::string read = explained({make_message(Direction::receive, 1, 64 * kMiB)}, {.blocks = 16, .room = 4});
  EXPECT_NE(read.find("64 MiB from 1 after a grant, its second half read by this rank"), std::string::npos) << read;
  LaunchLimits known{.blocks = 16};
  known.knows_rates = true;
  const std::string full = explained({make_message(Direction::send, 1, 64 * kMiB)}, known);
  EXPECT_EQ(full.rfind("kernel granted, 12 blocks, which fill the link (at most 16 ", 0), 0u) << full;
  EXPECT_EQ(few.find("fill"), std::string::npos) << few;
}

TEST(Explanation, SaysWherePeersAreTakenOneAfterAnother) {
  std::vector<Message> messages;
  for (const std::uint32_t peer : {1, 2, 3}) {
    for (const Direction way : {Direction::send, Direction::receive}) messages.push_back(make_message(way, peer, 64 * kMiB));
  }
  const std::string text = explained(messages, {.blocks = 16, .world = 4});
  EXPECT_EQ(
      text.rfind("kernel granted, 24 blocks, all at one peer after another where the last such operation was balanced at all ranks (at", 0),
      0u)
      << text;
  messages.back().bytes += 1;
  EXPECT_EQ(explained(messages, {.blocks = 16, .world = 4}).find("after another"), std::string::npos);
}

TEST(Explanation, NamesOtherPaths) {
  Message message = make_message(Direction::send, 1, 1024 * kMiB);
  message.paths = 1u << kHostPath;
  const std::string over_host = explained({message}, {.blocks = 16, .host_share = 100});
  EXPECT_NE(over_host.find("kernel indirect, "), std::string::npos) << over_host;
  EXPECT_NE(over_host.find("1 GiB to 1 after a grant, also over the host"), std::string::npos) << over_host;
  message.paths = 3u << kFirstRelay;
  message.relay_slots = 4;
  const std::string relayed = explained({message}, {.blocks = 16, .link_MBps = 120'000});
  EXPECT_NE(relayed.find("1 GiB to 1 after a grant, also over 2 relays"), std::string::npos) << relayed;
}

TEST(Explanation, TellsOfRailsLast) {
  const LaunchLimits limits{.blocks = 16, .beside_rails = true, .staged_bytes = 64 * kKiB};
  std::vector<Message> near{make_message(Direction::send, 1, 1 * kKiB)};
  std::vector<Message> rails{make_message(Direction::send, 2, 1 * kKiB), make_message(Direction::send, 3, 4 * kMiB),
                             make_message(Direction::receive, 2, 1 * kKiB)};
  Plan plan = prepare(sized(near, 2 * kMiB), limits);
  plan = prepare_rails(rails, plan, limits);
  near.insert(near.end(), rails.begin(), rails.end());
  const std::string text = explanation(plan, near, limits);
  EXPECT_EQ(text.rfind("kernel rails, ", 0), 0u) << text;
  EXPECT_NE(text.find("1 KiB to 1 in packets, as it is short; 1 KiB to 2 over rails, copied out at once; 4 MiB to 3 over rails; "
                      "1 KiB from 2 over rails"),
            std::string::npos)
      << text;
  EXPECT_EQ(explanation(prepare_rails(rails, {}, limits), rails, limits).find("inside the node"), std::string::npos);
}

TEST(Explanation, StopsAfterMany) {
  const std::vector<Message> messages(40, make_message(Direction::receive, 1, 16));
  const std::string text = explained(messages, {.blocks = 16, .cluster_blocks = 8});
  EXPECT_NE(text.find("; and 8 messages more"), std::string::npos) << text;
}

}  // namespace
}  // namespace railweave::cuda
