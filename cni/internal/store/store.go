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
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/durable"
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

// replace writes a file of the state directory.
func replace(path string, data []byte) error {
	return durable.Replace(path, 0o600, func(file io.Writer) error {
		_, err := file.Write(data)
		return err
	})
}

// WriteSealed replaces a file by a body with its checksum, as the store is.
func WriteSealed(path string, body any) error {
	data, err := seal(body)
	if err != nil {
		return err
	}
	return replace(path, data)
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
	for _, dir := range []string{stateDir, filepath.Join(stateDir, tombstoneDir)} {
		durable.Tidy(dir, ".*.json-*") // of the agent and of plugins
	}
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

// Write replaces the store.
func Write(stateDir string, state *State) error {
	data, err := Encode(state)
	if err != nil {
		return err
	}
	return replace(filepath.Join(stateDir, fileName), data)
}
