// How today's libraries route, whatever the traffic is: the policies single-path, nccl and ucx-rails.
#pragma once

#include <cstdint>
#include <vector>

#include "live_routes.hpp"
#include "railweave/planner/planner.hpp"
#include "route_table.hpp"

namespace railweave {

class StaticRoutes {
 public:
  StaticRoutes(const RouteTable& table, const LiveRoutes& live, const PlannerSettings& settings);

  // Appends the shares of one demand; false where the pair has no usable route at all.
  bool append(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares);

 private:
  bool append_inside(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares);
  bool single_path(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares);
  bool nccl(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares);
  bool ucx_rails(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares);
  bool any_rail(GpuId src, GpuId dst, std::uint64_t bytes, std::vector<Share>& shares);
  // Completes the kind; false when an edge of the route is down or missing.
  bool usable(Route& route);

  const RouteTable* table_;
  const LiveRoutes* live_;
  PlannerSettings settings_;
  std::vector<std::vector<VertexId>> near_nics_;  // by GPU
  std::vector<EdgeId> edges_;
};

}  // namespace railweave
