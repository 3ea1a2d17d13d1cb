//go:build kubernetes

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/kube"
	"github.com/railweave/railweave/cni/e2e/probe"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
	"github.com/railweave/railweave/cni/internal/agent"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

var (
	attachments = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// onKubernetes is a cluster whose agents, and Multus, work with a real API server.
type onKubernetes struct {
	*cluster.Cluster
	api *kube.ControlPlane
}

func startKubernetes(t *testing.T) *onKubernetes {
	t.Helper()
	options := cluster.Options{Tenants: tenants}
	api, err := kube.Prepare(&options)
	must(t, err)
	return &onKubernetes{Cluster: start(t, options), api: api}
}

// run starts a pod through Multus, which reads its networks from the API.
func (k *onKubernetes) run(t *testing.T, node int, namespace, name string) *runtime.Pod {
	t.Helper()
	r := k.Runtimes[node-1]
	networks := fmt.Sprintf("default/rail0-%s, default/rail1-%s", r.Node.Name, r.Node.Name)
	uid, err := k.api.CreatePod(context.Background(), namespace, name, r.Node.Name, map[string]string{"k8s.v1.cni.cncf.io/networks": networks})
	must(t, err)
	pod, err := r.NewPod(namespace, name)
	must(t, err)
	pod.UID = uid
	must(t, k.multus(t, node).Run(pod))
	return pod
}

func (k *onKubernetes) multus(t *testing.T, node int) *runtime.Multus {
	t.Helper()
	file, err := k.api.AdminKubeconfig()
	must(t, err)
	return runtime.NewMultus(k.Runtimes[node-1], runtime.MultusOptions{Kubeconfig: file})
}

// defineNetworks creates the NetworkAttachmentDefinitions, one per rail and node: unlike in a cluster, the nodes of a
// test network have different paths.
func (k *onKubernetes) defineNetworks(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	_, objects, err := k.api.Clients()
	must(t, err)
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	_, err = objects.Resource(definitions).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "network-attachment-definitions.k8s.cni.cncf.io"},
		"spec": map[string]any{"group": "k8s.cni.cncf.io", "scope": "Namespaced",
			"names": map[string]any{"plural": "network-attachment-definitions", "singular": "network-attachment-definition",
				"kind": "NetworkAttachmentDefinition"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": open}}}},
	}}, metav1.CreateOptions{})
	must(t, err)
	for _, r := range k.Runtimes {
		for rail := range k.Network.Leaves {
			config := r.RailConfig(rail)
			config["cniVersion"] = "1.0.0"
			text, err := json.Marshal(config)
			must(t, err)
			definition := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
				"metadata": map[string]any{"name": testnet.Rail(rail) + "-" + r.Node.Name, "namespace": "default"},
				"spec":     map[string]any{"config": string(text)}}}
			// The new resource is served a moment after its definition.
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
				_, err = objects.Resource(attachments).Namespace("default").Create(ctx, definition, metav1.CreateOptions{})
				if err == nil || time.Now().After(deadline) {
					break
				}
			}
			must(t, err)
		}
	}
}

// TestKubernetes runs pods through Multus with everything read from a real API server, under the chart's roles.
func TestKubernetes(t *testing.T) {
	k := startKubernetes(t)
	k.defineNetworks(t)
	var pods []*runtime.Pod
	for _, namespace := range []string{"team-a", "team-b", "team-b2", "blue"} {
		for node := range k.Runtimes {
			pods = append(pods, k.run(t, node+1, namespace, fmt.Sprintf("pod-%d", node+1)))
		}
	}
	audited(t, k.Cluster)
	f := &field{Cluster: k.Cluster, pods: pods, tenant: map[*probe.Endpoint]string{}}
	f.survey(t)
	s := f.session(t)
	before := f.overflow(t)
	must(t, s.Matrix(probe.Kinds, f.ends, f.ends, probe.Burst))
	f.verdict(t, s, before)
	t.Run("objects", func(t *testing.T) { k.objects(t, pods) })
	t.Run("relabelling", func(t *testing.T) { k.relabel(t, f) })
	t.Run("admission", k.admission)
	t.Run("health", k.health)
	t.Run("a pod the API does not know", func(t *testing.T) {
		pod, err := k.Runtimes[0].NewPod("team-a", "pod-1")
		must(t, err)
		_, err = k.Runtimes[0].Attach(pod, 0) // the name of a pod there is, with another UID
		wantCode(t, err, codeUnknownPod)
		must(t, k.Runtimes[0].Stop(pod))
	})
	t.Run("the API server is away", func(t *testing.T) { k.away(t, pods[0], pods[1]) })
	for _, pod := range pods {
		must(t, k.multus(t, pod.Node.Index).Remove(pod))
	}
	audited(t, k.Cluster)
	t.Run("no objects left", func(t *testing.T) { k.objects(t, nil) })
}

