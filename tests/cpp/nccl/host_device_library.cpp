// librailweave_cuda.so's interface over host memory: the engine's host backend behind stand-in streams. With it the shim's groups,
// streams and communicators are tested where there is no GPU.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checksum.hpp"
#include "railweave/cuda.h"
#include "railweave/engine/exchange.hpp"
#include "settings.hpp"
#include "stand_in_cuda.hpp"
#include "status.hpp"

using namespace railweave;

struct railweave_cuda_communicator {
  railweave_cuda_communicator(Exchange made, const railweave_cuda_config& config, bool checks)
      : exchange(std::move(made)),
        rank(config.rank),
        device(config.device),
        checksums(checks),
        log(config.log),
        log_context(config.log_context),
        sent_to(config.world) {}

  Exchange exchange;
  const pid_t process = ::getpid();
  const std::uint32_t rank;
  const int device;
  const bool checksums;
  decltype(railweave_cuda_config::log) const log;
  void* const log_context;
  std::vector<std::uint64_t> sent_to;  // messages, by rank; operations of a communicator touch it one after another
  std::atomic<bool> aborted{false};
  std::atomic<int> draining{0};
  std::atomic<std::uint64_t> enqueued{0}, completed{0}, sent{0}, received{0};

  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t tickets = 0, turn = 0;    // guarded by mutex: operations start in the order of their tickets
  std::uint64_t running = 0;              // guarded by mutex: operations that are queued or running
  std::uint64_t replays = 0;              // guarded by mutex: those of them that were captured
  std::multiset<std::string> waiting;     // guarded by mutex
  railweave_status error = RAILWEAVE_OK;  // guarded by mutex
  std::string error_text;                 // guarded by mutex
  // Guarded by mutex: bytes by peer, sent and received.
  std::map<std::uint32_t, std::array<std::uint64_t, 2>> moved;
};

