package testnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
)

// AgentOptions are what differs between the agents of one test network and another's.
type AgentOptions struct {
	Program string // railweave-node
	// Kubeconfig makes the agent take tenants and pods from a Kubernetes API; without it they come from TenancyDir.
	Kubeconfig string
}

// Agent is a node's railweave-node.
type Agent struct {
	node    *Node
	network *Network
	options AgentOptions

	mu      sync.Mutex
	process *os.Process
	ended   chan struct{}
}

// dir holds the agent's node file, socket, state and log.
func (a *Agent) dir() string { return filepath.Join(a.node.Dir, "agent") }

// Socket is the agent's gRPC socket.
func (a *Agent) Socket() string { return filepath.Join(a.dir(), "run", "node.sock") }

// StateDir holds the agent's store and tombstones.
func (a *Agent) StateDir() string { return filepath.Join(a.dir(), "state") }

// ConfigFile is the agent's node file.
func (a *Agent) ConfigFile() string { return filepath.Join(a.dir(), "node.json") }

// Log is the agent's log file; it is appended to over restarts.
func (a *Agent) Log() string { return filepath.Join(a.dir(), "agent.log") }

// TenancyDir is the directory all agents of the network share when there is no Kubernetes.
func (n *Network) TenancyDir() string { return filepath.Join(n.Dir, "tenancy") }

// SetTenants replaces the list of Namespaces: Namespace to tenant, "" for the Namespace's own name.
func (n *Network) SetTenants(tenants map[string]string) error {
	type namespace struct {
		Tenant string `json:"tenant"`
	}
	list := map[string]namespace{}
	for name, tenant := range tenants {
		list[name] = namespace{Tenant: tenant}
	}
	text, err := json.MarshalIndent(map[string]any{"namespaces": list}, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(n.TenancyDir(), "namespaces.json")
	if err := writeFile(file+".new", string(text)); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// NewAgent writes the node file of a node's agent, without starting it.
func (n *Network) NewAgent(node *Node, options AgentOptions) (*Agent, error) {
	a := &Agent{node: node, network: n, options: options}
	for _, dir := range []string{a.dir(), a.StateDir(), filepath.Join(n.TenancyDir(), "nodes")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	text, err := json.MarshalIndent(a.nodeFile(), "", "  ")
	if err != nil {
		return nil, err
	}
	return a, writeFile(a.ConfigFile(), string(text))
}

func (a *Agent) nodeFile() map[string]any {
	tenancy := map[string]any{"source": "directory", "directory": a.network.TenancyDir()}
	if a.options.Kubeconfig != "" {
		tenancy = map[string]any{"source": "kubernetes"}
	}
	var rails []any
	for rail := range a.network.Config.Rails {
		rails = append(rails, a.railConfig(rail))
	}
	return map[string]any{
		"apiVersion": "railweave.io/v1", "kind": "NodeConfig",
		"node": a.node.Name, "asn": NodeASN(a.node.Index),
		"routerID": netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + a.node.Index)}).String(),
		"socket":   a.Socket(), "stateDir": a.StateDir(),
		"ovs": map[string]any{"runDir": a.node.OVS.RunDir(), "datapathType": "netdev"},
		"frr": map[string]any{"pathspace": a.node.FRR.Pathspace(), "runDir": frrRunDir, "confDir": frrConfigDir,
			"binDir": FRRDaemonDir, "bfd": a.network.Config.BFD},
		"tenancy": tenancy, "metricsListen": "127.0.0.1:9477", "reconcileSeconds": 5, "rails": rails,
	}
}

func (a *Agent) railConfig(rail int) map[string]any {
	pool4, pool6 := Pool(rail)
	gateway4, gateway6 := Gateway(rail)
	config := map[string]any{
		"name": Rail(rail), "bridge": Bridge(rail), "uplink": Uplink(rail), "mtu": RailMTU,
		"pools": []any{
			map[string]any{"prefix": pool4.String(), "gateway": gateway4.String()},
			map[string]any{"prefix": pool6.String(), "gateway": gateway6.String()},
		},
		"peer": map[string]any{"unnumbered": true, "asn": LeafASN(rail)},
	}
	if a.network.Config.Peering == Numbered {
		link := NodeLink(rail, a.node.Index)
		config["addresses"] = []string{link.Node4.String(), link.Node6.String()}
		config["peer"] = map[string]any{"asn": LeafASN(rail),
			"addresses": []string{link.Leaf4.Addr().String(), link.Leaf6.Addr().String()}}
	}
	return config
}

// Start starts the agent; it does not wait until it is ready.
func (a *Agent) Start() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	log, err := os.OpenFile(a.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := a.node.NS.Command(a.options.Program, "serve", "--config", a.ConfigFile())
	cmd.Env = append(os.Environ(), a.node.OVS.Environment()...)
	if a.options.Kubeconfig != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+a.options.Kubeconfig)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start agent of %s: %w", a.node.Name, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	a.process, a.ended = cmd.Process, ended
	return nil
}

// Running reports whether the agent's process is there.
func (a *Agent) Running() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.process == nil {
		return false
	}
	select {
	case <-a.ended:
		return false
	default:
		return true
	}
}

// Kill ends the agent without notice.
func (a *Agent) Kill() error { return a.signal(syscall.SIGKILL) }

// Stop ends the agent in order.
func (a *Agent) Stop() error { return a.signal(syscall.SIGTERM) }

func (a *Agent) signal(sig os.Signal) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.process == nil {
		return nil
	}
	if err := a.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-a.ended:
		a.process = nil
		return nil
	case <-time.After(answerLimit):
		return fmt.Errorf("agent of %s did not end within %v of signal %v", a.node.Name, answerLimit, sig)
	}
}

// Client connects to the agent; the connection is made when it is first used.
func (a *Agent) Client() (nodev1.NodeClient, *grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+a.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return nodev1.NewNodeClient(conn), conn, nil
}

// WaitReady waits until the agent says that it can serve every rail.
func (a *Agent) WaitReady(limit time.Duration) error {
	client, conn, err := a.Client()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var last error
	ok := waitUntil(limit, 50*time.Millisecond, func() bool {
		for rail := range a.network.Config.Rails {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			_, last = client.Status(ctx, &nodev1.StatusRequest{Rail: Rail(rail)})
			cancel()
			if last != nil {
				conn.ResetConnectBackoff()
				return false
			}
		}
		return true
	})
	if !ok {
		return fmt.Errorf("agent of %s not ready within %v: %w (log: %s)", a.node.Name, limit, last, a.Log())
	}
	return nil
}
