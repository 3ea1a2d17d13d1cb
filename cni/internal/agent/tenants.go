package agent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

// nextGeneration is never given twice. Called with the mutex held.
func (a *Agent) nextGeneration() uint64 {
	a.generation++
	return a.generation
}

// adoptPublished takes over what this node had published before it was started.
func (a *Agent) adoptPublished() {
	view := a.Source.View()
	a.mutex.Lock()
	defer a.mutex.Unlock()
	// Even if the store is lost: a barrier with a number that others acknowledged once would wait for nobody.
	a.generation = max(a.generation, view.Nodes[a.Config.Node].Barrier)
	for _, other := range view.Nodes {
		a.generation = max(a.generation, other.Acks[a.Config.Node])
	}
	holders := a.holders()
	for address, entry := range view.Entries {
		if entry.Node != a.Config.Node {
			continue
		}
		a.generation = max(a.generation, entry.Generation)
		if held := holders[address]; held != nil { // else publishAll takes it back
			a.own[address] = entry
		}
	}
	for address, entry := range a.own {
		held := holders[address]
		if entry.Tenant.Valid() && fits(entry, held) {
			continue
		}
		// An older agent wrote it without its kind, or it is of the pod that had the address before: what is published may be in
		// force on other nodes and, with cached flows, here. It gets its tenant as by a change of it.
		wanted, exists := view.Namespaces[held.Pod.Namespace]
		if !exists {
			wanted = tenancy.TenantOf(held.Pod.Namespace, "") // nothing will be granted
		}
		entry.Namespace, entry.Rail, entry.Tenant = held.Pod.Namespace, held.Rail, wanted
		entry.Revoked, entry.Changed, entry.Generation = true, true, a.nextGeneration()
		a.own[address] = entry
		a.unsettled = true
	}
	a.acks = maps.Clone(view.Nodes[a.Config.Node].Acks)
	if a.acks == nil {
		a.acks = map[string]uint64{}
	}
}

// holders are this node's attachments by address; collide sees to it that an address has one. Called with the mutex held.
func (a *Agent) holders() map[netip.Addr]*attachment.Attachment {
	holders := map[netip.Addr]*attachment.Attachment{}
	for _, held := range a.attachments {
		for _, host := range held.Hosts() {
			holders[host] = held
		}
	}
	return holders
}

// fits tells whether an entry is about the attachment that has its address now. One of the pod that had the address before is
// not: it names somebody else's tenant.
func fits(entry tenancy.Entry, held *attachment.Attachment) bool {
	return entry.Namespace == held.Pod.Namespace && entry.Rail == held.Rail
}

// tenantOf is the tenant that all addresses of an attachment have; false if they have none, or not the same. Called with the mutex held.
func (a *Agent) tenantOf(held *attachment.Attachment) (tenancy.Tenant, bool) {
	var common tenancy.Tenant
	for i, host := range held.Hosts() {
		entry, owned := a.own[host]
		if !owned || entry.Revoked || !fits(entry, held) || i > 0 && entry.Tenant != common {
			return "", false
		}
		common = entry.Tenant
	}
	return common, common != ""
}

var (
	errNoNamespace = errors.New("its Namespace does not exist")
	errDetached    = errors.New("it was detached meanwhile")
)

// claim gives the addresses of an attachment the tenant its Namespace has now, on this node.
func (a *Agent) claim(held *attachment.Attachment) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	// Asked under the lock: markRevoked either knows what is claimed here, or had a view that this one is not older than.
	return a.claimFrom(held, a.Source.View())
}

// claimFrom does it by a view that was asked for under the mutex. Called with the mutex held.
func (a *Agent) claimFrom(held *attachment.Attachment, view tenancy.View) error {
	// Looked up under the lock: an entry of an attachment that is gone would be found by the next pod with its address.
	if now := a.attachments[held.Key]; now == nil || !now.SameRequest(held) {
		return errDetached
	}
	tenant, exists := view.Namespaces[held.Pod.Namespace]
	if !exists {
		return errNoNamespace
	}
	for _, host := range held.Hosts() {
		// One that does not fit never gave this attachment flows (tenantOf), so that nothing has to be revoked before it is replaced.
		if entry, known := a.own[host]; !known || !fits(entry, held) {
			a.own[host] = tenancy.Entry{Address: host, Node: a.Config.Node, Rail: held.Rail, Namespace: held.Pod.Namespace, Tenant: tenant, Generation: a.nextGeneration()}
		}
	}
	return nil
}

