// Package agent holds the node agent: it keeps the store, derives from it what Open vSwitch, the kernel and the pods must
// look like, and makes them so: at start, on every change, and periodically.
//
// One mutex guards the facts (attachments, own addresses, what was heard of the rails). Work on a rail is done by that
// rail's batch alone, so bundles of one bridge never overlap; the store has one writer, its batch.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/flow"
	"github.com/railweave/railweave/cni/internal/nodeconfig"
	"github.com/railweave/railweave/cni/internal/preflight"
	"github.com/railweave/railweave/cni/internal/store"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

// Surroundings are all that an agent works on.
type Surroundings struct {
	Config   *nodeconfig.Config
	Database Database
	Switch   Switch
	Routing  Routing
	Kernel   Kernel
	Pods     Pods
	Source   tenancy.Source
	Recorder Recorder
	// Preflight looks at the node.
	Preflight func(ctx context.Context) []preflight.Finding
	Metrics   *Metrics
	Log       *slog.Logger
	BootID    string
	Now       func() time.Time
}

// Agent serves one node.
type Agent struct {
	Surroundings
	rails  map[string]*rail
	saving *batch
	// revalidating serves many DELs with one question: ovs-vswitchd's control socket has a short queue.
	revalidating *batch

	// busy are attachments with a request under way: a retry of a runtime may overlap the call it gave up on.
	busy *turns[attachment.Key]
	// publishing are addresses on their way to the source: what is sent is what the address is then, so the last one is right.
	publishing *turns[netip.Addr]

	// hearing: changes of tenants go one step after the other. Between settling and publishing a step no other may mark addresses.
	hearing sync.Mutex

	// observing: sessions are looked at by one at a time, as what is remembered from look to look is of a single sequence of looks.
	observing sync.Mutex

	mutex       sync.Mutex
	attachments map[attachment.Key]*attachment.Attachment
	// own are this node's published addresses with the tenant they have now.
	own        map[netip.Addr]tenancy.Entry
	generation uint64
	tenants    map[tenancy.Tenant]uint32
	acks       map[string]uint64
	// unsettled: an address lost or got a tenant, but cached flows of before may be left.
	unsettled bool
	// disputed counts for how many polls in a row the kernel and bgpd have disagreed about an announcement.
	disputed map[netip.Addr]int
	// asking is, for IPv4 and for the rest, how bgpd is asked to settle such differences.
	asking map[bool]*asking
	// unsaved is why the store was not written the last time, unread why the tombstones were not read.
	unsaved, unread error
	// stored are the attachments in the store as it is on disk: those that another agent would have after a crash.
	stored map[attachment.Key]bool
	// silent since: ovs-vswitchd no longer answers; zero if it does.
	silent time.Time
	// givenUp: it has been silent for too long to go on announcing what it serves.
	givenUp bool
	// findings of the last preflight; refusals are its failures for which nothing new is served.
	findings, refusals []preflight.Finding
	// closed are bridges of rails that the node file no longer has, by the switch's incarnation in which their flows were removed.
	closed map[string]uint64
	// revived are announced although no pod has them, until the next poll.
	revived []netip.Addr
	// rebooted: the store is of before the last boot.
	rebooted bool
	ready    bool
}

// New makes an agent; Run starts it.
func New(s Surroundings) *Agent {
	a := &Agent{
		Surroundings: s,
		rails:        map[string]*rail{},
		attachments:  map[attachment.Key]*attachment.Attachment{},
		busy:         newTurns[attachment.Key](),
		publishing:   newTurns[netip.Addr](),
		own:          map[netip.Addr]tenancy.Entry{},
		tenants:      map[tenancy.Tenant]uint32{},
		acks:         map[string]uint64{},
		disputed:     map[netip.Addr]int{},
		closed:       map[string]uint64{},
		asking:       map[bool]*asking{true: {}, false: {}},
	}
	a.saving = newBatch(a.save)
	a.revalidating = newBatch(a.revalidate)
	for i := range s.Config.Rails {
		a.rails[s.Config.Rails[i].Name] = newRail(a, &s.Config.Rails[i])
	}
	return a
}

