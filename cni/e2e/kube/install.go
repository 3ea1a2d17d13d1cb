package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
)

// Install puts the chart's objects into the API, as `helm install` would.
func (a *API) Install(ctx context.Context, chart string) error {
	text, err := a.helm(chart)
	if err != nil {
		return err
	}
	core, objects, err := a.Clients()
	if err != nil {
		return err
	}
	if err := a.CreateNamespace(ctx, AgentNamespace, ""); err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(core.Discovery()))
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("chart: %w", err)
		}
		if len(object.Object) == 0 {
			continue
		}
		mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
		if err != nil {
			return fmt.Errorf("chart: %w", err)
		}
		resource := objects.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			_, err = resource.Namespace(object.GetNamespace()).Create(ctx, &object, metav1.CreateOptions{})
		} else {
			_, err = resource.Create(ctx, &object, metav1.CreateOptions{})
		}
		if err != nil {
			return fmt.Errorf("chart: %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

// TenantLabel is the label of a Namespace that chooses its tenant.
const TenantLabel = "railweave.io/tenant"

// CreateNamespace makes a Namespace, with the tenant label if there is one.
func (a *API) CreateNamespace(ctx context.Context, name, tenant string) error {
	core, _, err := a.Clients()
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if tenant != "" {
		namespace.Labels = map[string]string{TenantLabel: tenant}
	}
	_, err = core.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	return err
}

// CreateNode makes a Node object.
func (a *API) CreateNode(ctx context.Context, name string) error {
	core, _, err := a.Clients()
	if err != nil {
		return err
	}
	_, err = core.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// CreatePod makes a pod bound to a node, as the scheduler leaves it, and returns its UID.
func (a *API) CreatePod(ctx context.Context, namespace, name, node string, annotations map[string]string) (string, error) {
	core, _, err := a.Clients()
	if err != nil {
		return "", err
	}
	none := int64(0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: annotations},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &none,
			Containers: []corev1.Container{{Name: "job", Image: "none"}}}}
	pod, err = core.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return string(pod.UID), nil
}

// SetTenant changes a Namespace's tenant label.
func (a *API) SetTenant(ctx context.Context, namespace, tenant string) error {
	core, _, err := a.Clients()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		object, err := core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if object.Labels == nil {
			object.Labels = map[string]string{}
		}
		object.Labels[TenantLabel] = tenant
		if _, err = core.CoreV1().Namespaces().Update(ctx, object, metav1.UpdateOptions{}); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
