package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/kernel"
	"github.com/railweave/railweave/cni/internal/nodeconfig"
	"github.com/railweave/railweave/cni/internal/store"
)

const previous = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"net1","mac":"0A:58:0a:40:00:05","sandbox":"/run/netns/p"}],
"ips":[{"address":"10.64.0.5/16","gateway":"10.64.0.1","interface":1},{"address":"fd64::5/64","interface":1}],"dns":{}},`

// configuration for a state directory; more goes in front.
func configuration(dir, more string) []byte {
	return []byte(`{"cniVersion":"1.1.0","name":"rail0","type":"railweave-ovs",` + more + `"railweave":{"rail":"rail0","socket":"` + dir + `/node.sock","stateDir":"` + dir + `","timeoutSeconds":5}}`)
}

func call(stdin []byte) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: "c1", Netns: "/run/netns/p", IfName: "net1", Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=pod;K8S_POD_UID=u", StdinData: stdin}
}

// agent answers what a test wants, and keeps what it was asked.
type agent struct {
	nodev1.UnimplementedNodeServer
	err   error
	asked proto.Message
}

func (a *agent) Attach(_ context.Context, r *nodev1.AttachRequest) (*nodev1.AttachResponse, error) {
	a.asked = r
	return &nodev1.AttachResponse{Routes: []*nodev1.Route{{Destination: "10.64.0.0/16", Gateway: "10.64.0.1"}}}, a.err
}

func (a *agent) Detach(_ context.Context, r *nodev1.DetachRequest) (*nodev1.DetachResponse, error) {
	a.asked = r
	return &nodev1.DetachResponse{}, a.err
}

func (a *agent) CheckAttachment(_ context.Context, r *nodev1.CheckAttachmentRequest) (*nodev1.CheckAttachmentResponse, error) {
	a.asked = r
	return &nodev1.CheckAttachmentResponse{}, a.err
}

func (a *agent) Announce(_ context.Context, r *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	a.asked = r
	return &nodev1.AnnounceResponse{}, a.err
}

func (a *agent) Withdraw(_ context.Context, r *nodev1.WithdrawRequest) (*nodev1.WithdrawResponse, error) {
	a.asked = r
	return &nodev1.WithdrawResponse{}, a.err
}

func (a *agent) CheckAnnouncement(_ context.Context, r *nodev1.CheckAnnouncementRequest) (*nodev1.CheckAnnouncementResponse, error) {
	a.asked = r
	return &nodev1.CheckAnnouncementResponse{}, a.err
}

func (a *agent) Collect(_ context.Context, r *nodev1.CollectRequest) (*nodev1.CollectResponse, error) {
	a.asked = r
	return &nodev1.CollectResponse{}, a.err
}

func (a *agent) Status(_ context.Context, r *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	a.asked = r
	return &nodev1.StatusResponse{}, a.err
}

// serve an agent in a directory of its own.
func serve(t *testing.T, a *agent) string {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "node.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	nodev1.RegisterNodeServer(server, a)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return dir
}

// printed runs a verb and returns what it wrote to stdout.
func printed(t *testing.T, verb func(*skel.CmdArgs) error, args *skel.CmdArgs) ([]byte, error) {
	t.Helper()
	stdout := os.Stdout
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = writer
	failed := verb(args)
	os.Stdout = stdout
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return text, failed
}

func codeOf(err error) uint {
	var known *types.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return 0
}

func TestAddPassesTheResultOn(t *testing.T) {
	a := &agent{}
	dir := serve(t, a)
	text, err := printed(t, OVS().Add, call(configuration(dir, previous+`"deviceID":"0000:03:00.2",`)))
	if err != nil {
		t.Fatal(err)
	}
	want := &nodev1.AttachRequest{
		Key: &nodev1.AttachmentKey{Network: "rail0", ContainerId: "c1", Interface: "net1"}, Rail: "rail0", Pod: &nodev1.Pod{Namespace: "team-a", Name: "pod", Uid: "u"},
		Netns: "/run/netns/p", Port: "veth1", Mac: "0a:58:0a:40:00:05", Addresses: []string{"10.64.0.5/16", "fd64::5/64"}, Gateways: []string{"10.64.0.1"}, Device: "0000:03:00.2",
	}
	if !proto.Equal(a.asked, want) {
		t.Errorf("asked %v", a.asked)
	}
	var result current.Result
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	if len(result.Interfaces) != 2 || len(result.IPs) != 2 || len(result.Routes) != 1 || result.Routes[0].Dst.String() != "10.64.0.0/16" {
		t.Errorf("%s", text)
	}
	text, err = printed(t, FRR().Add, call(configuration(dir, previous)))
	if err != nil {
		t.Fatal(err)
	}
	var unchanged current.Result
	if err := json.Unmarshal(text, &unchanged); err != nil || len(unchanged.Routes) != 0 || len(unchanged.IPs) != 2 {
		t.Errorf("%v: %s", err, text)
	}
}

// TestOlderVersions: results of the versions we promise come back in the same version.
func TestOlderVersions(t *testing.T) {
	dir := serve(t, &agent{})
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		stdin := strings.ReplaceAll(string(configuration(dir, previous)), "1.1.0", version)
		if strings.HasPrefix(version, "0.") {
			stdin = strings.NewReplacer(`{"address":"10.64.0.5/16"`, `{"version":"4","address":"10.64.0.5/16"`, `{"address":"fd64::5/64"`, `{"version":"6","address":"fd64::5/64"`).Replace(stdin)
		}
		text, err := printed(t, OVS().Add, call([]byte(stdin)))
		var result struct {
			CNIVersion string `json:"cniVersion"`
		}
		if err != nil || json.Unmarshal(text, &result) != nil || result.CNIVersion != version {
			t.Errorf("%s: %v: %s", version, err, text)
		}
	}
	supported := Versions().SupportedVersions()
	if strings.Join(supported, " ") != "0.3.0 0.3.1 0.4.0 1.0.0 1.1.0" {
		t.Errorf("%v", supported)
	}
}

// TestBadInput: what is wrong, the code, and a word its message must have.
func TestBadInput(t *testing.T) {
	dir := serve(t, &agent{})
	good := string(configuration(dir, previous))
	replace := func(old, new string) func(*skel.CmdArgs) {
		return func(args *skel.CmdArgs) { args.StdinData = []byte(strings.Replace(good, old, new, 1)) }
	}
	for _, test := range []struct {
		name   string
		change func(*skel.CmdArgs)
		code   uint
		says   string
	}{
		{"no JSON", replace("{", "["), 6, "JSON"},
		{"no railweave object", replace(`"railweave"`, `"railway"`), 7, "railweave"},
		{"an unknown key", replace(`"timeoutSeconds":5`, `"timeout":5`), 7, "timeout"},
		{"a key in other letters", replace(`"timeoutSeconds":5`, `"TimeoutSeconds":5`), 7, `"TimeoutSeconds"`},
		{"a key given twice", replace(`"timeoutSeconds":5`, `"timeoutSeconds":5,"rail":"rail1"`), 7, `"rail" is given twice`},
		{"a railweave object given twice", replace(`"railweave":`, `"railweave":{"rail":"rail1"},"railweave":`), 7, `"railweave" is given twice`},
		{"a railweave object in other letters beside it", replace(`"railweave":`, `"Railweave":{"rail":"rail1"},"railweave":`), 7, `"Railweave"`},
		{"railweave is no object", replace(`"railweave":`, `"railweave":["rail0"],"x":`), 7, "object"},
		{"no rail", replace(`"rail":"rail0"`, `"rail":""`), 7, "rail"},
		{"a relative socket", replace(`"socket":"/`, `"socket":"`), 7, "socket"},
		{"a timeout too long", replace(`"timeoutSeconds":5`, `"timeoutSeconds":5000`), 7, "timeoutSeconds"},
		{"no name", replace(`"name":"rail0","type"`, `"type"`), 7, "name"},
		{"no prevResult", replace(previous, ""), 7, "prevResult"},
		{"a null among prevResult's interfaces", replace(`{"name":"veth1"}`, `{"name":"veth1"},null`), 6, "interfaces"},
		{"a null among prevResult's addresses", replace(`"ips":[`, `"ips":[null,`), 6, "ips"},
		{"a null among prevResult's routes", replace(`"dns":{}`, `"routes":[null]`), 6, "routes"},
		{"prevResult of another interface", replace(`"name":"net1"`, `"name":"net2"`), 7, "net1"},
		{"two host interfaces", replace(`{"name":"veth1"}`, `{"name":"veth1"},{"name":"br"}`), 7, "two interfaces"},
		{"no host interface", replace(`{"name":"veth1"}`, `{"name":"veth1","sandbox":"/x"}`), 7, "switch port"},
		{"no MAC", replace(`"mac":"0A:58:0a:40:00:05",`, ``), 7, "MAC"},
		{"no addresses", replace(`"interface":1},{"address":"fd64::5/64","interface":1`, `"interface":0},{"address":"fd64::5/64","interface":0`), 7, "ipam"},
		{"a MAC asked for by annotation", replace(`"railweave"`, `"runtimeConfig":{"mac":"02:11:22:33:44:55"},"railweave"`), 103, "annotation"},
		{"a MAC asked for in args", replace(`"railweave"`, `"args":{"cni":{"mac":"02:11:22:33:44:55"}},"railweave"`), 103, "args.cni.mac"},
		{"a MAC asked for in CNI_ARGS", func(a *skel.CmdArgs) { a.Args += ";MAC=02:11:22:33:44:55" }, 103, "CNI_ARGS"},
		{"no pod", func(a *skel.CmdArgs) { a.Args = "IgnoreUnknown=1" }, 4, "K8S_POD_NAMESPACE"},
		{"CNI_ARGS malformed", func(a *skel.CmdArgs) { a.Args = "K8S_POD_NAMESPACE" }, 4, "KEY=VALUE"},
		{"CNI_ARGS contradicting", func(a *skel.CmdArgs) { a.Args += ";K8S_POD_NAMESPACE=team-b" }, 4, "twice"},
	} {
		args := call([]byte(good))
		test.change(args)
		text, err := printed(t, OVS().Add, args)
		if codeOf(err) != test.code || !strings.Contains(err.Error(), test.says) || len(text) != 0 {
			t.Errorf("%s: code %d (%v), want %d with %q; printed %q", test.name, codeOf(err), err, test.code, test.says, text)
		}
	}
	// As Multus writes them: its own keys beside ours, arguments repeated.
	args := call([]byte(strings.Replace(good, `"railweave"`, `"cdiID":"x","pciBusID":"y","unheard":{},"railweave"`, 1)))
	args.Args += ";IgnoreUnknown=true;K8S_POD_NAME=pod"
	if _, err := printed(t, OVS().Add, args); err != nil {
		t.Error(err)
	}
}

func TestErrorsKeepTheirReason(t *testing.T) {
	for number := range nodev1.Reason_name {
		reason := nodev1.Reason(number)
		if number == 0 {
			continue
		}
		dir := serve(t, &agent{err: failure.New(reason, "subject", "remedy", "problem").GRPCStatus().Err()})
		_, err := printed(t, OVS().Add, call(configuration(dir, previous)))
		if codeOf(err) != failure.Codes(reason).CNI || !strings.Contains(err.Error(), "remedy") {
			t.Errorf("%v: ADD answers %v", reason, err)
		}
		if err := OVS().Status(call(configuration(dir, ""))); codeOf(err) != failure.StatusCode(reason) {
			t.Errorf("%v: STATUS answers %v", reason, err)
		}
		if reason != nodev1.Reason_NOT_READY { // which DEL does without
			if err := OVS().Del(call(configuration(dir, ""))); codeOf(err) != failure.Codes(reason).CNI {
				t.Errorf("%v: DEL answers %v", reason, err)
			}
		}
	}
}

func TestWithoutAgent(t *testing.T) {
	dir := t.TempDir()
	for name, verb := range map[string]func(*skel.CmdArgs) error{"ADD": OVS().Add, "CHECK": FRR().Check, "GC": OVS().GC} {
		if _, err := printed(t, verb, call(configuration(dir, previous))); codeOf(err) != failure.CNITryAgain || !strings.Contains(err.Error(), "railweave-node") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := FRR().Status(call(configuration(dir, ""))); codeOf(err) != failure.CNIUnavailable {
		t.Errorf("STATUS: %v", err)
	}
}

// TestDeleteWithoutAgent: DEL succeeds once it is promised durably, with no prevResult; also while the agent starts.
func TestDeleteWithoutAgent(t *testing.T) {
	starting := serve(t, &agent{err: failure.New(nodev1.Reason_NOT_READY, "railweave-node", "", "starting").GRPCStatus().Err()})
	for name, dir := range map[string]string{"down": t.TempDir(), "starting": starting} {
		if err := errors.Join(FRR().Del(call(configuration(dir, ""))), OVS().Del(call(configuration(dir, "")))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		found, _, err := store.Tombstones(dir)
		if err != nil || len(found) != 2 || found[0].ContainerID != "c1" {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	// Neither store nor prevResult tells the address: success would leave its route behind.
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "store.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := FRR().Del(call(configuration(damaged, ""))); codeOf(err) != failure.CNIStore {
		t.Errorf("a damaged store: %v", err)
	}
}

// TestBuriedBeforeWithdrawn: an agent that starts would announce again what is withdrawn and not buried.
func TestBuriedBeforeWithdrawn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	namespace, err := testutils.NewNS()
	if err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(namespace.Close(), testutils.UnmountNS(namespace)); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	tombstones := filepath.Join(dir, "tombstones")
	if err := os.WriteFile(tombstones, nil, 0o600); err != nil { // a file, not a directory
		t.Fatal(err)
	}
	host := netip.MustParseAddr("10.64.0.5")
	err = namespace.Do(func(ns.NetNS) error {
		if err := kernel.Announce(host); err != nil {
			return err
		}
		if err := FRR().Del(call(configuration(dir, previous))); err == nil {
			t.Error("DEL succeeds, though it is not buried")
		}
		if present, err := kernel.Announcements(); err != nil || !present[host] {
			t.Errorf("withdrawn, though not buried: %v, %v", present, err)
		}
		if err := errors.Join(os.Remove(tombstones), FRR().Del(call(configuration(dir, previous)))); err != nil {
			return err
		}
		if present, err := kernel.Announcements(); err != nil || present[host] {
			t.Errorf("not withdrawn: %v, %v", present, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWhatToWithdrawWithoutAgent: by the store if there is one, else by prevResult; a late DEL of what the store no longer has
// must not take a newer pod's route away.
func TestWhatToWithdrawWithoutAgent(t *testing.T) {
	key := attachment.Key{Network: "rail0", ContainerID: "c1", Interface: "net1"}
	held := &attachment.Attachment{
		Key: key, Netns: "/run/netns/p", BootID: "b", Rail: "rail0", Port: "veth1", MAC: "0a:58:0a:40:00:05", Pod: attachment.Pod{Namespace: "team-a", Name: "pod"},
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.64.0.9/16")},
	}
	for _, test := range []struct {
		name     string
		state    *store.State
		previous string
		want     string
	}{
		{"the store has it", &store.State{BootID: "b", Attachments: []*attachment.Attachment{held}}, previous, "[10.64.0.9]"},
		{"the store no longer has it", &store.State{BootID: "b"}, previous, "[]"},
		{"no store", nil, previous, "[10.64.0.5 fd64::5]"},
		{"no store, no prevResult", nil, "", "[]"},
		{"no store, prevResult of another interface", nil, strings.ReplaceAll(previous, "net1", "net2"), "[]"},
	} {
		dir := t.TempDir()
		if test.state != nil {
			if err := store.Write(dir, test.state); err != nil {
				t.Fatal(err)
			}
		}
		for _, netns := range []string{"/run/netns/p", ""} { // which a runtime need not name: it may be gone
			args := call(configuration(dir, test.previous))
			args.Netns = netns
			config, err := parseForDelete(args.StdinData)
			if err != nil {
				t.Fatal(err)
			}
			hosts, err := config.announcedHosts(args, key)
			if err != nil || fmt.Sprint(hosts) != test.want {
				t.Errorf("%s, namespace %q: %v, %v, want %s", test.name, netns, hosts, err, test.want)
			}
		}
	}
}

// TestDeleteJudgesNoSettings: an ADD that was refused for its settings is undone by a DEL with the same ones. If that failed, the
// plugins before ours in the chain would never be asked to give port and address back.
func TestDeleteJudgesNoSettings(t *testing.T) {
	a := &agent{}
	dir := serve(t, a)
	good := string(configuration(dir, ""))
	for name, stdin := range map[string]string{
		"an unknown key":      strings.Replace(good, `"timeoutSeconds":5`, `"timeout":5`, 1),
		"no rail":             strings.Replace(good, `"rail":"rail0",`, ``, 1),
		"a rail of no name":   strings.Replace(good, `"rail":"rail0"`, `"rail":0`, 1),
		"a timeout too long":  strings.Replace(good, `"timeoutSeconds":5`, `"timeoutSeconds":5000`, 1),
		"a key given twice":   strings.Replace(good, `"timeoutSeconds":5`, `"timeoutSeconds":5,"rail":"rail1"`, 1),
		"a device of no name": strings.Replace(good, `"railweave"`, `"deviceID":7,"railweave"`, 1),
	} {
		if _, err := printed(t, OVS().Add, call([]byte(strings.Replace(stdin, `"railweave":`, previous+`"railweave":`, 1)))); err == nil {
			t.Errorf("%s: ADD succeeds", name)
		}
		for plugin, verbs := range map[string]skel.CNIFuncs{"ovs": OVS(), "frr": FRR()} {
			a.asked = nil
			if err := verbs.Del(call([]byte(stdin))); err != nil || a.asked == nil {
				t.Errorf("%s: DEL of railweave-%s answers %v and asks the agent %v", name, plugin, err, a.asked)
			}
		}
	}
	// Without a usable object the agent is where it is by default.
	for name, stdin := range map[string]string{
		"no railweave object":    `{"cniVersion":"1.1.0","name":"rail0"}`,
		"railweave is no object": `{"cniVersion":"1.1.0","name":"rail0","railweave":["rail0"]}`,
		"relative paths":         `{"cniVersion":"1.1.0","name":"rail0","railweave":{"rail":"rail0","socket":"s","stateDir":"d"}}`,
	} {
		config, err := parseForDelete([]byte(stdin))
		if err != nil || config.Settings.Socket != nodeconfig.DefaultSocket || config.Settings.StateDir != nodeconfig.DefaultStateDir {
			t.Errorf("%s: %v, %+v", name, err, config)
		}
	}
	for _, stdin := range []string{"{", `{"cniVersion":"1.1.0","railweave":{"rail":"rail0"}}`} {
		if _, err := parseForDelete([]byte(stdin)); codeOf(err) == 0 {
			t.Errorf("%s: %v", stdin, err)
		}
	}
}

// TestDeleteOfWhatNobodyCanAttach: Linux, the runtime and ovs-cni take names that the agent refuses, and a pod's annotation may ask for
// one. The DEL after the ADD that was refused must not be refused as well.
func TestDeleteOfWhatNobodyCanAttach(t *testing.T) {
	a := &agent{err: failure.New(nodev1.Reason_REQUEST_MALFORMED, "key", "", "no interface name").GRPCStatus().Err()}
	for where, dir := range map[string]string{"agent": serve(t, a), "no agent": t.TempDir()} {
		for _, name := range []string{"net\x01", "net\x7f", "\uFFFD", "net\xff"} {
			args := call(configuration(dir, previous))
			args.IfName = name
			if err := errors.Join(FRR().Del(args), OVS().Del(args)); err != nil {
				t.Errorf("%s, %q: %v", where, name, err)
			}
		}
		if waiting, damaged, err := store.Tombstones(dir); len(waiting) > 0 || damaged != nil || err != nil {
			t.Errorf("%s: tombstones %v, %v, %v", where, waiting, damaged, err)
		}
	}
}

func TestCollectListsWhatIsValid(t *testing.T) {
	a := &agent{}
	dir := serve(t, a)
	if err := OVS().GC(call(configuration(dir, `"cni.dev/valid-attachments":[{"containerID":"c9","ifname":"net1"}],`))); err != nil {
		t.Fatal(err)
	}
	want := &nodev1.CollectRequest{Network: "rail0", Valid: []*nodev1.AttachmentKey{{ContainerId: "c9", Interface: "net1"}}}
	if !proto.Equal(a.asked, want) {
		t.Errorf("asked %v", a.asked)
	}
}

// FuzzConfig: any configuration is refused with a code, or gives a well-formed request.
func FuzzConfig(f *testing.F) {
	f.Add(configuration("/run/x", previous))
	f.Add(configuration("/run/x", ""))
	f.Add([]byte(`{"name":"n","railweave":{"rail":"r"},"prevResult":null}`))
	f.Add(configuration("/run/x", `"prevResult":{"cniVersion":"1.1.0","interfaces":[null],"ips":[null]},`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := parseForDelete(data); err != nil && codeOf(err) == 0 {
			t.Errorf("no code: %v", err)
		}
		config, err := ParseConfig(data)
		if err != nil {
			if codeOf(err) == 0 {
				t.Errorf("no code: %v", err)
			}
			return
		}
		result, err := config.previous()
		if err == nil {
			_, err = config.attachRequest(call(data), result)
		}
		if err != nil && codeOf(err) == 0 {
			t.Errorf("no code: %v", err)
		}
	})
}

// FuzzArgs: any CNI_ARGS is refused with a code, or read back as given.
func FuzzArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b")
	f.Add("a=b;a=c;;=")
	f.Fuzz(func(t *testing.T, text string) {
		found, err := ParseArgs(text)
		if err != nil {
			if codeOf(err) != failure.CNIEnvironment {
				t.Errorf("%v", err)
			}
			return
		}
		for key, value := range found {
			if !strings.Contains(text, key+"="+value) {
				t.Errorf("%q gives %q=%q", text, key, value)
			}
		}
	})
}
