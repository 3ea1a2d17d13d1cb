// Programs with and without the shim: each scenario runs on the stand-in NCCL alone (so that it says what NCCL means), with the shim
// preloaded, and with the shim in NCCL's place.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "../../../src/engine/kept_calibration.hpp"

namespace {

namespace fs = std::filesystem;

enum class Mode { plain, preload, drop_in };

struct Outcome {
  int exit_code = -1;
  std::string log;
  std::string profile;  // what the stand-in profiler saw, of all ranks

  std::size_t count(const std::string& text) const { return times(log, text); }
  std::size_t profiled(const std::string& text) const { return times(profile, text); }

 private:
  static std::size_t times(const std::string& where, const std::string& text) {
    std::size_t found = 0;
    for (std::size_t at = where.find(text); at != std::string::npos; at = where.find(text, at + text.size())) ++found;
    return found;
  }
};

// A directory that ends with the test, short enough for socket names.
class Directory {
 public:
  Directory() {
    std::string name = (fs::temp_directory_path() / "shimXXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

// `words`: the program and its arguments, a shell's.
Outcome run_words(Mode mode, const Directory& directory, const std::string& words, const std::vector<std::string>& environment) {
  std::vector<std::string> variables{
      "TMPDIR=" + directory.path().string(), "RAILWEAVE_LOG=info", "RAILWEAVE_LOG_FILE=" + directory.path().string() + "/log.%p",
      "RAILWEAVE_CUDA_LIBRARY=" DEVICE_LIBRARY, "STAND_IN_PROFILER_FILE=" + directory.path().string() + "/profile",
      // What this machine was calibrated to is no test's matter.
      "XDG_RUNTIME_DIR=" + directory.path().string(),
      // Ranks of a loaded machine come late; nothing here waits for the end of these.
      "RAILWEAVE_SHIM_WAIT_MS=60000"};
  if (mode == Mode::preload) variables.push_back("LD_PRELOAD=" SANITIZER_RUNTIME SHIM);
  if (mode == Mode::drop_in) {
    variables.push_back("LD_LIBRARY_PATH=" DROP_IN);
    variables.push_back("RAILWEAVE_NCCL_LIBRARY=" STAND_IN);
  }
  variables.insert(variables.end(), environment.begin(), environment.end());
  std::string command = "env";
  for (const std::string& variable : variables) command += " " + quoted(variable);
  const int status = std::system((command + " " + words).c_str());
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("log.") && !name.starts_with("profile.")) continue;
    std::ifstream file(entry.path());
    (name.starts_with("log.") ? outcome.log : outcome.profile).append(std::istreambuf_iterator<char>(file), {});
  }
  return outcome;
}

Outcome run(Mode mode, const std::string& scenario, int ranks = 4, std::vector<std::string> environment = {},
            const std::string& options = "", const std::string& rank_wrapper = "") {
  const Directory directory;
  if (!rank_wrapper.empty()) environment.push_back("RANK_WRAPPER=" + rank_wrapper);
  return run_words(mode, directory,
                   quoted(PROGRAM) + " " + scenario + " " + std::to_string(ranks) + " " + quoted(directory.path()) + " " + options,
                   environment);
}

struct Case {
  const char* scenario;
  std::size_t served;  // ranks of communicators, all told, with four processes
};

void PrintTo(const Case& tested, std::ostream* out) { *out << tested.scenario; }

class Program : public testing::TestWithParam<Case> {};

TEST_P(Program, MeansTheSameOnPlainNccl) { EXPECT_EQ(run(Mode::plain, GetParam().scenario).exit_code, 0); }

TEST_P(Program, IsServedWithTheShimPreloaded) {
  const Outcome outcome = run(Mode::preload, GetParam().scenario);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), GetParam().served) << outcome.log;
}

TEST_P(Program, IsServedWithTheShimInPlaceOfNccl) {
  const Outcome outcome = run(Mode::drop_in, GetParam().scenario);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), GetParam().served) << outcome.log;
}

