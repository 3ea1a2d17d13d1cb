package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/railweave/railweave/cni/internal/attachment"
)

// Directory is a Source without Kubernetes: namespaces.json, which the operator writes, and nodes/<node>.json, which each
// node writes for itself, in a directory that all nodes share.
type Directory struct {
	path    string
	self    string
	changed chan struct{}

	mutex  sync.Mutex
	own    nodeFile
	writes uint64 // of the own file
	view   View
	stale  time.Time
	why    error // it is stale
}

type namespacesFile struct {
	Namespaces map[string]struct {
		Tenant string `json:"tenant"`
	} `json:"namespaces"`
}

type nodeFile struct {
	Node
	Addresses []Entry `json:"addresses"`
}

// OpenDirectory starts to follow a directory. What this node had published before is its own again.
func OpenDirectory(ctx context.Context, path, self string) (*Directory, error) {
	if err := os.MkdirAll(filepath.Join(path, "nodes"), 0o755); err != nil { // shared between nodes
		return nil, err
	}
	d := &Directory{path: path, self: self, changed: make(chan struct{}, 1), own: nodeFile{Node: Node{Name: self}}}
	if err := readJSON(d.nodePath(self), &d.own); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.own = nodeFile{Node: Node{Name: self}} // rewritten from the store
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	for _, watched := range []string{path, filepath.Join(path, "nodes")} {
		if err := watcher.Add(watched); err != nil {
			return nil, errors.Join(err, watcher.Close())
		}
	}
	d.reload()
	go d.follow(ctx, watcher)
	return d, nil
}

// pollPeriod catches what inotify cannot tell (network file systems).
const pollPeriod = time.Second

func (d *Directory) follow(ctx context.Context, watcher *fsnotify.Watcher) {
	defer func() { _ = watcher.Close() }() // the process ends, or nobody listens any more
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case event := <-watcher.Events:
			if strings.HasPrefix(filepath.Base(event.Name), ".") {
				continue // a file that is being written
			}
		case <-watcher.Errors:
		}
		d.reload()
	}
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path) // #nosec G304 -- below the configured directory
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (d *Directory) nodePath(node string) string {
	return filepath.Join(d.path, "nodes", node+".json")
}

// ReadDirectory reads the directory once.
func ReadDirectory(path string) (View, error) {
	view := emptyView()
	var err error
	if view.Namespaces, err = readNamespaces(path); err != nil {
		return view, err
	}
	files, err := filepath.Glob(filepath.Join(path, "nodes", "[^.]*.json"))
	if err != nil {
		return view, err
	}
	for _, file := range files {
		var node nodeFile
		if err := readJSON(file, &node); err != nil {
			return view, err
		}
		node.Name = strings.TrimSuffix(filepath.Base(file), ".json")
		view.Nodes[node.Name] = node.Node
		for _, entry := range node.Addresses {
			entry.Node = node.Name // the file's name says who wrote it
			view.merge(entry)
		}
	}
	return view, nil
}

