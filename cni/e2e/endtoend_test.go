package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/probe"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// TestEndToEnd starts pods of one tenant on two nodes, reaches every one from every other over every rail, and removes
// them; the leafs have exactly the pods' routes meanwhile, and nothing is left afterwards.
func TestEndToEnd(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		options cluster.Options
	}{
		{"unnumbered", cluster.Options{Network: testnet.Config{Nodes: 2, Rails: 2, Peering: testnet.Unnumbered}}},
		{"numbered", cluster.Options{Network: testnet.Config{Nodes: 2, Rails: 2, Peering: testnet.Numbered}}},
		{"bfd, CNI 0.4.0", cluster.Options{Network: testnet.Config{Nodes: 2, Rails: 2, Peering: testnet.Unnumbered, BFD: true}, CNIVersion: "0.4.0"}},
		{"three nodes, CNI 1.0.0", cluster.Options{Network: testnet.Config{Nodes: 3, Rails: 2, Peering: testnet.Unnumbered}, CNIVersion: "1.0.0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.Tenants = map[string]string{"team-a": ""}
			c := start(t, test.options)
			var pods []*runtime.Pod
			for node := range c.Runtimes {
				for i := range 2 {
					pods = append(pods, run(t, c, node+1, "team-a", fmt.Sprintf("pod-%d", i)))
				}
			}
			if err := c.WaitRoutes(pods, routesLimit); err != nil {
				t.Error(err)
			}
			audited(t, c)
			for _, from := range pods {
				for _, to := range pods {
					if from != to {
						reach(t, from, to)
					}
				}
			}
			for i, r := range c.Runtimes {
				for _, pod := range r.Pods() {
					for rail := range test.options.Network.Rails {
						if err := eventually(func() error { return r.Check(pod, rail) }); err != nil {
							t.Errorf("CHECK of %v on rail %d of node %d: %v", pod, rail, i+1, err)
						}
					}
				}
			}
			for _, pod := range pods {
				must(t, c.Runtimes[pod.Node.Index-1].Stop(pod))
			}
			if err := c.WaitRoutes(nil, routesLimit); err != nil {
				t.Error(err)
			}
			audited(t, c)
		})
	}
}

// TestRightRail sends a known number of packets over each rail and finds them in the counters of that rail's interfaces
// and of no other's.
func TestRightRail(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	one, two := run(t, c, 1, "team-a", "one"), run(t, c, 2, "team-a", "two")
	must(t, c.WaitRoutes(c.Pods(), routesLimit))
	ends := endpoints(t, []*runtime.Pod{one, two})
	s, err := probe.NewSession(ends, nil, func(_, _ *probe.Endpoint) probe.Relation { return probe.Friends }, c.AwaitRoom)
	must(t, err)
	defer func() { _ = s.Close() }()
	// More than BGP, BFD and neighbour discovery cause on a rail in the second or so this takes.
	const packets = 500
	for rail := range c.Network.Leaves {
		before := railCounters(t, c)
		from, to := ends[rail], ends[len(c.Network.Leaves)+rail]
		for i := range packets {
			must(t, s.Send(probe.Kinds[0], from, to))
			if i%probe.Burst == 0 {
				must(t, c.AwaitRoom())
			}
		}
		s.Settle(5 * time.Second)
		// A busy machine may drop some; those that are sent again pass the same interfaces.
		for try := 0; len(s.Losses()) > 0 && try < 3; try++ {
			must(t, s.Resend())
			s.Settle(5 * time.Second)
		}
		after := railCounters(t, c)
		for other := range c.Network.Leaves {
			in, out := after[other][0]-before[other][0], after[other][1]-before[other][1]
			carried := in >= packets && out >= packets
			if carried != (other == rail) {
				t.Errorf("%d packets sent on rail %d: rail %d has %d in from node 1 and %d out to node 2", packets, rail, other, in, out)
			}
		}
	}
	if lost := s.Losses(); len(lost) > 0 {
		t.Errorf("lost: %s", probe.Summary(lost))
	}
}

// railCounters returns for each leaf what came in from node 1 and what went out to node 2.
func railCounters(t *testing.T, c *cluster.Cluster) [][2]uint64 {
	t.Helper()
	var all [][2]uint64
	for _, leaf := range c.Network.Leaves {
		in, err := leaf.NS.Counters(testnet.LeafPort(1))
		must(t, err)
		out, err := leaf.NS.Counters(testnet.LeafPort(2))
		must(t, err)
		all = append(all, [2]uint64{in.ReceivedPackets, out.SentPackets})
	}
	return all
}

// TestManyAtOnce starts 60 pods (200 in full) at the same time, half of them on each node, and removes them at the same time.
func TestManyAtOnce(t *testing.T) {
	perNode := size(30, 100)
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": "", "team-b": ""}})
	errs := make(chan error)
	for _, r := range c.Runtimes {
		for i := range perNode {
			go func() {
				_, err := r.Run([]string{"team-a", "team-b"}[i%2], fmt.Sprintf("pod-%d", i), false)
				errs <- err
			}()
		}
	}
	for range perNode * len(c.Runtimes) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	audited(t, c)
	pods := c.Pods()
	for _, pod := range pods {
		go func() { errs <- c.Runtimes[pod.Node.Index-1].Stop(pod) }()
	}
	for range pods {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	audited(t, c)
}
