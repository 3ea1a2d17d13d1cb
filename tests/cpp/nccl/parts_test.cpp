// The shim's parts on their own: the decision, the launches of a group, the unique id, settings, stalls.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <thread>

#include "../../../src/nccl/agreement.hpp"
#include "../../../src/nccl/background.hpp"
#include "../../../src/nccl/ctas.hpp"
#include "../../../src/nccl/group.hpp"
#include "../../../src/nccl/hub.hpp"
#include "../../../src/nccl/log.hpp"
#include "../../../src/nccl/metrics.hpp"
#include "../../../src/nccl/settings.hpp"
#include "../../../src/nccl/unique_id.hpp"
#include "../../../src/nccl/watch.hpp"
#include "railweave/engine/settings.hpp"

namespace railweave::nccl {
namespace {

std::string facts(const std::string& refusal = "", std::uint32_t abi = 1, std::uint32_t version = kAgreementVersion,
                  std::uint32_t most_blocks = 0) {
  Facts said;
  said.version = version;
  said.device_abi = abi;
  said.refusal = refusal;
  said.rendezvous = "tcp://10.0.0.1:5000";
  said.most_blocks = most_blocks;
  return encode(said);
}

struct Decision {
  const char* name;
  std::vector<std::string> blobs;
  bool served;
  const char* reason;
  Cause cause = Cause::refused;
};

TEST(Agreement, Table) {
  const std::vector<Decision> table{
      {"all can", {facts(), facts(), facts()}, true, ""},
      {"one cannot", {facts(), facts("no driver"), facts()}, false, "rank 1: no driver"},
      {"the first names the reason", {facts(), facts("a"), facts("b")}, false, "rank 1: a"},
      {"other device library",
       {facts(), facts("", 2)},
       false,
       "rank 1 has a device library of version 2, rank 0 of version 1",
       Cause::versions},
      {"other protocol",
       {facts(), facts("", 1, 9)},
       false,
       "rank 1 speaks version 9 of the shim's protocol, rank 0 version 3",
       Cause::versions},
      {"no library", {facts(), facts("no device library: x.so")}, false, "rank 1: no device library: x.so", Cause::no_device_library},
      {"garbage", {facts(), std::string("\x03\0\0\0xyz", 7)}, false, "rank 1: its facts cannot be read"},
      {"nothing", {facts(), ""}, false, "rank 1 speaks version 0 of the shim's protocol, rank 0 version 3", Cause::versions},
  };
  for (const Decision& decision : table) {
    const Verdict verdict = decide(decision.blobs);
    EXPECT_EQ(verdict.served, decision.served) << decision.name;
    EXPECT_EQ(verdict.reason, decision.reason) << decision.name;
    if (!decision.served) {
      EXPECT_STREQ(word_of(verdict.cause), word_of(decision.cause)) << decision.name;
    }
    EXPECT_EQ(verdict.rendezvous, decision.served ? "tcp://10.0.0.1:5000" : "") << decision.name;
  }
}

TEST(Agreement, TheFewestBlocksThatARankAllowsCountForAll) {
  const auto decided = [](std::initializer_list<std::uint32_t> ranks) {
    std::vector<std::string> blobs;
    for (const std::uint32_t most : ranks) blobs.push_back(facts("", 1, kAgreementVersion, most));
    return decide(blobs).most_blocks;
  };
  EXPECT_EQ(decided({0, 0, 0}), 0u);
  EXPECT_EQ(decided({0, 8, 0}), 8u);
  EXPECT_EQ(decided({16, 0, 4, 8}), 4u);
}

HubAddress own_hub_at(std::uint8_t host, std::uint16_t port) {
  HubAddress address;
  address.family = AF_INET;
  address.port = port;
  address.host = {10, 0, 0, host};
  return address;
}

// Rank 1 has no hub; `keeper` has its communicator's.
MeetingPlaces places(int keeper) {
  std::vector<std::string> blobs;
  for (int rank = 0; rank < 4; ++rank) {
    Facts said;
    if (rank != 1) said.stand_by = own_hub_at(static_cast<std::uint8_t>(rank), 5000);
    said.keeps_hub = rank == keeper;
    blobs.push_back(encode(said));
  }
  return MeetingPlaces(blobs);
}

TEST(Agreement, ChildrenMeetWhereSomebodyOfTheirsAnswers) {
  HubAddress hub = own_hub_at(0, 4000);
  hub.nonce = {1, 2, 3};
  const auto port_and_host = [&](const MeetingPlaces& known, std::vector<int> excluded) {
    const HubAddress place = known.without(excluded, hub);
    EXPECT_EQ(place.nonce, hub.nonce);
    return std::pair(place.port, int{place.host[3]});
  };
  EXPECT_EQ(port_and_host(places(0), {}), std::pair(std::uint16_t{4000}, 0)) << "its keeper is there";
  EXPECT_EQ(port_and_host(places(0), {2, 3}), std::pair(std::uint16_t{4000}, 0));
  EXPECT_EQ(port_and_host(places(0), {0}), std::pair(std::uint16_t{5000}, 2)) << "rank 1 has none";
  EXPECT_EQ(port_and_host(places(0), {2, 0}), std::pair(std::uint16_t{5000}, 3));
  EXPECT_EQ(port_and_host(places(0), {0, 2, 3}), std::pair(std::uint16_t{4000}, 0)) << "nobody has one";
  EXPECT_EQ(port_and_host(places(-1), {}), std::pair(std::uint16_t{5000}, 0)) << "its keeper was never one of them";
  EXPECT_EQ(port_and_host(MeetingPlaces(), {0}), std::pair(std::uint16_t{4000}, 0)) << "nobody said anything";
}

std::map<std::string, std::string> variables;

TEST(Ctas, AsManyAsNcclTakesForMessages) {
  constexpr int kNone = kConfigUndefined;
  const struct {
    Ctas configured;
    std::map<std::string, std::string> variables;
    std::uint32_t most;
  } table[] = {
      {{}, {}, 0},
      {{kNone, 4}, {}, 4},
      {{2, kNone}, {}, 0},
      {{}, {{"NCCL_MAX_CTAS", "8"}}, 8},
      {{kNone, 4}, {{"NCCL_MAX_CTAS", "8"}}, 8},  // overrides
      {{kNone, 4}, {{"NCCL_MAX_CTAS", "0"}}, 4},
      {{kNone, 4}, {{"NCCL_MAX_CTAS", ""}}, 4},
      {{}, {{"NCCL_MAX_NCHANNELS", "6"}}, 6},
      {{}, {{"NCCL_MAX_NCHANNELS", "0"}}, 1},
      {{}, {{"NCCL_MAX_NCHANNELS", "-2"}}, 0},
      {{kNone, 4}, {{"NCCL_MAX_NCHANNELS", "0x10"}}, 4},
      {{}, {{"NCCL_MAX_P2P_NCHANNELS", "2"}}, 2},
      {{}, {{"NCCL_MAX_P2P_NCHANNELS", "two"}}, 1},
      {{}, {{"NCCL_MAX_P2P_NCHANNELS", "99999999999999999999"}}, 0},
      {{kNone, 4}, {{"NCCL_MAX_P2P_NCHANNELS", "2"}}, 2},
      {{kNone, 4}, {{"NCCL_MIN_NCHANNELS", "8"}}, 8},
      {{kNone, 4}, {{"NCCL_MIN_P2P_NCHANNELS", "32"}}, 32},
      {{}, {{"NCCL_MIN_P2P_NCHANNELS", "32"}}, 0},
      {{6, kNone}, {{"NCCL_MAX_NCHANNELS", "2"}}, 6},
      {{}, {{"NCCL_MAX_NCHANNELS", "2"}, {"NCCL_MIN_CTAS", "3"}}, 3},
      {{kNone, 4}, {{"NCCL_MIN_CTAS", "9"}}, 4},  // the most wins
      {{kNone, 16}, {{"NCCL_MIN_NCHANNELS", "24"}, {"NCCL_MAX_P2P_NCHANNELS", "8"}}, 8},
  };
  for (const auto& each : table) {
    variables = each.variables;
    const auto lookup = [](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    };
    EXPECT_EQ(most_for_messages(each.configured, lookup), each.most) << &each - table;
  }
}

TEST(Ctas, OfAConfigurationAsFarAsItGoes) {
  ncclConfigHead config{sizeof config, 0xcafebeef, 22005, 1, 4, 2, 8};
  const auto is = [&](const Ctas& ctas, int least, int most) { return ctas.least == least && ctas.most == most; };
  EXPECT_TRUE(is(ctas_of(&config, {1, 3}), 2, 8));
  EXPECT_TRUE(is(ctas_of(nullptr, {1, 3}), 1, 3));
  config.version = 21602;
  EXPECT_TRUE(is(ctas_of(&config, {1, 3}), kConfigUndefined, kConfigUndefined));
  config.version = 22005;
  config.size = offsetof(ncclConfigHead, max_ctas);
  EXPECT_TRUE(is(ctas_of(&config, {1, 3}), kConfigUndefined, kConfigUndefined));
}

// Truncated facts never read past their end and never count as consent.
TEST(Agreement, AnyPrefixOfFactsIsARefusal) {
  const std::string whole = facts();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::vector<std::string> blobs{whole, whole.substr(0, length)};
    EXPECT_FALSE(decide(blobs).served) << length;
  }
}

// Who says what it lacks itself counts before those that only know of it, or waited for it.
TEST(Agreement, TheRankThatLacksSomethingIsNamed) {
  const struct {
    std::vector<std::string> refusals;
    std::string reason;
    Cause cause = Cause::set_up_failed;
  } table[] = {
      {{"", "", ""}, ""},
      {{"", "no memory", ""}, "rank 1: no memory"},
      {{"no memory", "no thread", ""}, "rank 0: no memory"},
      {{"rank 1: no memory", "no memory", "rank 1: no memory"}, "rank 1: no memory"},
      {{"rank 1: no memory", "rank 1: no memory", "rank 1: no memory"}, "rank 1: no memory"},
      {{"ranks 1, 2 did not come", "rank 0 has gone", "rank 2 cannot connect"}, "rank 2 cannot connect"},
      {{"rank 10 has gone", "rank 10 has gone", "rank 0 has gone"}, "rank 10 has gone"},
      {{"it spans 2 nodes, and so on", "it spans 2 nodes, and so on"}, "rank 0: it spans 2 nodes, and so on", Cause::several_nodes},
  };
  for (const auto& [refusals, reason, cause] : table) {
    const Verdict verdict = decide_made(refusals);
    EXPECT_EQ(verdict.served, reason.empty()) << reason;
    EXPECT_EQ(verdict.reason, reason);
    if (!verdict.served) {
      EXPECT_STREQ(word_of(verdict.cause), word_of(cause)) << reason;
    }
  }
  EXPECT_FALSE(is_own(1, "rank 10 has gone"));
  EXPECT_TRUE(is_own(10, "rank 10 cannot connect"));
}

CommunicatorPointer communicator() { return std::make_shared<Communicator>(nullptr, Origin{}); }
cudaStream_t stream(std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); }
Message message(const CommunicatorPointer& on, std::uintptr_t stream_number) {
  return {on.get(), RAILWEAVE_CUDA_SEND, 1, nullptr, 8, stream(stream_number)};
}

