package frr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// ErrZebraAway says that bgpd has no connection to zebra: what it redistributes cannot be refreshed now.
var ErrZebraAway = errors.New("bgpd is not connected to zebra; see whether zebra runs")

// Originated lists the host routes that bgpd holds as the node's own: those it sends to the leafs whose pools they are of.
func (d *Daemon) Originated(ctx context.Context) (map[netip.Addr]bool, error) {
	// Filtered by bgpd: the whole table has a route of every pod of the cluster.
	text, err := d.vtysh(ctx, "show bgp ipv4 unicast filter-list RW-OWN json", "show bgp ipv6 unicast filter-list RW-OWN json")
	if err != nil {
		return nil, err
	}
	return parseOriginated(text)
}

func parseOriginated(text string) (map[netip.Addr]bool, error) {
	found := map[netip.Addr]bool{}
	decoder := json.NewDecoder(strings.NewReader(text))
	tables := 0
	for ; ; tables++ {
		var table struct {
			Routes map[netip.Prefix]json.RawMessage `json:"routes"`
		}
		if err := decoder.Decode(&table); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("show bgp unicast filter-list RW-OWN: %w", err)
		}
		for prefix := range table.Routes {
			if prefix.IsSingleIP() {
				found[prefix.Addr()] = true
			}
		}
	}
	if tables != 2 {
		return nil, fmt.Errorf("show bgp unicast filter-list RW-OWN: %d tables instead of one for each address family: %q", tables, text)
	}
	return found, nil
}

// Redistribute makes bgpd ask zebra for the announcements again, since FRR 8.4's bgpd connects to a restarted zebra without
// registering its redistribution. What bgpd holds already stays if its registration was lost. Without a connection to zebra
// nothing could be asked, and routes could be lost until there is one: this is refused with ErrZebraAway.
func (d *Daemon) Redistribute(ctx context.Context, ipv4 bool) error {
	clients, err := d.vtysh(ctx, "show zebra client summary")
	if err != nil {
		return errors.Join(ErrZebraAway, err)
	}
	if !hasClient(clients, "bgp") {
		return ErrZebraAway
	}
	family := "ipv6"
	if ipv4 {
		family = "ipv4"
	}
	_, err = d.vtysh(ctx, "configure terminal", fmt.Sprintf("router bgp %d", d.config.ASN), "address-family "+family+" unicast",
		"no redistribute kernel", "redistribute kernel route-map RW-ANNOUNCE")
	return err
}

// hasClient looks for a name in the first column of `show zebra client summary`.
func hasClient(summary, name string) bool {
	for line := range strings.Lines(summary) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == name {
			return true
		}
	}
	return false
}
