package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/preflight"
	"github.com/railweave/railweave/cni/internal/store"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

func (n *node) stored() []*attachment.Attachment {
	n.t.Helper()
	state, err := store.Read(n.state)
	if err != nil {
		n.t.Fatal(err)
	}
	return state.Attachments
}

// nothingLeft: no flow, route, store entry or published address of any attachment.
func (n *node) nothingLeft() {
	n.t.Helper()
	if count := n.flowsWith("priority=200"); count != 0 {
		n.t.Errorf("%d flows are left", count)
	}
	if routes := n.announced(); len(routes) != 0 {
		n.t.Errorf("announced: %v", routes)
	}
	if left := n.stored(); len(left) != 0 {
		n.t.Errorf("in the store: %v", left)
	}
	for address, entry := range n.agent.Source.View().Entries {
		if entry.Node == "node1" {
			n.t.Errorf("published: %v", address)
		}
	}
}

func TestLifeOfAnAttachment(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	// One flow for each address and direction.
	if sends, gets := n.flowsWith("dl_src="+held.MAC), n.flowsWith("set_field:"+held.MAC+"->eth_dst"); sends != 2 || gets != 2 {
		t.Errorf("%d flows from the pod, %d to it", sends, gets)
	}
	if routes := n.announced(); len(routes) != 0 {
		t.Errorf("announced before Announce: %v", routes)
	}
	n.announce(held)
	if routes := n.announced(); !slices.Equal(routes, held.Hosts()) {
		t.Errorf("announced: %v", routes)
	}
	if stored := n.stored(); len(stored) != 1 || !stored[0].Announced || stored[0].NetnsInode == 0 || stored[0].BootID != "boot1" {
		t.Errorf("%+v", stored)
	}
	if err := errors.Join(n.agent.CheckAttachment(t.Context(), held), n.agent.CheckAnnouncement(t.Context(), held.Key, "rail0", held.Addresses)); err != nil {
		t.Error(err)
	}
	if err := n.agent.Withdraw(t.Context(), held.Key); err != nil {
		t.Error(err)
	}
	if routes := n.announced(); len(routes) != 0 || n.flowsWith("dl_src="+held.MAC) == 0 {
		t.Errorf("after Withdraw: announced %v", routes)
	}
	for range 2 { // twice is once
		if err := n.agent.Detach(t.Context(), held.Key); err != nil {
			t.Error(err)
		}
	}
	n.nothingLeft()
	n.locked(func() {
		if left := n.netns[held.Netns].interfaces["net1"].configured; left != nil {
			t.Errorf("the pod, which lives on, still has %+v", left)
		}
	})
}

// position of the first operation in the history that begins with a text, after a position.
func (n *node) position(text string, after int) int {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for i := after; i < len(n.history); i++ {
		if strings.HasPrefix(n.history[i], text) {
			return i
		}
	}
	n.t.Fatalf("no %q after %d", text, after)
	return 0
}

func (n *node) operations() int {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return len(n.history)
}

// TestPodIsRepaired: what was changed inside the pod is set again.
func TestPodIsRepaired(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.locked(func() { n.netns[held.Netns].interfaces["net1"].spoiled = true })
	n.agent.reconcile(t.Context())
	if err := n.agent.CheckAttachment(t.Context(), held); err != nil {
		t.Error(err)
	}
}

// TestOrder: flows before the announcement, withdrawal before flows go, cached flows gone before DEL succeeds.
func TestOrder(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	began := n.operations()
	n.attach(held)
	n.announce(held)
	if flows, route := n.position("flows br-rail0", began), n.position("announce", began); flows > route {
		t.Errorf("announced at %d, flows at %d", route, flows)
	}
	detached := n.operations()
	if err := n.agent.Detach(t.Context(), held.Key); err != nil {
		t.Fatal(err)
	}
	if withdraw, flows, valid := n.position("withdraw", detached), n.position("flows br-rail0", detached), n.position("revalidate", detached); withdraw > flows || flows > valid {
		t.Errorf("withdrawn at %d, flows at %d, revalidated at %d", withdraw, flows, valid)
	}
}

func TestRepeatedAttach(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.attach(held)
	if routes := n.announced(); len(routes) != 2 {
		t.Errorf("a repeated Attach withdrew: %v", routes)
	}
	if stored := n.stored(); len(stored) != 1 {
		t.Errorf("%v", stored)
	}
}