namespace {

using capi::guarded;
using capi::note;

std::string words(const railweave_cuda_transfer& transfer) {
  return (transfer.kind == RAILWEAVE_CUDA_SEND ? "send to rank " : "receive from rank ") + std::to_string(transfer.peer) + ", " +
         std::to_string(transfer.bytes) + " bytes";
}

// The part of a launch that belongs to one communicator.
struct Part {
  railweave_cuda_communicator* communicator;
  std::vector<railweave_cuda_transfer> transfers;
  bool captured = false;
  std::uint64_t ticket = 0;
  std::vector<cuda::Sums> sums;  // in the checksum mode, one a transfer
};

// --- The checksum mode, as librailweave_cuda.so has it

std::uint64_t chunk_sum(const railweave_cuda_transfer& transfer, std::uint32_t chunk) {
  const std::uint64_t size = cuda::checked_chunk_bytes(transfer.bytes), begin = chunk * size;
  return cuda::partial_sum(static_cast<const std::byte*>(transfer.data), begin, std::min(begin + size, transfer.bytes), 0, 1);
}

void sum_up(Part& part) {
  part.sums.resize(part.transfers.size());
  for (std::size_t i = 0; i < part.transfers.size(); ++i) {
    const railweave_cuda_transfer& transfer = part.transfers[i];
    if (transfer.kind != RAILWEAVE_CUDA_SEND) continue;
    cuda::Sums& sums = part.sums[i];
    sums.number = part.communicator->sent_to[transfer.peer]++;
    sums.bytes = transfer.bytes;
    for (std::uint32_t chunk = 0; chunk < cuda::checked_chunks(transfer.bytes); ++chunk) sums.chunks[chunk] = chunk_sum(transfer, chunk);
  }
}

// STAND_IN_FLIPS="RANK PEER NUMBER BYTE": a bit of that message is another one when it has come to the rank.
void damage(std::uint32_t rank, const railweave_cuda_transfer& transfer, std::uint64_t number) {
  const char* flips = std::getenv("STAND_IN_FLIPS");
  if (flips == nullptr) return;
  std::istringstream words(flips);
  std::uint64_t of_rank = 0, peer = 0, message = 0, byte = 0;
  words >> of_rank >> peer >> message >> byte;
  if (of_rank == rank && peer == transfer.peer && message == number && byte < transfer.bytes) static_cast<char*>(transfer.data)[byte] ^= 4;
}

// What is wrong with the part's receives; empty: nothing.
std::string compare(const Part& part) {
  for (std::size_t i = 0; i < part.sums.size(); ++i) {
    const railweave_cuda_transfer& transfer = part.transfers[i];
    const cuda::Sums& sums = part.sums[i];
    if (transfer.kind != RAILWEAVE_CUDA_RECV) continue;
    damage(part.communicator->rank, transfer, sums.number);
    for (std::uint32_t chunk = 0; chunk < cuda::checked_chunks(transfer.bytes); ++chunk) {
      if (sums.bytes != transfer.bytes || sums.chunks[chunk] != chunk_sum(transfer, chunk))
        return cuda::damage_text({transfer.peer, sums.number, transfer.bytes, sums.bytes, chunk});
    }
  }
  return "";
}

void take_ticket(Part& part) {
  const std::lock_guard lock(part.communicator->mutex);
  part.ticket = part.communicator->tickets++;
  ++part.communicator->running;
  if (part.captured)
    ++part.communicator->replays;
  else
    part.communicator->enqueued += part.transfers.size();
  for (const auto& transfer : part.transfers) part.communicator->waiting.insert(words(transfer));
}

Handle post(Part& part) {
  railweave_cuda_communicator& communicator = *part.communicator;
  std::unique_lock lock(communicator.mutex);
  communicator.changed.wait(lock, [&] { return communicator.turn == part.ticket; });
  lock.unlock();
  if (communicator.checksums) sum_up(part);
  Group group = communicator.exchange.group();
  const auto add = [&](std::uint32_t kind, void* data, std::uint64_t bytes, std::uint32_t peer) {
    if (kind == RAILWEAVE_CUDA_SEND)
      group.send(data, bytes, peer);
    else
      group.recv(data, bytes, peer);
  };
  for (std::size_t i = 0; i < part.transfers.size(); ++i) {
    const railweave_cuda_transfer& transfer = part.transfers[i];
    add(transfer.kind, transfer.data, transfer.bytes, transfer.peer);
    if (communicator.checksums) add(transfer.kind, &part.sums[i], sizeof(cuda::Sums), transfer.peer);
  }
  Handle handle = group.end();
  lock.lock();
  ++communicator.turn;
  communicator.changed.notify_all();
  return handle;
}

void finish(Part& part, Handle handle) {
  railweave_cuda_communicator& communicator = *part.communicator;
  const railweave_status status = guarded([&] {
    while (!handle.wait_for(0.02)) {
      // Closing ends the operations, so that nothing touches their buffers when the stream goes on.
      if (communicator.aborted.load()) communicator.exchange.close();
    }
    if (const std::string wrong = compare(part); !wrong.empty()) throw TransportError(wrong);
  });
  const std::lock_guard lock(communicator.mutex);
  for (const auto& transfer : part.transfers) {
    communicator.waiting.erase(communicator.waiting.find(words(transfer)));
    if (status != RAILWEAVE_OK) continue;
    (transfer.kind == RAILWEAVE_CUDA_SEND ? communicator.sent : communicator.received) += transfer.bytes;
    communicator.moved[transfer.peer][transfer.kind] += transfer.bytes;
  }
  if (status != RAILWEAVE_OK && communicator.error == RAILWEAVE_OK) {
    communicator.error = status;
    communicator.error_text = capi::last_error().text;
  }
  if (part.captured) {
    --communicator.replays;
    communicator.enqueued += part.transfers.size();
  }
  communicator.completed += part.transfers.size();
  --communicator.running;
  communicator.changed.notify_all();
}

// The whole launch, in the stream's thread.
void run(std::vector<Part>& parts) {
  std::vector<Handle> handles;
  for (Part& part : parts) handles.push_back(post(part));
  for (std::size_t i = 0; i < parts.size(); ++i) finish(parts[i], handles[i]);
}

class InDrain {
 public:
  explicit InDrain(railweave_cuda_communicator& communicator) : communicator_(communicator) {
    if (++communicator_.draining == 1) return;
    std::fputs("stand-in: a communicator is drained by two threads\n", stderr);
    std::abort();
  }
  ~InDrain() { --communicator_.draining; }
  InDrain(const InDrain&) = delete;
  InDrain& operator=(const InDrain&) = delete;

