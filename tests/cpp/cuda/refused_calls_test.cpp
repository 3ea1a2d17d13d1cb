// What is left of a communicator, and of others beside it, where CUDA or the host refuses it something, or the process ends.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "../allocations.hpp"
#include "../threads.hpp"
#include "communicator_ranks.hpp"
#include "device.hpp"
#include "railweave/engine/error.hpp"

namespace {

using namespace railweave;
using namespace railweave::cuda;
using namespace railweave::cuda::test;
using namespace std::chrono_literals;
namespace allocations = railweave::testing::allocations;

// What making a rank fails with; empty: it does not.
std::string failure_of(std::uint32_t rank, std::uint32_t world, const std::string& address, const ExchangeSettings& with = settings()) {
  try {
    make(rank, world, address, {}, with)->abort();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

ExchangeSettings of_two_nodes(std::uint32_t rank) {
  ExchangeSettings of_two = settings();
  of_two.node_id = rank == 0 ? "node" : "other";
  of_two.gpu_nodes = 2;
  of_two.nics = "lo";
  return of_two;
}

TEST(CreationOfCommunicator, AllRanksHearWhatOneLacks) {
  const Place place;
  const auto hears = [&](std::uint32_t rank) {
    if (rank == 1) stand_in::refuses = "cudaMalloc";
    const std::string failure = failure_of(rank, 3, place.address());
    return failure.find("rank 1: ") != std::string::npos && failure.find("allocating") != std::string::npos;
  };
  expect_well({[&] { return hears(0); }, [&] { return hears(1); }, [&] { return hears(2); }});
}

TEST(CreationOfCommunicator, MemoryThatCannotBeClearedIsFreed) {
  const Place place;
  expect_well({[&] {
    ExchangeSettings checked = settings();
    checked.checksum = 1;
    stand_in::refuses = "cudaMemsetAsync";
    return !failure_of(0, 1, place.address(), checked).empty() && stand_in::allocations == 0;
  }});
}

// As to free memory waits for every kernel of the device, of which one may wait for what the program does next.
TEST(CreationOfCommunicator, WhatFailsFreesNothingBesideOperationsOfOthers) {
  const Place place, own_place;
  const auto creates = [&](std::uint32_t rank) {
    const std::string address = place.address();
    const railweave_cuda_config config = config_of(rank, 2, address, kSettings);
    railweave_cuda_communicator* made = nullptr;
    return railweave_cuda_entry(RAILWEAVE_CUDA_VERSION)->create(&config, &made) == RAILWEAVE_OK;
  };
  expect_well({[&] {
                 const auto other = make(0, 1, own_place.address());
                 stand_in::event_query = never_over;
                 enqueue(*other);
                 const int before = stand_in::allocations;
                 const bool failed = !creates(0);
                 const bool kept = stand_in::frees == 0 && stand_in::allocations > before;
                 stand_in::event_query = nullptr;
                 const bool freed = within_patience([&] { return stand_in::allocations == before; });
                 other->end();
                 return failed && kept && freed;
               },
               [&] {
                 stand_in::refuses = "cudaMalloc";
                 return !creates(1);
               }});
}

// Memory to receive into that mates cannot map either.
TEST(StagingOfCommunicator, ThatIsOfNoUseIsNotFreedBesideOperations) {
  const Place place;
  const Signal seen;
  expect_well({[&] {
                 const auto own = make(0, 2, place.address());
                 static std::array<std::byte, 1024> data{};
                 stand_in::allocation = data.data();
                 stand_in::event_query = never_over;
                 enqueue(*own);
                 const int before = stand_in::allocations;
                 own->register_buffer(data.data(), data.size());
                 const bool provided = within_patience([&] { return stand_in::allocations > before; });
                 std::this_thread::sleep_for(100ms);  // the thread that provides it goes on
                 const bool kept = stand_in::frees == 0;
                 stand_in::event_query = nullptr;
                 const bool freed = within_patience([&] { return stand_in::allocations == before; });
                 seen.send();
                 own->end();
                 return provided && kept && freed;
               },
               [&] {
                 const auto own = make(1, 2, place.address());
                 const bool well = seen.is_there(kPatience);
                 own->end();
                 return well;
               }});
}

TEST(DeviceOfAThread, IsItsOwnAgainWhereACallIsRefused) {
  expect_well({[] {
    stand_in::refuses = "cudaThreadExchangeStreamCaptureMode";
    try {
      const DeviceScope scope(0);
      return false;
    } catch (const DeviceError&) {
      return !stand_in::has_context();
    }
  }});
}

// What was launched runs, and what follows would not wait for it.
TEST(OperationOfCommunicator, BehindWhoseLaunchTheHostHasNoMemoryEndsIt) {
  const Place place;
  expect_well({[&] {
    const auto own = make(0, 1, place.address());
    stand_in::record_throws = true;
    bool told = false;
    try {
      enqueue(*own);
    } catch (const std::bad_alloc&) {
      told = own->failure().has_value();
    }
    own->end();
    return told;
  }});
}

// Whether that of its threads, which is refused memory from now on, ends the communicator.
bool ends_without_memory(const Communicator& communicator, const char* thread, const std::function<void()>& give_work) {
  allocations::refuse(railweave::testing::thread_named(thread), 0, INT_MAX);
  give_work();
  const bool ended = within_patience([&] { return communicator.failure().has_value(); });
  allocations::give_again();
  return ended && communicator.failure()->text == "out of memory";
}

TEST(ThreadsOfCommunicator, WithoutMemoryEndItAndNotTheProcess) {
  const Place places[2];
  expect_well({[&] {
                 const auto own = make(0, 1, places[0].address());
                 const bool told = ends_without_memory(*own, "rw-mapper", [&] { own->counters(); });
                 own->end();
                 return told;
               },
               [&] {
                 const auto own = make(0, 1, places[1].address());
                 enqueue(*own);
                 const bool told = ends_without_memory(*own, "rw-watcher", [] {
                   std::atomic_ref(stand_in::host_view.load()->error).store(static_cast<std::uint32_t>(KernelError::bad_record));
                 });
                 own->end();
                 return told;
               }});
}

TEST(ThreadsOfCommunicator, AnEngineWithoutMemoryEndsIt) {
  const Place place;
  const Signal ended;
  expect_well({[&] {
                 const auto own = make(0, 2, place.address(), {}, of_two_nodes(0));
                 const bool told = ends_without_memory(*own, "rw-engine", [] {});
                 ended.send();
                 own->end();
                 return told;
               },
               [&] {
                 make(1, 2, place.address(), {}, of_two_nodes(1)).release();  // its end would wait for the other node's death
                 return ended.is_there(kPatience);
               }});
}

// As CUDA's own handlers run, behind the library's.
void take_away_and_leave() {
  stand_in::take_pinned_memory_away();
  std::this_thread::sleep_for(100ms);  // many looks of any thread
  ::_exit(0);
}

TEST(EndOfProcess, LeavesNothingToThreadsBehindAnOperationThatRuns) {
  const Place place;
  expect_well({[&] {
    std::atexit(take_away_and_leave);
    const auto own = make(0, 1, place.address());
    stand_in::event_query = never_over;
    enqueue(*own);
    std::exit(1);
    return false;
  }});
}

TEST(EndOfProcess, LeavesNothingToEngines) {
  const Place place;
  const auto ends = [&](std::uint32_t rank) {
    std::atexit(take_away_and_leave);
    const auto own = make(rank, 2, place.address(), {}, of_two_nodes(rank));
    std::exit(1);
    return false;
  };
  expect_well({[&] { return ends(0); }, [&] { return ends(1); }});
}

railweave_cuda_communicator* kept = nullptr;

void destroy_late() {
  stand_in::take_pinned_memory_away();
  const railweave_cuda_api& api = *railweave_cuda_entry(RAILWEAVE_CUDA_VERSION);
  api.drain(kept);
  api.abort(kept);
  api.destroy(kept);
  ::_exit(0);
}

// As static objects are, of programs that keep communicators there.
TEST(EndOfProcess, ACommunicatorThatIsDestroyedBehindItIsLeftAlone) {
  const Place place;
  expect_well({[&] {
    std::atexit(destroy_late);
    const std::string address = place.address();
    const railweave_cuda_config config = config_of(0, 1, address, kSettings);
    if (railweave_cuda_entry(RAILWEAVE_CUDA_VERSION)->create(&config, &kept) != RAILWEAVE_OK) return false;
    std::exit(1);
  }});
}

}  // namespace
