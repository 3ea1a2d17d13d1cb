// Brings ranks together once, when an exchange is created: rounds of all-gather over TCP (rank 0 listens) or over files.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "railweave/engine/interruption.hpp"

namespace railweave::engine {

using Blob = std::vector<std::byte>;

class Rendezvous {
 public:
  explicit Rendezvous(Interruption interruption) : interruption_(std::move(interruption)) {}
  virtual ~Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  // Every rank gives a blob and gets those of all ranks. Throws BootstrapError naming the ranks that did not come in time.
  virtual std::vector<Blob> all_gather(const std::string& round, const Blob& mine) = 0;
  // After the last round: removes what the rounds left (files). So does the end of its life after a round that all ranks came to, as where
  // the ranks refuse the exchange then.
  virtual void finish() {}
  // For whoever waits for other ranks, between rounds too: throws what the interruption throws, when this rank has left the meeting.
  void ask();

 private:
  // Removes what this rank has left for others: it comes to no round any more.
  virtual void withdraw() {}

  Interruption interruption_;
  std::chrono::steady_clock::time_point next_ask_;
};

// `address`: tcp://HOST:PORT or file:///DIRECTORY. Throws BootstrapError for anything else.
std::unique_ptr<Rendezvous> make_rendezvous(const std::string& address, std::uint32_t rank, std::uint32_t world,
                                            std::chrono::milliseconds limit, Interruption interruption = {});

}  // namespace railweave::engine