TEST(Group, ConnectedMessagesAreOneLaunch) {
  const auto a = communicator(), b = communicator(), c = communicator();
  EXPECT_EQ(launches({}), (std::vector<std::size_t>{}));
  EXPECT_EQ(launches({message(a, 1), message(a, 2)}), (std::vector<std::size_t>{0, 0})) << "one communicator, two streams";
  EXPECT_EQ(launches({message(a, 1), message(b, 1)}), (std::vector<std::size_t>{0, 0})) << "two communicators, one stream";
  EXPECT_EQ(launches({message(a, 1), message(b, 2)}), (std::vector<std::size_t>{0, 1})) << "nothing in common";
  EXPECT_EQ(launches({message(a, 1), message(b, 2), message(c, 3), message(b, 1)}), (std::vector<std::size_t>{0, 0, 1, 0}))
      << "joined by a later message";
}

TEST(Group, MessagesToOneselfComeInPairs) {
  const auto on = communicator();  // rank 0
  const auto self = [&](railweave_cuda_kind kind, std::uint64_t bytes) { return Message{on.get(), kind, 0, nullptr, bytes, nullptr}; };
  EXPECT_EQ(check_self_messages({self(RAILWEAVE_CUDA_SEND, 8), self(RAILWEAVE_CUDA_RECV, 8)}), "");
  EXPECT_EQ(check_self_messages(
                {self(RAILWEAVE_CUDA_RECV, 8), self(RAILWEAVE_CUDA_RECV, 9), self(RAILWEAVE_CUDA_SEND, 8), self(RAILWEAVE_CUDA_SEND, 9)}),
            "");
  EXPECT_EQ(check_self_messages({message(on, 1)}), "") << "to another rank";
  EXPECT_NE(check_self_messages({self(RAILWEAVE_CUDA_SEND, 8)}), "");
  EXPECT_NE(check_self_messages({self(RAILWEAVE_CUDA_SEND, 8), self(RAILWEAVE_CUDA_RECV, 9)}), "");
}

