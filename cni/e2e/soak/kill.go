package soak

import (
	"fmt"
	"time"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// target is something that is killed and, as its supervisor would, started again a moment later.
type target struct {
	name        string
	kill, start func() error
}

func (s *run) targets() []target {
	var all []target
	for i, node := range s.cluster.Network.Nodes {
		agent := s.cluster.Agents[i]
		all = append(all,
			target{"agent", agent.Kill, agent.Start},
			target{"vswitchd", node.OVS.KillSwitch, node.OVS.StartSwitch},
			target{"ovsdb", node.OVS.KillDatabase, node.OVS.StartDatabase},
			target{"frr", node.FRR.Kill, node.FRR.Start},
			daemonTarget(node.FRR, "bgpd"),
			daemonTarget(node.FRR, "zebra"))
	}
	return all
}

func daemonTarget(frr testnet.FRR, name string) target {
	return target{name, func() error { return frr.KillDaemon(name) }, frr.Start}
}

// killUntil kills one thing after another until told to stop, each after a random number of starts and removals, so that
// a run is as hard on a slow machine as on a fast one. Everything is running when it returns.
func (s *run) killUntil(done <-chan struct{}) error {
	const fewest, most = 3, 25
	targets := s.targets()
	for {
		s.mu.Lock()
		victim := targets[s.random.IntN(len(targets))]
		when := s.attempts + fewest + s.random.IntN(most-fewest)
		dead := time.Duration(s.random.IntN(500)) * time.Millisecond
		s.mu.Unlock()
		if !s.waitAttempts(when, done) {
			return nil
		}
		if err := victim.kill(); err != nil {
			return fmt.Errorf("kill %s: %w", victim.name, err)
		}
		time.Sleep(dead)
		if err := victim.start(); err != nil {
			return fmt.Errorf("start %s again: %w", victim.name, err)
		}
		s.count(func() { s.result.Kills[victim.name]++ })
	}
}

// waitAttempts waits until so many pods have been started or removed; false means that the round ended first.
func (s *run) waitAttempts(when int, done <-chan struct{}) bool {
	for {
		select {
		case <-done:
			return false
		case <-time.After(10 * time.Millisecond):
		}
		s.mu.Lock()
		reached := s.attempts >= when
		s.mu.Unlock()
		if reached {
			return true
		}
	}
}
