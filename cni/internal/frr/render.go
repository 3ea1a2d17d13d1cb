// Package frr renders the node's FRR configuration, has the real daemon check it, applies it, and reads session states.
package frr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/railweave/railweave/cni/internal/nodeconfig"
)

// RouteProtocol is the rtnetlink protocol number of the announcements. FRR cannot match it, so prefix lists guard what is
// redistributed; people and the agent can (`ip route show proto 157`).
const RouteProtocol = 157

// Render is the node's whole configuration: deterministic.
func Render(config *nodeconfig.Config) string {
	return header + renderBGP(config) + renderBFD(config) + "end\n"
}

const header = "! Written by railweave-node from the node file; changes made here are undone.\n"

// renderBFD is bfdd's part.
func renderBFD(config *nodeconfig.Config) string {
	if !config.FRR.BFD {
		return ""
	}
	// 3 x 300 ms, FRR's default, written out because the profile's users rely on it.
	return "bfd\n profile RW\n  detect-multiplier 3\n  transmit-interval 300\n  receive-interval 300\n exit\nexit\n!\n"
}

// renderBGP is bgpd's part.
func renderBGP(config *nodeconfig.Config) string {
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	line("hostname %s", config.Node)
	line("log syslog informational")
	line("!")
	router(line, config)
	prefixLists(line, config)
	line("bgp as-path access-list RW-OWN seq 5 permit ^$")
	line("!")
	routeMaps(line, config)
	return text.String()
}

type printer func(format string, args ...any)

type neighbor struct {
	name     string
	rail     *nodeconfig.Rail
	families []string // the address families the session carries
}

// neighbors: an unnumbered one makes zebra send router advertisements on its interface by itself.
func neighbors(config *nodeconfig.Config) []neighbor {
	var found []neighbor
	for i := range config.Rails {
		rail := &config.Rails[i]
		if rail.Peer.Unnumbered {
			found = append(found, neighbor{rail.Bridge, rail, railFamilies(rail)})
		}
		for _, peer := range rail.Peer.Addresses {
			families := []string{family(peer)}
			if len(rail.Peer.Addresses) == 1 && peer.Is6() {
				families = railFamilies(rail) // RFC 8950: IPv4 routes with IPv6 next hops
			}
			found = append(found, neighbor{peer.String(), rail, families})
		}
	}
	return found
}

func family(address netip.Addr) string {
	if address.Is4() {
		return "ipv4"
	}
	return "ipv6"
}

func railFamilies(rail *nodeconfig.Rail) []string {
	var families []string
	for _, name := range []string{"ipv4", "ipv6"} {
		for _, pool := range rail.Pools {
			if family(pool.Prefix.Addr()) == name {
				families = append(families, name)
				break
			}
		}
	}
	return families
}

func router(line printer, config *nodeconfig.Config) {
	line("router bgp %d", config.ASN)
	line(" bgp router-id %s", config.RouterID)
	line(" no bgp default ipv4-unicast")
	line(" bgp graceful-restart")
	// The switch forwards without FRR: the leaf may keep the routes while FRR restarts.
	line(" bgp graceful-restart preserve-fw-state")
	line(" bgp graceful-restart restart-time %d", config.FRR.GracefulRestartSeconds)
	peers := neighbors(config)
	for _, n := range peers {
		asn := "external"
		if n.rail.Peer.ASN != 0 {
			asn = fmt.Sprint(n.rail.Peer.ASN)
		}
		switch {
		case n.rail.Peer.Unnumbered && guessed(n.rail):
			line(" neighbor %s interface v6only remote-as %s", n.name, asn)
		case n.rail.Peer.Unnumbered:
			line(" neighbor %s interface remote-as %s", n.name, asn)
		default:
			line(" neighbor %s remote-as %s", n.name, asn)
		}
		line(" neighbor %s description %s", n.name, n.rail.Name)
		if config.FRR.BFD {
			line(" neighbor %s bfd", n.name)
			// A restart of bgpd alone must not look like a dead path.
			line(" neighbor %s bfd check-control-plane-failure", n.name)
			line(" neighbor %s bfd profile RW", n.name)
		}
		// A lost leaf is noticed in 9 s without BFD; a lost link at once.
		line(" neighbor %s timers 3 9", n.name)
		line(" neighbor %s timers connect 1", n.name)
		line(" neighbor %s advertisement-interval 0", n.name)
		if !n.rail.Peer.Unnumbered && strings.Contains(n.name, ":") && len(n.families) == 2 {
			line(" neighbor %s capability extended-nexthop", n.name)
		}
	}
	for _, name := range []string{"ipv4", "ipv6"} {
		addressFamily(line, config, peers, name)
	}
	line("exit")
	line("!")
}