TEST(Communicator, ChildrenHaveNamesThatTheirRanksShare) {
  const auto one = communicator(), two = communicator();
  EXPECT_EQ(one->split(3, true).name, two->split(3, true).name);
  EXPECT_NE(one->split(3, true).name, two->split(4, true).name) << "colours are apart";
  EXPECT_NE(one->split(3, true).name, one->split(3, true).name) << "and so are calls";
  // Rank 5 is not in the first shrink, so it does not count it.
  one->shrink({5}, true);
  EXPECT_EQ(one->shrink({2, 1}, true).name, two->shrink({1, 2}, true).name);
}

// Who has the communicator's unique id knows the same.
TEST(Communicator, LargerOnesHaveNamesThatTravelInTheirIds) {
  Origin origin;
  origin.hub = own_hub_at(1, 4000);
  origin.hub->nonce = {1, 2, 3};
  origin.name = name_of(*origin.hub);
  const auto one = std::make_shared<Communicator>(nullptr, origin), two = std::make_shared<Communicator>(nullptr, origin);
  const Origin larger = one->larger(true);
  ncclUniqueId id{};
  ASSERT_TRUE(write_hub(id, *larger.hub));
  EXPECT_EQ(read_hub(id), larger.hub);
  EXPECT_EQ(name_of(*read_hub(id)), larger.name);
  EXPECT_EQ(two->larger(true).name, larger.name);
  EXPECT_NE(larger.name, origin.name);
  one->has_grown();
  EXPECT_NE(one->larger(true).name, larger.name) << "the next one";
  EXPECT_EQ(one->larger(true).hub->nonce, origin.hub->nonce) << "by which its hub knows it";
  origin.one_process = true;
  EXPECT_FALSE(std::make_shared<Communicator>(nullptr, origin)->larger(true).hub) << "nobody who comes reaches that";
}

