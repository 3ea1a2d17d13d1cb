package agent

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

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

// TestRepairMeetsRequests: what an ADD is about to set is not repaired, and what a DEL has taken away in a pod that lives on is not
// set again, though it came while the pod was repaired.
func TestRepairMeetsRequests(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	link := n.netns[held.Netns].interfaces["net1"]
	n.locked(func() { link.spoiled = true })
	release, err := n.agent.busy.take(t.Context(), held.Key)
	if err != nil {
		t.Fatal(err)
	}
	began := n.operations()
	n.agent.reconcile(t.Context())
	release()
	if n.did("configure net1", began) {
		t.Error("repaired while a request is under way")
	}
	var once sync.Once
	detach := func() {
		if err := n.agent.Detach(t.Context(), held.Key); err != nil {
			t.Error(err)
		}
	}
	n.locked(func() { n.sets = func() { once.Do(detach) } })
	n.agent.reconcile(t.Context())
	n.locked(func() {
		if link.configured != nil {
			t.Error("set again after its DEL")
		}
	})
}

// TestPortHasTheRailsMTU: ovs-cni leaves the host's end at the kernel's 1500; the pod's end has the rail's, and longer packets to it
// would be dropped without a word. What is changed later is set again.
func TestPortHasTheRailsMTU(t *testing.T) {
	for name, test := range map[string]struct {
		file string // "mtu" in the node file
		want int
	}{"of the uplink": {"", 9000}, "of the node file": {`"mtu":4200,`, 4200}} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWorld(t), t.TempDir()
			w.pools = strings.NewReplacer(`"name":"rail0",`, `"name":"rail0",`+test.file)
			writeNamespaces(t, dir, map[string]string{"team-a": ""})
			n := w.boot("node1", t.TempDir(), dir, "boot1")
			held := n.pod("team-a", 1)
			n.attach(held)
			n.locked(func() {
				port, pod := n.mtus[held.Port], n.netns[held.Netns].interfaces["net1"].configured.MTU
				if port != test.want || pod != test.want {
					t.Errorf("the port's MTU is %d, the pod's %d, want %d", port, pod, test.want)
				}
				n.mtus[held.Port] = 1500
			})
			n.agent.reconcile(t.Context())
			if err := n.agent.CheckAttachment(t.Context(), held); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPortIsClosed to the node's own stack by ADD, and by reconciliation where an older agent served it.
func TestPortIsClosed(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.locked(func() {
		if !n.shut[held.Port] {
			t.Error("ADD leaves it open")
		}
		n.shut[held.Port] = false
	})
	n.agent.reconcile(t.Context())
	n.locked(func() {
		if !n.shut[held.Port] {
			t.Error("reconciliation leaves it open")
		}
	})
}

// TestCheckUnderChurn: CHECK of a pod is true while others come and go, and still finds what is wrong.
func TestCheckUnderChurn(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	var churn sync.WaitGroup
	for i := range 4 {
		other := n.pod("team-a", 10+i)
		churn.Go(func() {
			for range 40 {
				if err := errors.Join(n.agent.Attach(t.Context(), other.Clone()), n.agent.Detach(t.Context(), other.Key)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	quiet := make(chan struct{})
	go func() { churn.Wait(); close(quiet) }()
	for running := true; running; {
		if err := n.agent.CheckAttachment(t.Context(), held); err != nil {
			t.Errorf("%v", err)
			break
		}
		select {
		case <-quiet:
			running = false
		default:
		}
	}
	<-quiet
	n.locked(func() { n.flows["br-rail0"]["x"] = "cookie=0x0,table=0,priority=1,actions=NORMAL" })
	if got := failure.ReasonOf(n.agent.CheckAttachment(t.Context(), held)); got != nodev1.Reason_DATAPATH_DIFFERS {
		t.Errorf("a flow of somebody else: %v", got)
	}
	if err := n.agent.CheckAttachment(t.Context(), held); err != nil {
		t.Errorf("it is not replaced: %v", err)
	}
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

// TestPortThatCannotComeBack, as it is on another bridge: its pod is not announced, and no other pod waits for it.
func TestPortThatCannotComeBack(t *testing.T) {
	n := start(t)
	held, other := n.pod("team-a", 1), n.pod("team-a", 2)
	n.attach(held)
	n.announce(held)
	n.locked(func() {
		n.fail["add-port"] = errors.New("constraint violation")
		delete(n.bridges["br-rail0"].Ports, held.Port)
	})
	n.await("what goes nowhere is withdrawn", func() bool { return len(n.announced()) == 0 && n.flowsWith(held.MAC) == 0 })
	n.attach(other)
	n.announce(other)
	if err := errors.Join(n.agent.CheckAttachment(t.Context(), other), n.agent.Detach(t.Context(), other.Key)); err != nil {
		t.Error(err)
	}
	if got := failure.ReasonOf(n.agent.CheckAttachment(t.Context(), held)); got != nodev1.Reason_PORT_MISSING {
		t.Errorf("CHECK: %v", got)
	}
	n.locked(func() { delete(n.fail, "add-port") })
	n.agent.reconcile(t.Context())
	if err := n.agent.CheckAttachment(t.Context(), held); err != nil {
		t.Errorf("once it may come back: %v", err)
	}
}

// TestPortNumbersAreForgotten once neither the bridge nor an attachment has the port.
func TestPortNumbersAreForgotten(t *testing.T) {
	n := start(t)
	r := newRail(n.agent, n.agent.rails["rail0"].config)
	held := n.pod("team-a", 1)
	mine := []*attachment.Attachment{held}
	with := &vswitch.Bridge{Ports: map[string]vswitch.Port{held.Port: {OFPort: 7}, "p0": {OFPort: 1}}}
	without := &vswitch.Bridge{Ports: map[string]vswitch.Port{"p0": {OFPort: 1}}}
	for step, test := range []struct {
		bridge *vswitch.Bridge
		mine   []*attachment.Attachment
		want   map[string]int
	}{
		{with, mine, map[string]int{held.Port: 7, "p0": 1}},
		{without, mine, map[string]int{held.Port: 7, "p0": 1}}, // ovs-cni's late DEL: it will be put back
		{without, nil, map[string]int{"p0": 1}},
	} {
		if r.rememberNumbers(test.bridge, test.mine); !maps.Equal(r.numbers, test.want) {
			t.Errorf("step %d: %v, want %v", step, r.numbers, test.want)
		}
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

// TestRetriesDoNotAddUp: a rail that cannot be applied is tried a few times a second, however often it was looked at since.
func TestRetriesDoNotAddUp(t *testing.T) {
	n := start(t)
	n.locked(func() { n.bridges["br-rail0"].Controllers = 1 })
	const looks = 200
	for range looks {
		if err := n.agent.rails["rail0"].applying.do(t.Context()); err == nil {
			t.Fatal("somebody else's bridge is applied")
		}
	}
	tried := func() float64 {
		var now dto.Metric
		if err := n.agent.Metrics.ApplyErrors.WithLabelValues("rail0").Write(&now); err != nil {
			t.Fatal(err)
		}
		return now.GetCounter().GetValue()
	}
	before := tried()
	time.Sleep(5 * retryApply)
	if count := tried() - before; count < 1 || count > 10 {
		t.Errorf("tried %v times in %v", count, 5*retryApply)
	}
}

// TestInBandControl: a bridge on which somebody allows it, or an older agent did, is corrected as soon as that is heard. Pods suffer nothing.
func TestInBandControl(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.mutex.Lock()
	n.bridges["br-rail0"].InBand = true
	began := len(n.history)
	n.mutex.Unlock()
	if err := n.agent.rails["rail0"].applying.do(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.locked(func() {
		if n.bridges["br-rail0"].InBand {
			t.Error("it is still allowed")
		}
		if slices.ContainsFunc(n.history[began:], func(operation string) bool { return strings.HasPrefix(operation, "withdraw") }) {
			t.Error("what is announced was withdrawn for it")
		}
	})
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

// TestCollectGoesOn past what it cannot remove, and tells of it.
func TestCollectGoesOn(t *testing.T) {
	n := start(t)
	stuck, other := n.pod("team-a", 1), n.podOn("rail1", "team-a", 2)
	other.Network = stuck.Network
	for _, held := range []*attachment.Attachment{stuck, other} {
		n.attach(held)
	}
	n.mutex.Lock()
	delete(n.netns, stuck.Netns)
	delete(n.netns, other.Netns)
	n.bridges["br-rail0"].Controllers = 1 // somebody else's now
	n.mutex.Unlock()
	removed, err := n.agent.Collect(t.Context(), stuck.Network, nil)
	if failure.ReasonOf(err) != nodev1.Reason_BRIDGE_FOREIGN || len(removed) != 1 || removed[0] != other.Key {
		t.Errorf("%v, %v", removed, err)
	}
}
