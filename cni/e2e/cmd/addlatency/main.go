// Command addlatency measures how long ADD and DEL take, plugin by plugin, and how long a leaf takes to learn and to
// forget an address.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/kube"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

func main() {
	testnet.RunGuardIfAsked()
	var b bench
	flag.IntVar(&b.pods, "pods", 100, "pods to start and remove, one after the other")
	flag.IntVar(&b.standing, "standing", 0, "pods that stand beside them on each node meanwhile")
	flag.BoolVar(&b.kubernetes, "kubernetes", false, "tenants and pods come from a real API server, not from a directory")
	flag.Parse()
	if err := b.run(); err != nil {
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

// namespace of all pods.
const namespace = "team-a"

// bench is one measurement.
type bench struct {
	pods, standing int
	kubernetes     bool

	*cluster.Cluster
	api       *kube.ControlPlane // nil: none
	samples   samples
	recording bool
	sum       time.Duration // of our plugins' calls since it was last set to 0
}

func (b *bench) observe(call runtime.Call) {
	if !b.recording {
		return
	}
	b.samples.add(call.Command+" "+call.Plugin, call.Took)
	if slices.Contains(ours, call.Plugin) {
		b.sum += call.Took
	}
}

func (b *bench) run() (err error) {
	b.samples.all = map[string][]time.Duration{}
	options := cluster.Options{Network: testnet.Config{Nodes: 2, Rails: 2, Peering: testnet.Unnumbered}, Tenants: map[string]string{namespace: ""}, Observe: b.observe}
	if b.kubernetes {
		if b.api, err = kube.Prepare(&options); err != nil {
			return err
		}
	}
	if b.Cluster, err = cluster.Start(options); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Stop()) }()
	for _, r := range b.Runtimes {
		for i := range b.standing {
			pod, err := b.newPod(r, fmt.Sprintf("standing-%s-%d", r.Node.Name, i))
			if err != nil {
				return err
			}
			for rail := range b.Network.Leaves {
				if _, err := r.Attach(pod, rail); err != nil {
					return err
				}
			}
		}
	}
	b.recording = true
	for i := range b.pods {
		if err := b.onePod(fmt.Sprintf("pod-%d", i)); err != nil {
			return err
		}
	}
	b.print()
	return nil
}

// newPod makes a sandbox, and the pod on the API server if there is one.
func (b *bench) newPod(r *runtime.Runtime, name string) (*runtime.Pod, error) {
	pod, err := r.NewPod(namespace, name)
	if err != nil || b.api == nil {
		return pod, err
	}
	pod.UID, err = b.api.CreatePod(context.Background(), namespace, name, r.Node.Name, nil)
	return pod, err
}

// onePod starts and removes a pod, rail by rail.
func (b *bench) onePod(name string) error {
	r := b.Runtimes[0]
	pod, err := b.newPod(r, name)
	if err != nil {
		return err
	}
	for rail, leaf := range b.Network.Leaves {
		b.sum = 0
		if _, err := r.Attach(pod, rail); err != nil {
			return err
		}
		b.samples.add("ADD both of ours", b.sum)
		took, err := waitLeaf(leaf, pod.Attachments[rail], true)
		if err != nil {
			return err
		}
		b.samples.add("leaf learns, after ADD", took)
	}
	for rail, leaf := range b.Network.Leaves {
		b.sum = 0
		if err := r.Detach(pod, rail); err != nil {
			return err
		}
		b.samples.add("DEL both of ours", b.sum)
		took, err := waitLeaf(leaf, pod.Attachments[rail], false)
		if err != nil {
			return err
		}
		b.samples.add("leaf forgets, after DEL", took)
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

func (b *bench) print() {
	tenancy := "a directory"
	if b.kubernetes {
		tenancy = "an API server"
	}
	fmt.Printf("%d pods with 2 rails, one after the other, beside %d on each of 2 nodes, tenants from %s; milliseconds\n\n", b.pods, b.standing, tenancy)
	fmt.Printf("| what | n | p50 | p90 | p99 | most |\n|---|---|---|---|---|---|\n")
	var names []string
	for name := range b.samples.all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d := b.samples.all[name]
		slices.Sort(d)
		at := func(q float64) float64 {
			return float64(d[min(len(d)-1, int(q*float64(len(d))))]) / float64(time.Millisecond)
		}
		fmt.Printf("| %s | %d | %.1f | %.1f | %.1f | %.1f |\n", name, len(d), at(0.5), at(0.9), at(0.99), at(1))
	}
}
