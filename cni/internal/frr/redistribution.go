package frr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ErrZebraAway says that bgpd has no connection to zebra: what it redistributes cannot be refreshed now.
var ErrZebraAway = errors.New("bgpd is not connected to zebra; see whether zebra runs")

// Originated lists the host routes that bgpd holds as the node's own: those it sends to the leafs whose pools they are of.
func (d *Daemon) Originated(ctx context.Context) (map[netip.Addr]bool, error) {
	// Filtered by bgpd: the whole table has a route of every pod of the cluster.
	found := map[netip.Addr]bool{}
	for _, family := range []string{"ipv4", "ipv6"} {
		text, err := d.ask(ctx, "bgpd", "show bgp "+family+" unicast filter-list RW-OWN json")
		if err != nil {
			return nil, err
		}
		if err := parseOriginated(text, found); err != nil {
			return nil, fmt.Errorf("show bgp %s unicast filter-list RW-OWN: %w", family, err)
		}
	}
	return found, nil
}

// parseOriginated adds the host routes of a table, as bgpd prints it, to those found.
func parseOriginated(text string, found map[netip.Addr]bool) error {
	var table struct {
		Routes map[netip.Prefix]json.RawMessage `json:"routes"`
	}
	if err := json.Unmarshal([]byte(text), &table); err != nil {
		return err
	}
	if table.Routes == nil {
		return fmt.Errorf("no table of routes: %q", text) // bgpd has no instance yet
	}
	for prefix := range table.Routes {
		if prefix.IsSingleIP() {
			found[prefix.Addr()] = true
		}
	}
	return nil
}

// Advertised lists the host routes that bgpd has told the leafs and not taken back. A leaf without a session was told nothing.
func (d *Daemon) Advertised(ctx context.Context) (map[netip.Addr]bool, error) {
	found := map[netip.Addr]bool{}
	for _, n := range neighbors(d.config) {
		for _, family := range n.families {
			command := fmt.Sprintf("show bgp %s unicast neighbors %s advertised-routes json", family, n.name)
			text, err := d.ask(ctx, "bgpd", command)
			if err != nil {
				return nil, err
			}
			var table struct {
				Routes map[netip.Prefix]json.RawMessage `json:"advertisedRoutes"`
			}
			if err := json.Unmarshal([]byte(text), &table); err != nil {
				return nil, fmt.Errorf("%s: %w", command, err)
			}
			for prefix := range table.Routes {
				if prefix.IsSingleIP() {
					found[prefix.Addr()] = true
				}
			}
		}
	}
	return found, nil
}

// Redistribute makes bgpd ask zebra for the announcements again, since FRR 8.4's bgpd connects to a restarted zebra without
// registering its redistribution. What bgpd holds already stays if its registration was lost. Without a connection to zebra
// nothing could be asked, and routes could be lost until there is one: this is refused with ErrZebraAway.
func (d *Daemon) Redistribute(ctx context.Context, ipv4 bool) error {
	clients, err := d.ask(ctx, "zebra", "show zebra client summary")
	if err != nil {
		return errors.Join(ErrZebraAway, err)
	}
	if !hasBGP(clients) {
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

// hasBGP looks for bgpd in the first column of `show zebra client summary`.
func hasBGP(summary string) bool {
	for line := range strings.Lines(summary) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "bgp" {
			return true
		}
	}
	return false
}
