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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/kube"
	"github.com/railweave/railweave/cni/e2e/plugins"
	"github.com/railweave/railweave/cni/e2e/probe"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

var (
	railAddresses = schema.GroupVersionResource{Group: "railweave.io", Version: "v1", Resource: "railaddresses"}
	attachments   = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
	definitions   = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// onKubernetes is a cluster whose agents, and Multus, work with a real API server.
type onKubernetes struct {
	*cluster.Cluster
	api     *kube.API
	configs map[string]string // of the agents, by node
}

func startKubernetes(t *testing.T) *onKubernetes {
	t.Helper()
	bin, err := plugins.BuildKubernetes()
	must(t, err)
	root, err := plugins.ModuleDir()
	must(t, err)
	k := &onKubernetes{configs: map[string]string{}}
	ctx := context.Background()
	prepare := func(network *testnet.Network) error {
		var err error
		if k.api, err = kube.Start(network, bin); err != nil {
			return err
		}
		if err := k.api.Install(ctx, filepath.Join(root, "deploy", "chart")); err != nil {
			return err
		}
		for namespace, tenant := range tenants {
			if err := k.api.CreateNamespace(ctx, namespace, tenant); err != nil {
				return err
			}
		}
		return nil
	}
	k.Cluster = start(t, cluster.Options{Kubeconfig: func(network *testnet.Network, node *testnet.Node) (string, error) {
		if k.api == nil {
			if err := prepare(network); err != nil {
				return "", err
			}
		}
		if err := k.api.CreateNode(ctx, node.Name); err != nil {
			return "", err
		}
		file, err := k.api.AgentKubeconfig(ctx, node.Name)
		k.configs[node.Name] = file
		return file, err
	}})
	return k
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
	for _, namespace := range []string{"team-a", "team-b", "team-b2", "team-c"} {
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
	t.Run("a pod the API does not know", func(t *testing.T) {
		pod, err := k.Runtimes[0].NewPod("team-a", "pod-1")
		must(t, err)
		_, err = k.Runtimes[0].Attach(pod, 0) // the name of a pod there is, with another UID
		wantCode(t, err, codeUnknownPod)
		must(t, k.Runtimes[0].Remove(pod))
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
				want[addr.String()] = pod.Node.Name + " " + pod.Namespace
			}
		}
	}
	_, objects, err := k.api.Clients()
	must(t, err)
	var got map[string]string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		list, err := objects.Resource(railAddresses).List(context.Background(), metav1.ListOptions{})
		must(t, err)
		got = map[string]string{}
		for _, item := range list.Items {
			spec := item.Object["spec"].(map[string]any)
			got[spec["address"].(string)] = fmt.Sprint(spec["node"], " ", spec["namespace"])
		}
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
	}
	t.Errorf("RailAddresses are %v\nwant %v", got, want)
}

// relabel moves a Namespace to another tenant by its label.
func (k *onKubernetes) relabel(t *testing.T, f *field) {
	must(t, k.api.SetTenant(context.Background(), "team-c", "blue"))
	cmd := k.Network.Nodes[0].NS.Command("env", "KUBECONFIG="+k.configs["node1"], filepath.Join(k.Bin, "railweave-node"), "tenancy",
		"--config", k.Agents[0].ConfigFile(), "--namespace", "team-c", "--wait", "60s")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tenant not in force: %v: %s", err, text)
	}
	for e, tenant := range f.tenant {
		if tenant == "team-c" {
			f.tenant[e] = "blue"
		}
	}
	s := f.session(t)
	before := f.overflow(t)
	must(t, s.Matrix(probe.Kinds, f.ends, f.ends, probe.Burst))
	f.verdict(t, s, before)
}

// admission tries what no agent and no ordinary administrator may do.
func (k *onKubernetes) admission(t *testing.T) {
	ctx := context.Background()
	object := func(name, node string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "railweave.io/v1", "kind": "RailAddress",
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"address": "10.100.9.9", "node": node, "rail": "rail0",
				"namespace": "team-a", "tenant": "team-a", "generation": int64(1)}}}
	}
	agent, err := dynamic.NewForConfig(k.as(t, "node1"))
	must(t, err)
	denied(t, "an agent publishing for another node", func() error {
		_, err := agent.Resource(railAddresses).Create(ctx, object("forged", "node2"), metav1.CreateOptions{})
		return err
	})
	list, err := agent.Resource(railAddresses).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, item := range list.Items {
		if item.Object["spec"].(map[string]any)["node"] == "node2" {
			denied(t, "an agent deleting another node's address", func() error {
				return agent.Resource(railAddresses).Delete(ctx, item.GetName(), metav1.DeleteOptions{})
			})
			break
		}
	}
	_, admin, err := k.api.Clients()
	must(t, err)
	denied(t, "an administrator publishing an address", func() error {
		_, err := admin.Resource(railAddresses).Create(ctx, object("by-hand", "node1"), metav1.CreateOptions{})
		return err
	})
	// Somebody who may change Namespaces but is in none of the groups that may set tenants.
	editor := rest.CopyConfig(k.api.Config)
	editor.Impersonate = rest.ImpersonationConfig{UserName: "editor", Groups: []string{"editors"}}
	must(t, k.grantNamespaces(ctx, "editors"))
	core, err := kubernetes.NewForConfig(editor)
	must(t, err)
	denied(t, "an editor of Namespaces choosing a tenant", func() error {
		namespace, err := core.CoreV1().Namespaces().Get(ctx, "team-a", metav1.GetOptions{})
		must(t, err)
		namespace.Labels[kube.TenantLabel] = "blue"
		_, err = core.CoreV1().Namespaces().Update(ctx, namespace, metav1.UpdateOptions{})
		return err
	})
}

// as is the API as an agent sees it, from this process.
func (k *onKubernetes) as(t *testing.T, node string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", k.configs[node])
	must(t, err)
	config.Dial = k.api.Config.Dial
	return config
}

func (k *onKubernetes) grantNamespaces(ctx context.Context, group string) error {
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
