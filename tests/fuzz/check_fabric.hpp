// What holds for every fabric that a parser lets through.
#pragma once

#include <cstdlib>

#include "railweave/fabric/fabric.hpp"
#include "railweave/fabric/fabric_json.hpp"

inline void check_fabric(const railweave::Fabric& fabric) {
  if (fabric.gpu_count() == 0) std::abort();
  for (const railweave::Edge& edge : fabric.edges()) {
    if (edge.capacity_Bps == 0 || edge.from == edge.to) std::abort();
  }
  const std::string written = railweave::format_fabric_json(fabric);
  if (railweave::format_fabric_json(railweave::parse_fabric_json(written, "output")) != written) std::abort();
}
