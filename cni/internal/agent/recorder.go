package agent

import (
	"context"
	"log/slog"

	"github.com/railweave/railweave/cni/internal/attachment"
)

// LogRecorder tells people by the log alone: without Kubernetes there is nowhere else.
type LogRecorder struct {
	Log *slog.Logger
}

// PodEvent logs.
func (r LogRecorder) PodEvent(pod attachment.Pod, warning bool, reason, message string) {
	level := slog.LevelInfo
	if warning {
		level = slog.LevelWarn
	}
	r.Log.Log(context.Background(), level, message, "event", reason, "pod", pod.Namespace+"/"+pod.Name)
}

// Condition needs no log: what it is about was logged when it happened.
func (r LogRecorder) Condition(context.Context, string, Condition) error { return nil }
