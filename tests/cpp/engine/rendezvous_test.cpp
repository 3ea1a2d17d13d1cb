// How ranks meet, whatever else happens to their processes.
#include "rendezvous.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "shared_memory.hpp"

namespace railweave::test {
namespace {

using namespace std::chrono_literals;

std::string free_address() {
  const engine::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof any;
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), size), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&any), &size), 0);
  return "tcp://127.0.0.1:" + std::to_string(::ntohs(any.sin_port));
}

// Profilers, timers and children of the program send them.
TEST(TcpRendezvous, SignalsDoNotEndTheWaitForOthers) {
  struct sigaction noted {
  }, before{};
  noted.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &noted, &before), 0);
  const std::string address = free_address();
  std::atomic<bool> over{false};
  std::string failure;
  std::thread waits([&] {
    try {
      engine::make_rendezvous(address, 0, 2, 60s)->all_gather("first", {});
    } catch (const std::exception& error) {
      failure = error.what();
    }
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

}  // namespace
}  // namespace railweave::test
