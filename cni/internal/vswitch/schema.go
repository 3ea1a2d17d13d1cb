package vswitch

import "github.com/ovn-kubernetes/libovsdb/model"

// The tables and columns of the Open_vSwitch schema the agent reads or writes (ovs-vswitchd.conf.db(5)).

type rootRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Bridges     []string          `ovsdb:"bridges"`
	OtherConfig map[string]string `ovsdb:"other_config"`
}

type bridgeRow struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	Ports        []string          `ovsdb:"ports"`
	FailMode     *string           `ovsdb:"fail_mode"`
	DatapathType string            `ovsdb:"datapath_type"`
	Controller   []string          `ovsdb:"controller"`
	OtherConfig  map[string]string `ovsdb:"other_config"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
}

type portRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []string          `ovsdb:"interfaces"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type interfaceRow struct {
	UUID          string  `ovsdb:"_uuid"`
	Name          string  `ovsdb:"name"`
	Type          string  `ovsdb:"type"`
	OFPort        *int    `ovsdb:"ofport"`
	OFPortRequest *int    `ovsdb:"ofport_request"`
	Error         *string `ovsdb:"error"`
}

const database = "Open_vSwitch"

func databaseModel() (model.ClientDBModel, error) {
	return model.NewClientDBModel(database, map[string]model.Model{
		"Open_vSwitch": &rootRow{},
		"Bridge":       &bridgeRow{},
		"Port":         &portRow{},
		"Interface":    &interfaceRow{},
	})
}