TEST(Communicator, NamesStayShort) {
  Origin origin;
  origin.name = "0123456789abcdef";
  std::vector<int> most(2000);
  std::iota(most.begin(), most.end(), 100);
  const auto one = std::make_shared<Communicator>(nullptr, origin), two = std::make_shared<Communicator>(nullptr, origin);
  const std::string name = one->shrink(most, true).name;
  EXPECT_LT(name.size(), 64u);
  EXPECT_EQ(name.substr(0, 17), "0123456789abcdef/");
  EXPECT_EQ(two->shrink(most, true).name, name);
  EXPECT_NE(two->shrink(most, true).name, name) << "the next one";
  most.pop_back();
  EXPECT_NE(two->shrink(most, true).name, name);
}

TEST(UniqueId, TheHubTravelsInBytesThatNcclLeavesZero) {
  ncclUniqueId id{};
  EXPECT_FALSE(read_hub(id));
  HubAddress address;
  address.family = 2;
  address.port = 4711;
  address.host = {10, 1, 2, 3};
  address.nonce = {9, 8, 7};
  const ncclUniqueId before = id;
  ASSERT_TRUE(write_hub(id, address));
  EXPECT_EQ(std::memcmp(id.internal, before.internal, 64), 0);
  EXPECT_EQ(read_hub(id), address);
  EXPECT_FALSE(write_hub(id, address)) << "bytes in use are left alone";
}

