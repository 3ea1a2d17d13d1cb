// Whole communicators over the stand-ins for CUDA's runtime and the kernels. Ranks are children of the test, as the library has handlers at
// their end.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "communicator.hpp"
#include "railweave/cuda.h"
#include "stand_in_runtime.hpp"

namespace railweave::cuda::test {

using namespace std::chrono_literals;

// What is waited for in vain where a test fails.
constexpr auto kPatience = 30s;

inline bool within_patience(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// A word from one process to another.
class Signal {
 public:
  Signal() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  void send() const { static_cast<void>(::write(ends_[1], "x", 1)); }
  bool is_there(std::chrono::milliseconds at_most = 0ms) const {
    pollfd poll{ends_[0], POLLIN, 0};
    return ::poll(&poll, 1, static_cast<int>(at_most.count())) == 1;
  }

 private:
  std::array<int, 2> ends_{};
};

using Rank = std::function<bool()>;  // whether all was as it should be

inline pid_t start(const Rank& rank) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  bool well = false;
  try {
    well = rank();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "a rank: %s\n", error.what());
  }
  ::_exit(well ? 0 : 1);
}

inline void expect_well(const std::vector<Rank>& ranks) {
  std::vector<pid_t> children;
  for (const Rank& rank : ranks) children.push_back(start(rank));
  for (std::size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[i], &status, 0), children[i]);
    EXPECT_EQ(status, 0) << "rank " << i;
  }
}

// A folder where ranks meet.
class Place {
 public:
  Place() {
    std::string name = (std::filesystem::temp_directory_path() / "placeXXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Place() { std::filesystem::remove_all(path_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  std::string address() const { return "file://" + path_.string(); }

 private:
  std::filesystem::path path_;
};

inline ExchangeSettings settings() {
  ExchangeSettings settings;
  settings.gpu_virtual_memory = 0;
  settings.node_id = "node";
  settings.drain_ms = 60'000;  // longer than kPatience: who waits for it is taken to wait for ever
  return settings;
}

inline std::unique_ptr<Communicator> make(std::uint32_t rank, std::uint32_t world, const std::string& address,
                                          const KernelBounds& bounds = {}, const ExchangeSettings& with = settings()) {
  const auto quiet = [](const std::string&) {};
  auto made = std::make_unique<Communicator>(rank, world, 0, with, bounds, quiet, quiet);
  made->begin(address);
  return made;
}

// The same through the interface that shims have.
inline const std::vector<railweave_setting> kSettings{{"node_id", "node"}, {"gpu_virtual_memory", "0"}};
inline railweave_cuda_config config_of(std::uint32_t rank, std::uint32_t world, const std::string& address,
                                       const std::vector<railweave_setting>& settings) {
  railweave_cuda_config config{};
  config.size = sizeof config;
  config.rank = rank;
  config.world = world;
  config.rendezvous = address.c_str();
  config.settings = settings.data();
  config.setting_count = settings.size();
  return config;
}

// For stand_in::event_query: what was recorded runs.
inline cudaError_t never_over() { return cudaErrorNotReady; }

// A message to itself. Nothing reads it.
inline void enqueue(Communicator& communicator, std::uint64_t bytes = 64, std::uintptr_t stream = 0) {
  static std::array<std::byte, 128> data{};
  const std::array transfers{Transfer{&communicator, Direction::send, communicator.rank(), data.data(), bytes},
                             Transfer{&communicator, Direction::receive, communicator.rank(), data.data() + 64, bytes}};
  const std::array streams{reinterpret_cast<cudaStream_t>(stream)};
  Communicator::enqueue(transfers, streams);
}

}  // namespace railweave::cuda::test
