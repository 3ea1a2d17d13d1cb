package kube

import (
	"context"
	"path/filepath"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/plugins"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// ControlPlane is the API server of a cluster, with the chart's objects, the cluster's Namespaces and its nodes.
type ControlPlane struct {
	*API                          // nil before the cluster's network is up
	Kubeconfigs map[string]string // of the agents, by node
	bin, chart  string
	namespaces  map[string]string
}

// Prepare builds the API server and has the cluster that will be started with the options use it: its agents get the credentials
// that the chart gives them, and its Namespaces are those of options.Tenants.
func Prepare(options *cluster.Options) (*ControlPlane, error) {
	bin, err := plugins.BuildKubernetes()
	if err != nil {
		return nil, err
	}
	root, err := plugins.ModuleDir()
	if err != nil {
		return nil, err
	}
	p := &ControlPlane{Kubeconfigs: map[string]string{}, bin: bin, chart: filepath.Join(root, "deploy", "chart"), namespaces: options.Tenants}
	options.Kubeconfig = p.join
	return p, nil
}

// join makes a node of the cluster known, the first one after the API server was started, and returns its agent's kubeconfig.
func (p *ControlPlane) join(network *testnet.Network, node *testnet.Node) (string, error) {
	ctx := context.Background()
	if p.API == nil {
		if err := p.start(ctx, network); err != nil {
			return "", err
		}
	}
	if err := p.CreateNode(ctx, node.Name); err != nil {
		return "", err
	}
	file, err := p.AgentKubeconfig(ctx, node.Name)
	p.Kubeconfigs[node.Name] = file
	return file, err
}

func (p *ControlPlane) start(ctx context.Context, network *testnet.Network) error {
	var err error
	if p.API, err = Start(network, p.bin); err != nil {
		return err
	}
	if err := p.Install(ctx, p.chart); err != nil {
		return err
	}
	for namespace, tenant := range p.namespaces {
		if err := p.CreateNamespace(ctx, namespace, tenant); err != nil {
			return err
		}
	}
	return nil
}