// TestRefused: what is wrong with a request, and the reason it gets; nothing is left behind.
func TestRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(n *node, held *attachment.Attachment)
		reason nodev1.Reason
	}{
		{"no rail of that name", func(_ *node, h *attachment.Attachment) { h.Rail = "rail7" }, nodev1.Reason_RAIL_UNKNOWN},
		{"no name", func(_ *node, h *attachment.Attachment) { h.Network = "" }, nodev1.Reason_REQUEST_MALFORMED},
		{"address outside the pool", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.99.0.5/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"address of another rail", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.65.0.5/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"the gateway's address", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.64.0.1/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"the IPAM's gateway", func(_ *node, h *attachment.Attachment) { h.Gateways = []netip.Addr{h.Addresses[0].Addr()} }, nodev1.Reason_ADDRESS_REFUSED},
		{"the network address", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.64.0.0/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"the broadcast address", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.64.255.255/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"the router's MAC", func(n *node, h *attachment.Attachment) { h.MAC = n.agent.Config.Rails[0].RouterMAC }, nodev1.Reason_MAC_REFUSED},
		{"the leaf's MAC", func(n *node, h *attachment.Attachment) { h.MAC = n.leafMAC }, nodev1.Reason_MAC_REFUSED},
		{"a group's MAC", func(_ *node, h *attachment.Attachment) { h.MAC = "01:00:5e:00:00:01" }, nodev1.Reason_MAC_REFUSED},
		{"not the interface's MAC", func(_ *node, h *attachment.Attachment) { h.MAC = "0a:58:00:00:00:77" }, nodev1.Reason_MAC_REFUSED},
		{"no such netns", func(_ *node, h *attachment.Attachment) { h.Netns = "/run/netns/none" }, nodev1.Reason_NETNS_MISSING},
		{"not a netns", func(_ *node, h *attachment.Attachment) { h.Netns = "/etc/hostname" }, nodev1.Reason_NETNS_MISSING},
		{"no such interface", func(_ *node, h *attachment.Attachment) { h.Interface = "net9" }, nodev1.Reason_INTERFACE_MISSING},
		{"an address the interface lacks", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.64.3.3/16") }, nodev1.Reason_POD_DIFFERS},
		{"Namespace unknown", func(_ *node, h *attachment.Attachment) { h.Pod.Namespace = "nobody" }, nodev1.Reason_NAMESPACE_UNKNOWN},
		{"no such port", func(_ *node, h *attachment.Attachment) { h.Port = "veth77" }, nodev1.Reason_PORT_MISSING},
		{"the uplink as port", func(_ *node, h *attachment.Attachment) { h.Port = "p0" }, nodev1.Reason_PORT_MISSING},
		{"a device that is not there", func(n *node, _ *attachment.Attachment) { n.fail["rdma"] = podnet.ErrNoDevice }, nodev1.Reason_DEVICE_UNKNOWN},
		{"RDMA not isolated", func(n *node, _ *attachment.Attachment) { n.fail["rdma"] = podnet.ErrRDMANotIsolated }, nodev1.Reason_RDMA_NOT_ISOLATED},
		{"no GID", func(n *node, _ *attachment.Attachment) { n.fail["rdma"] = podnet.ErrNoGID }, nodev1.Reason_RDMA_NOT_READY},
		{"the pod cannot be configured", func(n *node, _ *attachment.Attachment) { n.fail["configure"] = errors.New("full") }, nodev1.Reason_POD_SETUP_FAILED},
		{"the port cannot be marked", func(n *node, _ *attachment.Attachment) { n.fail["mark-port"] = errors.New("down") }, nodev1.Reason_DATAPATH_FAILED},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := start(t)
			held := n.pod("team-a", 1)
			n.locked(func() { test.change(n, held) })
			err := n.agent.Attach(t.Context(), held)
			if got := failure.ReasonOf(err); got != test.reason {
				t.Fatalf("%v: %v", got, err)
			}
			n.nothingLeft()
		})
	}
}

func TestCollisions(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(first, second *attachment.Attachment)
		reason nodev1.Reason
	}{
		{"the same address", func(f, s *attachment.Attachment) { s.Addresses[0] = f.Addresses[0] }, nodev1.Reason_ADDRESS_IN_USE},
		{"the same MAC", func(f, s *attachment.Attachment) { s.MAC = f.MAC }, nodev1.Reason_MAC_IN_USE},
		{"the same port", func(f, s *attachment.Attachment) { s.Port = f.Port }, nodev1.Reason_PORT_IN_USE},
		{"the same key, other contents", func(f, s *attachment.Attachment) { s.Key = f.Key }, nodev1.Reason_ATTACHMENT_DIFFERS},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := start(t)
			first, second := n.pod("team-a", 1), n.pod("team-b", 2)
			n.attach(first)
			test.change(first, second)
			n.locked(func() {
				n.netns[second.Netns].interfaces["net1"] = &fakeInterface{mac: second.MAC, addresses: second.Addresses}
			})
			if got := failure.ReasonOf(n.agent.Attach(t.Context(), second.Clone())); got != test.reason {
				t.Fatalf("%v", got)
			}
			if err := n.agent.CheckAttachment(t.Context(), first); err != nil {
				t.Errorf("the first one suffers: %v", err)
			}
			// Once the first one's namespace is dead, the second may have what it wants.
			n.locked(func() { delete(n.netns, first.Netns) })
			n.attach(second)
			if stored := n.stored(); len(stored) != 1 || stored[0].Pod != second.Pod {
				t.Errorf("%+v", stored)
			}
		})
	}
}

