package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/store"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

// What ovs-cni writes into the external_ids of the ports it makes.
const (
	ovsCNIOwner = "ovs-cni.network.kubevirt.io"
	ovsCNINetns = "contNetns"
)

// reconcile compares everything with what it should be. A rail that cannot be served now holds up neither the others nor the alarms.
func (a *Agent) reconcile(ctx context.Context) {
	a.sweep(ctx)
	gone, _ := a.claimAll()
	a.onEveryRail(func(r *rail) {
		if err := r.ensureBridge(ctx); err != nil {
			a.Log.Error("rail is not usable", "rail", r.config.Name, "error", err)
		}
		r.verifying.Store(true)
		if err := r.applying.do(ctx); err != nil {
			return // logged by the rail, which tries again
		}
		a.repairPods(r)
	})
	a.withdrawStrangers()
	a.closeAbandoned(ctx)
	a.observeOffload(ctx)
	a.publishAll(ctx, gone...) // last: the API server may take its time
}

// onEveryRail works on all rails side by side, and waits.
func (a *Agent) onEveryRail(work func(*rail)) {
	var working sync.WaitGroup
	for _, r := range a.rails {
		working.Go(func() { work(r) })
	}
	working.Wait()
}

// repairPods sets again what was changed inside the pods (routes, rules, neighbours, MTU) and at the other end of their interfaces. Side
// by side: one whose address the kernel holds back for seconds holds up no other.
func (a *Agent) repairPods(r *rail) {
	sideBySide(a.onRail(r.config.Name), func(held *attachment.Attachment) {
		if a.busy.busy(held.Key) {
			return // what an ADD has not set yet, or a DEL has taken away, nobody has changed
		}
		a.repairPort(held)
		var difference *podnet.DifferenceError
		if !errors.As(a.Pods.Check(a.podInterface(held)), &difference) {
			return
		}
		a.Metrics.Repairs.WithLabelValues("pod").Inc()
		a.Log.Warn("a pod's interface is not as it was set", "attachment", held.Key.String(), "difference", difference.Error())
		if err := a.Pods.Configure(a.podInterface(held)); err != nil {
			a.Log.Error("a pod's interface could not be set again", "attachment", held.Key.String(), "error", err)
		}
		if now, known := a.find(held.Key); !known || !now.SameRequest(held) {
			a.release(held) // once more: its DEL, which came meanwhile, may have done it before
		}
	})
}

// repairPort sets the port's MTU again, and closes it, which an older agent did not. A port that is gone is the rail's business.
func (a *Agent) repairPort(held *attachment.Attachment) {
	if err := a.Kernel.ClosePort(held.Port); err != nil {
		a.Log.Error("a port could not be closed to the node's own stack", "attachment", held.Key.String(), "port", held.Port, "error", err)
	}
	found, err := a.Kernel.MTU(held.Port)
	if wanted := a.railMTU(held.Rail); err != nil || wanted == 0 || found == wanted {
		return
	}
	a.Metrics.Repairs.WithLabelValues("port").Inc()
	a.Log.Warn("a port's MTU is not the rail's", "attachment", held.Key.String(), "port", held.Port, "mtu", found)
	if err := a.ensurePortMTU(held); err != nil {
		a.Log.Error("a port's MTU could not be set", "attachment", held.Key.String(), "error", err)
	}
}

// dead: its namespace is gone, or the machine was rebooted since. Of one that cannot be found where nothing can, the port tells: a
// veth ends with the namespace.
func (a *Agent) dead(held *attachment.Attachment) bool {
	if held.BootID != a.BootID {
		return true
	}
	switch a.Pods.Fate(held.Netns, held.NetnsInode) {
	case podnet.Lives:
		return false
	case podnet.Ended:
		return true
	default:
		return !a.Kernel.LinkExists(held.Port)
	}
}

// warnOfUnseen tells of pods that are kept only because nobody can tell that they have ended.
func (a *Agent) warnOfUnseen() {
	unseen, example := 0, ""
	a.mutex.Lock()
	for _, held := range a.attachments {
		if held.BootID == a.BootID && a.Pods.Fate(held.Netns, held.NetnsInode) == podnet.Unclear {
			unseen, example = unseen+1, held.Netns
		}
	}
	a.mutex.Unlock()
	if unseen > 0 {
		a.Log.Error("pods' namespaces are not at their paths, nor is any other namespace in that directory; the pods are kept",
			"remedy", "mount the runtime's directory: paths.netns of the chart", "attachments", unseen, "example", example)
	}
}

