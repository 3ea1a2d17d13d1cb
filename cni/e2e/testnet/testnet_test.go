package testnet

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	RunGuardIfAsked()
	// A copy of the test binary as a program that builds a network and is killed: see TestGuardCleansUpAfterKill.
	if os.Getenv("RAILWEAVE_TESTNET_VICTIM") != "" {
		n, err := Up(Config{Nodes: 1, Rails: 1, Peering: Numbered})
		if err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString(n.ID + "\n")
		select {}
	}
	os.Exit(m.Run())
}

func TestAddressPlanNeverOverlaps(t *testing.T) {
	var all []netip.Prefix
	for rail := range MaxRails {
		p4, p6 := Pool(rail)
		all = append(all, p4, p6)
		for node := 1; node <= MaxNodes; node++ {
			r4, r6 := NodeRange(rail, node)
			if !p4.Contains(r4.Addr()) || !p6.Contains(r6.Addr()) || r4.Bits() <= p4.Bits() || r6.Bits() <= p6.Bits() {
				t.Errorf("rail %d node %d: ranges %v %v outside pools %v %v", rail, node, r4, r6, p4, p6)
			}
			g4, g6 := Gateway(rail)
			if r4.Contains(g4) || r6.Contains(g6) {
				t.Errorf("rail %d node %d: a gateway is in the range handed out to pods", rail, node)
			}
			link := NodeLink(rail, node)
			if link.Leaf4.Masked() != link.Node4.Masked() || link.Leaf6.Masked() != link.Node6.Masked() {
				t.Errorf("rail %d node %d: ends in different subnets: %+v", rail, node, link)
			}
			all = append(all, link.Leaf4.Masked(), link.Leaf6.Masked())
		}
	}
	all = append(all, ManagementGateway().Masked())
	for node := 1; node <= MaxNodes; node++ {
		all = append(all, DefaultNetwork(node))
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if a.Overlaps(b) {
				t.Errorf("%v overlaps %v", a, b)
			}
		}
	}
}

func TestConfigRefusesBadShapes(t *testing.T) {
	good := Config{Nodes: 2, Rails: 2, Peering: Unnumbered}
	if err := good.Validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	for _, bad := range []Config{
		{Nodes: 0, Rails: 2, Peering: Numbered}, {Nodes: MaxNodes + 1, Rails: 2, Peering: Numbered},
		{Nodes: 2, Rails: 0, Peering: Numbered}, {Nodes: 2, Rails: MaxRails + 1, Peering: Numbered},
		{Nodes: 2, Rails: 2}, {Nodes: 2, Rails: 2, Peering: "by name"},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestInstanceOf(t *testing.T) {
	for name, want := range map[string]string{
		"rwt01af-node1": "rwt01af", "rwt01af-pod-a-b": "rwt01af", "rwt01af": "", "rwt01af0-node1": "", "cni-1234": "", "": "",
	} {
		if got := instanceOf(name); got != want {
			t.Errorf("instanceOf(%q) = %q, want %q", name, got, want)
		}
	}
}

// TestRouterConfig has the real bgpd judge what leafs and spine are given, for both ways to peer.
func TestRouterConfig(t *testing.T) {
	bgpd := filepath.Join(FRRDaemonDir, "bgpd")
	if _, err := os.Stat(bgpd); err != nil {
		t.Skip("needs FRR: apt-get install frr")
	}
	if os.Getuid() != 0 {
		t.Skip("bgpd reads its configuration as root only")
	}
	for _, peering := range []Peering{Unnumbered, Numbered} {
		n := describe("rwt0000", Config{Nodes: 3, Rails: 2, Peering: peering})
		for name, text := range map[string]string{"leaf": n.leafConfig(1), "spine": n.spineConfig()} {
			file := filepath.Join(t.TempDir(), "frr.conf")
			if err := writeFile(file, text); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(bgpd, "-C", "-f", file).CombinedOutput(); err != nil {
				t.Errorf("%s, %s: %v\n%s\n%s", peering, name, err, out, text)
			}
		}
	}
}

// requireNetwork skips a test on machines that cannot run the network.
func requireNetwork(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a network: not with -short")
	}
	if err := Requirements(); errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
}

// TestTwoInstancesAtOnce builds two networks, waits for their routing, and looks for leftovers after the first is gone.
func TestTwoInstancesAtOnce(t *testing.T) {
	requireNetwork(t)
	first, err := Up(Config{Nodes: 2, Rails: 2, Peering: Unnumbered})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Down() }() // if the test ends before it does so itself
	second, err := Up(Config{Nodes: 1, Rails: 3, Peering: Numbered})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := second.Down(); err != nil {
			t.Error(err)
		}
	}()
	for _, n := range []*Network{first, second} {
		if err := n.WaitFabric(3 * answerLimit); err != nil {
			t.Error(err)
		}
		for _, node := range n.Nodes {
			if !node.OVS.Running() || !node.FRR.Running() {
				t.Errorf("%s: daemons do not all run", node.NS.Name)
			}
		}
	}
	if err := first.Down(); err != nil {
		t.Fatal(err)
	}
	assertGone(t, first.ID)
	if err := second.WaitFabric(answerLimit); err != nil {
		t.Errorf("taking one network down hurt the other: %v", err)
	}
}

// TestGuardCleansUpAfterKill kills the owner of a network in the hardest way.
func TestGuardCleansUpAfterKill(t *testing.T) {
	requireNetwork(t)
	victim := exec.Command(os.Args[0])
	victim.Env = append(os.Environ(), "RAILWEAVE_TESTNET_VICTIM=1")
	victim.Stderr = os.Stderr
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	k, err := stdout.Read(buffer)
	id := strings.TrimSpace(string(buffer[:k]))
	if killErr := victim.Process.Kill(); killErr != nil {
		t.Fatal(killErr)
	}
	_ = victim.Wait()
	if err != nil || instanceOf(id+"-") != id {
		t.Fatalf("the victim said %q (%v)", id, err)
	}
	waitUntil(2*answerLimit, 50*time.Millisecond, func() bool {
		ids, err := List()
		return err == nil && !slices.Contains(ids, id)
	})
	assertGone(t, id)
}

// assertGone checks that nothing on the system carries an instance's name.
func assertGone(t *testing.T, id string) {
	t.Helper()
	for _, dir := range []string{StateDir, NamespaceDir, frrConfigDir, frrRunDir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), id) {
				t.Errorf("left behind: %s/%s", dir, e.Name())
			}
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		if text, err := os.ReadFile(p); err == nil && strings.Contains(string(text), id+"-") {
			t.Errorf("left running: %s", strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
}