func TestManyAtOnce(t *testing.T) {
	n := start(t)
	const count = 200
	all := make([]*attachment.Attachment, count)
	for i := range all {
		all[i] = n.pod([]string{"team-a", "team-b", "team-c"}[i%3], i+1)
	}
	var running sync.WaitGroup
	problems := make(chan error, count)
	for _, held := range all {
		running.Go(func() {
			if err := n.agent.Attach(t.Context(), held.Clone()); err != nil {
				problems <- err
				return
			}
			problems <- n.agent.Announce(t.Context(), held.Key, "rail0", held.Addresses)
		})
	}
	running.Wait()
	for range count {
		if err := <-problems; err != nil {
			t.Error(err)
		}
	}
	if routes := n.announced(); len(routes) != 2*count {
		t.Errorf("%d routes", len(routes))
	}
	for _, held := range all {
		running.Go(func() { problems <- n.agent.Detach(t.Context(), held.Key) })
	}
	running.Wait()
	for range count {
		if err := <-problems; err != nil {
			t.Error(err)
		}
	}
	n.nothingLeft()
}

// TestTruth: each broken state, and what STATUS and the two CHECKs say of it.
func TestTruth(t *testing.T) {
	const fine = nodev1.Reason_REASON_UNSPECIFIED
	down := func(n *node, session frr.Session) {
		n.sessions["rail0"] = session
	}
	for _, test := range []struct {
		name                     string
		breakIt                  func(n *node, held *attachment.Attachment)
		status, datapath, routes nodev1.Reason
	}{
		{"all is well", func(*node, *attachment.Attachment) {}, fine, fine, fine},
		{"no BGP session", func(n *node, _ *attachment.Attachment) { down(n, frr.Session{}) }, nodev1.Reason_RAIL_DOWN, fine, nodev1.Reason_RAIL_DOWN},
		{"BFD down", func(n *node, _ *attachment.Attachment) { down(n, frr.Session{Established: true, BFDDown: true}) }, nodev1.Reason_RAIL_DOWN, fine, nodev1.Reason_RAIL_DOWN},
		{"FRR does not answer", func(n *node, _ *attachment.Attachment) {
			n.sessions = nil
			n.fail["sessions"] = errors.New("down")
		}, nodev1.Reason_RAIL_DOWN, fine, nodev1.Reason_RAIL_DOWN},
		{"the leaf's MAC unknown", func(n *node, _ *attachment.Attachment) {
			r := n.agent.rails["rail0"]
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.leafMAC, n.leafMAC = "", ""
		}, nodev1.Reason_RAIL_DOWN, fine, nodev1.Reason_RAIL_DOWN},
		{"zebra gone", func(n *node, _ *attachment.Attachment) {
			session := n.sessions["rail0"]
			session.ZebraAway = true
			down(n, session)
		}, nodev1.Reason_NOT_READY, fine, nodev1.Reason_NOT_READY},
		{"the store cannot be written", func(n *node, _ *attachment.Attachment) { n.agent.unsaved = errors.New("no space left") }, nodev1.Reason_STORE_FAILED, fine, fine},
		{"preflight fails for the node", func(n *node, _ *attachment.Attachment) {
			n.agent.refusals = []preflight.Finding{{Check: "one zebra", Level: preflight.Fail, Found: "two", Remedy: "stop one"}}
		}, nodev1.Reason_NOT_READY, fine, fine},
		{"preflight fails for another rail", func(n *node, _ *attachment.Attachment) {
			n.agent.refusals = []preflight.Finding{{Check: "rail1 uplink", Level: preflight.Fail, Found: "none", Remedy: "name it", Rail: "rail1"}}
		}, fine, fine, fine},
		{"ovs-vswitchd gone", func(n *node, _ *attachment.Attachment) {
			n.incarnation = 0
			n.fail["flows"], n.fail["differences"] = errors.New("no socket"), errors.New("no socket")
		}, nodev1.Reason_BRIDGE_MISSING, nodev1.Reason_DATAPATH_DIFFERS, fine},
		{"ovs-vswitchd killed or hanging, its sockets still there", func(n *node, _ *attachment.Attachment) {
			n.fail["answers"], n.fail["flows"], n.fail["differences"] = errors.New("refused"), errors.New("refused"), errors.New("refused")
		}, nodev1.Reason_BRIDGE_MISSING, nodev1.Reason_DATAPATH_DIFFERS, fine},
		{"ovsdb-server gone", func(n *node, _ *attachment.Attachment) { n.fail["database"] = errors.New("not connected") }, nodev1.Reason_NOT_READY, fine, fine},
		{"a controller on the bridge", func(n *node, _ *attachment.Attachment) { n.bridges["br-rail0"].Controllers = 1 }, nodev1.Reason_BRIDGE_FOREIGN, nodev1.Reason_BRIDGE_FOREIGN, nodev1.Reason_ROUTE_DIFFERS},
		{"a flow of somebody else", func(n *node, _ *attachment.Attachment) {
			n.flows["br-rail0"]["x"] = "cookie=0x0,table=0,priority=1,actions=NORMAL"
		}, fine, nodev1.Reason_DATAPATH_DIFFERS, fine},
		{"port gone, link gone", func(n *node, h *attachment.Attachment) {
			delete(n.bridges["br-rail0"].Ports, h.Port)
			delete(n.links, h.Port)
		}, fine, nodev1.Reason_PORT_MISSING, nodev1.Reason_ROUTE_DIFFERS},
		{"another namespace at the path", func(n *node, h *attachment.Attachment) { n.netns[h.Netns].inode++ }, fine, nodev1.Reason_NETNS_MISSING, fine},
		{"interface gone from the pod", func(n *node, h *attachment.Attachment) { delete(n.netns[h.Netns].interfaces, "net1") }, fine, nodev1.Reason_INTERFACE_MISSING, fine},
		{"a route changed in the pod", func(n *node, h *attachment.Attachment) { n.netns[h.Netns].interfaces["net1"].spoiled = true }, fine, nodev1.Reason_POD_DIFFERS, fine},
		{"VF gone", func(n *node, _ *attachment.Attachment) { n.fail["rdma"] = podnet.ErrNoDevice }, fine, nodev1.Reason_DEVICE_UNKNOWN, fine},
		{"a route gone from the kernel", func(n *node, h *attachment.Attachment) {
			delete(n.routes, h.Hosts()[0])
			n.fail["announce"] = errors.New("busy") // else it may be back before it is asked for
		}, fine, fine, nodev1.Reason_ROUTE_DIFFERS},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := start(t)
			held := n.pod("team-a", 1)
			n.attach(held)
			n.announce(held)
			n.mutex.Lock() // no notification: the table is about what is told, not about how it heals
			test.breakIt(n, held)
			n.mutex.Unlock()
			n.agent.observeSessions(t.Context())
			if test.status == nodev1.Reason_BRIDGE_FOREIGN || test.name == "port gone, link gone" {
				_ = n.agent.rails["rail0"].applying.do(t.Context()) // what follows is told by the checks
			}
			datapath := n.agent.CheckAttachment(t.Context(), held)
			routes := n.agent.CheckAnnouncement(t.Context(), held.Key, "rail0", held.Addresses)
			for _, got := range []struct {
				verb string
				err  error
				want nodev1.Reason
			}{{"STATUS", n.agent.Status(t.Context(), "rail0"), test.status}, {"CHECK datapath", datapath, test.datapath}, {"CHECK announcement", routes, test.routes}} {
				if reason := failure.ReasonOf(got.err); reason != got.want || (got.err == nil) != (got.want == fine) {
					t.Errorf("%s: %v (%v), want %v", got.verb, reason, got.err, got.want)
				}
				var typed *failure.Error
				if errors.As(got.err, &typed) && typed.Subject == "" {
					t.Errorf("%s names no subject: %v", got.verb, got.err)
				}
			}
		})
	}
}

