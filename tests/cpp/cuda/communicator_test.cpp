// How communicators begin and end, and what they launch.
#include "communicator.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "communicator_ranks.hpp"
#include "fetch_roles.hpp"
#include "railweave/cuda.h"
#include "railweave/engine/error.hpp"
#include "stand_in_runtime.hpp"

namespace {

using namespace railweave;
using namespace railweave::cuda;
using namespace railweave::cuda::test;
using namespace std::chrono_literals;

// A rank, by default 1 of two, which does nothing. False: rank 0 has not done it.
bool stays_until(const Signal& seen, const std::string& address, std::uint32_t rank = 1, std::uint32_t world = 2) {
  const auto own = make(rank, world, address);
  const bool well = seen.is_there(kPatience);
  own->abort();
  own->end();
  return well;
}

void capture(Communicator& communicator) {
  stand_in::capturing = true;
  enqueue(communicator);
  stand_in::capturing = false;
}

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

std::uint32_t stop_word() { return std::atomic_ref(stand_in::host_view.load()->stop).load(); }

TEST(EndOfCommunicator, DrainingWaitsForNoOtherRank) {
  const Place place;
  const Signal drained;
  expect_well({[&] {
                 const auto own = make(0, 2, place.address());
                 own->drain();
                 drained.send();
                 own->end();
                 return true;
               },
               [&] {
                 const auto own = make(1, 2, place.address());
                 const bool well = drained.is_there(kPatience);
                 own->end();
                 return well;
               }});
}

// Two processes with two ranks each, which one thread drains and ends one after the other.
TEST(EndOfCommunicator, RanksOfAProcessAreDrainedAndEndedInTurn) {
  const Place place;
  const std::array<Signal, 2> ended;
  const auto process = [&](std::uint32_t number) {
    std::array<std::unique_ptr<Communicator>, 2> own;
    std::thread other([&] { own[1] = make(2 * number + 1, 4, place.address()); });
    own[0] = make(2 * number, 4, place.address());
    other.join();
    for (const auto& each : own) each->drain();
    for (const auto& each : own) each->end();
    ended[number].send();
    return true;
  };
  expect_well({[&] { return process(0); }, [&] { return process(1); },
               [&] { return ended[0].is_there(kPatience) && ended[1].is_there(kPatience); }});
}

TEST(EndOfCommunicator, ItsMemoryStaysUntilMatesHaveLeft) {
  const Place place;
  const Signal ending, leaving;
  expect_well({[&] {
                 const auto own = make(0, 2, place.address());
                 ending.send();
                 own->end();
                 return leaving.is_there();
               },
               [&] {
                 const auto own = make(1, 2, place.address());
                 const bool well = ending.is_there(kPatience);
                 leaving.send();
                 own->end();
                 return well;
               }});
}

// As the driver does where a copy to pageable memory is queued behind the operation: it answers when that has ended.
std::atomic<bool> ended_in_time = true;
cudaError_t answer_when_stopped() {
  if (!within_patience([] { return stop_word() != 0; })) ended_in_time = false;
  return cudaSuccess;
}

TEST(EndOfCommunicator, AnAbortStopsAReplayBeforeTheDriverAnswers) {
  const Place place;
  expect_well({[&] {
    const auto own = make(0, 1, place.address());
    capture(*own);
    stand_in::event_query = answer_when_stopped;
    own->abort();
    own->abort();
    own->end();
    return ended_in_time.load();
  }});
}

// The driver is given a moment to answer, which a busy machine may not have: then once more.
TEST(EndOfCommunicator, AnAbortBehindReplaysThatAreOverIsNoFailureOfItsMates) {
  expect_well({[] {
    return within_patience([] {
      const Place place;
      const auto own = make(0, 1, place.address());
      capture(*own);
      own->abort();
      const bool left = stop_word() == kLeave;  // at once, where kStop would come first
      own->end();
      return left;
    });
  }});
}

// No kernel tells its end.
TEST(EndOfCommunicator, AnAbortBehindAnOperationThatIsOverIsNoFailureOfItsMates) {
  expect_well({[] {
    return within_patience([] {
      const Place place;
      const auto own = make(0, 1, place.address());
      enqueue(*own);
      own->abort();
      const bool left = stop_word() == kLeave;
      own->end();
      return left;
    });
  }});
}

// An abort behind an operation that runs, or of which `how` says otherwise.
void expect_a_failure_of_its_mates(const std::function<void()>& how) {
  const Place place;
  const Signal told;
  expect_well({[&] {
                 const auto own = make(0, 2, place.address());
                 stand_in::event_query = never_over;
                 enqueue(*own);
                 how();
                 own->abort();
                 const bool well = told.is_there(kPatience);
                 stand_in::event_query = nullptr;
                 own->end();
                 return well;
               },
               [&] {
                 const auto own = make(1, 2, place.address());
                 const bool well = within_patience([&] { return own->failure().has_value(); });
                 told.send();
                 own->end();
                 return well;
               }});
}

TEST(EndOfCommunicator, AnAbortWhileAnOperationRunsIsAFailureOfItsMates) {
  expect_a_failure_of_its_mates([] {});
}

// Its event is over, too.
TEST(EndOfCommunicator, AnAbortBehindAnOperationThatWasGivenUpIsAFailureOfItsMates) {
  expect_a_failure_of_its_mates([] {
    std::atomic_ref(stand_in::host_view.load()->error).store(static_cast<std::uint32_t>(KernelError::timed_out));
    stand_in::event_query = nullptr;
  });
}

std::ptrdiff_t threads_of_the_program = 0;

// At the end of the process, before the library's own handler is registered, so behind it.
void leave_nothing_to_threads() {
  stand_in::take_pinned_memory_away();
  stand_in::holds_threads = false;
  ::_exit(within_patience([] { return stand_in::held_threads == 0 && threads() == threads_of_the_program; }) ? 0 : 1);
}

TEST(EndOfCommunicator, ItsThreadsLookAtNothingOnceTheProcessHasLeft) {
  const Place place;
  expect_well({[&] {
    std::thread([] {}).join();  // the thread sanitizer starts one of its own with the first
    threads_of_the_program = threads();
    std::atexit(leave_nothing_to_threads);
    stand_in::holds_threads = true;
    const auto own = make(0, 1, place.address());
    if (!within_patience([] { return stand_in::held_threads == 2; })) return false;
    std::exit(1);
  }});
}

TEST(BlocksOfCommunicator, AreNoMoreThanWhoMakesItAllows) {
  for (const std::uint32_t most : {0u, 1u, 2u, 3u, 7u, 64u}) {
    for (const std::uint64_t bytes : {64u, 1u << 20, 256u << 20}) {
      const Place place;
      expect_well({[&] {
        const auto own = make(0, 1, place.address(), {.most_blocks = most});
        enqueue(*own, bytes);
        const std::uint32_t blocks = stand_in::blocks;
        own->abort();
        own->end();
        return blocks >= 1 && (most == 0 ? bytes < 256u << 20 || blocks > 7 : blocks <= most);
      }});
    }
  }
}

// Of a message of 64 MiB to one peer. The stand-in's device is none whose rates are known.
TEST(BlocksOfCommunicator, FillTheLinkWhereRatesAreSaidAndBlocksAreNot) {
  struct Case {
    std::vector<railweave_setting> settings;
    std::uint32_t blocks, patience_ns;
  };
  const railweave_setting pair{"gpu_pair_rate", "183000"}, block{"gpu_block_rate", "28000"}, many{"gpu_blocks", "16"};
  for (const Case& c : {Case{{}, 16, kPatience_ns}, Case{{pair}, 16, 119}, Case{{block}, 16, kPatience_ns}, Case{{pair, block}, 8, 119},
                        Case{{pair, block, many}, 16, 119}}) {
    const Place place;
    const Signal seen;
    expect_well({[&] {
                   const std::string address = place.address();
                   const railweave_cuda_api& api = *railweave_cuda_entry(RAILWEAVE_CUDA_VERSION);
                   std::vector<railweave_setting> settings = kSettings;
                   settings.insert(settings.end(), c.settings.begin(), c.settings.end());
                   const railweave_cuda_config config = config_of(0, 2, address, settings);
                   railweave_cuda_communicator* own = nullptr;
                   if (api.create(&config, &own) != RAILWEAVE_OK) return false;
                   std::byte* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
                   stand_in::allocation = memory;
                   const railweave_cuda_transfer transfer{sizeof transfer, own, RAILWEAVE_CUDA_SEND, 1, memory, 64u << 20};
                   const railweave_cuda_stream stream = nullptr;
                   const bool queued = api.enqueue(&transfer, 1, &stream, 1) == RAILWEAVE_OK;
                   const bool well = stand_in::blocks == c.blocks && stand_in::header.patience_ns == c.patience_ns;
                   seen.send();
                   api.abort(own);
                   api.destroy(own);
                   return queued && well;
                 },
                 [&] { return stays_until(seen, place.address()); }});
  }
}

// As much to and from each peer, and that is much.
TEST(BlocksOfCommunicator, MayBeInStep) {
  const Place place;
  const Signal seen[2];
  expect_well({[&] {
                 std::byte* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
                 stand_in::allocation = memory;
                 stand_in::shareable = true;
                 const auto own = make(0, 3, place.address());
                 std::vector<Transfer> transfers;
                 for (const std::uint32_t peer : {1u, 2u}) {
                   for (const Direction way : {Direction::send, Direction::receive})
                     transfers.push_back({own.get(), way, peer, memory + (transfers.size() << 25), 32u << 20});
                 }
                 const std::array<cudaStream_t, 1> streams{nullptr};
                 Communicator::enqueue(transfers, streams);
                 const OperationHeader header = stand_in::header;
                 for (const Signal& each : seen) each.send();
                 own->abort();
                 own->end();
                 return header.in_step_blocks == stand_in::blocks && header.in_step_KiB == 32u << 10;
               },
               [&] { return stays_until(seen[0], place.address(), 1, 3); }, [&] { return stays_until(seen[1], place.address(), 2, 3); }});
}

// What a rank sends, or receives, with few blocks.
TEST(FewBlocksOfCommunicator, OfferWhatOtherProcessesMayMap) {
  struct Case {
    std::uint32_t most_blocks;
    Direction direction;
    bool shareable, fetched;
  };
  for (const Case& c : {Case{4, Direction::send, true, true}, Case{4, Direction::send, false, false},
                        Case{16, Direction::send, true, false}, Case{4, Direction::receive, true, true}}) {
    const Place place;
    const Signal seen;
    expect_well({[&] {
                   std::byte* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
                   stand_in::allocation = memory;
                   stand_in::shareable = c.shareable;
                   const auto own = make(0, 2, place.address(), {.most_blocks = c.most_blocks});
                   const std::array transfers{Transfer{own.get(), c.direction, 1, memory + 256, 64u << 20}};
                   const std::array<cudaStream_t, 1> streams{nullptr};
                   static std::string told;
                   told.clear();
                   Communicator::explain_to([](const char* text) { told += text; });
                   Communicator::enqueue(transfers, streams);
                   Communicator::explain_to(nullptr);
                   const std::string once = told;
                   Communicator::enqueue(transfers, streams);
                   const Message message = stand_in::first_message;
                   seen.send();
                   own->abort();
                   own->end();
                   const bool named = message.named.buffer > kAbsoluteBuffer && message.named.offset == 256;
                   const bool explained = told == once && told.find("; 64 MiB") != std::string::npos &&
                                          (told.find(", its second half ") != std::string::npos) == c.fetched;
                   return is_fetched(message) == c.fetched && (!c.fetched || named) && explained;
                 },
                 [&] { return stays_until(seen, place.address()); }});
  }
}

Communicator* other_rank = nullptr;
std::atomic<bool> other_queued = false;

#if CUDART_VERSION >= 12040
// Others that wait on the same part of the device find room beside it.
TEST(BlocksOfCommunicator, AreThoseOfTheStreamsPart) {
  for (const auto& [processors, most] : {std::pair{8u, 2u}, {16u, 4u}, {32u, 8u}, {64u, 16u}, {132u, 50u}}) {
    const Place place;
    expect_well({[&, processors = processors, most = most] {
      stand_in::part_processors = processors;
      const auto own = make(0, 1, place.address());
      enqueue(*own, 256u << 20);
      const std::uint32_t blocks = stand_in::blocks;
      own->abort();
      own->end();
      return blocks >= 1 && blocks <= most && (most > 16 || blocks == most);
    }});
  }
}

// What another one has queued is asked for when that matters.
TEST(BlocksOfCommunicator, AreAllThereAreOnceOthersAreOver) {
  const Place place, others;
  expect_well({[&] {
    stand_in::part_processors = 16;
    const auto own = make(0, 1, place.address()), other = make(0, 1, others.address());
    const auto blocks_of = [](Communicator& communicator, std::uintptr_t stream) {
      enqueue(communicator, 256u << 20, stream);
      return stand_in::blocks.load();
    };
    stand_in::event_query = never_over;
    blocks_of(*other, 1);
    const std::uint32_t beside = blocks_of(*own, 2);
    stand_in::event_query = nullptr;
    const std::uint32_t alone = blocks_of(*own, 2);
    for (const auto* each : {&own, &other}) {
      (*each)->abort();
      (*each)->end();
    }
    return beside < alone && alone == 4;
  }});
}

// The driver may answer when a kernel has ended that waits for a rank, whose operation another thread queues.
void answer_behind_another_operation() {
  stand_in::before_part = nullptr;
  std::thread([] {
    enqueue(*other_rank);
    other_queued = true;
  }).detach();
  if (!within_patience([] { return other_queued.load(); })) ::_exit(1);
}

TEST(BlocksOfCommunicator, OthersQueueWhileTheDriverIsAskedForTheStreamsPart) {
  const Place place, others;
  expect_well({[&] {
    const auto own = make(0, 1, place.address()), other = make(0, 1, others.address());
    other_rank = other.get();
    stand_in::before_part = answer_behind_another_operation;
    enqueue(*own);
    for (const auto* each : {&own, &other}) {
      (*each)->abort();
      (*each)->end();
    }
    return other_queued.load();
  }});
}
#endif

cudaError_t answer_when_another_has_queued() {
  stand_in::event_query = nullptr;
  std::thread([] {
    enqueue(*other_rank);
    other_queued = true;
  }).detach();
  if (!within_patience([] { return other_queued.load(); })) ::_exit(1);
  return cudaSuccess;
}

TEST(BlocksOfCommunicator, OthersQueueWhileTheDriverIsAskedWhatIsOver) {
  const Place place, others;
  expect_well({[&] {
    const auto own = make(0, 1, place.address()), other = make(0, 1, others.address());
    other_rank = other.get();
    stand_in::event_query = never_over;
    enqueue(*other, 64, 1);
    stand_in::event_query = answer_when_another_has_queued;
    enqueue(*own, 64, 2);
    for (const auto* each : {&own, &other}) {
      (*each)->abort();
      (*each)->end();
    }
    return other_queued.load();
  }});
}

TEST(DescriptionOfCommunicator, TellsOfManyQueuedMessagesTogether) {
  const Place place;
  expect_well({[&] {
    const auto own = make(0, 1, place.address());
    stand_in::event_query = never_over;
    for (int operation = 0; operation < 40; ++operation) enqueue(*own);
    const std::string text = own->describe();
    std::size_t behind = 0;
    for (std::size_t at = text.find(": queued behind ("); at != std::string::npos; at = text.find(": queued behind (", at + 1)) ++behind;
    stand_in::event_query = nullptr;
    const bool over = within_patience([&] { return own->describe().find("queued behind") == std::string::npos; });
    own->abort();
    own->end();
    return behind == 16 && text.find("\n62 more messages: queued behind\n") != std::string::npos && over;
  }});
}

TEST(DescriptionOfCommunicator, TellsWhatAReplayMayWaitFor) {
  const Place place;
  expect_well({[&] {
    const auto own = make(0, 1, place.address());
    const auto tells = [&](const char* what) { return own->describe().find(what) != std::string::npos; };
    constexpr const char* kReplay = "\nan operation of a graph is under way, and it is not known which.";
    constexpr const char* kMessages =
        "\nsend of 64 bytes to rank 0: in 1 packet from number 0, for which rank 0 has room (this process)\n"
        "receive of 64 bytes from rank 0: in 1 packet from number 0, of which not all have come (this process)\n";
    for (int again = 0; again < 3; ++again) capture(*own);
    const bool quiet = !own->counters().replays && !tells(kReplay) && !tells("packet");
    stand_in::event_query = never_over;
    const Counters runs = own->counters();
    const std::string text = own->describe();
    const bool told =
        runs.replays && runs.enqueued == 0 && tells(kReplay) && text.ends_with(kMessages) && text.find(kMessages) == text.rfind(kMessages);
    enqueue(*own);
    const bool behind = !own->counters().replays && tells("\noperations of graphs may be under way before these.");
    stand_in::event_query = nullptr;
    const bool over = within_patience([&] { return !tells("graph"); });
    own->abort();
    own->end();
    return quiet && told && behind && over;
  }});
}

// Who asks may hold what an abort needs, and the driver answer when one has been made.
std::atomic<bool> counted = false;
cudaError_t answer_when_counted() {
  if (!within_patience([] { return counted.load(); })) ::_exit(1);
  return cudaSuccess;
}

TEST(CountersOfCommunicator, AreToldThoughTheDriverDoesNotAnswer) {
  const Place place;
  expect_well({[&] {
    const auto own = make(0, 1, place.address());
    stand_in::event_query = answer_when_counted;
    enqueue(*own);
    const Counters first = own->counters(), second = own->counters();
    counted = true;
    own->abort();
    own->end();
    return first.enqueued == 2 && second.enqueued == 2;
  }});
}

// Through the interface that shims have; what kernels would add the test does, in the rank's own ports.
bool counts_by_peer(const std::string& address) {
  const railweave_cuda_api& api = *railweave_cuda_entry(RAILWEAVE_CUDA_VERSION);
  const railweave_cuda_config config = config_of(1, 3, address, kSettings);
  railweave_cuda_communicator* own = nullptr;
  if (api.create(&config, &own) != RAILWEAVE_OK) return false;
  std::array<std::byte, 128> data{};
  const auto itself = [&](railweave_cuda_kind kind, std::byte* at) {
    return railweave_cuda_transfer{sizeof(railweave_cuda_transfer), own, kind, 1, at, 64};
  };
  const std::array transfers{itself(RAILWEAVE_CUDA_SEND, data.data()), itself(RAILWEAVE_CUDA_RECV, data.data() + 64)};
  const railweave_cuda_stream stream = nullptr;
  bool well = api.enqueue(transfers.data(), transfers.size(), &stream, 1) == RAILWEAVE_OK;
  Port* const ports = stand_in::first_message.local - 1;
  ports[1].moved_bytes[0] = ports[1].moved_bytes[1] = 64;
  ports[2].moved_bytes[1] = 5;
  well = well && api.peers(own, nullptr, 0) == 0;  // they have not been counted yet
  railweave_cuda_counters counters{};
  counters.size = sizeof counters;
  well = well && api.counters(own, &counters) == RAILWEAVE_OK && api.peers(own, nullptr, 0) == 2;
  struct Later {  // as a later build may have it
    railweave_cuda_peer known;
    std::uint64_t more;
  };
  std::array<Later, 3> peers{};
  peers[0].known.size = sizeof peers[0];
  well = well && api.peers(own, &peers[0].known, peers.size()) == 2;
  const auto is = [](const Later& found, std::uint32_t peer, std::uint64_t sent, std::uint64_t received) {
    return found.known.peer == peer && found.known.bytes_sent == sent && found.known.bytes_received == received && found.more == 0;
  };
  well = well && is(peers[0], 1, 64, 64) && is(peers[1], 2, 0, 5) && is(peers[2], 0, 0, 0);
  api.destroy(own);
  return well;
}

TEST(PeersOfCommunicator, AreThoseWithWhichAnythingWasMoved) {
  const Place place;
  const auto end_at_once = [&](std::uint32_t rank) {
    make(rank, 3, place.address())->end();
    return true;
  };
  expect_well({[&] { return end_at_once(0); }, [&] { return counts_by_peer(place.address()); }, [&] { return end_at_once(2); }});
}

TEST(PeersOfCommunicator, AreNoneOnANodeWherePeerAccessIsSwitchedOff) {
  const Place place;
  const auto refused = [&](std::uint32_t rank) {
    if (rank == 1) ::setenv("NCCL_P2P_DISABLE", "1", 1);  // all hear of it
    try {
      make(rank, 2, place.address());
    } catch (const BootstrapError& error) {
      return error.what() ==
             std::string("rank 1: NCCL_P2P_DISABLE=1 switches peer access between GPUs off, and messages inside a node need it");
    }
    return false;
  };
  expect_well({[&] { return refused(0); }, [&] { return refused(1); }});
  const Place alone;
  expect_well({[&] {
    ::setenv("NCCL_P2P_DISABLE", "1", 1);
    make(0, 1, alone.address())->end();
    return true;
  }});
}

}  // namespace
