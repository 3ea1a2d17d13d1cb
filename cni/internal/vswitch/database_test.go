package vswitch

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/stdr"
	"github.com/ovn-kubernetes/libovsdb/database/inmemory"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/server"
)

// schemaText has the columns the agent uses, with the types and references they have in Open vSwitch.
const schemaText = `{"name":"Open_vSwitch","version":"8.3.1","tables":{
"Open_vSwitch":{"isRoot":true,"maxRows":1,"columns":{
 "bridges":{"type":{"key":{"type":"uuid","refTable":"Bridge"},"min":0,"max":"unlimited"}},
 "other_config":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}},
 "ovs_version":{"type":{"key":"string","min":0,"max":1}}}},
"Bridge":{"columns":{
 "name":{"type":"string","mutable":false},
 "ports":{"type":{"key":{"type":"uuid","refTable":"Port"},"min":0,"max":"unlimited"}},
 "fail_mode":{"type":{"key":{"type":"string","enum":["set",["standalone","secure"]]},"min":0,"max":1}},
 "datapath_type":{"type":"string"},
 "controller":{"type":{"key":{"type":"uuid"},"min":0,"max":"unlimited"}},
 "other_config":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}},
 "external_ids":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}}},"indexes":[["name"]]},
"Port":{"columns":{
 "name":{"type":"string","mutable":false},
 "interfaces":{"type":{"key":{"type":"uuid","refTable":"Interface"},"min":1,"max":"unlimited"}},
 "external_ids":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}}},"indexes":[["name"]]},
"Interface":{"columns":{
 "name":{"type":"string","mutable":false},
 "type":{"type":"string"},
 "ofport":{"type":{"key":"integer","min":0,"max":1}},
 "ofport_request":{"type":{"key":{"type":"integer","minInteger":1,"maxInteger":65279},"min":0,"max":1}},
 "error":{"type":{"key":"string","min":0,"max":1}}},"indexes":[["name"]]}}}`

