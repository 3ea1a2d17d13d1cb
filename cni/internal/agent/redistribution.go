package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"
)

const (
	// disputeLimit: a few polls with the same difference, so that what was announced or withdrawn just now does not count.
	// Numbers of routes would not do: under churn they differ at almost every poll, though never for one address.
	disputeLimit = 3
	// agreedLimit: more polls than an address that revive announces agrees for, whatever bgpd does with it afterwards.
	agreedLimit = 3
	// Pauses between attempts to settle differences that stay. An attempt may withdraw every route of its family for a moment,
	// which must not become a habit. The first pause is more than the polls it takes to see that an attempt did not help. Only
	// attempts that did not help make the pauses longer: when each fault within a pause did, a soak that killed FRR every 20 s
	// brought it to 4 minutes, for which a node's addresses were then missing at its leafs.
	firstPause   = 15 * time.Second
	longestPause = 5 * time.Minute
)

// asking is how bgpd is made to ask zebra for the announcements of one address family.
type asking struct {
	last  time.Time          // attempt
	pause time.Duration      // after it, for what it did not settle
	tried map[netip.Addr]int // what it was for and has not settled: polls without a difference in a row
}

// observeRedistribution compares the kernel's announcements with bgpd's own routes and with what bgpd told the leafs, and sees
// to it that they agree: too few are pods nobody can reach, too many attract what is sent to addresses that are somebody else's.
func (a *Agent) observeRedistribution(ctx context.Context) {
	present, err := a.Kernel.Announcements()
	if err != nil {
		a.Log.Error("announcements could not be read", "error", err)
		return
	}
	originated, err := a.Routing.Originated(ctx)
	if err != nil {
		a.Log.Debug("bgpd's own routes could not be read", "error", err)
		return
	}
	advertised, err := a.Routing.Advertised(ctx)
	if err != nil {
		a.Log.Debug("what bgpd told the leafs could not be read", "error", err)
		return
	}
	a.endRevivals(present)
	byFamily := map[bool][]netip.Addr{}
	var unwithdrawn []netip.Addr
	for _, address := range a.countDisputes(present, originated, advertised) {
		if present[address] != originated[address] {
			byFamily[address.Is4()] = append(byFamily[address.Is4()], address)
		} else {
			unwithdrawn = append(unwithdrawn, address)
		}
	}
	for _, ipv4 := range []bool{true, false} {
		a.settle(ctx, ipv4, byFamily[ipv4], present)
	}
	if len(unwithdrawn) > 0 {
		a.Log.Warn("bgpd has not told the leafs that announcements ended; announcing and withdrawing them once more", "addresses", unwithdrawn)
		a.Metrics.Repairs.WithLabelValues("withdrawal").Inc()
		for _, address := range unwithdrawn {
			a.revive(address)
		}
	}
}

// countDisputes returns the addresses about which the three have disagreed for a few polls.
func (a *Agent) countDisputes(present, originated, advertised map[netip.Addr]bool) []netip.Addr {
	differ := map[netip.Addr]bool{}
	for _, pair := range []struct{ has, lacks map[netip.Addr]bool }{{present, originated}, {originated, present}, {advertised, present}} {
		for address := range pair.has {
			if !pair.lacks[address] && a.inPool(address) {
				differ[address] = true
			}
		}
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	maps.DeleteFunc(a.disputed, func(address netip.Addr, _ int) bool { return !differ[address] })
	var lasting []netip.Addr
	for address := range differ {
		a.disputed[address]++
		if a.disputed[address] >= disputeLimit {
			lasting = append(lasting, address)
		}
	}
	slices.SortFunc(lasting, netip.Addr.Compare)
	return lasting
}

// inPool: bgpd redistributes nothing else.
func (a *Agent) inPool(address netip.Addr) bool {
	for _, r := range a.rails {
		if _, mine := r.config.PoolOf(address); mine {
			return true
		}
	}
	return false
}

// settle has bgpd ask again, more and more rarely if that does not help.
func (a *Agent) settle(ctx context.Context, ipv4 bool, lasting []netip.Addr, present map[netip.Addr]bool) {
	now := a.Now()
	a.mutex.Lock()
	state := a.asking[ipv4]
	for address := range state.tried {
		if state.tried[address]++; a.disputed[address] > 0 {
			state.tried[address] = 0
		}
	}
	maps.DeleteFunc(state.tried, func(_ netip.Addr, agreed int) bool { return agreed >= agreedLimit })
	again := slices.ContainsFunc(lasting, func(address netip.Addr) bool { _, tried := state.tried[address]; return tried })
	pause, next := firstPause, firstPause
	if again {
		pause, next = state.pause, min(2*state.pause, longestPause)
	}
	wait := now.Before(state.last.Add(pause))
	a.mutex.Unlock()
	if wait || len(lasting) == 0 {
		return
	}
	a.Log.Warn("the kernel and bgpd disagree about announcements; having bgpd ask zebra for them again", "ipv4", ipv4, "addresses", lasting)
	if err := a.Routing.Redistribute(ctx, ipv4); err != nil {
		a.Log.Error("bgpd could not be made to ask again", "error", err)
		return
	}
	a.Metrics.Repairs.WithLabelValues("redistribution").Inc()
	tried := map[netip.Addr]int{}
	for _, address := range lasting {
		tried[address] = 0
		if !present[address] {
			a.revive(address)
		}
	}
	a.mutex.Lock()
	*state = asking{last: now, pause: next, tried: tried}
	a.mutex.Unlock()
}

// revive announces what bgpd or the leafs hold and the kernel does not, for one poll: asking again brings routes but takes none
// away, bgpd drops a route only when zebra, which must have seen it, says that it went, and FRR 8.4's bgpd forgets to withdraw
// what went while it deferred its decisions after a restart. To the leafs this changes nothing.
func (a *Agent) revive(address netip.Addr) {
	if err := a.Kernel.Announce(address); err != nil {
		a.Log.Error("what bgpd kept could not be announced to be withdrawn", "address", address, "error", err)
	}
	a.mutex.Lock()
	a.revived = append(a.revived, address)
	a.mutex.Unlock()
}

// endRevivals withdraws what was announced for one poll, the way every announcement is withdrawn that no pod has: one of
// these may have become a pod's meanwhile.
func (a *Agent) endRevivals(present map[netip.Addr]bool) {
	a.mutex.Lock()
	ending := slices.ContainsFunc(a.revived, func(address netip.Addr) bool { return present[address] })
	a.revived = nil
	a.mutex.Unlock()
	if ending {
		for _, r := range a.rails {
			r.applying.poke()
		}
	}
}