func readNamespaces(path string) (map[string]Tenant, error) {
	var file namespacesFile
	if err := readJSON(filepath.Join(path, "namespaces.json"), &file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	namespaces := map[string]Tenant{}
	for name, entry := range file.Namespaces {
		namespaces[name] = TenantOf(name, entry.Tenant)
	}
	return namespaces, nil
}

// reload keeps the old view if the directory cannot be read: known addresses stay, unknown ones stay denied.
func (d *Directory) reload() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	var view View
	var err error
	// What was read while this node wrote its own file may be from before, and must not undo what foresee has shown.
	for {
		before := d.writes
		d.mutex.Unlock()
		view, err = ReadDirectory(d.path)
		d.mutex.Lock()
		if before == d.writes {
			break
		}
	}
	if err != nil {
		if d.stale.IsZero() {
			d.stale = time.Now()
		}
		d.why = err
		return
	}
	d.stale, d.why = time.Time{}, nil
	now := time.Now()
	for name, node := range view.Nodes {
		before, known := d.view.Nodes[name]
		node.hear(before, known, now)
		view.Nodes[name] = node
	}
	same := maps.Equal(view.Namespaces, d.view.Namespaces) && maps.Equal(view.Entries, d.view.Entries) &&
		maps.EqualFunc(view.Nodes, d.view.Nodes, func(a, b Node) bool { return a.Barrier == b.Barrier && maps.Equal(a.Acks, b.Acks) }) &&
		maps.EqualFunc(view.Disputed, d.view.Disputed, slices.Equal)
	d.view = view
	if !same {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

// View of the directory.
func (d *Directory) View() View {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.view
}

// Changed is signalled after the view changed.
func (d *Directory) Changed() <-chan struct{} { return d.changed }

// Reached: it was when it was opened.
func (d *Directory) Reached() error { return nil }

// Stale since the directory cannot be read.
func (d *Directory) Stale() (time.Time, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.stale, d.why
}

// Publish writes an address into this node's file.
func (d *Directory) Publish(_ context.Context, entry Entry) error {
	entry.Node = d.self
	d.mutex.Lock()
	other, taken := d.view.Entries[entry.Address]
	at, there := d.search(&d.own, entry.Address)
	done := there && d.own.Addresses[at] == entry && other == entry
	d.mutex.Unlock()
	switch {
	case taken && other.Node != d.self:
		return &TakenError{entry.Address, other.Node}
	case done:
		return nil
	}
	err := d.rewrite(func(file *nodeFile) bool {
		at, there := d.search(file, entry.Address)
		if there && file.Addresses[at] == entry {
			return false
		}
		if there {
			file.Addresses[at] = entry
		} else {
			file.Addresses = slices.Insert(file.Addresses, at, entry)
		}
		return true
	})
	if err == nil {
		d.foresee(func(view *View) { view.Entries[entry.Address] = entry })
	}
	return err
}

// Remove takes an address out of this node's file.
func (d *Directory) Remove(_ context.Context, address netip.Addr) error {
	err := d.rewrite(func(file *nodeFile) bool {
		at, there := d.search(file, address)
		if there {
			file.Addresses = slices.Delete(file.Addresses, at, at+1)
		}
		return there
	})
	if err == nil {
		d.foresee(func(view *View) { delete(view.Entries, address) })
	}
	return err
}

// Report writes what this node says of itself into its file.
func (d *Directory) Report(_ context.Context, node Node) error {
	node.Name = d.self
	err := d.rewrite(func(file *nodeFile) bool {
		file.Node = node
		return true
	})
	if err == nil {
		node.Heard = time.Now()
		d.foresee(func(view *View) { view.Nodes[d.self] = node })
	}
	return err
}

// foresee brings this node's own change into the view without waiting for the watch.
func (d *Directory) foresee(change func(*View)) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	next := d.view
	next.Entries, next.Nodes = maps.Clone(d.view.Entries), maps.Clone(d.view.Nodes)
	change(&next)
	d.view = next
}

func (d *Directory) search(file *nodeFile, address netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(file.Addresses, address, func(e Entry, a netip.Addr) int { return e.Address.Compare(a) })
}

// rewrite replaces this node's file by rename.
func (d *Directory) rewrite(change func(*nodeFile) bool) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	next := d.own
	next.Addresses = slices.Clone(d.own.Addresses)
	if !change(&next) {
		return nil
	}
	if err := writeByRename(d.nodePath(d.self), next); err != nil {
		return err
	}
	d.own = next
	d.writes++
	return nil
}

func writeByRename(path string, contents any) error {
	data, err := json.Marshal(contents)
	if err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.WriteFile(temporary, data, 0o644); err != nil { // other nodes read it
		return err
	}
	return os.Rename(temporary, path)
}

// VerifyPod knows no pods, only Namespaces.
func (d *Directory) VerifyPod(_ context.Context, pod attachment.Pod) error {
	namespaces, err := readNamespaces(d.path)
	if err != nil {
		return err
	}
	tenant, exists := namespaces[pod.Namespace]
	switch {
	case !exists:
		return fmt.Errorf("%s: %w", pod.Namespace, ErrNoNamespace)
	case tenant != d.View().Namespaces[pod.Namespace]:
		return fmt.Errorf("%s: %w", pod.Namespace, ErrBehind)
	default:
		return nil
	}
}
