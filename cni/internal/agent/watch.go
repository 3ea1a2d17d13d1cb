package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/frr"
)

const (
	// sessionPoll: four questions to bgpd of a millisecond; a rail that went down is refused to ADDs after at most this long.
	sessionPoll = 2 * time.Second
	// remindPeriod: FRR 8.4 brings up a session within some 3 s of the leaf's router advertisement.
	remindPeriod = 5 * time.Second
	// downGrace: a session that comes back within it (a restart of FRR, a flap) is not told to pods.
	downGrace = 15 * time.Second
	// switchPoll finds a restarted ovs-vswitchd by one stat call a bridge.
	switchPoll = 100 * time.Millisecond
	// tombstonePoll: reading an empty directory costs some microseconds.
	tombstonePoll = 100 * time.Millisecond
	// answerPoll: one question over ovs-vswitchd's control socket, answered within a millisecond.
	answerPoll = time.Second
	// switchGrace: a restart of ovs-vswitchd takes some seconds, and on a busy machine it may be silent for as long; the kernel
	// datapath and hardware go on forwarding known flows meanwhile.
	switchGrace = 10 * time.Second
)

// watchDatabase applies the rails when the database changed or ovs-vswitchd was restarted.
func (a *Agent) watchDatabase(ctx context.Context) {
	ticker := time.NewTicker(switchPoll)
	defer ticker.Stop()
	seen := map[string]uint64{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.Database.Changed():
			for _, r := range a.rails {
				r.applying.poke()
			}
		case <-ticker.C:
			for _, r := range a.rails {
				if now := a.Switch.Incarnation(r.config.Bridge); now != seen[r.config.Name] {
					seen[r.config.Name] = now
					r.applying.poke()
				}
			}
		}
	}
}

// watchTombstones replays those of DELs that found the agent starting.
func (a *Agent) watchTombstones(ctx context.Context) {
	every(ctx, tombstonePoll, func(ctx context.Context) {
		if err := a.replayTombstones(ctx, nil); err != nil {
			a.Log.Error("tombstones were not all replayed; trying again", "error", err)
		}
	})
}

// observeSwitch asks ovs-vswitchd whether it is there (one that was killed leaves its sockets and pid file behind) and notes since
// when it has not answered. After switchGrace the rails withdraw what it no longer serves; they are applied again when it answers.
func (a *Agent) observeSwitch(ctx context.Context) {
	err := a.Switch.Answers(ctx)
	if ctx.Err() != nil {
		return
	}
	now := a.Now()
	a.mutex.Lock()
	since, given := a.silent, a.givenUp
	switch {
	case err == nil:
		a.silent, a.givenUp = time.Time{}, false
	case since.IsZero():
		a.silent = now
	default:
		a.givenUp = now.Sub(since) > switchGrace
	}
	changed := given != a.givenUp
	a.mutex.Unlock()
	switch {
	case err == nil && !since.IsZero():
		a.Log.Info("ovs-vswitchd answers again", "after", now.Sub(since))
		changed = true
	case err != nil && since.IsZero():
		a.Log.Error("ovs-vswitchd does not answer", "error", err)
	case err != nil && changed:
		a.Log.Error("ovs-vswitchd is given up: the node's addresses are withdrawn", "silent", now.Sub(since))
	}
	if changed {
		for _, r := range a.rails {
			r.applying.poke()
		}
	}
}

// switchSilence is for how long ovs-vswitchd has not answered; 0 if it does.
func (a *Agent) switchSilence() time.Duration {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.silent.IsZero() {
		return 0
	}
	return max(a.Now().Sub(a.silent), time.Nanosecond)
}

// switchAnswers tells why the rail's bridge is not served now; nil if it is.
func (r *rail) switchAnswers(ctx context.Context) *failure.Error {
	if err := r.agent.Switch.Answers(ctx); err != nil {
		return r.missing(err, "ovs-vswitchd does not answer")
	}
	if r.agent.Switch.Incarnation(r.config.Bridge) == 0 {
		return r.missing(nil, "ovs-vswitchd does not have it")
	}
	return nil
}

// watchRouting keeps FRR's configuration right and follows the sessions and the leafs' MAC addresses.
func (a *Agent) watchRouting(ctx context.Context) {
	var incarnation uint64
	ensured := time.Time{}
	look := func(ctx context.Context) {
		if now := a.Routing.Incarnation(); now != 0 && (now != incarnation || a.Now().Sub(ensured) > a.Config.ReconcilePeriod()) {
			switch err := a.Routing.Ensure(ctx); {
			case err == nil:
				incarnation, ensured = now, a.Now()
			case ctx.Err() == nil:
				a.Log.Error("FRR's configuration could not be applied", "error", err)
			}
		}
		a.observeSessions(ctx)
	}
	look(ctx)
	every(ctx, sessionPoll, look)
}