// publish makes the claimed addresses of an attachment known to all nodes, side by side. One whose tenant was changed is left to
// changeTenants until the view shows it: others may hear of it only when it is in force here, and in the order of generations.
func (a *Agent) publish(ctx context.Context, held *attachment.Attachment) error {
	hosts := held.Hosts()
	results := make(chan error, len(hosts))
	for _, host := range hosts {
		go func() {
			results <- a.publishAddress(ctx, host, func(entry tenancy.Entry) bool {
				return !entry.Changed || a.Source.View().Entries[host] == entry
			})
		}()
	}
	var first error
	for range hosts {
		if err := <-results; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// publishAddress publishes what the address is now, if it may be, and takes it back if it is none of this node's.
func (a *Agent) publishAddress(ctx context.Context, address netip.Addr, may func(tenancy.Entry) bool) error {
	release, err := a.publishing.take(ctx, address)
	if err != nil {
		return err
	}
	defer release()
	a.mutex.Lock()
	entry, owned := a.own[address]
	a.mutex.Unlock()
	switch {
	case !owned:
		return a.Source.Remove(ctx, address)
	case may(entry):
		return a.Source.Publish(ctx, entry)
	default:
		return nil
	}
}

const (
	// takeBackTime: the API server removes an address within some 10 ms. A DEL waits no longer for one that swallows requests.
	takeBackTime = 3 * time.Second
	// sourceTime bounds a request to the source on nobody's behalf, and publishTime a reconciliation's requests together: what they do
	// not do the next heartbeat or reconciliation does. A node's 3,200 addresses (200 pods, 8 rails) take a second or two.
	sourceTime  = 10 * time.Second
	publishTime = 20 * time.Second
	// publishers write at a time. Their requests share the client's connection.
	publishers = 64
)

// takeBack removes addresses that are no longer this node's, side by side. One that fails is tried again by publishAll.
func (a *Agent) takeBack(ctx context.Context, addresses []netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, takeBackTime)
	defer cancel()
	sideBySide(addresses, func(address netip.Addr) {
		if err := a.publishAddress(ctx, address, func(tenancy.Entry) bool { return false }); err != nil {
			a.Log.Warn("a published address was not taken back; trying again later", "address", address, "error", err)
		}
	})
}

// sideBySide does the work for each, some at a time, and waits.
func sideBySide[T any](each []T, work func(T)) {
	var working sync.WaitGroup
	free := make(chan struct{}, publishers)
	for _, one := range each {
		free <- struct{}{}
		working.Go(func() {
			defer func() { <-free }()
			work(one)
		})
	}
	working.Wait()
}

// disown forgets the addresses of an attachment that is removed, except those that another one has by now, and returns the others.
func (a *Agent) disown(held *attachment.Attachment) []netip.Addr {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	holders := a.holders()
	disowned := slices.DeleteFunc(held.Hosts(), func(host netip.Addr) bool { return holders[host] != nil })
	for _, host := range disowned {
		delete(a.own, host)
	}
	return disowned
}

// claimAll makes the addresses this node owns those of its attachments: what no attachment has is not inherited by the next pod. It
// returns the addresses to take back and the attachments that have what may be published.
func (a *Agent) claimAll() (gone []netip.Addr, claimed []*attachment.Attachment) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	view := a.Source.View() // once for all: with many nodes' heartbeats each view is put together anew
	holders := a.holders()
	for address := range a.own {
		if holders[address] == nil { // whether or not the view shows it yet
			gone = append(gone, address)
			delete(a.own, address)
		}
	}
	for address, entry := range view.Entries {
		if entry.Node == a.Config.Node && holders[address] == nil && !slices.Contains(gone, address) {
			gone = append(gone, address)
		}
	}
	for _, held := range a.attachments {
		if a.claimFrom(held, view) == nil { // else it has no tenant, so nothing passes
			claimed = append(claimed, held.Clone())
		}
	}
	return gone, claimed
}