// save writes the store; the saving batch alone calls it.
func (a *Agent) save(context.Context) error {
	a.mutex.Lock()
	state := &store.State{BootID: a.BootID, Generation: a.generation}
	for _, key := range slices.SortedFunc(maps.Keys(a.attachments), attachment.Key.Compare) {
		state.Attachments = append(state.Attachments, a.attachments[key].Clone())
	}
	a.mutex.Unlock()
	state.LeafMACs = map[string]string{}
	for name, r := range a.rails {
		r.mutex.Lock()
		state.LeafMACs[name] = r.leafMAC
		r.mutex.Unlock()
	}
	err := store.Write(a.Config.StateDir, state)
	a.mutex.Lock()
	before := a.unsaved
	a.unsaved = err
	if err == nil {
		a.stored = keysOf(state.Attachments)
	}
	a.mutex.Unlock()
	switch { // once, not each time that it is tried
	case err != nil && before == nil:
		a.Log.Error("the store was not written; trying again", "error", err)
	case err == nil && before != nil:
		a.Log.Info("the store is written again")
	}
	return err
}

func keysOf(attachments []*attachment.Attachment) map[attachment.Key]bool {
	keys := map[attachment.Key]bool{}
	for _, held := range attachments {
		keys[held.Key] = true
	}
	return keys
}

// saveFailed tries again later: where nobody waits for the store either, and STATUS, which says that it cannot be written, keeps away
// who would.
func (a *Agent) saveFailed(error) { a.saving.later(repairPoll) }

// revalidate waits until no cached flow is left that the flow tables no longer give; the revalidating batch alone calls it.
func (a *Agent) revalidate(ctx context.Context) error {
	bridge := ""
	for _, r := range a.rails {
		r.mutex.Lock()
		if r.problem == nil {
			bridge = r.config.Bridge // all bridges of a datapath have the same revalidators
		}
		r.mutex.Unlock()
	}
	return a.Switch.Revalidate(ctx, bridge)
}

// Run brings everything into the desired state, then keeps it there until the context ends, which is no failure.
func (a *Agent) Run(ctx context.Context) error {
	err := a.run(ctx)
	if ctx.Err() != nil {
		err = nil // whatever was under way was interrupted
	}
	a.farewell(ctx, err)
	return err
}

func (a *Agent) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { a.saving.run(ctx, a.saveFailed) })
	running.Go(func() {
		a.revalidating.run(ctx, func(err error) { a.Log.Error("cached flows could not be revalidated", "error", err) })
	})
	for _, r := range a.rails {
		running.Go(func() { r.applying.run(ctx, r.applyFailed) })
	}
	running.Go(func() { a.watchHealth(ctx) })
	gone, err := a.restore(ctx)
	if err != nil {
		return err
	}
	// From here on, and not from when the agent is ready: an API server that does not answer may keep it from being ready for
	// minutes, and the addresses of pods that end meanwhile are given out again.
	running.Go(func() { a.watchTombstones(ctx) })
	a.start(ctx, gone)
	running.Go(func() { a.watchRouting(ctx) })
	running.Go(func() { a.watchTenancy(ctx) })
	running.Go(func() { a.watchDatabase(ctx) })
	running.Go(func() { every(ctx, answerPoll, a.observeSwitch) })
	running.Go(func() { a.watchNode(ctx) })
	// On its own: an alarm must not wait for what it is about.
	running.Go(func() { every(ctx, a.Config.ReconcilePeriod(), a.observeTenancy) })
	a.setReady()
	every(ctx, a.Config.ReconcilePeriod(), a.reconcile)
	return nil
}

func (a *Agent) setReady() {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.ready = true
	a.Log.Info("ready", "attachments", len(a.attachments))
	a.Metrics.Attachments.Set(float64(len(a.attachments)))
}

// Ready tells whether the first reconciliation is done.
func (a *Agent) Ready() bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.ready
}

// startRetry: what is missing at start often comes a moment later.
const startRetry = time.Second

