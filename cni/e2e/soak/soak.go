// Package soak starts and removes pods at random while it kills agents, switches, routing daemons and plugins at
// random, and has everything audited between rounds.
package soak

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/railweave/railweave/cni/e2e/audit"
	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// Options are the size of a run.
type Options struct {
	// Operations is the number of successful ADDs and DELs of attachments (one interface of one pod) to reach.
	Operations int
	// Round is the number of operations between audits.
	Round int
	Seed  uint64
	// Keep leaves the network standing when something was found, to be looked into.
	Keep bool
	// Log hears of each round.
	Log io.Writer
}

// Result is what a run has done.
type Result struct {
	Operations, Pods int
	FailedAdds       int // answered with an error, as they should be while something is dead; undone and tried again
	RepeatedDeletes  int
	Kills            map[string]int
	Took             time.Duration
}

const (
	workers = 8
	// mostPods keeps the machine's memory and the length of an audit in bounds.
	mostPods = 40
	// settleLimit is how long a cluster may take to come to rest after the last kill of a round. FRR 8.4 takes about
	// 3 s to establish a session, graceful restart keeps a dead peer's routes for up to 60 s.
	settleLimit = 120 * time.Second
	// pluginKillChance is how many of a thousand plugin calls are killed, at a random moment of their first 100 ms.
	pluginKillChance = 30
)

var namespaces = []string{"team-a", "team-b", "team-c"}

// run is a soak in progress.
type run struct {
	options Options
	cluster *cluster.Cluster

	mu     sync.Mutex
	random *rand.Rand
	result Result
	pods   []*runtime.Pod // running
	serial int
	// attempts counts starts and removals of pods, failed ones too.
	attempts int
	armed    bool // plugins may be killed
}

// Run soaks a cluster of its own. It ends at the first audit that finds something.
func Run(options Options) (Result, error) {
	s := &run{options: options, random: rand.New(rand.NewPCG(options.Seed, 0))}
	s.result.Kills = map[string]int{}
	tenants := map[string]string{}
	for _, n := range namespaces {
		tenants[n] = ""
	}
	begin := cluster.Start
	if options.Keep {
		begin = cluster.StartDetached
	}
	c, err := begin(cluster.Options{Tenants: tenants, Interrupt: s.interrupt,
		Network: testnet.Config{Nodes: 2, Rails: 2, Peering: testnet.Unnumbered}})
	if err != nil {
		return s.result, err
	}
	s.cluster = c
	began := time.Now()
	err = s.rounds()
	s.result.Took = time.Since(began)
	if err != nil && options.Keep {
		return s.result, fmt.Errorf("network %s is left standing: %w", c.Network.ID, err)
	}
	return s.result, errors.Join(err, c.Stop())
}

func (s *run) rounds() error {
	for s.result.Operations < s.options.Operations {
		if err := s.round(min(s.result.Operations+s.options.Round, s.options.Operations)); err != nil {
			return fmt.Errorf("after %d operations (seed %d): %w", s.result.Operations, s.options.Seed, err)
		}
		fmt.Fprintf(s.options.Log, "%d operations, %d pods running, %d failed ADDs, %d repeated DELs, kills %v: audit clean\n",
			s.result.Operations, len(s.pods), s.result.FailedAdds, s.result.RepeatedDeletes, s.result.Kills)
	}
	return nil
}

// round runs operations under fire until the goal, lets the cluster heal, and audits.
func (s *run) round(goal int) error {
	done, ceased := make(chan struct{}), make(chan error, 1)
	s.arm(true)
	go func() { ceased <- s.killUntil(done) }()
	errs := make(chan error, workers)
	for range workers {
		go func() { errs <- s.work(goal) }()
	}
	var failures error
	for range workers {
		failures = errors.Join(failures, <-errs)
	}
	close(done)
	s.arm(false)
	if err := errors.Join(failures, <-ceased); err != nil {
		return err
	}
	if err := s.cluster.WaitReady(); err != nil {
		return err
	}
	return audit.Settled(s.cluster, settleLimit)
}

func (s *run) arm(armed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = armed
}

// interrupt picks plugin calls to be killed.
func (s *run) interrupt(plugin, _ string) <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.armed || s.random.IntN(1000) >= pluginKillChance {
		return nil
	}
	s.result.Kills[plugin]++
	return time.After(time.Duration(s.random.IntN(100)) * time.Millisecond)
}

// work adds and removes pods until the goal is reached.
func (s *run) work(goal int) error {
	for {
		s.mu.Lock()
		if s.result.Operations >= goal {
			s.mu.Unlock()
			return nil
		}
		var victim *runtime.Pod
		if n := len(s.pods); n > 0 && s.random.IntN(mostPods) < n {
			i := s.random.IntN(n)
			victim = s.pods[i]
			s.pods = slices.Delete(s.pods, i, i+1)
		}
		s.attempts++
		s.serial++
		name := fmt.Sprintf("pod-%d", s.serial)
		namespace := namespaces[s.random.IntN(len(namespaces))]
		r := s.cluster.Runtimes[s.random.IntN(len(s.cluster.Runtimes))]
		s.mu.Unlock()
		var err error
		if victim != nil {
			err = s.remove(victim)
		} else {
			err = s.add(r, namespace, name)
		}
		if err != nil {
			return err
		}
	}
}

// add starts a pod. One that does not start is removed again, as the kubelet does before it tries another sandbox.
func (s *run) add(r *runtime.Runtime, namespace, name string) error {
	pod, err := r.NewPod(namespace, name)
	if err != nil {
		return err
	}
	for rail := range s.cluster.Network.Leaves {
		if _, err := r.Attach(pod, rail); err != nil {
			s.count(func() { s.result.FailedAdds++ })
			if err := s.removeUntilGone(r, pod); err != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond)
			return nil
		}
	}
	s.count(func() {
		s.pods = append(s.pods, pod)
		s.result.Pods++
		s.result.Operations += len(pod.Attachments)
	})
	return nil
}

func (s *run) remove(pod *runtime.Pod) error {
	r := s.cluster.Runtimes[pod.Node.Index-1]
	if err := s.removeUntilGone(r, pod); err != nil {
		return err
	}
	s.count(func() { s.result.Operations += len(pod.Attachments) })
	return nil
}

// removeUntilGone repeats DEL as the kubelet does. That it must succeed in the end, and within a minute of whatever was
// killed, is part of what is tested.
func (s *run) removeUntilGone(r *runtime.Runtime, pod *runtime.Pod) error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := r.Remove(pod)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("DEL keeps failing: %w", err)
		}
		s.count(func() { s.result.RepeatedDeletes++ })
		time.Sleep(100 * time.Millisecond)
	}
}

func (s *run) count(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}