INSTANTIATE_TEST_SUITE_P(
    All, Program,
    testing::Values(Case{"alltoallv", 4}, Case{"many_messages", 4}, Case{"single_calls", 4}, Case{"nested_groups", 4},
                    Case{"two_streams", 4}, Case{"two_communicators", 8},
                    // the parent, two rounds of halves, and three ranks with a colour
                    Case{"split", 4 + 8 + 3}, Case{"shrink", 4 + 3}, Case{"child_refused", 4 + 4 + 3}, Case{"non_blocking", 4 + 4 + 3},
                    Case{"splits_of_two", 2 * (4 + 4)}, Case{"handed_on", 4}, Case{"destroyed_with_messages", 4},
                    Case{"destroyed_in_turn", 4 * 3}, Case{"one_process_that_splits", 4 * (3 + 3)}, Case{"blocking_by_variable", 4 + 4},
                    Case{"one_process_without_blocking", 4 * 3}, Case{"asked_all_the_time", 3 * 4}, Case{"failed_split", 4},
                    Case{"shrunk_by_abort", 4 + 3}, Case{"revoked", 4 + 4 + 3}, Case{"revoked_without_blocking", 4 + 4 + 3},
                    Case{"revoke_refused", 4}, Case{"grown", 3 + 2 * (4 + 4)}, Case{"several_ids", 4 + 4}, Case{"bounded_ctas", 4 * 4},
                    Case{"ended_by_a_child", 4}, Case{"ended_by_a_static_object", 8}, Case{"quick", 4 + 4}, Case{"lives", 13 * (4 + 4)},
                    Case{"finalized_late", 4}, Case{"finalized_twice", 4}, Case{"finalize_refused", 4 + 4}, Case{"mixed_group", 4},
                    Case{"mixed_group_later", 4}, Case{"all_to_all", 4}, Case{"all_to_all_config", 4}, Case{"graph", 4},
                    Case{"never_waits", 4}, Case{"abort_receive", 4}, Case{"rank_dies", 4}, Case{"wrong_calls", 4}, Case{"wrong_group", 4},
                    Case{"simulated", 4}, Case{"registered", 4}, Case{"windows", 4 + 4}, Case{"one_process", 4 * 3},
                    Case{"one_process_of_threads", 4 * (3 + 3)}, Case{"half_served", 4}, Case{"empty_messages", 4},
                    Case{"mixed_streams", 4}, Case{"mixed_streams_later", 4}, Case{"mixed_communicators", 8},
                    Case{"two_communicators_later", 8}, Case{"random_groups", 8}),
    [](const auto& tested) { return std::string(tested.param.scenario); });

TEST(Shim, MessagesFollowThoseThatAreLeftToNcclInTheirGroup) {
  for (const Mode mode : {Mode::plain, Mode::preload, Mode::drop_in}) {
    const Outcome outcome = run(mode, "half_served_later", 4, {"STAND_IN_LAUNCHES_LATER=1"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count(": served"), mode == Mode::plain ? 0u : 4u) << outcome.log;
  }
}

// Two groups with a collective on one stream and messages on another; rank 0 has no messages in the second.
TEST(Shim, StreamsOfCollectivesAreJoinedWhereTheMessagesAreOnOthers) {
  for (const auto& [scenario, joins] : {std::pair{"mixed_streams", 4u + 3u}, std::pair{"mixed_group", 0u}}) {
    const Outcome outcome = run(Mode::preload, scenario, 4, {"STAND_IN_TELLS_JOINS=1"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count("joins 2 streams"), joins) << outcome.log;
  }
}

TEST(Shim, EachOperationIsExplainedWhereThatIsLogged) {
  const Outcome quiet = run(Mode::preload, "mixed_streams", 4), told = run(Mode::preload, "mixed_streams", 4, {"RAILWEAVE_LOG=debug"});
  EXPECT_EQ(told.exit_code, 0) << told.log;
  EXPECT_EQ(quiet.count("in one launch"), 0u);
  const std::size_t launches = told.count("in one launch: by the host, of ");
  EXPECT_GE(launches, 4u) << told.log;
  EXPECT_EQ(launches, told.count("in one launch")) << told.log;
  EXPECT_GE(told.count(": no bytes; 2 streams wait for each other"), 1u) << "of rank 0, which has no messages in a group" << told.log;
}

// The others have to come within this time of each other, on a busy machine, too.
TEST(Shim, ARankWithoutItLeavesTheCommunicatorToNcclOnAllRanks) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 4, {"RAILWEAVE_SHIM_WAIT_MS=10000"}, "--bare 2");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 0u);
  EXPECT_EQ(outcome.count("left to NCCL: rank 2: no shim there, or too late (RAILWEAVE_SHIM_WAIT_MS=10000)"), 3u) << outcome.log;
  EXPECT_EQ(outcome.count("WARN"), 1u) << outcome.log;
}

TEST(Shim, AnIdMadeWithoutItIsLeftAtOnce) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 4, {}, "--bare 0");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(" a communicator (4 ranks, this is rank 3): left to NCCL: its unique id was made without the shim"), 1u);
  EXPECT_EQ(outcome.count("left to NCCL: its unique id was made without the shim"), 3u) << outcome.log;
}

