package nodeconfig

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

const good = `{"apiVersion":"railweave.io/v1","kind":"NodeConfig","node":"node1","asn":4200000001,"routerID":"10.255.0.1","rails":[
{"name":"rail0","bridge":"br-rail0","uplink":"p0","pools":[{"prefix":"10.64.0.0/16","gateway":"10.64.0.1"},{"prefix":"fd64::/64","gateway":"fd64::1"}],"peer":{"unnumbered":true}},
{"name":"rail1","bridge":"br-rail1","uplink":"p1","pools":[{"prefix":"10.65.0.0/16","gateway":"10.65.0.1"}],"addresses":["10.255.1.1/31"],"peer":{"addresses":["10.255.1.0"],"asn":65001}}]}`

func TestDefaults(t *testing.T) {
	config, err := Parse("good", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if config.Socket != DefaultSocket || config.StateDir != DefaultStateDir || config.Rails[1].Table != 1001 || config.Tenancy.Source != "kubernetes" {
		t.Errorf("%+v", config)
	}
	mac := config.Rails[0].MAC()
	if mac[0] != 2 || mac.String() == config.Rails[1].RouterMAC {
		t.Errorf("derived MACs %s and %s", mac, config.Rails[1].RouterMAC)
	}
	again, err := Parse("good", []byte(good))
	if err != nil || again.Rails[0].RouterMAC != config.Rails[0].RouterMAC {
		t.Errorf("a derived MAC changes: %v", err)
	}
	if _, inside := config.Rails[0].PoolOf(netip.MustParseAddr("fd64::5")); !inside {
		t.Error("fd64::5 is in no pool of rail0")
	}
}

// TestNodeNames: as long as Kubernetes allows them, and by default as a kubelet makes them of the host's name.
func TestNodeNames(t *testing.T) {
	long := strings.Repeat("gpu-0123.row-17.", 15) + "example.com"
	if config, err := Parse("file", []byte(strings.Replace(good, "node1", long, 1))); err != nil || config.Node != long {
		t.Errorf("%d characters: %v", len(long), err)
	}
	if name := nodeName("GPU-01.Example.COM\n"); name != "gpu-01.example.com" {
		t.Errorf("%q", name)
	}
}

// TestIPv6PeerCarriesBoth families, as an unnumbered one does.
func TestIPv6PeerCarriesBoth(t *testing.T) {
	text := strings.NewReplacer(`{"prefix":"10.65.0.0/16","gateway":"10.65.0.1"}`, `{"prefix":"10.65.0.0/16","gateway":"10.65.0.1"},{"prefix":"fd65::/64","gateway":"fd65::1"}`,
		`"10.255.1.1/31"`, `"fd20::1/127"`, `"10.255.1.0"`, `"fd20::"`).Replace(good)
	if _, err := Parse("file", []byte(text)); err != nil {
		t.Error(err)
	}
}

// TestRouterMACHasOneForm: flows, the pods' neighbours and the refusal of a pod with the router's MAC compare texts.
func TestRouterMACHasOneForm(t *testing.T) {
	for _, text := range []string{"02:52:57:AA:00:01", "02-52-57-aa-00-01", "0252.57aa.0001"} {
		config, err := Parse("file", []byte(strings.Replace(good, `"uplink":"p0"`, `"uplink":"p0","routerMAC":"`+text+`"`, 1)))
		if err != nil || config.Rails[0].RouterMAC != "02:52:57:aa:00:01" {
			t.Errorf("%s: %v, %+v", text, err, config)
		}
		same := strings.Replace(good, `"uplink":"p0"`, `"uplink":"p0","routerMAC":"`+text+`"`, 1)
		same = strings.Replace(same, `"uplink":"p1"`, `"uplink":"p1","routerMAC":"02:52:57:aa:00:01"`, 1)
		if _, err := Parse("file", []byte(same)); err == nil {
			t.Errorf("%s and 02:52:57:aa:00:01 on two rails are accepted", text)
		}
	}
}

// TestRefused: one change to the good file, and the key its error must name.
func TestRefused(t *testing.T) {
	for _, test := range []struct{ old, new, key string }{
		{`"kind":"NodeConfig"`, `"kind":"Other"`, "kind"},
		{`railweave.io/v1`, `railweave.io/v2`, "apiVersion"},
		{`"node":"node1"`, `"node":"Node 1"`, "node"},
		{`"node":"node1"`, `"node":"` + strings.Repeat("n", 254) + `"`, "node"},
		{`"bridge":"br-rail1"`, `"bridge":"p0"`, "rails[0].uplink"},
		{`"uplink":"p0"`, `"uplink":"br-rail1"`, "rails[0].uplink"},
		{`"uplink":"p1"`, `"uplink":"br-rail1"`, "rails[1].uplink"},
		{`"asn":4200000001,"routerID"`, `"routerID"`, "asn"},
		{`"10.255.0.1"`, `"fd::1"`, "routerID"},
		{`"node":"node1"`, `"node":"node1","unheard":1`, "(document)"},
		{`"node":"node1"`, `"node":"node1","socket":"node.sock"`, "socket"},
		{`"node":"node1"`, `"node":"node1","ovs":{"datapathType":"dpdk"}`, "ovs.datapathType"},
		{`"node":"node1"`, `"node":"node1","frr":{"pathspace":"a/b"}`, "frr.pathspace"},
		{`"node":"node1"`, `"node":"node1","frr":{"maximumPrefixes":4294967296}`, "frr.maximumPrefixes"},
		{`"node":"node1"`, `"node":"node1","frr":{"maximumPrefixes":-1}`, "frr.maximumPrefixes"},
		{`"node":"node1"`, `"node":"node1","reconcileSeconds":10000000000`, "reconcileSeconds"},
		{`"node":"node1"`, `"node":"node1","tenancy":{"source":"directory"}`, "tenancy.directory"},
		{`"node":"node1"`, `"node":"node1","tenancy":{"source":"kubernetes","directory":"/x"}`, "tenancy.directory"},
		{`"node":"node1"`, `"node":"node1","tenancy":{"source":"dns"}`, "tenancy.source"},
		{`"br-rail0"`, `"br rail0; reboot"`, "rails[0].bridge"},
		{`"uplink":"p0"`, `"uplink":"-p0"`, "rails[0].uplink"},
		{`"uplink":"p1"`, `"uplink":"p0"`, "rails[1]"},
		{`"10.64.0.0/16"`, `"10.64.0.5/16"`, "rails[0].pools[0].prefix"},
		{`"10.64.0.0/16"`, `"0.0.0.0/0"`, "rails[0].pools[0].prefix"},
		{`"10.64.0.1"`, `"10.66.0.1"`, "rails[0].pools[0].gateway"},
		{`"10.64.0.1"`, `"10.64.255.255"`, "rails[0].pools[0].gateway"},
		{`"10.64.0.1"`, `"10.64.0.0"`, "rails[0].pools[0].gateway"},
		{`"10.65.0.0/16","gateway":"10.65.0.1"`, `"10.64.8.0/24","gateway":"10.64.8.1"`, "rails[1].pools[0]"},
		{`{"unnumbered":true}`, `{"unnumbered":true,"addresses":["10.0.0.1"]}`, "rails[0].peer"},
		{`{"unnumbered":true}`, `{}`, "rails[0].peer"},
		{`"addresses":["10.255.1.0"]`, `"addresses":["10.255.9.0"]`, "rails[1].peer.addresses[0]"},
		{`"addresses":["10.255.1.1/31"]`, `"addresses":["10.255.1.1"]`, "rails[1].addresses[0]"},
		{`"addresses":["10.255.1.1/31"]`, `"addresses":["::ffff:10.255.1.1/127","10.255.1.1/31"]`, "rails[1].addresses[0]"},
		{`"uplink":"p0"`, `"uplink":"p0","routerMAC":"01:00:5e:00:00:01"`, "rails[0].routerMAC"},
		{`{"prefix":"10.65.0.0/16","gateway":"10.65.0.1"}`, `{"prefix":"10.65.0.0/16","gateway":"10.65.0.1"},{"prefix":"fd65::/64","gateway":"fd65::1"}`, "rails[1].pools[1].prefix"},
		{`"uplink":"p0"`, `"uplink":"p0","routerMAC":"00-00-00-00-00-00"`, "rails[0].routerMAC"},
		{`"uplink":"p0"`, `"uplink":"p0","table":254`, "rails[0].table"},
		{`"addresses":["10.255.1.1/31"]`, `"addresses":["10.255.1.1/31","10.64.9.9/24"]`, "rails[1].addresses[1]"},
		{`"addresses":["10.255.1.1/31"],"peer":{"addresses":["10.255.1.0"]`, `"addresses":["10.65.1.1/31"],"peer":{"addresses":["10.65.1.0"]`, "rails[1].addresses[0]"},
		{`,{"prefix":"fd64::/64","gateway":"fd64::1"}],"peer":{"unnumbered":true}`, `],"addresses":["10.255.1.1/30"],"peer":{"addresses":["10.255.1.2"]}`, "rails[1].addresses[0]"},
		{`"uplink":"p0"`, `"uplink":"p0","mtu":100`, "rails[0].mtu"},
	} {
		if strings.Count(good, test.old) == 0 {
			t.Fatalf("%q is not in the good file", test.old)
		}
		_, err := Parse("file", []byte(strings.Replace(good, test.old, test.new, 1)))
		var wrong *Error
		if !errors.As(err, &wrong) {
			t.Errorf("%s: accepted or untyped: %v", test.new, err)
		} else if wrong.Key != test.key || wrong.File != "file" {
			t.Errorf("%s: blames %s of %s, want %s", test.new, wrong.Key, wrong.File, test.key)
		}
	}
}

// TestFirstAddressAsGateway: without a network address of its own a prefix's first address is a host's, in IPv6 the routers'.
func TestFirstAddressAsGateway(t *testing.T) {
	text := strings.NewReplacer(`"10.65.0.0/16","gateway":"10.65.0.1"`, `"10.65.0.0/31","gateway":"10.65.0.0"`, `"fd64::1"`, `"fd64::"`).Replace(good)
	if _, err := Parse("file", []byte(text)); err != nil {
		t.Error(err)
	}
}

// FuzzParse: whatever is accepted obeys the rules that keep names harmless.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("apiVersion: railweave.io/v1\nkind: NodeConfig\nnode: a\nasn: 1\nrouterID: 1.2.3.4\nrails: []"))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Parse("fuzz", data)
		if err != nil {
			return
		}
		for _, rail := range config.Rails {
			if !linkRule.MatchString(rail.Bridge) || !linkRule.MatchString(rail.Uplink) || rail.MAC() == nil || len(rail.Pools) == 0 {
				t.Errorf("accepted %+v", rail)
			}
			for _, pool := range rail.Pools {
				if !pool.Prefix.Contains(pool.Gateway) {
					t.Errorf("accepted pool %+v", pool)
				}
			}
		}
	})
}