func (a *Agent) observeSessions(ctx context.Context) {
	a.observing.Lock()
	defer a.observing.Unlock()
	sessions, err := a.Routing.Sessions(ctx)
	if ctx.Err() != nil {
		return // nobody knows what an interrupted question would have been answered
	}
	if err != nil {
		a.Log.Debug("BGP sessions could not be read", "error", err)
	}
	for _, r := range a.rails {
		session := sessions[r.config.Name] // the zero Session, which is down, if it could not be read
		if r.observe(session) {
			r.applying.poke()
			a.saving.poke()
		}
		a.remindRouting(r, session)
		a.Metrics.observeSession(r.config.Name, session)
		a.tellPods(r)
	}
	if err == nil {
		a.observeRedistribution(ctx)
	}
}

// observe takes in a rail's session and tells whether flows depend on the change. A leaf's MAC address is kept while the
// session is down: with graceful restart the leaf still forwards.
func (r *rail) observe(session frr.Session) bool {
	a := r.agent
	mac := ""
	if session.Peer.IsValid() {
		found, err := a.Kernel.NeighbourMAC(r.config.Bridge, session.Peer)
		if err != nil {
			a.Log.Debug("neighbours could not be read", "bridge", r.config.Bridge, "error", err)
		}
		mac = found
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	changed := mac != "" && mac != r.leafMAC
	if changed {
		a.Log.Info("the leaf's MAC address", "rail", r.config.Name, "mac", mac, "before", r.leafMAC)
		r.leafMAC = mac
	}
	if up := session.Established && !session.BFDDown; up {
		r.downSince, r.told = time.Time{}, false
	} else if r.downSince.IsZero() {
		r.downSince = a.Now()
	}
	if session.Established != r.session.Established {
		a.Log.Info("BGP session", "rail", r.config.Name, "established", session.Established, "peer", session.Peer)
	}
	if session.OverLimit && !r.session.OverLimit {
		a.Log.Warn("the leaf sends more prefixes than frr.maximumPrefixes; the session goes on", "rail", r.config.Name, "received", session.Prefixes, "limit", a.Config.FRR.MaximumPrefixes)
	}
	r.session = session
	return changed
}

// remindRouting has the kernel tell zebra of LOCAL's addresses again while the rail has no session. FRR 8.4's zebra learns of
// addresses and of links in different threads, and drops an address of a link that it has not heard of yet. It then never
// sends a router advertisement, and an unnumbered session waits for ever (1 of 85 starts of a test network).
func (a *Agent) remindRouting(r *rail, session frr.Session) {
	now := a.Now()
	if session.Established || now.Sub(r.reminded) < remindPeriod {
		return
	}
	r.reminded = now
	if err := a.Kernel.RepeatAddresses(r.config.Bridge); err != nil {
		a.Log.Debug("addresses could not be repeated", "bridge", r.config.Bridge, "error", err)
	}
}

// tellPods writes an event on the pods of a rail that stays down, once.
func (a *Agent) tellPods(r *rail) {
	r.mutex.Lock()
	tell := !r.downSince.IsZero() && !r.told && a.Now().Sub(r.downSince) > downGrace
	r.told = r.told || tell
	session := r.session
	r.mutex.Unlock()
	if !tell {
		return
	}
	why := "has no BGP session with its leaf"
	if session.BFDDown {
		why = "has no BFD session with its leaf"
	}
	for _, held := range a.onRail(r.config.Name) {
		a.Recorder.PodEvent(held.Pod, true, "RailDown", fmt.Sprintf("%s (interface %s) %s; its traffic may go nowhere.", r.config.Name, held.Interface, why))
	}
}

// observeOffload looks at the megaflows that carry traffic: offload was requested, but what is in hardware only they tell.
func (a *Agent) observeOffload(ctx context.Context) {
	flows, err := a.Switch.Megaflows(ctx)
	if err != nil {
		a.Log.Debug("megaflows could not be read", "error", err)
		return
	}
	for _, r := range a.rails {
		ports := map[string]bool{r.config.Uplink: true}
		for _, held := range a.onRail(r.config.Name) {
			ports[held.Port] = true
		}
		hardware, software := 0, 0
		example := ""
		for _, found := range flows {
			switch {
			case !ports[found.InPort] || found.Packets == 0:
			case found.Offloaded:
				hardware++
			default:
				software++
				example = found.Text
			}
		}
		a.Metrics.Megaflows.WithLabelValues(r.config.Name, "hardware").Set(float64(hardware))
		a.Metrics.Megaflows.WithLabelValues(r.config.Name, "software").Set(float64(software))
		if a.Config.OVS.HWOffload && software > 0 {
			a.Log.Warn("flows that carry traffic are not offloaded", "rail", r.config.Name, "software", software, "hardware", hardware, "example", example)
		}
	}
}

// observeTenancy raises the alarms of the view.
func (a *Agent) observeTenancy(context.Context) {
	view := a.Source.View()
	a.Metrics.Members.Set(float64(len(view.Entries)))
	a.Metrics.Disputed.Set(float64(len(view.Disputed)))
	for address, nodes := range view.Disputed {
		a.Log.Error("an address is published by several nodes; it is denied everywhere", "address", address, "nodes", nodes)
	}
	stale := 0.0
	if since, why := a.Source.Stale(); !since.IsZero() {
		stale = a.Now().Sub(since).Seconds()
		a.Log.Error("tenancy is stale: new addresses are denied", "since", since, "error", why)
	}
	a.Metrics.TenancyStale.Set(stale)
}
