package preflight

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/railweave/railweave/cni/internal/durable"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/kernel"
	"github.com/railweave/railweave/cni/internal/nodeconfig"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

// databaseTime: a database that runs answers within milliseconds.
const databaseTime = 3 * time.Second

// daemonTime: one of FRR's daemons that runs answers within milliseconds, a bgpd that takes in thousands of routes within a second.
const daemonTime = 3 * time.Second

// Gather the facts of this node. What cannot be read is a fact too.
func Gather(ctx context.Context, config *nodeconfig.Config) *Facts {
	facts := &Facts{Daemons: map[string]bool{}, Rails: map[string]RailFacts{}}
	if path, err := exec.LookPath("ovs-ofctl"); err == nil {
		facts.OFCtl = path
	}
	gatherOVS(ctx, config, facts)
	gatherFRR(ctx, config, facts)
	facts.Zebras = zebras("/proc")
	if mode, err := netlink.RdmaSystemGetNetnsMode(); err == nil {
		facts.RDMAMode = mode
	}
	if links, err := netlink.RdmaLinkList(); err == nil {
		facts.RDMADevices = len(links)
	}
	facts.StateErr = writable(config.StateDir)
	facts.IPv6 = kernel.HasIPv6()
	for i := range config.Rails {
		facts.Rails[config.Rails[i].Name] = gatherRail(&config.Rails[i])
	}
	return facts
}

func gatherOVS(ctx context.Context, config *nodeconfig.Config, facts *Facts) {
	ctx, cancel := context.WithTimeout(ctx, databaseTime)
	defer cancel()
	// Asked of the daemon itself: the database's column ovs_version is written by ovs-ctl, or by nobody.
	if text, err := vswitch.NewSwitch(config.OVS.RunDir).Command(ctx, "version"); err == nil {
		facts.OVSVersion = strings.TrimSpace(text)
	}
	database, err := vswitch.OpenDatabase(ctx, config.OVS.RunDir)
	if err != nil {
		facts.DatabaseErr = err
		return
	}
	defer database.Close()
	if facts.OtherConfig, err = database.OtherConfig(ctx); err != nil {
		facts.DatabaseErr = err
	}
}

func gatherFRR(ctx context.Context, config *nodeconfig.Config, facts *Facts) {
	ctx, cancel := context.WithTimeout(ctx, daemonTime)
	defer cancel()
	daemons := frr.New(config)
	type answer struct {
		daemon, version string
		err             error
	}
	names := []string{"zebra", "bgpd", "bfdd"}
	answers := make(chan answer, len(names))
	for _, name := range names {
		go func() {
			text, err := daemons.Version(ctx, name)
			answers <- answer{name, text, err}
		}()
	}
	for range names {
		said := <-answers
		facts.Daemons[said.daemon] = said.err == nil
		if said.daemon == "bgpd" {
			facts.FRRVersion = said.version
		}
	}
	_, err := os.Stat(filepath.Join(config.FRR.BinDir, "frr-reload.py"))
	facts.Reload = err == nil
}

// zebras are the processes of that name in this process's network namespace.
func zebras(proc string) []int {
	mine, err := os.Readlink(filepath.Join(proc, "self/ns/net"))
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		name, err := os.ReadFile(filepath.Join(proc, entry.Name(), "comm")) // #nosec G304 -- procfs
		if err != nil || strings.TrimSpace(string(name)) != "zebra" {
			continue
		}
		if theirs, err := os.Readlink(filepath.Join(proc, entry.Name(), "ns/net")); err == nil && theirs == mine {
			found = append(found, pid)
		}
	}
	slices.Sort(found)
	return found
}

// probeName is what the names of files begin with that show whether the state directory can be written.
const probeName = ".preflight-"

func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	durable.Tidy(dir, probeName+"*") // of killed ones
	probe, err := os.CreateTemp(dir, probeName)
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

func gatherRail(rail *nodeconfig.Rail) RailFacts {
	var facts RailFacts
	if link, err := netlink.LinkByName(rail.Uplink); err == nil {
		facts.UplinkMTU = link.Attrs().MTU
		if device, err := netlink.DevLinkGetDeviceByName("pci", link.Attrs().ParentDev); err == nil && device != nil {
			facts.Eswitch = device.Attrs.Eswitch.Mode
		}
		if info, err := netlink.DevlinkGetDeviceInfoByNameAsMap("pci", link.Attrs().ParentDev); err == nil {
			facts.Firmware = fmt.Sprint(info["fw.version"])
		}
	}
	for _, pool := range rail.Pools {
		family := netlink.FAMILY_V4
		if pool.Prefix.Addr().Is6() {
			family = netlink.FAMILY_V6
		}
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			continue
		}
		facts.Overlap = append(facts.Overlap, overlapping(routes, pool.Prefix)...)
	}
	return facts
}

// overlapping are routes more specific than a default route that lead somewhere and touch the pool.
func overlapping(routes []netlink.Route, pool netip.Prefix) []netip.Prefix {
	var found []netip.Prefix
	for _, route := range routes {
		prefix, ok := kernel.FromIPNet(route.Dst)
		leads := route.Type == unix.RTN_UNICAST && route.Protocol != frr.RouteProtocol
		if ok && leads && prefix.Bits() > 0 && prefix.Overlaps(pool) {
			found = append(found, prefix)
		}
	}
	return found
}
