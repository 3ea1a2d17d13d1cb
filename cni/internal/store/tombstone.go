package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/durable"
)

const tombstoneDir = "tombstones"

// Verb is what a DEL wanted when the agent was down.
type Verb string

// The verbs of tombstones.
const (
	Detach   Verb = "detach"
	Withdraw Verb = "withdraw"
)

// Tombstone is a DEL that a plugin took on itself because the agent was down. The agent replays it before it serves.
type Tombstone struct {
	Verb Verb `json:"verb"`
	attachment.Key
}

func (t Tombstone) path(stateDir string) string {
	sum := sha256.Sum256([]byte(string(t.Verb) + "\x00" + t.Key.String()))
	return filepath.Join(stateDir, tombstoneDir, hex.EncodeToString(sum[:16])+".json")
}

// Bury writes the tombstone durably. Twice is once.
func Bury(stateDir string, tombstone Tombstone) error {
	dir := filepath.Join(stateDir, tombstoneDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := durable.SyncDir(stateDir); err != nil {
		return err
	}
	data, err := seal(tombstone)
	if err != nil {
		return err
	}
	return replace(tombstone.path(stateDir), data)
}

// DecodeTombstone verifies and checks a tombstone's contents.
func DecodeTombstone(name string, data []byte) (Tombstone, error) {
	var tombstone Tombstone
	if err := unseal(name, data, &tombstone); err != nil {
		return Tombstone{}, err
	}
	if tombstone.Verb != Detach && tombstone.Verb != Withdraw {
		return Tombstone{}, &DamagedError{name, fmt.Sprintf("verb %.20q", tombstone.Verb)}
	}
	if err := tombstone.Key.Validate(); err != nil {
		return Tombstone{}, &DamagedError{name, err.Error()}
	}
	return tombstone, nil
}

// Tombstones lists those that wait. Damaged ones are moved into quarantine and reported: their attachments are found by the
// sweep once their netns is dead. With an error nobody knows what waits.
func Tombstones(stateDir string) (found []Tombstone, damaged, err error) {
	dir := filepath.Join(stateDir, tombstoneDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue // a write that did not finish: its plugin did not report success
		}
		path := filepath.Join(dir, entry.Name())
		data, err := os.ReadFile(path) // #nosec G304 -- the state directory
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, damaged, err
		}
		tombstone, problem := DecodeTombstone(path, data)
		if problem != nil {
			if err := setAside(stateDir, path); err != nil {
				return nil, damaged, errors.Join(problem, err)
			}
			damaged = errors.Join(damaged, problem)
			continue
		}
		found = append(found, tombstone)
	}
	return found, damaged, nil
}

// Buried tells whether a tombstone still waits.
func Buried(stateDir string, tombstone Tombstone) bool {
	_, err := os.Stat(tombstone.path(stateDir))
	return !errors.Is(err, fs.ErrNotExist)
}

// Ended tells which of the attachments have a tombstone, of either verb. Of a directory that cannot be read it tells of none: pods that
// run are not to be cut off for it. While none waits it costs one look at an empty directory.
func Ended(stateDir string, keys []attachment.Key) map[attachment.Key]bool {
	entries, err := os.ReadDir(filepath.Join(stateDir, tombstoneDir))
	if err != nil || len(entries) == 0 {
		return nil
	}
	names := map[string]bool{}
	for _, entry := range entries {
		names[entry.Name()] = true
	}
	ended := map[attachment.Key]bool{}
	for _, key := range keys {
		for _, verb := range []Verb{Detach, Withdraw} {
			if names[filepath.Base(Tombstone{Verb: verb, Key: key}.path(stateDir))] {
				ended[key] = true
			}
		}
	}
	return ended
}

func setAside(stateDir, path string) error {
	quarantine := filepath.Join(stateDir, quarantineDir)
	if err := os.MkdirAll(quarantine, 0o700); err != nil {
		return err
	}
	return os.Rename(path, filepath.Join(quarantine, "tombstone-"+filepath.Base(path)))
}

// Exhume removes a tombstone that was replayed.
func Exhume(stateDir string, tombstone Tombstone) error {
	err := os.Remove(tombstone.path(stateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