 private:
  railweave_cuda_communicator& communicator_;
};

const char* last_error() { return capi::last_error().text.c_str(); }

railweave_status probe(int32_t device) {
  const char* refused = std::getenv("STAND_IN_REFUSES_DEVICE");
  if (refused == nullptr || std::to_string(device) != refused) return RAILWEAVE_OK;
  return note(RAILWEAVE_ERROR_ARGUMENT, "device " + std::to_string(device) + " is refused by STAND_IN_REFUSES_DEVICE");
}

// STAND_IN_LACKS_MEMORY="RANK MOMENT": that rank is refused memory when it is made, after it said that it can serve. "told": the others
// hear of it where they meet, as librailweave_cuda.so tells them; "untold": they wait for it there in vain; "late": all have met.
bool lacks_memory(std::uint32_t rank, const char* moment) {
  const char* lacks = std::getenv("STAND_IN_LACKS_MEMORY");
  return lacks != nullptr && std::to_string(rank) + " " + moment == lacks;
}

railweave_status create(const railweave_cuda_config* config, railweave_cuda_communicator** communicator) {
  return guarded([&] {
    if (const char* told = std::getenv("STAND_IN_TELLS"); told != nullptr) config->log(config->log_context, told);
    if (const char* warned = std::getenv("STAND_IN_WARNS"); warned != nullptr) config->warn(config->log_context, warned);
    ExchangeSettings chosen = cuda::settings_of(*config);
    if (std::getenv("STAND_IN_TELLS_SETTINGS") != nullptr) {
      const std::string text = "runs with " + std::to_string(chosen.gpu_blocks) + " blocks, packets to " +
                               std::to_string(chosen.gpu_low_latency_bytes) + ", " + std::to_string(chosen.gpu_host_share) +
                               " over the host, relays " + std::to_string(chosen.gpu_relays) + ", channels of " +
                               std::to_string(config->channel_bytes) + " bytes, at most " + std::to_string(config->most_blocks) + " blocks";
      config->log(config->log_context, text.c_str());
    }
    constexpr const char* kNoMemory = "allocating slots: out of memory";
    if (lacks_memory(config->rank, "untold")) throw std::runtime_error(kNoMemory);
    if (lacks_memory(config->rank, "told")) chosen.problem = kNoMemory;
    Exchange exchange(config->rank, config->world, config->rendezvous, chosen);
    if (lacks_memory(config->rank, "late")) throw std::runtime_error(kNoMemory);
    *communicator = new railweave_cuda_communicator(std::move(exchange), *config, chosen.checksum != 0);
  });
}

std::atomic<void (*)(const char*)> told_explanations{nullptr};

void explain(void (*tell)(const char* text)) { told_explanations = tell; }

railweave_status enqueue(const railweave_cuda_transfer* transfers, size_t count, const railweave_cuda_stream* streams,
                         size_t stream_count) {
  std::vector<Part> parts;
  std::map<railweave_cuda_communicator*, std::size_t> index;
  for (std::size_t i = 0; i < count; ++i) {
    railweave_cuda_communicator* const communicator = transfers[i].communicator;
    {
      const std::lock_guard lock(communicator->mutex);
      if (communicator->error != RAILWEAVE_OK) return note(communicator->error, communicator->error_text);
    }
    if (communicator->aborted.load()) return note(RAILWEAVE_ERROR_EXCHANGE, "the communicator was aborted");
    const auto [at, fresh] = index.try_emplace(communicator, parts.size());
    if (fresh) parts.push_back({communicator, {}, false, 0, {}});
    parts[at->second].transfers.push_back(transfers[i]);
  }
  const int device = transfers[0].communicator->device;
  std::vector<cudaStream_t> listed;
  for (std::size_t i = 0; i < stream_count; ++i) listed.push_back(static_cast<cudaStream_t>(streams[i]));
  const bool captured = stand_in::capturing(listed[0]);
  if (captured && stream_count > 1) return note(RAILWEAVE_ERROR_ARGUMENT, "stand-in streams are captured one at a time");
  for (Part& part : parts) {
    part.captured = captured;
    if (!captured) take_ticket(part);
  }
  for (std::size_t i = 1; i < listed.size(); ++i) stand_in::wait_for(listed[0], listed[i], device);
  stand_in::launch(listed[0], device, [parts]() mutable {
    for (Part& part : parts) {
      if (part.captured) take_ticket(part);
    }
    run(parts);
  });
  for (std::size_t i = 1; i < listed.size(); ++i) stand_in::wait_for(listed[i], listed[0], device);
  if (const auto tell = told_explanations.load(); tell != nullptr) tell(("by the host, of " + std::to_string(count)).c_str());
  return RAILWEAVE_OK;
}

railweave_status join(railweave_cuda_communicator* communicator, const railweave_cuda_stream* streams, size_t stream_count) {
  if (std::getenv("STAND_IN_TELLS_JOINS") != nullptr)
    communicator->log(communicator->log_context, ("joins " + std::to_string(stream_count) + " streams").c_str());
  std::vector<cudaStream_t> listed;
  for (std::size_t i = 0; i < stream_count; ++i) listed.push_back(static_cast<cudaStream_t>(streams[i]));
  for (std::size_t i = 1; i < listed.size(); ++i) stand_in::wait_for(listed[0], listed[i], communicator->device);
  for (std::size_t i = 1; i < listed.size(); ++i) stand_in::wait_for(listed[i], listed[0], communicator->device);
  return RAILWEAVE_OK;
}

railweave_status async_error(railweave_cuda_communicator* communicator) {
  if (communicator->aborted.load()) return note(RAILWEAVE_ERROR_EXCHANGE, "aborted on rank " + std::to_string(communicator->rank));
  const std::lock_guard lock(communicator->mutex);
  return communicator->error == RAILWEAVE_OK ? RAILWEAVE_OK : note(communicator->error, communicator->error_text);
}

// librailweave_cuda.so does nothing then; the shim is not to get as far.
void require_process(const railweave_cuda_communicator& communicator) {
  if (communicator.process == ::getpid()) return;
  std::fputs("stand-in: a communicator is ended by a process that did not make it\n", stderr);
  std::abort();
}

railweave_status abort(railweave_cuda_communicator* communicator) {
  require_process(*communicator);
  communicator->aborted = true;
  return RAILWEAVE_OK;
}

railweave_status drain(railweave_cuda_communicator* communicator) {
  require_process(*communicator);
  const InDrain in_drain(*communicator);
  return guarded([&] {
    {
      std::unique_lock lock(communicator->mutex);
      communicator->changed.wait(lock, [&] { return communicator->running == 0; });
    }
    communicator->exchange.close();
  });
}

void destroy(railweave_cuda_communicator* communicator) {
  if (communicator != nullptr && communicator->draining.load() != 0) {
    std::fputs("stand-in: a communicator is destroyed while it is drained\n", stderr);
    std::abort();
  }
  if (communicator != nullptr) drain(communicator);
  delete communicator;
}

void tell_of_buffer(const railweave_cuda_communicator& communicator, const std::string& text) {
  if (std::getenv("STAND_IN_TELLS_BUFFERS") != nullptr) communicator.log(communicator.log_context, text.c_str());
}

railweave_status register_buffer(railweave_cuda_communicator* communicator, void* data, uint64_t bytes, void** handle) {
  tell_of_buffer(*communicator, "maps " + std::to_string(bytes) + " bytes ahead");
  *handle = data;
  return RAILWEAVE_OK;
}

railweave_status deregister_buffer(railweave_cuda_communicator* communicator, void*) {
  tell_of_buffer(*communicator, "forgets a buffer");
  return RAILWEAVE_OK;
}

// STAND_IN_IS_ASKED=FILE: the first time the process is asked, it writes the thread that asks into the file, and answers when that has been
// taken away.
void take_time_to_answer() {
  static std::atomic<bool> asked{false};
  const char* file = std::getenv("STAND_IN_IS_ASKED");
  if (file == nullptr || asked.exchange(true)) return;
  const std::filesystem::path place = file;
  std::ofstream(place) << ::gettid() << std::flush;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::filesystem::exists(place) && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!std::filesystem::exists(place)) return;
  std::fputs("stand-in: the program waits for the end of a question\n", stderr);
  std::abort();
}

