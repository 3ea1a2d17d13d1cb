package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/probe"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// tenants of the isolation tests: three. One is made of two Namespaces with a label, another is the Namespace of that name.
var tenants = map[string]string{"team-a": "", "team-b": "blue", "team-b2": "blue", "blue": ""}

// field is a cluster with pods of several tenants, and everything around them that must not hear them.
type field struct {
	*cluster.Cluster
	pods   []*runtime.Pod
	ends   []*probe.Endpoint // of the pods
	hosts  []*probe.Endpoint // of the nodes' LOCAL ports
	leaves []*probe.Endpoint // of the leafs' ports
	// impostors sit on the leafs' ports and send with the addresses of a tenant's pods, as a leaf would pass them on: what
	// they send to other tenants only the receiver's node can stop.
	impostors map[string][]*probe.Endpoint      // by tenant
	near      map[*probe.Endpoint]*testnet.Node // the node at the other end of an impostor's port
	common    []*runtime.Pod                    // pods of the default network only
	outside   []*probe.Endpoint                 // of those
	watches   []probe.Watch
	tenant    map[*probe.Endpoint]string
}

// plant starts perTenant pods of each tenant, in turn on the nodes, and one pod without rails on each node.
func plant(t *testing.T, c *cluster.Cluster, perTenant int) *field {
	t.Helper()
	f := &field{Cluster: c, tenant: map[*probe.Endpoint]string{}}
	for _, namespace := range []string{"team-a", "team-b", "blue"} {
		for i := range perTenant {
			of := namespace
			if namespace == "team-b" && i%3 == 2 {
				of = "team-b2"
			}
			f.pods = append(f.pods, run(t, c, i%len(c.Runtimes)+1, of, fmt.Sprintf("pod-%d", i)))
		}
	}
	for _, r := range c.Runtimes {
		pod, err := r.NewPod("team-a", "no-rails")
		must(t, err)
		must(t, r.AttachDefault(pod))
		f.common = append(f.common, pod)
	}
	audited(t, c)
	f.survey(t)
	return f
}

// survey looks up the endpoints and watches, which change when a switch restarts.
func (f *field) survey(t *testing.T) {
	t.Helper()
	f.ends = endpoints(t, f.pods)
	i := 0
	for _, pod := range f.pods {
		for range pod.Attachments {
			f.tenant[f.ends[i]] = tenantOf(pod.Namespace, tenants[pod.Namespace])
			i++
		}
	}
	f.hosts, f.leaves, f.watches, f.impostors = nil, nil, nil, map[string][]*probe.Endpoint{}
	f.near = map[*probe.Endpoint]*testnet.Node{}
	for _, node := range f.Network.Nodes {
		for _, link := range []string{"eth0", "cni0"} {
			f.watches = append(f.watches, probe.Watch{Name: node.Name + "/" + link, NS: node.NS, Interface: link, Outside: true})
		}
		for rail, leaf := range f.Network.Leaves {
			f.surveyLink(t, node, leaf, rail)
		}
	}
	for rail, leaf := range f.Network.Leaves {
		f.watches = append(f.watches, probe.Watch{Name: fmt.Sprintf("leaf%d/spine", rail), NS: leaf.NS, Interface: "spine", Transit: true})
	}
	f.outside = nil
	for _, pod := range f.common {
		f.watches = append(f.watches, probe.Watch{Name: pod.String() + "/eth0", NS: pod.NS, Interface: "eth0", Outside: true})
		f.outside = append(f.outside, f.surveyOutsider(t, pod))
	}
}

// surveyOutsider makes an endpoint of a default-network pod. That network has no IPv6, which keeps no one from sending it.
func (f *field) surveyOutsider(t *testing.T, pod *runtime.Pod) *probe.Endpoint {
	t.Helper()
	gateway, err := pod.Node.NS.HardwareAddr("cni0")
	must(t, err)
	address, err := pod.NS.IPv4("eth0")
	must(t, err)
	own := address.As4()
	global := netip.AddrFrom16([16]byte{0xfd, 0x44, 12: own[0], 13: own[1], 14: own[2], 15: own[3]})
	outsider, err := probe.NewRouterEndpoint(pod.String()+"/eth0", pod.NS, "eth0", probe.OffRails, address, global, gateway)
	must(t, err)
	outsider.SendOnly = true // watched already, as a place off the rails
	return outsider
}