// The one that fails is the killed one.
TEST(Shim, SurvivorsOfAKilledRankAreServedWithoutIt) {
  const Outcome outcome = run(Mode::preload, "survivors", 4, {"RAILWEAVE_DRAIN_MS=500"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 4u + 3u) << outcome.log;
}

// The killed one is the one whose process the ranks met in; a half that it was not in has a child, too.
TEST(Shim, SurvivorsOfTheRankThatTheyMetAtAreServedWithoutIt) {
  const Outcome outcome = run(Mode::preload, "survivors_of_the_first", 4, {"RAILWEAVE_DRAIN_MS=500"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 4u + 4u + 3u + 2u + 3u) << outcome.log;
}

TEST(Shim, WhoComesInTheirPlaceIsServedWithTheSurvivors) {
  const Outcome outcome = run(Mode::preload, "replaced", 4, {"RAILWEAVE_DRAIN_MS=500"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 3u + 2u + 3u) << outcome.log;
}

TEST(Shim, PartsOutliveTheProcessThatTheyMetAt) {
  const Outcome outcome = run(Mode::preload, "goes_after_split", 4, {"RAILWEAVE_DRAIN_MS=500"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 4u + 3u + 3u) << outcome.log;
}

TEST(Shim, SwitchedOffItDoesNothing) {
  for (const char* scenario : {"split", "untouched"}) {
    const Outcome outcome = run(Mode::preload, scenario, 4, {"RAILWEAVE_SHIM=off"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count("communicator"), 0u) << outcome.log;
  }
  EXPECT_NE(run(Mode::preload, "untouched").exit_code, 0) << "switched on it does something";
}

TEST(Shim, ADeviceThatIsRefusedLeavesAllRanksAndSaysWhoAndWhyOnce) {
  const Outcome outcome = run(Mode::preload, "one_process", 1, {"STAND_IN_REFUSES_DEVICE=2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 0u);
  EXPECT_EQ(outcome.count("left to NCCL: rank 2: device 2 is refused"), 3u) << outcome.log;
  EXPECT_EQ(outcome.count("WARN"), 1u) << outcome.log;
}

TEST(Shim, MemoryOfPoolsLeavesAllRanksToNcclAndSaysWhichVariable) {
  const Outcome outcome = run(Mode::preload, "split", 4, {"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64, backend:cudaMallocAsync"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 0u);
  EXPECT_GE(outcome.count("rank 0: its memory comes from CUDA's pools (PYTORCH_CUDA_ALLOC_CONF="), 1u) << outcome.log;
  EXPECT_GE(run(Mode::preload, "split", 4, {"PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:True"}).count(": served"), 1u);
}

// Whether it is served by then is a matter of luck.
TEST(Shim, ACommunicatorMayBeRevokedWhileItIsMade) {
  for (const Mode mode : {Mode::plain, Mode::preload, Mode::drop_in}) {
    const Outcome outcome = run(mode, "revoked_while_made");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  }
}

// A window that is not there when the call returns gives no hint.
TEST(Shim, RegisteredMemoryIsMappedAhead) {
  for (const char* scenario : {"registered", "windows"}) {
    const Outcome outcome = run(Mode::preload, scenario, 4, {"STAND_IN_TELLS_BUFFERS=1"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count("maps 100000 bytes ahead"), 4u) << outcome.log;
    EXPECT_EQ(outcome.count(" bytes ahead"), 4u) << outcome.log;
    EXPECT_EQ(outcome.count("forgets a buffer"), 4u) << outcome.log;
  }
}

TEST(Shim, AnEventOfAnAllToAllIsRefusedWhereItIsServed) {
  for (const Mode mode : {Mode::preload, Mode::drop_in}) {
    const Outcome outcome = run(mode, "completion_event");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count(": served"), 4u) << outcome.log;
  }
}

TEST(Shim, AnAllToAllInPlaceIsRefusedWhereItIsServed) {
  const Outcome outcome = run(Mode::preload, "all_to_all_in_place");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 4u) << outcome.log;
}

TEST(Shim, WhatTheDeviceLibraryDecidedIsLoggedWithItsCommunicator) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 4, {"STAND_IN_TELLS=a receive buffer is reached through slots"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(outcome.count("(4 ranks, this is rank " + std::to_string(rank) + "): a receive buffer is reached through slots"), 1u)
        << outcome.log;
}

// The rank that lacks them speaks for itself where it can, and is missed where it cannot even reach the others.
TEST(Shim, ARankWithoutDescriptorsLeavesTheCommunicatorToNcclOnAllRanks) {
  const Outcome none_for_a_port = run(Mode::preload, "descriptors", 4, {"DESCRIPTORS_LEFT=1"});
  EXPECT_EQ(none_for_a_port.exit_code, 0) << none_for_a_port.log;
  EXPECT_EQ(none_for_a_port.count(": served"), 4u) << none_for_a_port.log;
  EXPECT_EQ(none_for_a_port.count("left to NCCL: rank 0: no TCP port for the ranks to meet at: Too many open files"), 4u)
      << none_for_a_port.log;
  EXPECT_EQ(none_for_a_port.count("WARN"), 1u) << none_for_a_port.log;
  const Outcome none = run(Mode::preload, "descriptors", 4, {"DESCRIPTORS_LEFT=0", "RAILWEAVE_SHIM_WAIT_MS=10000"});
  EXPECT_EQ(none.exit_code, 0) << none.log;
  EXPECT_EQ(none.count(": served"), 4u) << none.log;
  EXPECT_EQ(none.count("left to NCCL: no socket to the process in which its ranks meet: Too many open files"), 1u) << none.log;
  EXPECT_EQ(none.count("left to NCCL: rank 0: no shim there, or too late"), 3u) << none.log;
}

TEST(Shim, AnotherLibraryInThePlaceOfTheDeviceLibraryIsNamed) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 2, {"RAILWEAVE_CUDA_LIBRARY=" STAND_IN});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("left to NCCL: rank 0: " STAND_IN " does not have version "), 2u) << outcome.log;
}

TEST(Shim, WithoutADeviceLibraryNcclServes) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 4, {"RAILWEAVE_CUDA_LIBRARY=/nowhere.so"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("left to NCCL: rank 0: no device library: /nowhere.so"), 4u) << outcome.log;
  EXPECT_EQ(outcome.count("; build one (make cuda) and set RAILWEAVE_CUDA_LIBRARY to it\n"), 4u) << outcome.log;
  EXPECT_EQ(outcome.count("WARN"), 1u) << outcome.log;
}

// As `cmake --install` lays them: the drop-in is a link into the folder above it.
TEST(Shim, InNcclsPlaceItFindsTheDeviceLibraryBesideTheFileThatItIs) {
  const Directory installed;
  const fs::path& folder = installed.path();
  fs::copy_file(SHIM, folder / "librailweave_nccl.so");
  fs::create_symlink(DEVICE_LIBRARY, folder / "librailweave_cuda.so");
  fs::create_directory(folder / "drop-in");
  fs::create_symlink("../librailweave_nccl.so", folder / "drop-in" / "libnccl.so.2");
  const Outcome outcome =
      run(Mode::drop_in, "alltoallv", 4, {"RAILWEAVE_CUDA_LIBRARY=", "LD_LIBRARY_PATH=" + (folder / "drop-in").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 4u) << outcome.log;
}

// No file is where it was loaded from by then, and nothing else says where NCCL is.
TEST(Shim, InNcclsPlaceByARelativePathItIsNotTakenForNccl) {
  const std::string libraries = fs::relative(DROP_IN).string() + ":" + fs::path(STAND_IN).parent_path().string();
  const Outcome outcome = run(Mode::drop_in, "elsewhere", 4, {"RAILWEAVE_NCCL_LIBRARY=", "LD_LIBRARY_PATH=" + libraries});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 4u) << outcome.log;
}

// --- Which NCCL is behind it

// nccl_loader with these libraries; another NCCL is on the search path.
Outcome load(Mode mode, int version, const std::vector<std::string>& libraries, std::vector<std::string> environment = {}) {
  const Directory directory;
  std::string words = quoted(LOADER) + " " + std::to_string(version);
  for (const std::string& library : libraries) words += " " + quoted(library);
  environment.push_back("LD_LIBRARY_PATH=" + fs::path(STAND_IN).parent_path().string());
  return run_words(mode, directory, words, environment);
}

TEST(RealNccl, IsTheOneInALibraryOfTheProgramsOrUnderAnotherName) {
  for (const auto& [user, where] : {std::pair{USER_WITH_NCCL, "libuser_with_nccl.so"}, {USER_OF_RENAMED, RENAMED}}) {
    EXPECT_EQ(load(Mode::plain, 21801, {user}).exit_code, 0);
    const Outcome outcome = load(Mode::preload, 21801, {user});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count(std::string(where) + ", which the program has loaded"), 1u) << outcome.log;
    EXPECT_EQ(outcome.count("WARN"), 0u) << outcome.log;
    EXPECT_EQ(load(Mode::preload, 21801, {user}, {"RAILWEAVE_SHIM=off"}).exit_code, 0);
  }
}

TEST(RealNccl, OfTwoIsTheFirstAndAWarningSaysSo) {
  const Outcome outcome = load(Mode::preload, 21801, {USER_OF_RENAMED, USER_WITH_NCCL});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("WARN NCCL is in "), 1u) << outcome.log;
}

TEST(RealNccl, ThatTheProgramHasLoadedByItsNameComesFirst) {
  const Outcome outcome = load(Mode::preload, 22005, {STAND_IN, USER_WITH_NCCL});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("WARN"), 0u) << outcome.log;
}