// guessed: FRR makes the peer's IPv4 address up from a /30 or /31 of the interface, and then waits for a session with it rather than
// with the neighbour that it hears. (On other rails the line stays as it was: another one would end their sessions once.)
func guessed(rail *nodeconfig.Rail) bool {
	return slices.ContainsFunc(rail.NodeAddresses(), func(prefix netip.Prefix) bool {
		return prefix.Addr().Is4() && (prefix.Bits() == 30 || prefix.Bits() == 31)
	})
}

func addressFamily(line printer, config *nodeconfig.Config, peers []neighbor, name string) {
	if !usesFamily(config, name) {
		return
	}
	line(" !")
	line(" address-family %s unicast", name)
	line("  redistribute kernel route-map RW-ANNOUNCE")
	for _, n := range peers {
		for _, carried := range n.families {
			if carried != name {
				continue
			}
			line("  neighbor %s activate", n.name)
			// A warning alone: without it the session stays down until somebody clears it, on all nodes at once, over routes that
			// nothing here uses.
			line("  neighbor %s maximum-prefix %d warning-only", n.name, config.FRR.MaximumPrefixes)
			line("  neighbor %s route-map RW-IN in", n.name)
			line("  neighbor %s route-map RW-OUT-%s out", n.name, n.rail.Name)
		}
	}
	// Learned routes stay in bgpd: the switch sends to the leaf without asking the kernel, and the host must not get a way into the GPU network.
	line("  table-map RW-NO-RIB")
	line(" exit-address-family")
}

func usesFamily(config *nodeconfig.Config, name string) bool {
	for i := range config.Rails {
		for _, used := range railFamilies(&config.Rails[i]) {
			if used == name {
				return true
			}
		}
	}
	return false
}

// prefixLists: per rail what may be announced on it (host routes of its pools), and all pools for what may be learned.
func prefixLists(line printer, config *nodeconfig.Config) {
	write := func(name, wanted string, pools []nodeconfig.Pool) {
		command, bits := "ip", 32
		if wanted == "ipv6" {
			command, bits = "ipv6", 128
		}
		sequence := 0
		for _, pool := range pools {
			if family(pool.Prefix.Addr()) != wanted {
				continue
			}
			sequence += 5
			suffix := fmt.Sprintf(" ge %d", bits)
			if pool.Prefix.Bits() == bits {
				suffix = ""
			}
			line("%s prefix-list %s seq %d permit %s%s", command, name, sequence, pool.Prefix, suffix)
		}
	}
	var all []nodeconfig.Pool
	for _, rail := range config.Rails {
		all = append(all, rail.Pools...)
	}
	for _, wanted := range []string{"ipv4", "ipv6"} {
		for _, rail := range config.Rails {
			write("RW-"+rail.Name, wanted, rail.Pools)
		}
		write("RW-ALL", wanted, all)
		line("!")
	}
}

func routeMaps(line printer, config *nodeconfig.Config) {
	entry := func(name string, sequence int, body ...string) {
		line("route-map %s permit %d", name, sequence)
		for _, text := range body {
			line(" %s", text)
		}
		line("exit")
		line("!")
	}
	entry("RW-ANNOUNCE", 10, "match ip address prefix-list RW-ALL")
	entry("RW-ANNOUNCE", 20, "match ipv6 address prefix-list RW-ALL")
	entry("RW-IN", 10, "match ip address prefix-list RW-ALL")
	entry("RW-IN", 20, "match ipv6 address prefix-list RW-ALL")
	line("route-map RW-NO-RIB deny 10")
	line("exit")
	line("!")
	for _, rail := range config.Rails {
		// Own routes only: the node is never a way from one leaf to another.
		entry("RW-OUT-"+rail.Name, 10, "match as-path RW-OWN", "match ip address prefix-list RW-"+rail.Name)
		entry("RW-OUT-"+rail.Name, 20, "match as-path RW-OWN", "match ipv6 address prefix-list RW-"+rail.Name)
	}
}
