package agent

import (
	"context"
	"slices"
	"time"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/preflight"
)

// repairPoll is how soon a node that fails preflight is looked at again: what was missing may come any moment.
const repairPoll = 2 * time.Second

// watchNode repeats the preflight: a second zebra or a route into the pools may come at any time.
func (a *Agent) watchNode(ctx context.Context) {
	for {
		period := a.Config.ReconcilePeriod()
		a.mutex.Lock()
		if preflight.Failed(a.findings) {
			period = min(period, repairPoll)
		}
		a.mutex.Unlock()
		if sleep(ctx, period) != nil {
			return
		}
		a.inspectNode(ctx)
	}
}

// inspectNode runs the preflight. A failure counts when it is found twice: on a busy machine a program may not answer in time.
// Before the agent is ready nothing is served, so that the first look counts.
func (a *Agent) inspectNode(ctx context.Context) {
	findings := a.Preflight(ctx)
	a.mutex.Lock()
	defer a.mutex.Unlock()
	before := map[string]bool{}
	for _, finding := range a.findings {
		before[finding.Check] = finding.Level == preflight.Fail
	}
	var refusals []preflight.Finding
	for _, finding := range findings {
		if finding.Level == preflight.Fail && (before[finding.Check] || !a.ready) {
			refusals = append(refusals, finding)
			if !slices.Contains(a.refusals, finding) {
				a.Log.Error("preflight: no new attachments are served", "check", finding.Check, "found", finding.Found, "remedy", finding.Remedy)
			}
		}
	}
	if len(a.refusals) > 0 && len(refusals) == 0 {
		a.Log.Info("preflight: new attachments are served again")
	}
	a.findings, a.refusals = findings, refusals
	a.Metrics.Preflight.Set(float64(len(refusals)))
}

// nodeProblem tells which failure of the preflight keeps new attachments away from a rail. Pods that run keep what they have.
func (a *Agent) nodeProblem(railName string) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if found := preflight.FirstFailure(a.refusals, railName); found != nil {
		return failure.New(nodev1.Reason_NOT_READY, "preflight: "+found.Check, found.Remedy, "%s", found.Found)
	}
	return nil
}