TEST(RealNccl, OnTheSearchPathIsTakenWithAWarning) {
  const Outcome outcome = load(Mode::preload, 22005, {USER_WITHOUT_NCCL});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("WARN the program has loaded no NCCL"), 1u) << outcome.log;
  const Outcome named = load(Mode::preload, 21801, {USER_WITHOUT_NCCL}, {std::string("RAILWEAVE_NCCL_LIBRARY=") + USER_WITH_NCCL});
  EXPECT_EQ(named.exit_code, 0) << named.log;
  EXPECT_EQ(named.count("WARN"), 0u) << named.log;
}

TEST(RealNccl, ThatIsNoneIsRefusedWithWhatWasExpected) {
  for (const auto& [named, why] :
       {std::pair{"/nowhere.so", "cannot open shared object file"}, {DEVICE_LIBRARY, "is no NCCL"}, {SHIM, "is the shim itself"}}) {
    const Outcome outcome = load(Mode::preload, 22005, {USER_WITHOUT_NCCL}, {std::string("RAILWEAVE_NCCL_LIBRARY=") + named});
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_EQ(outcome.count(std::string("WARN RAILWEAVE_NCCL_LIBRARY=") + named + ": "), 1u) << outcome.log;
    EXPECT_EQ(outcome.count(why), 1u) << outcome.log;
    EXPECT_EQ(outcome.count("; expected the real libnccl.so.2\n"), 1u) << outcome.log;
  }
}

TEST(Shim, AFinalizationThatAnotherThreadAbortsEnds) {
  for (const Mode mode : {Mode::preload, Mode::drop_in}) {
    const Outcome outcome = run(mode, "finalized_and_aborted");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count(": served"), 4u) << outcome.log;
  }
}

// Found at the device library's bootstrap, after all have agreed.
TEST(Shim, ADeviceSideThatCannotBeMadeLeavesAllRanks) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 4, {"RAILWEAVE_CHUNK_BYTES=1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("left to NCCL: rank 0: setting chunk_bytes"), 4u) << outcome.log;
}

