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

// killUntil kills one thing after another until told to stop. Everything is running when it returns.
func (s *run) killUntil(done <-chan struct{}) error {
	targets := s.targets()
	for {
		s.mu.Lock()
		victim := targets[s.random.IntN(len(targets))]
		before := time.Duration(200+s.random.IntN(1800)) * time.Millisecond
		dead := time.Duration(s.random.IntN(500)) * time.Millisecond
		s.mu.Unlock()
		select {
		case <-done:
			return nil
		case <-time.After(before):
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