ncclUniqueId id_of_nccl(const in6_addr& host, std::uint32_t scope) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_addr = host;
  six.sin6_scope_id = scope;
  ncclUniqueId id{};
  std::memcpy(id.internal + 8, &six, sizeof six);
  return id;
}

TEST(UniqueId, ALinkLocalHostKeepsItsInterface) {
  in6_addr host{};
  ASSERT_EQ(::inet_pton(AF_INET6, "fe80::1", &host), 1);
  ncclUniqueId id = id_of_nccl(host, 7);
  HubAddress address = *nccl_host(id);
  address.port = 4711;
  ASSERT_TRUE(write_hub(id, address));
  EXPECT_EQ(address.scope, 7u);
  EXPECT_EQ(read_hub(id), address);
}

bool is_usable(const sockaddr_in6& address) {
  const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool usable = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return usable;
}

TEST(Hub, IsReachedAtALinkLocalAddress) {
  ifaddrs* list = nullptr;
  ASSERT_EQ(::getifaddrs(&list), 0);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, ::freeifaddrs);
  const sockaddr_in6* local = nullptr;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const auto* const six = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (six != nullptr && six->sin6_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) local = six;
  }
  if (local == nullptr || !is_usable(*local)) GTEST_SKIP() << "no interface has a link-local address that can be used";
  Hub hub;
  ncclUniqueId id = id_of_nccl(local->sin6_addr, local->sin6_scope_id);
  HubAddress address = *nccl_host(id);
  address.port = hub.port();
  ASSERT_TRUE(write_hub(id, address));
  const std::atomic<bool> never{false};
  HubClient client(*read_hub(id), never);
  ASSERT_TRUE(client.connect(std::chrono::steady_clock::now() + std::chrono::milliseconds(5000)));
  EXPECT_NE(host_of(client.local()).find("%" + std::to_string(local->sin6_scope_id) + "]"), std::string::npos) << host_of(client.local());
}

const char* variable(const char* name) {
  const std::string text = name;
  if (text == "RAILWEAVE_SHIM") return "off";
  if (text == "RAILWEAVE_SHIM_WAIT_MS") return "12x";
  if (text == "RAILWEAVE_LOG") return "loud";
  if (text == "RAILWEAVE_STALL_MS") return "250";
  return nullptr;
}

TEST(Settings, WhatCannotBeReadKeepsItsDefault) {
  std::string errors;
  const Settings read = read_settings(variable, errors);
  EXPECT_FALSE(read.shim);
  EXPECT_EQ(read.stall_ms, 250u);
  EXPECT_EQ(read.shim_wait_ms, Settings{}.shim_wait_ms);
  EXPECT_EQ(read.log, Settings{}.log);
  EXPECT_EQ(errors,
            "RAILWEAVE_SHIM_WAIT_MS='12x'; expected a number from 0 to 3600000, the default is used\n"
            "RAILWEAVE_LOG='loud'; expected off, warn, info or debug, the default is used\n");
}

TEST(Settings, LevelsOfTheLogMayBeInCapitalsAsThoseOfNcclDebug) {
  EXPECT_EQ(log_level("INFO"), LogLevel::info);
  EXPECT_EQ(log_level("Debug"), LogLevel::debug);
  EXPECT_EQ(log_level("inf"), std::nullopt);
  EXPECT_EQ(log_level("information"), std::nullopt);
}

