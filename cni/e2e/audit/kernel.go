package audit

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// route is an entry of `ip -j route`.
type route struct {
	Type     string `json:"type"`
	Dst      string `json:"dst"`
	Gateway  string `json:"gateway"`
	Dev      string `json:"dev"`
	Protocol string `json:"protocol"`
	Table    string `json:"table"`
}

func routes(ns testnet.Namespace, args ...string) ([]route, error) {
	var all []route
	for _, family := range []string{"-4", "-6"} {
		text, err := ns.Output("ip", append([]string{"-j", "-d", family, "route", "show"}, args...)...)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(text) == "" {
			continue // what some versions of ip print for an empty list
		}
		var some []route
		if err := json.Unmarshal([]byte(text), &some); err != nil {
			return nil, fmt.Errorf("%s: ip route: %w", ns.Name, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// auditKernel checks that the main table holds the announcements of this node's addresses as blackholes, and nothing
// else that leads into a rail's pool; and that no port's interface outlived its pod.
func auditKernel(e *expectation) ([]Finding, error) {
	all, err := routes(e.node.NS, "table", "all")
	if err != nil {
		return nil, err
	}
	var want, got []string
	for _, a := range e.attachments {
		for _, addr := range a.Addresses {
			want = append(want, hostPrefix(addr))
		}
	}
	var findings []Finding
	for _, r := range all {
		prefix, ok := prefixOf(r.Dst)
		if !ok {
			continue
		}
		switch {
		case !inPools(prefix.Addr(), e.rails):
			if r.Protocol == "bgp" {
				findings = append(findings, e.finding("kernel", "learned route %s in table %s", r.Dst, r.Table))
			}
		case r.Type == "blackhole":
			got = append(got, prefix.String())
		default:
			findings = append(findings, e.finding("kernel", "route %s to %s dev %s proto %s leads into a rail's pool", r.Type, r.Dst, r.Dev, r.Protocol))
		}
	}
	findings = append(findings, e.compare("kernel", "announcement", want, got)...)
	links, err := portLinks(e)
	return append(findings, links...), err
}

// prefixOf reads a destination of `ip route`: a prefix, an address, or "default".
func prefixOf(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p, true
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	return netip.Prefix{}, false
}

// portLinks checks the veth interfaces of the node: each is an attachment's, with the rail's MTU, or on the default network's bridge.
func portLinks(e *expectation) ([]Finding, error) {
	text, err := e.node.NS.Output("ip", "-j", "-d", "link", "show", "type", "veth")
	if err != nil {
		return nil, err
	}
	var links []struct {
		Name   string `json:"ifname"`
		Master string `json:"master"`
		MTU    int    `json:"mtu"`
	}
	if strings.TrimSpace(text) != "" {
		if err := json.Unmarshal([]byte(text), &links); err != nil {
			return nil, fmt.Errorf("%s: ip link: %w", e.node.NS.Name, err)
		}
	}
	var findings []Finding
	for _, link := range links {
		port := slices.ContainsFunc(e.attachments, func(a expected) bool { return a.Port == link.Name })
		if port && link.MTU != testnet.RailMTU {
			findings = append(findings, e.finding("kernel", "port %s has MTU %d, the rail has %d", link.Name, link.MTU, testnet.RailMTU))
		}
		if !port && link.Name != "eth0" && !strings.HasPrefix(link.Name, "uplink") && link.Master != "cni0" {
			findings = append(findings, e.finding("kernel", "interface %s is left over", link.Name))
		}
	}
	return findings, nil
}

// auditPods checks in every pod that the rail's addresses are routed through the rail's own table and interface.
func auditPods(e *expectation) ([]Finding, error) {
	var findings []Finding
	for _, a := range e.attachments {
		for _, addr := range a.Addresses {
			peer, _ := testnet.NodeRange(a.Rail, testnet.MaxNodes)
			if addr.Is6() {
				_, peer = testnet.NodeRange(a.Rail, testnet.MaxNodes)
			}
			text, err := a.pod.NS.Output("ip", "-j", "route", "get", peer.Addr().Next().String(), "from", addr.String())
			if err != nil {
				findings = append(findings, e.finding("pod", "%v cannot route from %s: %v", a.pod, addr, err))
				continue
			}
			var chosen []route
			if err := json.Unmarshal([]byte(text), &chosen); err != nil || len(chosen) != 1 {
				return nil, fmt.Errorf("%v: ip route get: %w: %s", a.pod, err, text)
			}
			gateway4, gateway6 := testnet.Gateway(a.Rail)
			if g := chosen[0].Gateway; chosen[0].Dev != a.Interface || (g != gateway4.String() && g != gateway6.String()) {
				findings = append(findings, e.finding("pod", "%v routes from %s by %s through %q", a.pod, addr, chosen[0].Dev, g))
			}
		}
	}
	return findings, nil
}