func TestStatusOfUnknownRail(t *testing.T) {
	if got := failure.ReasonOf(start(t).agent.Status(t.Context(), "rail9")); got != nodev1.Reason_RAIL_UNKNOWN {
		t.Error(got)
	}
}

// TestRailDownRefusesAttach: the runtime is to try again; nothing is set up meanwhile.
func TestRailDownRefusesAttach(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.locked(func() { n.sessions["rail0"] = frr.Session{} })
	n.agent.observeSessions(t.Context())
	if got := failure.ReasonOf(n.agent.Attach(t.Context(), held.Clone())); got != nodev1.Reason_RAIL_DOWN {
		t.Error(got)
	}
	n.nothingLeft()
}

// TestPortOfALivePodComesBack: ovs-cni's late DEL took it.
func TestPortOfALivePodComesBack(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.locked(func() { delete(n.bridges["br-rail0"].Ports, held.Port) })
	n.await("the port is back, with its flows and routes", func() bool {
		return n.flowsWith("dl_src="+held.MAC) == 2 && len(n.announced()) == 2 && n.agent.CheckAttachment(t.Context(), held) == nil
	})
	n.mutex.Lock()
	defer n.mutex.Unlock()
	port := n.bridges["br-rail0"].Ports[held.Port]
	if port.ExternalIDs[ovsCNINetns] != held.Netns || port.ExternalIDs[markKey] == "" {
		t.Errorf("%+v", port)
	}
}

