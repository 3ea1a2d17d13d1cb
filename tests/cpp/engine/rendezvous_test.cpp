// How ranks meet, whatever else happens to their processes.
#include "rendezvous.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "job.hpp"
#include "shared_memory.hpp"

namespace railweave::test {
namespace {

using namespace std::chrono_literals;

sockaddr_in loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  return address;
}

// Nobody else's until the program ends; rank 0 can listen there.
sockaddr_in free_place() {
  static std::vector<engine::Fd> held;
  const engine::Fd& socket = held.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in any = loopback();
  socklen_t size = sizeof any;
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), size), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&any), &size), 0);
  return any;
}
std::string address_of(const sockaddr_in& place) { return "tcp://127.0.0.1:" + std::to_string(::ntohs(place.sin_port)); }

// Takes connections and says nothing.
class Silent {
 public:
  Silent() {
    socklen_t size = sizeof place_;
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&place_), size), 0);
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&place_), &size), 0);
    EXPECT_EQ(::listen(socket_.get(), 1), 0);
  }
  std::string address() const { return address_of(place_); }

 private:
  engine::Fd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in place_ = loopback();
};

template <typename F>
std::string failure_of(F&& f) {
  try {
    f();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Ranks of a run that has ended may have other numbers in the next one, which begins while the last of them is still tidying up.
TEST(FileRendezvous, TheEndOfARunLeavesTheNextOneItsFiles) {
  const ScratchDirectory directory;
  std::ofstream(directory.path() / "notes") << "the user's";
  std::ofstream(directory.path() / "railweave-7-last.0") << "of a run that died";
  const auto meet = [&](std::uint32_t rank) { return engine::make_rendezvous(directory.rendezvous(), rank, 2, 20s); };
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(directory.path()), {}); };
  const auto zero = meet(0), one = meet(1);
  std::thread other([&] { one->all_gather("last", {}); });
  zero->all_gather("last", {});
  other.join();
  one->finish();
  const auto before = files();
  std::string failure;
  std::thread next([&] {
    failure = failure_of([&] {
      const auto rendezvous = meet(0);
      rendezvous->all_gather("first", {});
      rendezvous->finish();
    });
  });
  for (int tries = 0; tries < 10'000 && files() == before; ++tries) std::this_thread::sleep_for(1ms);
  zero->finish();
  try {
    const auto rendezvous = meet(1);
    rendezvous->all_gather("first", {});
    rendezvous->finish();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  next.join();
  EXPECT_EQ(failure, "");
  EXPECT_EQ(files(), 1) << "the user's";
}

struct Interrupted {};
Interruption at_once() {
  return [] { throw Interrupted(); };
}

// Whatever it waits for: others to say hello, rank 0's answer.
TEST(Rendezvous, PortsThatCannotBeAreRefused) {
  for (const std::string port : {"0", "65536", "99999", "123456789012345678901"}) {
    try {
      engine::make_rendezvous("tcp://127.0.0.1:" + port, 0, 1, 1s);
      ADD_FAILURE() << port;
    } catch (const BootstrapError& error) {
      EXPECT_EQ(std::string(error.what()), "rendezvous 'tcp://127.0.0.1:" + port + "': port " + port + "; expected 1 to 65535");
    }
  }
}

TEST(FileRendezvous, AnInterruptedRankLeavesNothing) {
  const ScratchDirectory directory;
  std::ofstream(directory.path() / "notes") << "the user's";
  for (const std::uint32_t rank : {0u, 1u}) {
    const auto rendezvous = engine::make_rendezvous(directory.rendezvous(), rank, 2, 60s, at_once());
    EXPECT_THROW(rendezvous->all_gather("first", {}), Interrupted);
  }
  const std::filesystem::directory_iterator files(directory.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST(FileRendezvous, AnInterruptedRankKeepsOthersFromNothing) {
  const ScratchDirectory directory;
  const auto ours = [&](std::uint32_t rank, Interruption interruption) {
    return engine::make_rendezvous(directory.rendezvous(), rank, 2, 20s, std::move(interruption));
  };
  const auto gone = ours(1, at_once());
  EXPECT_THROW(gone->all_gather("first", {}), Interrupted);
  std::string failure;
  std::thread zero([&] {
    failure = failure_of([&] {
      const auto rendezvous = ours(0, {});
      rendezvous->all_gather("first", {});
      rendezvous->finish();
    });
  });
  // Started again, it is taken for the one that is to come.
  failure_of([&] {
    const auto again = ours(1, {});
    again->all_gather("first", {});
    again->finish();
  });
  zero.join();
  EXPECT_EQ(failure, "");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// The others may never say that they have read the last round.
TEST(FileRendezvous, AnInterruptedEndLeavesNothing) {
  const ScratchDirectory directory;
  bool interrupted = false;
  const auto one = engine::make_rendezvous(directory.rendezvous(), 1, 2, 20s);
  const auto zero = engine::make_rendezvous(directory.rendezvous(), 0, 2, 20s, [&] {
    if (interrupted) throw Interrupted();
  });
  std::thread other([&] { one->all_gather("last", {}); });
  zero->all_gather("last", {});
  other.join();
  interrupted = true;
  EXPECT_THROW(zero->finish(), Interrupted);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(TcpRendezvous, AnInterruptionEndsTheWait) {
  const Silent silent;
  EXPECT_THROW(engine::make_rendezvous(address_of(free_place()), 0, 2, 60s, at_once()), Interrupted);  // for others to connect
  EXPECT_THROW(engine::make_rendezvous(address_of(free_place()), 1, 2, 60s, at_once()), Interrupted);  // for somebody to listen
  bool interrupted = false;
  const auto one = engine::make_rendezvous(silent.address(), 1, 2, 60s, [&] {
    if (interrupted) throw Interrupted();
  });
  interrupted = true;
  EXPECT_THROW(one->all_gather("first", {}), Interrupted);  // for the others' blobs
}

// While rank 0 waits for rank 2 to connect, and for the blob of rank 1, the first that it takes.
TEST(TcpRendezvous, ARankThatGoesAwayIsNamedLongBeforeTheLimit) {
  const std::string address = address_of(free_place());
  std::string failure;
  const auto meet = [&] { failure = failure_of([&] { engine::make_rendezvous(address, 0, 3, 600s)->all_gather("first", {}); }); };
  std::thread zero(meet);
  engine::make_rendezvous(address, 1, 3, 60s);
  zero.join();
  EXPECT_TRUE(failure.starts_with("rank 1 closed its connection before all ranks had gone through 'connect'")) << failure;
  zero = std::thread(meet);
  const auto one = engine::make_rendezvous(address, 1, 3, 60s);
  engine::make_rendezvous(address, 2, 3, 60s);
  zero.join();
  EXPECT_TRUE(failure.starts_with("rank 2 closed its connection before all ranks had gone through ")) << failure;
  // Rank 0 has ended with that, which is not a lack of time either.
  failure = failure_of([&] { one->all_gather("first", {}); });
  EXPECT_TRUE(failure.starts_with("rank 0 closed its connection before all ranks had gone through 'first'")) << failure;
}

TEST(TcpRendezvous, ARankThatSaysNothingIsLate) {
  const Silent silent;
  const std::string failure = failure_of([&] { engine::make_rendezvous(silent.address(), 1, 2, 50ms)->all_gather("first", {}); });
  EXPECT_TRUE(failure.starts_with("rank 0 did not reach 'first' within 50 ms")) << failure;
}

// Profilers, timers and children of the program send them.
TEST(TcpRendezvous, SignalsDoNotEndTheWaitForOthers) {
  struct sigaction noted {
  }, before{};
  noted.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &noted, &before), 0);
  const std::string address = address_of(free_place());
  std::atomic<bool> over{false};
  std::string failure;
  std::thread waits([&] {
    failure = failure_of([&] { engine::make_rendezvous(address, 0, 2, 60s)->all_gather("first", {}); });
    over.store(true);
  });
  const auto disturb = [&](int times) {
    for (int i = 0; i < times && !over.load(); ++i) {
      ::pthread_kill(waits.native_handle(), SIGUSR1);
      std::this_thread::sleep_for(1ms);
    }
  };
  disturb(50);  // while it waits for a connection
  if (!over.load()) {
    const auto other = engine::make_rendezvous(address, 1, 2, 60s);
    disturb(50);  // for what it says
    other->all_gather("first", {});
  }
  waits.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(failure, "");
}

// Probes of a port, say.
TEST(TcpRendezvous, StrangersKeepNobodyWaitingAndEndNothing) {
  const sockaddr_in place = free_place();
  std::string failure;
  std::thread first(
      [&] { failure = failure_of([&] { engine::make_rendezvous(address_of(place), 0, 2, 20s)->all_gather("first", engine::Blob(1)); }); });
  std::vector<engine::Fd> strangers;
  for (const std::string_view text : {std::string_view(""), std::string_view("?"), std::string_view("GET / HTTP/1.1\r\n"),
                                      std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16)}) {
    const engine::Fd& stranger = strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto comes = [&] { return ::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0; };
    for (int tries = 0; tries < 10'000 && !comes(); ++tries) std::this_thread::sleep_for(1ms);
    ::send(stranger.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  try {
    const auto blobs = engine::make_rendezvous(address_of(place), 1, 2, 20s)->all_gather("first", engine::Blob(3));
    EXPECT_EQ(blobs, (std::vector{engine::Blob(1), engine::Blob(3)}));
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  first.join();
  EXPECT_EQ(failure, "");
}

// Where nobody listens yet, a connection whose own port is the one that it goes to meets itself: with few ports to draw, soon.
TEST(TcpRendezvous, ARankThatMeetsItselfGoesOnLookingForRank0) {
  std::string failure;
  bool alone = false;
  std::thread one([&] {
    if (::unshare(CLONE_NEWNET) != 0) return;
    const engine::Fd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq lo{};
    std::strcpy(lo.ifr_name, "lo");
    lo.ifr_flags = IFF_UP;
    if (::ioctl(any.get(), SIOCSIFFLAGS, &lo) != 0) return;
    std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
    alone = (range << "40000 40005" << std::flush).good();
    if (alone) failure = failure_of([&] { engine::make_rendezvous("tcp://127.0.0.1:40002", 1, 2, 2s); });
  });
  one.join();
  if (!alone) GTEST_SKIP() << "no network namespace can be made here";
  EXPECT_TRUE(failure.starts_with("rank 0 did not reach 'connect to tcp://127.0.0.1:40002' within 2000 ms")) << failure;
}

// The name may come: a cluster's name service learns it when rank 0's host starts.
TEST(TcpRendezvous, ANameThatNobodyKnowsIsAskedForUntilTheLimit) {
  const std::string address = "tcp://rank-0.invalid:40003";
  int asked = 0;
  const auto second_time = [&] {
    if (++asked == 2) throw Interrupted();
  };
  EXPECT_THROW(engine::make_rendezvous(address, 1, 2, 600s, second_time), Interrupted);
  const std::string failure = failure_of([&] { engine::make_rendezvous(address, 1, 2, 1ms); });
  EXPECT_TRUE(failure.starts_with("rendezvous tcp://rank-0.invalid:40003: ")) << failure;
}

// Another world, or one who is there already.
TEST(TcpRendezvous, ARankThatDoesNotBelongIsNamed) {
  const sockaddr_in place = free_place();
  std::string failure;
  std::thread first([&] { failure = failure_of([&] { engine::make_rendezvous(address_of(place), 0, 3, 60s); }); });
  EXPECT_NO_THROW(engine::make_rendezvous(address_of(place), 1, 4, 60s));
  first.join();
  EXPECT_NE(failure.find("a process came as rank 1 of 4; expected each rank from 1 to 2 of 3 once"), std::string::npos) << failure;
}

}  // namespace
}  // namespace railweave::test
