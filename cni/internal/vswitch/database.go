// Package vswitch is the agent's hand in Open vSwitch: its database (OVSDB), its flows (ovs-ofctl bundles) and its
// daemon's control socket. It knows nothing of pods or tenants.
package vswitch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// OwnerKey in a bridge's external_ids says whose it is.
const OwnerKey = "railweave-owner"

// Port is a port of a bridge as the database has it. A port here has one interface.
type Port struct {
	Name        string
	OFPort      int // 0: not (yet) known to the switch, or an error
	Error       string
	ExternalIDs map[string]string
}

// Bridge is a bridge as the database has it.
type Bridge struct {
	Name         string
	FailMode     string
	DatapathType string
	HWAddr       string // requested for the LOCAL port
	// InBand: Open vSwitch may add flows of its own, above all others and not among those it lists: where it has a manager over TCP
	// they flood ARP and what has the manager's address, whoever sends it.
	InBand      bool
	Owner       string
	Controllers int
	Ports       map[string]Port
}

// Database follows and changes the Open_vSwitch database.
type Database struct {
	client  client.Client
	changed chan struct{}

	mutex sync.Mutex
	// bridges as last read; nil after a change. They are shared and never changed.
	bridges map[string]*Bridge
}

// noInBand in a bridge's other_config keeps in-band control off it.
const noInBand = "disable-in-band"

// ErrSilent says that Open vSwitch did not answer in time, or is not there to: nothing of what was asked is known to be wrong.
var ErrSilent = errors.New("no answer of Open vSwitch")

// transactTimeout: a transaction takes about a millisecond; a database that needs seconds is down.
const transactTimeout = 5 * time.Second

// OpenDatabase connects to the database in an OVS_RUNDIR and follows it; it reconnects on its own.
func OpenDatabase(ctx context.Context, runDir string) (*Database, error) {
	schema, err := databaseModel()
	if err != nil {
		return nil, err
	}
	quiet := logr.Discard()
	connection, err := client.NewOVSDBClient(schema, client.WithEndpoint("unix:"+filepath.Join(runDir, "db.sock")), client.WithLogger(&quiet),
		client.WithReconnect(transactTimeout, backoff.NewConstantBackOff(100*time.Millisecond)))
	if err != nil {
		return nil, err
	}
	if err := connection.Connect(ctx); err != nil {
		connection.Close()
		return nil, fmt.Errorf("OVSDB in %s: %w", runDir, err)
	}
	db := &Database{client: connection, changed: make(chan struct{}, 1)}
	connection.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(string, model.Model) { db.notify() },
		UpdateFunc: func(string, model.Model, model.Model) { db.notify() },
		DeleteFunc: func(string, model.Model) { db.notify() },
	})
	_, err = connection.Monitor(ctx, connection.NewMonitor(monitored()...))
	if err != nil {
		connection.Close()
		return nil, fmt.Errorf("OVSDB in %s: %w", runDir, err)
	}
	return db, nil
}

// monitored are the columns of the rows' types: a monitor of all columns would bring some that the types lack, and the cache
// refuses such updates.
func monitored() []client.MonitorOption {
	root, bridge, port, link := &rootRow{}, &bridgeRow{}, &portRow{}, &interfaceRow{}
	return []client.MonitorOption{
		client.WithTable(root, &root.Bridges, &root.OtherConfig),
		client.WithTable(bridge, &bridge.Name, &bridge.Ports, &bridge.FailMode, &bridge.DatapathType, &bridge.Controller, &bridge.OtherConfig, &bridge.ExternalIDs),
		client.WithTable(port, &port.Name, &port.Interfaces, &port.ExternalIDs),
		client.WithTable(link, &link.Name, &link.Type, &link.OFPort, &link.OFPortRequest, &link.Error),
	}
}

