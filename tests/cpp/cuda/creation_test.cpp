// Making a communicator where the host refuses memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../allocations.hpp"
#include "communicator_ranks.hpp"

namespace {

using namespace railweave::cuda::test;
namespace allocations = railweave::testing::allocations;

struct Refusals {
  std::uint32_t world;  // each rank on a node of its own
  int most;
  int step;  // from one place to the next, in allocations
};

railweave_status create(
    std::uint32_t rank, std::uint32_t world, const std::string& address, const std::function<void()>& refuse = [] {}) {
  const std::string node = "node" + std::to_string(rank);
  const std::vector<railweave_setting> settings{{"node_id", node.c_str()}, {"gpu_virtual_memory", "0"}, {"gpu_nodes", "2"}, {"nics", "lo"}};
  const railweave_cuda_config config = config_of(rank, world, address, settings);
  railweave_cuda_communicator* made = nullptr;
  const railweave_cuda_api& api = *railweave_cuda_entry(RAILWEAVE_CUDA_VERSION);
  refuse();
  return api.create(&config, &made);
}

enum Outcome : int { kNotRefused, kWell, kWrong };

// Of rank 0. What it can do without (a sort's buffer) is no reason to fail.
Outcome create_without(const Refusals& refusals, int after, const std::string& address) {
  const auto refuse = [&] { allocations::refuse(::gettid(), after, refusals.most); };
  const railweave_status status = create(0, refusals.world, address, refuse);
  allocations::give_again();
  if (status == RAILWEAVE_OK) return allocations::refused() == 0 ? kNotRefused : kWell;
  // Without any memory there is no place for a text, either.
  const bool told = refusals.most != 1 || std::string(railweave_cuda_entry(RAILWEAVE_CUDA_VERSION)->last_error()) != "no error";
  return allocations::refused() != 0 && told ? kWell : kWrong;
}

class CreationOfCommunicator : public ::testing::TestWithParam<Refusals> {};

// At one place after the other.
TEST_P(CreationOfCommunicator, FailsWithAnErrorWithoutMemory) {
  const Refusals& refusals = GetParam();
  int after = 0;
  for (int outcome = kWell; outcome == kWell; after += refusals.step) {
    const Place place;
    std::vector<pid_t> others;
    for (std::uint32_t rank = 1; rank < refusals.world; ++rank)
      others.push_back(start([&] { return create(rank, refusals.world, place.address()) == RAILWEAVE_OK && ::pause() == 0; }));
    const pid_t own = ::fork();
    if (own == 0) ::_exit(create_without(refusals, after, place.address()));
    int status = 0;
    ASSERT_EQ(::waitpid(own, &status, 0), own);
    for (const pid_t other : others) {
      ::kill(other, SIGKILL);
      ::waitpid(other, nullptr, 0);
    }
    outcome = WIFEXITED(status) ? WEXITSTATUS(status) : kWrong;
    EXPECT_NE(outcome, kWrong) << "after " << after << " allocations: status " << status;
  }
  EXPECT_GT(after / refusals.step, 5);
}

// Once at any place, and from there on; and, more coarsely, beside rails.
INSTANTIATE_TEST_SUITE_P(Hosts, CreationOfCommunicator,
                         ::testing::Values(Refusals{1, 1, 1}, Refusals{1, INT_MAX, 1}, Refusals{2, 1, 101}, Refusals{2, INT_MAX, 101}));

}  // namespace