// Each rank says it once, and why, whether the one that lacks memory could tell the others or not.
TEST(Shim, ARankWithoutMemoryForSlotsLeavesAllRanks) {
  for (const char* lacks : {"0 told", "1 told", "1 untold", "1 late"}) {
    const std::string rank(lacks, 1);
    const Outcome outcome =
        run(Mode::preload, "alltoallv", 4, {std::string("STAND_IN_LACKS_MEMORY=") + lacks, "RAILWEAVE_SHIM_WAIT_MS=10000"});
    EXPECT_EQ(outcome.exit_code, 0) << lacks << "\n" << outcome.log;
    EXPECT_EQ(outcome.count(": served"), 0u) << lacks << "\n" << outcome.log;
    for (int told = 0; told < 4; ++told) {
      const std::string who = "(4 ranks, this is rank " + std::to_string(told) + "): left to NCCL: ";
      EXPECT_EQ(outcome.count(who), 1u) << lacks << "\n" << outcome.log;
      EXPECT_EQ(outcome.count(who + "rank " + rank + ": allocating slots: out of memory\n"), 1u) << lacks << "\n" << outcome.log;
    }
    EXPECT_EQ(outcome.count("WARN"), 1u) << lacks << "\n" << outcome.log;
  }
}

// Ranks 1 and 3 are another node's. UCX reaches devices of RDMA, the engine's sockets network interfaces.
TEST(Shim, ANicThatIsNotThereLeavesAllRanks) {
  const std::string node = "env RAILWEAVE_NODE_ID=another ", of_rank_3 = node + "sh -c 'test $6 -ne 3 || export RAILWEAVE_NICS=";
  const struct {
    std::string nics, wrapper, reason;
  } cases[] = {{"mlx5_9:1", node, "rank 0: UCX "},
               {"lo", of_rank_3 + "mlx5_9:1; exec \"$@\"' sh", "rank 3: UCX "},
               {"lo", of_rank_3 + "eth99; exec \"$@\"' sh", "rank 3: network interface 'eth99': "}};
  EXPECT_EQ(run(Mode::preload, "alltoallv", 4, {"RAILWEAVE_NICS=lo"}, "", node).count(": served"), 4u);
  for (const auto& [nics, wrapper, reason] : cases) {
    // UCX writes over mmap's code to see calls of it, which the thread sanitizer does not survive.
    const Outcome outcome = run(Mode::preload, "alltoallv", 4, {"RAILWEAVE_NICS=" + nics, "UCX_MEM_MMAP_HOOK_MODE=none"}, "", wrapper);
    EXPECT_EQ(outcome.exit_code, 0) << wrapper << "\n" << outcome.log;
    EXPECT_EQ(outcome.count(": served"), 0u) << wrapper << "\n" << outcome.log;
    EXPECT_EQ(outcome.count(": left to NCCL: " + reason), 4u) << wrapper << "\n" << outcome.log;
    EXPECT_EQ(outcome.count("left to NCCL"), 4u) << wrapper << "\n" << outcome.log;
    EXPECT_EQ(outcome.count(reason.find("UCX") == std::string::npos ? "'eth99'" : "'mlx5_9:1'"), 4u) << wrapper << "\n" << outcome.log;
    EXPECT_EQ(outcome.count("WARN"), 1u) << wrapper << "\n" << outcome.log;
  }
}

// --- Counters

Outcome count_with(const std::vector<std::string>& environment, int ranks = 4) {
  const Directory metrics;
  std::vector<std::string> variables{"RAILWEAVE_METRICS=" + metrics.path().string()};
  variables.insert(variables.end(), environment.begin(), environment.end());
  Outcome outcome = run(Mode::preload, "counted", ranks, variables);
  EXPECT_TRUE(fs::is_empty(metrics.path())) << "left by a process that has ended";
  return outcome;
}