// memory starts an OVSDB server without Open vSwitch, with an initialised database, and connects to it.
func memory(t *testing.T) *Database {
	t.Helper()
	var schema ovsdb.DatabaseSchema
	if err := json.Unmarshal([]byte(schemaText), &schema); err != nil {
		t.Fatal(err)
	}
	rows, err := databaseModel()
	if err != nil {
		t.Fatal(err)
	}
	combined, problems := model.NewDatabaseModel(schema, rows)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	stdr.SetVerbosity(0)
	memory, err := server.NewOvsdbServer(inmemory.NewDatabase(map[string]model.ClientDBModel{database: rows}), combined)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	go func() { _ = memory.Serve("unix", filepath.Join(dir, "db.sock")) }()
	t.Cleanup(memory.Close)
	await(t, "the OVSDB server", memory.Ready)
	db, err := OpenDatabase(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	must(t, db.transact(t.Context(), func() ([]ovsdb.Operation, error) { return db.client.Create(&rootRow{UUID: "root"}) }))
	await(t, "the root row", func() bool { _, err := db.root(t.Context()); return err == nil })
	return db
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits for the server, or for the cache, which follows the database.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func bridgeOf(t *testing.T, db *Database) Bridge {
	t.Helper()
	bridge, err := db.Bridge(t.Context(), "br-rail0")
	must(t, err)
	if bridge == nil {
		return Bridge{}
	}
	return *bridge
}

var wanted = Bridge{Name: "br-rail0", FailMode: "secure", DatapathType: "netdev", HWAddr: "02:00:00:00:00:01", Owner: "node1/rail0"}

func TestBridge(t *testing.T) {
	db := memory(t)
	if got := bridgeOf(t, db); got.Name != "" {
		t.Fatalf("an empty database has %+v", got)
	}
	for range 2 { // twice is once
		must(t, db.EnsureBridge(t.Context(), wanted, "p0"))
		await(t, "the bridge", func() bool { return len(bridgeOf(t, db).Ports) == 2 })
	}
	got := bridgeOf(t, db)
	if got.FailMode != "secure" || got.InBand || got.Owner != wanted.Owner || got.HWAddr != wanted.HWAddr || got.Controllers != 0 {
		t.Errorf("%+v", got)
	}
	select {
	case <-db.Changed():
	default:
		t.Error("no change was signalled")
	}
	if owners := db.Owners(t.Context()); len(owners) != 1 || owners[wanted.Name] != wanted.Owner {
		t.Errorf("owners: %v", owners)
	}
}

// TestBridgeIsCorrected: what somebody changed is set again, and what is theirs stays.
func TestBridgeIsCorrected(t *testing.T) {
	db := memory(t)
	must(t, db.EnsureBridge(t.Context(), wanted, "p0"))
	await(t, "the bridge", func() bool { return len(bridgeOf(t, db).Ports) == 2 })
	row, err := db.bridgeRow(t.Context(), "br-rail0")
	must(t, err)
	open := "standalone"
	must(t, db.transact(t.Context(), func() ([]ovsdb.Operation, error) {
		changed := *row
		changed.FailMode = &open
		return db.client.Where(row).Update(&changed, &changed.FailMode)
	}, func() ([]ovsdb.Operation, error) {
		return db.client.Where(row).Mutate(row, append(setKey(&row.ExternalIDs, "theirs", "kept"), setKey(&row.OtherConfig, noInBand, "false")...)...)
	}))
	must(t, db.DeletePort(t.Context(), "br-rail0", "p0"))
	await(t, "the change", func() bool { b := bridgeOf(t, db); return b.FailMode == open && b.InBand && len(b.Ports) == 1 })
	must(t, db.EnsureBridge(t.Context(), wanted, "p0"))
	await(t, "the correction", func() bool { b := bridgeOf(t, db); return b.FailMode == "secure" && !b.InBand && len(b.Ports) == 2 })
	row, err = db.bridgeRow(t.Context(), "br-rail0")
	must(t, err)
	if row.ExternalIDs["theirs"] != "kept" || row.ExternalIDs[OwnerKey] != wanted.Owner {
		t.Errorf("external_ids %v", row.ExternalIDs)
	}
}

func TestPorts(t *testing.T) {
	db := memory(t)
	must(t, db.EnsureBridge(t.Context(), wanted, "p0"))
	await(t, "the bridge", func() bool { return len(bridgeOf(t, db).Ports) == 2 })
	ids := map[string]string{"owner": "ovs-cni", "contNetns": "/run/netns/a"}
	must(t, db.AddPort(t.Context(), "br-rail0", "veth1", ids, 7))
	await(t, "the port", func() bool { return len(bridgeOf(t, db).Ports) == 3 })
	if port := bridgeOf(t, db).Ports["veth1"]; port.OFPort != 0 || port.ExternalIDs["contNetns"] != "/run/netns/a" {
		t.Errorf("%+v", port)
	}
	// ovs-vswitchd answers with a number, or with an error.
	links, err := list[interfaceRow](t.Context(), db)
	must(t, err)
	for i := range links {
		if links[i].Name == "veth1" {
			number := 12
			must(t, db.transact(t.Context(), func() ([]ovsdb.Operation, error) {
				changed := links[i]
				changed.OFPort = &number
				return db.client.Where(&links[i]).Update(&changed, &changed.OFPort)
			}))
		}
	}
	await(t, "the number", func() bool { return bridgeOf(t, db).Ports["veth1"].OFPort == 12 })
	for _, text := range []string{"first", "second"} {
		must(t, db.MarkPort(t.Context(), "br-rail0", "veth1", "railweave", text))
		await(t, "the mark", func() bool { return bridgeOf(t, db).Ports["veth1"].ExternalIDs["railweave"] == text })
	}
	if port := bridgeOf(t, db).Ports["veth1"]; port.ExternalIDs["owner"] != "ovs-cni" {
		t.Errorf("the mark replaced what ovs-cni wrote: %v", port.ExternalIDs)
	}
	links, err = list[interfaceRow](t.Context(), db)
	must(t, err)
	for _, link := range links {
		if link.Name == "veth1" && deref(link.OFPortRequest) != 12 {
			t.Errorf("the number is not pinned: %v", deref(link.OFPortRequest))
		}
	}
	for range 2 {
		must(t, db.DeletePort(t.Context(), "br-rail0", "veth1"))
		await(t, "the deletion", func() bool { return len(bridgeOf(t, db).Ports) == 2 })
	}
	if err := db.MarkPort(t.Context(), "br-rail0", "veth1", "railweave", "x"); err == nil {
		t.Error("a port that is gone was marked")
	}
	if err := db.AddPort(t.Context(), "br-other", "veth2", nil, 0); err == nil {
		t.Error("a port was added to a bridge that does not exist")
	}
}

func TestOtherConfig(t *testing.T) {
	db := memory(t)
	must(t, db.SetOtherConfig(t.Context(), "hw-offload", "true"))
	await(t, "the setting", func() bool { c, err := db.OtherConfig(t.Context()); return err == nil && c["hw-offload"] == "true" })
}

// TestSilentDatabase: no answer is another error than a refusal.
func TestSilentDatabase(t *testing.T) {
	db := memory(t)
	must(t, db.EnsureBridge(t.Context(), wanted, "p0"))
	await(t, "the bridge", func() bool { return len(bridgeOf(t, db).Ports) == 2 })
	if err := db.MarkPort(t.Context(), wanted.Name, "none", "key", "value"); err == nil || errors.Is(err, ErrSilent) {
		t.Errorf("a port that is not there: %v", err)
	}
	db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := db.MarkPort(ctx, wanted.Name, "p0", "key", "value"); !errors.Is(err, ErrSilent) {
		t.Errorf("a database that is away: %v", err)
	}
}