railweave_status counters(railweave_cuda_communicator* communicator, railweave_cuda_counters* out) {
  take_time_to_answer();
  railweave_cuda_counters all{};
  all.size = out->size;
  all.enqueued = communicator->enqueued;
  all.completed = communicator->completed;
  all.bytes_sent = communicator->sent;
  all.bytes_received = communicator->received;
  {
    const std::lock_guard lock(communicator->mutex);
    all.replays = communicator->replays != 0 ? 1 : 0;
  }
  std::memcpy(out, &all, std::min(out->size, sizeof all));  // callers of before have fewer members
  return RAILWEAVE_OK;
}

size_t describe(railweave_cuda_communicator* communicator, char* text, size_t bytes) {
  std::string lines;
  {
    const std::lock_guard lock(communicator->mutex);
    for (const std::string& line : communicator->waiting) lines += line + "\n";
  }
  if (bytes != 0) {
    const std::size_t length = std::min(lines.size(), bytes - 1);
    std::memcpy(text, lines.data(), length);
    text[length] = '\0';
  }
  return lines.size();
}

// STAND_IN_NICS="N": so many, dealt to the ranks in turn; the second one has a link that is down.
size_t nics(railweave_cuda_communicator* communicator, railweave_cuda_nic* nics, size_t count) {
  const char* text = std::getenv("STAND_IN_NICS");
  const std::size_t all = text == nullptr ? 0 : std::strtoul(text, nullptr, 10);
  for (std::size_t i = 0; i < std::min(count, all); ++i) {
    railweave_cuda_nic& nic = nics[i];
    std::snprintf(nic.name, sizeof nic.name, "mlx5_%zu", i);
    nic.bytes_per_second = 50'000'000'000;
    nic.bytes_sent = communicator->sent / all;
    nic.owner = static_cast<std::uint32_t>(i % communicator->sent_to.size());
    nic.links = 4;
    nic.links_down = i == 1 ? 1 : 0;
    std::snprintf(nic.down, sizeof nic.down, "%s", i == 1 ? "mlx5_1 of rank 9\n" : "");
  }
  return all;
}