// tenantOf names a Namespace's tenant. Names and labels are two sets: the quotes keep them apart.
func tenantOf(namespace, label string) string {
	if label == "" {
		return namespace
	}
	return strconv.Quote(label)
}

func (f *field) surveyLink(t *testing.T, node *testnet.Node, leaf *testnet.Router, rail int) {
	t.Helper()
	leafMAC, err := leaf.NS.HardwareAddr(testnet.LeafPort(node.Index))
	must(t, err)
	nodeMAC, err := node.NS.HardwareAddr(testnet.Bridge(rail))
	must(t, err)
	link := testnet.NodeLink(rail, node.Index)
	host, err := probe.NewRouterEndpoint(fmt.Sprintf("%s/rail%d", node.Name, rail), node.NS, testnet.Bridge(rail), rail,
		link.Node4.Addr(), link.Node6.Addr(), leafMAC)
	must(t, err)
	host.Fleeting = true
	f.hosts = append(f.hosts, host)
	router, err := probe.NewRouterEndpoint(fmt.Sprintf("%s/%s", leaf.Name, node.Name), leaf.NS, testnet.LeafPort(node.Index), rail,
		link.Leaf4.Addr(), link.Leaf6.Addr(), nodeMAC)
	must(t, err)
	host.Leaf = router.Name
	f.leaves = append(f.leaves, router)
	for _, pod := range f.ends {
		if tenant := f.tenant[pod]; pod.Rail == rail && !strings.Contains(pod.Name, "@"+node.Name+"/") && !f.played(tenant, router) {
			impostor, err := probe.NewRouterEndpoint(router.Name+" as "+pod.Name, leaf.NS, router.Interface, rail, pod.Addr4, pod.Addr6, nodeMAC)
			must(t, err)
			impostor.SendOnly, impostor.Plays = true, pod
			f.tenant[impostor] = tenant
			f.near[impostor] = node
			f.impostors[tenant] = append(f.impostors[tenant], impostor)
		}
	}
	f.watches = append(f.watches, probe.Watch{Name: router.Name, NS: leaf.NS, Interface: router.Interface, Transit: true})
}

// played reports whether a leaf's port has an impostor of a tenant already: one is enough.
func (f *field) played(tenant string, router *probe.Endpoint) bool {
	return slices.ContainsFunc(f.impostors[tenant], func(e *probe.Endpoint) bool {
		return e.NS == router.NS && e.Interface == router.Interface
	})
}

func (f *field) relation(from, to *probe.Endpoint) probe.Relation {
	if a, b := f.tenant[from], f.tenant[to]; a != "" && a == b {
		return probe.Friends
	}
	return probe.Strangers
}

// session watches everything. Hosts are both endpoints and watched; the leafs' ports are watched as transit.
func (f *field) session(t *testing.T) *probe.Session {
	t.Helper()
	all := slices.Concat(f.ends, f.hosts, f.outside)
	for _, impostors := range f.impostors {
		all = append(all, impostors...)
	}
	s, err := probe.NewSession(all, f.watches, f.relation, f.AwaitRoom)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// unicast are the kinds that are plain IP: what a host or leaf may send at all without it being its own control traffic.
func unicast() []probe.Kind {
	return kindsNamed("icmp-echo", "tcp-syn", "udp-rocev2", "first-fragment", "later-fragment")
}

// special are the other kinds.
func special() []probe.Kind {
	plain := map[string]bool{}
	for _, kind := range unicast() {
		plain[kind.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(probe.Kinds), func(k probe.Kind) bool { return plain[k.Name] })
}

// some are the endpoints of one pod of each tenant on each node.
func (f *field) some() []*probe.Endpoint {
	taken := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(f.ends), func(e *probe.Endpoint) bool {
		_, node, _ := strings.Cut(e.Name, "@")
		at := fmt.Sprint(e.Rail, f.tenant[e], node)
		defer func() { taken[at] = true }()
		return taken[at]
	})
}

func kindsNamed(prefixes ...string) []probe.Kind {
	return slices.DeleteFunc(slices.Clone(probe.Kinds), func(k probe.Kind) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(k.Name, p) })
	})
}

