package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/flow"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/kernel"
	"github.com/railweave/railweave/cni/internal/nodeconfig"
	"github.com/railweave/railweave/cni/internal/store"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

// rail is one bridge and its leaf. Everything below `applying` is the batch's alone; what is under the mutex others read.
type rail struct {
	agent    *Agent
	config   *nodeconfig.Rail
	applying *batch
	// verifying asks the next run to compare the switch with what was installed.
	verifying atomic.Bool

	installed   []flow.Flow
	incarnation uint64 // of the switch the installed flows are in; 0: what is in the switch is not known
	numbers     map[string]int
	arrived     map[attachment.Key]bool // attachments whose port, MAC and addresses were cleared of older flows
	reminded    time.Time               // the routing daemons were told of LOCAL's addresses again; the watch's alone

	mutex     sync.Mutex
	problem   *failure.Error // why the bridge cannot be used
	mtu       int
	leafMAC   string
	session   frr.Session
	downSince time.Time         // zero: the leaf is there
	told      bool              // pods were told that it is down
	comparing []chan<- []string // want to know what the next comparison of the switch finds
}

func newRail(agent *Agent, config *nodeconfig.Rail) *rail {
	r := &rail{agent: agent, config: config, arrived: map[attachment.Key]bool{}, numbers: map[string]int{}, downSince: agent.Now()}
	r.applying = newBatch(r.apply)
	return r
}

func (r *rail) owner() string { return r.agent.Config.Node + "/" + r.config.Name }

func (r *rail) setProblem(problem *failure.Error) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.problem = problem
	if problem == nil {
		return nil
	}
	return problem
}

// usable tells why an attachment cannot be served now; nil if it can.
func (r *rail) usable() *failure.Error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.problem != nil {
		return r.problem
	}
	var why string
	switch {
	case !r.session.Established:
		why = "no BGP session with the leaf"
	case r.session.BFDDown:
		why = "BFD with the leaf is down"
	case r.leafMAC == "":
		why = "the kernel has no MAC address of the leaf"
	case r.session.ZebraAway:
		return failure.New(nodev1.Reason_NOT_READY, "zebra", "see whether zebra runs: `systemctl status frr`", "bgpd has no connection to it, so the leaf of %s would not hear of new addresses", r.config.Name)
	default:
		return nil
	}
	return failure.New(nodev1.Reason_RAIL_DOWN, r.config.Name, "see `vtysh -c 'show bgp summary'` on the node and the leaf's end of "+r.config.Uplink, "%s", why)
}

func (r *rail) foreign(format string, args ...any) *failure.Error {
	return failure.New(nodev1.Reason_BRIDGE_FOREIGN, r.config.Bridge, "let the agent make the bridge: name another one in the node file, or remove this one if nobody needs it", format, args...)
}

func (r *rail) missing(cause error, problem string) *failure.Error {
	return failure.New(nodev1.Reason_BRIDGE_MISSING, r.config.Bridge, "see the agent's log and `ovs-vsctl show`", "%s", problem).Because(cause)
}

// ensureBridge makes the bridge ours or says why it cannot be. A bridge that somebody else uses is left alone.
func (r *rail) ensureBridge(ctx context.Context) error {
	a := r.agent
	bridge, err := a.Database.Bridge(ctx, r.config.Bridge)
	if err != nil {
		return r.setProblem(r.missing(err, "the database cannot be read"))
	}
	if problem := r.judge(bridge); problem != nil {
		return r.setProblem(problem)
	}
	wanted := vswitch.Bridge{Name: r.config.Bridge, FailMode: "secure", DatapathType: a.Config.OVS.DatapathType, HWAddr: r.config.RouterMAC, Owner: r.owner()}
	if err := a.Database.EnsureBridge(ctx, wanted, r.config.Uplink); err != nil {
		return r.setProblem(r.missing(err, "it could not be set up"))
	}
	local := kernel.Local{Bridge: r.config.Bridge, Uplink: r.config.Uplink, MAC: r.config.MAC().String(), Addresses: r.config.NodeAddresses()}
	deadline := a.Now().Add(settleTime)
	for {
		mtu, err := a.Kernel.EnsureLocal(local)
		if err == nil {
			r.mutex.Lock()
			r.mtu = mtu
			r.mutex.Unlock()
			return r.setProblem(nil)
		}
		// ovs-vswitchd makes the link some milliseconds after the row.
		if a.Now().After(deadline) {
			return r.setProblem(r.missing(err, "its links could not be set up"))
		}
		if err := sleep(ctx, settlePoll); err != nil {
			return err
		}
	}
}