TEST(Settings, TheSwitchIsOffUnlessItIsSurelyOn) {
  static const char* given = nullptr;
  for (const char* on : {"on", "1", "true", "YES", "On", ""}) {
    given = on;
    std::string errors;
    EXPECT_TRUE(read_settings([](const char* name) { return name == std::string("RAILWEAVE_SHIM") ? given : nullptr; }, errors).shim) << on;
    EXPECT_EQ(errors, "");
  }
  for (const char* off : {"off", "0", "false", "no", "OFF", "disable", "onn"}) {
    given = off;
    std::string errors;
    EXPECT_FALSE(read_settings([](const char* name) { return name == std::string("RAILWEAVE_SHIM") ? given : nullptr; }, errors).shim)
        << off;
    const bool readable = std::string(off).size() < 6 && std::string(off) != "onn";
    EXPECT_EQ(errors, readable ? "" : "RAILWEAVE_SHIM='" + std::string(off) + "'; expected on or off: off is taken\n");
  }
}

TEST(Settings, TheDocumentHasTheTable) {
  std::ifstream file(DOCUMENT);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find(settings_markdown()), std::string::npos) << "docs/settings.md should have:\n" << settings_markdown();
}

TEST(Settings, VariablesThatNothingReadsAreFound) {
  const char* const environment[] = {
      "RAILWEAVE_STALL_MS=1", "RAILWEAVE_STAL_MS=1", "RAILWEAVE_GPU_NODES=2", "RAILWEAVE_", "STALL=1", "RAILWEAVE_SHIMM", nullptr};
  EXPECT_EQ(unread_variables(environment), (std::vector<std::string>{"RAILWEAVE_STAL_MS", "RAILWEAVE_", "RAILWEAVE_SHIMM"}));
  EXPECT_TRUE(unread_variables(nullptr).empty());
}

TEST(Settings, VariablesOfTheEngineAreKnown) {
  std::set<std::string> engines;
  for (const railweave::Setting& setting : railweave::settings_table()) engines.insert(setting.environment());
  engines.insert("RAILWEAVE_LAB_PYTHON");  // python/railweave/lab/environment.py
  EXPECT_EQ(std::set<std::string>(other_variables().begin(), other_variables().end()), engines);
}

// Keeps counters while a thread writes them on and on, and ends as programs do.
[[noreturn]] void write_and_exit(const std::string& folder) {
  const Metrics metrics{{{"ab", 1, 2, 0, {}}}, {}};
  if (!write_metrics(folder, metrics) || std::filesystem::is_empty(folder)) std::_Exit(1);
  std::thread([folder, metrics] {
    for (;;) write_metrics(folder, metrics);
  }).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::exit(0);
}

// Nothing of a process that has ended is left for readers to take for one that stands still.
TEST(Metrics, TheFileEndsWithItsProcess) {
  std::string folder = (std::filesystem::temp_directory_path() / "metricsXXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string made = folder + "/made";
  EXPECT_EXIT(write_and_exit(made), testing::ExitedWithCode(0), "");
  EXPECT_TRUE(std::filesystem::is_directory(made)) << "made where it was missing";
  EXPECT_TRUE(std::filesystem::is_empty(made));
  std::filesystem::remove_all(folder);
}

// Tells by its exit status.
[[noreturn]] void write_to_a_full_file_system(const std::string& folder) {
  const rlimit none{16, 16};
  ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &none);
  const bool refused = !write_metrics(folder, {{{"ab", 1, 2, 0, {}}}, {}}) && errno == EFBIG;
  std::_Exit(refused ? 0 : 1);
}

