package testnet

import (
	"fmt"
	"net/netip"
	"strings"
)

// Peering says how a session between two routers is addressed.
type Peering string

// The two ways to peer.
const (
	Unnumbered Peering = "unnumbered" // by interface, over IPv6 link-local addresses; IPv4 with an IPv6 next hop
	Numbered   Peering = "numbered"   // one session over IPv4 and one over IPv6 addresses of the link
)

// Router is a leaf or a spine: a namespace that forwards, with FRR.
type Router struct {
	Name string
	ASN  uint32
	NS   Namespace
	FRR  FRR
}

// neighbor is one peer in a router's configuration.
type neighbor struct {
	ifname   string
	peer4    netip.Addr // numbered only
	peer6    netip.Addr // numbered only
	isNode   bool       // accept only the rail's host routes from it
	bfd      bool
	maxRoute int
}

// routerConfig renders a leaf's or spine's frr.conf: eBGP to each neighbour, IPv4 and IPv6, graceful restart. From
// nodes only host routes of the rail's pool are accepted, as a careful operator would have it.
func routerConfig(r Router, id netip.Addr, pool4, pool6 netip.Prefix, neighbors []neighbor) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("frr defaults datacenter")
	line("hostname %s", r.Name)
	line("service integrated-vtysh-config")
	line("ip prefix-list POOL4 seq 10 permit %s ge 32", pool4)
	line("ipv6 prefix-list POOL6 seq 10 permit %s ge 128", pool6)
	for _, v := range []string{"4", "6"} {
		line("route-map FROM-NODE%s permit 10", v)
		line(" match %s address prefix-list POOL%s", map[string]string{"4": "ip", "6": "ipv6"}[v], v)
		line("exit")
	}
	line("router bgp %d", r.ASN)
	line(" bgp router-id %s", id)
	line(" bgp graceful-restart")
	line(" bgp graceful-restart preserve-fw-state")
	line(" bgp graceful-restart stalepath-time 60")
	line(" bgp bestpath as-path multipath-relax")
	line(" no bgp ebgp-requires-policy")
	line(" timers bgp 3 9")
	for _, n := range neighbors {
		for _, peer := range n.peers() {
			if peer == n.ifname {
				line(" neighbor %s interface remote-as external", peer)
			} else {
				line(" neighbor %s remote-as external", peer)
			}
			line(" neighbor %s timers connect 1", peer)
			line(" neighbor %s advertisement-interval 0", peer)
			if n.bfd {
				line(" neighbor %s bfd", peer)
			}
			if !n.isNode {
				// Between leafs and spine nothing ever fails; a machine that stands still for seconds must not look like it.
				line(" neighbor %s timers 20 60", peer)
			}
		}
	}
	for _, family := range []string{"4", "6"} {
		line(" address-family ipv%s unicast", family)
		for _, n := range neighbors {
			for _, peer := range n.peers() {
				if !n.carries(peer, family) {
					line("  no neighbor %s activate", peer)
					continue
				}
				line("  neighbor %s activate", peer)
				if n.isNode {
					line("  neighbor %s route-map FROM-NODE%s in", peer, family)
					line("  neighbor %s maximum-prefix %d", peer, n.maxRoute)
				}
			}
		}
		line(" exit-address-family")
	}
	line("exit")
	return b.String()
}

// peers are the names by which FRR knows the neighbour.
func (n neighbor) peers() []string {
	if !n.peer4.IsValid() {
		return []string{n.ifname}
	}
	return []string{n.peer4.String(), n.peer6.String()}
}

// carries reports whether the session with the given name carries the routes of an address family.
func (n neighbor) carries(peer, family string) bool {
	if peer == n.ifname {
		return true
	}
	return strings.Contains(peer, ":") == (family == "6")
}

// prepareForwarding makes a namespace forward both families.
func prepareForwarding(ns Namespace) error {
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv4/fib_multipath_hash_policy"} {
		if err := ns.Sysctl(key, "1"); err != nil {
			return err
		}
	}
	return nil
}
