package e2e

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/probe"
)

// inForce waits until every agent has put a Namespace's tenant into force, asked of the given node's agent.
func inForce(t *testing.T, c *cluster.Cluster, node int, namespace string) {
	t.Helper()
	cmd := c.Network.Nodes[node-1].NS.Command(filepath.Join(c.Bin, "railweave-node"), "tenancy",
		"--config", c.Agents[node-1].ConfigFile(), "--namespace", namespace, "--wait", settleLimit.String())
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: tenant not in force: %v: %s", namespace, err, text)
	}
}

// TestRelabelling moves a Namespace from one tenant to another and back while probes fly. From the moment its new tenant
// is reported in force, not one packet passes to or from the old one, and everything passes to and from the new one.
func TestRelabelling(t *testing.T) {
	c := start(t, cluster.Options{Tenants: tenants})
	f := plant(t, c, 6)
	of := map[string]string{} // Namespace to label
	maps.Copy(of, tenants)
	namespace := map[*probe.Endpoint]string{}
	i := 0
	for _, pod := range f.pods {
		for range pod.Attachments {
			namespace[f.ends[i]] = pod.Namespace
			i++
		}
	}
	for _, impostors := range f.impostors {
		for _, impostor := range impostors {
			namespace[impostor] = namespace[impostor.Plays]
		}
	}
	relation := func(of map[string]string) func(from, to *probe.Endpoint) probe.Relation {
		return func(from, to *probe.Endpoint) probe.Relation {
			a, b := namespace[from], namespace[to]
			if a != "" && b != "" && tenantOf(a, of[a]) == tenantOf(b, of[b]) {
				return probe.Friends
			}
			return probe.Strangers
		}
	}
	during := f.session(t)
	before := f.overflow(t)
	// A label that is the name of another Namespace does not join it; that Namespace joins by having the label, too.
	for round, change := range []struct{ namespace, label string }{{"team-b2", ""}, {"team-b2", "team-a"}, {"team-a", "team-a"}, {"team-b2", "blue"}} {
		was, labels := relation(of), maps.Clone(of)
		labels[change.namespace] = change.label
		next := relation(labels)
		// While the change is under way only what holds before and after is expected, and nothing of the Namespace that
		// moves: its addresses have no tenant for a moment, not even among themselves.
		during.SetRelation(f.during(func(from, to *probe.Endpoint) probe.Relation {
			a, b := was(from, to), next(from, to)
			moves := namespace[from] == change.namespace || namespace[to] == change.namespace
			if a != b || a == probe.Friends && moves {
				return probe.Unsettled
			}
			return a
		}))
		stop := stream(t, during, f)
		time.Sleep(200 * time.Millisecond) // some probes before the change, whose flows are cached then
		must(t, c.Network.SetTenants(labels))
		began := time.Now()
		inForce(t, c, round%len(c.Runtimes)+1, change.namespace)
		during.SetRelation(f.during(next))
		t.Logf("%s to %s: in force after %v", change.namespace, tenantOf(change.namespace, change.label), time.Since(began).Round(time.Millisecond))
		// At once, in both directions and of every kind: what the stream's many probes could hide.
		stop()
		moved := slices.DeleteFunc(slices.Clone(f.ends), func(e *probe.Endpoint) bool { return namespace[e] != change.namespace })
		must(t, during.Matrix(probe.Kinds, moved, f.ends, probe.Burst))
		must(t, during.Matrix(probe.Kinds, f.ends, moved, probe.Burst))
		f.verdict(t, during, before)
		before = f.overflow(t)
		of = labels
	}
	must(t, during.Matrix(probe.Kinds, f.ends, f.ends, probe.Burst))
	f.verdict(t, during, before)
}

// TestUnknownNamespace starts a pod of a Namespace nobody has heard of.
func TestUnknownNamespace(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	pod, err := c.Runtimes[0].NewPod("no-such-team", "pod")
	must(t, err)
	_, err = c.Runtimes[0].Attach(pod, 0)
	wantCode(t, err, codeUnknownPod)
	must(t, c.Runtimes[0].Stop(pod))
	audited(t, c)
}

// TestChangeWaitsForEveryAgent relabels while one agent is dead: the change must not be reported in force before that
// agent has it, because its flows may still be those of before.
func TestChangeWaitsForEveryAgent(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	run(t, c, 1, "team-a", "one")
	run(t, c, 2, "team-a", "two")
	must(t, c.Agents[1].Kill())
	must(t, c.Network.SetTenants(map[string]string{"team-a": "red"}))
	cmd := c.Network.Nodes[0].NS.Command(filepath.Join(c.Bin, "railweave-node"), "tenancy",
		"--config", c.Agents[0].ConfigFile(), "--namespace", "team-a", "--wait", "5s")
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("a change that a dead agent has not acknowledged is reported with %v: %s", err, text)
	}
	must(t, c.Agents[1].Start())
	inForce(t, c, 1, "team-a")
}
