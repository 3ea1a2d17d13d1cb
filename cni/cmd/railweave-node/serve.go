package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/railweave/railweave/cni/internal/agent"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/nodeconfig"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/preflight"
	"github.com/railweave/railweave/cni/internal/tenancy"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

// flags of every command that needs the node file.
func parseFlags(name string, args []string, more func(*flag.FlagSet)) (*nodeconfig.Config, error) {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	path := set.String("config", "/etc/railweave/node.yaml", "the node file")
	if more != nil {
		more(set)
	}
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if err := noArguments(set); err != nil {
		return nil, err
	}
	return nodeconfig.Load(*path)
}

func noArguments(set *flag.FlagSet) error {
	if set.NArg() > 0 {
		return fmt.Errorf("%s: unexpected argument %q", set.Name(), set.Arg(0))
	}
	return nil
}

func renderFRR(_ context.Context, args []string) error {
	config, err := parseFlags("render-frr", args, nil)
	if err != nil {
		return err
	}
	_, err = fmt.Print(frr.Render(config))
	return err
}

// databaseWait: the database often starts beside the agent.
const databaseWait = 500 * time.Millisecond

// openDatabase waits for the database until the context ends; then it returns nil.
func openDatabase(ctx context.Context, runDir string, log *slog.Logger) *vswitch.Database {
	said := false
	for {
		database, err := vswitch.OpenDatabase(ctx, runDir)
		if err == nil {
			return database
		}
		if !said {
			log.Warn("waiting for the Open vSwitch database", "error", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(databaseWait):
		}
	}
}

var errNoDatabase = errors.New("the agent waits for the Open vSwitch database: see whether ovsdb-server runs")

func serve(ctx context.Context, args []string) error {
	verbose := false
	config, err := parseFlags("serve", args, func(set *flag.FlagSet) { set.BoolVar(&verbose, "verbose", false, "log at debug level") })
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("node", config.Node)
	boot, err := podnet.BootID()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// First of all: whether the agent is alive is asked while it waits for the database, too.
	var served atomic.Pointer[agent.Agent] // nil: there is none yet
	web, err := serveWeb(config, func(ctx context.Context) error {
		if node := served.Load(); node != nil {
			return node.Serving(ctx)
		}
		return errNoDatabase
	}, registry)
	if err != nil {
		return err
	}
	defer func() { _ = web.Close() }() // the process ends
	database := openDatabase(ctx, config.OVS.RunDir, log)
	if database == nil {
		return nil // asked to end before there was a database
	}
	defer database.Close()
	// What the agent lives on goes on for a moment when it is asked to end: requests under way need it.
	asked := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(asked))
	defer cancel()
	source, recorder, finish, err := openTenancy(ctx, config, log)
	if err != nil {
		return err
	}
	defer func() { cancel(); finish() }()
	node := agent.New(agent.Surroundings{
		Config: config, Database: database, Switch: vswitch.NewSwitch(config.OVS.RunDir), Routing: frr.New(config), Kernel: agent.Host{}, Pods: agent.NewNamespaces(),
		Source: source, Recorder: recorder, Preflight: func(ctx context.Context) []preflight.Finding {
			return preflight.Judge(config, preflight.Gather(ctx, config))
		}, Metrics: agent.NewMetrics(registry), Log: log, BootID: boot, Now: time.Now,
	})
	listener, err := agent.Listen(config.Socket)
	if err != nil {
		return err
	}
	server := agent.NewServer(node)
	failed, ended := make(chan error, 1), make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	served.Store(node)
	go func() { ended <- node.Run(ctx) }()
	select {
	case <-asked.Done():
		stopServing(server)
		cancel()
		return <-ended
	case err := <-ended:
		stopServing(server)
		return err
	case err := <-failed:
		cancel()
		return cmp.Or(err, <-ended)
	}
}

// stopTime: what an ADD or a DEL waits for takes milliseconds. The chart gives the agent 10 s to end, of which it needs some for
// the Node's condition.
const stopTime = 5 * time.Second

// stopServing lets requests under way finish, while the agent still works for them.
func stopServing(server *grpc.Server) {
	late := time.AfterFunc(stopTime, server.Stop)
	defer late.Stop()
	server.GracefulStop()
}

// readyPeriod: a probe asks every few seconds. Every answer costs questions to ovsdb-server and ovs-vswitchd, whose control socket
// has a short queue, and the port is open to all who reach the node.
const readyPeriod = time.Second

// readyTime: longer than any of the questions takes that an answer is made of.
const readyTime = 10 * time.Second

// readyLimit: the questions take milliseconds, and a kubelet's probe waits for a second.
const readyLimit = 800 * time.Millisecond

// question is one that is under way, or was answered.
type question struct {
	began, ended time.Time
	answer       error
	done         chan struct{} // closed once there is an answer
}

