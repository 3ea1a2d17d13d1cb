// How many CTAs (blocks of a kernel) a program or its user allows NCCL for messages.
#pragma once

#include <cstdint>

#include "nccl_abi.hpp"

namespace railweave::nccl {

// Of a communicator's configuration.
struct Ctas {
  int least = kConfigUndefined, most = kConfigUndefined;
};

// What it says, as far as it goes; `inherited` where there is none.
Ctas ctas_of(const void* config, const Ctas& inherited);

// The most that messages get with that, as NCCL settles its channels for them (initTransportsRank, ncclTopoComputeP2pChannels); 0: nobody
// says any number. NCCL itself takes the next power of two. `lookup` gives a variable's text, or nullptr.
std::uint32_t most_for_messages(const Ctas& configured, const char* (*lookup)(const char* name));

}  // namespace railweave::nccl
