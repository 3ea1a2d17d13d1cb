// What operations under way wait for, in words, for who asks why nothing moves (docs/cuda.md, "When it stands still").
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "operation.hpp"

namespace railweave::engine {

// A line each.
struct Standing {
  std::vector<std::string> messages;  // of operations under way that have not ended
  std::vector<std::string> links;     // of this rank's NICs that have something to move, its own or others'
};

// `name_of`: what a link is called (SendChunk::link).
std::string waiting_text(const SendMessage& message, const std::function<std::string(std::uint32_t link)>& name_of);
std::string waiting_text(const RecvMessage& message);

// What a link has under way. Transfers wait for their turn, are offered, have a slot at the other end, or their data went out.
struct LinkLoad {
  std::uint32_t nic = 0, peer = 0;
  bool up = false;
  std::uint32_t queued = 0, offered = 0, accepted = 0, sent = 0;
  bool idle() const { return queued + offered + accepted + sent == 0; }
};
// `Bps`: the rate that plans go by, 0 if none has been measured.
std::string waiting_text(const LinkLoad& load, const std::string& name, std::uint64_t Bps);

}  // namespace railweave::engine
