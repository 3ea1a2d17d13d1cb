package flow

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/railweave/railweave/cni/internal/attachment"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	router  = "02:00:00:00:00:01"
	leaf    = "02:00:00:00:00:99"
	podMAC  = "0a:00:00:00:00:0a"
	peerMAC = "0a:00:00:00:00:0b"
	foeMAC  = "0a:00:00:00:00:0c"
	group6  = "33:33:00:00:00:01"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func pod(name string, port int, mac string, tenant uint32, hosts ...string) Pod {
	p := Pod{Key: attachment.Key{Network: "rail0", ContainerID: name, Interface: "net1"}, OFPort: port, MAC: mac, Tenant: tenant}
	for _, host := range hosts {
		p.Hosts = append(p.Hosts, addr(host))
	}
	return p
}

// example: on this node two pods of tenant 1 and one of tenant 2; elsewhere one address of each, and one of a tenant that is not here.
func example() Rail {
	return Rail{
		UplinkOFPort: 1, RouterMAC: router, LeafMAC: leaf,
		Pods: []Pod{
			pod("a", 11, podMAC, 1, "10.64.0.10", "fd64::10"),
			pod("b", 12, peerMAC, 1, "10.64.0.11", "fd64::11"),
			pod("c", 13, foeMAC, 2, "10.64.0.12", "fd64::12"),
			pod("d", 14, "0a:00:00:00:00:0d", 0, "10.64.0.13"),
		},
		Members: []Member{{addr("10.64.1.1"), 1}, {addr("fd64::1:1"), 1}, {addr("10.64.1.2"), 2}, {addr("10.64.1.3"), 3}, {addr("10.65.0.10"), 1}},
	}
}

