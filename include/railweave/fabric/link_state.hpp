// What is known at run time about a fabric's links: measured rates and links that are down. An overlay, so that the fabric
// itself stays immutable and shared.
#pragma once

#include <cstdint>
#include <vector>

#include "railweave/fabric/fabric.hpp"

namespace railweave {

class LinkState {
 public:
  // All links up, at their nominal rate, epoch 0.
  explicit LinkState(const Fabric& fabric);

  std::uint64_t epoch() const noexcept { return epoch_; }
  bool is_down(EdgeId id) const { return down_.at(id) != 0; }
  // bytes/s that the edge gives now: measured where measured, else nominal; 0 when down.
  std::uint64_t rate_Bps(EdgeId id) const;

  // Each change advances the epoch; setting what already holds does not. Throws FabricError for an edge that the fabric lacks
  // or a measured rate of 0 (a link that carries nothing is down).
  void set_rate(EdgeId id, std::uint64_t measured_Bps);
  void set_down(EdgeId id, bool down);
  // Takes over what another rank reported, with its epoch.
  void adopt(const LinkState& other);

  bool operator==(const LinkState& other) const noexcept { return down_ == other.down_ && rate_ == other.rate_; }

 private:
  std::uint64_t epoch_ = 0;
  std::vector<std::uint64_t> nominal_;
  std::vector<std::uint64_t> rate_;  // 0: as nominal
  std::vector<std::uint8_t> down_;
};

}  // namespace railweave