func (d *Database) notify() {
	d.mutex.Lock()
	d.bridges = nil
	d.mutex.Unlock()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// Changed is signalled after changes; several may come as one.
func (d *Database) Changed() <-chan struct{} { return d.changed }

// Answers tells why ovsdb-server does not answer, so that what Bridge tells may be old; nil if it does. The library's own word
// for it, Connected, stays true while it tries to connect again.
func (d *Database) Answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, transactTimeout)
	defer cancel()
	return d.client.Echo(ctx)
}

// Close ends the connection.
func (d *Database) Close() { d.client.Close() }

func list[T any](ctx context.Context, d *Database) ([]T, error) {
	var rows []T
	err := d.client.List(ctx, &rows)
	return rows, err
}

func deref[T any](pointer *T) T {
	var zero T
	if pointer == nil {
		return zero
	}
	return *pointer
}

// Bridge is a bridge with its ports, which the caller may not change; nil if there is none of that name.
func (d *Database) Bridge(_ context.Context, name string) (*Bridge, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.bridges == nil {
		// Many wait for their ports at once: the tables are gone through once a change, not once a question.
		d.bridges = d.readBridges()
	}
	return d.bridges[name], nil
}

// Owners are the bridges that agents have made, with the rail each is of.
func (d *Database) Owners(context.Context) map[string]string {
	owners := map[string]string{}
	for _, row := range shared[bridgeRow](d, "Bridge") {
		if owner := row.ExternalIDs[OwnerKey]; owner != "" {
			owners[row.Name] = owner
		}
	}
	return owners
}

// shared are a table's rows without copies of them: only to be read.
func shared[T any](d *Database, table string) map[string]*T {
	rows := map[string]*T{}
	for uuid, row := range d.client.Cache().Table(table).RowsShallow() {
		if typed, ok := row.(*T); ok {
			rows[uuid] = typed
		}
	}
	return rows
}

func (d *Database) readBridges() map[string]*Bridge {
	ports, links := shared[portRow](d, "Port"), shared[interfaceRow](d, "Interface")
	bridges := map[string]*Bridge{}
	for _, row := range shared[bridgeRow](d, "Bridge") {
		bridge := &Bridge{
			Name: row.Name, FailMode: deref(row.FailMode), DatapathType: row.DatapathType, HWAddr: row.OtherConfig["hwaddr"],
			InBand: row.OtherConfig[noInBand] != "true", Owner: row.ExternalIDs[OwnerKey], Controllers: len(row.Controller), Ports: map[string]Port{},
		}
		for _, uuid := range row.Ports {
			port := ports[uuid]
			if port == nil {
				continue // its row comes with the next update
			}
			entry := Port{Name: port.Name, ExternalIDs: maps.Clone(port.ExternalIDs)}
			if len(port.Interfaces) == 1 {
				if link := links[port.Interfaces[0]]; link != nil {
					entry.OFPort = max(deref(link.OFPort), 0) // -1 is an error
					entry.Error = deref(link.Error)
				}
			}
			bridge.Ports[port.Name] = entry
		}
		bridges[row.Name] = bridge
	}
	return bridges
}

// bridgeRow finds a bridge by its name, which is an index of the table; nil if there is none.
func (d *Database) bridgeRow(ctx context.Context, name string) (*bridgeRow, error) {
	row := &bridgeRow{Name: name}
	err := d.client.Get(ctx, row)
	if errors.Is(err, client.ErrNotFound) {
		return nil, nil
	}
	return row, err
}

func (d *Database) root(ctx context.Context) (*rootRow, error) {
	rows, err := list[rootRow](ctx, d)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 {
		return nil, errors.New("the Open_vSwitch table has no row: is ovsdb-server initialised (ovs-vsctl init)?")
	}
	return &rows[0], nil
}

// OtherConfig is Open_vSwitch.other_config.
func (d *Database) OtherConfig(ctx context.Context) (map[string]string, error) {
	root, err := d.root(ctx)
	if err != nil {
		return nil, err
	}
	return maps.Clone(root.OtherConfig), nil
}