// away starts a node's agent and switch anew while nobody can say who has which address: pods of one tenant, here and on the
// other node, get their way back from what the agent remembers.
func (k *onKubernetes) away(t *testing.T, one, two *runtime.Pod) {
	must(t, k.api.StopServer())
	ovs, agent := k.Network.Nodes[0].OVS, k.Agents[0]
	must(t, steps(agent.Kill, ovs.KillSwitch, ovs.StartSwitch, agent.Start))
	for _, v6 := range []bool{false, true} {
		src, dst := one.Attachments[0].Address(v6), two.Attachments[0].Address(v6)
		must(t, eventually(func() error { return probe.ExchangeTCP(one.NS, two.NS, src, dst, 2*time.Second) }))
	}
	wantCode(t, k.Runtimes[0].Status(0), codeLimited)
	must(t, k.api.StartServer())
	must(t, k.WaitReady())
	audited(t, k.Cluster)
}

// objects compares the published addresses with the pods'.
func (k *onKubernetes) objects(t *testing.T, pods []*runtime.Pod) {
	t.Helper()
	want := map[string]string{}
	for _, pod := range pods {
		for _, a := range pod.Attachments {
			for _, addr := range a.Addresses {
				want[addr.String()] = fmt.Sprint(pod.Node.Name, " ", pod.Namespace, " ", tenancy.TenantOf(pod.Namespace, tenants[pod.Namespace]))
			}
		}
	}
	_, objects, err := k.api.Clients()
	must(t, err)
	var got map[string]string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		list, err := objects.Resource(tenancy.AddressResource).List(context.Background(), metav1.ListOptions{})
		must(t, err)
		got = map[string]string{}
		for _, item := range list.Items {
			spec := item.Object["spec"].(map[string]any)
			got[spec["address"].(string)] = fmt.Sprint(spec["node"], " ", spec["namespace"], " ", spec["tenant"])
		}
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
	}
	t.Errorf("RailAddresses are %v\nwant %v", got, want)
}

// relabel moves a Namespace to another tenant by its label, which so far only has the label's value for a name.
func (k *onKubernetes) relabel(t *testing.T, f *field) {
	must(t, k.api.SetTenant(context.Background(), "blue", "blue"))
	cmd := k.Network.Nodes[0].NS.Command("env", "KUBECONFIG="+k.api.Kubeconfigs["node1"], filepath.Join(k.Bin, "railweave-node"), "tenancy",
		"--config", k.Agents[0].ConfigFile(), "--namespace", "blue", "--wait", "60s")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tenant not in force: %v: %s", err, text)
	}
	for e, tenant := range f.tenant {
		if tenant == tenantOf("blue", "") {
			f.tenant[e] = tenantOf("blue", "blue")
		}
	}
	s := f.session(t)
	before := f.overflow(t)
	must(t, s.Matrix(probe.Kinds, f.ends, f.ends, probe.Burst))
	f.verdict(t, s, before)
}

// admission tries what no agent and no ordinary administrator may do.
func (k *onKubernetes) admission(t *testing.T) {
	t.Run("addresses", k.admissionOfAddresses)
	t.Run("rail nodes", k.admissionOfNodes)
	t.Run("conditions", k.admissionOfConditions)
	t.Run("labels", k.admissionOfLabels)
}

func published(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "railweave.io/v1", "kind": kind,
		"metadata": map[string]any{"name": name}, "spec": spec}}
}

