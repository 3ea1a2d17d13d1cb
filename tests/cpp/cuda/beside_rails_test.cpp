// One operation with messages inside the node and over rails, of a communicator each: it is stopped as a whole.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "gpu_node.hpp"
#include "rail_roles.hpp"

namespace railweave::cuda {
namespace {

class BesideRails : public testing::Test {
 protected:
  BesideRails() {
    near_ledger.ports = here.get();
    near_ledger.mates = 1;
    Message& near = messages[0];
    near.local = here.get();
    near.remote = there.get();
    near.data = data.data();
    near.bytes = data.size();
    near.host = &near_host;
    near.ledger = &near_ledger;
    near.piece_bytes = 1024;
    near.grant_after = kNone;
    near.direction = Direction::send;
    near.path = Path::granted;
    near.last_block = 1;
    near.reports = near.last_of_pair = true;
    Message& far = messages[1];
    far.rail = {port.get(), &counts};
    far.data = data.data();
    far.bytes = data.size();
    far.host = &far_host;
    far.ledger = &far_ledger;
    far.path = Path::rail;
    far.direction = Direction::receive;
    far.reports = true;
    far.piece_bytes = 1;  // message of its communicator
    far.ordinal = kNotStaged;
  }

  // What its host does when a communicator has failed.
  static void watch(HostView& host) {
    while (std::atomic_ref(host.error).load() == 0) std::this_thread::yield();
    std::atomic_ref(host.stop).store(kLeave);
  }

  // The send is never granted, and what comes over rails never ends; one communicator is aborted once the kernel has begun.
  void abort(HostView& aborted, HostView& other) {
    std::jthread running([&] {
      HostBlock block(0, 1, 1, 0);
      block.make_room(1);
      const OperationHeader header{.state = &state, .timeout_ns = 3600'000'000'000, .count = 1, .rails = 1};
      RailRoles<HostBlock> rails(block, rail_part(header, messages));
      Roles<HostBlock, true> near(block, whole_part(header, messages));
      run_beside_rails(block, rails, near, true);
    });
    while (std::atomic_ref(counts.listed).load() == 0) std::this_thread::yield();
    const std::jthread watching([&] { watch(other); });
    std::atomic_ref(aborted.stop).store(kLeave);
    running.join();
    EXPECT_EQ(aborted.error, static_cast<std::uint32_t>(KernelError::aborted));
    EXPECT_EQ(other.error, static_cast<std::uint32_t>(KernelError::aborted));
    for (const Ledger* ledger : {&near_ledger, &far_ledger}) {
      for (const Account& account : ledger->accounts) EXPECT_EQ(account.totals.completed, 0u);
    }
    for (const PartState& part : state.parts) EXPECT_EQ(part.left + part.stopped, 0u);
  }

  const std::unique_ptr<Port> here = std::make_unique<Port>(), there = std::make_unique<Port>();
  const std::unique_ptr<RailPort> port = std::make_unique<RailPort>();
  Bytes data = Bytes(100'000);
  HostView near_host{}, far_host{};
  Ledger near_ledger{}, far_ledger{};
  RailCounts counts{};
  OperationState state{};
  Message messages[2] = {};
};

TEST_F(BesideRails, AnAbortInsideTheNodeEndsWhatGoesOverRails) { abort(near_host, far_host); }

TEST_F(BesideRails, AnAbortOverRailsEndsWhatStaysInsideTheNode) { abort(far_host, near_host); }

}  // namespace
}  // namespace railweave::cuda