TEST(Shim, CountsWhatEachNicHasSentAndTellsOfLinksThatAreDown) {
  const Outcome outcome = count_with({"STAND_IN_NICS=3", "METRICS_WANTED=state=\"served\",reason=\"\"} 1",
                                      "METRICS_WANTED_1=,nic=\"mlx5_0\"} 16458\n"  // a third of what it has sent
                                      ",nic=\"mlx5_1\"} 50000000000\n,nic=\"mlx5_1\"} 4\n,nic=\"mlx5_1\",peer=\"mlx5_1 of rank 9\"} 1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
}

// Three rounds of skewed(). A device library of an older build does not tell, and serves all the same.
TEST(Shim, CountsWhatEachRankHasExchangedWithEachOther) {
  const std::string wanted =
      "METRICS_WANTED_1=,peer=\"0\",direction=\"sent\"} 12339\n,peer=\"0\",direction=\"received\"} 9000003\n"
      ",peer=\"1\",direction=\"sent\"} 12342\n,peer=\"1\",direction=\"received\"} 12342\n"
      ",peer=\"3\",direction=\"sent\"} 12348\n,peer=\"3\",direction=\"received\"} 12444";
  const std::string served = "METRICS_WANTED=state=\"served\",reason=\"\"} 1";
  const Outcome outcome = count_with({served, wanted});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  const Outcome old = count_with({"STAND_IN_OF_OLD=1", served + "\nrailweave_sent_bytes_total{", "METRICS_UNWANTED=,direction="});
  EXPECT_EQ(old.exit_code, 0) << old.log;
}

TEST(Shim, CountsCommunicatorsThatAreLeftToNcclByTheReason) {
  struct {
    std::string variable, wanted;
    int ranks;
  } const cases[] = {
      {"RAILWEAVE_CUDA_LIBRARY=/nowhere.so", "reason=\"no_device_library\",text=\"rank 0: no device library: /nowhere.so", 4},
      {"RAILWEAVE_CHUNK_BYTES=1", "reason=\"set_up_failed\",text=\"rank 0: setting chunk_bytes", 4},
      {"RAILWEAVE_STALL_MS=0", "reason=\"one_rank\",text=\"it has one rank\"}", 1}};
  for (const auto& [variable, wanted, ranks] : cases) {
    const std::string state = "state=\"nccl\",", counted = state + wanted.substr(0, wanted.find(',')) + "} 1";
    const Outcome outcome =
        count_with({variable, "METRICS_WANTED=" + state + wanted + "\n" + counted + "\nstate=\"served\",reason=\"\"} 0"}, ranks);
    EXPECT_EQ(outcome.exit_code, 0) << variable << outcome.log;
  }
}

// Of two ranks the wrapped one; the other hears of it long before its wait is over.
TEST(Shim, AVariableThatOneRankCannotReadLeavesAllRanksAndIsNamed) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 2, {}, "", "env RAILWEAVE_CHUNK_BYTES=1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("rank 1: setting chunk_bytes (RAILWEAVE_CHUNK_BYTES): '1'; expected"), 2u) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 0u) << outcome.log;
}

TEST(Shim, FunctionsThatNcclLacksGiveAnErrorWithText) {
  const Outcome outcome = run(Mode::preload, "missing_function");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("WARN ncclCommSuspend is not in this NCCL"), 4u) << "once a process: " << outcome.log;
}

TEST(Shim, AStallIsDescribedInTheLog) {
  for (const char* scenario : {"stall", "graph_stall"}) {
    const Outcome outcome = run(Mode::preload, scenario, 4, {"RAILWEAVE_STALL_MS=100", "RAILWEAVE_DRAIN_MS=300"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    for (int rank = 0; rank < 4; ++rank) {
      const std::string head = "(4 ranks, this is rank " + std::to_string(rank) + ") waits:";
      EXPECT_EQ(outcome.count(head), 1u) << outcome.log;
      EXPECT_EQ(outcome.count("receive from rank " + std::to_string(rank) + ", 100000 bytes"), 3u) << "by all others: " << outcome.log;
    }
    EXPECT_EQ(outcome.count("stalled for 100 ms: communicator "), 4u) << outcome.log;
  }
}

TEST(Shim, ALongStallIsDescribedWhole) {
  const Outcome outcome = run(Mode::preload, "long_stall", 2, {"RAILWEAVE_STALL_MS=100", "RAILWEAVE_DRAIN_MS=300"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(", 5000 bytes\n"), 2u * 3000);
}

TEST(Shim, ACommunicatorComesAndGoesWhileAnotherTakesItsTimeToAnswer) {
  const Outcome outcome = run(Mode::preload, "slow_answer", 2, {"RAILWEAVE_STALL_MS=100"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 2u * 2) << outcome.log;
}

TEST(Shim, WithoutMemoryForALookTheNextOneTellsOfTheStall) {
  const Outcome outcome = run(Mode::preload, "watched_without_memory", 2, {"RAILWEAVE_STALL_MS=100", "RAILWEAVE_DRAIN_MS=300"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("stalled for 100 ms: communicator "), 2u) << outcome.log;
}

// A command that gives the ranks other namespaces, as containers have them.
bool works(const std::string& command) { return std::system((command + " true >/dev/null 2>&1").c_str()) == 0; }

// Nothing of Railweave lies in /dev/shm.
TEST(Namespaces, RanksWithAPrivateDevShmAreServed) {
  const std::string wrapper = "unshare --mount sh -c 'mount -t tmpfs none /dev/shm && exec \"$@\"' sh";
  if (!works(wrapper)) GTEST_SKIP() << "needs root";
  const Outcome outcome = run(Mode::preload, "alltoallv", 4, {}, "", wrapper);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 4u) << outcome.log;
}

// What the shim does for it: nothing that it tells the others is good in its own namespace alone. The device library leaves it to NCCL
// unless told otherwise (tests/cpp/cuda/several_nodes_test.cpp); the one here serves several nodes without a question.
TEST(Namespaces, ARankInAnotherPidNamespaceMeetsTheOthers) {
  // unshare has the shim preloaded, too. Under the address sanitizer it would end with a search for leaks, by a process that it cannot
  // make when its namespace has ended.
  const std::string wrapper = "env LSAN_OPTIONS=detect_leaks=0 unshare --pid --fork --mount-proc --kill-child env -u LSAN_OPTIONS";
  if (!works(wrapper)) GTEST_SKIP() << "needs root";
  // UCX writes over mmap's code to see calls of it, which the thread sanitizer does not survive.
  const Outcome outcome = run(Mode::preload, "alltoallv", 4, {"RAILWEAVE_NICS=lo", "UCX_MEM_MMAP_HOOK_MODE=none"}, "", wrapper);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 4u) << outcome.log;
}

TEST(Shim, SettingsThatCannotBeReadAreNamedAndTheJobRuns) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 2, {"RAILWEAVE_STALL_MS=soon"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("RAILWEAVE_STALL_MS='soon'; expected a number"), 2u) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 2u) << outcome.log;
}

// What `railweave calibrate` keeps, in a runtime folder of the test's own.
class Calibration {
 public:
  explicit Calibration(const std::string& settings, const std::string& fingerprint = railweave::calibration_fingerprint(DEVICE_LIBRARY)) {
    const fs::path own = directory_.path() / ("railweave-" + std::to_string(::geteuid()));
    fs::create_directory(own);
    fs::permissions(own, fs::perms::owner_all);
    file_ = own / "calibration";
    std::ofstream(file_) << fingerprint << "\n" << settings << "\n{}\n";
  }
  std::string file() const { return file_.string(); }
  Outcome run(Mode mode, const std::string& scenario, std::vector<std::string> environment = {}) const {
    environment.push_back("XDG_RUNTIME_DIR=" + directory_.path().string());
    environment.push_back("STAND_IN_TELLS_SETTINGS=1");
    return ::run(mode, scenario, 4, environment);
  }

 private:
  Directory directory_;
  fs::path file_;
};

const char* const kMeasured = R"({"gpu_blocks": "8", "gpu_low_latency_bytes": "524288", "gpu_host_share": "118", "gpu_relays": "1"})";
const char* const kDefaults = "runs with 16 blocks, packets to 1048576, 0 over the host, relays 0";

TEST(Calibrated, APlainPreloadAndADropInFollowWhatIsKept) {
  const Calibration kept(kMeasured);
  for (const Mode mode : {Mode::preload, Mode::drop_in}) {
    const Outcome outcome = kept.run(mode, "two_communicators");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count("runs with 8 blocks, packets to 524288, 118 over the host, relays 1"), 8u) << outcome.log;
    EXPECT_EQ(outcome.count("as calibrated (" + kept.file() +
                            "): gpu_blocks 8, gpu_host_share 118, gpu_low_latency_bytes 524288, gpu_relays 1\n"),
              4u)
        << "once a process: " << outcome.log;
    EXPECT_EQ(outcome.count("WARN"), 0u) << outcome.log;
  }
}

