// Package store keeps what the agent must not forget: which attachments exist. One file, one writer, replaced
// atomically, with a checksum. A file that does not verify is moved aside, never guessed at.
package store

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/railweave/railweave/cni/internal/attachment"
)

const (
	fileName      = "store.json"
	quarantineDir = "quarantine"
	version       = 1
)

// State is the store's contents.
type State struct {
	Version int    `json:"version"`
	BootID  string `json:"bootID"`
	// Generation is the last one given to a published address: they never repeat, across restarts either.
	Generation  uint64                   `json:"generation"`
	Attachments []*attachment.Attachment `json:"attachments"`
	// LeafMACs by rail, as last heard: after a restart of the agent packets go on to the leaf before FRR has answered.
	LeafMACs map[string]string `json:"leafMACs,omitempty"`
}

// DamagedError says why a file did not verify.
type DamagedError struct {
	File, Problem string
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %s", e.File, e.Problem) }

type sealed struct {
	Checksum string          `json:"checksum"`
	Body     json.RawMessage `json:"body"`
}

func checksum(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// seal and unseal are the file format of the store and of the tombstones. The checksum is over the body's bytes as they stand in the file.
func seal(body any) ([]byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return json.Marshal(sealed{checksum(data), data})
}

func unseal(name string, data []byte, body any) error {
	var file sealed
	if err := json.Unmarshal(data, &file); err != nil {
		return &DamagedError{name, err.Error()}
	}
	if actual := checksum(file.Body); actual != file.Checksum {
		return &DamagedError{name, fmt.Sprintf("its checksum says %.80q, its contents have %s", file.Checksum, actual)}
	}
	if err := json.Unmarshal(file.Body, body); err != nil {
		return &DamagedError{name, err.Error()}
	}
	return nil
}

// writeAtomically leaves either the old file or the new one, also after a power cut.
func writeAtomically(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	temporary, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temporary.Name()))
		}
	}()
	_, err = temporary.Write(data)
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	if err = os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	handle, err := os.Open(dir) // #nosec G304 -- the state directory
	if err != nil {
		return err
	}
	return errors.Join(handle.Sync(), handle.Close())
}

// WriteSealed replaces a file by a body with its checksum, as the store is.
func WriteSealed(path string, body any) error {
	data, err := seal(body)
	if err != nil {
		return err
	}
	return writeAtomically(path, data)
}

// ReadSealed is the inverse of WriteSealed. A file that does not verify is a DamagedError.
func ReadSealed(path string, body any) error {
	data, err := os.ReadFile(path) // #nosec G304 -- the state directory
	if err != nil {
		return err
	}
	return unseal(path, data, body)
}

// Decode verifies and checks a store file's contents.
func Decode(name string, data []byte) (*State, error) {
	var state State
	if err := unseal(name, data, &state); err != nil {
		return nil, err
	}
	if state.Version != version {
		return nil, &DamagedError{name, fmt.Sprintf("version %d, expected %d", state.Version, version)}
	}
	seen := map[attachment.Key]bool{}
	for i, a := range state.Attachments {
		if a == nil {
			return nil, &DamagedError{name, fmt.Sprintf("attachments[%d] is null", i)}
		}
		if err := a.Validate(); err != nil {
			return nil, &DamagedError{name, fmt.Sprintf("attachments[%d]: %v", i, err)}
		}
		if seen[a.Key] {
			return nil, &DamagedError{name, fmt.Sprintf("attachments[%d]: %s is there twice", i, a.Key)}
		}
		seen[a.Key] = true
	}
	return &state, nil
}

// Encode is the inverse of Decode. Attachments are sorted, so equal states give equal bytes.
func Encode(state *State) ([]byte, error) {
	sorted := *state
	sorted.Version = version
	sorted.Attachments = slices.Clone(state.Attachments)
	slices.SortFunc(sorted.Attachments, func(a, b *attachment.Attachment) int { return a.Compare(b.Key) })
	return seal(&sorted)
}

// Read reads the store of a state directory without changing anything; a missing file is an empty state.
func Read(stateDir string) (*State, error) {
	path := filepath.Join(stateDir, fileName)
	data, err := os.ReadFile(path) // #nosec G304 -- the state directory
	if errors.Is(err, fs.ErrNotExist) {
		return &State{Version: version}, nil
	}
	if err != nil {
		return nil, err
	}
	return Decode(path, data)
}

// Open reads the store, creating the directory if need be. If the file is damaged it is moved into quarantine and the
// DamagedError is returned beside an empty state: the caller rebuilds it.
func Open(stateDir string) (*State, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, err
	}
	tidy(stateDir, time.Now())
	state, err := Read(stateDir)
	var damaged *DamagedError
	if !errors.As(err, &damaged) {
		return state, err
	}
	quarantine := filepath.Join(stateDir, quarantineDir)
	if err := os.MkdirAll(quarantine, 0o700); err != nil {
		return nil, cmp.Or(err, error(damaged))
	}
	aside := filepath.Join(quarantine, "store-"+time.Now().UTC().Format("20060102T150405.000000000Z")+".json")
	if err := os.Rename(filepath.Join(stateDir, fileName), aside); err != nil {
		return nil, fmt.Errorf("%w; it could not be moved into quarantine: %w", damaged, err)
	}
	return &State{Version: version}, damaged
}

// unfinished: a write takes milliseconds, a minute on a disk that hangs. A file that a kill has left is older.
const unfinished = time.Hour

// tidy removes what writes have left that were killed, of the agent and of plugins. Others may be writing now. What cannot be removed,
// as on a disk that has become read-only, stays: the store can be read all the same.
func tidy(stateDir string, now time.Time) {
	for _, dir := range []string{stateDir, filepath.Join(stateDir, tombstoneDir)} {
		left, _ := filepath.Glob(filepath.Join(dir, ".*.json-*")) // fails for a bad pattern alone
		for _, path := range left {
			info, err := os.Lstat(path)
			if err != nil || !info.Mode().IsRegular() || now.Sub(info.ModTime()) < unfinished {
				continue // finished meanwhile, or not ours
			}
			_ = os.Remove(path)
		}
	}
}

// Write replaces the store.
func Write(stateDir string, state *State) error {
	data, err := Encode(state)
	if err != nil {
		return err
	}
	return writeAtomically(filepath.Join(stateDir, fileName), data)
}
