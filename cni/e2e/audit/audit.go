// Package audit compares everything that the system holds about pods on the rails - Open vSwitch, the kernel, FRR, the
// leafs, the agents' stores, the IPAM - with the pods there are. It reads each source with its own tools and shares no
// code with the agent, so that it does not repeat its mistakes.
package audit

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// Finding is one difference between what is and what should be.
type Finding struct {
	Node    string
	Source  string // ovs, kernel, bgp, store, ipam, pod
	Problem string
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Node, f.Source, f.Problem) }

// expectation is what a node should hold, derived from the pods alone.
type expectation struct {
	node        *testnet.Node
	agent       *testnet.Agent
	rails       int
	attachments []expected
	// everywhere are the addresses of all pods of the cluster.
	everywhere map[netip.Addr]bool
}

// expected is one attachment with its pod.
type expected struct {
	runtime.Attachment
	pod *runtime.Pod
}

// Cluster audits all nodes and returns every difference.
func Cluster(c *cluster.Cluster) ([]Finding, error) {
	pods := c.Pods()
	everywhere := map[netip.Addr]bool{}
	for _, pod := range pods {
		for _, a := range pod.Attachments {
			for _, addr := range a.Addresses {
				everywhere[addr] = true
			}
		}
	}
	var findings []Finding
	var failures error
	for i, node := range c.Network.Nodes {
		e := &expectation{node: node, agent: c.Agents[i], rails: c.Network.Config.Rails, everywhere: everywhere}
		for _, pod := range pods {
			for _, a := range pod.Attachments {
				if pod.Node == node {
					e.attachments = append(e.attachments, expected{a, pod})
				}
			}
		}
		for _, source := range []func(*expectation) ([]Finding, error){auditOVS, auditKernel, auditStore, auditIPAM, auditPods} {
			found, err := source(e)
			findings, failures = append(findings, found...), errors.Join(failures, err)
		}
	}
	if err := c.WaitRoutes(pods, 0); err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			findings = append(findings, Finding{"leafs", "bgp", line})
		}
	}
	return findings, failures
}

// Settled repeats the audit until nothing is found or limit has passed, because withdrawal and tenancy travel between
// nodes and repairs happen at intervals; what is left then is the answer.
func Settled(c *cluster.Cluster, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		findings, err := Cluster(c)
		if err == nil && len(findings) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(err, summary(findings, limit))
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func summary(findings []Finding, limit time.Duration) error {
	if len(findings) == 0 {
		return nil
	}
	const most = 30
	var lines []string
	for i, f := range findings {
		if i == most {
			lines = append(lines, fmt.Sprintf("... and %d more", len(findings)-most))
			break
		}
		lines = append(lines, f.String())
	}
	return fmt.Errorf("%d findings after %v:\n%s", len(findings), limit, strings.Join(lines, "\n"))
}

// compare turns two sets of names into findings about what is missing and what is left over.
func (e *expectation) compare(source, what string, want, got []string) []Finding {
	var findings []Finding
	for _, name := range got {
		if !slices.Contains(want, name) {
			findings = append(findings, Finding{e.node.Name, source, fmt.Sprintf("%s %s is left over", what, name)})
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			findings = append(findings, Finding{e.node.Name, source, fmt.Sprintf("%s %s is missing", what, name)})
		}
	}
	return findings
}

func (e *expectation) finding(source, format string, args ...any) Finding {
	return Finding{e.node.Name, source, fmt.Sprintf(format, args...)}
}

// onRail lists the node's attachments of one rail.
func (e *expectation) onRail(rail int) []expected {
	return slices.DeleteFunc(slices.Clone(e.attachments), func(a expected) bool { return a.Rail != rail })
}

func hostPrefix(addr netip.Addr) string { return netip.PrefixFrom(addr, addr.BitLen()).String() }