// publishAll makes the published addresses those of the attachments. `gone`: what an earlier claimAll found to be taken back.
func (a *Agent) publishAll(ctx context.Context, gone ...netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	found, claimed := a.claimAll()
	a.takeBack(ctx, append(gone, found...))
	var mutex sync.Mutex
	var failed int
	var example string
	var first error
	// Also what the view shows: the source knows whether all of it is right, and writes only what is not.
	sideBySide(claimed, func(held *attachment.Attachment) {
		if err := a.publish(ctx, held); err != nil {
			mutex.Lock()
			defer mutex.Unlock()
			if failed++; failed == 1 {
				example, first = held.Key.String(), err
			}
		}
	})
	if failed > 0 { // one line: while the API server is away, all of them
		a.Log.Error("attachments' addresses were not published; trying again later", "attachments", failed, "example", example, "error", first)
	}
}

// watchTenancy follows the source: addresses of other nodes, changes of tenants, barriers, heartbeats.
func (a *Agent) watchTenancy(ctx context.Context) {
	heartbeat := time.NewTicker(tenancy.HeartbeatPeriod)
	defer heartbeat.Stop()
	a.heard(ctx)
	a.report(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.Source.Changed():
			a.heard(ctx)
		case <-heartbeat.C:
			a.heard(ctx)
			a.report(ctx)
		}
	}
}

// catchUp takes over what this node had published itself and had not remembered when it started without the source.
func (a *Agent) catchUp() {
	view := a.Source.View()
	a.mutex.Lock()
	defer a.mutex.Unlock()
	holders := a.holders()
	for address, entry := range view.Entries {
		if entry.Node != a.Config.Node {
			continue
		}
		a.generation = max(a.generation, entry.Generation)
		known, owned := a.own[address]
		if held := holders[address]; held != nil && owned && known.Generation < entry.Generation && fits(entry, held) {
			a.own[address] = entry
		}
	}
}

// heard brings the view into the switch and then says so: what is due was in the view before the rails were applied.
func (a *Agent) heard(ctx context.Context) {
	a.hearing.Lock()
	defer a.hearing.Unlock()
	a.catchUp()
	due := a.Source.View().Due(a.Config.Node)
	if err := a.applyAll(ctx); err == nil { // else logged by the rail, which tries again; heard again at the next heartbeat
		a.acknowledge(ctx, due)
	}
	// Also when a rail could not be applied: what is revoked must go from the others.
	for a.changeTenants(ctx) {
	}
}

// acknowledge reports the barriers of other nodes that are in force here once no cached flow of before is left.
func (a *Agent) acknowledge(ctx context.Context, due map[string]uint64) {
	a.mutex.Lock()
	behind := !maps.Equal(due, a.acks)
	a.mutex.Unlock()
	if !behind {
		return
	}
	if err := a.revalidating.do(ctx); err != nil {
		a.Log.Error("cached flows could not be revalidated; the barrier is not acknowledged", "error", err)
		return
	}
	a.mutex.Lock()
	a.acks = due
	a.mutex.Unlock()
	a.report(ctx)
}

func (a *Agent) report(ctx context.Context) {
	a.mutex.Lock()
	node := tenancy.Node{Name: a.Config.Node, Heartbeat: a.Now(), Barrier: tenancy.Barrier(slices.Collect(maps.Values(a.own))), Acks: maps.Clone(a.acks)}
	a.mutex.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sourceTime)
	defer cancel()
	if err := a.Source.Report(ctx, node); err != nil {
		a.Log.Warn("this node's state was not published; trying again at the next heartbeat", "error", err)
	}
}

