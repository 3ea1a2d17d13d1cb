// Command addlatency measures how long ADD and DEL take, plugin by plugin, and how long a leaf takes to learn and to
// forget an address.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

func main() {
	testnet.RunGuardIfAsked()
	pods := flag.Int("pods", 100, "pods to start and remove, one after the other")
	standing := flag.Int("standing", 0, "pods that stand beside them on each node meanwhile")
	flag.Parse()
	if err := measure(*pods, *standing); err != nil {
		fmt.Fprintln(os.Stderr, "addlatency:", err)
		os.Exit(1)
	}
}

// samples collects durations by name.
type samples struct {
	mu  sync.Mutex
	all map[string][]time.Duration
}

func (s *samples) add(name string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[name] = append(s.all[name], d)
}

// ours are this project's plugins, whose sum the target is about.
var ours = []string{"railweave-ovs", "railweave-frr"}

func measure(pods, standing int) (err error) {
	s := &samples{all: map[string][]time.Duration{}}
	recording := false
	var sum time.Duration
	c, err := cluster.Start(cluster.Options{
		Network: testnet.Config{Nodes: 2, Rails: 2, Peering: testnet.Unnumbered}, Tenants: map[string]string{"team-a": ""},
		Observe: func(call runtime.Call) {
			if !recording {
				return
			}
			s.add(call.Command+" "+call.Plugin, call.Took)
			if slices.Contains(ours, call.Plugin) {
				sum += call.Took
			}
		}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	for _, r := range c.Runtimes {
		for i := range standing {
			if _, err := r.Run("team-a", fmt.Sprintf("standing-%d", i), false); err != nil {
				return err
			}
		}
	}
	recording = true
	for i := range pods {
		if err := onePod(c, s, &sum, i); err != nil {
			return err
		}
	}
	s.print(pods, standing)
	return nil
}

// onePod starts and removes a pod, rail by rail.
func onePod(c *cluster.Cluster, s *samples, sum *time.Duration, i int) error {
	r := c.Runtimes[0]
	pod, err := r.NewPod("team-a", fmt.Sprintf("pod-%d", i))
	if err != nil {
		return err
	}
	for rail, leaf := range c.Network.Leaves {
		*sum = 0
		if _, err := r.Attach(pod, rail); err != nil {
			return err
		}
		s.add("ADD both of ours", *sum)
		took, err := waitLeaf(leaf, pod.Attachments[rail], true)
		if err != nil {
			return err
		}
		s.add("leaf learns, after ADD", took)
	}
	for rail, leaf := range c.Network.Leaves {
		*sum = 0
		if err := r.Detach(pod, rail); err != nil {
			return err
		}
		s.add("DEL both of ours", *sum)
		took, err := waitLeaf(leaf, pod.Attachments[rail], false)
		if err != nil {
			return err
		}
		s.add("leaf forgets, after DEL", took)
	}
	return r.Discard(pod)
}

// waitLeaf waits until a leaf's kernel has, or has not, the routes of an attachment. The time includes the program that
// asks, about 5 ms.
func waitLeaf(leaf *testnet.Router, a runtime.Attachment, want bool) (time.Duration, error) {
	began := time.Now()
	for _, addr := range a.Addresses {
		for {
			out, err := leaf.NS.Output("ip", "route", "show", addr.String(), "table", "main")
			if addr.Is6() {
				out, err = leaf.NS.Output("ip", "-6", "route", "show", addr.String(), "table", "main")
			}
			if err != nil {
				return 0, err
			}
			if (out != "") == want {
				break
			}
			if time.Since(began) > 10*time.Second {
				return 0, fmt.Errorf("%s: %s not as wanted within 10 s", leaf.Name, addr)
			}
		}
	}
	return time.Since(began), nil
}

func (s *samples) print(pods, standing int) {
	fmt.Printf("%d pods with 2 rails, one after the other, beside %d on each of 2 nodes; milliseconds\n\n", pods, standing)
	fmt.Printf("| what | n | p50 | p90 | p99 | most |\n|---|---|---|---|---|---|\n")
	var names []string
	for name := range s.all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d := s.all[name]
		slices.Sort(d)
		at := func(q float64) float64 {
			return float64(d[min(len(d)-1, int(q*float64(len(d))))]) / float64(time.Millisecond)
		}
		fmt.Printf("| %s | %d | %.1f | %.1f | %.1f | %.1f |\n", name, len(d), at(0.5), at(0.9), at(0.99), at(1))
	}
}
