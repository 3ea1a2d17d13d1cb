package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// TestCollect calls GC of a runtime that lost its records and knows of one pod only. What is gone is collected; a pod that
// lives stays although it is not listed, because Multus lists only what it added itself.
func TestCollect(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	r := c.Runtimes[0]
	listed, unlisted, peer := run(t, c, 1, "team-a", "listed"), run(t, c, 1, "team-a", "unlisted"), run(t, c, 2, "team-a", "peer")
	audited(t, c)
	// The agent sweeps dead pods itself, every 5 s: what it took before GC could, shows nothing of GC.
	const tries = 5
	for try := 1; ; try++ {
		gone := run(t, c, 1, "team-a", fmt.Sprintf("gone-%d", try))
		must(t, c.WaitRoutes(c.Pods(), routesLimit))
		must(t, r.ForgetResults())
		must(t, r.Discard(gone))
		for rail := range c.Network.Leaves {
			must(t, r.Collect(rail, listed))
		}
		// GC answers also where the agent's sweep is in the middle of removing the same one, and not through with it.
		must(t, eventually(func() error {
			held, err := os.ReadFile(filepath.Join(c.Agents[0].StateDir(), "store.json"))
			if err == nil && strings.Contains(string(held), gone.ContainerID) {
				err = errors.New("GC left an attachment whose namespace is gone")
			}
			return err
		}))
		log, err := os.ReadFile(c.Agents[0].Log())
		must(t, err)
		if !sweptByAgent(string(log), gone.ContainerID) {
			break
		}
		if try == tries {
			t.Fatalf("the agent's own sweep was before GC %d times: this test shows nothing", tries)
		}
	}
	// host-local keeps addresses of pods that it was never told to forget.
	for rail := range c.Network.Leaves {
		must(t, forgetLeases(c.Network.Nodes[0], rail, listed.ContainerID, unlisted.ContainerID))
	}
	audited(t, c)
	reach(t, unlisted, peer)
	must(t, r.Stop(unlisted))
	must(t, r.Stop(listed))
	audited(t, c)
}

// sweptByAgent looks for the agent's word that it removed an attachment of the container by itself.
func sweptByAgent(log, containerID string) bool {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "attachment of a dead namespace is removed") && strings.Contains(line, containerID) {
			return true
		}
	}
	return false
}

// forgetLeases removes host-local's leases of all containers but the given ones.
func forgetLeases(node *testnet.Node, rail int, keep ...string) error {
	files, err := filepath.Glob(filepath.Join(node.Dir, "ipam", testnet.Rail(rail), "[0-9a-f]*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		owner, _, _ := strings.Cut(string(text), "\r\n")
		kept := false
		for _, id := range keep {
			kept = kept || owner == id
		}
		if !kept {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	return nil
}
