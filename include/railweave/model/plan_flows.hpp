// A plan as flows: one for each share, so that the model can say how the plan runs.
#pragma once

#include <cstdint>

#include "railweave/fabric/fabric.hpp"
#include "railweave/fabric/link_state.hpp"
#include "railweave/model/flows.hpp"
#include "railweave/planner/plan.hpp"
#include "railweave/planner/planner.hpp"

namespace railweave {

// What a share of `bytes` waits for beside bandwidth, in nanoseconds: the latency of its edges, and the time to fill the pipeline.
// Data moves in chunks, and GPUs and host memory on the way store a chunk before they pass it on, which cuts the path into
// stages; the slowest stage sets the rate, each other one delays the first chunk by the time it takes (n chunks through
// stages of times s_i take n max(s) + sum(s) - max(s)). Stages are taken to run at their links' full rate then.
std::uint64_t startup_ns(const Path& path, std::uint64_t bytes, std::uint64_t chunk_bytes, const Fabric& fabric, const LinkState& links);

// The flow of share i has id i. Resources are the fabric's, at the rates that `links` says.
Flows plan_flows(const Plan& plan, const Planner& planner, std::uint64_t chunk_bytes, const Fabric& fabric, const LinkState& links);

}  // namespace railweave
