package frr

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/railweave/railweave/cni/internal/nodeconfig"
)

var update = flag.Bool("update", false, "write the golden files anew")

func load(t *testing.T, name string) *nodeconfig.Config {
	t.Helper()
	config, err := nodeconfig.Load(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

var goldens = []string{"unnumbered", "unnumbered-addresses", "numbered", "bfd-one-family"}

func TestGolden(t *testing.T) {
	for _, name := range goldens {
		t.Run(name, func(t *testing.T) {
			config := load(t, name)
			path := filepath.Join("testdata", name+".golden")
			got := Render(config)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the configuration changed (go test -update writes it anew):\n%s", got)
			}
			if Render(load(t, name)) != got {
				t.Error("the same node file gives two configurations")
			}
		})
	}
}

const binDir = "/usr/lib/frr"

// TestRealDaemonAccepts: bgpd itself reads what we render, and refuses what is wrong.
func TestRealDaemonAccepts(t *testing.T) {
	if _, err := os.Stat(filepath.Join(binDir, "bgpd")); err != nil {
		t.Skip("no bgpd on this machine: apt-get install frr")
	}
	if os.Getuid() != 0 {
		t.Skip("bgpd reads its configuration as root only")
	}
	confDir := t.TempDir()
	if err := os.WriteFile(filepath.Join(confDir, "vtysh.conf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range goldens {
		config := load(t, name)
		if err := Validate(t.Context(), config, confDir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		misspell := func(text string) string {
			return strings.Replace(text, "no bgp default ipv4-unicast", "no bgp defualt ipv4-unicast", 1)
		}
		if err := validate(t.Context(), binDir, confDir, misspell(Render(config)), renderBGP(config)); err == nil {
			t.Errorf("%s: vtysh accepted a misspelt command", name)
		}
		if err := validate(t.Context(), binDir, confDir, Render(config), misspell(renderBGP(config))); err == nil {
			t.Errorf("%s: bgpd accepted a misspelt command", name)
		}
	}
}

// TestReplace: what somebody else configured is kept, once, and the agent's own is not.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "frr.conf")
	for step, test := range []struct{ write, text, kept string }{
		{"", header + "a", ""}, // a new node
		{"", header + "b", ""}, // ours by ours
		{"router ospf\n", header + "c", "router ospf\n"},
		{"", header + "d", "router ospf\n"},
		{"by hand\n", header + "e", "router ospf\n"}, // FRR's configuration is the agent's by now: what was before it counts
	} {
		if test.write != "" {
			if err := os.WriteFile(path, []byte(test.write), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := replace(path, test.text); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != test.text {
			t.Errorf("step %d: frr.conf is %q, %v", step, got, err)
		}
		kept, err := os.ReadFile(path + ".before-railweave")
		if string(kept) != test.kept || (err == nil) != (test.kept != "") {
			t.Errorf("step %d: kept is %q, %v", step, kept, err)
		}
	}
	if left, err := filepath.Glob(path + ".candidate"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := replace(filepath.Join(dir, "missing", "frr.conf"), header); err == nil {
		t.Error("a directory that is not there was accepted")
	}
}

// TestOnlyItsOwnRail: a rail's route map names that rail's prefix list, and no other rail's.
func TestOnlyItsOwnRail(t *testing.T) {
	for _, name := range goldens {
		config := load(t, name)
		for block := range strings.SplitSeq(Render(config), "!\n") {
			if !strings.HasPrefix(block, "route-map RW-OUT-") {
				continue
			}
			for _, rail := range config.Rails {
				mine := strings.HasPrefix(block, "route-map RW-OUT-"+rail.Name+" ")
				if mine != strings.Contains(block, "prefix-list RW-"+rail.Name+"\n") {
					t.Errorf("%s: %s", name, block)
				}
			}
			if !strings.Contains(block, "match as-path RW-OWN") {
				t.Errorf("%s: it would carry learned routes on:\n%s", name, block)
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestSessions reads what FRR 8.4.4 answered in the test network; the second session is then made one that is down.
func TestSessions(t *testing.T) {
	neighbors := read(t, "neighbors.json")
	const established = `"bgpState":"Established"`
	last := strings.LastIndex(neighbors, established)
	half := neighbors[:last] + `"bgpState":"Active"` + neighbors[last+len(established):]
	sessions, err := parseSessions(load(t, "unnumbered"), read(t, "summary.json"), half, "[]")
	if err != nil {
		t.Fatal(err)
	}
	up := sessions["rail0"]
	if !up.Established || up.BFDDown || up.Peer != netip.MustParseAddr("fe80::9435:46ff:feb8:41c0%br-rail0") || up.Prefixes != 8 {
		t.Errorf("rail0: %+v", up)
	}
	if down := sessions["rail1"]; down.Established {
		t.Errorf("rail1: %+v", down)
	}
}

// TestPrefixLimit is one of each family, as bgpd counts; 4 of each were received.
func TestPrefixLimit(t *testing.T) {
	config := load(t, "unnumbered")
	for limit, over := range map[int]bool{3: true, 4: false} {
		config.FRR.MaximumPrefixes = limit
		sessions, err := parseSessions(config, read(t, "summary.json"), read(t, "neighbors.json"), "[]")
		if err != nil {
			t.Fatal(err)
		}
		if up := sessions["rail0"]; up.OverLimit != over || !up.Established {
			t.Errorf("limit %d: %+v", limit, up)
		}
	}
}

// TestZebraClients: what zebra says of its clients, as FRR 8.4.4 does, with bgpd and before bgpd came back.
func TestZebraClients(t *testing.T) {
	const header = "Name      Connect Time    Last Read  Last Write      IPv4 Routes           IPv6 Routes\n" +
		"------------------------------------------------------------------------------------------\n"
	const bgp = "bgp           00:00:24     00:00:01    00:00:01          0/1                   0/0         \n"
	const footer = "Routes column shows (added+updated)/deleted\n"
	if !hasBGP(header + bgp + footer) {
		t.Error("bgpd was not found")
	}
	if hasBGP(header + footer) {
		t.Error("bgpd was found where it is not")
	}
}

func TestSessionsWithBFD(t *testing.T) {
	config := load(t, "bfd-one-family")
	for _, test := range []struct {
		bfd  string
		down bool
	}{
		{`[{"peer":"fe80::1","interface":"br-rail0","status":"up"}]`, false},
		{`[{"peer":"fe80::1","interface":"br-rail0","status":"down"}]`, true},
		{`[{"peer":"fe80::1","interface":"br-rail9","status":"up"}]`, true},
		{`[]`, true},
	} {
		sessions, err := parseSessions(config, `{}`, `{"br-rail0":{"bgpNeighborAddr":"fe80::2","bgpState":"Established"}}`, test.bfd)
		if err != nil {
			t.Fatal(err)
		}
		if got := sessions["rail0"].BFDDown; got != test.down {
			t.Errorf("%s: down %t", test.bfd, got)
		}
	}
	if _, err := parseSessions(config, `{`, `{}`, `[]`); err == nil {
		t.Error("half an answer was accepted")
	}
}
