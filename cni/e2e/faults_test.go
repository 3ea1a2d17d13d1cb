package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/railweave/railweave/cni/e2e/cluster"
	"github.com/railweave/railweave/cni/e2e/runtime"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// CNI error codes, as docs/cni/interfaces.md lists them.
const (
	codeConfig         = 7
	codeTryAgain       = 11
	codeUnavailable    = 50
	codeLimited        = 51
	codeAddressRefused = 101
	codeAddressInUse   = 102
	codeUnknownPod     = 106
	codeDiffers        = 107
	codeDatapath       = 109
	codePodDiffers     = 110
	codeRoute          = 111
	codeInternal       = 999
)

// wantCode checks that a plugin answered with one of the codes, and with a message that is more than a code.
func wantCode(t *testing.T, err error, codes ...uint) {
	t.Helper()
	var answer *runtime.PluginError
	if !errors.As(err, &answer) {
		t.Errorf("want a plugin's error with code %v, have %v", codes, err)
		return
	}
	for _, code := range codes {
		if answer.Code == code {
			if len(answer.Message) < 10 {
				t.Errorf("code %d has no message worth the name: %q", code, answer.Message)
			}
			t.Logf("as wanted: %v", answer)
			return
		}
	}
	t.Errorf("want code %v, have: %v", codes, answer)
}

// TestTruthOfStatusAndCheck breaks one thing at a time and asks STATUS and CHECK.
func TestTruthOfStatusAndCheck(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	r, node, agent := c.Runtimes[0], c.Network.Nodes[0], c.Agents[0]
	pod := run(t, c, 1, "team-a", "pod")
	audited(t, c)
	must(t, eventually(func() error { return r.Status(0) }))
	must(t, eventually(func() error { return r.Check(pod, 0) }))
	a := pod.Attachments[0]
	gateway4, _ := testnet.Gateway(0)
	// What agent and daemons notice after a while is asked about until it is. The agent repairs what it sees, every 5 s or at
	// once: a state that it repairs before it can be asked about is brought about again.
	for _, broken := range []struct {
		state         string
		do, undo      func() error
		status, check []uint // nothing: success
	}{
		{"agent down", agent.Kill, func() error { return steps(agent.Start, func() error { return agent.WaitReady(cluster.ReadyLimit) }) },
			[]uint{codeUnavailable, codeLimited}, []uint{codeTryAgain}},
		{"leaf's bgpd down", func() error { return c.Network.Leaves[0].FRR.KillDaemon("bgpd") }, func() error {
			return steps(c.Network.Leaves[0].FRR.Start, func() error { return agent.WaitReady(cluster.ReadyLimit) })
		}, []uint{codeLimited}, []uint{codeTryAgain, codeRoute}},
		{"zebra killed", func() error { return node.FRR.KillDaemon("zebra") }, func() error {
			return steps(node.FRR.Start, func() error { return agent.WaitReady(cluster.ReadyLimit) })
		}, []uint{codeUnavailable}, []uint{codeTryAgain}},
		{"ovsdb-server killed", node.OVS.KillDatabase, func() error {
			return steps(node.OVS.StartDatabase, func() error { return agent.WaitReady(cluster.ReadyLimit) })
		}, []uint{codeUnavailable}, []uint{codeInternal}}, // ovs-cni's own CHECK, the first of the chain
		{"ovs-vswitchd killed", node.OVS.KillSwitch, func() error {
			return steps(node.OVS.StartSwitch, func() error { return agent.WaitReady(cluster.ReadyLimit) })
		}, []uint{codeUnavailable}, []uint{codeDatapath}},
		{"gateway's neighbour removed in the pod", func() error {
			return pod.NS.Run("ip", "neigh", "del", gateway4.String(), "dev", a.Interface)
		}, func() error { return agentRepairs(r, pod) }, nil, []uint{codePodDiffers}},
		{"pod's rule removed", func() error {
			return pod.NS.Run("ip", "rule", "del", "from", a.Address(false).String())
		}, func() error { return agentRepairs(r, pod) }, nil, []uint{codePodDiffers}},
		{"announcement removed", func() error {
			return node.NS.Run("ip", "route", "del", "blackhole", a.Address(false).String())
		}, func() error { return agentRepairs(r, pod) }, nil, []uint{codeRoute}},
		{"pod's flows removed", func() error {
			_, err := node.OVS.OFCtl("del-flows", testnet.Bridge(0), "ip,nw_dst="+a.Address(false).String())
			return err
		}, func() error { return agentRepairs(r, pod) }, nil, []uint{codeDatapath}},
	} {
		t.Run(broken.state, func(t *testing.T) {
			const tries = 20
			for try := 1; ; try++ {
				must(t, broken.do())
				if broken.status != nil {
					must(t, eventually(func() error { return refusal(r.Status(0)) }))
				}
				status, check := r.Status(0), r.Check(pod, 0)
				must(t, broken.undo())
				// A session may fall once more some seconds after a switch's restart.
				repaired, fell := check == nil, isCode(status, codeLimited) || runtime.IsLater(check)
				if broken.status == nil && (repaired || fell) && try < tries {
					must(t, eventually(func() error { return r.Status(0) }))
					continue
				}
				answer(t, "STATUS", status, broken.status)
				answer(t, "CHECK", check, broken.check)
				break
			}
			audited(t, c)
			must(t, eventually(func() error { return r.Status(0) })) // sessions may fall once more after a switch's restart
			must(t, eventually(func() error { return r.Check(pod, 0) }))
		})
	}
}

