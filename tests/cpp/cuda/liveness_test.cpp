// Ranks as processes that share their words, as in a communicator: what the others conclude when one of them dies or fails.
#include "liveness.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "railweave/engine/error.hpp"

namespace railweave::cuda {
namespace {

int open_pidfd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

// A process that sleeps until it is killed.
class Process {
 public:
  Process() : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) ::pause();
    }
    pidfd_ = open_pidfd(pid_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    kill();
    ::close(pidfd_);
  }
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int pidfd() const { return pidfd_; }

 private:
  pid_t pid_;
  int pidfd_ = -1;
};

constexpr std::uint32_t kRanks = 4;

class FourRanks : public testing::Test {
 protected:
  std::vector<Mate> mates_of(std::uint32_t rank) {
    std::vector<Mate> mates;
    for (std::uint32_t other = 0; other < kRanks; ++other) {
      if (other != rank) mates.push_back({other, &lives[other], processes[other].pidfd()});
    }
    return mates;
  }
  std::optional<Failure> seen_by(std::uint32_t rank) { return find_failure(mates_of(rank)); }

  std::array<Process, kRanks> processes;
  std::array<Liveness, kRanks> lives{};
};

TEST_F(FourRanks, RestWhenTheySaySoLeaveOrAreGoneForAWhile) {
  const auto all_rest = [&](bool settled = true) {
    const std::vector<Mate> mates = mates_of(0);
    return std::all_of(mates.begin(), mates.end(), [settled](const Mate& mate) { return rests(mate, settled); });
  };
  tell_failure(lives[1], {"aborted", std::nullopt});
  tell_rest(lives[1]);
  EXPECT_FALSE(all_rest());
  tell_leaving(lives[2]);
  EXPECT_FALSE(all_rest());
  tell_failure(lives[3], {"aborted", std::nullopt});
  EXPECT_FALSE(all_rest()) << "it has failed, and its kernels may still write";
  processes[3].kill();
  EXPECT_FALSE(all_rest(false)) << "its kernel may outlive it for a moment";
  EXPECT_TRUE(all_rest());
}

TEST_F(FourRanks, NothingIsWrong) {
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_FALSE(seen_by(rank).has_value());
}

// Whoever sees a death first fails, and says so, before the others look: they have to name the dead rank all the same.
TEST_F(FourRanks, EverySurvivorNamesTheDeadRankInAnyOrderOfLooks) {
  std::array<std::uint32_t, kRanks> order{0, 1, 2, 3};
  for (const std::uint32_t victim : {3u, 0u}) {
    SCOPED_TRACE("victim " + std::to_string(victim));
    processes[victim].kill();
    do {
      for (Liveness& life : lives) life.failed = kWell;
      for (const std::uint32_t rank : order) {
        if (rank == victim) continue;
        const auto failure = seen_by(rank);
        ASSERT_TRUE(failure.has_value());
        EXPECT_EQ(failure->dead_rank, victim) << "rank " << rank << ": " << failure->text;
        tell_failure(lives[rank], *failure);
      }
    } while (std::next_permutation(order.begin(), order.end()));
    lives[victim].leaving = 1;  // its part is over; the next victim is another
  }
}

// A program that ends at once when it hears of a death leaves no second riddle behind.
TEST_F(FourRanks, ASurvivorThatEndsBecauseOfADeathIsNotBlamed) {
  processes[3].kill();
  tell_failure(lives[0], *seen_by(0));
  processes[0].kill();
  lives[3].failed = kFailed;  // it had an error of its own before it died
  EXPECT_EQ(seen_by(1)->dead_rank, 3u);
}

TEST_F(FourRanks, TheFirstFailureThatIsToldStays) {
  tell_failure(lives[1], {"rank 2 has died", 2});
  tell_failure(lives[1], {"aborted", std::nullopt});
  EXPECT_EQ(seen_by(0)->dead_rank, 2u);
}

TEST_F(FourRanks, AnErrorIsNoDeath) {
  tell_failure(lives[2], {"counts differ", std::nullopt});
  const auto failure = seen_by(0);
  ASSERT_TRUE(failure.has_value());
  EXPECT_FALSE(failure->dead_rank.has_value());
  EXPECT_EQ(failure->text, "rank 2's side of the communicator has failed");
}