// verdict fails the test for every probe that leaked, at its first packet, and for every probe that is lost again when it is
// sent again. One probe may be lost on a busy machine; losses that are more than one in a thousand and more than what the
// switches count as dropped unread are a hole, and no second try covers it up.
func (f *field) verdict(t *testing.T, s *probe.Session, overflowBefore uint64) {
	t.Helper()
	const tries, oneIn = 3, 1000
	must(t, f.AwaitRead())
	s.Settle(10 * time.Second)
	losses, dropped := s.Losses(), f.overflow(t)-overflowBefore
	if excused := uint64(s.Expected()/oneIn) + dropped; uint64(len(losses)) > excused {
		t.Errorf("%d losses of %d probes that must arrive, more than the %d that a busy machine excuses:\n%s\n%s", len(losses), s.Expected(),
			excused, probe.Summary(losses), s.Timeline())
		f.diagnose(t)
	}
	for try := 1; len(losses) > 0 && !t.Failed(); try++ {
		if try > tries {
			t.Errorf("%d probes are lost each of %d times they are sent:\n%s", len(losses), try, probe.Summary(losses))
			break
		}
		t.Logf("%d of %d probes are sent again (the switches dropped %d packets unread):\n%s\n%s", len(losses), s.Expected(), dropped,
			probe.Summary(losses), s.Timeline())
		must(t, s.Resend())
		s.Settle(10 * time.Second)
		losses = s.Losses()
	}
	unread, err := s.Dropped()
	must(t, err)
	if unread > 0 {
		t.Errorf("the receivers' sockets overflowed by %d packets", unread)
	}
	if leaks := s.Leaks(); len(leaks) > 0 {
		t.Errorf("%d leaks of %d probes:\n%s", len(leaks), s.Sent(), probe.Summary(leaks))
	}
}

// TestIsolationMatrix sends every kind of probe between every ordered pair of 18 pods of three tenants on two nodes, and
// between them and the hosts, the leafs and pods of the default network.
func TestIsolationMatrix(t *testing.T) {
	t.Parallel()
	for _, peering := range []testnet.Peering{testnet.Unnumbered, testnet.Numbered} {
		t.Run(string(peering), func(t *testing.T) {
			if peering != testnet.Unnumbered {
				onlyFull(t)
			}
			c := start(t, cluster.Options{Tenants: tenants, Network: testnet.Config{Nodes: 2, Rails: 2, Peering: peering}})
			f := plant(t, c, 6)
			// A probe that a busy switch had no room for proves nothing when it does not arrive: then all are sent
			// again, more slowly.
			for burst := probe.Burst; ; burst /= 4 {
				before := f.overflow(t)
				f.everyPair(t, burst, before)
				unjudged := f.overflow(t) - before
				if unjudged == 0 || t.Failed() {
					break
				}
				if burst <= 1 {
					t.Fatalf("the switches had no room for %d packets, however slowly they were sent", unjudged)
				}
				t.Logf("the switches had no room for %d packets: once more, more slowly", unjudged)
			}
		})
	}
}

// everyPair sends every probe there is, and judges.
func (f *field) everyPair(t *testing.T, burst int, overflowBefore uint64) {
	t.Helper()
	s := f.session(t)
	must(t, s.Matrix(probe.Kinds, f.ends, f.ends, burst))
	must(t, s.Matrix(probe.Kinds, f.ends, f.hosts, burst))
	must(t, s.Matrix(unicast(), f.ends, f.leaves, burst))
	must(t, s.Matrix(probe.Kinds, f.hosts, f.ends, burst))
	// To another rail pods go over leafs and spine; frames that are not plain IP have no way, and a few pods are enough to show it.
	must(t, s.Across(unicast(), f.ends, f.ends, burst))
	must(t, s.Across(special(), f.some(), f.some(), burst))
	must(t, s.Across(unicast(), f.hosts, f.ends, burst))
	must(t, s.Across(unicast(), f.ends, f.hosts, burst))
	must(t, s.Across(probe.Kinds, f.outside, f.ends, burst))
	must(t, s.Across(probe.Kinds, f.ends, f.outside, burst))
	for tenant, impostors := range f.impostors {
		others := slices.DeleteFunc(slices.Clone(f.ends), func(e *probe.Endpoint) bool { return f.tenant[e] == tenant })
		must(t, s.Matrix(unicast(), impostors, others, burst))
		// And one kind, which draws no answer, to where it is let in: else the above would prove nothing.
		for _, impostor := range impostors {
			own := slices.DeleteFunc(slices.Clone(f.ends), func(e *probe.Endpoint) bool {
				return f.tenant[e] != tenant || !strings.Contains(e.Name, "@"+f.near[impostor].Name+"/")
			})
			must(t, s.Matrix(kindsNamed("later-fragment"), []*probe.Endpoint{impostor}, own, burst))
		}
	}
	f.sendFromOutside(t, s)
	f.verdict(t, s, overflowBefore)
	t.Logf("%d probes between %d pods on %d rails", s.Sent(), len(f.pods), len(f.Network.Leaves))
}