// judge refuses a bridge that is somebody else's. Ours carries our mark from the transaction on that makes it.
func (r *rail) judge(bridge *vswitch.Bridge) *failure.Error {
	switch {
	case bridge == nil || bridge.Owner == r.owner() && bridge.Controllers == 0:
		return nil
	case bridge.Controllers > 0:
		return r.foreign("it has a controller")
	case bridge.Owner != "":
		return r.foreign("it belongs to %s", bridge.Owner)
	default:
		return r.foreign("it was not made by the agent")
	}
}

const (
	// settleTime: ovs-vswitchd takes some 10 ms for a port or a bridge, and seconds on a busy machine where 200 pods start at once.
	settleTime = 10 * time.Second
	settlePoll = 5 * time.Millisecond
	retryApply = 200 * time.Millisecond
)

// applyFailed tries again later: whatever failed, the desired state is still desired.
func (r *rail) applyFailed(err error) {
	r.agent.Log.Error("rail was not applied; trying again", "rail", r.config.Name, "error", err)
	r.agent.Metrics.ApplyErrors.WithLabelValues(r.config.Name).Inc()
	r.incarnation = 0
	if r.agent.switchSilence() == 0 { // else it is applied when ovs-vswitchd answers again
		r.applying.later(retryApply)
	}
}

// apply makes switch and announcements what the attachments ask for. Routes that go, go first; routes that come, come last.
func (r *rail) apply(ctx context.Context) error {
	a := r.agent
	if a.switchSilence() > switchGrace {
		if problem := r.switchAnswers(ctx); problem != nil {
			// What the leaf sends for these addresses would go nowhere.
			return errors.Join(problem, r.announce(nil))
		}
	}
	bridge, err := a.Database.Bridge(ctx, r.config.Bridge)
	if err != nil {
		return err
	}
	if bridge == nil || bridge.Owner != r.owner() || bridge.Controllers > 0 || bridge.FailMode != "secure" || len(bridge.Ports) == 0 {
		if err := r.announce(nil); err != nil {
			return err
		}
		r.incarnation = 0
		if err := r.ensureBridge(ctx); err != nil {
			return err
		}
		if bridge, err = a.Database.Bridge(ctx, r.config.Bridge); err != nil || bridge == nil {
			return cmpErr(err, errors.New("bridge "+r.config.Bridge+" vanished"))
		}
	}
	if bridge.InBand { // of an older agent, or somebody allowed it; what is served goes on
		if err := r.ensureBridge(ctx); err != nil {
			return err
		}
	}
	mine := a.onRail(r.config.Name)
	if err := r.restorePorts(ctx, bridge, mine); err != nil {
		return err
	}
	bridge, incarnation, err := r.settle(ctx, bridge)
	if err != nil {
		return err
	}
	r.rememberNumbers(bridge, mine)
	if incarnation == r.incarnation && r.verifying.Swap(false) {
		if err := r.verify(ctx); err != nil {
			return err
		}
	}
	state := a.railState(r, bridge, mine)
	served := r.served(state, mine)
	if err := r.withdrawAllBut(served); err != nil {
		return err
	}
	if err := r.install(ctx, incarnation, state); err != nil {
		return err
	}
	served = r.served(state, mine) // a DEL may have come meanwhile
	if err := r.announce(served); err != nil {
		return err
	}
	// A plugin buries, then withdraws. What it buried before this look is withdrawn here, what it buries later it withdraws itself,
	// after the announcement: whoever comes last, the address is not announced.
	if left := r.served(state, mine); len(left) < len(served) {
		return r.withdrawAllBut(left)
	}
	return nil
}