// TestRestartOfTheSwitch: new process, no flows.
func TestRestartOfTheSwitch(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.locked(func() {
		n.flows["br-rail0"] = map[string]string{}
		n.incarnation++
	})
	n.await("the flows are back", func() bool { return n.flowsWith("dl_src="+held.MAC) == 2 })
}

// TestForeignFlowIsRemoved by the periodic comparison.
func TestForeignFlowIsRemoved(t *testing.T) {
	n := start(t)
	n.locked(func() {
		n.flows["br-rail0"]["x"] = "cookie=0x0,table=0,priority=1,actions=NORMAL"
	})
	n.agent.reconcile(t.Context())
	if n.flowsWith("NORMAL") != 0 {
		t.Error("it is still there")
	}
}

// TestForeignBridgeIsLeftAlone: neither its settings nor its flows change, and the rail says why. A bridge that does nothing
// but switch (one NORMAL flow) is somebody's, too.
func TestForeignBridgeIsLeftAlone(t *testing.T) {
	for name, flow := range map[string]string{"with a flow": " cookie=0x77, priority=5,ip actions=output:3", "that switches": " cookie=0x0, priority=0 actions=NORMAL"} {
		t.Run(name, func(t *testing.T) { leftAlone(t, flow) })
	}
}

func leftAlone(t *testing.T, flow string) {
	w := newWorld(t)
	w.bridges["br-rail0"] = &vswitch.Bridge{Name: "br-rail0", FailMode: "standalone", Ports: map[string]vswitch.Port{"br-rail0": {}, "p0": {Name: "p0", OFPort: 9}}}
	w.flows["br-rail0"] = map[string]string{"x": flow}
	tenants := t.TempDir()
	n := w.boot("node1", t.TempDir(), tenants, "boot1")
	if got := failure.ReasonOf(n.agent.Status(t.Context(), "rail0")); got != nodev1.Reason_BRIDGE_FOREIGN {
		t.Error(got)
	}
	if err := n.agent.Status(t.Context(), "rail1"); err != nil {
		t.Errorf("the other rail: %v", err)
	}
	n.agent.reconcile(t.Context())
	if n.flowsWith(flow) != 1 || len(w.flows["br-rail0"]) != 1 || w.bridges["br-rail0"].FailMode != "standalone" {
		t.Errorf("it was touched: %+v %v", w.bridges["br-rail0"], w.flows["br-rail0"])
	}
}

func TestRestartOfTheAgentChangesNothing(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	before, err := n.Flows(t.Context(), "br-rail0")
	if err != nil {
		t.Fatal(err)
	}
	n.mutex.Lock()
	n.history = nil
	n.mutex.Unlock()
	n = n.restart("boot1")
	after, err := n.Flows(t.Context(), "br-rail0")
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("%v\nbefore %v\nafter  %v", err, before, after)
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, operation := range n.history {
		if strings.HasPrefix(operation, "withdraw") {
			t.Error(operation)
		}
	}
}

func TestReboot(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.stop()
	n.mutex.Lock()
	n.routes, n.netns = map[netip.Addr]bool{}, map[string]*fakeNetns{}
	n.mutex.Unlock()
	n = n.restart("boot2")
	n.nothingLeft()
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if _, there := n.bridges["br-rail0"].Ports[held.Port]; there {
		t.Error("the stale port, which makes ovs-cni's next ADD fail, is still there")
	}
}

// TestStalePortOfOvsCNI without any attachment of ours.
func TestStalePortOfOvsCNI(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.locked(func() { n.addPort("br-rail0", "operators", map[string]string{"note": "mine"}) })
	n.agent.sweep(t.Context())
	n.mutex.Lock()
	if _, there := n.bridges["br-rail0"].Ports[held.Port]; !there {
		t.Error("the port of a live namespace was purged")
	}
	delete(n.netns, held.Netns)
	n.mutex.Unlock()
	n.agent.sweep(t.Context())
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if _, there := n.bridges["br-rail0"].Ports[held.Port]; there {
		t.Error("the port of a dead namespace is still there")
	}
	if _, there := n.bridges["br-rail0"].Ports["operators"]; !there {
		t.Error("a port that is not ovs-cni's was purged")
	}
}

