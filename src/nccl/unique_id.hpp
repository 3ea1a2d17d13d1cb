// The hub's address in the unique id. NCCL fills the first bytes (a magic number and a socket address) and leaves the rest of the 128 zero
// in every version from 2.20 to 2.32 (checked by tests/cpp/nccl/check_releases.py); all ranks get the whole id, whatever carries it.
#pragma once

#include <optional>

#include "hub.hpp"
#include "nccl_abi.hpp"

namespace railweave::nccl {

// Writes the address into the id; false, and nothing written, when NCCL uses those bytes.
bool write_hub(ncclUniqueId& id, const HubAddress& address);
std::optional<HubAddress> read_hub(const ncclUniqueId& id);

// The interface that NCCL itself chose, as its id has it: family and host are set, nothing else. Empty when the id looks different.
std::optional<HubAddress> nccl_host(const ncclUniqueId& id);

// The hub of this process, made when first asked for.
Hub& own_hub();
// A fresh nonce that the own hub admits. Throws std::system_error.
HubAddress announce(const HubAddress& host);
// The own hub, which from now on admits those who meet at `hub`. Throws std::system_error.
HubAddress stand_by(const HubAddress& host, const HubAddress& hub);

}  // namespace railweave::nccl