// rememberNumbers of the ports. That of an attachment's port is kept when the port goes, to ask for it again.
func (r *rail) rememberNumbers(bridge *vswitch.Bridge, mine []*attachment.Attachment) {
	for name, port := range bridge.Ports {
		if port.OFPort > 0 {
			r.numbers[name] = port.OFPort
		}
	}
	needed := map[string]bool{}
	for _, held := range mine {
		needed[held.Port] = true
	}
	maps.DeleteFunc(r.numbers, func(name string, _ int) bool {
		_, there := bridge.Ports[name]
		return !there && !needed[name]
	})
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// restorePorts puts back ports of live attachments. ovs-cni deletes ports by the pod's interface name and the netns' path,
// so a late DEL may hit the port of a newer pod.
func (r *rail) restorePorts(ctx context.Context, bridge *vswitch.Bridge, mine []*attachment.Attachment) error {
	a := r.agent
	for _, held := range mine {
		if _, there := bridge.Ports[held.Port]; there || !a.Kernel.LinkExists(held.Port) || !a.Pods.Alive(held.Netns, held.NetnsInode) {
			continue
		}
		ids := maps.Clone(held.PortIDs)
		if ids == nil {
			ids = map[string]string{}
		}
		ids[markKey] = mark(held)
		if err := a.Database.AddPort(ctx, r.config.Bridge, held.Port, ids, r.numbers[held.Port]); err != nil {
			if errors.Is(err, vswitch.ErrSilent) {
				return fmt.Errorf("restore port %s of %s: %w", held.Port, held.Key, err)
			}
			// Somebody has put it on another bridge, say. The other pods, and changes of tenants, do not wait for that.
			a.Log.Error("port of a live attachment is gone and could not be restored", "port", held.Port, "attachment", held.Key.String(), "error", err)
			a.Metrics.ApplyErrors.WithLabelValues(r.config.Name).Inc()
			continue
		}
		a.Metrics.Repairs.WithLabelValues("port").Inc()
		a.Log.Warn("port of a live attachment was gone and is restored", "port", held.Port, "attachment", held.Key.String())
		a.Recorder.PodEvent(held.Pod, true, "RailPortRestored", fmt.Sprintf("Port %s on %s was deleted while the pod uses it; it was put back.", held.Port, r.config.Bridge))
	}
	return nil
}

// settle returns the switch's incarnation. After a restart of ovs-vswitchd the database may have port numbers of the time
// before; flows with such a number would serve another pod's port, so none are installed before the two agree.
func (r *rail) settle(ctx context.Context, bridge *vswitch.Bridge) (*vswitch.Bridge, uint64, error) {
	a := r.agent
	deadline := a.Now().Add(settleTime)
	for {
		incarnation := a.Switch.Incarnation(r.config.Bridge)
		if incarnation != 0 && incarnation == r.incarnation {
			return bridge, incarnation, nil
		}
		if incarnation != 0 {
			numbers, err := a.Switch.PortNumbers(ctx, r.config.Bridge)
			if err == nil && agree(bridge, numbers) {
				return bridge, incarnation, nil
			}
		}
		if a.Now().After(deadline) {
			return nil, 0, fmt.Errorf("bridge %s: ovs-vswitchd is not running, or its port numbers differ from the database's", r.config.Bridge)
		}
		if err := sleep(ctx, 10*settlePoll); err != nil {
			return nil, 0, err
		}
		fresh, err := a.Database.Bridge(ctx, r.config.Bridge)
		if err != nil || fresh == nil {
			return nil, 0, cmpErr(err, fmt.Errorf("bridge %s vanished", r.config.Bridge))
		}
		bridge = fresh
	}
}

func agree(bridge *vswitch.Bridge, numbers map[string]int) bool {
	for name, port := range bridge.Ports {
		if number, there := numbers[name]; name != bridge.Name && port.OFPort > 0 && (!there || number != port.OFPort) {
			return false
		}
	}
	return true
}

// served are the addresses to announce: of attachments that asked for it and whose datapath will be in place. One outside the
// rail's pools (the node file had another one when the pod came) is not: FRR's prefix lists would not let it out. Nor is one whose
// DEL found no agent: it may be somebody else's before the tombstone is replayed.
func (r *rail) served(state flow.Rail, mine []*attachment.Attachment) map[netip.Addr]bool {
	ports := map[attachment.Key]int{}
	for _, pod := range state.Pods {
		ports[pod.Key] = pod.OFPort
	}
	ended := store.Ended(r.agent.Config.StateDir, slices.Collect(maps.Keys(ports)))
	wanted := map[netip.Addr]bool{}
	for _, held := range mine {
		if held.Announced && !ended[held.Key] && ports[held.Key] > 0 && state.UplinkOFPort > 0 {
			for _, host := range held.Hosts() {
				_, wanted[host] = r.config.PoolOf(host)
			}
		}
	}
	maps.DeleteFunc(wanted, func(_ netip.Addr, inside bool) bool { return !inside })
	return wanted
}

// install brings the flows into the switch: the difference in one bundle if it is known what is there, else everything.
func (r *rail) install(ctx context.Context, incarnation uint64, state flow.Rail) error {
	a := r.agent
	wanted := flow.Program(state)
	present := map[attachment.Key]bool{}
	var arrivals []flow.Pod
	for _, pod := range state.Pods {
		present[pod.Key] = true
		if !r.arrived[pod.Key] && pod.OFPort > 0 {
			arrivals = append(arrivals, pod)
		}
	}
	var err error
	if incarnation != r.incarnation {
		err = a.Switch.Replace(ctx, r.config.Bridge, flow.Text(wanted))
	} else if change := flow.Difference(r.installed, wanted, arrivals); !change.Empty() {
		err = a.Switch.Apply(ctx, r.config.Bridge, change.Bundle())
	}
	if err != nil {
		return err
	}
	r.installed, r.incarnation = wanted, incarnation
	maps.DeleteFunc(r.arrived, func(key attachment.Key, _ bool) bool { return !present[key] })
	for _, pod := range arrivals {
		r.arrived[pod.Key] = true
	}
	a.Metrics.Flows.WithLabelValues(r.config.Name).Set(float64(len(wanted)))
	return nil
}

// inPools are the announcements in the kernel that belong to this rail.
func (r *rail) inPools() (map[netip.Addr]bool, error) {
	present, err := r.agent.Kernel.Announcements()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(present, func(address netip.Addr, _ bool) bool {
		_, mine := r.config.PoolOf(address)
		return !mine
	})
	return present, nil
}

func (r *rail) withdrawAllBut(wanted map[netip.Addr]bool) error {
	present, err := r.inPools()
	if err != nil {
		return err
	}
	for address := range present {
		if !wanted[address] {
			if err := r.agent.Kernel.Withdraw(address); err != nil {
				return err
			}
		}
	}
	return nil
}

// announce makes the rail's announcements exactly the wanted ones.
func (r *rail) announce(wanted map[netip.Addr]bool) error {
	if err := r.withdrawAllBut(wanted); err != nil {
		return err
	}
	present, err := r.inPools()
	if err != nil {
		return err
	}
	for _, address := range slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare) {
		if !present[address] {
			if err := r.agent.Kernel.Announce(address); err != nil {
				return err
			}
		}
	}
	r.agent.Metrics.Announced.WithLabelValues(r.config.Name).Set(float64(len(wanted)))
	return nil
}

// verify compares the switch with what was installed; what differs is counted, named and replaced.
func (r *rail) verify(ctx context.Context) error {
	differences, err := r.agent.Switch.Differences(ctx, r.config.Bridge, flow.Text(r.installed))
	if err != nil {
		return err
	}
	r.mutex.Lock()
	for _, told := range r.comparing {
		told <- differences // has room for one, and is told once
	}
	r.comparing = nil
	r.mutex.Unlock()
	if len(differences) == 0 {
		return nil
	}
	r.agent.Metrics.Repairs.WithLabelValues("flow").Add(float64(len(differences)))
	r.agent.Log.Warn("the bridge's flows were not what was installed; replacing them", "bridge", r.config.Bridge, "differences", len(differences), "first", differences[0])
	r.incarnation = 0
	return nil
}
