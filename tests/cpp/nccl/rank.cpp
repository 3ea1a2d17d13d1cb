#include "rank.hpp"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace {

constexpr auto kPatience = std::chrono::seconds(120);

void wait_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

}  // namespace

void must(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  throw std::runtime_error(std::string(call) + " gave " + std::to_string(result) + ": " + ncclGetLastError(nullptr));
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("not so: " + what);
}

ncclUniqueId Rank::unique_id(const std::string& name, int maker, const std::function<ncclResult_t(ncclUniqueId*)>& make) {
  ncclUniqueId id{};
  const std::filesystem::path path = directory_ + "/" + name + ".id";
  if (rank == maker) {
    must(make(&id), "making a unique id");
    std::ofstream(path.string() + ".part", std::ios::binary).write(id.internal, sizeof id.internal);
    std::filesystem::rename(path.string() + ".part", path);
    return id;
  }
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!std::filesystem::exists(path)) {
    require(std::chrono::steady_clock::now() < deadline, "rank " + std::to_string(maker) + " has written " + path.string());
    wait_a_moment();
  }
  std::ifstream(path, std::ios::binary).read(id.internal, sizeof id.internal);
  return id;
}

ncclComm_t Rank::connect(const std::string& name, Config* config) {
  ncclComm_t comm = nullptr;
  const ncclUniqueId id = unique_id(name);
  const ncclResult_t result =
      config == nullptr ? ncclCommInitRank(&comm, world, id, rank) : ncclCommInitRankConfig(&comm, world, id, rank, config);
  if (config == nullptr || config->blocking != 0)
    must(result, "ncclCommInitRank");
  else
    require(result == ncclInProgress || result == ncclSuccess, "ncclCommInitRankConfig gives ncclInProgress");
  return comm;
}

void Rank::say(const std::string& word) {
  const std::string path = directory_ + "/" + word + "." + std::to_string(rank);
  std::ofstream(path + ".part");
  std::filesystem::rename(path + ".part", path);
}

void Rank::hear(const std::string& word, int from) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!std::filesystem::exists(directory_ + "/" + word + "." + std::to_string(from))) {
    require(std::chrono::steady_clock::now() < deadline, "rank " + std::to_string(from) + " says " + word);
    wait_a_moment();
  }
}

ncclResult_t wait_ready(ncclComm_t comm) {
  for (;;) {
    ncclResult_t error = ncclSuccess;
    must(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
    if (error != ncclInProgress) return error;
    wait_a_moment();
  }
}

char pattern(int source, int destination, int number, std::size_t at) {
  return static_cast<char>(source * 131 + destination * 31 + number * 7 + static_cast<int>((at * 13 + (at >> 9)) & 0xff));
}

Messages::Messages(ncclComm_t comm) : comm_(comm) {
  must(ncclCommUserRank(comm, &rank), "ncclCommUserRank");
  must(ncclCommCount(comm, &world), "ncclCommCount");
}

void Messages::send(int peer, std::size_t bytes, cudaStream_t stream) { send(peer, bytes, ncclInt8, stream); }
void Messages::receive(int peer, std::size_t bytes, cudaStream_t stream) { receive(peer, bytes, ncclInt8, stream); }

void Messages::send(int peer, std::size_t count, int type, cudaStream_t stream) {
  Message& message = sent_.emplace_back(Message{rank, peer, sends_[peer]++, {}});
  message.bytes.resize(count * railweave::nccl::datatype_bytes(type));
  for (std::size_t i = 0; i < message.bytes.size(); ++i) message.bytes[i] = pattern(rank, peer, message.number, i);
  must(ncclSend(message.bytes.data(), count, type, peer, comm_, stream), "ncclSend");
}

void Messages::receive(int peer, std::size_t count, int type, cudaStream_t stream) {
  Message& message = received_.emplace_back(Message{peer, rank, receives_[peer]++, {}});
  message.bytes.resize(count * railweave::nccl::datatype_bytes(type));
  must(ncclRecv(message.bytes.data(), count, type, peer, comm_, stream), "ncclRecv");
}

void Messages::check() const {
  for (const Message& message : received_) {
    for (std::size_t i = 0; i < message.bytes.size(); ++i) {
      if (message.bytes[i] == pattern(message.source, message.destination, message.number, i)) continue;
      throw std::runtime_error("byte " + std::to_string(i) + " of " + std::to_string(message.bytes.size()) + " of message " +
                               std::to_string(message.number) + " from rank " + std::to_string(message.source) + " to " +
                               std::to_string(message.destination) + " is wrong");
    }
  }
}

void Messages::blank_received() {
  for (Message& message : received_) std::fill(message.bytes.begin(), message.bytes.end(), '\0');
}