size_t peers(railweave_cuda_communicator* communicator, railweave_cuda_peer* peers, size_t count) {
  const std::lock_guard lock(communicator->mutex);
  std::size_t found = 0;
  for (const auto& [peer, bytes] : communicator->moved) {
    if (found < count) peers[found] = {sizeof *peers, peer, 0, bytes[RAILWEAVE_CUDA_SEND], bytes[RAILWEAVE_CUDA_RECV]};
    ++found;
  }
  return found;
}

const railweave_cuda_api kApi = {sizeof(railweave_cuda_api),
                                 RAILWEAVE_CUDA_VERSION,
                                 0,
                                 last_error,
                                 probe,
                                 create,
                                 enqueue,
                                 async_error,
                                 abort,
                                 drain,
                                 destroy,
                                 register_buffer,
                                 deregister_buffer,
                                 counters,
                                 describe,
                                 nics,
                                 join,
                                 explain,
                                 peers};

// STAND_IN_OF_OLD: of a build that does not tell what is moved with which rank.
const railweave_cuda_api& api() {
  static const railweave_cuda_api old = [] {
    railweave_cuda_api table = kApi;
    table.size = offsetof(railweave_cuda_api, peers);
    table.peers = nullptr;
    return table;
  }();
  return std::getenv("STAND_IN_OF_OLD") == nullptr ? kApi : old;
}

}  // namespace

const railweave_cuda_api* railweave_cuda_entry(uint32_t version) { return version == RAILWEAVE_CUDA_VERSION ? &api() : nullptr; }