// events keeps what pods are told.
type events struct {
	LogRecorder
	mutex sync.Mutex
	told  []string
}

func (e *events) PodEvent(pod attachment.Pod, _ bool, reason, _ string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.told = append(e.told, pod.Name+" "+reason)
}

// TestPoolTakenAway: after a node file that lacks a live pod's pool the address is withdrawn once, not again and again, and the
// pod is told. With the pool back it is announced again.
func TestPoolTakenAway(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	both := n.announced()
	told := &events{LogRecorder: LogRecorder{slog.New(slog.DiscardHandler)}}
	n.recorder = told
	n.pools = strings.NewReplacer("10.64.0.0/16", "10.70.0.0/16", "10.64.0.1", "10.70.0.1")
	n = n.restart("boot1")
	n.locked(func() { n.history = nil })
	for range 3 {
		n.agent.reconcile(t.Context())
	}
	if got := n.announced(); len(both) != 2 || len(got) != 1 || !got[0].Is6() {
		t.Errorf("announced: %v, before %v", got, both)
	}
	n.locked(func() {
		for _, operation := range n.history {
			if strings.HasPrefix(operation, "announce") || strings.HasPrefix(operation, "withdraw") {
				t.Errorf("routes come and go: %v", n.history)
				break
			}
		}
	})
	told.mutex.Lock()
	if len(told.told) != 1 || told.told[0] != "pod1 RailAddressWithoutPool" {
		t.Errorf("told: %v", told.told)
	}
	told.mutex.Unlock()
	n.pools = nil
	n = n.restart("boot1")
	n.await("both addresses", func() bool { return len(n.announced()) == 2 })
}

// TestRailTakenAway: nothing passes any more on the bridge of a rail that the node file has lost, and other bridges are left alone.
func TestRailTakenAway(t *testing.T) {
	n := start(t)
	n.attach(n.pod("team-a", 1))
	n.attach(n.podOn("rail1", "team-a", 2))
	n.locked(func() {
		for name, owner := range map[string]string{"br-int": "", "br-other": "node10/rail0"} {
			n.bridges[name] = &vswitch.Bridge{Name: name, Owner: owner, Ports: map[string]vswitch.Port{}}
			n.flows[name] = map[string]string{"priority=0": "priority=0,actions=NORMAL"}
		}
	})
	n.pools = strings.NewReplacer(`"name":"rail0"`, `"name":"rail5"`, `"br-rail0"`, `"br-rail5"`)
	n = n.restart("boot1")
	n.locked(func() {
		if flows := n.flows["br-rail0"]; len(flows) != 0 {
			t.Errorf("left: %v", flows)
		}
		for _, name := range []string{"br-rail1", "br-int", "br-other"} {
			if len(n.flows[name]) == 0 {
				t.Errorf("%s has lost its flows", name)
			}
		}
	})
}

func TestDamagedStoreIsRebuilt(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{\"checksum\":\"x\""), 0o600) },
		"removed": os.Remove,
		"of another release": func(path string) error {
			return store.WriteSealed(path, map[string]any{"version": 2, "something": "else"})
		},
	} {
		t.Run(name, func(t *testing.T) { rebuilt(t, damage) })
	}
}

