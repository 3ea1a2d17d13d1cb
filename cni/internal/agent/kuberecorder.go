package agent

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// KubeRecorder writes events on pods and the Nodes' conditions.
type KubeRecorder struct {
	client kubernetes.Interface
	events record.EventRecorder
	node   string
	now    func() time.Time

	mutex   sync.Mutex
	written Condition // this node's, as last compared with the API's
	at      time.Time
}

// NewKubeRecorder starts to send.
func NewKubeRecorder(ctx context.Context, client kubernetes.Interface, node string) *KubeRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &KubeRecorder{client: client, node: node, now: time.Now,
		events: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "railweave-node", Host: node})}
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

const (
	// conditionCheck: how often this node's condition is compared with the API's although nothing changed: somebody who took
	// this agent for dead may have written it.
	conditionCheck = time.Minute
	// conditionRefresh renews the condition's heartbeat, as kubelet does with its own. The heartbeat to judge by is the RailNode's.
	conditionRefresh = 5 * time.Minute
)

// Condition makes a Node's condition the wanted one. A Node that is gone needs none.
func (r *KubeRecorder) Condition(ctx context.Context, node string, wanted Condition) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	now := r.now()
	if node == r.node && r.written == wanted && now.Sub(r.at) < conditionCheck {
		return nil
	}
	if err := r.write(ctx, node, wanted, metav1.NewTime(now)); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if node == r.node {
		r.written, r.at = wanted, now
	}
	return nil
}

func (r *KubeRecorder) write(ctx context.Context, node string, wanted Condition, now metav1.Time) error {
	found, err := r.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	condition := corev1.NodeCondition{Type: NodeCondition, Status: wanted.Status, Reason: wanted.Reason, Message: wanted.Message, LastHeartbeatTime: now, LastTransitionTime: now}
	if at := slices.IndexFunc(found.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == NodeCondition }); at >= 0 {
		before := found.Status.Conditions[at]
		if wanted == (Condition{before.Status, before.Reason, before.Message}) && now.Sub(before.LastHeartbeatTime.Time) < conditionRefresh {
			return nil
		}
		if before.Status == wanted.Status {
			condition.LastTransitionTime = before.LastTransitionTime
		}
	}
	// With the version that was read: what somebody else wrote since is not overwritten.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": found.ResourceVersion},
		"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Nodes().PatchStatus(ctx, node, patch)
	return err
}
