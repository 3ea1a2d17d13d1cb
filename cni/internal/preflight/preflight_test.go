package preflight

import (
	"bufio"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/railweave/railweave/cni/internal/durable"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/kernel"
	"github.com/railweave/railweave/cni/internal/nodeconfig"
)

func config() *nodeconfig.Config {
	return &nodeconfig.Config{OVS: nodeconfig.OVS{DatapathType: "system", HWOffload: true}, FRR: nodeconfig.FRR{BFD: true}, StateDir: "/var/lib/railweave",
		Rails: []nodeconfig.Rail{{Name: "rail0", Uplink: "p0", MTU: 9000}}}
}

func healthy() *Facts {
	return &Facts{
		OFCtl: "/usr/bin/ovs-ofctl", OVSVersion: "ovs-vswitchd (Open vSwitch) 3.1.0", OtherConfig: map[string]string{"hw-offload": "true"},
		Daemons: map[string]bool{"zebra": true, "bgpd": true, "bfdd": true}, FRRVersion: "FRRouting 8.4.4 (node1).", Reload: true, Zebras: []int{10}, IPv6: true,
		RDMAMode: "exclusive", RDMADevices: 2, Rails: map[string]RailFacts{"rail0": {UplinkMTU: 9216, Eswitch: "switchdev", Firmware: "28.40.1000"}},
	}
}

// TestWritable leaves nothing in the state directory, not even what a probe left that was killed.
func TestWritable(t *testing.T) {
	dir := t.TempDir()
	left, old := filepath.Join(dir, probeName+"1"), time.Now().Add(-2*durable.Unfinished)
	if err := errors.Join(os.WriteFile(left, nil, 0o600), os.Chtimes(left, old, old), writable(dir)); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestJudge: one change to a healthy node, the check that must notice it and how serious it is.
func TestJudge(t *testing.T) {
	if findings := Judge(config(), healthy()); slices.ContainsFunc(findings, func(f Finding) bool { return f.Level != OK }) {
		t.Fatalf("a healthy node: %+v", findings)
	}
	rail := func(change func(*RailFacts)) func(*nodeconfig.Config, *Facts) {
		return func(_ *nodeconfig.Config, f *Facts) {
			facts := f.Rails["rail0"]
			change(&facts)
			f.Rails["rail0"] = facts
		}
	}
	for _, test := range []struct {
		change func(*nodeconfig.Config, *Facts)
		check  string
		level  Level
	}{
		{func(_ *nodeconfig.Config, f *Facts) { f.OFCtl = "" }, "programs", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.Reload = false }, "programs", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.DatabaseErr = errors.New("refused") }, "ovsdb", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.OVSVersion = "" }, "ovs-vswitchd", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.OVSVersion = "ovs-vswitchd (Open vSwitch) 2.13.8" }, "ovs-vswitchd", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.OtherConfig = nil }, "hardware offload", Warn},
		{func(c *nodeconfig.Config, _ *Facts) { c.OVS.HWOffload = false }, "hardware offload", Warn},
		{func(_ *nodeconfig.Config, f *Facts) { f.OtherConfig["max-idle"] = "500" }, "max-idle", Warn},
		{func(_ *nodeconfig.Config, f *Facts) { f.Daemons["bfdd"] = false }, "frr", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.FRRVersion = "FRRouting 7.5.1" }, "frr version", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.FRRVersion = "" }, "frr version", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.Zebras = []int{10, 20} }, "one zebra", Fail},
		{func(_ *nodeconfig.Config, f *Facts) { f.Zebras = nil }, "one zebra", Warn},
		{func(_ *nodeconfig.Config, f *Facts) { f.RDMAMode = "shared" }, "rdma", Warn},
		{func(_ *nodeconfig.Config, f *Facts) { f.RDMADevices = 0 }, "rdma", Warn},
		{func(_ *nodeconfig.Config, f *Facts) { f.StateErr = errors.New("read-only") }, "state directory", Fail},
		{func(c *nodeconfig.Config, f *Facts) { c.Rails[0].Peer.Unnumbered, f.IPv6 = true, false }, "rail0 ipv6", Fail},
		{rail(func(r *RailFacts) { r.UplinkMTU = 0 }), "rail0 uplink", Fail},
		{rail(func(r *RailFacts) { r.UplinkMTU = 8000 }), "rail0 uplink", Fail},
		{rail(func(r *RailFacts) { r.Eswitch = "legacy" }), "rail0 eswitch", Fail},
		{rail(func(r *RailFacts) { r.Overlap = []netip.Prefix{netip.MustParsePrefix("10.64.0.0/16")} }), "rail0 isolation", Fail},
	} {
		c, f := config(), healthy()
		test.change(c, f)
		findings := Judge(c, f)
		for _, finding := range findings {
			want := OK
			if finding.Check == test.check {
				want = test.level
			}
			if finding.Level != want {
				t.Errorf("%s is %s (%s), want %s", finding.Check, finding.Level, finding.Found, want)
			}
			if finding.Level != OK && finding.Remedy == "" {
				t.Errorf("%s has no remedy", finding.Check)
			}
		}
		if Failed(findings) != (test.level == Fail) {
			t.Errorf("%s: failed %t", test.check, Failed(findings))
		}
	}
}