func rebuilt(t *testing.T, damage func(path string) error) {
	n := start(t)
	first, second := n.pod("team-a", 1), n.pod("team-b", 2)
	n.attach(first)
	n.announce(first)
	n.attach(second)
	n.stop()
	want := n.stored()
	before := n.announced()
	if err := damage(filepath.Join(n.state, "store.json")); err != nil {
		t.Fatal(err)
	}
	n.mutex.Lock()
	n.history = nil
	n.mutex.Unlock()
	n = n.restart("boot1")
	got := n.stored()
	if fmt.Sprintf("%+v", deref(got)) != fmt.Sprintf("%+v", deref(want)) {
		t.Errorf("rebuilt\n%+v\nwas\n%+v", deref(got), deref(want))
	}
	if after := n.announced(); !slices.Equal(before, after) {
		t.Errorf("announced %v, before %v", after, before)
	}
	if err := errors.Join(n.agent.Status(t.Context(), "rail0"), n.agent.CheckAttachment(t.Context(), first), n.agent.CheckAnnouncement(t.Context(), first.Key, "rail0", first.Addresses)); err != nil {
		t.Errorf("STATUS and CHECK: %v", err)
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, operation := range n.history {
		if strings.HasPrefix(operation, "withdraw") {
			t.Errorf("traffic was touched: %s", operation)
		}
	}
}

func deref(pointers []*attachment.Attachment) []attachment.Attachment {
	var values []attachment.Attachment
	for _, pointer := range pointers {
		values = append(values, *pointer)
	}
	return values
}

// TestTombstonesAreReplayedBeforeServing, and those that come while the agent serves soon after.
func TestTombstones(t *testing.T) {
	n := start(t)
	first, second := n.pod("team-a", 1), n.pod("team-a", 2)
	for _, held := range []*attachment.Attachment{first, second} {
		n.attach(held)
		n.announce(held)
	}
	n.stop()
	if err := store.Bury(n.state, store.Tombstone{Verb: store.Withdraw, Key: first.Key}); err != nil {
		t.Fatal(err)
	}
	if err := store.Bury(n.state, store.Tombstone{Verb: store.Detach, Key: first.Key}); err != nil {
		t.Fatal(err)
	}
	n = n.restart("boot1")
	if stored := n.stored(); len(stored) != 1 || stored[0].Key != second.Key || n.flowsWith(first.MAC) != 0 {
		t.Errorf("%v", stored)
	}
	if err := store.Bury(n.state, store.Tombstone{Verb: store.Detach, Key: second.Key}); err != nil {
		t.Fatal(err)
	}
	n.await("the late tombstone is replayed", func() bool { return len(n.announced()) == 0 && n.flowsWith(second.MAC) == 0 })
}

// TestTombstoneOfAnUnknownAttachment: the store was lost, cached flows may be left.
func TestTombstoneOfAnUnknownAttachment(t *testing.T) {
	n := start(t)
	n.stop()
	began := n.operations()
	gone := store.Tombstone{Verb: store.Detach, Key: attachment.Key{Network: "rail0", ContainerID: "gone", Interface: "net1"}}
	if err := store.Bury(n.state, gone); err != nil {
		t.Fatal(err)
	}
	n.restart("boot1")
	n.position("revalidate", began)
	if store.Buried(n.state, gone) {
		t.Error("it is still buried")
	}
}

// TestTombstonesOfOneRailDoNotHoldUpAnother: rail0's bridge was taken over by a controller; rail1 serves, with its tombstone replayed.
func TestTombstonesOfOneRailDoNotHoldUpAnother(t *testing.T) {
	n := start(t)
	first := n.pod("team-a", 1)
	n.attach(first)
	n.announce(first)
	second := n.podOn("rail1", "team-a", 2)
	n.attach(second)
	n.announce(second)
	n.stop()
	for _, held := range []*attachment.Attachment{first, second} {
		if err := store.Bury(n.state, store.Tombstone{Verb: store.Detach, Key: held.Key}); err != nil {
			t.Fatal(err)
		}
		for _, host := range held.Hosts() {
			delete(n.routes, host) // as the plugin does
		}
	}
	n.bridges["br-rail0"].Controllers = 1
	began := n.operations()
	n = n.restart("boot1")
	if stored := n.stored(); len(stored) != 1 || stored[0].Key != first.Key {
		t.Errorf("in the store: %v", stored)
	}
	third := n.podOn("rail1", "team-a", 3)
	n.attach(third)
	if got := failure.ReasonOf(n.agent.Attach(t.Context(), n.pod("team-a", 4))); got != nodev1.Reason_BRIDGE_FOREIGN {
		t.Errorf("on the rail whose DEL waits: %v", got)
	}
	n.locked(func() { n.bridges["br-rail0"].Controllers = 0 })
	n.await("the tombstone is replayed", func() bool { return len(n.stored()) == 1 })
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, operation := range n.history[began:] {
		if strings.HasPrefix(operation, "announce") {
			t.Errorf("an address that the plugin had withdrawn came back: %s", operation)
		}
	}
}

// TestUnreadableTombstones: what DELs wanted is not known, so nothing new is served.
func TestUnreadableTombstones(t *testing.T) {
	n := start(t)
	if err := os.WriteFile(filepath.Join(n.state, "tombstones"), nil, 0o600); err != nil { // a file, not a directory
		t.Fatal(err)
	}
	for verb, err := range map[string]error{"Attach": n.agent.Attach(t.Context(), n.pod("team-a", 1)), "STATUS": n.agent.Status(t.Context(), "rail0")} {
		if got := failure.ReasonOf(err); got != nodev1.Reason_STORE_FAILED {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// TestOneBadRail: repairs of the other rail and the alarms go on.
func TestOneBadRail(t *testing.T) {
	n := start(t)
	held := n.podOn("rail1", "team-a", 1)
	n.attach(held)
	n.locked(func() {
		n.bridges["br-rail0"].Controllers = 1
		n.netns[held.Netns].interfaces["net1"].spoiled = true
		n.routes[netip.MustParseAddr("192.0.2.1")] = true // in no pool
	})
	n.agent.reconcile(t.Context())
	if err := n.agent.CheckAttachment(t.Context(), held); err != nil {
		t.Errorf("the pod on the good rail was not repaired: %v", err)
	}
	if left := n.announced(); len(left) != 0 {
		t.Errorf("announcements outside all pools: %v", left)
	}
}

// TestDeadSwitchIsNotAnnounced: what comes for its pods would go nowhere. A silence that is short, as in a restart, changes nothing.
func TestDeadSwitchIsNotAnnounced(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.locked(func() { n.fail["answers"] = errors.New("refused") })
	n.agent.observeSwitch(t.Context())
	_ = n.agent.rails["rail0"].applying.do(t.Context())
	if left := n.announced(); len(left) != 2 {
		t.Errorf("after a moment: %v", left)
	}
	n.later(switchGrace + time.Second)
	n.agent.observeSwitch(t.Context())
	n.await("the announcements are gone", func() bool { return len(n.announced()) == 0 })
	if got := failure.ReasonOf(n.agent.CheckAnnouncement(t.Context(), held.Key, "rail0", held.Addresses)); got != nodev1.Reason_ROUTE_DIFFERS {
		t.Errorf("CHECK: %v", got)
	}
	n.locked(func() { delete(n.fail, "answers") })
	n.agent.observeSwitch(t.Context())
	n.await("the announcements are back", func() bool { return len(n.announced()) == 2 })
}

// TestPreflightRefusesNewAttachments once it has failed twice; pods that run and their DELs are not touched.
func TestPreflightRefusesNewAttachments(t *testing.T) {
	n := start(t)
	first := n.pod("team-a", 1)
	n.attach(first)
	n.locked(func() {
		n.findings = []preflight.Finding{{Check: "one zebra", Level: preflight.Fail, Found: "processes [7 8]", Remedy: "stop one"}}
	})
	n.agent.inspectNode(t.Context())
	if err := n.agent.Status(t.Context(), "rail0"); err != nil {
		t.Errorf("after one look: %v", err)
	}
	n.agent.inspectNode(t.Context())
	err := n.agent.Attach(t.Context(), n.pod("team-a", 2))
	if got := failure.ReasonOf(err); got != nodev1.Reason_NOT_READY || !strings.Contains(err.Error(), "stop one") {
		t.Errorf("ADD: %v", err)
	}
	if err := errors.Join(n.agent.CheckAttachment(t.Context(), first), n.agent.Detach(t.Context(), first.Key)); err != nil {
		t.Errorf("the pod that runs: %v", err)
	}
	n.locked(func() { n.findings = nil })
	n.agent.inspectNode(t.Context())
	n.attach(n.pod("team-a", 3))
}

// TestRoutingIsReminded of LOCAL's addresses while a rail has no session, and not while it has one.
func TestRoutingIsReminded(t *testing.T) {
	n := start(t)
	n.locked(func() { n.sessions["rail0"] = frr.Session{} })
	n.later(time.Hour)
	began := n.operations()
	n.await("rail0 is reminded", func() bool {
		n.mutex.Lock()
		defer n.mutex.Unlock()
		return slices.Contains(n.history[began:], "repeat-addresses br-rail0")
	})
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if slices.Contains(n.history[began:], "repeat-addresses br-rail1") {
		t.Error("rail1 has a session")
	}
}

// TestCollect removes what is dead and unlisted in its own network only.
func TestCollect(t *testing.T) {
	n := start(t)
	live, dead, listed, other := n.pod("team-a", 1), n.pod("team-a", 2), n.pod("team-a", 3), n.pod("team-a", 4)
	other.Network = "elsewhere"
	for _, held := range []*attachment.Attachment{live, dead, listed, other} {
		n.attach(held)
	}
	n.mutex.Lock()
	for _, held := range []*attachment.Attachment{dead, listed, other} {
		delete(n.netns, held.Netns)
	}
	n.mutex.Unlock()
	removed, err := n.agent.Collect(t.Context(), "rail0", []attachment.Key{{ContainerID: listed.ContainerID, Interface: "net1"}})
	if err != nil || len(removed) != 1 || removed[0] != dead.Key {
		t.Errorf("%v, %v", removed, err)
	}
}