// TestWhoReachesWhom is the isolation, packet by packet.
func TestWhoReachesWhom(t *testing.T) {
	const dropped = ""
	fromPod := func(change func(*packet)) packet {
		p := packet{inPort: "11", source: podMAC, destination: router, kind: "udp", from: addr("10.64.0.10"), to: addr("10.64.0.11"), targetPort: 4791, ttl: 64}
		change(&p)
		return p
	}
	fromLeaf := func(change func(*packet)) packet {
		p := packet{inPort: "1", source: leaf, destination: router, kind: "udp", from: addr("10.64.1.1"), to: addr("10.64.0.10"), targetPort: 4791, ttl: 60}
		change(&p)
		return p
	}
	ll, other := addr("fe80::1"), addr("fe80::2")
	for _, test := range []struct {
		name   string
		packet packet
		output string
		target string // the destination MAC it leaves with
	}{
		{"pod to pod, one node", fromPod(func(*packet) {}), "12", peerMAC},
		{"pod to pod, IPv6", fromPod(func(p *packet) { p.kind, p.from, p.to = "tcp6", addr("fd64::10"), addr("fd64::11") }), "12", peerMAC},
		{"pod to another node", fromPod(func(p *packet) { p.to = addr("10.64.1.1") }), "1", leaf},
		{"pod to another node, IPv6", fromPod(func(p *packet) { p.kind, p.from, p.to = "icmp6", addr("fd64::10"), addr("fd64::1:1"); p.icmpType = 128 }), "1", leaf},
		{"pod to another rail over the spine", fromPod(func(p *packet) { p.to = addr("10.65.0.10") }), "1", leaf},
		{"pod to another tenant, one node", fromPod(func(p *packet) { p.to = addr("10.64.0.12") }), dropped, ""},
		{"pod to another tenant elsewhere", fromPod(func(p *packet) { p.to = addr("10.64.1.2") }), dropped, ""},
		{"pod to a tenant that is not here", fromPod(func(p *packet) { p.to = addr("10.64.1.3") }), dropped, ""},
		{"pod to a pod without a tenant", fromPod(func(p *packet) { p.to = addr("10.64.0.13") }), dropped, ""},
		{"pod to an unknown address", fromPod(func(p *packet) { p.to = addr("10.64.9.9") }), dropped, ""},
		{"pod to the gateway", fromPod(func(p *packet) { p.to = addr("10.64.0.1") }), dropped, ""},
		{"pod with another's source address", fromPod(func(p *packet) { p.from = addr("10.64.0.11"); p.to = addr("10.64.1.1") }), dropped, ""},
		{"pod with another's source MAC", fromPod(func(p *packet) { p.source = peerMAC }), dropped, ""},
		{"pod with another pod's MAC and address", fromPod(func(p *packet) { p.source, p.from = foeMAC, addr("10.64.0.12") }), dropped, ""},
		{"pod past the router, to a pod's MAC", fromPod(func(p *packet) { p.destination = peerMAC }), dropped, ""},
		{"pod to the leaf's MAC", fromPod(func(p *packet) { p.destination, p.to = leaf, addr("10.64.1.1") }), dropped, ""},
		{"802.1Q from a pod", fromPod(func(p *packet) { p.tagged = true }), dropped, ""},
		{"ARP from a pod", fromPod(func(p *packet) { p.kind = "arp"; p.destination = "ff:ff:ff:ff:ff:ff" }), dropped, ""},
		{"LLDP from a pod", fromPod(func(p *packet) { p.kind = "lldp" }), dropped, ""},
		{"RoCEv1 from a pod", fromPod(func(p *packet) { p.kind = "rocev1" }), dropped, ""},
		{"multicast from a pod", fromPod(func(p *packet) { p.destination, p.to = "01:00:5e:00:00:01", addr("224.0.0.1") }), dropped, ""},
		{"router advertisement from a pod", fromPod(func(p *packet) {
			p.kind, p.icmpType, p.ttl, p.from, p.to, p.destination = "icmp6", 134, 255, ll, addr("ff02::1"), group6
		}), dropped, ""},
		{"neighbour advertisement to a pod of the tenant", fromPod(func(p *packet) {
			p.kind, p.icmpType, p.ttl, p.from, p.to = "icmp6", 136, 255, addr("fd64::10"), addr("fd64::11")
		}), dropped, ""},
		{"BGP from a pod with the router's MAC", fromPod(func(p *packet) { p.kind, p.source, p.from, p.to, p.targetPort = "tcp6", router, ll, other, 179 }), dropped, ""},
		{"last hop from a pod", fromPod(func(p *packet) { p.ttl = 1 }), dropped, ""},
		{"leaf to pod", fromLeaf(func(*packet) {}), "11", podMAC},
		{"leaf to pod of another tenant", fromLeaf(func(p *packet) { p.to = addr("10.64.0.12") }), dropped, ""},
		{"leaf, source of a tenant that is not here", fromLeaf(func(p *packet) { p.from = addr("10.64.1.3") }), dropped, ""},
		{"leaf, source unknown", fromLeaf(func(p *packet) { p.from = addr("192.0.2.1") }), dropped, ""},
		{"leaf, source of a pod here", fromLeaf(func(p *packet) { p.from = addr("10.64.0.11") }), dropped, ""},
		{"leaf back to the leaf", fromLeaf(func(p *packet) { p.to = addr("10.65.0.10") }), dropped, ""},
		{"leaf to another MAC", fromLeaf(func(p *packet) { p.destination = podMAC }), dropped, ""},
		{"leaf, 802.1Q", fromLeaf(func(p *packet) { p.tagged = true }), dropped, ""},
		{"leaf, neighbour advertisement to a pod", fromLeaf(func(p *packet) { p.kind, p.icmpType, p.from, p.to = "icmp6", 136, addr("fd64::1:1"), addr("fd64::10") }), dropped, ""},
		{"leaf, BGP to the node", fromLeaf(func(p *packet) { p.kind, p.from, p.to, p.targetPort = "tcp6", ll, other, 179 }), "LOCAL", router},
		{"leaf, BFD to the node", fromLeaf(func(p *packet) { p.kind, p.from, p.to, p.targetPort, p.ttl = "udp6", ll, other, 3784, 255 }), "LOCAL", router},
		{"leaf, SSH to the node", fromLeaf(func(p *packet) { p.kind, p.from, p.to, p.targetPort = "tcp6", ll, other, 22 }), dropped, ""},
		{"leaf, router advertisement to the node", fromLeaf(func(p *packet) {
			p.kind, p.icmpType, p.ttl, p.from, p.to, p.destination = "icmp6", 134, 255, ll, addr("ff02::1"), group6
		}), "LOCAL", group6},
		{"node, BGP to the leaf", packet{inPort: "LOCAL", source: router, destination: leaf, kind: "tcp6", from: other, to: ll, sourcePort: 179, ttl: 1}, "1", leaf},
		{"node, ping to a pod", packet{inPort: "LOCAL", source: router, destination: router, kind: "icmp", from: addr("10.255.0.1"), to: addr("10.64.0.10"), ttl: 64}, dropped, ""},
		{"node with a pod's address", packet{inPort: "LOCAL", source: router, destination: router, kind: "udp", from: addr("10.64.0.11"), to: addr("10.64.0.10"), ttl: 64}, dropped, ""},
		{"a port without an attachment", packet{inPort: "20", source: podMAC, destination: router, kind: "udp", from: addr("10.64.0.10"), to: addr("10.64.0.11"), ttl: 64}, dropped, ""},
		{"a pod without a tenant", packet{inPort: "14", source: "0a:00:00:00:00:0d", destination: router, kind: "udp", from: addr("10.64.0.13"), to: addr("10.64.0.10"), ttl: 64}, dropped, ""},
	} {
		output, source, target := switched(t, Program(example()), test.packet)
		if output != test.output || output != dropped && target != test.target {
			t.Errorf("%s: leaves by %q to %s, want %q to %s", test.name, output, target, test.output, test.target)
		}
		if output != dropped && output != "LOCAL" && test.packet.inPort != "LOCAL" && source != router {
			t.Errorf("%s: leaves with source MAC %s", test.name, source)
		}
	}
}

