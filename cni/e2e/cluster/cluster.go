// Package cluster is a test network with node agents and container runtimes on it: everything a scenario needs.
package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/railweave/railweave/cni/e2e/plugins"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// ReadyLimit is how long agents may take from their start to ready, BGP sessions included. FRR 8.4 establishes a
// session in about 3 s; the rest is room for a busy machine.
const ReadyLimit = 60 * time.Second

// Options are the shape of a cluster.
type Options struct {
	Network testnet.Config
	// Tenants are the Namespaces there are: Namespace to tenant label, "" for none.
	Tenants map[string]string
	// Kubeconfig, if set, is called for each node before its agent starts, and makes tenants come from the API it names.
	Kubeconfig func(network *testnet.Network, node *testnet.Node) (string, error)
	// CNIVersion, Observe and Interrupt are the runtimes'.
	CNIVersion string
	Observe    func(runtime.Call)
	Interrupt  func(plugin, command string) <-chan time.Time
}

// Cluster is a running cluster.
type Cluster struct {
	Network  *testnet.Network
	Agents   []*testnet.Agent
	Runtimes []*runtime.Runtime
	Bin      string
	options  Options
}

// Start builds the programs and the network, starts the agents, and waits until they can serve.
func Start(options Options) (*Cluster, error) {
	bin, err := plugins.Build()
	if err != nil {
		return nil, err
	}
	network, err := testnet.Up(options.Network)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Network: network, Bin: bin, options: options}
	if err := c.start(); err != nil {
		return nil, errors.Join(err, c.Logs(), c.Stop())
	}
	return c, nil
}

// StartDetached is Start for a cluster that outlives the caller. When agents do not become ready it is left standing, to
// be looked into.
func StartDetached(options Options) (*Cluster, error) {
	bin, err := plugins.Build()
	if err != nil {
		return nil, err
	}
	network, err := testnet.UpDetached(options.Network)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Network: network, Bin: bin, options: options}
	return c, c.start()
}

// Logs returns the ends of the agents' logs as an error, to go with another.
func (c *Cluster) Logs() error {
	const most = 4 << 10
	var failures error
	for _, agent := range c.Agents {
		text, err := os.ReadFile(agent.Log())
		if err != nil {
			failures = errors.Join(failures, err)
			continue
		}
		failures = errors.Join(failures, fmt.Errorf("%s:\n%s", agent.Log(), text[max(0, len(text)-most):]))
	}
	return failures
}

func (c *Cluster) start() error {
	for _, node := range c.Network.Nodes {
		options := testnet.AgentOptions{Program: filepath.Join(c.Bin, "railweave-node")}
		if c.options.Kubeconfig != nil {
			file, err := c.options.Kubeconfig(c.Network, node)
			if err != nil {
				return err
			}
			options.Kubeconfig = file
		}
		agent, err := c.Network.NewAgent(node, options)
		if err != nil {
			return err
		}
		c.Agents = append(c.Agents, agent)
		r, err := runtime.New(c.Network, node, agent, runtime.Options{PluginDir: c.Bin, CNIVersion: c.options.CNIVersion,
			Observe: c.options.Observe, Interrupt: c.options.Interrupt})
		if err != nil {
			return err
		}
		c.Runtimes = append(c.Runtimes, r)
	}
	if err := c.Network.SetTenants(c.options.Tenants); err != nil {
		return err
	}
	for _, agent := range c.Agents {
		if err := agent.Start(); err != nil {
			return err
		}
	}
	return c.WaitReady()
}

// WaitReady waits until all agents can serve all rails.
func (c *Cluster) WaitReady() error {
	var group errgroup.Group
	for _, agent := range c.Agents {
		group.Go(func() error { return agent.WaitReady(ReadyLimit) })
	}
	return group.Wait()
}

// Pods lists all pods of all nodes.
func (c *Cluster) Pods() []*runtime.Pod {
	var pods []*runtime.Pod
	for _, r := range c.Runtimes {
		pods = append(pods, r.Pods()...)
	}
	return pods
}

// WaitRoutes waits until the leaf of every rail has exactly the routes of the given pods, and says what differs if it
// does not come to that.
func (c *Cluster) WaitRoutes(pods []*runtime.Pod, limit time.Duration) error {
	var difference error
	deadline := time.Now().Add(limit)
	for {
		difference = c.compareRoutes(pods)
		if difference == nil || time.Now().After(deadline) {
			return difference
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// compareRoutes compares what the leafs have learned from the nodes with what the pods' attachments call for. Routes
// of other rails, which come over the spine, are not the leaf's own and are left out.
func (c *Cluster) compareRoutes(pods []*runtime.Pod) error {
	var problems []string
	for rail, leaf := range c.Network.Leaves {
		want := map[string]string{}
		for _, pod := range pods {
			for _, a := range pod.Attachments {
				if a.Rail != rail {
					continue
				}
				for _, addr := range a.Addresses {
					want[fmt.Sprintf("%s/%d", addr, addr.BitLen())] = fmt.Sprint(testnet.NodeASN(pod.Node.Index))
				}
			}
		}
		routes, err := leaf.FRR.Routes()
		if err != nil {
			return err
		}
		for _, route := range routes {
			if strings.HasPrefix(route.ASPath, fmt.Sprint(testnet.SpineASN)) {
				continue
			}
			prefix := route.Prefix.String()
			switch origin, ok := want[prefix]; {
			case !ok:
				problems = append(problems, fmt.Sprintf("%s has %s from AS %s, which no pod has", leaf.Name, prefix, route.ASPath))
			case origin != route.ASPath:
				problems = append(problems, fmt.Sprintf("%s has %s from AS %s instead of %s", leaf.Name, prefix, route.ASPath, origin))
			}
			delete(want, prefix)
		}
		for prefix, origin := range want {
			problems = append(problems, fmt.Sprintf("%s lacks %s from AS %s", leaf.Name, prefix, origin))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "\n"))
}

// AwaitRoom waits until the switches have read what was sent, so that another burst of frames finds room. One that does not
// read for seconds is left to the caller, who counts what it drops.
func (c *Cluster) AwaitRoom() error {
	// Sockets hold 212,992 bytes by default, a short frame takes 768: with this left over, 200 more fit.
	return c.awaitBacklog(48<<10, 5*time.Second)
}

// AwaitRead waits until the switches have read everything that was sent before, what they sent each other included: on a machine
// that stands still, frames may wait for seconds. One that does not read for longer is left to the caller.
func (c *Cluster) AwaitRead() error {
	for range 2 { // the sender's node, and after it the receiver's
		if err := c.awaitBacklog(0, 30*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// awaitBacklog waits until each switch has had no more than so many bytes to read.
func (c *Cluster) awaitBacklog(most int, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for _, node := range c.Network.Nodes {
		for {
			backlog, err := node.OVS.Backlog()
			if err != nil {
				return err
			}
			if backlog <= most || time.Now().After(deadline) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// Stop ends the agents and removes the network with everything in it.
func (c *Cluster) Stop() error {
	var failures error
	for _, agent := range c.Agents {
		failures = errors.Join(failures, agent.Kill())
	}
	return errors.Join(failures, c.Network.Down())
}