func (q *question) answered() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// hangs says what is known meanwhile.
func (q *question) hangs(before *question) error {
	said := "nothing was answered yet"
	if before != nil {
		said = fmt.Sprintf("%v ago it was: %v", time.Since(before.ended).Round(time.Millisecond), cmp.Or(before.answer, errors.New("ready")))
	}
	return fmt.Errorf("no answer for %v, see whether ovsdb-server and ovs-vswitchd hang; %s", time.Since(q.began).Round(time.Millisecond), said)
}

// remembered asks no more often than each readyPeriod, and one question at a time, for whose answer all wait who ask meanwhile. Those of
// a question that hangs are told so, not what was said before it: that may no longer hold.
func remembered(ask func(context.Context) error) func(context.Context) error {
	var mutex sync.Mutex
	var before, last *question
	return func(ctx context.Context) error {
		mutex.Lock()
		if last == nil || last.answered() && time.Since(last.ended) >= readyPeriod {
			next := &question{began: time.Now(), done: make(chan struct{})}
			before, last = last, next
			go func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTime) // not who asked alone hears it
				defer cancel()
				next.answer = ask(ctx)
				next.ended = time.Now()
				close(next.done)
			}()
		}
		asked, earlier := last, before
		mutex.Unlock()
		late := time.NewTimer(time.Until(asked.began.Add(readyLimit)))
		defer late.Stop()
		select {
		case <-asked.done:
		case <-late.C:
			if !asked.answered() {
				return asked.hangs(earlier)
			}
		}
		return asked.answer
	}
}

// serveWeb serves metrics and probes; asked for readiness it asks `serving`.
func serveWeb(config *nodeconfig.Config, serving func(context.Context) error, registry *prometheus.Registry) (*http.Server, error) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "alive") })
	serving = remembered(serving)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if problem := serving(r.Context()); problem != nil {
			http.Error(w, problem.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ready")
	})
	listener, err := net.Listen("tcp", config.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("metricsListen: %w", err)
	}
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = web.Serve(listener) }() // returns when closed
	return web, nil
}

// openTenancy returns the source, who says what happens to pods, and what waits for the source's last write once the context ended.
func openTenancy(ctx context.Context, config *nodeconfig.Config, log *slog.Logger) (tenancy.Source, agent.Recorder, func(), error) {
	if config.Tenancy.Source == "directory" {
		source, err := tenancy.OpenDirectory(ctx, config.Tenancy.Directory, config.Node)
		return source, agent.LogRecorder{Log: log}, func() {}, err
	}
	core, objects, err := clients()
	if err != nil {
		return nil, nil, nil, err
	}
	open := func(ctx context.Context) (tenancy.Source, error) {
		return tenancy.OpenKubernetes(ctx, core, objects, config.Node)
	}
	source := tenancy.Remember(ctx, config.StateDir, open, func(err error) { log.Warn("tenancy", "error", err) })
	return source, agent.NewKubeRecorder(ctx, core, config.Node), source.Wait, nil
}

// clients of the cluster: in a pod its own service account, else KUBECONFIG.
func clients() (kubernetes.Interface, dynamic.Interface, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("tenancy.source kubernetes: no cluster: %w", err)
	}
	// An ADD costs 4 requests: Namespace, pod, two addresses. 200 pods on 8 rails may start at once; the API server has its own
	// priority and fairness.
	config.QPS, config.Burst = 400, 6400
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	return core, objects, err
}

// inForcePoll: how often `tenancy --wait` looks again.
const inForcePoll = 50 * time.Millisecond

func tenancyCommand(ctx context.Context, args []string) error {
	namespace, wait := "", time.Duration(0)
	config, err := parseFlags("tenancy", args, func(set *flag.FlagSet) {
		set.StringVar(&namespace, "namespace", "", "the Namespace")
		set.DurationVar(&wait, "wait", 0, "how long to wait for it")
	})
	if err != nil {
		return err
	}
	read, err := tenancyReader(ctx, config)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(wait)
	for {
		view, err := read()
		if err != nil {
			return err
		}
		inForce, why := view.InForce(namespace, time.Now())
		if inForce {
			fmt.Println("in force:", why)
			return nil
		}
		if time.Now().After(deadline) {
			fmt.Println("not in force:", why)
			return exitError(3)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(inForcePoll):
		}
	}
}

func tenancyReader(ctx context.Context, config *nodeconfig.Config) (func() (tenancy.View, error), error) {
	if config.Tenancy.Source == "directory" {
		return func() (tenancy.View, error) { return tenancy.ReadDirectory(config.Tenancy.Directory) }, nil
	}
	core, objects, err := clients()
	if err != nil {
		return nil, err
	}
	source, err := tenancy.OpenKubernetes(ctx, core, objects, config.Node)
	if err != nil {
		return nil, err
	}
	return func() (tenancy.View, error) { return source.View(), nil }, nil
}