func (k *onKubernetes) admissionOfAddresses(t *testing.T) {
	ctx := context.Background()
	object := func(name, node, tenant string) *unstructured.Unstructured {
		return published("RailAddress", name, map[string]any{"address": "10.100.9.9", "node": node, "rail": "rail0", "namespace": "team-a",
			"tenant": tenant, "generation": int64(1)})
	}
	one, err := dynamic.NewForConfig(k.as(t, "node1"))
	must(t, err)
	addresses := one.Resource(tenancy.AddressResource)
	create := func(object *unstructured.Unstructured) func() error {
		return func() error {
			_, err := addresses.Create(ctx, object, metav1.CreateOptions{})
			return err
		}
	}
	denied(t, "an agent publishing for another node", create(object("forged", "node2", "namespace/team-a")))
	refused(t, "a tenant without its kind", "spec.tenant", create(object("forged", "node1", "team-a")))
	refused(t, "another Namespace as tenant", "own Namespace", create(object("forged", "node1", "namespace/team-b")))
	list, err := addresses.List(ctx, metav1.ListOptions{})
	must(t, err)
	seen := map[string]bool{}
	for i := range list.Items {
		item := &list.Items[i]
		spec := item.Object["spec"].(map[string]any)
		node := spec["node"].(string)
		if seen[node] {
			continue
		}
		seen[node] = true
		if node == "node1" {
			spec["node"] = "node2"
			denied(t, "an agent giving its address to another node", func() error {
				_, err := addresses.Update(ctx, item, metav1.UpdateOptions{})
				return err
			})
			continue
		}
		denied(t, "an agent deleting another node's address", func() error {
			return addresses.Delete(ctx, item.GetName(), metav1.DeleteOptions{})
		})
		spec["node"] = "node1"
		denied(t, "an agent taking another node's address", func() error {
			_, err := addresses.Update(ctx, item, metav1.UpdateOptions{})
			return err
		})
	}
	if len(seen) != 2 {
		t.Errorf("addresses of %v only", seen)
	}
	_, admin, err := k.api.Clients()
	must(t, err)
	// An address of a dead node is freed by the groups that may, and by nobody else. Dry runs: these have pods.
	trial := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	name := list.Items[0].GetName()
	must(t, admin.Resource(tenancy.AddressResource).Delete(ctx, name, trial))
	editor := rest.CopyConfig(k.api.Config)
	editor.Impersonate = rest.ImpersonationConfig{UserName: "freer", Groups: []string{"freers"}}
	must(t, k.grantAll(ctx, "freers"))
	others, err := dynamic.NewForConfig(editor)
	must(t, err)
	denied(t, "somebody of no such group freeing an address", func() error {
		return others.Resource(tenancy.AddressResource).Delete(ctx, name, trial)
	})
	denied(t, "an administrator silencing a node", func() error {
		return admin.Resource(tenancy.NodeResource).Delete(ctx, "node2", trial)
	})
	denied(t, "an administrator publishing an address", func() error {
		_, err := admin.Resource(tenancy.AddressResource).Create(ctx, object("by-hand", "node1", "namespace/team-a"), metav1.CreateOptions{})
		return err
	})
}

func (k *onKubernetes) admissionOfNodes(t *testing.T) {
	ctx := context.Background()
	one, err := dynamic.NewForConfig(k.as(t, "node1"))
	must(t, err)
	nodes := one.Resource(tenancy.NodeResource)
	spec := func(node string) map[string]any {
		return map[string]any{"node": node, "heartbeat": time.Now().UTC().Format(time.RFC3339), "barrier": int64(0)}
	}
	for what, object := range map[string]*unstructured.Unstructured{
		"an agent speaking for another node":                published("RailNode", "node3", spec("node3")),
		"an agent speaking under another name than its own": published("RailNode", "node3", spec("node1")),
	} {
		denied(t, what, func() error {
			_, err := nodes.Create(ctx, object, metav1.CreateOptions{})
			return err
		})
	}
	two, err := nodes.Get(ctx, "node2", metav1.GetOptions{})
	must(t, err)
	denied(t, "an agent silencing another node", func() error { return nodes.Delete(ctx, "node2", metav1.DeleteOptions{}) })
	two.Object["spec"] = spec("node2")
	denied(t, "an agent acknowledging for another node", func() error {
		_, err := nodes.Update(ctx, two, metav1.UpdateOptions{})
		return err
	})
}

func (k *onKubernetes) admissionOfConditions(t *testing.T) {
	ctx := context.Background()
	one, err := kubernetes.NewForConfig(k.as(t, "node1"))
	must(t, err)
	patch := func(node, text string) func() error {
		return func() error {
			_, err := one.CoreV1().Nodes().PatchStatus(ctx, node, []byte(text))
			return err
		}
	}
	// What a kubelet writes: it is to stand in the way of no condition.
	admin, _, err := k.api.Clients()
	must(t, err)
	for _, node := range []string{"node1", "node2"} {
		_, err := admin.CoreV1().Nodes().PatchStatus(ctx, node, []byte(`{"status":{"capacity":{"cpu":"8","memory":"16Gi"},"allocatable":{"cpu":"7500m","memory":"15Gi"},
			"addresses":[{"type":"InternalIP","address":"192.0.2.9"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},
			"nodeInfo":{"kubeletVersion":"v1.36.3","architecture":"amd64"},"images":[{"names":["example.com/a:1"],"sizeBytes":1000}],
			"volumesInUse":["v"],"runtimeHandlers":[{"name":"runc","features":{"userNamespaces":true}}],"features":{"supplementalGroupsPolicy":false},
			"conditions":[{"type":"Ready","status":"True"}]}}`))
		must(t, err)
	}
	condition := func(kind, status string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, kind, status)
	}
	denied(t, "an agent calling another node ready", patch("node2", condition(agent.NodeCondition, "True")))
	denied(t, "an agent calling another node not ready", patch("node2", condition(agent.NodeCondition, "False")))
	denied(t, "an agent writing the kubelet's condition", patch("node1", condition("Ready", "False")))
	denied(t, "an agent writing its node's capacity", patch("node1", `{"status":{"capacity":{"nvidia.com/gpu":"99"}}}`))
	denied(t, "an agent labelling its node", patch("node1", `{"metadata":{"labels":{"a":"b"}}}`))
	unknown := fmt.Sprintf(`"conditions":[{"type":%q,"status":"Unknown"}]`, agent.NodeCondition)
	for what, text := range map[string]string{
		"an owner":            `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"none"}]},"status":{` + unknown + `}}`,
		"a finalizer":         `{"metadata":{"finalizers":["example.com/none"]},"status":{` + unknown + `}}`,
		"volumes":             `{"status":{"volumesInUse":["none"],` + unknown + `}}`,
		"another kubelet":     `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10255}},` + unknown + `}}`,
		"another version":     `{"status":{"nodeInfo":{"kubeletVersion":"v0"},` + unknown + `}}`,
		"images it lacks":     `{"status":{"images":[{"names":["none"]}],` + unknown + `}}`,
		"features it lacks":   `{"status":{"features":{"supplementalGroupsPolicy":true},` + unknown + `}}`,
		"an address it lacks": `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}],` + unknown + `}}`,
	} {
		denied(t, "an agent giving its node "+what, patch("node1", text))
		denied(t, "an agent giving another node "+what, patch("node2", text))
	}
	must(t, patch("node1", condition(agent.NodeCondition, "Unknown"))()) // which its agent puts right within a minute
	must(t, patch("node2", condition(agent.NodeCondition, "Unknown"))()) // as one does whose agent fell silent
}