// Nor is it the fault of those who hear of it, or the end of the rank that told them.
TEST_F(FourRanks, WhoHearsOfAFailureHasLostThatRankAndTellsOfNoDeath) {
  tell_failure(lives[2], {"aborted", std::nullopt});
  const auto first = seen_by(0);
  ASSERT_TRUE(first.has_value());
  try {
    throw_failure(*first);
  } catch (const RankDied& error) {
    EXPECT_EQ(error.rank(), 2u);
    EXPECT_STREQ(error.what(), "rank 2's side of the communicator has failed");
  } catch (const ExchangeError& error) {
    ADD_FAILURE() << error.what() << ": as if it were this rank's fault";
  }
  tell_failure(lives[0], *first);
  EXPECT_EQ(lives[0].failed, kFailed);
  EXPECT_FALSE(seen_by(1)->dead_rank.has_value());
}

TEST_F(FourRanks, ARankThatLeftMayEnd) {
  tell_leaving(lives[1]);
  processes[1].kill();
  EXPECT_FALSE(seen_by(0).has_value());
  EXPECT_TRUE(has_left(mates_of(0)[0]));
  EXPECT_FALSE(has_left(mates_of(0)[1]));
}

// Of one that has failed, nobody knows what its peers still need of it.
TEST_F(FourRanks, OnlyAWellRankLeavesWell) {
  EXPECT_FALSE(has_left_well(mates_of(0)[0]));
  processes[1].kill();
  EXPECT_FALSE(has_left_well(mates_of(0)[0])) << "that is a death";
  tell_leaving(lives[1]);
  EXPECT_TRUE(has_left_well(mates_of(0)[0]));
  tell_failure(lives[2], {"aborted", std::nullopt});
  tell_leaving(lives[2]);
  EXPECT_FALSE(has_left_well(mates_of(0)[1]));
}

TEST_F(FourRanks, WhoIsWaitedForThoughItLeftIsNamed) {
  tell_leaving(lives[2]);
  processes[2].kill();
  ASSERT_FALSE(seen_by(0).has_value());
  tell_failure(lives[1], {"a receive of 8 bytes from rank 2 waits, and that rank has left", 2});
  const auto failure = seen_by(0);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->dead_rank, 2u);
  EXPECT_EQ(failure->text, "rank 2 has left, and another rank waits for it");
}

// Ranks of this process have no pidfd: they die with everybody.
TEST(Liveness, ARankOfTheSameProcessCanOnlyFail) {
  Liveness life{};
  const std::array mates{Mate{1, &life, -1}};
  EXPECT_FALSE(find_failure(mates).has_value());
  tell_failure(life, {"aborted", std::nullopt});
  EXPECT_EQ(life.failed, kFailed);
  EXPECT_TRUE(find_failure(mates).has_value());
}

TEST(Nodes, AnotherPidNamespaceOfThisMachineIsNamed) {
  const std::string mine = "host 8c1f-boot 4026531836";
  EXPECT_EQ(other_namespace("host 8c1f-boot 4026532577", mine),
            ", or in another PID namespace of this one (start containers in one: --pid=host, shareProcessNamespace)");
  EXPECT_EQ(other_namespace("c0ffee 8c1f-boot 4026532577", mine), other_namespace("host 8c1f-boot 4026532577", mine))
      << "a container's name";
  EXPECT_EQ(other_namespace("other 77aa-boot 4026531836", mine), "");
  EXPECT_EQ(other_namespace("rack 1", "rack 1 a"), "") << "as RAILWEAVE_NODE_ID may be, too";
  EXPECT_EQ(other_namespace("rack1", "rack2"), "") << "as RAILWEAVE_NODE_ID gives them";
}

TEST(Failures, AreTheErrorsThatTheirCausesAre) {
  EXPECT_THROW(throw_failure({"rank 2 has died", 2}), RankDied);
  EXPECT_THROW(throw_failure({"message 5 was damaged", std::nullopt, true}), TransportError);
  try {
    throw_failure({"aborted on rank 1", std::nullopt});
  } catch (const RankDied&) {
    FAIL() << "nobody has died";
  } catch (const ExchangeError& error) {
    EXPECT_STREQ(error.what(), "aborted on rank 1");
  }
}

}  // namespace
}  // namespace railweave::cuda