// overflow is the number of packets that some switch never judged.
func (f *field) overflow(t *testing.T) uint64 {
	t.Helper()
	var all uint64
	for _, node := range f.Network.Nodes {
		n, err := node.OVS.Overflow()
		must(t, err)
		all += n
	}
	return all
}

// sendFromOutside has hosts, pods of the default network and the management network's router try to reach every pod with
// their own kernels.
func (f *field) sendFromOutside(t *testing.T, s *probe.Session) {
	t.Helper()
	const portRoCEv2 = 4791
	for _, to := range f.ends {
		for _, node := range f.Network.Nodes {
			must(t, s.SendUDP(node.NS, node.Name, to, portRoCEv2))
		}
		for _, pod := range f.common {
			must(t, s.SendUDP(pod.NS, pod.String(), to, portRoCEv2))
		}
		must(t, s.SendUDP(f.Network.Management, "management", to, portRoCEv2))
	}
	// What is not kept apart: a pod may use its own eth0. Tried from inside too: rail addresses through the default network.
	for _, pod := range f.common {
		if err := probe.ExchangeTCP(pod.NS, f.pods[0].NS, netip.MustParseAddr("0.0.0.0"), f.pods[0].Attachments[0].Address(false), time.Second); err == nil {
			t.Errorf("%v, which is on no rail, has a TCP connection to %v", pod, f.pods[0])
		}
	}
}

// TestIsolationThroughFaults sends probes all the while one thing after another is killed. Nothing forbidden may pass at any
// time; afterwards everything allowed must pass again. Where the datapath does not depend on what was killed, nothing
// allowed may be lost meanwhile either.
func TestIsolationThroughFaults(t *testing.T) {
	c := start(t, cluster.Options{Tenants: tenants})
	f := plant(t, c, size(3, 6))
	node, agent := c.Network.Nodes[0], c.Agents[0]
	for _, fault := range []struct {
		name     string
		lossless bool
		strike   func() error
	}{
		{"agent killed and started", true, func() error {
			return steps(agent.Kill, pause(2*time.Second), agent.Start, func() error { return agent.WaitReady(cluster.ReadyLimit) })
		}},
		{"FRR of a node killed and started", true, func() error {
			return steps(node.FRR.Kill, node.FRR.Start, pause(10*time.Second))
		}},
		// The leaf's own zebra takes routes out for a moment when its bgpd comes back; that is not ours to keep.
		{"bgpd of a leaf killed and started", false, func() error {
			leaf := c.Network.Leaves[0].FRR
			return steps(func() error { return leaf.KillDaemon("bgpd") }, leaf.Start, pause(10*time.Second))
		}},
		{"database server killed and started", true, func() error {
			return steps(node.OVS.KillDatabase, pause(time.Second), node.OVS.StartDatabase, pause(2*time.Second))
		}},
		{"switch killed and started", false, func() error {
			return steps(node.OVS.KillSwitch, pause(time.Second), node.OVS.StartSwitch, pause(3*time.Second))
		}},
		// As ovs-cni does for an older pod that had the representor's name. The agent puts the port back.
		{"port of a live pod deleted by a late DEL", false, func() error {
			_, err := node.OVS.VSCtl("del-port", testnet.Bridge(0), f.pods[0].Attachments[0].Port)
			return errors.Join(err, pause(3*time.Second)())
		}},
		{"switch started without its agent", false, func() error {
			return steps(agent.Kill, node.OVS.KillSwitch, node.OVS.StartSwitch, pause(5*time.Second), agent.Start, pause(3*time.Second))
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			s := f.session(t)
			relation := f.relation
			if !fault.lossless {
				relation = func(from, to *probe.Endpoint) probe.Relation {
					if f.relation(from, to) == probe.Friends {
						return probe.Unsettled
					}
					return probe.Strangers
				}
			}
			s.SetRelation(f.during(relation))
			before := f.overflow(t)
			stop := stream(t, s, f)
			err := fault.strike()
			stop()
			must(t, err)
			f.verdict(t, s, before)
			t.Logf("%d probes during the fault", s.Sent())
			audited(t, c)
			f.survey(t)
			after := f.session(t)
			before = f.overflow(t)
			must(t, after.Matrix(probe.Kinds, f.ends, f.ends, probe.Burst))
			f.verdict(t, after, before)
		})
	}
}

func steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func pause(d time.Duration) func() error {
	return func() error {
		time.Sleep(d)
		return nil
	}
}

// traffic is what flows while something else happens: between the pods, and to them from everybody who is none.
func (f *field) traffic() []probe.Traffic {
	pods := probe.Traffic{Kinds: probe.Kinds, From: f.ends, To: f.ends}
	var impostors []*probe.Endpoint
	for _, of := range f.impostors {
		impostors = append(impostors, of...)
	}
	return []probe.Traffic{pods, {Kinds: probe.Kinds, From: f.hosts, To: f.ends}, pods, {Kinds: probe.Kinds, From: f.outside, To: f.ends},
		pods, {Kinds: unicast(), From: impostors, To: f.ends}}
}

// during is a relation while traffic flows: an impostor of one's own tenant is let in by the node it is near, and by no other.
func (f *field) during(relation func(from, to *probe.Endpoint) probe.Relation) func(from, to *probe.Endpoint) probe.Relation {
	return func(from, to *probe.Endpoint) probe.Relation {
		if is := relation(from, to); is != probe.Friends || from.Plays == nil {
			return is
		}
		return probe.Unsettled
	}
}

// stream sends probes of all kinds until the returned function is called.
func stream(t *testing.T, s *probe.Session, f *field) (stop func()) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Stream(f.traffic(), done) }()
	return func() {
		close(done)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestProbesFindALeak opens a hole on purpose: a suite that finds nothing must be one that would find something.
func TestProbesFindALeak(t *testing.T) {
	c := start(t, cluster.Options{Tenants: tenants})
	f := plant(t, c, 2)
	// The agent removes flows that are not its own; it must not until the probes are through.
	must(t, c.Agents[0].Kill())
	_, err := c.Network.Nodes[0].OVS.OFCtl("add-flow", testnet.Bridge(0), "priority=65535,actions=flood")
	must(t, err)
	s := f.session(t)
	must(t, s.Matrix(probe.Kinds, f.ends, f.ends, probe.Burst))
	must(t, f.AwaitRead())
	s.Settle(5 * time.Second)
	found := map[string]bool{}
	for _, leak := range s.Leaks() {
		kind, _, _ := strings.Cut(leak, " ")
		found[kind] = true
	}
	for _, kind := range probe.Kinds {
		if !found[kind.Name] {
			t.Errorf("with a bridge that floods, no probe of kind %s was found leaking", kind.Name)
		}
	}
}

// TestManager: for a manager over TCP Open vSwitch adds flows of its own to its bridges, above all others and not among those that
// ovs-ofctl lists. They would flood what a pod sends with the manager's address, or as an ARP reply to LOCAL. The rail's bridge has none.
func TestManager(t *testing.T) {
	c := start(t, cluster.Options{Network: testnet.Config{Nodes: 1, Rails: 1, Peering: testnet.Unnumbered}, Tenants: map[string]string{"team-a": ""}})
	ovs := c.Network.Nodes[0].OVS
	floods := func(bridge string) (bool, error) {
		flows, err := ovs.AppCtl("bridge/dump-flows", bridge)
		return strings.Contains(flows, "NORMAL"), err
	}
	const other = "br-other" // as Open vSwitch makes them
	for _, command := range [][]string{
		{"set-manager", "tcp:192.0.2.1:6640"},
		{"add-br", other, "--", "set", "bridge", other, "datapath_type=netdev", "fail_mode=secure"},
	} {
		_, err := ovs.VSCtl(command...)
		must(t, err)
	}
	must(t, eventually(func() error {
		does, err := floods(other)
		if err == nil && !does {
			err = errors.New("no flows for the manager on " + other)
		}
		return err
	}))
	quiet := func() error {
		does, err := floods(testnet.Bridge(0))
		if err == nil && does {
			err = errors.New("flows for the manager on the rail's bridge")
		}
		return err
	}
	must(t, quiet())
	_, err := ovs.VSCtl("set", "bridge", testnet.Bridge(0), "other_config:disable-in-band=false")
	must(t, err)
	must(t, eventually(quiet))
}