TEST(Calibrated, AVariableCountsMore) {
  const Outcome outcome = Calibration(kMeasured).run(Mode::preload, "alltoallv", {"RAILWEAVE_GPU_BLOCKS=4", "RAILWEAVE_GPU_RELAYS="});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count("runs with 4 blocks, packets to 524288, 118 over the host, relays 1"), 4u) << outcome.log;
  EXPECT_EQ(outcome.count("gpu_relays 1; set otherwise: RAILWEAVE_GPU_BLOCKS=4\n"), 4u) << outcome.log;
}

// NCCL takes fewer CTAs for short messages since 2.29.2, and before 2.22.3.
TEST(Shim, KernelsHaveNoMoreBlocksThanThisNcclHasChannels) {
  for (const auto& [version, kib] : {std::pair{"22105", 64}, {"22203", 8}, {"22809", 8}, {"22902", 64}, {"23203", 64}}) {
    const Outcome outcome =
        run(Mode::preload, "two_communicators", 2, {"STAND_IN_TELLS_SETTINGS=1", std::string("STAND_IN_VERSION=") + version});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count(", channels of " + std::to_string(kib << 10) + " bytes"), 4u) << outcome.log;
    EXPECT_EQ(outcome.count("kernels have a block for each " + std::to_string(kib) + " KiB of a peer at most"), 4u) << outcome.log;
  }
}

TEST(Shim, KernelsHaveNoMoreBlocksThanTheProgramOrItsUserAllowsNccl) {
  const struct {
    std::vector<std::string> environment;
    std::map<int, std::size_t> blocks;  // ranks of communicators with so many
  } table[] = {
      {{}, {{6, 8}, {3, 4}, {0, 4}}},
      {{"NCCL_MAX_CTAS=5"}, {{5, 16}}},
      {{"NCCL_MAX_NCHANNELS=4"}, {{4, 12}, {3, 4}}},
      {{"NCCL_MAX_P2P_NCHANNELS=4"}, {{4, 12}, {3, 4}}},
      {{"NCCL_MAX_CTAS=5", "RAILWEAVE_GPU_BLOCKS=16"}, {{0, 16}}},
  };
  for (const auto& each : table) {
    std::vector<std::string> environment = each.environment;
    environment.push_back("STAND_IN_TELLS_SETTINGS=1");
    const Outcome outcome = run(Mode::preload, "bounded_ctas", 4, environment);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    for (const auto& [blocks, ranks] : each.blocks) {
      const std::string most = "at most " + std::to_string(blocks) + " blocks";
      EXPECT_EQ(outcome.count("bytes, " + most), ranks) << outcome.log;
      EXPECT_EQ(outcome.count("kernels have " + most), blocks == 0 ? 0 : ranks) << outcome.log;
    }
    EXPECT_EQ(outcome.count("kernels have a block for each"), environment.size() == 3 ? 0u : 16u) << "where RAILWEAVE_GPU_BLOCKS is set";
  }
}

