// What was decided of an operation, in words.
#pragma once

#include <span>
#include <string>

#include "prepare.hpp"

namespace railweave::cuda {

// How an operation is launched, why with so many blocks, and which way each of its messages goes, of the first 32. `messages` as
// prepare() and prepare_rails() left them, those to and from other nodes last. One line.
std::string explanation(const Plan& plan, std::span<const Message> messages, const LaunchLimits& limits);

}  // namespace railweave::cuda