TEST(Metrics, NothingIsLeftOfAFileThatDidNotFit) {
  std::string folder = (std::filesystem::temp_directory_path() / "metricsXXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  EXPECT_EXIT(write_to_a_full_file_system(folder), testing::ExitedWithCode(0), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(Metrics, AreInPrometheusTextFormat) {
  Metrics metrics{{{"ab", 1, 2, 0, {}}}, {}};
  Sample& sample = metrics.samples[0];
  sample.counters.enqueued = 4;
  sample.counters.completed = 3;
  sample.counters.bytes_by_kind[3] = 17;
  sample.nics = {{"mlx5_0", 11, 50, true, 4, 2, {"mlx5_0 of rank 8", "mlx5_1 of rank 9 (\"why\\)\n"}}, {"mlx5_1", 6, 50, false, 4, 0, {}}};
  sample.peers = {{0, 5, 0}, {1, 7, 9}};
  metrics.fates = {{"ab", 1, 2, "served", "", ""}, {"", 0, 1, "nccl", "one_rank", "it has one rank"}, {"", 0, 1, "nccl", "one_rank", ""}};
  const std::string text = metrics_text(metrics, {"n1", 4026531836, 7});
  const std::string labels = R"({host="n1",pid_namespace="4026531836",pid="7",communicator="ab",rank="1",world="2",device="0")";
  EXPECT_TRUE(
      text.starts_with("# HELP railweave_messages_enqueued_total Messages handed to Railweave.\n"
                       "# TYPE railweave_messages_enqueued_total counter\n"
                       "railweave_messages_enqueued_total" +
                       labels + "} 4\n"))
      << text;
  EXPECT_NE(text.find("railweave_messages_completed_total" + labels + "} 3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("railweave_path_bytes_total" + labels + ",path=\"rail\"} 17\n"), std::string::npos) << text;
  for (const std::string& line :
       {"railweave_nic_bytes_total" + labels + ",nic=\"mlx5_0\"} 11\n", "railweave_nic_bytes_total" + labels + ",nic=\"mlx5_1\"} 6\n",
        "railweave_nic_bytes_per_second" + labels + ",nic=\"mlx5_0\"} 50\n", "railweave_nic_links" + labels + ",nic=\"mlx5_0\"} 4\n",
        "railweave_nic_links_down" + labels + ",nic=\"mlx5_0\"} 2\n",
        "railweave_link_down" + labels + ",nic=\"mlx5_0\",peer=\"mlx5_0 of rank 8\"} 1\n",
        "railweave_link_down" + labels + ",nic=\"mlx5_0\",peer=\"mlx5_1 of rank 9 ('why/) \"} 1\n",
        "railweave_peer_bytes_total" + labels + ",peer=\"0\",direction=\"sent\"} 5\n",
        "railweave_peer_bytes_total" + labels + ",peer=\"0\",direction=\"received\"} 0\n",
        "railweave_peer_bytes_total" + labels + ",peer=\"1\",direction=\"received\"} 9\n",
        std::string("# TYPE railweave_communicators gauge\n"
                    "railweave_communicators{host=\"n1\",pid_namespace=\"4026531836\",pid=\"7\",state=\"nccl\",reason=\"one_rank\"} 2\n"
                    "railweave_communicators{host=\"n1\",pid_namespace=\"4026531836\",pid=\"7\",state=\"served\",reason=\"\"} 1\n"
                    "# communicator "
                    "{host=\"n1\",pid_namespace=\"4026531836\",pid=\"7\",communicator=\"\",rank=\"0\",world=\"1\",state=\"nccl\",reason="
                    "\"one_rank\","
                    "text=\"it has one rank\"}\n")})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(text.find("railweave_nic_links" + labels + ",nic=\"mlx5_1\""), std::string::npos) << "another rank tells of it";
  EXPECT_EQ(std::count(text.begin(), text.end(), '#'), 2 * 12 + 2) << text;
}

TEST(Metrics, BytesThatAreNoTextCostNobodyTheFile) {
  const Metrics metrics{{}, {{"", 0, 2, "nccl", "no_library", "no device library: /tmp/caf\xe9/\xe2\x80/l\xc3\xa4ngs\tx.so"}}};
  const std::string text = metrics_text(metrics, {"n1", 4026531836, 7});
  EXPECT_NE(text.find("text=\"no device library: /tmp/caf/xe9//xe2/x80/l\xc3\xa4ngs x.so\""), std::string::npos) << text;
}

// A program may go elsewhere before its counters are written. Settings are read once in a process, here and in no other test of this one.
TEST(Settings, AFolderForCountersIsTheOneThatTheJobBeganBeside) {
  const pid_t job = ::fork();
  if (job == 0) {
    ::setenv("RAILWEAVE_METRICS", "counters", 1);
    const std::filesystem::path began = std::filesystem::current_path();
    ::_exit(std::filesystem::path(settings().metrics) == began / "counters" ? 0 : 1);
  }
  int status = 1;
  EXPECT_EQ(::waitpid(job, &status, 0), job);
  EXPECT_EQ(status, 0);
}

TEST(Log, APipeThatNobodyReadsKeepsNoJobWaiting) {
  const std::string path = (std::filesystem::temp_directory_path() / ("log." + std::to_string(::getpid()))).string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const pid_t job = ::fork();
  if (job == 0) {
    ::alarm(60);
    open_log("info", path);  // says so on standard error
    ::_exit(0);
  }
  int status = 1;
  EXPECT_EQ(::waitpid(job, &status, 0), job);
  EXPECT_EQ(status, 0);
  std::filesystem::remove(path);
}

// Where a NIC is broken its links are as many as there are NICs elsewhere.
TEST(Metrics, OfManyLinksThatAreDownTheFirstAreNamed) {
  Metrics metrics{{{"ab", 1, 2, 0, {}, {{"mlx5_0", 0, 0, true, 100, 100, {}}}}}, {}};
  for (int rank = 0; rank < 100; ++rank) metrics.samples[0].nics[0].down.push_back("mlx5_0 of rank " + std::to_string(rank));
  const std::string text = metrics_text(metrics, {"n1", 4026531836, 7});
  EXPECT_NE(text.find("nic=\"mlx5_0\"} 100\n"), std::string::npos);
  EXPECT_NE(text.find("of rank 7\"} 1\n"), std::string::npos);
  EXPECT_EQ(text.find("of rank 8\"} 1\n"), std::string::npos);
}

TEST(Metrics, OfManyPeersThoseWithTheMostBytesAreShown) {
  Metrics metrics{{{"ab", 1, 2, 0, {}}}, {}};
  for (std::uint32_t peer = 0; peer < 200; ++peer) metrics.samples[0].peers.push_back({peer, peer % 2 * 1000 + peer, 1});
  metrics.samples[0].peers[4].received = 5000;
  const std::string text = metrics_text(metrics, {"n1", 4026531836, 7});
  const auto place = [&](int peer) { return text.find(",peer=\"" + std::to_string(peer) + "\",direction=\"sent\"}"); };
  std::size_t shown = 0;
  for (std::size_t at = text.find("direction=\"sent\""); at != std::string::npos; at = text.find("direction=\"sent\"", at + 1)) ++shown;
  EXPECT_EQ(shown, 64u);
  EXPECT_NE(place(4), std::string::npos) << "by both directions";
  EXPECT_EQ(place(73), std::string::npos);
  EXPECT_NE(place(75), std::string::npos);
  EXPECT_LT(place(4), place(75));
  EXPECT_LT(place(75), place(199)) << "by number";
}

// A stack larger than the address space: no thread can be had.
TEST(Background, WithoutAThreadTheTaskRunsAtOnce) {
  pthread_attr_t before, huge;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 47), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  bool ran = false;
  in_background([&] { ran = true; });
  EXPECT_TRUE(ran);
  std::string told;
  try {
    signal_free_thread([] {}).join();
  } catch (const std::system_error& error) {
    told = error.what();
  }
  EXPECT_NE(told.find("no thread (limits: "), std::string::npos) << told;
  ASSERT_EQ(::pthread_setattr_default_np(&before), 0);
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(::sigismember(&after, SIGTERM), ::sigismember(&now, SIGTERM)) << "signals come as before";
}

TEST(StallDetector, TellsEachStallOnceAndNeverAnIdleCommunicator) {
  StallDetector detector(std::chrono::milliseconds(100));
  const StallDetector::Clock::time_point start{};
  const auto at = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  EXPECT_FALSE(detector.stalled(1, true, at(0)));
  EXPECT_FALSE(detector.stalled(1, true, at(99)));
  EXPECT_TRUE(detector.stalled(1, true, at(100)));
  EXPECT_FALSE(detector.stalled(1, true, at(500))) << "told already";
  EXPECT_FALSE(detector.stalled(2, true, at(600))) << "it moved";
  EXPECT_TRUE(detector.stalled(2, true, at(700)));
  EXPECT_FALSE(detector.stalled(3, false, at(2000))) << "nothing is under way";
  EXPECT_FALSE(detector.stalled(3, true, at(2001)));
}

}  // namespace
}  // namespace railweave::nccl