TEST(Calibrated, WhereNothingIsKeptAProcessSaysOnceWhatIsOff) {
  if (fs::exists(std::string(railweave::kKeptForAll) + "/calibration")) GTEST_SKIP() << "this machine was calibrated for all users";
  const Outcome outcome = run(Mode::preload, "two_communicators", 4, {"STAND_IN_TELLS_SETTINGS=1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(kDefaults), 8u) << outcome.log;
  EXPECT_EQ(outcome.count(": not calibrated: gpu_host_share is 0 (no bytes over the host); run railweave calibrate\n"), 4u) << outcome.log;
  EXPECT_EQ(outcome.count("calibrat"), 2u * 4) << outcome.log;
  EXPECT_EQ(outcome.count("WARN"), 0u) << outcome.log;
  const Outcome set = run(Mode::preload, "alltoallv", 2, {"RAILWEAVE_GPU_HOST_SHARE=118"});
  EXPECT_EQ(set.count(": not calibrated: gpu_host_share is 118; run railweave calibrate\n"), 2u) << set.log;
}

TEST(Calibrated, ADamagedFileIsAWarningAProcessAndTheJobRuns) {
  const Calibration kept(R"({"gpu_blocks": "8", )");
  const Outcome outcome = kept.run(Mode::preload, "two_communicators");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(": served"), 8u) << outcome.log;
  EXPECT_EQ(outcome.count(kDefaults), 8u) << outcome.log;
  EXPECT_EQ(outcome.count("not as calibrated: " + kept.file() + ":2:"), 4u) << outcome.log;
  EXPECT_EQ(outcome.count("WARN"), 4u) << outcome.log;
}

TEST(Calibrated, AFileOfAnotherMachineIsNotFollowedAndNoWarning) {
  std::string there = railweave::calibration_fingerprint(DEVICE_LIBRARY);
  there.insert(there.find(';'), "0");  // the first is the boot's id
  const Calibration kept(kMeasured, there);
  const Outcome outcome = kept.run(Mode::preload, "two_communicators");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.count(kDefaults), 8u) << outcome.log;
  EXPECT_EQ(outcome.count("not as calibrated: " + kept.file() + " does not hold here (another boot)"), 4u) << outcome.log;
  EXPECT_EQ(outcome.count("WARN"), 0u) << outcome.log;
}

// 300,001 bytes are five chunks of 64 KiB; byte 140,000 is in the third.
TEST(Checksums, ABitThatChangedOnItsWayIsAnErrorThatNamesMessageAndChunk) {
  const Outcome outcome = run(Mode::preload, "damaged", 4, {"RAILWEAVE_CHECKSUM=1", "STAND_IN_FLIPS=1 0 5 140000"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(
      outcome.count(": message 5 from rank 0 (300001 bytes) was damaged on its way: chunk 2 of 5, bytes 131072 to 196607, is the first "
                    "whose checksum is not its sender's"),
      1u)
      << outcome.log;
}

TEST(Checksums, WhatArrivesAsItWasSentIsNoError) {
  for (const char* scenario : {"alltoallv", "random_groups", "graph", "two_communicators"}) {
    const Outcome outcome = run(Mode::preload, scenario, 4, {"RAILWEAVE_CHECKSUM=1"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(outcome.count("WARN"), 0u) << outcome.log;
  }
}

#ifdef PROFILER
// Each rank queues three groups: rank 0 sends 3,000,001 bytes to rank 1 and some 4 KiB to everybody, itself too.
TEST(Ranges, AProfilerSeesEachGroupInItsCommunicatorsDomain) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 4, {"NVTX_INJECTION64_PATH=" PROFILER});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.profiled("domain Railweave communicator "), 4u) << outcome.profile;
  EXPECT_EQ(outcome.profiled("(4 ranks, this is rank 2)\n"), 2u) << "made and destroyed: " << outcome.profile;
  EXPECT_EQ(outcome.profiled("push exchange"), 4u * 3) << outcome.profile;
  EXPECT_EQ(outcome.profiled("pop\n"), 4u * 3) << outcome.profile;
  const std::size_t sent = 4096 + 3'000'001 + (4096 + 2) + (4096 + 3), received = 4 * 4096 + 17 * (1 + 2 + 3);
  EXPECT_EQ(outcome.profiled("push exchange bytes sent=" + std::to_string(sent) + " bytes received=" + std::to_string(received) +
                             " messages=8 peers=4\n"),
            3u)
      << outcome.profile;
}

TEST(Ranges, AProfilerWithoutStructuresGetsTheBytesSent) {
  const Outcome outcome = run(Mode::preload, "alltoallv", 2, {"NVTX_INJECTION64_PATH=" PROFILER, "STAND_IN_PROFILER_READS_STRUCTURES=0"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.profiled("push exchange payload=" + std::to_string(4096 + 3'000'001) + "\n"), 3u) << outcome.profile;
}
#endif

}  // namespace
