// An operation with both kinds of messages where packets have blocks of their own: they run what a warp does (packet_roles.hpp), the other
// blocks what a block does with granted messages (roles.hpp). Written once for GPU threads and for tests, over a `Team`, the threads of a
// block:
//
//   any(b)          whether b is true for one of them
//   together(f)     f() by all, at once; its result
//
// A block of the first kind joins the others when its packets are moved, and earlier whenever they have been waiting for a while: so a
// block waits inside no role here either, and the first block alone, or the first cluster, can do everything.
#pragma once

#include "packet_roles.hpp"
#include "roles.hpp"

namespace railweave::cuda {

// Turns without a packet, of some 0.3 us each, before a granted message gets one. Longer than a small operation takes (6 us), so packets
// whose peers are there are not held up; short beside the pushes that may be waiting for this block.
inline constexpr std::uint32_t kPacketPatience = 64;

// A block of the first kind. The others run the roles of granted messages alone.
template <typename Team, typename Packets, typename Granted>
RAILWEAVE_ROLE void run_apart(Team& team, Packets& packets, Granted& granted) {
  bool packets_left = true, begun = false, granted_left = true;
  packets.begin();
  while (packets_left || granted_left) {
    if (packets_left) {
      packets_left = team.any(packets.go_on(kPacketPatience));
      if (!packets_left) packets.end();
    }
    if (!granted_left) continue;
    granted_left = team.together([&] {
      if (!begun) granted.begin();
      begun = true;
      // One piece at a time while packets may come meanwhile.
      const bool left = granted.turn(packets_left);
      if (!left) granted.end();
      return left;
    });
  }
}

}  // namespace railweave::cuda
