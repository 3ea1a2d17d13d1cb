// Links between NICs of which one has an IPv6 address only.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>

#include "engine.hpp"
#include "fault_transport.hpp"
#include "job.hpp"
#include "rendezvous.hpp"
#include "socket_transport.hpp"

namespace railweave::test {
namespace {

// As if the interface had no IPv4 address.
class SixTransport final : public FaultTransport {
 public:
  using FaultTransport::FaultTransport;
  std::vector<std::byte> address() const override {
    constexpr std::size_t kFamilyAt = 24;
    std::vector<std::byte> bytes = FaultTransport::address();
    const sa_family_t family = AF_INET6;
    std::memcpy(bytes.data() + kFamilyAt, &family, sizeof family);
    EXPECT_EQ(engine::socket_family(bytes), AF_INET6);
    return bytes;
  }
};

// What is of interest of it is what it is told.
class Log final : public engine::SlotMemory {
 public:
  engine::MemoryKind kind() const override { return engine::MemoryKind::host; }
  std::string objection(const std::string&) const override { return "none"; }
  std::span<std::byte> make(std::uint64_t) override { throw Error("none"); }
  void drop() override {}
  std::vector<std::byte> handle() const override { return {}; }
  std::byte* map(std::uint32_t, const engine::RankInfo&) override { throw Error("none"); }
  void say(const std::string&) override {}
  void warn(const std::string& text) override { said.push_back(text); }
  void enter() const override {}
  std::vector<std::string> said;
};

// Two ranks on two nodes; rank 1's NICs at those places have no IPv4 address.
struct Found {
  std::vector<std::string> said[2], down;  // down: of rank 0
  std::vector<engine::NicLinks> nics;      // of rank 0's node
};
Found run(const std::string& nics, const std::vector<bool>& six) {
  const ScratchDirectory directory;
  Found found;
  std::barrier step(2);
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ExchangeSettings settings = rank_settings({2, 1}, rank);
      settings.nics = nics;
      settings.rail_timeout_ms = settings.drain_ms = 50;
      const auto meeting = engine::make_rendezvous(directory.rendezvous(), rank, 2, std::chrono::milliseconds(settings.bootstrap_ms));
      const auto rails = std::make_shared<RailSwitch>(2);
      Log log;
      engine::Engine engine(
          engine::exchange_identity(*meeting, rank, 2, settings, &log), *meeting, settings, std::nullopt,
          [&](std::unique_ptr<engine::Transport> nic, std::uint32_t place) -> std::unique_ptr<engine::Transport> {
            if (rank == 0 || !six[place]) return nic;
            return std::make_unique<SixTransport>(std::move(nic), FaultPolicy{}, rails, rank);
          },
          engine::make_host_backend, &log);
      found.said[rank] = log.said;
      if (rank == 0) {
        // Links that can be made are up sooner or later, and are down again while the other rank has no processor.
        const auto agree = [&] {
          found.nics = engine.nic_links();
          found.down = engine.links_down();
          std::size_t down = 0;
          for (const engine::NicLinks& nic : found.nics) down += nic.down.size();
          return down == found.down.size() && std::all_of(found.down.begin(), found.down.end(), [](const std::string& link) {
                   return link.find("has no IPv4 address") != std::string::npos;
                 });
        };
        for (int tries = 0; tries < 12'000 && !agree(); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      step.arrive_and_wait();
      engine.close();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return found;
}

TEST(LinkFamilies, ThatDifferAreToldOnceWithWhatToDo) {
  const Found found = run("lo", {true});
  ASSERT_EQ(found.said[0],
            std::vector<std::string>{"lo of rank 0 and lo of rank 1 will not be connected: lo of rank 1 has no IPv4 address, "
                                     "which the other has; give it one"});
  EXPECT_TRUE(found.said[1].empty());
  EXPECT_EQ(found.down, std::vector<std::string>{"lo of rank 0 to lo of rank 1 (lo of rank 1 has no IPv4 address, which the other has)"});
  ASSERT_EQ(found.nics.size(), 1u);
  EXPECT_EQ(found.nics[0].links, 1u);
  EXPECT_EQ(found.nics[0].down, std::vector<std::string>{"lo of rank 1 (lo of rank 1 has no IPv4 address, which the other has)"});
}

TEST(LinkFamilies, OfManyLinksOneIsNamed) {
  const Found found = run("lo,lo,lo", {true, false, true});
  ASSERT_EQ(found.said[0].size(), 1u);
  EXPECT_NE(found.said[0][0].find("; give it one (and so for "), std::string::npos) << found.said[0][0];
  ASSERT_EQ(found.nics.size(), 3u);
  std::size_t links = 0, down = 0;
  for (const engine::NicLinks& nic : found.nics) {
    links += nic.links;
    down += nic.down.size();
  }
  EXPECT_GT(links, down) << "those of the other NIC are up";
  EXPECT_EQ(down, found.down.size());
}

TEST(LinkFamilies, ThatAreTheSameAreNotTold) { EXPECT_TRUE(run("lo", {false}).said[0].empty()); }

}  // namespace
}  // namespace railweave::test
