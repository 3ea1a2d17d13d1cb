#include "railweave/fabric/link_state.hpp"

#include "railweave/error.hpp"

namespace railweave {
namespace {

void check_edge(EdgeId id, std::size_t count) {
  if (id >= count) throw FabricError("link state: edge " + std::to_string(id) + " of " + std::to_string(count) + " does not exist");
}

}  // namespace

LinkState::LinkState(const Fabric& fabric) : rate_(fabric.edges().size(), 0), down_(fabric.edges().size(), 0) {
  nominal_.reserve(fabric.edges().size());
  for (const Edge& edge : fabric.edges()) nominal_.push_back(edge.capacity_Bps);
}

std::uint64_t LinkState::rate_Bps(EdgeId id) const {
  check_edge(id, nominal_.size());
  if (down_[id] != 0) return 0;
  return rate_[id] != 0 ? rate_[id] : nominal_[id];
}

void LinkState::set_rate(EdgeId id, std::uint64_t measured_Bps) {
  check_edge(id, nominal_.size());
  if (measured_Bps == 0) throw FabricError("link state: a measured rate of 0 bytes/s; mark the link down instead");
  if (rate_[id] == measured_Bps) return;
  rate_[id] = measured_Bps;
  ++epoch_;
}

void LinkState::set_down(EdgeId id, bool down) {
  check_edge(id, nominal_.size());
  if ((down_[id] != 0) == down) return;
  down_[id] = down ? 1 : 0;
  ++epoch_;
}

void LinkState::adopt(const LinkState& other) {
  if (other.nominal_.size() != nominal_.size()) throw FabricError("link state of another fabric");
  rate_ = other.rate_;
  down_ = other.down_;
  epoch_ = other.epoch_;
}

}  // namespace railweave
