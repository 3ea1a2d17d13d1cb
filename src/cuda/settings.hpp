// Settings of a communicator. Needs no CUDA.
#pragma once

#include "railweave/cuda.h"
#include "railweave/engine/settings.hpp"

namespace railweave::cuda {

// What the config says; where it says nothing a RAILWEAVE_* variable; else what this machine was calibrated to (docs/calibrate.md), which a
// process reads once; else the default, of `gpu_low_latency_bytes` that of as many ranks, where the device has thread block clusters. The
// first communicator that can be told hears what the calibration came to. What cannot be had is the settings' problem. Throws Error for a
// config that points nowhere.
ExchangeSettings settings_of(const railweave_cuda_config& config, bool clusters);

}  // namespace railweave::cuda
