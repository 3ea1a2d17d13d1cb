package agent

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/preflight"
	"github.com/railweave/railweave/cni/internal/tenancy"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

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
		{"ovs-vswitchd killed, and the session with it", func(n *node, _ *attachment.Attachment) {
			n.fail["answers"], n.fail["flows"], n.fail["differences"] = errors.New("refused"), errors.New("refused"), errors.New("refused")
			down(n, frr.Session{})
		}, nodev1.Reason_BRIDGE_MISSING, nodev1.Reason_DATAPATH_DIFFERS, nodev1.Reason_RAIL_DOWN},
		{"ovsdb-server gone", func(n *node, _ *attachment.Attachment) { n.fail["database"] = errors.New("not connected") }, nodev1.Reason_NOT_READY, fine, fine},
		{"a controller on the bridge", func(n *node, _ *attachment.Attachment) { n.bridges["br-rail0"].Controllers = 1 }, nodev1.Reason_BRIDGE_FOREIGN, nodev1.Reason_BRIDGE_FOREIGN, nodev1.Reason_ROUTE_DIFFERS},
		{"a flow of somebody else", func(n *node, _ *attachment.Attachment) {
			n.flows["br-rail0"]["x"] = "cookie=0x0,table=0,priority=1,actions=NORMAL"
		}, fine, nodev1.Reason_DATAPATH_DIFFERS, fine},
		{"port gone, link gone", func(n *node, h *attachment.Attachment) {
			delete(n.bridges["br-rail0"].Ports, h.Port)
			delete(n.links, h.Port)
		}, fine, nodev1.Reason_PORT_MISSING, nodev1.Reason_ROUTE_DIFFERS},
		{"the port's MTU changed", func(n *node, h *attachment.Attachment) {
			n.mtus[h.Port] = 1500
		}, fine, nodev1.Reason_DATAPATH_DIFFERS, fine},
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
			n.agent.mutex.Lock()
			n.mutex.Lock() // no notification: the table is about what is told, not about how it heals
			test.breakIt(n, held)
			n.mutex.Unlock()
			n.agent.mutex.Unlock()
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

// deaf is a source that hears nothing since a time.
type deaf struct {
	tenancy.Source
	mutex sync.Mutex
	since time.Time
	why   error
}

func (d *deaf) Stale() (time.Time, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.since, d.why
}

func (d *deaf) set(since time.Time, why error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.since, d.why = since, why
}

// TestTenancyStale: STATUS and a metric raise the alarm once nothing was heard for long, with the reason; pods that run are well.
func TestTenancyStale(t *testing.T) {
	w, source, dir := newWorld(t), &deaf{}, t.TempDir()
	writeNamespaces(t, dir, map[string]string{"team-a": ""})
	w.source = func(of tenancy.Source) tenancy.Source {
		source.Source = of
		return source
	}
	n := w.boot("node1", t.TempDir(), dir, "boot1")
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	source.set(n.now(), errors.New("node9.json is broken"))
	if err := n.agent.Status(t.Context(), "rail0"); err != nil {
		t.Errorf("after a moment: %v", err)
	}
	n.later(2 * staleLimit)
	err := n.agent.Status(t.Context(), "rail0")
	if failure.ReasonOf(err) != nodev1.Reason_TENANCY_STALE || !strings.Contains(err.Error(), "node9.json") {
		t.Errorf("after %v: %v", 2*staleLimit, err)
	}
	if err := errors.Join(n.agent.CheckAttachment(t.Context(), held), n.agent.CheckAnnouncement(t.Context(), held.Key, "rail0", held.Addresses)); err != nil {
		t.Errorf("a pod that runs: %v", err)
	}
	n.agent.observeTenancy(t.Context())
	if seconds := gauge(t, n.agent.Metrics.TenancyStale); seconds < (2 * staleLimit).Seconds() {
		t.Errorf("stale for %v s", seconds)
	}
	source.set(time.Time{}, nil)
	n.agent.observeTenancy(t.Context())
	if err, seconds := n.agent.Status(t.Context(), "rail0"), gauge(t, n.agent.Metrics.TenancyStale); err != nil || seconds != 0 {
		t.Errorf("heard again: %v, stale for %v s", err, seconds)
	}
}

func gauge(t *testing.T, metric prometheus.Gauge) float64 {
	t.Helper()
	var now dto.Metric
	if err := metric.Write(&now); err != nil {
		t.Fatal(err)
	}
	return now.GetGauge().GetValue()
}

// TestMorePrefixesThanTheLimit are told, and nothing else comes of them.
func TestMorePrefixesThanTheLimit(t *testing.T) {
	n := start(t)
	over := n.agent.Metrics.OverLimit.WithLabelValues("rail0")
	for _, test := range []struct {
		over bool
		want float64
	}{{true, 1}, {false, 0}} {
		n.locked(func() {
			session := n.sessions["rail0"]
			session.OverLimit = test.over
			n.sessions["rail0"] = session
		})
		n.agent.observeSessions(t.Context())
		if got := gauge(t, over); got != test.want {
			t.Errorf("over the limit %t: %v", test.over, got)
		}
		if err := n.agent.Status(t.Context(), "rail0"); err != nil {
			t.Errorf("over the limit %t: %v", test.over, err)
		}
	}
}

// TestOffloadIsJudgedByTraffic: what is in hardware is told by the cached flows that carry packets of the rail's pods and uplink.
func TestOffloadIsJudgedByTraffic(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.locked(func() {
		n.megaflows = []vswitch.Megaflow{
			{InPort: held.Port, Packets: 7, Offloaded: true}, {InPort: "p0", Packets: 9}, {InPort: "p0", Packets: 1},
			{InPort: held.Port}, {InPort: "p0", Offloaded: true}, // without traffic
			{InPort: "p1", Packets: 5, Offloaded: true}, {InPort: "others", Packets: 5}, // of another rail, of nobody
		}
	})
	n.agent.observeOffload(t.Context())
	for _, test := range []struct {
		rail, layer string
		want        float64
	}{{"rail0", "hardware", 1}, {"rail0", "software", 2}, {"rail1", "hardware", 1}, {"rail1", "software", 0}} {
		if got := gauge(t, n.agent.Metrics.Megaflows.WithLabelValues(test.rail, test.layer)); got != test.want {
			t.Errorf("%s in %s: %v, want %v", test.rail, test.layer, got, test.want)
		}
	}
}