// restore gets the attachments back and replays tombstones. It returns published addresses that nobody has any more.
func (a *Agent) restore(ctx context.Context) (gone []netip.Addr, err error) {
	if err := a.load(ctx); err != nil {
		return nil, err
	}
	if a.Config.OVS.HWOffload {
		if err := a.Database.SetOtherConfig(ctx, "hw-offload", "true"); err != nil {
			return nil, fmt.Errorf("request hardware offload: %w", err)
		}
	}
	a.adoptPublished()
	a.markRevoked() // before the rails are applied: what was revoked here before must not come back for a moment
	a.onEveryRail(func(r *rail) {
		if err := r.ensureBridge(ctx); err != nil {
			a.Log.Error("rail is not usable", "rail", r.config.Name, "error", err)
		}
	})
	a.observeSessions(ctx)
	gone, _ = a.claimAll()
	for {
		err := a.replayTombstones(ctx, nil)
		if err == nil {
			return gone, nil
		}
		if a.storeProblem() == nil {
			a.Log.Error("tombstones were not all replayed; no attachment to their rails is served before they are", "error", err)
			return gone, nil
		}
		a.Log.Error("the agent is not ready before it knows what DELs wanted meanwhile", "error", err)
		if err := sleep(ctx, startRetry); err != nil {
			return nil, err
		}
	}
}

// start sweeps the dead and applies the rails once. What cannot be done on a rail that cannot be served is left to the time when it
// can, and so is the store on a disk that is full: pods that run need their agent.
func (a *Agent) start(ctx context.Context, gone []netip.Addr) {
	a.sweep(ctx)
	if err := a.applyAll(ctx); err != nil {
		a.Log.Error("not every rail was applied", "error", err)
	}
	a.publishAll(ctx, gone...) // after what passes here: the API server may take its time
	a.withdrawStrangers()
	a.closeAbandoned(ctx)
	a.tellWithoutPool()
	a.inspectNode(ctx)
	_ = a.saving.do(ctx) // a failure is logged, and told by STATUS
}

// load reads the store. A damaged one is in quarantine by now and is rebuilt from the switch and the kernel, whose traffic goes on.
func (a *Agent) load(ctx context.Context) error {
	state, err := store.Open(a.Config.StateDir)
	var damaged *store.DamagedError
	if errors.As(err, &damaged) {
		a.Log.Error("the store is damaged and was moved into quarantine; rebuilding it from OVSDB and the kernel", "error", err)
		a.Metrics.Repairs.WithLabelValues("store").Inc()
		state, err = a.rebuild(ctx)
	} else if err == nil && state.BootID == "" {
		state, err = a.rebuild(ctx) // there is none: a new node, or somebody removed it
	}
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.generation = state.Generation
	a.stored = keysOf(state.Attachments) // or more, if it was rebuilt
	a.rebooted = state.BootID != a.BootID
	for name, mac := range state.LeafMACs {
		if r, known := a.rails[name]; known && flow.ValidMAC(mac) {
			r.mutex.Lock()
			r.leafMAC = mac
			r.mutex.Unlock()
		}
	}
	for _, found := range state.Attachments {
		if _, known := a.rails[found.Rail]; !known {
			a.Log.Error("attachment of a rail that the node file no longer has is dropped", "attachment", found.Key, "rail", found.Rail)
			continue
		}
		a.attachments[found.Key] = found
	}
	return nil
}

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// onRail are copies of a rail's attachments.
func (a *Agent) onRail(name string) []*attachment.Attachment {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	var found []*attachment.Attachment
	for _, key := range slices.SortedFunc(maps.Keys(a.attachments), attachment.Key.Compare) {
		if a.attachments[key].Rail == name {
			found = append(found, a.attachments[key].Clone())
		}
	}
	return found
}

// applyAll runs every rail's batch and waits.
func (a *Agent) applyAll(ctx context.Context) error {
	results := make(chan error, len(a.rails))
	for _, r := range a.rails {
		go func() { results <- r.applying.do(ctx) }()
	}
	var problems error
	for range a.rails {
		problems = errors.Join(problems, <-results)
	}
	return problems
}