// sweep removes attachments whose namespace is dead, and ports of dead namespaces that nobody else removes: after a reboot
// ovs-cni's old rows make its next ADD fail.
func (a *Agent) sweep(ctx context.Context) {
	a.mutex.Lock()
	var dead []*attachment.Attachment
	for key, held := range a.attachments {
		if !a.busy.busy(key) && a.dead(held) {
			dead = append(dead, held.Clone())
		}
	}
	a.mutex.Unlock()
	var removing sync.WaitGroup
	for _, held := range dead {
		removing.Go(func() { // side by side: one change of the switch serves them all
			removed, err := a.removeDead(ctx, held.Key)
			if err != nil {
				a.Log.Error("attachment of a dead namespace was not removed", "attachment", held.Key.String(), "netns", held.Netns, "error", err)
			} else if removed {
				a.Log.Info("attachment of a dead namespace is removed", "attachment", held.Key.String(), "netns", held.Netns)
				a.Metrics.Repairs.WithLabelValues("attachment").Inc()
			}
		})
	}
	removing.Wait()
	a.warnOfUnseen()
	for _, r := range a.rails {
		if err := a.purgePorts(ctx, r); err != nil {
			a.Log.Error("stale ports were not purged", "bridge", r.config.Bridge, "error", err)
		}
	}
}

// removeDead removes an attachment if its namespace is still dead once nobody else works on it.
func (a *Agent) removeDead(ctx context.Context, key attachment.Key) (removed bool, err error) {
	release, err := a.busy.take(ctx, key)
	if err != nil {
		return false, err
	}
	defer release()
	if held, known := a.find(key); !known || !a.dead(held) {
		return false, nil
	}
	err = a.remove(ctx, key)
	return err == nil, err
}

func (a *Agent) purgePorts(ctx context.Context, r *rail) error {
	bridge, err := a.Database.Bridge(ctx, r.config.Bridge)
	if err != nil || bridge == nil || bridge.Owner != r.owner() {
		return err
	}
	live := map[string]bool{}
	for _, held := range a.onRail(r.config.Name) {
		live[held.Port] = true
	}
	var problems error
	for name, port := range bridge.Ports {
		if name == r.config.Bridge || name == r.config.Uplink || live[name] || !a.portIsDead(port) {
			continue
		}
		a.Log.Info("port of a dead namespace is purged", "bridge", r.config.Bridge, "port", name, "netns", port.ExternalIDs[ovsCNINetns])
		a.Metrics.Repairs.WithLabelValues("stale-port").Inc()
		problems = errors.Join(problems, a.Database.DeletePort(ctx, r.config.Bridge, name))
	}
	return problems
}

// portIsDead: ovs-cni made it, or we put it back, for a namespace that is gone.
func (a *Agent) portIsDead(port vswitch.Port) bool {
	if held, err := decodeMark(port); err == nil {
		return a.dead(held)
	}
	netns := port.ExternalIDs[ovsCNINetns]
	if port.ExternalIDs["owner"] != ovsCNIOwner || netns == "" {
		return false
	}
	switch a.Pods.Fate(netns, 0) {
	case podnet.Lives:
		return false
	case podnet.Ended:
		return true
	default:
		a.mutex.Lock()
		defer a.mutex.Unlock()
		// The rows that are there when the agent starts for the first time after a reboot are of before.
		return a.rebooted && !a.ready || !a.Kernel.LinkExists(port.Name)
	}
}

func decodeMark(port vswitch.Port) (*attachment.Attachment, error) {
	text, marked := port.ExternalIDs[markKey]
	if !marked {
		return nil, errors.New("not marked")
	}
	var held attachment.Attachment
	if err := json.Unmarshal([]byte(text), &held); err != nil {
		return nil, err
	}
	return &held, held.Validate()
}

// rebuild makes a store of what OVSDB has on the ports and the kernel among its routes.
func (a *Agent) rebuild(ctx context.Context) (*store.State, error) {
	announced, err := a.Kernel.Announcements()
	if err != nil {
		return nil, err
	}
	state := &store.State{BootID: a.BootID}
	for _, entry := range a.Source.View().Entries {
		if entry.Node == a.Config.Node {
			state.Generation = max(state.Generation, entry.Generation)
		}
	}
	for _, r := range a.rails {
		bridge, err := a.Database.Bridge(ctx, r.config.Bridge)
		if err != nil {
			return nil, fmt.Errorf("bridge %s: %w", r.config.Bridge, err)
		}
		if bridge == nil {
			continue
		}
		for name, port := range bridge.Ports {
			held, err := decodeMark(port)
			if err != nil {
				continue // not served by us
			}
			if held.Port != name || held.Rail != r.config.Name {
				a.Log.Warn("a port's mark is of another port and is ignored", "port", name, "mark", held.Port)
				continue
			}
			held.PortIDs = foreignIDs(port)
			held.Announced = true
			for _, host := range held.Hosts() {
				held.Announced = held.Announced && announced[host]
			}
			state.Attachments = append(state.Attachments, held)
		}
	}
	a.Log.Info("store rebuilt", "attachments", len(state.Attachments))
	return state, nil
}

// foreignIDs are a port's external_ids without ours.
func foreignIDs(port vswitch.Port) map[string]string {
	ids := map[string]string{}
	for key, value := range port.ExternalIDs {
		if key != markKey {
			ids[key] = value
		}
	}
	return ids
}

