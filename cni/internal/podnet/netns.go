// Package podnet configures the interface inside the pod, and tells live network namespaces from dead ones.
package podnet

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotNamespace: the path exists but is no network namespace.
var ErrNotNamespace = errors.New("not a network namespace")

// Inode of the network namespace at a path. The kernel is asked what the file is; a name is no proof.
func Inode(path string) (uint64, error) {
	handle, err := os.Open(path) // #nosec G304 -- what it must be is checked below
	if err != nil {
		return 0, err
	}
	defer func() { _ = handle.Close() }() // opened for reading
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(handle.Fd()), &fs); err != nil {
		return 0, err
	}
	kind, err := unix.IoctlRetInt(int(handle.Fd()), unix.NS_GET_NSTYPE)
	if fs.Type != unix.NSFS_MAGIC || err != nil || kind != unix.CLONE_NEWNET {
		return 0, fmt.Errorf("%s: %w", path, ErrNotNamespace)
	}
	info, err := handle.Stat()
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: no inode", path)
	}
	return stat.Ino, nil
}

// Alive tells whether the namespace with that inode is still at the path. When in doubt (no permission, I/O error) it is:
// what lives must not be swept.
func Alive(path string, inode uint64) bool {
	found, err := Inode(path)
	if err == nil {
		return found == inode
	}
	return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, ErrNotNamespace)
}

// BootID of the running kernel.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