// TestNumberedPeers: the leaf may speak BGP, BFD and ARP with the node, and nothing else.
func TestNumberedPeers(t *testing.T) {
	rail := Rail{UplinkOFPort: 1, RouterMAC: router, LeafMAC: leaf, Addresses: []netip.Addr{addr("10.255.0.1")}, Peers: []netip.Addr{addr("10.255.0.0")}}
	in := packet{inPort: "1", source: leaf, destination: router, kind: "tcp", from: addr("10.255.0.0"), to: addr("10.255.0.1"), targetPort: 179, ttl: 1}
	for _, test := range []struct {
		name   string
		change func(*packet)
		output string
	}{
		{"BGP", func(*packet) {}, "LOCAL"},
		{"BGP from elsewhere", func(p *packet) { p.from = addr("10.255.0.9") }, ""},
		{"ARP", func(p *packet) { p.kind, p.destination = "arp", "ff:ff:ff:ff:ff:ff" }, "LOCAL"},
		{"SSH", func(p *packet) { p.targetPort = 22 }, ""},
		{"unnumbered BGP", func(p *packet) { p.kind, p.from, p.to = "tcp6", addr("fe80::1"), addr("fe80::2") }, ""},
	} {
		p := in
		test.change(&p)
		if output, _, _ := switched(t, Program(rail), p); output != test.output {
			t.Errorf("%s: leaves by %q, want %q", test.name, output, test.output)
		}
	}
}

func TestWithoutUplinkOrLeafNothingLeaves(t *testing.T) {
	for _, change := range []func(*Rail){func(r *Rail) { r.UplinkOFPort = 0 }, func(r *Rail) { r.LeafMAC = "" }} {
		rail := example()
		change(&rail)
		p := packet{inPort: "11", source: podMAC, destination: router, kind: "udp", from: addr("10.64.0.10"), to: addr("10.64.1.1"), ttl: 64}
		if output, _, _ := switched(t, Program(rail), p); output != "" {
			t.Errorf("leaves by %q", output)
		}
	}
}