// replayTombstones does what DELs wanted while the agent was down: all of them, or those that stand in the way of an attachment
// to a rail. One whose rail cannot be served now stays and is tried again; the others do not wait for it.
func (a *Agent) replayTombstones(ctx context.Context, only *rail) error {
	waiting, damaged, err := store.Tombstones(a.Config.StateDir)
	a.mutex.Lock()
	a.unread = err
	a.mutex.Unlock()
	if err != nil {
		return fmt.Errorf("tombstones cannot be read: %w", err)
	}
	if damaged != nil {
		a.Log.Error("a tombstone is damaged; the sweep finds its attachment once the namespace is dead", "error", damaged)
	}
	waiting = slices.DeleteFunc(waiting, func(tombstone store.Tombstone) bool {
		held, known := a.find(tombstone.Key)
		return only != nil && known && held.Rail != only.config.Name
	})
	// The plugins have withdrawn these. Replaying one must not announce another, whose address may be somebody else's by now.
	a.mutex.Lock()
	for _, tombstone := range waiting {
		if held, known := a.attachments[tombstone.Key]; known {
			held.Announced = false
		}
	}
	a.mutex.Unlock()
	results := make(chan error, len(waiting))
	for _, tombstone := range waiting {
		go func() { results <- a.replay(ctx, tombstone) }()
	}
	for range waiting {
		err = errors.Join(err, <-results)
	}
	return err
}

// replay does what the RPC does that the plugin could not call. A tombstone of an attachment that is not known, because the
// store was lost or an earlier replay was cut short, may have left cached flows all the same.
func (a *Agent) replay(ctx context.Context, tombstone store.Tombstone) error {
	release, err := a.busy.take(ctx, tombstone.Key)
	if err != nil {
		return err
	}
	defer release()
	if !store.Buried(a.Config.StateDir, tombstone) {
		return nil // replayed meanwhile: what has the key now is a newer attachment
	}
	held, known := a.find(tombstone.Key)
	switch {
	case known && tombstone.Verb == store.Withdraw:
		err = errors.Join(a.rails[held.Rail].applying.do(ctx), a.saving.do(ctx))
	case known:
		err = a.remove(ctx, tombstone.Key)
	default:
		err = errors.Join(a.revalidating.do(ctx), a.remove(ctx, tombstone.Key))
	}
	if err != nil {
		return fmt.Errorf("tombstone of %s: %w", tombstone.Key, err)
	}
	a.Log.Info("tombstone replayed", "verb", tombstone.Verb, "attachment", tombstone.Key.String())
	return store.Exhume(a.Config.StateDir, tombstone)
}

// closeAbandoned takes all flows off bridges of this node's rails that the node file no longer has. Nobody follows there who may
// reach whom, so what passes would go on passing after a change of tenants.
func (a *Agent) closeAbandoned(ctx context.Context) {
	served := map[string]bool{}
	for _, r := range a.rails {
		served[r.owner()+" "+r.config.Bridge] = true
	}
	for bridge, owner := range a.Database.Owners(ctx) {
		incarnation := a.Switch.Incarnation(bridge)
		a.mutex.Lock()
		done := incarnation == 0 || a.closed[bridge] == incarnation // a switch that starts has no flows
		a.mutex.Unlock()
		if done || served[owner+" "+bridge] || !strings.HasPrefix(owner, a.Config.Node+"/") {
			continue
		}
		if err := errors.Join(a.Switch.Replace(ctx, bridge, ""), a.revalidating.do(ctx)); err != nil {
			a.Log.Error("the flows of a rail that the node file no longer has were not removed", "bridge", bridge, "rail", owner, "error", err)
			continue
		}
		a.Log.Warn("the node file no longer has this rail: its bridge drops everything", "bridge", bridge, "rail", owner)
		a.mutex.Lock()
		a.closed[bridge] = incarnation
		a.mutex.Unlock()
	}
}

// tellWithoutPool tells of pods whose addresses lie in no pool of the node file any more.
func (a *Agent) tellWithoutPool() {
	for _, r := range a.rails {
		for _, held := range a.onRail(r.config.Name) {
			for _, host := range held.Hosts() {
				if _, inside := r.config.PoolOf(host); inside {
					continue
				}
				a.Log.Error("an attachment's address lies in no pool of its rail any more and is not announced; give the node file its pool back, or restart the pod",
					"rail", r.config.Name, "attachment", held.Key.String(), "address", host)
				a.Recorder.PodEvent(held.Pod, true, "RailAddressWithoutPool",
					fmt.Sprintf("%s of %s lies in no pool of the node file any more: it is not announced, nobody reaches it.", host, r.config.Name))
			}
		}
	}
}

// withdrawStrangers removes announcements that lie in no rail's pool: left by an older node file.
func (a *Agent) withdrawStrangers() {
	present, err := a.Kernel.Announcements()
	if err != nil {
		a.Log.Error("announcements could not be read", "error", err)
		return
	}
	for address := range present {
		covered := false
		for i := range a.Config.Rails {
			_, inside := a.Config.Rails[i].PoolOf(address)
			covered = covered || inside
		}
		if covered {
			continue
		}
		if err := a.Kernel.Withdraw(address); err != nil {
			a.Log.Error("an announcement outside all pools was not withdrawn", "address", address, "error", err)
		}
		a.Metrics.Repairs.WithLabelValues("route").Inc()
	}
}
