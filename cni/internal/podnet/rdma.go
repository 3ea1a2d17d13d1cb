package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Why a device's RDMA side is not as it must be.
var (
	ErrRDMANotIsolated = errors.New("the RDMA device is not in the pod's namespace")
	ErrNoGID           = errors.New("no GID of the address")
	ErrNoDevice        = errors.New("no such device on this node")
)

// gidTime: the kernel adds a GID some milliseconds after the address; a device that needs seconds is broken.
const (
	gidTime = 2 * time.Second
	gidPoll = 10 * time.Millisecond
)

// RDMAReady tells whether a virtual function's RDMA device is where it must be (in the pod, if RDMA namespaces are exclusive)
// and has the GIDs of the addresses. A veth, or a function without RDMA, is always ready; a device that does not exist is not.
func RDMAReady(netns, device string, addresses []netip.Prefix) error {
	if device == "" {
		return nil
	}
	names, err := rdmaDevices("/sys", device)
	if err != nil {
		return err
	}
	mode, err := netlink.RdmaSystemGetNetnsMode()
	if err != nil || mode != "exclusive" {
		// Shared (or no RDMA at all): the device stays in the host's namespace and sysfs.
		if len(names) == 0 {
			return nil
		}
		return awaitGIDs("/sys/class/infiniband", names[0], addresses)
	}
	return inNamespaceSysfs(netns, func(sysfs string) error {
		names, err := rdmaDevices(sysfs, device)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return fmt.Errorf("%s: %w", device, ErrRDMANotIsolated)
		}
		return awaitGIDs(filepath.Join(sysfs, "class/infiniband"), names[0], addresses)
	})
}

// buses on which a function of a NIC is found: virtual functions, and subfunctions (mlx5_core.sf.4).
var buses = []string{"pci", "auxiliary"}

// rdmaDevices of a NIC's function, as sysfs lists them for the namespace it was mounted in.
func rdmaDevices(sysfs, device string) ([]string, error) {
	for _, bus := range buses {
		place := filepath.Join(sysfs, "bus", bus, "devices", device)
		if _, err := os.Stat(place); errors.Is(err, os.ErrNotExist) {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(place, "infiniband"))
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil // it does Ethernet only
		}
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return names, err
	}
	return nil, fmt.Errorf("%s: %w", device, ErrNoDevice)
}

// inNamespaceSysfs runs a function with a sysfs that shows the pod's namespace. The thread gets a mount namespace of its
// own and is thrown away.
func inNamespaceSysfs(netns string, do func(sysfs string) error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its mount namespace with it
		result <- func() error {
			namespace, err := ns.GetNS(netns)
			if err != nil {
				return err
			}
			defer func() { _ = namespace.Close() }() // only read from
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil { // #nosec G115 -- a descriptor
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			const place = "/sys"
			if err := unix.Mount("sysfs", place, "sysfs", unix.MS_RDONLY, ""); err != nil {
				return err
			}
			return do(place)
		}()
	}()
	return <-result
}

// awaitGIDs waits until each address is among the GIDs of the device's first port.
func awaitGIDs(class, device string, addresses []netip.Prefix) error {
	deadline := time.Now().Add(gidTime)
	for {
		gids, err := readGIDs(filepath.Join(class, device, "ports/1/gids"))
		if err != nil {
			return err
		}
		missing := slices.IndexFunc(addresses, func(prefix netip.Prefix) bool { return !gids[prefix.Addr().As16()] })
		if missing < 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s on %s: %w", addresses[missing].Addr(), device, ErrNoGID)
		}
		time.Sleep(gidPoll)
	}
}

// readGIDs: one file an index; RoCE writes an IPv4 address in its IPv6-mapped form.
func readGIDs(dir string) (map[[16]byte]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	gids := map[[16]byte]bool{}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name())) // #nosec G304 -- sysfs
		if err != nil {
			continue // an empty index reads as EINVAL on some drivers
		}
		if ip := net.ParseIP(strings.TrimSpace(string(data))); ip != nil {
			gids[[16]byte(ip.To16())] = true
		}
	}
	return gids, nil
}
