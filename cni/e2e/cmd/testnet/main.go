// Command testnet starts, shows and removes test GPU networks made of network namespaces.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

const usage = `usage: testnet COMMAND
  up [-nodes N] [-rails N] [-peering unnumbered|numbered] [-agents] [-hold]
             build a network and print its id; with -agents start the node agents; with -hold keep it only until Ctrl-C
  down ID    remove a network
  status     show every network of this machine: namespaces, daemons, BGP sessions
  sweep      remove networks whose owner is gone, and namespaces without a network
`

func main() {
	testnet.RunGuardIfAsked()
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testnet:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command\n%s", usage)
	}
	switch command, rest := args[0], args[1:]; {
	case command == "up":
		return up(rest, out)
	case command == "down" && len(rest) == 1:
		network, err := testnet.Open(rest[0])
		if err != nil {
			return err
		}
		return network.Down()
	case command == "status" && len(rest) == 0:
		return status(out)
	case command == "sweep" && len(rest) == 0:
		swept, err := testnet.Sweep()
		for _, s := range swept {
			fmt.Fprintln(out, "removed", s)
		}
		return err
	default:
		return fmt.Errorf("cannot make sense of %q\n%s", args, usage)
	}
}

func up(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	nodes := flags.Int("nodes", 2, "number of nodes")
	rails := flags.Int("rails", 2, "number of rails")
	peering := flags.String("peering", string(testnet.Unnumbered), "how nodes and leafs peer")
	agents := flags.Bool("agents", false, "build and start the node agents, with Namespaces team-a, team-b and team-c")
	hold := flags.Bool("hold", false, "keep the network only until this program ends")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config := testnet.Config{Nodes: *nodes, Rails: *rails, Peering: testnet.Peering(*peering)}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	network, err := build(config, *agents, *hold)
	if network != nil {
		fmt.Fprintln(out, network.ID)
	}
	if err != nil || !*hold {
		return err
	}
	<-interrupted
	return network.Down()
}

func build(config testnet.Config, agents, hold bool) (*testnet.Network, error) {
	if agents {
		start := cluster.StartDetached
		if hold {
			start = cluster.Start
		}
		c, err := start(cluster.Options{Network: config, Tenants: map[string]string{"team-a": "", "team-b": "", "team-c": ""}})
		if c == nil {
			return nil, err
		}
		return c.Network, err
	}
	start := testnet.UpDetached
	if hold {
		start = testnet.Up
	}
	network, err := start(config)
	if err != nil {
		return nil, err
	}
	if err := network.WaitFabric(30 * time.Second); err != nil {
		return nil, errors.Join(err, network.Down())
	}
	return network, nil
}

func status(out io.Writer) error {
	ids, err := testnet.List()
	if err != nil {
		return err
	}
	for _, id := range ids {
		network, err := testnet.Open(id)
		if err != nil {
			return err
		}
		c := network.Config
		fmt.Fprintf(out, "%s: %d nodes, %d rails, %s, files in %s\n", id, c.Nodes, c.Rails, c.Peering, network.Dir)
		for _, node := range network.Nodes {
			fmt.Fprintf(out, "  %-8s %s  Open vSwitch %s, FRR %s\n", node.Name, node.NS.Name,
				state(node.OVS.Running()), state(node.FRR.Running()))
		}
		for _, router := range append(network.Leaves, network.Spine) {
			fmt.Fprintf(out, "  %-8s %s  FRR %s\n", router.Name, router.NS.Name, state(router.FRR.Running()))
			sessions, err := router.Sessions()
			if err != nil {
				fmt.Fprintf(out, "    %v\n", err)
			}
			for _, s := range sessions {
				fmt.Fprintf(out, "    %-28s %s\n", s.Peer, s.State)
			}
		}
	}
	return nil
}

func state(running bool) string {
	if running {
		return "running"
	}
	return "NOT RUNNING"
}