// isCode tells whether a plugin answered with that code.
func isCode(err error, code uint) bool {
	var answer *runtime.PluginError
	return errors.As(err, &answer) && answer.Code == code
}

// refusal turns an answer round: success is the error.
func refusal(err error) error {
	if err == nil {
		return errors.New("it answers that all is well")
	}
	return nil
}

// answer checks one answer against the codes it may have; with none it must be success.
func answer(t *testing.T, verb string, err error, codes []uint) {
	t.Helper()
	switch {
	case err == nil && len(codes) == 0:
	case err == nil:
		t.Errorf("%s succeeded, want code %v", verb, codes)
	default:
		wantCode(t, err, codes...)
	}
}

// eventually calls f until it succeeds, for at most settleLimit.
func eventually(f func() error) error {
	deadline := time.Now().Add(settleLimit)
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %w", settleLimit, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// patiently calls again what is answered "try again later", as a kubelet does: on a machine that stands still for seconds a session
// falls now and then.
func patiently(call func() error) error {
	deadline := time.Now().Add(settleLimit)
	for {
		err := call()
		if !runtime.IsLater(err) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// attachOwn runs this project's plugins for the first rail, on the given previous result.
func attachOwn(r *runtime.Runtime, pod *runtime.Pod, previous map[string]any) (result *types100.Result, err error) {
	err = patiently(func() error {
		result, err = r.AttachOwn(pod, 0, previous)
		return err
	})
	return result, err
}

// agentRepairs waits until CHECK is satisfied again without anybody's help.
func agentRepairs(r *runtime.Runtime, pod *runtime.Pod) error {
	return eventually(func() error { return r.Check(pod, 0) })
}

// TestDeleteWithoutAgent removes a pod while the agent is dead: the leaf must forget it at once, another pod may have
// the address before the agent is back, and the agent must not take it from that one.
func TestDeleteWithoutAgent(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	r, agent := c.Runtimes[0], c.Agents[0]
	first, peer := run(t, c, 1, "team-a", "first"), run(t, c, 2, "team-a", "peer")
	address := first.Attachments[0].Address(false)
	must(t, c.WaitRoutes(c.Pods(), routesLimit))
	must(t, agent.Kill())
	must(t, r.Stop(first))
	if err := c.WaitRoutes(c.Pods(), routesLimit); err != nil {
		t.Errorf("after a DEL without agent: %v", err)
	}
	second, err := r.NewPod("team-a", "second")
	must(t, err)
	_, err = r.Attach(second, 0)
	wantCode(t, err, codeTryAgain)
	must(t, r.Detach(second, 0))
	must(t, agent.Start())
	must(t, agent.WaitReady(cluster.ReadyLimit))
	for rail := range c.Network.Leaves {
		must(t, patiently(func() error {
			if err := reuseAddresses(c.Network.Nodes[0]); err != nil {
				return err
			}
			_, err := r.Attach(second, rail)
			if err != nil {
				return errors.Join(err, r.Detach(second, rail))
			}
			return nil
		}))
	}
	if got := second.Attachments[0].Address(false); got != address {
		t.Fatalf("the second pod has %v and not the first's %v: this test shows nothing", got, address)
	}
	audited(t, c)
	reach(t, second, peer)
	// The kubelet repeats DELs at will, long after.
	r2 := *first
	for rail := range c.Network.Leaves {
		must(t, r.Detach(&r2, rail))
	}
	audited(t, c)
	reach(t, peer, second)
}

// reuseAddresses makes host-local hand out the lowest free address next, instead of going round.
func reuseAddresses(node *testnet.Node) error {
	files, err := filepath.Glob(filepath.Join(node.Dir, "ipam", "*", "last_reserved_ip*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	return nil
}

// TestPortDeletedByLateDelete takes a live pod's port off the bridge, as ovs-cni does when a late DEL of an older pod
// names the same representor: the agent puts it back with its flows and its announcement.
func TestPortDeletedByLateDelete(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	one, two := run(t, c, 1, "team-a", "one"), run(t, c, 2, "team-a", "two")
	audited(t, c)
	_, err := c.Network.Nodes[0].OVS.VSCtl("del-port", testnet.Bridge(0), one.Attachments[0].Port)
	must(t, err)
	audited(t, c)
	reach(t, one, two)
	must(t, c.Runtimes[0].Stop(one))
	audited(t, c)
}

// TestDeadSwitch kills a node's ovs-vswitchd for longer than a restart takes: the node must not announce what it cannot
// deliver. (With the userspace datapath the session with the leaf has died with it; with the kernel's the leaf hears of it.)
// Everything comes back with it.
func TestDeadSwitch(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	one, two := run(t, c, 1, "team-a", "one"), run(t, c, 2, "team-a", "two")
	audited(t, c)
	node := c.Network.Nodes[0]
	announced := func() (string, error) {
		four, err := node.NS.Output("ip", "-4", "route", "show", "proto", "157")
		six, err6 := node.NS.Output("ip", "-6", "route", "show", "proto", "157")
		return strings.TrimSpace(four + six), errors.Join(err, err6)
	}
	if routes, err := announced(); err != nil || strings.Count(routes, "blackhole") != 4 {
		t.Fatalf("announced before: %q, %v", routes, err)
	}
	must(t, node.OVS.KillSwitch())
	must(t, eventually(func() error {
		routes, err := announced()
		if err == nil && routes != "" {
			err = fmt.Errorf("announced with a dead switch: %s", routes)
		}
		return err
	}))
	must(t, node.OVS.StartSwitch())
	must(t, c.WaitReady())
	audited(t, c)
	reach(t, one, two)
}

// TestStaleRows leaves what a reboot leaves: port rows and attachments whose namespaces are gone. The agent drops them,
// and new pods start.
func TestStaleRows(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	r, agent := c.Runtimes[0], c.Agents[0]
	for i := range 3 {
		pod := run(t, c, 1, "team-a", fmt.Sprintf("gone-%d", i))
		if i == 0 {
			must(t, agent.Kill())
			must(t, r.Discard(pod))
			must(t, agent.Start())
			must(t, agent.WaitReady(cluster.ReadyLimit))
		} else {
			must(t, r.Discard(pod))
		}
	}
	// The IPAM does not know that they are gone: it is told by DEL or GC only.
	must(t, os.RemoveAll(filepath.Join(c.Network.Nodes[0].Dir, "ipam", testnet.Rail(0))))
	must(t, os.RemoveAll(filepath.Join(c.Network.Nodes[0].Dir, "ipam", testnet.Rail(1))))
	audited(t, c)
	run(t, c, 1, "team-a", "next")
	audited(t, c)
}

// TestDamagedStore damages the store of a node whose pods are talking. It is rebuilt from the switch and the kernel,
// and nobody notices.
func TestDamagedStore(t *testing.T) {
	c := start(t, cluster.Options{Tenants: tenants})
	f := plant(t, c, 3)
	for _, damage := range []struct {
		name string
		do   func(file string) error
	}{
		{"cut off", func(file string) error { return os.Truncate(file, 100) }},
		{"one bit", func(file string) error {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			text[len(text)/2] ^= 1
			return os.WriteFile(file, text, 0o600)
		}},
		{"deleted", os.Remove},
	} {
		t.Run(damage.name, func(t *testing.T) {
			s := f.session(t)
			s.SetRelation(f.during(f.relation))
			before := f.overflow(t)
			stop := stream(t, s, f)
			err := steps(c.Agents[0].Kill, func() error { return damage.do(filepath.Join(c.Agents[0].StateDir(), "store.json")) },
				c.Agents[0].Start, func() error { return c.Agents[0].WaitReady(cluster.ReadyLimit) }, pause(2*time.Second))
			stop()
			must(t, err)
			f.verdict(t, s, before)
			audited(t, c)
		})
	}
	quarantined, err := os.ReadDir(filepath.Join(c.Agents[0].StateDir(), "quarantine"))
	if err != nil || len(quarantined) != 2 {
		t.Errorf("want the two damaged stores in quarantine, have %v, %v", quarantined, err)
	}
}

// TestRepeatedAdd sends the same ADD again, and then one that differs.
func TestRepeatedAdd(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	r := c.Runtimes[0]
	pod := run(t, c, 1, "team-a", "pod")
	audited(t, c)

	previous, err := r.Previous(pod, 0)
	must(t, err)
	again, err := attachOwn(r, pod, previous)
	must(t, err)
	if got := again.IPs[0].Address.IP.String(); got != pod.Attachments[0].Addresses[0].String() {
		t.Errorf("the same ADD again answers with %s instead of %s", got, pod.Attachments[0].Addresses[0])
	}
	must(t, pod.NS.Run("ip", "addr", "add", "10.100.1.99/16", "dev", pod.Attachments[0].Interface))
	swapAddress(previous, "10.100.1.99/16")
	_, err = attachOwn(r, pod, previous)
	wantCode(t, err, codeDiffers)
	must(t, pod.NS.Run("ip", "addr", "del", "10.100.1.99/16", "dev", pod.Attachments[0].Interface))
	audited(t, c)
}

// TestRefusedAddress gives the plugins addresses that no pod may have, or not this one, whoever asked for them, and settings that
// are none. Nothing of a refused ADD may be left.
func TestRefusedAddress(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	r := c.Runtimes[0]
	other := run(t, c, 1, "team-a", "other")
	remote := run(t, c, 2, "team-a", "remote")
	audited(t, c)
	for _, test := range []struct {
		what, address string
		code          uint
	}{
		{"outside every pool", "192.0.2.7/24", codeAddressRefused},
		{"of another rail", "10.101.1.99/16", codeAddressRefused},
		{"the gateway", "10.100.0.1/16", codeAddressRefused},
		{"in use on this node", other.Attachments[0].Address(false).String() + "/16", codeAddressInUse},
		{"in use on another node", remote.Attachments[0].Address(false).String() + "/16", codeAddressInUse},
	} {
		t.Run(test.what, func(t *testing.T) {
			pod, err := r.NewPod("team-a", "fresh")
			must(t, err)
			previous, err := r.AttachPort(pod, 0)
			must(t, err)
			swapAddress(previous, test.address)
			must(t, pod.NS.Run("ip", "addr", "add", test.address, "dev", runtime.RailInterface(0)))
			_, err = attachOwn(r, pod, previous)
			wantCode(t, err, test.code)
			must(t, r.Stop(pod))
			audited(t, c)
		})
	}
	t.Run("settings with an unknown key", func(t *testing.T) {
		right, err := r.ChangeSettings(0, map[string]any{"rail": testnet.Rail(0), "vlan": 7})
		must(t, err)
		pod, err := r.NewPod("team-a", "fresh")
		must(t, err)
		_, err = r.Attach(pod, 0)
		wantCode(t, err, codeConfig)
		must(t, r.Stop(pod)) // with the same settings: ovs-cni and the IPAM must get their turn
		_, err = r.ChangeSettings(0, right)
		must(t, err)
		audited(t, c)
	})
	reach(t, other, remote)
}

// swapAddress changes the first address of a previous result.
func swapAddress(result map[string]any, address string) {
	for _, ip := range result["ips"].([]any) {
		if entry := ip.(map[string]any); !strings.Contains(entry["address"].(string), ":") {
			entry["address"] = address
		}
	}
}

// TestZebraDiesWhileBGPStarts kills zebra just when a new bgpd has read its configuration. FRR 8.4's bgpd then forgets to
// ask the next zebra for the kernel's routes, with a configuration that looks right: the agent must notice.
func TestZebraDiesWhileBGPStarts(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	one, two := run(t, c, 1, "team-a", "one"), run(t, c, 2, "team-a", "two")
	audited(t, c)
	frr := c.Network.Nodes[1].FRR
	for range size(1, 3) {
		must(t, steps(frr.Kill, frr.Start, pause(200*time.Millisecond), func() error { return frr.KillDaemon("zebra") }, frr.Start))
		// Until then the leafs keep what they knew: graceful restart, for at most 120 s, would hide the loss.
		must(t, steps(pause(15*time.Second), c.WaitReady))
		audited(t, c)
		reach(t, one, two)
	}
}

// TestDeleteWhileZebraIsDead withdraws an announcement when nobody can tell bgpd: the next zebra does not know the route
// and never mentions it, so that bgpd would keep it for ever.
func TestDeleteWhileZebraIsDead(t *testing.T) {
	c := start(t, cluster.Options{Tenants: map[string]string{"team-a": ""}})
	one, two := run(t, c, 1, "team-a", "one"), run(t, c, 2, "team-a", "two")
	gone := run(t, c, 2, "team-a", "gone")
	audited(t, c)
	frr := c.Network.Nodes[1].FRR
	must(t, frr.KillDaemon("zebra"))
	must(t, c.Runtimes[1].Stop(gone))
	must(t, frr.Start())
	must(t, c.WaitReady())
	audited(t, c)
	reach(t, one, two)
}
