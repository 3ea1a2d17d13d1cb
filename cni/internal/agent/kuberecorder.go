package agent

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/railweave/railweave/cni/internal/attachment"
)

// NodeCondition is the type of the condition that carries STATUS where Multus does not pass the verb on.
const NodeCondition = "RailweaveReady"

// KubeRecorder writes events on pods and the node's condition.
type KubeRecorder struct {
	client kubernetes.Interface
	events record.EventRecorder
	node   string

	mutex   sync.Mutex
	written string // the condition as last written
	at      time.Time
}

// NewKubeRecorder starts to send.
func NewKubeRecorder(ctx context.Context, client kubernetes.Interface, node string) *KubeRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &KubeRecorder{client: client, node: node, events: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "railweave-node", Host: node})}
}

// PodEvent writes an event on a pod.
func (r *KubeRecorder) PodEvent(pod attachment.Pod, warning bool, reason, message string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	reference := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
	r.events.Event(reference, kind, reason, message)
}

// conditionRefresh renews the condition's heartbeat, as kubelet does with its own.
const conditionRefresh = 5 * time.Minute

// Condition writes the node's condition if it changed.
func (r *KubeRecorder) Condition(ctx context.Context, reason, why string) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.written == reason+"\x00"+why && time.Since(r.at) < conditionRefresh {
		return nil
	}
	now := metav1.Now()
	condition := corev1.NodeCondition{Type: NodeCondition, Status: corev1.ConditionTrue, Reason: reason, Message: why, LastHeartbeatTime: now, LastTransitionTime: now}
	if why != "" {
		condition.Status = corev1.ConditionFalse
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return err
	}
	if _, err := r.client.CoreV1().Nodes().PatchStatus(ctx, r.node, patch); err != nil {
		return err
	}
	r.written, r.at = reason+"\x00"+why, time.Now()
	return nil
}
