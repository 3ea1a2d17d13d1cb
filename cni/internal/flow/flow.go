// Package flow turns the state of one rail into its complete OpenFlow program. Pure: no I/O, sorted, equal input gives equal output.
//
// Table 0 asks who sent a frame and gives it its sender's tenant, table 10 asks whether the receiver is of that tenant.
// Whatever no flow names is dropped: there is no flow with the action NORMAL, and the few that drop on purpose must win
// over a wider one.
package flow

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/railweave/railweave/cni/internal/attachment"
)

// Cookies: 16 bits that say "ours" ("RW"), 48 bits that say whose.
const (
	CookieBase uint64 = 0x5257_0000_0000_0000
	CookieMask uint64 = 0xffff_0000_0000_0000
	// ControlCookie marks the flows of the node itself.
	ControlCookie = CookieBase | 1
	// MemberCookie marks the flows of addresses that live elsewhere.
	MemberCookie = CookieBase | 2
)

// Tables.
const (
	tableSender   = 0
	tableReceiver = 10
)

// Priorities of table 0. The other tables have one.
const (
	priorityTagged    = 400
	priorityControl   = 300
	priorityNeighbour = 250
	priorityTraffic   = 200
)

// regOrigin tells table 10 where a packet came from: nothing is forwarded from the leaf to the leaf.
const (
	fromPod  = 1
	fromLeaf = 2
)

const localPort = "LOCAL"

// Flow is one OpenFlow flow. Two flows with the same table, priority and match are the same flow to the switch.
type Flow struct {
	Table    int
	Priority int
	Cookie   uint64
	Match    string
	Actions  string
}

// ID is what the switch tells flows apart by.
func (f Flow) ID() string {
	return fmt.Sprintf("table=%d,priority=%d,%s", f.Table, f.Priority, f.Match)
}

func (f Flow) String() string {
	return fmt.Sprintf("cookie=%#x,%s,actions=%s", f.Cookie, f.ID(), f.Actions)
}

// Pod is an attachment on this rail of this node, with the tenant it has now.
type Pod struct {
	Key    attachment.Key
	OFPort int
	MAC    string
	Hosts  []netip.Addr
	Tenant uint32 // 0: none, nothing passes
}

// Member is an address somewhere else: of a pod on another node, or of this node's pods on another rail.
type Member struct {
	Address netip.Addr
	Tenant  uint32
}

// Rail is all that a rail's program depends on.
type Rail struct {
	UplinkOFPort int
	RouterMAC    string
	LeafMAC      string // empty: unknown, nothing leaves
	Addresses    []netip.Addr
	Peers        []netip.Addr // empty: unnumbered
	Pods         []Pod
	Members      []Member
}

// Cookie of an attachment's flows.
func Cookie(key attachment.Key) uint64 {
	sum := fnv.New64a()
	for _, part := range []string{key.Network, key.ContainerID, key.Interface} {
		_, _ = sum.Write([]byte(part + "\x00")) // a hash.Hash never returns an error
	}
	own := sum.Sum64() &^ CookieMask
	if own <= 2 { // those of the node and the members
		own += 3
	}
	return CookieBase | own
}

// Program is every flow of the rail's bridge.
func Program(rail Rail) []Flow {
	flows := control(rail)
	served := map[uint32]bool{}
	for _, pod := range rail.Pods {
		if pod.OFPort > 0 && pod.Tenant != 0 {
			served[pod.Tenant] = true
			flows = append(flows, podFlows(rail, pod)...)
		}
	}
	for _, member := range rail.Members {
		if served[member.Tenant] {
			flows = append(flows, memberFlows(rail, member)...)
		}
	}
	slices.SortFunc(flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), strings.Compare(a.Match, b.Match))
	})
	return flows
}

