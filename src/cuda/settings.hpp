// Settings of a communicator. Needs no CUDA.
#pragma once

#include "railweave/cuda.h"
#include "railweave/engine/settings.hpp"

namespace railweave::cuda {

// What the config says; where it says nothing a RAILWEAVE_* variable; else what this machine was calibrated to (docs/calibrate.md), which a
// process reads once; else the default. The first communicator that can be told hears what the calibration came to. What cannot be had is
// the settings' problem. Throws Error for a config that points nowhere.
ExchangeSettings settings_of(const railweave_cuda_config& config);

// gpu_low_latency_bytes where nothing of these says it (ExchangeSettings::gpu_low_latency_by_ranks), of a communicator of so many ranks on
// one node, each with a GPU to itself that begins blocks together.
std::uint64_t packets_up_to(std::uint32_t ranks);

}  // namespace railweave::cuda
