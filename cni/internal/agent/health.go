package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

// Condition is what a Node says of its rails. It carries STATUS, which Multus does not pass on.
type Condition struct {
	Status  corev1.ConditionStatus
	Reason  string // CamelCase, for programs
	Message string
}

// Serving is nil if every rail answers STATUS; else it joins what is wrong, in the order of the node file.
func (a *Agent) Serving(ctx context.Context) error {
	if !a.Ready() {
		return failure.New(nodev1.Reason_NOT_READY, "railweave-node", "it is starting; the runtime tries again", "the first reconciliation is not done")
	}
	var problems error
	for i := range a.Config.Rails {
		problems = errors.Join(problems, a.Status(ctx, a.Config.Rails[i].Name))
	}
	return problems
}

func (a *Agent) condition(ctx context.Context) Condition {
	problem := a.Serving(ctx)
	if problem == nil {
		return Condition{corev1.ConditionTrue, "RailsReady", "pods can be attached to every rail"}
	}
	message := strings.ReplaceAll(problem.Error(), "\n", "; ")
	return Condition{corev1.ConditionFalse, camelCase(failure.ReasonOf(problem).String()), message}
}

// camelCase makes RailDown of RAIL_DOWN.
func camelCase(reason string) string {
	words := strings.Split(strings.ToLower(reason), "_")
	for i, word := range words {
		words[i] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

const (
	// healthPoll: STATUS asks ovsdb-server and ovs-vswitchd, which answer within a millisecond; else it compares what the agent has heard.
	healthPoll = 2 * time.Second
	// conditionTime bounds one attempt to write a condition. An API server that hangs must hold up nothing else.
	conditionTime = 10 * time.Second
)

// watchHealth keeps the Node's condition equal to STATUS, also while the agent starts, and tells of agents that fell silent.
func (a *Agent) watchHealth(ctx context.Context) {
	others := pulses{}
	tell := func(ctx context.Context) {
		a.tell(ctx, a.Config.Node, a.condition(ctx))
		for _, name := range others.silent(a.Source, a.Config.Node, a.Now()) {
			if a.tell(ctx, name, Condition{corev1.ConditionUnknown, "AgentSilent", fmt.Sprintf("its agent has not been heard of for %v; its pods keep their rails, new ones wait", tenancy.Lifetime)}) {
				others.told(name)
			}
		}
	}
	tell(ctx)
	every(ctx, healthPoll, tell)
}

// farewell leaves no condition behind that nobody keeps true. A crash leaves one, until another agent notices.
func (a *Agent) farewell(ctx context.Context, cause error) {
	message := "its agent was stopped; its pods keep their rails, new ones wait"
	if cause != nil {
		message = "its agent ended: " + cause.Error()
	}
	a.tell(context.WithoutCancel(ctx), a.Config.Node, Condition{corev1.ConditionUnknown, "AgentStopped", message})
}

func (a *Agent) tell(ctx context.Context, node string, condition Condition) bool {
	ctx, cancel := context.WithTimeout(ctx, conditionTime)
	defer cancel()
	if err := a.Recorder.Condition(ctx, node, condition); err != nil {
		a.Log.Warn("a Node's condition was not written; trying again", "of", node, "condition", condition.Reason, "error", err)
		return false
	}
	return true
}

// pulse is a node's heartbeat and when it was heard to change, by this node's clock: clocks differ.
type pulse struct {
	heartbeat time.Time
	heard     time.Time
	told      bool // that it stopped
}

type pulses map[string]*pulse

func (p pulses) told(name string) { p[name].told = true }

// silent are the nodes whose agents fell silent and of which this node is to tell: as the node lifecycle controller does for a
// kubelet, somebody else must. The first living node by name does, so that usually only one does.
func (p pulses) silent(source tenancy.Source, self string, now time.Time) []string {
	nodes := source.View().Nodes
	// Who hears nothing cannot tell who is silent.
	since, _ := source.Stale()
	deaf := !since.IsZero()
	maps.DeleteFunc(p, func(name string, _ *pulse) bool { _, there := nodes[name]; return deaf || !there })
	if deaf {
		return nil
	}
	var silent []string
	mine := true
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		last := p[name]
		if last == nil || !last.heartbeat.Equal(nodes[name].Heartbeat) {
			last = &pulse{heartbeat: nodes[name].Heartbeat, heard: now}
			p[name] = last
		}
		switch dead := now.Sub(last.heard) >= tenancy.Lifetime; {
		case name == self:
		case dead && !last.told:
			silent = append(silent, name)
		case !dead && name < self:
			mine = false
		}
	}
	if !mine {
		return nil
	}
	return silent
}
