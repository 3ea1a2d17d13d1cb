// Prepares an operation's messages to and from other nodes.
#pragma once

#include <cstdint>
#include <span>

#include "operation.hpp"
#include "prepare.hpp"

namespace railweave::cuda {

// In the fuller direction.
std::uint64_t bytes_over_rails(std::span<const Message> rails);

// Puts them into an order in which those of a communicator stand together, and those of a pair keep theirs; fills path, reports and
// operation. `near`: what prepare() made of the operation's other messages, with LaunchLimits::beside_rails, if it has any.
Plan prepare_rails(std::span<Message> rails, const Plan& near, const LaunchLimits& limits);

}  // namespace railweave::cuda
