package vswitch

import (
	"encoding/json"
	"log"
	"path/filepath"
	"testing"
	"time"

	"github.com/cenkalti/rpc2"
	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/client"
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
	log.SetOutput(testWriter{t})
	quiet := logr.Discard()
	memory, err := server.NewOvsdbServer(inmemory.NewDatabase(map[string]model.ClientDBModel{database: rows}, &quiet), &quiet, combined)
	if err != nil {
		t.Fatal(err)
	}
	memory.OnConnect(func(*rpc2.Client) {})
	dir := t.TempDir()
	go func() { _ = memory.Serve("unix", filepath.Join(dir, "db.sock")) }()
	t.Cleanup(memory.Close)
	deadline := time.Now().Add(5 * time.Second)
	for !memory.Ready() {
		if time.Now().After(deadline) {
			t.Fatal("the OVSDB server does not start")
		}
		time.Sleep(time.Millisecond)
	}
	initialise(t, dir, rows)
	db, err := OpenDatabase(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}
