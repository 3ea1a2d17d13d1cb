package e2e

import (
	"fmt"
	"testing"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/plugins"
	"github.com/railweave/railweave/cni/e2e/runtime"
)

// TestMultus has the real Multus call the chains: the whole of what a kubelet's runtime would run, but for the API.
func TestMultus(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	_, err := plugins.BuildMultus()
	must(t, err)
	var pods []*runtime.Pod
	for _, r := range c.Runtimes {
		m := runtime.NewMultus(r, runtime.MultusOptions{})
		for i := range 2 {
			pod, err := r.NewPod("team-a", fmt.Sprintf("pod-%d", i))
			must(t, err)
			must(t, m.Run(pod))
			pods = append(pods, pod)
		}
	}
	must(t, c.WaitRoutes(pods, routesLimit))
	audited(t, c)
	for _, from := range pods {
		for _, to := range pods {
			if from != to {
				reach(t, from, to)
			}
		}
	}
	for _, pod := range pods {
		must(t, runtime.NewMultus(c.Runtimes[pod.Node.Index-1], runtime.MultusOptions{}).Remove(pod))
	}
	audited(t, c)
}
