package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

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

// reconcile compares everything with what it should be.
func (a *Agent) reconcile(ctx context.Context) {
	if err := a.replayTombstones(ctx); err != nil {
		a.Log.Error("tombstones could not be replayed", "error", err)
	}
	a.sweep(ctx)
	a.publishAll(ctx)
	for _, r := range a.rails {
		if err := r.ensureBridge(ctx); err != nil {
			a.Log.Error("rail is not usable", "rail", r.config.Name, "error", err)
		}
		r.verifying.Store(true)
	}
	if err := a.applyAll(ctx); err != nil {
		return // logged by the rail, which tries again
	}
	a.repairPods()
	a.withdrawStrangers()
	a.observeOffload(ctx)
	a.observeTenancy(ctx)
}

// repairPods sets again what was changed inside the pods: routes, rules, neighbours, MTU.
func (a *Agent) repairPods() {
	for _, r := range a.rails {
		for _, held := range a.onRail(r.config.Name) {
			var difference *podnet.DifferenceError
			if !errors.As(a.Pods.Check(a.podInterface(held)), &difference) {
				continue
			}
			a.Metrics.Repairs.WithLabelValues("pod").Inc()
			a.Log.Warn("a pod's interface is not as it was set", "attachment", held.Key.String(), "difference", difference.Error())
			if err := a.Pods.Configure(a.podInterface(held)); err != nil {
				a.Log.Error("a pod's interface could not be set again", "attachment", held.Key.String(), "error", err)
			}
		}
	}
}

// dead: its namespace is gone, or the machine was rebooted since.
func (a *Agent) dead(held *attachment.Attachment) bool {
	return held.BootID != a.BootID || !a.Pods.Alive(held.Netns, held.NetnsInode)
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
	for _, held := range dead {
		a.Log.Info("attachment of a dead namespace is removed", "attachment", held.Key.String(), "netns", held.Netns)
		a.Metrics.Repairs.WithLabelValues("attachment").Inc()
		if err := a.remove(ctx, held.Key); err != nil {
			a.Log.Error("attachment was not removed", "attachment", held.Key.String(), "error", err)
		}
	}
	for _, r := range a.rails {
		if err := a.purgePorts(ctx, r); err != nil {
			a.Log.Error("stale ports were not purged", "bridge", r.config.Bridge, "error", err)
		}
	}
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
	inode, err := a.Pods.Inode(netns)
	return err != nil && !a.Pods.Alive(netns, inode)
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

// replayTombstones does what DELs wanted while the agent was down.
func (a *Agent) replayTombstones(ctx context.Context) error {
	waiting, err := store.Tombstones(a.Config.StateDir)
	if err != nil {
		a.Log.Error("a tombstone is damaged; the sweep finds its attachment once the namespace is dead", "error", err)
	}
	for _, tombstone := range waiting {
		if err := a.replay(ctx, tombstone); err != nil {
			return fmt.Errorf("tombstone of %s: %w", tombstone.Key, err)
		}
	}
	return nil
}

func (a *Agent) replay(ctx context.Context, tombstone store.Tombstone) error {
	a.mutex.Lock()
	held, known := a.attachments[tombstone.Key]
	if known && tombstone.Verb == store.Withdraw {
		held.Announced = false
	}
	if known && tombstone.Verb == store.Detach {
		delete(a.attachments, tombstone.Key)
		held = held.Clone()
	}
	ready := a.ready
	a.mutex.Unlock()
	if known {
		if tombstone.Verb == store.Detach {
			a.unpublish(ctx, held)
		}
		if err := a.saving.do(ctx); err != nil {
			return err
		}
		if ready { // else start applies the rails
			if err := a.rails[held.Rail].applying.do(ctx); err != nil {
				return err
			}
		}
		a.Log.Info("tombstone replayed", "verb", tombstone.Verb, "attachment", tombstone.Key.String())
	}
	return store.Exhume(a.Config.StateDir, tombstone)
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
