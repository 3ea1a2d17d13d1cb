// Package e2e is the end-to-end suite: real Open vSwitch, FRR and plugins in a network of namespaces, with packets as
// proof. docs/cni/e2e.md says how to run it and how to look into a failure.
package e2e

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/e2e/audit"
	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/probe"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// requireVariable makes it a failure that this machine cannot run the suite: CI sets it, so that a missing package
// cannot turn the suite off unnoticed.
const requireVariable = "RAILWEAVE_E2E_REQUIRED"

// fullVariable asks for scenarios in their full size: `make test-cni-full` sets it.
const fullVariable = "RAILWEAVE_E2E_FULL"

// size of a scenario: short in every run, full when asked for.
func size(short, full int) int {
	if os.Getenv(fullVariable) != "" {
		return full
	}
	return short
}

// settleLimit bounds how long a cluster may take to come to rest after a disturbance: FRR's sessions need about 3 s to
// come back, the agents reconcile every 5 s, and the machine may be busy.
const settleLimit = 90 * time.Second

func TestMain(m *testing.M) {
	testnet.RunGuardIfAsked()
	os.Exit(m.Run())
}

// onlyFull leaves a long scenario to `make test-cni-full`.
func onlyFull(t *testing.T) {
	t.Helper()
	if os.Getenv(fullVariable) == "" {
		t.Skip("long: left to make test-cni-full")
	}
}

// routesLimit bounds how long the leafs may take to learn or forget a pod. It is well below a second when the machine is
// idle, which addlatency measures.
const routesLimit = 30 * time.Second

// needNetwork skips a test where networks cannot be built, and lets it run beside others: each has a network of its own, and
// most of the time they wait for routing daemons.
func needNetwork(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("end-to-end: not with -short")
	}
	if err := testnet.Requirements(); errors.Is(err, testnet.ErrUnavailable) {
		if os.Getenv(requireVariable) != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Parallel()
}

// start builds a cluster for one test.
func start(t *testing.T, options cluster.Options) *cluster.Cluster {
	t.Helper()
	needNetwork(t)
	if options.Network == (testnet.Config{}) {
		options.Network = testnet.Config{Nodes: 2, Rails: 2, Peering: testnet.Unnumbered}
	}
	c, err := cluster.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// run starts a pod on a node (counted from 1).
func run(t *testing.T, c *cluster.Cluster, node int, namespace, name string) *runtime.Pod {
	t.Helper()
	pod, err := c.Runtimes[node-1].Run(namespace, name, true)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// audited fails the test if the cluster does not come to the state its pods call for.
func audited(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if err := audit.Settled(c, settleLimit); err != nil {
		t.Error(err)
	}
}

// endpoints makes a probe endpoint of every attachment of the pods.
func endpoints(t *testing.T, pods []*runtime.Pod) []*probe.Endpoint {
	t.Helper()
	var all []*probe.Endpoint
	for _, pod := range pods {
		for _, a := range pod.Attachments {
			e, err := probe.NewEndpoint(fmt.Sprintf("%v/rail%d", pod, a.Rail), pod.NS, a.Interface, a.Rail)
			must(t, err)
			all = append(all, e)
		}
	}
	return all
}

// reach checks that two pods exchange data over every rail in both families, with the kernels' own stacks. It has the time that a
// machine takes which stands still for seconds; tests of what must not be lost meanwhile send probes.
func reach(t *testing.T, from, to *runtime.Pod) {
	t.Helper()
	for rail := range from.Attachments {
		for _, v6 := range []bool{false, true} {
			src, dst := from.Attachments[rail].Address(v6), to.Attachments[rail].Address(v6)
			if err := eventually(func() error { return probe.ExchangeTCP(from.NS, to.NS, src, dst, 10*time.Second) }); err != nil {
				t.Errorf("%v to %v on rail %d: %v", from, to, rail, err)
			}
		}
	}
}
