package testnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// idPrefix starts the name of every instance and thereby of every namespace of one.
const idPrefix = "rwt"

// ovsCNICache is where ovs-cni, whose paths cannot be configured, keeps a file per container; containers of an instance
// have its id as the prefix of theirs.
const ovsCNICache = "/var/lib/cni/ovs-cni/cache"

// instanceLock is an flock on an instance's directory. The kernel drops it when the owner ends, in whatever way.
type instanceLock struct{ file *os.File }

func lockInstance(id string) (*instanceLock, error) {
	f, err := os.OpenFile(filepath.Join(StateDir, id, "owner"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("instance %s is in use: %w", id, err), f.Close())
	}
	return &instanceLock{file: f}, nil
}

func (l *instanceLock) release() error { return l.file.Close() }

// lockAll keeps others from claiming or sweeping: an instance that is being claimed has no owner for a moment.
func lockAll() (*instanceLock, error) {
	if err := os.MkdirAll(StateDir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(StateDir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &instanceLock{file: f}, nil
}

// record is what is kept of an instance on disk, to find it again.
type record struct {
	Config Config
	Owned  bool // to be taken down when its owner is gone
}

// claim picks an unused name and writes the instance's record.
func claim(config Config, owned bool) (*Network, error) {
	all, err := lockAll()
	if err != nil {
		return nil, err
	}
	defer func() { _ = all.release() }()
	for range 100 {
		id := fmt.Sprintf("%s%04x", idPrefix, rand.Uint32()&0xffff)
		err := os.Mkdir(filepath.Join(StateDir, id), 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return initialise(id, config, owned)
	}
	return nil, fmt.Errorf("no free instance name below %s: run `testnet sweep`", StateDir)
}

func initialise(id string, config Config, owned bool) (*Network, error) {
	n := describe(id, config)
	lock, err := lockInstance(id)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(n.Dir))
	}
	n.lock = lock
	text, err := json.MarshalIndent(record{Config: config, Owned: owned}, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(n.Dir, "record.json"), string(text)); err != nil {
		return nil, errors.Join(err, n.Down())
	}
	if !owned {
		return n, nil
	}
	n.guard, err = startGuard(id)
	if err != nil {
		return nil, errors.Join(err, n.Down())
	}
	return n, nil
}

// Open finds a detached instance by its id.
func Open(id string) (*Network, error) {
	r, err := readRecord(id)
	if err != nil {
		return nil, fmt.Errorf("no test network %q: %w", id, err)
	}
	return describe(id, r.Config), nil
}

func readRecord(id string) (record, error) {
	var r record
	text, err := os.ReadFile(filepath.Join(StateDir, id, "record.json"))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// List returns the ids of all instances on this machine.
func List() ([]string, error) {
	entries, err := os.ReadDir(StateDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), idPrefix) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Sweep removes the instances whose owner is gone, and namespaces that belong to no instance; it returns what it found.
func Sweep() ([]string, error) {
	all, err := lockAll()
	if err != nil {
		return nil, err
	}
	defer func() { _ = all.release() }()
	ids, err := List()
	if err != nil {
		return nil, err
	}
	var swept []string
	var failures error
	for _, id := range ids {
		lock, err := lockInstance(id)
		if err != nil {
			continue // in use
		}
		r, err := readRecord(id)
		if err == nil && !r.Owned {
			failures = errors.Join(failures, lock.release())
			continue
		}
		failures = errors.Join(failures, remove(id), lock.release())
		swept = append(swept, id)
	}
	known, err := List()
	if err != nil {
		return swept, errors.Join(failures, err)
	}
	orphans, err := orphanNamespaces(known)
	failures = errors.Join(failures, err)
	for _, ns := range orphans {
		failures = errors.Join(failures, ns.Delete(), FRR{ns: ns}.remove())
		swept = append(swept, ns.Name)
	}
	return swept, failures
}

// instanceOf returns the instance a namespace's name belongs to, or "".
func instanceOf(namespace string) string {
	id, _, ok := strings.Cut(namespace, "-")
	if !ok || len(id) != len(idPrefix)+4 || !strings.HasPrefix(id, idPrefix) {
		return ""
	}
	return id
}

func orphanNamespaces(known []string) ([]Namespace, error) {
	all, err := namespaces()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(n Namespace) bool {
		id := instanceOf(n.Name)
		return id == "" || slices.Contains(known, id)
	}), nil
}

func namespaces() ([]Namespace, error) {
	entries, err := os.ReadDir(NamespaceDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Namespace
	for _, e := range entries {
		all = append(all, Namespace{Name: e.Name()})
	}
	return all, nil
}

// remove deletes everything that belongs to an instance. What belongs to it is found by name on the system and not in
// memory, so that it also works on the remains of a crash.
func remove(id string) error {
	all, err := namespaces()
	var failures error
	if err != nil {
		failures = err
	}
	for _, ns := range all {
		if instanceOf(ns.Name) == id {
			failures = errors.Join(failures, ns.Delete(), FRR{ns: ns}.remove())
		}
	}
	cached, err := filepath.Glob(filepath.Join(ovsCNICache, id+"-*"))
	failures = errors.Join(failures, err)
	for _, file := range cached {
		failures = errors.Join(failures, os.Remove(file))
	}
	return errors.Join(failures, os.RemoveAll(filepath.Join(StateDir, id)))
}
