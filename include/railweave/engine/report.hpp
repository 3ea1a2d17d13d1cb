// What an operation did: how long, over which paths, at what cost. Benchmarks and reports read this.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "railweave/planner/plan.hpp"

namespace railweave {

inline constexpr std::size_t kPathKinds = 5;  // as PathKind

struct OperationReport {
  std::uint64_t serial = 0;      // operations of this exchange, from 1
  double seconds = 0;            // from posting to the end
  std::uint64_t bytes_sent = 0;  // of this rank's sends, each byte once, own rank excluded
  std::uint64_t bytes_received = 0;
  std::array<std::uint64_t, kPathKinds> bytes_by_kind{};  // sent, repeated ones included
  std::vector<std::uint64_t> bytes_by_nic;                // sent through each NIC of this node, in its order; repeated ones included
  std::uint64_t mapped_bytes = 0;                         // written straight into a mate's buffer
  std::uint64_t resent_chunks = 0;
  double plan_seconds = 0;         // computing plans; 0: none was needed
  double row_wait_seconds = 0;     // waiting for other ranks' rows
  std::uint64_t rows_missing = 0;  // peers whose row of this operation had not come when the last plan was made
  std::uint64_t plan_id = 0;       // 0: none
  double plan_z_seconds = 0;       // the plan's completion time in the fluid limit
};

}  // namespace railweave
