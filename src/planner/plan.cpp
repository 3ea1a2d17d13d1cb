#include "railweave/planner/plan.hpp"

namespace railweave {

std::string_view to_string(PathKind kind) noexcept {
  switch (kind) {
    case PathKind::direct: return "direct";
    case PathKind::relay: return "relay";
    case PathKind::host: return "host";
    case PathKind::rail: return "rail";
    case PathKind::cross_rail: return "cross-rail";
  }
  return "unknown";
}

std::string_view to_string(Policy policy) noexcept {
  switch (policy) {
    case Policy::single_path: return "single-path";
    case Policy::nccl: return "nccl";
    case Policy::ucx_rails: return "ucx-rails";
    case Policy::nimble: return "nimble";
    case Policy::railweave: return "railweave";
  }
  return "unknown";
}

std::string_view to_string(Bound::Kind kind) noexcept {
  switch (kind) {
    case Bound::Kind::none: return "none";
    case Bound::Kind::gpu_out: return "sender";
    case Bound::Kind::gpu_in: return "receiver";
    case Bound::Kind::node_out: return "node-out";
    case Bound::Kind::node_in: return "node-in";
    case Bound::Kind::prices: return "links";
  }
  return "unknown";
}

}  // namespace railweave
