package agent

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/frr"
)

// polls has the agent compare kernel and bgpd some times, and returns which families bgpd was made to ask for.
func (n *node) polls(times int) []string {
	n.t.Helper()
	before := n.operations()
	for range times {
		n.agent.observeRedistribution(n.t.Context())
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	var asked []string
	for _, operation := range n.history[before:] {
		if operation == "redistribute true" || operation == "redistribute false" {
			asked = append(asked, operation)
		}
	}
	return asked
}

// announcedPod starts an agent that only the test polls often enough to count, with one pod.
func announcedPod(t *testing.T) (*node, *attachment.Attachment) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.agent.observeSessions(t.Context())
	return n, held
}

// did tells whether an operation was done since a point of the history.
func (n *node) did(operation string, since int) bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return slices.Contains(n.history[since:], operation)
}

func (n *node) checkAnnouncement(held *attachment.Attachment) nodev1.Reason {
	return failure.ReasonOf(n.agent.CheckAnnouncement(n.t.Context(), held.Key, "rail0", held.Addresses))
}

// TestLostAnnouncement: the kernel has a route that bgpd has not.
func TestLostAnnouncement(t *testing.T) {
	n, held := announcedPod(t)
	n.stop() // it would poll too
	lost := held.Addresses[0].Addr()
	n.locked(func() {
		n.missed[lost] = true
		n.fail["redistribute"] = frr.ErrZebraAway
	})
	want := "redistribute " + map[bool]string{true: "true", false: "false"}[lost.Is4()]
	if asked := n.polls(disputeLimit); !slices.Contains(asked, want) || len(asked) > disputeLimit {
		t.Errorf("asked %q, want %q and nothing of the other family", asked, want)
	}
	if got := n.checkAnnouncement(held); got != nodev1.Reason_ROUTE_DIFFERS {
		t.Errorf("CHECK says %v", got)
	}
	// An attempt that zebra's absence prevented is repeated at the next poll.
	n.locked(func() { delete(n.fail, "redistribute") })
	if asked := n.polls(1); !slices.Equal(asked, []string{want}) {
		t.Errorf("zebra is back: asked %q", asked)
	}
	if asked := n.polls(2 * disputeLimit); asked != nil {
		t.Errorf("after the repair: asked %q", asked)
	}
	if got := n.checkAnnouncement(held); got != nodev1.Reason_REASON_UNSPECIFIED {
		t.Errorf("CHECK after the repair says %v", got)
	}
}

// TestKeptAnnouncement: bgpd keeps one route among others that the kernel has no more. Asking alone does not take it away:
// it is announced once more, and withdrawn.
func TestKeptAnnouncement(t *testing.T) {
	n, held := announcedPod(t)
	kept := netip.MustParseAddr("10.64.0.99")
	n.locked(func() { n.missed[kept] = true })
	before := n.operations()
	if asked := n.polls(disputeLimit); slices.Contains(asked, "redistribute false") {
		t.Error("IPv6, which is well, was disturbed")
	}
	n.await("the route is announced again", func() bool { return n.did("announce "+kept.String(), before) })
	n.position("redistribute true", before)
	if got := n.checkAnnouncement(held); got != nodev1.Reason_REASON_UNSPECIFIED {
		t.Errorf("CHECK of a pod that is well says %v", got)
	}
	n.polls(1)
	n.await("bgpd has what the kernel has", func() bool {
		n.mutex.Lock()
		defer n.mutex.Unlock()
		return !n.routes[kept] && len(n.missed) == 0 && len(n.routes) == 2
	})
}

// TestUnwithdrawnAnnouncement: kernel and bgpd are agreed that a route is gone, but the leafs were never told. Nothing else is
// disturbed to tell them.
func TestUnwithdrawnAnnouncement(t *testing.T) {
	n, held := announcedPod(t)
	n.stop() // it would poll too
	gone := netip.MustParseAddr("10.64.0.99")
	n.locked(func() { n.untold[gone] = true })
	before := n.operations()
	if asked := n.polls(disputeLimit - 1); asked != nil || n.did("announce "+gone.String(), before) {
		t.Errorf("too early: asked %q", asked)
	}
	if asked := n.polls(1); asked != nil || !n.did("announce "+gone.String(), before) {
		t.Errorf("asked %q, or did not announce it again", asked)
	}
	n.polls(1)
	r := n.agent.rails[held.Rail]
	if err := r.apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.locked(func() {
		if n.routes[gone] || n.untold[gone] || len(n.routes) != 2 {
			t.Errorf("routes %v, leafs keep %v", n.routes, n.untold)
		}
	})
}

// TestForeignRouteIsNoDispute: what is no pod's address is not redistributed, whoever has it.
func TestForeignRouteIsNoDispute(t *testing.T) {
	n, _ := announcedPod(t)
	n.locked(func() { n.missed[netip.MustParseAddr("192.0.2.1")] = true })
	if asked := n.polls(2 * disputeLimit); asked != nil {
		t.Errorf("asked %q", asked)
	}
}

// TestChurnIsNoDispute: at every poll another address differs, as when pods come and go all the time.
func TestChurnIsNoDispute(t *testing.T) {
	n, _ := announcedPod(t)
	n.stop() // it would poll too
	address := netip.MustParseAddr("10.64.0.100")
	for range 10 * disputeLimit {
		address = address.Next()
		n.locked(func() {
			clear(n.missed)
			n.missed[address], n.missed[address.Next()] = true, true // each for two polls
		})
		if asked := n.polls(1); asked != nil {
			t.Fatalf("asked %q", asked)
		}
	}
}

// TestDisputeThatStays: the attempts become rare, since each of them withdraws everything for a moment.
func TestDisputeThatStays(t *testing.T) {
	n, _ := announcedPod(t)
	n.stop() // it would poll too
	kept := netip.MustParseAddr("10.64.0.99")
	now := time.Now()
	n.agent.Now = func() time.Time { return now }
	attempts := 0
	for range int(time.Hour / sessionPoll) {
		n.locked(func() {
			delete(n.routes, kept)
			n.missed[kept] = true
		})
		attempts += len(n.polls(1))
		now = now.Add(sessionPoll)
	}
	// Five while the pause grows from 15 s to 4 min (7.75 min), and one every 5 min in the rest of the hour.
	if attempts < 14 || attempts > 16 {
		t.Errorf("%d attempts in an hour", attempts)
	}
}

// TestDisputesApart: faults that one attempt each settles do not wait for one another longer than the first pause, however
// many come, and however often they are the same pod's.
func TestDisputesApart(t *testing.T) {
	n, held := announcedPod(t)
	n.stop() // it would poll too
	now := time.Now()
	n.agent.Now = func() time.Time { return now }
	lost := held.Addresses[0].Addr()
	for fault := range 20 {
		n.locked(func() { n.missed[lost] = true })
		polls := 0
		for asked := 0; asked == 0; polls++ {
			asked = len(n.polls(1))
			now = now.Add(sessionPoll)
			if polls > int(firstPause/sessionPoll) {
				t.Fatalf("fault %d: no attempt in %d polls", fault, polls)
			}
		}
		n.polls(agreedLimit)
		now = now.Add(agreedLimit * sessionPoll)
	}
}
