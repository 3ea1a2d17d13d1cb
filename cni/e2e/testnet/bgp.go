package testnet

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Session is one BGP session as bgpd reports it.
type Session struct {
	Peer  string
	State string
}

// Established reports whether routes are exchanged.
func (s Session) Established() bool { return s.State == "Established" }

// Sessions lists a router's BGP sessions.
func (r Router) Sessions() ([]Session, error) { return r.FRR.Sessions() }

// Sessions lists the BGP sessions, sorted by peer; a session that carries both families is listed once.
func (f FRR) Sessions() ([]Session, error) {
	text, err := f.VTYSH("show bgp summary json")
	if err != nil {
		return nil, err
	}
	var families map[string]struct {
		Peers map[string]struct {
			State string `json:"state"`
		} `json:"peers"`
	}
	if err := json.Unmarshal([]byte(text), &families); err != nil {
		return nil, fmt.Errorf("%s: show bgp summary json: %w", f.Pathspace(), err)
	}
	states := map[string]string{}
	for _, family := range families {
		for peer, s := range family.Peers {
			states[peer] = s.State
		}
	}
	var sessions []Session
	for peer, state := range states {
		sessions = append(sessions, Session{Peer: peer, State: state})
	}
	slices.SortFunc(sessions, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	return sessions, nil
}

// Route is a best path in a BGP table.
type Route struct {
	Prefix netip.Prefix
	Peer   string // interface or address of the neighbour it came from
	ASPath string
}

// Routes lists the best paths of both families, sorted by prefix.
func (f FRR) Routes() ([]Route, error) {
	text, err := f.VTYSH("show bgp ipv4 unicast json", "show bgp ipv6 unicast json")
	if err != nil {
		return nil, err
	}
	var routes []Route
	decoder := json.NewDecoder(strings.NewReader(text))
	for range 2 {
		var table struct {
			Routes map[netip.Prefix][]struct {
				Bestpath bool   `json:"bestpath"`
				PeerID   string `json:"peerId"`
				Path     string `json:"path"`
			} `json:"routes"`
		}
		if err := decoder.Decode(&table); err != nil {
			return nil, fmt.Errorf("%s: show bgp unicast: %w", f.Pathspace(), err)
		}
		for prefix, paths := range table.Routes {
			for _, path := range paths {
				if path.Bestpath {
					routes = append(routes, Route{Prefix: prefix, Peer: path.PeerID, ASPath: path.Path})
				}
			}
		}
	}
	slices.SortFunc(routes, func(a, b Route) int {
		if c := a.Prefix.Addr().Compare(b.Prefix.Addr()); c != 0 {
			return c
		}
		return a.Prefix.Bits() - b.Prefix.Bits()
	})
	return routes, nil
}