func TestGolden(t *testing.T) {
	path := filepath.Join("testdata", "program.golden")
	got := Text(Program(example()))
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the program changed (go test -update writes it anew):\n%s", got)
	}
}

// TestEveryFlowIsOurs: no NORMAL, no flood, no controller; the cookie says ours.
func TestEveryFlowIsOurs(t *testing.T) {
	for _, flow := range Program(example()) {
		if flow.Cookie&CookieMask != CookieBase {
			t.Errorf("cookie of %s", flow)
		}
		for _, forbidden := range []string{"NORMAL", "FLOOD", "ALL", "CONTROLLER", "ct(", "learn"} {
			if strings.Contains(flow.Actions, forbidden) {
				t.Errorf("%s has %s", flow, forbidden)
			}
		}
	}
}

// applyChange does to a flow table what the switch does with the bundle.
func applyChange(installed []Flow, change Change) []Flow {
	table := map[string]Flow{}
	for _, flow := range installed {
		table[flow.ID()] = flow
	}
	for _, clear := range change.Clear {
		fields := strings.Split(clear, ",")[1:] // after the cookie
		for id, flow := range table {
			has := strings.Split(flow.Match, ",")
			if !slices.ContainsFunc(fields, func(f string) bool { return !slices.Contains(has, f) }) {
				delete(table, id)
			}
		}
	}
	for _, flow := range change.Delete {
		delete(table, flow.ID())
	}
	for _, flow := range change.Add {
		table[flow.ID()] = flow
	}
	var result []Flow
	for _, flow := range table {
		result = append(result, flow)
	}
	return result
}

// TestDifferenceLeadsToTheProgram: from any state by any change the bundle gives exactly the new program.
func TestDifferenceLeadsToTheProgram(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	state := func() Rail {
		rail := Rail{UplinkOFPort: 1, RouterMAC: router, LeafMAC: []string{leaf, "", "02:00:00:00:00:98"}[random.IntN(3)]}
		for i := range 6 {
			if random.IntN(2) == 0 {
				rail.Pods = append(rail.Pods, pod(fmt.Sprint(random.IntN(3), "-", i), 10+random.IntN(8)*10+i, fmt.Sprintf("0a:00:00:00:00:%02x", random.IntN(2)*16+i), uint32(random.IntN(3)), fmt.Sprintf("10.64.0.%d", 10+i)))
			} else if random.IntN(2) == 0 {
				rail.Members = append(rail.Members, Member{addr(fmt.Sprintf("10.64.0.%d", 10+i)), uint32(1 + random.IntN(3))})
			}
		}
		return rail
	}
	for range 2000 {
		before, after := state(), state()
		var arrivals []Pod
		for _, p := range after.Pods {
			if random.IntN(2) == 0 {
				arrivals = append(arrivals, p)
			}
		}
		wanted := Program(after)
		got := applyChange(Program(before), Difference(Program(before), wanted, arrivals))
		order := func(a, b Flow) int { return strings.Compare(a.String(), b.String()) }
		slices.SortFunc(got, order)
		want := slices.SortedFunc(slices.Values(wanted), order)
		if !slices.Equal(got, want) {
			t.Fatalf("got\n%swant\n%s", Text(got), Text(want))
		}
		if change := Difference(wanted, wanted, nil); !change.Empty() {
			t.Fatalf("from a program to itself: %+v", change)
		}
	}
}

func TestCookiesDiffer(t *testing.T) {
	seen := map[uint64]attachment.Key{}
	for i := range 10000 {
		key := attachment.Key{Network: "n", ContainerID: fmt.Sprint(i), Interface: "net1"}
		cookie := Cookie(key)
		if other, taken := seen[cookie]; taken || cookie == ControlCookie || cookie == MemberCookie {
			t.Fatalf("%s and %s have cookie %#x", key, other, cookie)
		}
		seen[cookie] = key
	}
}