// control carries the node's own protocols over the LOCAL port and nothing else: neighbour discovery, BGP, BFD.
func control(rail Rail) []Flow {
	flows := []Flow{{tableSender, priorityTagged, ControlCookie, "vlan_tci=0x1000/0x1000", "drop"}}
	// Router and neighbour discovery and redirects of pods go nowhere, with whatever source, nor do those for pods from
	// outside: a pod's gateway is a permanent neighbour.
	for kind := 133; kind <= 137; kind++ {
		flows = append(flows, Flow{tableSender, priorityNeighbour, ControlCookie, fmt.Sprintf("icmp6,icmp_type=%d", kind), "drop"})
	}
	if rail.UplinkOFPort <= 0 {
		return flows
	}
	uplink := fmt.Sprint(rail.UplinkOFPort)
	both := func(match string) {
		// To the router's MAC or to a group: what the leaf floods to others is not the node's.
		flows = append(flows,
			Flow{tableSender, priorityControl, ControlCookie, "in_port=" + uplink + ",dl_dst=" + rail.RouterMAC + "," + match, "output:" + localPort},
			Flow{tableSender, priorityControl, ControlCookie, "in_port=" + localPort + ",dl_src=" + rail.RouterMAC + "," + match, "output:" + uplink})
	}
	group := func(mac, match string) {
		flows = append(flows, Flow{tableSender, priorityControl, ControlCookie, "in_port=" + uplink + ",dl_dst=" + mac + "," + match, "output:" + localPort})
	}
	// Router and neighbour discovery: types 133 to 136, valid only with hop limit 255.
	for kind := 133; kind <= 136; kind++ {
		match := fmt.Sprintf("icmp6,nw_ttl=255,icmp_type=%d", kind)
		both(match)
		group("33:33:00:00:00:00/ff:ff:00:00:00:00", match)
	}
	if len(rail.Peers) == 0 {
		sessions(both, "tcp6", "udp6", "ipv6", "fe80::/10", "fe80::/10")
		return flows
	}
	both("arp")
	group("ff:ff:ff:ff:ff:ff", "arp")
	for _, peer := range rail.Peers {
		for _, own := range rail.Addresses {
			if own.Is4() != peer.Is4() {
				continue
			}
			if peer.Is4() {
				sessions(both, "tcp", "udp", "nw", peer.String(), own.String())
				sessions(both, "tcp", "udp", "nw", own.String(), peer.String())
			} else {
				sessions(both, "tcp6", "udp6", "ipv6", peer.String(), own.String())
				sessions(both, "tcp6", "udp6", "ipv6", own.String(), peer.String())
			}
		}
	}
	return flows
}

// sessions: BGP (either side may have connected), BFD control and echo packets.
func sessions(add func(match string), tcp, udp, family, source, destination string) {
	ends := fmt.Sprintf("%s_src=%s,%s_dst=%s", family, source, family, destination)
	add(tcp + "," + ends + ",tp_dst=179")
	add(tcp + "," + ends + ",tp_src=179")
	add(udp + "," + ends + ",tp_dst=3784")
	add(udp + "," + ends + ",tp_dst=3785")
}

func ipMatch(side string, address netip.Addr) string {
	if address.Is4() {
		return "ip,nw_" + side + "=" + address.String()
	}
	return "ipv6,ipv6_" + side + "=" + address.String()
}

func podFlows(rail Rail, pod Pod) []Flow {
	cookie := Cookie(pod.Key)
	var flows []Flow
	for _, host := range pod.Hosts {
		flows = append(flows,
			Flow{tableSender, priorityTraffic, cookie,
				fmt.Sprintf("in_port=%d,dl_src=%s,dl_dst=%s,%s", pod.OFPort, pod.MAC, rail.RouterMAC, ipMatch("src", host)),
				fmt.Sprintf("set_field:%d->reg0,set_field:%d->reg1,goto_table:%d", pod.Tenant, fromPod, tableReceiver)},
			Flow{tableReceiver, priorityTraffic, cookie,
				fmt.Sprintf("%s,reg0=%d", ipMatch("dst", host), pod.Tenant),
				fmt.Sprintf("set_field:%s->eth_src,set_field:%s->eth_dst,dec_ttl,output:%d", rail.RouterMAC, pod.MAC, pod.OFPort)})
	}
	return flows
}