// changeTenants moves the addresses of Namespaces whose tenant changed one step on. It tells whether it did something, so
// that the next step may be possible.
func (a *Agent) changeTenants(ctx context.Context) bool {
	revoked := a.markRevoked()
	// First here, in both directions and with no cached flow left; only then the others are told.
	changed, ok := a.settleTenants(ctx)
	if !ok || !a.publishOutdated(ctx) {
		return false
	}
	if changed {
		a.Metrics.TenantChanges.WithLabelValues("revoked").Add(float64(revoked))
		a.report(ctx)
	}
	granted := a.markGranted()
	if granted == 0 {
		return changed
	}
	// Likewise: what is reported in force must not meet a cached flow that still drops.
	if _, ok := a.settleTenants(ctx); !ok {
		return false
	}
	a.Metrics.TenantChanges.WithLabelValues("granted").Add(float64(granted))
	published := a.publishOutdated(ctx)
	a.report(ctx)
	return published
}

// settleTenants brings changed tenants into this node's switch and store. Until it succeeds none of them is published.
func (a *Agent) settleTenants(ctx context.Context) (changed, ok bool) {
	a.mutex.Lock()
	unsettled := a.unsettled
	a.mutex.Unlock()
	if !unsettled {
		return false, true
	}
	if err := errors.Join(a.applyAll(ctx), a.revalidating.do(ctx), a.saving.do(ctx)); err != nil {
		a.Log.Error("a change of tenant is not in force here yet; trying again at the next heartbeat", "error", err)
		return true, false
	}
	a.mutex.Lock()
	a.unsettled = false
	a.mutex.Unlock()
	return true, true
}

// markRevoked takes the tenant from the addresses whose Namespace has another one now.
func (a *Agent) markRevoked() int {
	view := a.Source.View()
	a.mutex.Lock()
	defer a.mutex.Unlock()
	count := 0
	for address, entry := range a.own {
		// A Namespace that is gone: its pods keep what they have until they end.
		if wanted, exists := view.Namespaces[entry.Namespace]; exists && tenancy.Next(entry, wanted, nil) == tenancy.Revoke {
			entry.Revoked, entry.Changed, entry.Generation = true, true, a.nextGeneration()
			a.own[address] = entry
			count++
		}
	}
	a.unsettled = a.unsettled || count > 0
	return count
}

// markGranted gives the new tenant to the revoked addresses, if all live nodes have acknowledged.
func (a *Agent) markGranted() int {
	view := a.Source.View()
	a.mutex.Lock()
	defer a.mutex.Unlock()
	missing := view.Missing(a.Config.Node, tenancy.Revocation(slices.Collect(maps.Values(a.own))), a.Now())
	count := 0
	for address, entry := range a.own {
		if wanted, exists := view.Namespaces[entry.Namespace]; exists && tenancy.Next(entry, wanted, missing) == tenancy.Grant {
			entry.Revoked, entry.Changed, entry.Tenant, entry.Generation = false, true, wanted, a.nextGeneration()
			a.own[address] = entry
			count++
		}
	}
	a.unsettled = a.unsettled || count > 0
	return count
}

// publishOutdated publishes changed addresses that the view does not show yet, in the order of generations. New ones are their
// ADD's, and publishAll's if that failed: a change must not wait for them.
func (a *Agent) publishOutdated(ctx context.Context) bool {
	view := a.Source.View()
	a.mutex.Lock()
	var outdated []tenancy.Entry
	for address, entry := range a.own {
		if entry.Changed && view.Entries[address] != entry {
			outdated = append(outdated, entry)
		}
	}
	a.mutex.Unlock()
	slices.SortFunc(outdated, func(x, y tenancy.Entry) int { return cmp.Compare(x.Generation, y.Generation) })
	for _, entry := range outdated {
		bounded, cancel := context.WithTimeout(ctx, sourceTime)
		err := a.publishAddress(bounded, entry.Address, func(tenancy.Entry) bool { return true })
		cancel()
		if err != nil {
			a.Log.Error("an address was not published; trying again at the next heartbeat", "address", entry.Address, "error", err)
			return false
		}
	}
	return true
}