// SetOtherConfig sets one key of Open_vSwitch.other_config.
func (d *Database) SetOtherConfig(ctx context.Context, key, value string) error {
	root, err := d.root(ctx)
	if err != nil {
		return err
	}
	if root.OtherConfig[key] == value {
		return nil
	}
	return d.transact(ctx, func() ([]ovsdb.Operation, error) {
		return d.client.Where(root).Mutate(root, setKey(&root.OtherConfig, key, value)...)
	})
}

// setKey replaces one key of a map column and leaves the others to whoever set them.
func setKey(column *map[string]string, key, value string) []model.Mutation {
	return []model.Mutation{
		{Field: column, Mutator: ovsdb.MutateOperationDelete, Value: []string{key}},
		{Field: column, Mutator: ovsdb.MutateOperationInsert, Value: map[string]string{key: value}},
	}
}

type operations func() ([]ovsdb.Operation, error)

// transact runs the operations of all parts in one transaction.
func (d *Database) transact(ctx context.Context, parts ...operations) error {
	ctx, cancel := context.WithTimeout(ctx, transactTimeout)
	defer cancel()
	var all []ovsdb.Operation
	for _, part := range parts {
		ops, err := part()
		if err != nil {
			return err
		}
		all = append(all, ops...)
	}
	results, err := d.client.Transact(ctx, all...)
	if err != nil && (ctx.Err() != nil || errors.Is(err, client.ErrNotConnected)) {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	if err != nil {
		return err
	}
	_, err = ovsdb.CheckOperationResults(results, all)
	return err
}

// EnsureBridge creates the bridge, or corrects it, and puts the uplink on it. Ports it already has stay. It is without in-band control,
// whatever is wanted.
func (d *Database) EnsureBridge(ctx context.Context, wanted Bridge, uplink string) error {
	row, err := d.bridgeRow(ctx, wanted.Name)
	if err != nil {
		return err
	}
	if row == nil {
		return d.createBridge(ctx, wanted, uplink)
	}
	current, err := d.Bridge(ctx, wanted.Name)
	if err != nil {
		return err
	}
	if current.FailMode != wanted.FailMode || current.DatapathType != wanted.DatapathType || current.HWAddr != wanted.HWAddr || current.InBand || current.Owner != wanted.Owner {
		err = d.transact(ctx, func() ([]ovsdb.Operation, error) {
			changed := *row
			changed.FailMode, changed.DatapathType = &wanted.FailMode, wanted.DatapathType
			return d.client.Where(row).Update(&changed, &changed.FailMode, &changed.DatapathType)
		}, func() ([]ovsdb.Operation, error) {
			return d.client.Where(row).Mutate(row, slices.Concat(setKey(&row.OtherConfig, "hwaddr", wanted.HWAddr), setKey(&row.OtherConfig, noInBand, "true"),
				setKey(&row.ExternalIDs, OwnerKey, wanted.Owner))...)
		})
		if err != nil {
			return err
		}
	}
	if _, there := current.Ports[uplink]; !there {
		return d.AddPort(ctx, wanted.Name, uplink, nil, 0)
	}
	return nil
}

func (d *Database) createBridge(ctx context.Context, wanted Bridge, uplink string) error {
	root, err := d.root(ctx)
	if err != nil {
		return err
	}
	// The names of rows inside the transaction.
	const bridgeID, localID, localInterfaceID, uplinkID, uplinkInterfaceID = "rwbridge", "rwlocal", "rwlocalif", "rwuplink", "rwuplinkif"
	return d.transact(ctx, func() ([]ovsdb.Operation, error) {
		return d.client.Create(
			&interfaceRow{UUID: localInterfaceID, Name: wanted.Name, Type: "internal"},
			&portRow{UUID: localID, Name: wanted.Name, Interfaces: []string{localInterfaceID}},
			&interfaceRow{UUID: uplinkInterfaceID, Name: uplink},
			&portRow{UUID: uplinkID, Name: uplink, Interfaces: []string{uplinkInterfaceID}},
			&bridgeRow{UUID: bridgeID, Name: wanted.Name, Ports: []string{localID, uplinkID}, FailMode: &wanted.FailMode, DatapathType: wanted.DatapathType,
				OtherConfig: map[string]string{"hwaddr": wanted.HWAddr, noInBand: "true"}, ExternalIDs: map[string]string{OwnerKey: wanted.Owner}})
	}, func() ([]ovsdb.Operation, error) {
		return d.client.Where(root).Mutate(root, model.Mutation{Field: &root.Bridges, Mutator: ovsdb.MutateOperationInsert, Value: []string{bridgeID}})
	})
}

// AddPort puts a link on a bridge; number asks for an OpenFlow port number, 0 for any.
func (d *Database) AddPort(ctx context.Context, bridge, name string, externalIDs map[string]string, number int) error {
	row, err := d.bridgeRow(ctx, bridge)
	if err != nil {
		return err
	}
	if row == nil {
		return fmt.Errorf("bridge %s is gone", bridge)
	}
	const portID, interfaceID = "rwport", "rwif"
	link := &interfaceRow{UUID: interfaceID, Name: name}
	if number > 0 {
		link.OFPortRequest = &number
	}
	return d.transact(ctx, func() ([]ovsdb.Operation, error) {
		return d.client.Create(link, &portRow{UUID: portID, Name: name, Interfaces: []string{interfaceID}, ExternalIDs: externalIDs})
	}, func() ([]ovsdb.Operation, error) {
		return d.client.Where(row).Mutate(row, model.Mutation{Field: &row.Ports, Mutator: ovsdb.MutateOperationInsert, Value: []string{portID}})
	})
}

// portRow finds a port of a bridge; the port is nil if the bridge has none of that name.
func (d *Database) portRow(ctx context.Context, bridge, name string) (*bridgeRow, *portRow, error) {
	row, err := d.bridgeRow(ctx, bridge)
	if row == nil || err != nil {
		return nil, nil, err
	}
	port := &portRow{Name: name}
	err = d.client.Get(ctx, port)
	if errors.Is(err, client.ErrNotFound) || err == nil && !slices.Contains(row.Ports, port.UUID) {
		return row, nil, nil
	}
	return row, port, err
}

// DeletePort takes a port off a bridge; one that is not there is success. Its Interface row goes with it (no row refers to it any more).
func (d *Database) DeletePort(ctx context.Context, bridge, name string) error {
	row, port, err := d.portRow(ctx, bridge, name)
	if port == nil || err != nil {
		return err
	}
	return d.transact(ctx, func() ([]ovsdb.Operation, error) {
		return d.client.Where(row).Mutate(row, model.Mutation{Field: &row.Ports, Mutator: ovsdb.MutateOperationDelete, Value: []string{port.UUID}})
	})
}

// MarkPort writes one key of the port's external_ids and pins its OpenFlow number, so that the number is the same after
// a restart of ovs-vswitchd and no flow ever serves another pod's port.
func (d *Database) MarkPort(ctx context.Context, bridge, name, key, value string) error {
	_, port, err := d.portRow(ctx, bridge, name)
	if err != nil {
		return err
	}
	if port == nil || len(port.Interfaces) != 1 {
		return fmt.Errorf("port %s is gone from bridge %s", name, bridge)
	}
	link := &interfaceRow{UUID: port.Interfaces[0]}
	if err := d.client.Get(ctx, link); err != nil {
		return err
	}
	parts := []operations{func() ([]ovsdb.Operation, error) {
		return d.client.Where(port).Mutate(port, setKey(&port.ExternalIDs, key, value)...)
	}}
	if deref(link.OFPort) > 0 && deref(link.OFPortRequest) != *link.OFPort {
		parts = append(parts, func() ([]ovsdb.Operation, error) {
			changed := *link
			changed.OFPortRequest = link.OFPort
			return d.client.Where(link).Update(&changed, &changed.OFPortRequest)
		})
	}
	return d.transact(ctx, parts...)
}