// TestWhatIsNotKnownIsNotJudged: without the database nobody can call its settings right or wrong.
func TestWhatIsNotKnownIsNotJudged(t *testing.T) {
	facts := healthy()
	facts.DatabaseErr, facts.OtherConfig = errors.New("refused"), nil
	for _, finding := range Judge(config(), facts) {
		if finding.Check == "max-idle" || finding.Check == "hardware offload" {
			t.Errorf("%+v", finding)
		}
	}
}

// TestZebras finds those of its own namespace in a process list.
func TestZebras(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, name, namespace string) {
		dir := filepath.Join(proc, pid)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "ns"), 0o750), os.WriteFile(filepath.Join(dir, "comm"), []byte(name+"\n"), 0o600),
			os.Symlink(namespace, filepath.Join(dir, "ns", "net"))); err != nil {
			t.Fatal(err)
		}
	}
	process("self", "preflight", "net:[1]")
	process("10", "zebra", "net:[1]")
	process("11", "zebra", "net:[2]")
	process("12", "bgpd", "net:[1]")
	process("13", "zebra", "net:[1]")
	if got := zebras(proc); !slices.Equal(got, []int{10, 13}) {
		t.Errorf("%v", got)
	}
}

// TestDaemonsMustAnswer: the socket of a killed daemon stays, and a stopped one takes connections and is silent.
func TestDaemonsMustAnswer(t *testing.T) {
	dir := t.TempDir()
	listen := func(daemon string) *net.UnixListener {
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, daemon+".vty"), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		return listener
	}
	answering := listen("bgpd")
	go func() {
		for {
			connection, err := answering.Accept()
			if err != nil {
				return
			}
			questions := bufio.NewReader(connection)
			for range 2 { // enable, show version
				_, _ = questions.ReadString(0)
				_, _ = connection.Write([]byte("FRRouting 8.4.4 (node1) on Linux(6.1).\r\nCopyright\x00\x00\x00\x00"))
			}
		}
	}()
	killed := listen("zebra")
	killed.SetUnlinkOnClose(false)
	_ = killed.Close()
	listen("bfdd") // stopped: nobody accepts
	facts := &Facts{Daemons: map[string]bool{}}
	gatherFRR(t.Context(), &nodeconfig.Config{FRR: nodeconfig.FRR{RunDir: dir, BinDir: dir}}, facts)
	if want := map[string]bool{"bgpd": true, "zebra": false, "bfdd": false}; !maps.Equal(facts.Daemons, want) || facts.FRRVersion != "FRRouting 8.4.4 (node1) on Linux(6.1)." {
		t.Errorf("%v, %q", facts.Daemons, facts.FRRVersion)
	}
}

func TestOverlap(t *testing.T) {
	pool := netip.MustParsePrefix("10.64.0.0/16")
	route := func(prefix string, kind, protocol int) netlink.Route {
		return netlink.Route{Dst: kernel.ToIPNet(netip.MustParsePrefix(prefix)), Type: kind, Protocol: netlink.RouteProtocol(protocol)}
	}
	routes := []netlink.Route{
		route("10.64.0.5/32", unix.RTN_BLACKHOLE, frr.RouteProtocol), // an announcement
		route("10.64.3.0/24", unix.RTN_UNICAST, unix.RTPROT_STATIC),  // leads into the pool
		route("10.0.0.0/8", unix.RTN_UNICAST, unix.RTPROT_BGP),       // covers it
		route("0.0.0.0/0", unix.RTN_UNICAST, unix.RTPROT_STATIC),     // a default route is everybody's
		route("10.65.0.0/16", unix.RTN_UNICAST, unix.RTPROT_STATIC),
	}
	if got := overlapping(routes, pool); len(got) != 2 || got[0].String() != "10.64.3.0/24" || got[1].String() != "10.0.0.0/8" {
		t.Errorf("%v", got)
	}
}