func memberFlows(rail Rail, member Member) []Flow {
	if rail.UplinkOFPort <= 0 {
		return nil
	}
	flows := []Flow{{tableSender, priorityTraffic, MemberCookie,
		fmt.Sprintf("in_port=%d,dl_dst=%s,%s", rail.UplinkOFPort, rail.RouterMAC, ipMatch("src", member.Address)),
		fmt.Sprintf("set_field:%d->reg0,set_field:%d->reg1,goto_table:%d", member.Tenant, fromLeaf, tableReceiver)}}
	if rail.LeafMAC == "" {
		return flows
	}
	return append(flows, Flow{tableReceiver, priorityTraffic, MemberCookie,
		fmt.Sprintf("%s,reg0=%d,reg1=%d", ipMatch("dst", member.Address), member.Tenant, fromPod),
		fmt.Sprintf("set_field:%s->eth_src,set_field:%s->eth_dst,dec_ttl,output:%d", rail.RouterMAC, rail.LeafMAC, rail.UplinkOFPort)})
}

// Clear matches whatever flow of ours could still serve a port, MAC or address, whoever had it before.
func Clear(pod Pod) []string {
	ours := fmt.Sprintf("cookie=%#x/%#x", CookieBase, CookieMask)
	matches := []string{
		fmt.Sprintf("%s,in_port=%d", ours, pod.OFPort),
		fmt.Sprintf("%s,dl_src=%s", ours, pod.MAC),
	}
	for _, host := range pod.Hosts {
		matches = append(matches, ours+","+ipMatch("src", host), ours+","+ipMatch("dst", host))
	}
	return matches
}

// Change is one atomic step from a program to another.
type Change struct {
	Clear []string // matches deleted first
	Add   []Flow
	// Delete are the flows that are no longer in the program (strictly these).
	Delete []Flow
}

// Empty tells whether there is nothing to do.
func (c Change) Empty() bool { return len(c.Clear) == 0 && len(c.Add) == 0 && len(c.Delete) == 0 }

// Difference is the change from installed to wanted. arrivals are pods whose port, MAC and addresses are cleared of
// older flows in the same step.
func Difference(installed, wanted []Flow, arrivals []Pod) Change {
	var change Change
	before := make(map[string]Flow, len(installed))
	for _, flow := range installed {
		before[flow.ID()] = flow
	}
	for _, pod := range arrivals {
		if pod.OFPort > 0 {
			change.Clear = append(change.Clear, Clear(pod)...)
		}
	}
	fields := clearedFields(arrivals)
	cleared := func(flow Flow) bool {
		return slices.ContainsFunc(strings.Split(flow.Match, ","), func(field string) bool { return fields[field] })
	}
	for _, flow := range wanted {
		old, there := before[flow.ID()]
		if !there || old != flow || cleared(flow) {
			change.Add = append(change.Add, flow)
		}
		delete(before, flow.ID())
	}
	for _, flow := range installed {
		if _, gone := before[flow.ID()]; gone {
			change.Delete = append(change.Delete, flow)
		}
	}
	return change
}

// clearedFields are the match fields by which Clear deletes: flows that have one of them are gone and must be added
// again in the same bundle.
func clearedFields(arrivals []Pod) map[string]bool {
	fields := map[string]bool{}
	for _, pod := range arrivals {
		fields[fmt.Sprintf("in_port=%d", pod.OFPort)] = true
		fields["dl_src="+pod.MAC] = true
		for _, host := range pod.Hosts {
			for _, side := range []string{"src", "dst"} {
				_, field, _ := strings.Cut(ipMatch(side, host), ",")
				fields[field] = true
			}
		}
	}
	return fields
}

// Bundle is a change in the language of `ovs-ofctl --bundle add-flows`.
func (c Change) Bundle() string {
	var text strings.Builder
	for _, match := range c.Clear {
		fmt.Fprintf(&text, "delete %s\n", match)
	}
	for _, flow := range c.Delete {
		fmt.Fprintf(&text, "delete_strict cookie=%#x/-1,%s\n", flow.Cookie, flow.ID())
	}
	for _, flow := range c.Add {
		fmt.Fprintf(&text, "add %s\n", flow)
	}
	return text.String()
}

// Text is a whole program in the language of `ovs-ofctl replace-flows`.
func Text(flows []Flow) string {
	var text strings.Builder
	for _, flow := range flows {
		fmt.Fprintln(&text, flow)
	}
	return text.String()
}

// ValidMAC tells whether a text is a unicast MAC address as it appears in flows.
func ValidMAC(text string) bool {
	mac, err := net.ParseMAC(text)
	return err == nil && len(mac) == 6 && mac[0]&1 == 0 && mac.String() == text && text != "00:00:00:00:00:00"
}
