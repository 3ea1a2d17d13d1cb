// Ranks that disagree, do not come, or leave.
#include <gtest/gtest.h>

#include <barrier>
#include <memory>
#include <optional>

#include "job.hpp"

namespace railweave::test {
namespace {

// What all ranks of a job of two get when rank 1 is started like that.
std::vector<std::string> bootstrap_errors(const std::function<void(ExchangeSettings&)>& change, std::uint32_t world_of_rank_1 = 2,
                                          const ScratchDirectory& directory = {}) {
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ExchangeSettings settings = rank_settings({1, 2}, rank);
      if (rank == 1) change(settings);
      try {
        Exchange exchange(rank, rank == 1 ? world_of_rank_1 : 2, directory.rendezvous(), settings);
      } catch (const BootstrapError& error) {
        texts[rank] = error.what();
      } catch (const SettingsError& error) {
        texts[rank] = std::string("its own: ") + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

TEST(Bootstrap, SettingsThatDifferAreNamedOnAllRanks) {
  const auto texts = bootstrap_errors([](ExchangeSettings& settings) { settings.chunk_bytes = 8192; });
  EXPECT_EQ(texts[0],
            "setting chunk_bytes: rank 1 has '8192', rank 0 has '131072'; expected the same on all ranks (RAILWEAVE_CHUNK_BYTES)");
  EXPECT_EQ(texts[1], texts[0]);
}

TEST(Bootstrap, ASettingThatCannotBeHadIsNamedOnAllRanks) {
  const std::string unread = "setting chunk_bytes (RAILWEAVE_CHUNK_BYTES): '1x'; expected a number of bytes from 4096 to 67108864";
  const auto texts = bootstrap_errors([](ExchangeSettings& settings) {
    set(settings, "chunk_bytes", "1x");
    set(settings, "colour", "blue");
  });
  EXPECT_EQ(texts[0], "rank 1: " + unread);
  EXPECT_EQ(texts[1], "its own: " + unread);
  const auto unknown = bootstrap_errors([](ExchangeSettings& settings) { set(settings, "colour", "blue"); });
  EXPECT_EQ(unknown[0], "rank 1: no setting named 'colour'; docs/settings.md lists them");
  const auto out_of_range = bootstrap_errors([](ExchangeSettings& settings) { settings.bootstrap_ms = ~std::uint64_t{0}; });
  EXPECT_NE(out_of_range[0].find("rank 1: setting bootstrap_ms"), std::string::npos) << out_of_range[0];
}

TEST(Bootstrap, AFabricThatOneRankCannotReadIsNamedOnAllRanks) {
  const ScratchDirectory directory;
  std::string told;
  std::thread other([&] {
    try {
      Exchange(0, 2, directory.rendezvous(), rank_settings({1, 2}, 0));
    } catch (const BootstrapError& error) {
      told = error.what();
    }
  });
  try {
    Exchange(1, 2, directory.rendezvous(), rank_settings({1, 2}, 1), FabricText{"{", "job.json"});
    ADD_FAILURE();
  } catch (const ParseError& error) {
    other.join();
    EXPECT_EQ(error.where().source, "job.json");
    EXPECT_EQ(told, std::string("rank 1: ") + error.what());
  }
  if (other.joinable()) other.join();
}

// The others do not wait for it: they are not there.
TEST(Bootstrap, ARankNamesItsOwnSettingAlsoWhereNobodyComes) {
  const ScratchDirectory directory;
  ExchangeSettings settings;
  set(settings, "bootstrap_ms", "50");
  set(settings, "policy", "best");
  EXPECT_THROW(Exchange(0, 2, directory.rendezvous(), settings), SettingsError);
}

TEST(Bootstrap, ARefusedExchangeLeavesNoFiles) {
  const ScratchDirectory directory;
  for (const char* chunk : {"8192", "1"}) {  // known from the others' settings, from its own
    const auto texts = bootstrap_errors([&](ExchangeSettings& settings) { set(settings, "chunk_bytes", chunk); }, 2, directory);
    EXPECT_NE(texts[0].find("chunk_bytes"), std::string::npos) << texts[0];
    EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << chunk;
  }
}

TEST(Bootstrap, ANodeWithoutThatInterfaceIsNamedOnAllRanks) {
  const auto texts = bootstrap_errors([](ExchangeSettings& settings) {
    settings.node_id = "elsewhere";
    settings.nics = "norail9";
  });
  EXPECT_NE(texts[0].find("rank 1: "), std::string::npos) << texts[0];
  EXPECT_NE(texts[0].find("norail9"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[1], texts[0]);
}

TEST(Bootstrap, AMissingRankIsNamed) {
  const ScratchDirectory directory;
  ExchangeSettings settings;
  settings.bootstrap_ms = 200;
  try {
    Exchange exchange(0, 3, directory.rendezvous(), settings);
    FAIL();
  } catch (const BootstrapError& error) {
    EXPECT_NE(std::string(error.what()).find("ranks 1, 2 did not reach 'identity' within 200 ms"), std::string::npos) << error.what();
  }
}

// A run that died has left its files; rank 1 of the next one comes first and must not take them for rank 0's.
TEST(Bootstrap, FilesOfADeadRunAreNotTakenForThisOnes) {
  const ScratchDirectory directory;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ExchangeSettings settings = rank_settings({1, 2}, rank);
    settings.bootstrap_ms = 50;
    EXPECT_THROW(Exchange(rank, 2, directory.rendezvous(), settings), BootstrapError);
  }
  const auto files = [&] {
    const std::filesystem::directory_iterator entries(directory.path());
    return std::distance(begin(entries), end(entries));
  };
  ASSERT_NE(files(), 0);
  std::thread first([&] { Exchange(1, 2, directory.rendezvous(), rank_settings({1, 2}, 1)).close(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // however long: what it finds until then is a dead run's
  Exchange(0, 2, directory.rendezvous(), rank_settings({1, 2}, 0)).close();
  first.join();
  EXPECT_EQ(files(), 0);
}

TEST(Sizes, ThatDifferFailOnBothEnds) {
  run_job({2, 1}, {}, [](Exchange& exchange) {
    std::vector<std::byte> data(500'000);  // small ones: eager_test.cpp
    Group group = exchange.group();
    if (exchange.rank() == 0)
      group.send(data.data(), 500'000, 1);
    else
      group.recv(data.data(), 400'000, 0);
    try {
      group.end().wait();
      FAIL();
    } catch (const ExchangeError& error) {
      EXPECT_NE(std::string(error.what()).find("the sender has 500000 bytes, the receiver 400000"), std::string::npos) << error.what();
    }
    // The next message is not affected.
    Group next = exchange.group();
    if (exchange.rank() == 0)
      next.send(data.data(), 100, 1);
    else
      next.recv(data.data(), 100, 0);
    next.end().wait();
  });
}

TEST(Leaving, FailsMessagesThatNeedTheRankAndNoOthers) {
  run_job({1, 3}, {}, [](Exchange& exchange) {
    std::vector<std::byte> data(1000);
    if (exchange.rank() == 2) {
      exchange.close();
      return;
    }
    Group group = exchange.group();
    group.recv(data.data(), 1000, 2);
    try {
      group.end().wait();
      FAIL();
    } catch (const RankDied& error) {
      EXPECT_EQ(error.rank(), 2u);
      EXPECT_STREQ(error.what(), "rank 2 has left: it has closed its exchange");
    }
    Group rest = exchange.group();
    if (exchange.rank() == 0)
      rest.send(data.data(), 1000, 1);
    else
      rest.recv(data.data(), 1000, 0);
    rest.end().wait();
  });
}

// Two nodes of two ranks with a rail each: ranks 0 and 3 have no way to each other but over the NIC of 1 or 2, which have nothing to do.
TEST(Leaving, RelaysForWhatItsMatesHadPosted) {
  run_job({2, 2}, {}, [posted = std::make_shared<std::barrier<>>(4)](Exchange& exchange) {
    const std::uint32_t rank = exchange.rank();
    if (rank == 1 || rank == 2) {
      posted->arrive_and_wait();
      exchange.close();
      return;
    }
    constexpr std::uint64_t kBytes = 32u << 20;
    std::vector<std::byte> data(kBytes);
    Group group = exchange.group();
    if (rank == 0) {
      fill(data.data(), kBytes, 1);
      group.send(data.data(), kBytes, 3);
    } else {
      group.recv(data.data(), kBytes, 0);
    }
    Handle handle = group.end();
    posted->arrive_and_wait();
    handle.wait();
    EXPECT_EQ(first_wrong(data.data(), kBytes, 1), kBytes);
  });
}

// What a mate waits for may need nobody's NIC.
TEST(Leaving, DoesNotWaitForMatesThatMoveNothing) {
  ExchangeSettings settings;
  settings.drain_ms = 100;
  run_job({2, 2}, settings, [posted = std::make_shared<std::barrier<>>(4)](Exchange& exchange) {
    std::vector<std::byte> data(1000);
    std::optional<Handle> handle;
    if (exchange.rank() == 0) {
      Group group = exchange.group();
      group.recv(data.data(), 1000, 3);
      handle = group.end();
    }
    posted->arrive_and_wait();
    if (!handle) return exchange.close();
    EXPECT_THROW(handle->wait(), RankDied);
  });
}

}  // namespace
}  // namespace railweave::test
