// Package kube runs a real Kubernetes API server (with etcd, without controllers) on the management network of a test
// network, and puts the Helm chart's objects into it, so that agents work with the roles and admission policies they
// have in a cluster.
package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

const (
	port = 6443
	// adminToken is the token of system:masters; the server is reachable inside the test network only.
	adminToken = "admin"
	// AgentNamespace is where the chart is installed.
	AgentNamespace = "railweave"
	agentAccount   = "railweave-node"
)

// API is a running API server.
type API struct {
	ns     testnet.Namespace
	dir    string
	bin    string
	server *os.Process
	Config *rest.Config // as administrator, from this process
}

// Start starts etcd and the API server in the management namespace of a network; both end with the network.
func Start(network *testnet.Network, bin string) (*API, error) {
	a := &API{ns: network.Management, dir: filepath.Join(network.Dir, "kubernetes"), bin: bin}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, err
	}
	if err := a.writeSecrets(); err != nil {
		return nil, err
	}
	if _, err := a.launch("etcd", "--data-dir", filepath.Join(a.dir, "etcd"), "--listen-client-urls", "http://127.0.0.1:2379",
		"--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380"); err != nil {
		return nil, err
	}
	a.Config = &rest.Config{Host: fmt.Sprintf("https://%s:%d", host(), port), BearerToken: adminToken, QPS: 200, Burst: 400,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Dial: a.dial}
	return a, a.StartServer()
}

func host() string { return testnet.ManagementGateway().Addr().String() }

// StartServer starts the API server, also again after StopServer; what it had is in etcd.
func (a *API) StartServer() error {
	key := filepath.Join(a.dir, "sa.key")
	var err error
	a.server, err = a.launch(filepath.Join(a.bin, "kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address="+host(), "--advertise-address="+host(), fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+a.dir,
		"--authorization-mode=RBAC", "--token-auth-file="+filepath.Join(a.dir, "tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key, "--service-cluster-ip-range=10.96.0.0/16",
		// Its tokens are made by a controller that is not here.
		"--disable-admission-plugins=ServiceAccount", "--allow-privileged=true")
	if err != nil {
		return err
	}
	return a.waitReady(60 * time.Second)
}

// StopServer ends the API server without notice.
func (a *API) StopServer() error { return a.server.Kill() }

// dial connects from inside the management namespace, where the server is.
func (a *API) dial(_ context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := a.ns.Do(func() error {
		var err error
		conn, err = net.Dial(network, address)
		return err
	})
	return conn, err
}

func (a *API) writeSecrets() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(filepath.Join(a.dir, "sa.key"), text, 0o600); err != nil {
		return err
	}
	users := adminToken + ",admin,admin,system:masters\n"
	return os.WriteFile(filepath.Join(a.dir, "tokens.csv"), []byte(users), 0o600)
}

// launch starts a program in the namespace with a log file of its name.
func (a *API) launch(program string, args ...string) (*os.Process, error) {
	log, err := os.Create(filepath.Join(a.dir, filepath.Base(program)+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := a.ns.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() { _ = cmd.Wait() }()
	return cmd.Process, nil
}

func (a *API) waitReady(limit time.Duration) error {
	client, err := kubernetes.NewForConfig(a.Config)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(limit)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("API server not ready within %v (logs in %s): %w", limit, a.dir, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// Clients returns a typed and an untyped client of the administrator.
func (a *API) Clients() (kubernetes.Interface, dynamic.Interface, error) {
	core, err := kubernetes.NewForConfig(a.Config)
	if err != nil {
		return nil, nil, err
	}
	objects, err := dynamic.NewForConfig(a.Config)
	return core, objects, err
}

// AgentKubeconfig writes a kubeconfig with the token that a DaemonSet's pod on the node would have: the API server puts
// the node's name into it, and the admission policies judge by that.
func (a *API) AgentKubeconfig(ctx context.Context, node string) (string, error) {
	core, _, err := a.Clients()
	if err != nil {
		return "", err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: agentAccount + "-" + node, Namespace: AgentNamespace},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: agentAccount,
			Containers: []corev1.Container{{Name: "agent", Image: "none"}}}}
	pod, err = core.CoreV1().Pods(AgentNamespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	day := int64(24 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day,
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}}}
	token, err := core.CoreV1().ServiceAccounts(AgentNamespace).CreateToken(ctx, agentAccount, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return a.writeKubeconfig(node, token.Status.Token)
}

// AdminKubeconfig writes a kubeconfig of the administrator, for programs in the test network.
func (a *API) AdminKubeconfig() (string, error) { return a.writeKubeconfig("admin", adminToken) }

func (a *API) writeKubeconfig(name, token string) (string, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: a.Config.Host, InsecureSkipTLSVerify: true}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: name}
	config.CurrentContext = "test"
	file := filepath.Join(a.dir, name+".kubeconfig")
	return file, clientcmd.WriteToFile(*config, file)
}

// helm renders the chart as a cluster of the API server's version would get it.
func (a *API) helm(chart string) ([]byte, error) {
	cmd := exec.Command(filepath.Join(a.bin, "helm"), "template", "railweave", chart, "--namespace", AgentNamespace, "--include-crds",
		"--kube-version", "v1.36.3", "--set", "metrics.podMonitor=false")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("helm template %s: %w", chart, err)
	}
	return out, nil
}