func (k *onKubernetes) admissionOfLabels(t *testing.T) {
	ctx := context.Background()
	// Somebody who may change Namespaces but is in none of the groups that may set tenants.
	editor := rest.CopyConfig(k.api.Config)
	editor.Impersonate = rest.ImpersonationConfig{UserName: "editor", Groups: []string{"editors"}}
	must(t, k.grantAll(ctx, "editors"))
	core, err := kubernetes.NewForConfig(editor)
	must(t, err)
	for namespace, label := range map[string]string{"team-a": "blue", "team-b2": ""} {
		denied(t, "an editor of Namespaces choosing a tenant", func() error {
			found, err := core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
			must(t, err)
			found.Labels[kube.TenantLabel] = label
			if label == "" {
				delete(found.Labels, kube.TenantLabel)
			}
			_, err = core.CoreV1().Namespaces().Update(ctx, found, metav1.UpdateOptions{})
			return err
		})
	}
}

// health looks at the Node's condition through the ends of its agent: in order, and without a word.
func (k *onKubernetes) health(t *testing.T) {
	core, _, err := k.api.Clients()
	must(t, err)
	await := func(status corev1.ConditionStatus, reason string) {
		t.Helper()
		var last corev1.NodeCondition
		for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			node, err := core.CoreV1().Nodes().Get(context.Background(), "node1", metav1.GetOptions{})
			must(t, err)
			for _, condition := range node.Status.Conditions {
				if condition.Type == agent.NodeCondition {
					last = condition
				}
			}
			if last.Status == status && last.Reason == reason {
				return
			}
		}
		t.Errorf("the condition is %+v, want %s %s", last, status, reason)
	}
	await(corev1.ConditionTrue, "RailsReady")
	must(t, k.Agents[0].Stop())
	await(corev1.ConditionUnknown, "AgentStopped")
	must(t, k.Agents[0].Start())
	await(corev1.ConditionTrue, "RailsReady")
	must(t, k.Agents[0].Kill())
	await(corev1.ConditionUnknown, "AgentSilent") // node2's agent says so
	must(t, k.Agents[0].Start())
	await(corev1.ConditionTrue, "RailsReady")
}

// as is the API as an agent sees it, from this process.
func (k *onKubernetes) as(t *testing.T, node string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", k.api.Kubeconfigs[node])
	must(t, err)
	config.Dial = k.api.Config.Dial
	return config
}

func (k *onKubernetes) grantAll(ctx context.Context, group string) error {
	_, objects, err := k.api.Clients()
	if err != nil {
		return err
	}
	bindings := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
	_, err = objects.Resource(bindings).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": group},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}}}}, metav1.CreateOptions{})
	return err
}

// denied checks that the API refuses something, by an admission policy and not by chance.
func denied(t *testing.T, what string, try func() error) {
	t.Helper()
	err := try()
	if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		t.Errorf("%s: want a refusal by admission policy, have %v", what, err)
	}
}

// refused checks that the API refuses something by the schema.
func refused(t *testing.T, what, because string, try func() error) {
	t.Helper()
	if err := try(); err == nil || !strings.Contains(err.Error(), because) {
		t.Errorf("%s: want a refusal that names %q, have %v", what, because, err)
	}
}
