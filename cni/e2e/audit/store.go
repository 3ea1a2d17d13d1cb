package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// attachmentRecord is an attachment as docs/cni/interfaces.md describes it.
type attachmentRecord struct {
	Network     string         `json:"network"`
	ContainerID string         `json:"containerID"`
	Interface   string         `json:"interface"`
	NetnsInode  uint64         `json:"netnsInode"`
	Rail        string         `json:"rail"`
	Port        string         `json:"port"`
	MAC         string         `json:"mac"`
	Addresses   []netip.Prefix `json:"addresses"`
	Announced   bool           `json:"announced"`
}

func (r attachmentRecord) String() string {
	return r.Network + "/" + r.ContainerID + "/" + r.Interface
}

func readStore(stateDir string) ([]attachmentRecord, error) {
	file := filepath.Join(stateDir, "store.json")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var sealed struct {
		Checksum string          `json:"checksum"`
		Body     json.RawMessage `json:"body"`
	}
	if err := json.Unmarshal(text, &sealed); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	sum := sha256.Sum256(sealed.Body)
	if want := "sha256:" + hex.EncodeToString(sum[:]); sealed.Checksum != want {
		return nil, fmt.Errorf("%s: checksum %s, contents have %s", file, sealed.Checksum, want)
	}
	var body struct {
		Attachments []attachmentRecord `json:"attachments"`
	}
	return body.Attachments, json.Unmarshal(sealed.Body, &body)
}

// auditStore compares the agent's store with the pods, and looks for tombstones that were never replayed.
func auditStore(e *expectation) ([]Finding, error) {
	records, err := readStore(e.agent.StateDir())
	if err != nil {
		return []Finding{e.finding("store", "%v", err)}, nil
	}
	var findings []Finding
	var want, got []string
	for _, a := range e.attachments {
		name := fmt.Sprintf("rail%d/%s/%s", a.Rail, a.pod.ContainerID, a.Interface)
		want = append(want, name)
		i := slices.IndexFunc(records, func(r attachmentRecord) bool { return r.String() == name })
		if i < 0 {
			continue
		}
		if problem := differs(records[i], a); problem != "" {
			findings = append(findings, e.finding("store", "%s: %s", name, problem))
		}
	}
	for _, r := range records {
		got = append(got, r.String())
	}
	findings = append(findings, e.compare("store", "attachment", want, got)...)
	tombstones, err := os.ReadDir(filepath.Join(e.agent.StateDir(), "tombstones"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, t := range tombstones {
		if !strings.HasPrefix(t.Name(), ".") {
			findings = append(findings, e.finding("store", "tombstone %s was not replayed", t.Name()))
		}
	}
	return findings, nil
}

func differs(r attachmentRecord, a expected) string {
	inode, err := a.pod.NS.Inode()
	if err != nil {
		return err.Error()
	}
	var hosts []netip.Addr
	for _, p := range r.Addresses {
		hosts = append(hosts, p.Addr())
	}
	switch {
	case r.NetnsInode != inode:
		return fmt.Sprintf("netns inode %d instead of %d", r.NetnsInode, inode)
	case r.Port != a.Port:
		return fmt.Sprintf("port %s instead of %s", r.Port, a.Port)
	case r.MAC != a.MAC:
		return fmt.Sprintf("MAC %s instead of %s", r.MAC, a.MAC)
	case !slices.Equal(hosts, a.Addresses):
		return fmt.Sprintf("addresses %v instead of %v", hosts, a.Addresses)
	case !r.Announced:
		return "not announced"
	}
	return ""
}

// auditIPAM compares the addresses that host-local has given out on the rails with the pods'.
func auditIPAM(e *expectation) ([]Finding, error) {
	var findings []Finding
	for rail := range e.rails {
		var want, got []string
		for _, a := range e.onRail(rail) {
			for _, addr := range a.Addresses {
				want = append(want, addr.String())
			}
		}
		dir := filepath.Join(e.node.Dir, "ipam", fmt.Sprintf("rail%d", rail))
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, entry := range entries {
			// host-local names a file after each address, with "_" for ":" where the file system asks for it.
			if addr, err := netip.ParseAddr(strings.ReplaceAll(entry.Name(), "_", ":")); err == nil {
				got = append(got, addr.String())
			}
		}
		findings = append(findings, e.compare("ipam", "address", want, got)...)
	}
	return findings, nil
}
